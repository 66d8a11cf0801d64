#!/usr/bin/env bash
# Makes a container image with a node, from a package of this machine's architecture, and runs `keel --version` in it.
#   packaging/container/build.sh PACKAGE.deb [NAME]
# Takes root, debootstrap, a mirror of Debian (DEBIAN_MIRROR, else the one that debootstrap knows) and buildah. The
# image is in the local storage of buildah afterwards (by default localhost/evenkeel); `buildah push NAME
# oci-archive:evenkeel.tar` makes a file of it.
set -euo pipefail
umask 022
[ "$#" -ge 1 ] || { printf 'usage: packaging/container/build.sh PACKAGE.deb [NAME]\n' >&2; exit 2; }
package=$(realpath "$1")
name=${2:-localhost/evenkeel}
here=$(cd "$(dirname "$0")" && pwd)
fail() {
    printf 'container: %s\n' "$*" >&2
    exit 1
}
for tool in debootstrap buildah; do
    command -v "$tool" >/dev/null || fail "$tool is missing: scripts/setup.sh --package container installs it"
done
[ "$(id -u)" -eq 0 ] || fail "only root can make a Debian root"

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
# quietly COMMAND...: its output only where it fails.
quietly() {
    "$@" >"$work/log" 2>&1 || {
        tail -n 20 "$work/log" >&2
        fail "this failed: $*"
    }
}
root=$work/debian
quietly debootstrap --variant=minbase bookworm "$root" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"}
cp "$package" "$root/evenkeel.deb"
quietly chroot "$root" dpkg --install /evenkeel.deb
rm "$root/evenkeel.deb"
(
    cd "$root"
    rm -rf var/cache/apt/* var/lib/apt/lists/* var/log/*.log usr/share/doc/*/changelog* usr/share/locale/*
)
# Sockets are made here; a service manager would make the folder.
install -d -m 755 "$root/run/keel"
chroot "$root" chown keel:keel /run/keel
mkdir "$work/context"
tar --create --file "$work/context/root.tar" --directory "$root" --numeric-owner --sort=name .
cp "$here/Containerfile" "$work/context"
# Nothing but copying happens in it, so no process has to be started while it is built.
buildah bud --isolation chroot --tag "$name" "$work/context"
container=$(buildah from "$name")
trap 'buildah rm "$container" >/dev/null; rm -rf --one-file-system "$work"' EXIT
buildah run --isolation chroot "$container" -- /usr/bin/keel --version
printf 'container: %s\n' "$name"
