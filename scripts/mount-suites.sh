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

fsx_operations=${FSX_OPERATIONS:-200000}
fsx_run_operations=10000
suites=crates/flash-mount/tests/suites
begin_suites mount "mount suites"

mount_image() {
    mount_here flash "$@"
}

# Ends the mount in order; the store must be whole then.
unmount_and_check() {
    end_mount && "$keel" flash check "$1"
}

run_pjdfstest() {
    # In place of the crate that makes a directory for each case, one that does not.
    obtain_pjdfstest pjdfstest pjdfstest-0.2.2 \
        --config "patch.crates-io.tempfile.path='$PWD/$suites/flat-tempfile'" || return 0
    "$keel" flash format "$work/p.img" --size 32M --files 1000 >/dev/null
    mount_image "$work/p.img" --allow-other || { verdict pjdfstest 0 1 0; return; }
    exercise_pjdfstest pjdfstest pjdfstest-0.2.2 "$work/p.img"
}

run_fsx() {
    obtain_fsx fsx || return 0
    local passed=0 failed=0
    # Most of them in memory; some with direct transfers, where every write has to be whole blocks.
    fsx_on "$memory/f.img" "$fsx_operations" && passed=1 || failed=1
    fsx_on "$work/f.img" $((fsx_operations / 100)) && passed=$((passed + 1)) || failed=$((failed + 1))
    verdict fsx "$passed" "$failed" 0
}

fsx_on() {
    "$keel" flash format "$1" --size 16M --files 100 >/dev/null
    mount_image "$1" || return 1
    local status=0
    exercise_fsx "$suites/fsx.toml" "$2" "$fsx_run_operations" || status=$?
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
    exercise_fio "$@" "$suites/mount.fio" || status=$?
    unmount_and_check "$work/v.img" || status=1
    return "$status"
}

run_suites
