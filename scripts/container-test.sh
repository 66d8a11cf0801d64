#!/usr/bin/env bash
# Starts a node from the container image, as an engine does: the words of the image, as its user, as process 1 of
# namespaces of its own, with a volume for the store. A reading that was put there must be there when the node has been
# stopped by the signal of the image and started again, and when it has been killed and started again.
#   scripts/container-test.sh [IMAGE]      default: an image of the package in target/packages, removed at the end
# Takes root, buildah (scripts/setup.sh --package container installs it) and namespaces; no engine. Prints, at last,
# N passed, N failed, N skipped.
set -euo pipefail
umask 022
exec </dev/null
cd "$(dirname "$0")/.."
image=${1:-}

skip() {
    printf 'skipped: a node in a container: %s\ncontainer-test: 0 passed, 0 failed, 1 skipped\n' "$1"
    exit 0
}
fail() {
    printf 'container-test: %s\n' "$1" >&2
    exit 1
}
[ "$(id -u)" -eq 0 ] || skip "only root can make a root folder of its own"
scripts/setup.sh --package container root || skip "debootstrap or buildah is missing"
spaces=(--mount --pid --net --ipc --uts)
unshare "${spaces[@]}" --fork true 2>/dev/null || skip "this machine permits no namespaces"

work=$(mktemp -d "${TMPDIR:-/var/tmp}/keel-container.XXXXXX")
made=
container=
outer=
end() {
    if [ -n "$outer" ]; then kill -KILL "$outer" 2>/dev/null || true; fi
    if [ -n "$container" ]; then buildah rm "$container" >/dev/null || true; fi
    if [ -n "$made" ]; then buildah rmi "$made" >/dev/null 2>&1 || true; fi
    rm -rf --one-file-system "$work"
}
trap end EXIT

if [ -z "$image" ]; then
    packages=${CARGO_TARGET_DIR:-target}/packages
    package=$(find "$packages" -maxdepth 1 -name "evenkeel_*_$(dpkg --print-architecture).deb" 2>/dev/null |
        sort -V | tail -n 1 || true)
    [ -n "$package" ] || fail "no packages in $packages: make package"
    image=localhost/evenkeel-test
    made=$image
    packaging/container/build.sh "$package" "$image" >"$work/built" 2>&1 || {
        tail -n 20 "$work/built" >&2
        fail "packaging/container/build.sh could not make an image of $package"
    }
fi
container=$(buildah from "$image") || fail "$image: no such image; make package ARGS=--container"
root=$(buildah mount "$container")

# of FORMAT: the lines of what the image says of itself.
of() { buildah inspect --type image --format "$1" "$image" | sed '/^$/d'; }
mapfile -t entry < <(of '{{range .OCIv1.Config.Entrypoint}}{{println .}}{{end}}')
mapfile -t words < <(of '{{range .OCIv1.Config.Cmd}}{{println .}}{{end}}')
path=$(of '{{range $path, $none := .OCIv1.Config.Volumes}}{{println $path}}{{end}}')
signal=$(of '{{println .OCIv1.Config.StopSignal}}')
name=$(of '{{println .OCIv1.Config.User}}')
ids=$(awk -F : -v name="$name" '$1 == name { print $3 ":" $4 }' "$root/etc/passwd")
[ -n "$ids" ] && [ -n "$path" ] && [ -n "$signal" ] || fail "$image names no user, volume or stop signal"
# A new volume takes the owner of the folder in the image.
volume=$work/volume
mkdir "$volume"
chown --reference="$root$path" "$volume"
chmod --reference="$root$path" "$volume"

# run WORD...: the image's program with these words, in namespaces of its own that end with it.
run() {
    # shellcheck disable=SC2016 # The inner shell expands them.
    exec unshare "${spaces[@]}" --fork --kill-child bash -c '
        mount --bind "$1" "$2$3" && mount -t proc proc "$2/proc" && ip link set lo up &&
            exec chroot --userspec="$4" "$2" "${@:5}"' bash "$volume" "$root" "$path" "$ids" "${entry[@]}" "$@"
}

passed=0
failed=0
# check WHAT COMMAND...
check() {
    if "${@:2}" >"$work/said" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'container-test: failed: %s\n' "$1"
        tail -n 5 "$work/said" "$work/log" 2>/dev/null || true
    fi
}

# Starts the node; `node` is its number outside.
start() {
    : >"$work/log"
    (run "${words[@]}") >>"$work/log" 2>&1 &
    outer=$!
}
is_ready() {
    local left
    for ((left = 600; left > 0; left--)); do
        if grep -qs ready "$work/log"; then break; fi
        kill -0 "$outer" 2>/dev/null || return 1
        sleep 0.1
    done
    [ "$left" -gt 0 ]
    node=$(cat "/proc/$outer/task/$outer/children")
    node=${node%% *}
    [ -n "$node" ]
}
# inside WORD...: like `exec` of an engine, in the namespaces of the running node.
inside() {
    nsenter --target "$node" --mount --pid --net --ipc --uts --root --setuid "${ids%:*}" --setgid "${ids#*:}" \
        -- "${entry[@]}" "$@"
}
gives() { [ "$(inside get hall/1/temperature)" = "$1" ]; }
is_user() { [ "$(awk '/^[UG]id:/ { ids = ids ":" $3 } END { print substr(ids, 2) }' "/proc/$node/status")" = "$ids" ]; }
ends_with() {
    local status=0 left
    for ((left = 600; left > 0; left--)); do
        kill -0 "$outer" 2>/dev/null || break
        sleep 0.1
    done
    # What has not ended by now is killed with it.
    if [ "$left" -eq 0 ]; then kill -KILL "$outer"; fi
    wait "$outer" || status=$?
    outer=
    [ "$status" -eq "$1" ]
}
# Which status it then has depends on the version of unshare.
is_killed() { ! ends_with 0; }
is_whole() { (run flash check "$path/store.img"); }
has_stopped() { grep -q 'everything that was acknowledged is on flash' "$work/log"; }

start
check 'a node gets ready on a new volume' is_ready
if [ "$failed" -eq 0 ]; then
    check "the node runs as $name" is_user
    check 'a reading is put' inside put hall/1/temperature 21.5
    check 'the reading is there' gives 21.5
    kill -s "$signal" "$node"
    check "the node ends with status 0 by $signal" ends_with 0
    check 'the node has stopped in order' has_stopped
    check 'the store is whole' is_whole
    start
    check 'the node gets ready again' is_ready
    check 'the reading is there after a stop' gives 21.5
    check 'another reading is put' inside put hall/1/temperature 22.5
    kill -KILL "$node"
    check 'the node ends by SIGKILL' is_killed
    start
    check 'the node gets ready after it was killed' is_ready
    check 'the reading is there after a kill' gives 22.5
    kill -s "$signal" "$node" || true
    check "the node ends by $signal once more" ends_with 0
fi
printf 'container-test: %d passed, %d failed, 0 skipped\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
