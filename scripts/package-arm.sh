#!/usr/bin/env bash
# Starts the programs of the packages for arm64 and armhf, emulated by qemu: a store is formatted, used and checked, and
# the demo run and verified. It shows that they start and that what they store can be read, also by the program of this
# machine; nothing about speed.
#   scripts/package-arm.sh [FOLDER OF PACKAGES]      default target/packages
# Prints, at last, N passed, N failed, N skipped.
set -euo pipefail
exec </dev/null
cd "$(dirname "$0")/.."

# The demo starts itself again, so the kernel must know the emulator. A namespace of its own registers it for this
# script alone, which takes Linux 6.7.
registry=/proc/sys/fs/binfmt_misc
own=(unshare --user --map-root-user --mount)
if [ -z "${KEEL_EMULATED:-}" ]; then
    if ! "${own[@]}" mount -t binfmt_misc binfmt_misc "$registry" 2>/dev/null; then
        printf 'skipped: packages for boards: this kernel registers no emulator for a single namespace\n'
        printf 'package-arm: 0 passed, 0 failed, 1 skipped\n'
        exit 0
    fi
    KEEL_EMULATED=yes exec "${own[@]}" scripts/package-arm.sh "$@"
fi
mount -t binfmt_misc binfmt_misc "$registry"

packages=${1:-${CARGO_TARGET_DIR:-target}/packages}
passed=0
failed=0
skipped=0
work=$(mktemp -d "${TMPDIR:-/var/tmp}/keel-arm.XXXXXX")
# The program of this machine, of its package where there is one.
own_keel=${CARGO_TARGET_DIR:-target}/release/keel
own_name="evenkeel_*_$(dpkg --print-architecture).deb"
package=$(find "$packages" -maxdepth 1 -name "$own_name" 2>/dev/null | sort -V | tail -n 1 || true)
if [ -n "$package" ]; then
    dpkg-deb --extract "$package" "$work/own"
    own_keel=$work/own/usr/bin/keel
fi
trap 'rm -rf "$work"' EXIT

# of ARCH QEMU LIBRARIES CLASS MACHINE: its package, emulated on the cross compiler's C library. Class and machine are
# what the head of its programs says.
of() {
    local arch=$1 qemu=$2 libraries=$3 class=$4 machine=$5 package folder=$work/$1 keel zeros='\x00\x00\x00\x00'
    package=$(find "$packages" -maxdepth 1 -name "evenkeel_*_$arch.deb" 2>/dev/null | sort -V | tail -n 1 || true)
    qemu=$(command -v "$qemu" || true)
    if [ -z "$package" ] || [ -z "$qemu" ] || [ ! -d "$libraries" ]; then
        printf 'skipped: %s: needs its package, qemu-user and its C library (make package ARGS="--arch %s")\n' \
            "$arch" "$arch"
        skipped=$((skipped + 1))
        return
    fi
    printf '%s' ":keel-$arch:M::\\x7fELF$class\\x01\\x01\\x00$zeros$zeros\\x02\\x00$machine\\x00:" \
        '\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:' "$qemu:" \
        >"$work/registration"
    cat "$work/registration" >"$registry/register"
    mkdir "$folder"
    dpkg-deb --extract "$package" "$folder/root"
    export QEMU_LD_PREFIX=$libraries
    keel=$folder/root/usr/bin/keel
    check() {
        if "$@" >"$folder/said" 2>&1; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            printf '%s: failed: %s\n' "$arch" "$*"
            tail -n 5 "$folder/said"
        fi
    }
    check "$keel" --version
    check "$keel" flash format "$folder/store.img" --size 16M --files 100
    check "$keel" flash put "$folder/store.img" words README.md
    check "$keel" flash get "$folder/store.img" words "$folder/words"
    check cmp README.md "$folder/words"
    check "$keel" flash check "$folder/store.img"
    # The program of this machine reads what that one wrote.
    check "$own_keel" flash check "$folder/store.img"
    check "$keel" demo --headless --seconds 20 --speed 2 --dir "$folder/demo"
    check "$keel" flash check "$folder/demo/demo.img"
}
of arm64 qemu-aarch64 /usr/aarch64-linux-gnu '\x02' '\xb7'
of armhf qemu-arm /usr/arm-linux-gnueabihf '\x01' '\x28'
printf 'package-arm: %d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
