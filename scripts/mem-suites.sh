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

fsx_operations=${FSX_OPERATIONS:-12000}
fsx_run_operations=3000
suites=crates/mem-mount/tests/suites
# Files that the kernel does not cache can be mapped for others to see from Linux 6.6 on.
can_map=$(printf '6.6\n%s\n' "$(uname -r)" | sort -CV && echo yes || echo no)

begin_suites view "mem suites"

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
    obtain_pjdfstest mem-pjdfstest pjdfstest-plain-0.2.2 || return 0
    mount_region 128M --allow-other || { verdict mem-pjdfstest 0 1 0; return; }
    chmod 1777 "$work/here"
    exercise_pjdfstest mem-pjdfstest pjdfstest-plain-0.2.2
}

run_fsx() {
    obtain_fsx mem-fsx || return 0
    mount_region 64M || { verdict mem-fsx 0 1 0; return; }
    sed "$([ "$can_map" = yes ] || echo '/^map/d')" "$suites/fsx.toml" >"$work/fsx.toml"
    local status=0
    exercise_fsx "$work/fsx.toml" "$fsx_operations" "$fsx_run_operations" || status=$?
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
        if exercise_fio $step "$suites/view.fio"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    done
    unmount_and_check || failed=$((failed + 1))
    verdict mem-fio "$passed" "$failed" 0
}

run_suites
