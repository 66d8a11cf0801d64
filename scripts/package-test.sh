#!/usr/bin/env bash
# Installs the packages for this machine in fresh roots of Debian 11, 12 and 13, and runs the commands of docs/start.md
# and then of docs/install.md there, to the letter. At last a package of a higher version takes over. Takes root,
# debootstrap and a mirror of Debian (DEBIAN_MIRROR, else the one that debootstrap knows).
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
unshare --mount --pid --net --fork true 2>/dev/null || skip "this machine permits no namespaces"
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

# inside SECONDS COMMAND...: runs the command in the root, with processes and a loopback address of its own. Every
# process that is started there ends with the command and meets no node of this machine.
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
        /^```sh$/ && left_out { left_out = 0; without = 1; inside = 3; next }
        /^```sh$/ { count++; without = 0; inside = 1; printf "block=%d\nexec >/blocks/%d.out\n", count, count; next }
        /^```text$/ && without { inside = 3; next }
        /^```text$/ { text = sprintf("%s/%d.expected", folder, count); inside = 2; printf "" > text; next }
        /^```$/ { inside = 0; next }
        inside == 1 { print }
        inside == 2 { print > text }
        END { printf "echo %d >/blocks/done\n", count }' folder="$work" docs/start.md docs/install.md
} >"$work/commands"

# The same program as a package of a higher version.
dpkg-deb --raw-extract "$package" "$work/newer"
sed -i "s/^Version: .*/Version: $version+upgrade1/" "$work/newer/DEBIAN/control"
dpkg-deb --root-owner-group -Zgzip -z1 --build "$work/newer" "$work/newer.deb" >/dev/null

# What is looked at in an upgrade: functions that checks run in the root.
cat >"$work/upgrade" <<'END'
set -e
link=/etc/systemd/system/multi-user.target.wants/keel.service

# By hand, as docs/install.md has it.
start() {
    mkdir -p /run/keel
    chown keel:keel /run/keel
    rm -f /tmp/upgrade.log
    setpriv --reuid keel --regid keel --init-groups keel run -c /etc/keel/keel.toml 2>/tmp/upgrade.log &
    node=$!
    until grep -qs ' ready: ' /tmp/upgrade.log; do
        kill -0 "$node"
        sleep 0.2
    done
}

stop() {
    kill "$node"
    wait "$node"
}

version() { dpkg-query --show --showformat='${Version}' evenkeel; }

# What must be the same afterwards, but for the readings.
state() {
    md5sum /etc/keel/keel.toml
    stat -c '%n %U:%G %u %a' /var/lib/keel /var/lib/keel/store.img /etc/keel/keel.toml
    stat -c '%n %N' "$link"
}

# The newer package is installed over a node that runs. After its end the newer program starts on its store.
everything_remains() {
    local before
    start
    for n in $(seq 20); do keel put upgrade/count "$n"; done
    keel put upgrade/temperature 22.5
    before=$(state)
    dpkg --install /blocks/newer.deb
    version | grep '+upgrade1$'
    stop
    [ "$(state)" = "$before" ]
    start
    [ "$(keel get upgrade/temperature)" = 22.5 ]
    keel history upgrade/count --from -1h --csv | cut -d, -f3 >/tmp/kept
    [ "$(seq 20 | grep -vxFf /tmp/kept | wc -l)" -eq 0 ]
    stop
    keel flash check /var/lib/keel/store.img
}

# Back to the version before, where the service is disabled by hand. The upgrade restarts it under systemd, of which
# there is only the folder here, and does not enable it.
disabled_remains_disabled() {
    dpkg --install /packages/evenkeel_*.deb
    test -L "$link"
    rm "$link"
    mkdir -p /run/systemd/system
    printf '#!/bin/sh\necho "$*" >>/tmp/invoked\n' >/usr/local/bin/deb-systemd-invoke
    chmod 755 /usr/local/bin/deb-systemd-invoke
    PATH=/usr/local/bin:$PATH dpkg --install /blocks/newer.deb
    rmdir /run/systemd/system
    rm /usr/local/bin/deb-systemd-invoke
    [ ! -e "$link" ]
    [ ! -L "$link" ]
    [ "$(cat /tmp/invoked)" = 'restart keel.service' ]
}
END

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
    cp "$work/commands" "$work/upgrade" "$work/newer.deb" "$root/blocks/"
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
    # A configuration that was changed by hand stays as it is.
    check 'echo "# mine" >>/etc/keel/keel.toml && dpkg --install /packages/evenkeel_*.deb &&
        grep mine /etc/keel/keel.toml'
    check 'keel demo --headless --seconds 20 --speed 20'
    # The library finds the functions behind it in each C library.
    check 'keel mem create /dev/shm/r --size 16M && cd / &&
        test "$(keel mem run /dev/shm/r --at /keel --strict -- realpath /keel)" = /keel &&
        test "$(keel mem run /dev/shm/r --at /keel -- sh -c "echo 7 >/keel/a; cat /keel/a")" = 7 &&
        keel mem run /dev/shm/r --at /keel -- mkfifo /tmp/pipe && test -p /tmp/pipe &&
        ! keel mem run /dev/shm/r --at /keel -- mkfifo /keel/pipe'
    # Where this machine permits mounts, the root does, too.
    if [ -c /dev/fuse ] && [ ! -e "$root/dev/fuse" ]; then mknod -m 666 "$root/dev/fuse" c 10 229 || true; fi
    inside 120 keel demo --full --seconds 60 --speed 10 >"$work/said" 2>&1 || true
    if scripts/demo-judge.sh "$work/said"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'package-test: %s: failed: keel demo --full\n' "$suite"
    fi
    check 'grep -aq uplot-license.txt /usr/bin/keel'
    check 'cd /usr/share/doc/evenkeel && zcat sbom.cdx.json.gz | grep "\"pkg:cargo/tokio@" >/dev/null'
    check 'cd /usr/share/man/man1 && zcat keel-backup.1.gz | grep -q "keel backup" && zcat keel.1.gz >/dev/null'
    check 'bash -n /usr/share/bash-completion/completions/keel'
    check 'cd /usr/share/zsh/vendor-completions && grep -q "^#compdef keel" _keel && grep -q doctor _keel'
    check 'grep -q "^complete -c keel .*doctor" /usr/share/fish/vendor_completions.d/keel.fish'
    check 'cd /usr/share/evenkeel && grep -q EvenkeelUpstreamLost evenkeel.rules.yml && test -s evenkeel.json'
    check '! ldd /usr/bin/keel /usr/lib/*/libkeel.so | grep "not found"'
    if [ -e "$root/packages/evenkeel-bench_${version}_$arch.deb" ]; then
        check 'dpkg --install /packages/evenkeel-bench_*.deb && keel-bench --version'
    fi
    # It depends on the very version that the upgrade replaces.
    check 'dpkg --purge evenkeel-bench'
    check 'source /blocks/upgrade; everything_remains'
    check 'source /blocks/upgrade; disabled_remains_disabled'
    # Where there are no readings, nothing stays but the user.
    check 'find /var/lib/keel -mindepth 1 -delete && dpkg --purge evenkeel-bench evenkeel && ! test -e /var/lib/keel'
    check '! test -e /etc/keel'
    rm -rf --one-file-system "$root" || true
}

for suite in "${suites[@]}"; do in_suite "$suite"; done
printf 'package-test: %d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
