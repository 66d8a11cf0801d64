#!/usr/bin/env bash
# Installs the packages for this machine in a fresh Debian root and runs the commands of docs/start.md and then of
# docs/install.md there, to the letter. Takes root, debootstrap and a mirror of Debian.
#   scripts/package-test.sh [FOLDER OF PACKAGES]      default target/packages
# Prints, at last, N passed, N failed, N skipped.
set -euo pipefail
exec </dev/null
cd "$(dirname "$0")/.."
source scripts/page-keel.sh
packages=${1:-${CARGO_TARGET_DIR:-target}/packages}
arch=$(dpkg --print-architecture)

skip() {
    printf 'skipped: packages in a fresh root: %s\n0 passed, 0 failed, 1 skipped\n' "$1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "only root can make one"
command -v debootstrap >/dev/null || skip "debootstrap is missing (apt-get install debootstrap)"
unshare --mount --pid --fork true 2>/dev/null || skip "this machine lets nobody have namespaces"
ls "$packages"/evenkeel_*_"$arch".deb >/dev/null || {
    printf 'no packages in %s: make package\n' "$packages" >&2
    exit 1
}

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
debootstrap --variant=minbase "${suite:-bookworm}" "$work/debian" >"$work/log" 2>&1 || {
    tail -n 5 "$work/log" >&2
    skip "debootstrap could not make one (no mirror?)"
}
mkdir "$work/debian/packages"
cp "$packages"/*_"$arch".deb "$work/debian/packages"

# Blocks with their number, in one script: the first command that fails ends it, and its block is named. What a block of
# text shows is compared.
awk '
    /^```sh$/ { count++; inside = 1; printf "block=%d\nexec >/blocks/%d.out\n", count, count; next }
    /^```text$/ { text = sprintf("%s/%d.expected", folder, count); inside = 2; printf "" > text; next }
    /^```$/ { inside = 0; next }
    inside == 1 { print }
    inside == 2 { print > text }
    END { printf "echo %d >/blocks/done\n", count }' folder="$work" docs/start.md docs/install.md >"$work/commands"
mkdir "$work/debian/blocks"
{
    printf 'set -e\ncd /packages\ntrap '\''echo "$block" >/blocks/failed'\'' ERR\n'
    cat "$work/commands"
} >"$work/debian/blocks/commands"

failed=0
# With its own processes, so that whatever the pages start ends with it.
unshare --mount --pid --fork --mount-proc="$work/debian/proc" chroot "$work/debian" \
    timeout 300 bash /blocks/commands >"$work/said" 2>&1 || failed=1
passed=$(ls "$work"/debian/blocks/*.out | wc -l)
if [ "$failed" -eq 1 ] || [ ! -e "$work/debian/blocks/done" ]; then
    failed=1
    passed=$((passed - 1))
    block=$(cat "$work/debian/blocks/failed" 2>/dev/null || echo '?')
    printf 'package-test: block %s of docs/start.md and docs/install.md failed:\n' "$block"
    tail -n 20 "$work/said"
    tail -n 5 "$work"/debian/blocks/*.out "$work/debian/tmp/keel.log" 2>/dev/null || true
fi
for expected in "$work"/*.expected; do
    out=$work/debian/blocks/$(basename "$expected" .expected).out
    if ! matches "$expected" "$out"; then
        printf 'package-test: %s prints something else than the pages show\n' "$(basename "$out")"
        failed=$((failed + 1))
    fi
done

# What the pages do not say: the package again, on the store that was kept.
check() {
    if "$@" >"$work/said" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'package-test: failed: %s\n' "$*"
        tail -n 5 "$work/said"
    fi
}
inside() {
    unshare --mount --pid --fork --mount-proc="$work/debian/proc" chroot "$work/debian" timeout 120 bash -c "$1"
}
check inside 'dpkg --install /packages/evenkeel_*.deb && keel flash check /var/lib/keel/store.img'
check inside 'test "$(stat -c %U:%a /var/lib/keel)" = keel:750'
check inside '! keel restore /var/backups/keel.backup -c /etc/keel/keel.toml'
check inside 'keel restore /var/backups/keel.backup -c /etc/keel/keel.toml --force'
check inside 'keel flash check /var/lib/keel/store.img && test "$(stat -c %U /var/lib/keel/store.img)" = keel'
check inside 'keel demo --headless --seconds 20 --speed 20'
check inside 'cd /usr/share/man/man1 && zcat keel-backup.1.gz | grep -q "keel backup" && zcat keel.1.gz >/dev/null'
check inside 'bash -n /usr/share/bash-completion/completions/keel'
check inside 'test "$(ls /packages/evenkeel-bench_*.deb | wc -l)" = 0 || dpkg --install /packages/evenkeel-bench_*.deb'
check inside 'test ! -x /usr/bin/keel-bench || keel-bench --version'
check inside '! ldd /usr/bin/keel | grep "not found"'
printf 'package: %d passed, %d failed, 0 skipped\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
