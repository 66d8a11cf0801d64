# For scripts that run suites of others against a mount; to be sourced. The script sets $suites, the folder of its
# configurations, and defines `unmount_and_check`, which ends a mount in order and demands that what was mounted is
# whole. From here it has $keel, the program, $work, a folder for logs, $memory, another one in memory, and $seed.
# With `--build` the script builds the suites of the registry and runs nothing.

# One suite; a longer one hangs.
suite_seconds_max=600
seed=${SEED:-$RANDOM}
build_only=
if [ "${1:-}" = --build ]; then build_only=yes; fi
mounted=
# What programs are started with where nothing is mounted.
served=()

# Builds the program and makes the folders. Where nothing can be mounted this is the end: $1 names what is shown, $2 the
# three suites.
begin_suites() {
    if [ ! -c /dev/fuse ]; then
        printf 'skipped: the suites of the %s: this machine has no /dev/fuse\n' "$1"
        printf '%s: 0 passed, 0 failed, 3 skipped\n' "$2"
        exit 0
    fi
    make_suite_folders
}

# Builds the program and makes the folders.
make_suite_folders() {
    [ -n "$build_only" ] || scripts/build-tests.sh
    local target
    target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
    keel=$target/debug/keel
    # Programs of the registry, which are built once.
    tools=$target/mount-suites
    work=$(mktemp -d)
    # pjdfstest goes there as another user.
    chmod 755 "$work"
    # Memory, where there is enough: fsx makes hundreds of thousands of calls, and counts nothing of the device.
    memory=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
    trap finish_suites EXIT
}

finish_suites() {
    end_mount_left
    rm -rf "$work" "$memory"
}

# Runs the three suites and ends with the status of all.
run_suites() {
    local suite started
    if [ -n "$build_only" ]; then
        run_pjdfstest
        run_fsx
        exit
    fi
    for suite in pjdfstest fsx fio; do
        started=$SECONDS
        "run_$suite"
        printf '%s took %d s\n' "$suite" "$((SECONDS - started))"
    done
    exit "$failed_any"
}

# Mounts on $work/here: $1 flash or mem, $2 the image or region, then options. The directory gets a name of its own:
# pjdfstest must never see another file system.
mount_here() {
    mkdir -p "$work/here"
    : >"$work/mount.log"
    "$keel" "$1" mount "$2" "$work/here" "${@:3}" >"$work/mount.log" 2>&1 &
    mounted=$!
    # A machine that does much else besides takes its time.
    for _ in $(seq 600); do
        if grep -q ' is mounted on ' "$work/mount.log"; then return 0; fi
        kill -0 "$mounted" 2>/dev/null || break
        sleep 0.1
    done
    cat "$work/mount.log"
    return 1
}

# Ends the mount in order, and says how it ended if not.
end_mount() {
    local status=0
    kill "$mounted"
    wait "$mounted" || status=$?
    mounted=
    if [ "$status" -ne 0 ]; then
        printf 'the mount ended with status %d: ' "$status"
        cat "$work/mount.log"
        return 1
    fi
}

# Ends a mount that a failure has left.
end_mount_left() {
    if [ -n "$mounted" ]; then
        kill "$mounted" 2>/dev/null || true
        wait "$mounted" || true
    fi
}

# Builds a program of the registry once. Fails where nothing is to be run with it: where it cannot be built, so that the
# suite $1 is skipped, and with --build. $2 folder below $tools, $3 name, $4 version, then options of cargo install.
obtain() {
    local folder=$2 name=$3 version=$4
    if [ ! -x "$tools/$folder/bin/$name" ]; then
        printf 'building %s %s\n' "$name" "$version"
        # In the group of a build beside the tests, so that it ends with it.
        CARGO_PROFILE_DEV_DEBUG=false timeout ${build_only:+--foreground} "$suite_seconds_max" \
            cargo install --quiet --debug --root "$tools/$folder" --target-dir "$tools/build" \
            "$name@$version" "${@:5}" >"$work/install.log" 2>&1 ||
            { skip "$1" "cannot be built from the registry: $(tail -n 1 "$work/install.log")"; return 1; }
    fi
    [ -z "$build_only" ]
}

# Ends a suite that cannot run.
skip() {
    printf 'skipped: %s\n' "$*"
    printf '%s: 0 passed, 0 failed, 1 skipped\n' "$1"
}

