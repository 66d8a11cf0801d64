#!/usr/bin/env bash
# Installs the packages for this machine in fresh roots of Debian 11, 12 and 13, and runs the commands of docs/start.md
# and then of docs/install.md there, to the letter. Takes root, debootstrap and a mirror of Debian (DEBIAN_MIRROR, else
# the one that debootstrap knows).
#   scripts/package-test.sh [FOLDER OF PACKAGES [SUITE]...]      default target/packages bullseye bookworm trixie
# Prints, at last, N passed, N failed, N skipped.
set -euo pipefail
exec </dev/null
cd "$(dirname "$0")/.."
source scripts/page-keel.sh
packages=${1:-${CARGO_TARGET_DIR:-target}/packages}
suites=("${@:2}")
[ "${#suites[@]}" -gt 0 ] || suites=(bullseye bookworm trixie)
arch=$(dpkg --print-architecture)

skip() {
    printf 'skipped: packages in a fresh root: %s\npackage-test: 0 passed, 0 failed, 1 skipped\n' "$1"
    exit 0
}
[ "$(id -u)" -eq 0 ] || skip "only root can make one"
scripts/setup.sh --package root || skip "debootstrap is missing"
unshare --mount --pid --net --fork true 2>/dev/null || skip "this machine lets nobody have namespaces"
package=$(find "$packages" -maxdepth 1 -name "evenkeel_*_$arch.deb" | sort -V | tail -n 1 || true)
[ -n "$package" ] || {
    printf 'no packages in %s: make package\n' "$packages" >&2
    exit 1
}
version=$(dpkg-deb --field "$package" Version)

work=$(mktemp -d "${TMPDIR:-/var/tmp}/keel-root.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
passed=0
failed=0
skipped=0

# inside SECONDS COMMAND...: in the root, with processes and a loopback address of its own, so that whatever is started
# there ends with it and meets no node of this machine.
inside() {
    # shellcheck disable=SC2016 # The inner shell expands them.
    timeout --kill-after=10 "$1" unshare --mount --pid --net --fork --kill-child --mount-proc="$root/proc" \
        sh -c 'ip link set lo up && exec chroot "$@"' sh "$root" "${@:2}"
}

# All blocks as one script, each with its number: the first command that fails ends it, and its block is named. What a
# block of text shows is compared. Blocks that are marked as not run are left out, but for those that the marker leaves
# to this script.
{
    printf 'set -e\ncd /packages\ntrap '\''echo "$block" >/blocks/failed'\'' ERR\n'
    awk '
        /^<!-- not run: .* -->$/ { left_out = !/package-test.sh/; next }
        /^```sh$/ && left_out { left_out = 0; inside = 3; next }
        /^```sh$/ { count++; inside = 1; printf "block=%d\nexec >/blocks/%d.out\n", count, count; next }
        /^```text$/ { text = sprintf("%s/%d.expected", folder, count); inside = 2; printf "" > text; next }
        /^```$/ { inside = 0; next }
        inside == 1 { print }
        inside == 2 { print > text }
        END { printf "echo %d >/blocks/done\n", count }' folder="$work" docs/start.md docs/install.md
} >"$work/commands"

# check COMMANDS: what the pages do not say. The package is purged when they end, and the store is there.
check() {
    if inside 120 bash -c "$1" >"$work/said" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'package-test: %s: failed: %s\n' "$suite" "$1"
        tail -n 5 "$work/said"
    fi
}

# In a fresh root of one suite.
in_suite() {
    suite=$1
    root=$work/$suite
    debootstrap --variant=minbase "$suite" "$root" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >"$work/log" 2>&1 || {
        tail -n 5 "$work/log" >&2
        printf 'skipped: packages in a fresh root: debootstrap could not make one of %s (no mirror?)\n' "$suite"
        skipped=$((skipped + 1))
        return
    }
    mkdir "$root/packages" "$root/blocks"
    cp "$packages"/*_"${version}_$arch.deb" "$root/packages"
    cp "$work/commands" "$root/blocks/commands"
    local block expected out
    if inside 300 bash /blocks/commands >"$work/said" 2>&1 && [ -e "$root/blocks/done" ]; then
        passed=$((passed + $(find "$root/blocks" -name '*.out' | wc -l)))
    else
        failed=$((failed + 1))
        passed=$((passed + $(find "$root/blocks" -name '*.out' | wc -l) - 1))
        block=$(cat "$root/blocks/failed" 2>/dev/null || echo '?')
        printf 'package-test: %s: block %s of docs/start.md and docs/install.md failed:\n' "$suite" "$block"
        tail -n 20 "$work/said"
        tail -n 5 "$root"/blocks/*.out "$root/tmp/keel.log" 2>/dev/null || true
    fi
    for expected in "$work"/*.expected; do
        out=$root/blocks/$(basename "$expected" .expected).out
        if ! matches "$expected" "$out"; then
            printf 'package-test: %s: %s prints something else than the pages show\n' "$suite" "$(basename "$out")"
            failed=$((failed + 1))
        fi
    done
    check 'dpkg --install /packages/evenkeel_*.deb && keel flash check /var/lib/keel/store.img'
    check 'test "$(stat -c %U:%a /var/lib/keel)" = keel:750'
    check '! keel restore /var/backups/keel.backup -c /etc/keel/keel.toml'
    check 'keel restore /var/backups/keel.backup -c /etc/keel/keel.toml --force'
    check 'keel flash check /var/lib/keel/store.img && test "$(stat -c %U /var/lib/keel/store.img)" = keel'
    # A configuration that somebody has changed stays as it is.
    check 'echo "# mine" >>/etc/keel/keel.toml && dpkg --install /packages/evenkeel_*.deb &&
        grep mine /etc/keel/keel.toml'
    check 'keel demo --headless --seconds 20 --speed 20'
    check 'grep -aq uplot-license.txt /usr/bin/keel'
    check 'cd /usr/share/man/man1 && zcat keel-backup.1.gz | grep -q "keel backup" && zcat keel.1.gz >/dev/null'
    check 'bash -n /usr/share/bash-completion/completions/keel'
    check 'cd /usr/share/evenkeel && grep -q EvenkeelUpstreamLost evenkeel.rules.yml && test -s evenkeel.json'
    check '! ldd /usr/bin/keel /usr/lib/*/libkeel.so | grep "not found"'
    if [ -e "$root/packages/evenkeel-bench_${version}_$arch.deb" ]; then
        check 'dpkg --install /packages/evenkeel-bench_*.deb && keel-bench --version'
    fi
    # Where there are no readings, nothing stays but the user.
    check 'find /var/lib/keel -mindepth 1 -delete && dpkg --purge evenkeel-bench evenkeel && ! test -e /var/lib/keel'
    check '! test -e /etc/keel'
    rm -rf --one-file-system "$root" || true
}

for suite in "${suites[@]}"; do in_suite "$suite"; done
printf 'package-test: %d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
