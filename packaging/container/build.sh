#!/usr/bin/env bash
# Makes a container image with a node, from a package of this machine's architecture, and runs `keel --version` in it.
#   packaging/container/build.sh PACKAGE.deb [NAME]
# Takes root, debootstrap and buildah. The image is in the local storage of buildah afterwards (by default
# localhost/evenkeel); `buildah push NAME oci-archive:evenkeel.tar` makes a file of it.
set -euo pipefail
[ "$#" -ge 1 ] || { printf 'usage: packaging/container/build.sh PACKAGE.deb [NAME]\n' >&2; exit 2; }
package=$(realpath "$1")
name=${2:-localhost/evenkeel}
here=$(cd "$(dirname "$0")" && pwd)
fail() {
    printf 'container: %s\n' "$*" >&2
    exit 1
}
for tool in debootstrap buildah; do
    command -v "$tool" >/dev/null || fail "$tool is missing: apt-get install $tool"
done
[ "$(id -u)" -eq 0 ] || fail "making a root takes root"

work=$(mktemp -d)
# quietly COMMAND...: its words only where it fails.
quietly() {
    "$@" >"$work/log" 2>&1 || {
        tail -n 20 "$work/log" >&2
        fail "this failed: $*"
    }
}
trap 'rm -rf "$work"' EXIT
# The suite that the package was built on, whose C library it needs.
suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
quietly debootstrap --variant=minbase "${suite:-bookworm}" "$work/debian"
cp "$package" "$work/debian/evenkeel.deb"
quietly chroot "$work/debian" dpkg --install /evenkeel.deb
rm "$work/debian/evenkeel.deb"
(
    cd "$work/debian"
    rm -rf var/cache/apt/* var/lib/apt/lists/* var/log/*.log usr/share/doc/*/changelog* usr/share/locale/*
)
# Sockets lie here; a service manager would make it.
install -d -m 755 "$work/debian/run/keel"
chroot "$work/debian" chown keel:keel /run/keel
tar --create --file "$work/root.tar" --directory "$work/debian" --numeric-owner --sort=name .
cp "$here/Containerfile" "$work"
# Nothing but copying happens in it, so no process has to be started while it is built.
buildah bud --isolation chroot --tag "$name" "$work"
container=$(buildah from "$name")
trap 'buildah rm "$container" >/dev/null; rm -rf "$work"' EXIT
buildah run --isolation chroot "$container" -- /usr/bin/keel --version
printf 'container: %s\n' "$name"