failed_any=0
verdict() {
    printf '%s: %d passed, %d failed, %d skipped\n' "$1" "$2" "$3" "$4"
    if [ "$3" -ne 0 ]; then failed_any=1; fi
}

# Whether pjdfstest can run, as the suite $1, which is skipped otherwise. $2 folder, then options of cargo install.
obtain_pjdfstest() {
    if [ "$(id -u)" -ne 0 ]; then
        skip "$1" "acts as several users, for which it must be root"
        return 1
    fi
    obtain "$1" "$2" pjdfstest 0.2.2 "${@:3}"
}

# Whether fsx can run, as the suite $1, which is skipped otherwise. Optimised: it makes and compares data byte by byte.
obtain_fsx() {
    obtain "$1" fsx-0.3.2 fsx 0.3.2 --config profile.dev.package.fsx.opt-level=2
}

# Runs pjdfstest, built in folder $2, in what is mounted, and counts it under the name $1. What follows goes to
# `unmount_and_check`. $excluded names the cases that are expected to fail, where the folder of suites does not.
exercise_pjdfstest() {
    local excluded=${excluded:-$suites/pjdfstest-excluded.txt} status=0
    {
        printf '[settings]\nnaptime = 0.02\nexpected_failures = [\n'
        awk '!/^#/ && NF { printf "  \"%s\",\n", $1 }' "$excluded"
        printf ']\n'
        cat crates/fuse/tests/common/pjdfstest.toml
    } >"$work/pjdfstest.toml"
    mkdir "$work/other"
    NO_COLOR=1 RUST_BACKTRACE=0 timeout "$suite_seconds_max" "${served[@]}" "$tools/$2/bin/pjdfstest" \
        --configuration-file "$work/pjdfstest.toml" --path "$work/here" --secondary-fs "$work/other" \
        >"$work/pjdfstest.log" 2>&1 || status=$?
    unmount_and_check "${@:3}" || status=1
    grep -A 2 -E '(FAILED|PASSED UNEXPECTEDLY)$' "$work/pjdfstest.log" || true
    local summary
    summary=$(sed -n 's/^Summary: //p' "$work/pjdfstest.log")
    printf '%s: %s\n' "$1" "${summary:-ended early}"
    awk -v name="$1" '!/^#/ && NF { $1 = ""; count[$0]++ }
        END { for (reason in count) printf "%s: %d cases are expected to fail:%s\n", name, count[reason], reason }' \
        "$excluded"
    # The cases that its configuration here leaves out are not ours to count.
    local cases bad
    cases=$(sed -n 's/.* \([0-9]*\) passed.*/\1/p' <<<"$summary")
    bad=$(sed -n 's/^\([0-9]*\) failed.*/\1/p' <<<"$summary")
    if [ "$status" -ne 0 ] && [ "${bad:-0}" -eq 0 ]; then bad=1; fi
    verdict "$1" "${cases:-0}" "${bad:-1}" 0
}

# fsx in what is mounted, with the configuration $1: $2 operations, in runs of $3, each with a seed of its own, because
# this fsx gets slower with each operation, on any file system.
exercise_fsx() {
    local status=0 done=0 run=0 count
    printf 'fsx: %d operations, seeds from %d on\n' "$2" "$seed"
    while [ "$done" -lt "$2" ] && [ "$status" -eq 0 ]; do
        count=$(($2 - done < $3 ? $2 - done : $3))
        timeout "$suite_seconds_max" "$tools/fsx-0.3.2/bin/fsx" -f "$1" -N "$count" -S $((seed + run)) \
            -P "$work" "$work/here/exercised-$((run % 8))" >"$work/fsx.log" 2>&1 || status=$?
        done=$((done + count))
        run=$((run + 1))
    done
    if [ "$status" -ne 0 ]; then
        printf 'fsx failed with seed %d:\n' $((seed + run - 1))
        tail -n 60 "$work/fsx.log"
    fi
    return "$status"
}

# fio in what is mounted, with the arguments $@.
exercise_fio() {
    local status=0
    SEED=$seed timeout "$suite_seconds_max" fio --directory="$work/here" --output="$work/fio.log" "$@" || status=$?
    if [ "$status" -ne 0 ]; then grep -E 'verify|err=' "$work/fio.log" || true; fi
    return "$status"
}
