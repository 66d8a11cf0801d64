#!/usr/bin/env bash
# Suites of others, run against a mounted store: pjdfstest (what POSIX says about single calls), fio with verification,
# and fsx (random operations, each read compared with what was written). pjdfstest and fsx come from the crate registry
# and are built once, into the folder of build results; fio is a package that scripts/setup.sh --test installs.
# A suite that this machine cannot run is skipped, with the reason.
#   FSX_OPERATIONS (200000)   operations of fsx
#   SEED (random)             of fsx and fio; it is printed
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/suite-tools.sh

# One suite; a longer one hangs.
suite_seconds_max=600
fsx_operations=${FSX_OPERATIONS:-200000}
fsx_run_operations=10000
seed=${SEED:-$RANDOM}
suites=crates/flash-mount/tests/suites

if [ ! -c /dev/fuse ]; then
    echo "skipped: the suites of the mount: this machine has no /dev/fuse"
    echo "mount suites: 0 passed, 0 failed, 3 skipped"
    exit 0
fi
cargo build --locked --quiet --package keel --bins
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
keel=$target/debug/keel
tools=$target/mount-suites

work=$(mktemp -d)
# pjdfstest goes there as another user.
chmod 755 "$work"
# Memory, where there is enough: fsx makes hundreds of thousands of calls, and counts nothing of the device.
memory=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
finish() {
    end_mount_left
    rm -rf "$work" "$memory"
}
trap finish EXIT

mount_image() {
    mount_here flash "$@"
}

# Ends the mount in order; the store must be whole then.
unmount_and_check() {
    end_mount && "$keel" flash check "$1"
}

run_pjdfstest() {
    if [ "$(id -u)" -ne 0 ]; then
        skip pjdfstest "acts as several users, for which it must be root"
        return
    fi
    # In place of the crate that makes a directory for each case, one that does not.
    if ! obtain pjdfstest-0.2.2 pjdfstest 0.2.2 \
        --config "patch.crates-io.tempfile.path='$PWD/$suites/flat-tempfile'"; then
        skip pjdfstest "cannot be built from the registry: $(tail -n 1 "$work/install.log")"
        return
    fi
    configure_pjdfstest "$suites/pjdfstest-excluded.txt"
    "$keel" flash format "$work/p.img" --size 32M --files 1000 >/dev/null
    mount_image "$work/p.img" --allow-other || { verdict pjdfstest 0 1 0; return; }
    mkdir "$work/other"
    local status=0
    NO_COLOR=1 RUST_BACKTRACE=0 timeout "$suite_seconds_max" "$tools/pjdfstest-0.2.2/bin/pjdfstest" \
        --configuration-file "$work/pjdfstest.toml" --path "$work/here" --secondary-fs "$work/other" \
        >"$work/pjdfstest.log" 2>&1 || status=$?
    unmount_and_check "$work/p.img" || status=1
    judge_pjdfstest pjdfstest "$suites/pjdfstest-excluded.txt" "$status"
}

run_fsx() {
    if ! obtain fsx-0.3.2 fsx 0.3.2; then
        skip fsx "cannot be built from the registry: $(tail -n 1 "$work/install.log")"
        return
    fi
    local passed=0 failed=0
    # Most of them in memory; some with direct transfers, where every write has to be whole blocks.
    fsx_on "$memory/f.img" "$fsx_operations" && passed=1 || failed=1
    fsx_on "$work/f.img" $((fsx_operations / 100)) && passed=$((passed + 1)) || failed=$((failed + 1))
    verdict fsx "$passed" "$failed" 0
}

# $2 operations, in runs of their own seeds: this fsx gets slower with each operation, on any file system.
fsx_on() {
    printf 'fsx: %d operations, seeds from %d on\n' "$2" "$seed"
    "$keel" flash format "$1" --size 16M --files 100 >/dev/null
    mount_image "$1" || return 1
    local status=0 done=0 run=0 count
    while [ "$done" -lt "$2" ] && [ "$status" -eq 0 ]; do
        count=$(($2 - done < fsx_run_operations ? $2 - done : fsx_run_operations))
        timeout "$suite_seconds_max" "$tools/fsx-0.3.2/bin/fsx" -f "$suites/fsx.toml" -N "$count" -S $((seed + run)) \
            -P "$work" "$work/here/exercised-$((run % 8))" >"$work/fsx.log" 2>&1 || status=$?
        done=$((done + count))
        run=$((run + 1))
    done
    if [ "$status" -ne 0 ]; then
        printf 'fsx failed with seed %d:\n' $((seed + run - 1))
        tail -n 60 "$work/fsx.log"
    fi
    unmount_and_check "$1" || status=1
    return "$status"
}

run_fio() {
    if ! command -v fio >/dev/null 2>&1; then
        skip fio "is not installed"
        return
    fi
    "$keel" flash format "$work/v.img" --size 64M --files 100 >/dev/null
    local passed=0 failed=0 step
    # What was written must be there after a mount of its own, too, and through a memory map. Only jobs with blocks of
    # one size leave a file in which every block can be found again.
    local again=(--verify_only)
    for step in write-buffered write-direct overwrite-direct write-o_sync overwrite-o_dsync; do
        again+=("--section=$step")
    done
    for step in "" "${again[*]}" "${again[*]} --ioengine=mmap"; do
        printf 'fio: seed %d %s\n' "$seed" "$step"
        # shellcheck disable=SC2086
        if fio_step $step; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    done
    verdict fio "$passed" "$failed" 0
}

fio_step() {
    mount_image "$work/v.img" || return 1
    local status=0
    SEED=$seed timeout "$suite_seconds_max" fio --directory="$work/here" --output="$work/fio.log" "$@" \
        "$suites/mount.fio" || status=$?
    if [ "$status" -ne 0 ]; then grep -E 'verify|err=' "$work/fio.log" || true; fi
    unmount_and_check "$work/v.img" || status=1
    return "$status"
}

for suite in pjdfstest fsx fio; do
    started=$SECONDS
    "run_$suite"
    printf '%s took %d s\n' "$suite" "$((SECONDS - started))"
done
exit "$failed_any"
