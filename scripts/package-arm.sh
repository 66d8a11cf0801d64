#!/usr/bin/env bash
# Starts the programs of the packages for arm64 and armhf, emulated by qemu: a store is formatted, used and checked, and
# the demo run, killed and verified. That they run at all, and store what they shall, is what it shows; no speed.
#   scripts/package-arm.sh [FOLDER OF PACKAGES]      default target/packages
# Prints, at last, N passed, N failed, N skipped.
set -euo pipefail
exec </dev/null
cd "$(dirname "$0")/.."
packages=${1:-${CARGO_TARGET_DIR:-target}/packages}
passed=0
failed=0
skipped=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# of ARCH QEMU LIBRARIES: its package, emulated on the cross compiler's C library.
of() {
    local arch=$1 qemu=$2 libraries=$3 package folder=$work/$1
    package=$(ls "$packages"/evenkeel_*_"$arch".deb 2>/dev/null | tail -n 1 || true)
    if [ -z "$package" ] || ! command -v "$qemu" >/dev/null || [ ! -d "$libraries" ]; then
        printf 'skipped: %s: needs its package (make package ARGS="--arch %s"), qemu-user and its C library (%s)\n' \
            "$arch" "$arch" "libc6-$arch-cross"
        skipped=$((skipped + 1))
        return
    fi
    mkdir "$folder"
    dpkg-deb --extract "$package" "$folder/root"
    # The demo starts itself again; the environment says where its libraries are.
    export QEMU_LD_PREFIX=$libraries
    # keel ARGUMENTS…
    keel() { "$qemu" "$folder/root/usr/bin/keel" "$@"; }
    check() {
        if "$@" >"$folder/said" 2>&1; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            printf '%s: failed: %s\n' "$arch" "$*"
            tail -n 5 "$folder/said"
        fi
    }
    check keel --version
    check keel flash format "$folder/store.img" --size 16M --files 100
    check keel flash put "$folder/store.img" words README.md
    check keel flash get "$folder/store.img" words "$folder/words"
    check cmp README.md "$folder/words"
    check keel flash check "$folder/store.img"
    # The other architecture of this machine reads what that one wrote.
    check "${CARGO_TARGET_DIR:-target}/release/keel" flash check "$folder/store.img"
    check keel demo --headless --seconds 20 --speed 2 --dir "$folder/demo"
    check keel flash check "$folder/demo/demo.img"
}
of arm64 qemu-aarch64 /usr/aarch64-linux-gnu
of armhf qemu-arm /usr/arm-linux-gnueabihf
printf 'package-arm: %d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
