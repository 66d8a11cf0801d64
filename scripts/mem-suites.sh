#!/usr/bin/env bash
# Suites of others, run against a mounted region: pjdfstest (what POSIX says about single calls), fio with verification,
# and fsx (random operations, each read compared with what was written). pjdfstest and fsx come from the crate registry
# and are built once, into the folder of build results; fio is a package that scripts/setup.sh --test installs.
# A suite that this machine cannot run is skipped, with the reason.
#   FSX_OPERATIONS (12000)    operations of fsx
#   SEED (random)             of fsx and fio; it is printed
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/suite-tools.sh

# One suite; a longer one hangs.
suite_seconds_max=600
fsx_operations=${FSX_OPERATIONS:-12000}
fsx_run_operations=3000
seed=${SEED:-$RANDOM}
suites=crates/mem-mount/tests/suites
# Files that the kernel does not cache can be mapped for others to see from Linux 6.6 on.
can_map=$(printf '6.6\n%s\n' "$(uname -r)" | sort -CV && echo yes || echo no)

if [ ! -c /dev/fuse ]; then
    echo "skipped: the suites of the view: this machine has no /dev/fuse"
    echo "mem suites: 0 passed, 0 failed, 3 skipped"
    exit 0
fi
cargo build --locked --quiet --package keel --bins
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
keel=$target/debug/keel
tools=$target/mount-suites

work=$(mktemp -d)
# pjdfstest goes there as another user.
chmod 755 "$work"
memory=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
finish() {
    end_mount_left
    rm -rf "$work" "$memory"
}
trap finish EXIT

# An empty region, mounted. $1 its size, then options of the mount.
mount_region() {
    rm -rf "$memory/region"*
    "$keel" mem create "$memory/region" --size "$1" >/dev/null && mount_here mem "$memory/region" "${@:2}"
}

# Ends the mount in order; the region must be whole then.
unmount_and_check() {
    end_mount && "$keel" mem check "$memory/region"
}

run_pjdfstest() {
    if [ "$(id -u)" -ne 0 ]; then
        skip mem-pjdfstest "acts as several users, for which it must be root"
        return
    fi
    if ! obtain pjdfstest-plain-0.2.2 pjdfstest 0.2.2; then
        skip mem-pjdfstest "cannot be built from the registry: $(tail -n 1 "$work/install.log")"
        return
    fi
    configure_pjdfstest "$suites/pjdfstest-excluded.txt"
    mount_region 128M --allow-other || { verdict mem-pjdfstest 0 1 0; return; }
    chmod 1777 "$work/here"
    mkdir "$work/other"
    local status=0
    NO_COLOR=1 RUST_BACKTRACE=0 timeout "$suite_seconds_max" "$tools/pjdfstest-plain-0.2.2/bin/pjdfstest" \
        --configuration-file "$work/pjdfstest.toml" --path "$work/here" --secondary-fs "$work/other" \
        >"$work/pjdfstest.log" 2>&1 || status=$?
    unmount_and_check || status=1
    judge_pjdfstest mem-pjdfstest "$suites/pjdfstest-excluded.txt" "$status"
}

run_fsx() {
    if ! obtain fsx-0.3.2 fsx 0.3.2; then
        skip mem-fsx "cannot be built from the registry: $(tail -n 1 "$work/install.log")"
        return
    fi
    printf 'fsx: %d operations, seeds from %d on\n' "$fsx_operations" "$seed"
    mount_region 64M || { verdict mem-fsx 0 1 0; return; }
    sed "$([ "$can_map" = yes ] || echo '/^map/d')" "$suites/fsx.toml" >"$work/fsx.toml"
    local status=0 done=0 run=0
    # This fsx gets slower with each operation, on any file system, so it runs in parts.
    while [ "$done" -lt "$fsx_operations" ] && [ "$status" -eq 0 ]; do
        timeout "$suite_seconds_max" "$tools/fsx-0.3.2/bin/fsx" -f "$work/fsx.toml" -N "$fsx_run_operations" \
            -S $((seed + run)) -P "$work" "$work/here/exercised-$((run % 8))" >"$work/fsx.log" 2>&1 || status=$?
        done=$((done + fsx_run_operations))
        run=$((run + 1))
    done
    if [ "$status" -ne 0 ]; then
        printf 'fsx failed with seed %d:\n' $((seed + run - 1))
        tail -n 60 "$work/fsx.log"
    fi
    unmount_and_check || status=1
    verdict mem-fsx $((status == 0)) $((status != 0)) 0
}

run_fio() {
    if ! command -v fio >/dev/null 2>&1; then
        skip mem-fio "is not installed"
        return
    fi
    local passed=0 failed=0 step
    mount_region 128M || { verdict mem-fio 0 1 0; return; }
    # Written and read back; then what is there, through another way of reading it.
    local written="--section=write --section=write-large"
    local steps=("$written --section=overwrite --section=two-writers --section=append" "--verify_only $written")
    if [ "$can_map" = yes ]; then
        steps+=("--section=mapped" "--verify_only $written --ioengine=mmap")
    fi
    for step in "${steps[@]}"; do
        printf 'fio: seed %d %s\n' "$seed" "$step"
        # shellcheck disable=SC2086
        if SEED=$seed timeout "$suite_seconds_max" fio --directory="$work/here" --output="$work/fio.log" $step \
            "$suites/view.fio"; then
            passed=$((passed + 1))
        else
            grep -E 'verify|err=' "$work/fio.log" || true
            failed=$((failed + 1))
        fi
    done
    unmount_and_check || failed=$((failed + 1))
    verdict mem-fio "$passed" "$failed" 0
}

for suite in pjdfstest fsx fio; do
    started=$SECONDS
    "run_$suite"
    printf '%s took %d s\n' "$suite" "$((SECONDS - started))"
done
exit "$failed_any"
