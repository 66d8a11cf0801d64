#!/usr/bin/env bash
# Makes the list of crates that the Yocto recipe fetches from Cargo.lock. BitBake downloads before it builds and builds
# without a network, so every crate has to be named with its checksum.
#   scripts/yocto-crates.sh [LOCK]     prints the list
#   scripts/yocto-crates.sh --write    replaces the one in the layer
# All crates of the lock file are in it, also those of tests and of other systems: cargo, told to use nothing else,
# wants to see each of them before it decides which ones it needs.
set -euo pipefail
cd "$(dirname "$0")/.."

target=packaging/yocto/meta-evenkeel/recipes-evenkeel/evenkeel/evenkeel-crates.inc
case ${1:-} in
--write) lock=Cargo.lock ;;
-*) printf 'usage: scripts/yocto-crates.sh [--write | LOCK]\n' >&2; exit 2 ;;
*) lock=${1:-Cargo.lock} ;;
esac

list() {
    awk '
        function take() {
            if (name == "") return
            if (source == "") { name = ""; return } # a crate of this workspace
            if (source !~ /^registry\+https:\/\/github\.com\/rust-lang\/crates\.io-index$/ || checksum == "") {
                printf "%s: %s %s comes from `%s`, which the recipe cannot fetch; take a released version\n", \
                    FILENAME, name, version, source > "/dev/stderr"
                failed = 1
            }
            uris = uris sprintf("    crate://crates.io/%s/%s;name=%s-%s \\\n", name, version, name, version)
            sums = sums sprintf("SRC_URI[%s-%s.sha256sum] = \"%s\"\n", name, version, checksum)
            count++
            name = ""
        }
        function text() { sub(/^[a-z]+ = "/, ""); sub(/"$/, ""); return $0 }
        /^\[\[package\]\]$/ { take(); name = version = source = checksum = "" }
        /^name = "/ { name = text() }
        /^version = "/ { version = text() }
        /^source = "/ { source = text() }
        /^checksum = "/ { checksum = text() }
        END {
            take()
            if (count == 0) {
                printf "%s: no crate from crates.io in it; is it a Cargo.lock?\n", FILENAME > "/dev/stderr"
                failed = 1
            }
            if (failed) exit 1
            print "# Made from Cargo.lock by scripts/yocto-crates.sh --write. Do not edit: the tests compare the two."
            printf "SRC_URI += \"\\\n%s\"\n\n%s", uris, sums
        }' "$lock"
}

if [ "${1:-}" = --write ]; then
    made=$(mktemp)
    trap 'rm -f "$made"' EXIT
    list >"$made"
    cat "$made" >"$target"
    printf '%s: %d crates\n' "$target" "$(grep -c '^SRC_URI\[' "$target")"
else
    list
fi
