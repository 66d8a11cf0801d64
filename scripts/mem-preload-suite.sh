#!/usr/bin/env bash
# pjdfstest (what POSIX says about single calls) against a region by the preloaded library; scripts/mem-suites.sh runs
# it against a mount. It comes from the crate registry and is built once, into the folder of build results. Where this
# machine cannot run it, it is skipped, with the reason.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/suite-tools.sh

suite=mem-preload-pjdfstest
make_suite_folders
region=$memory/region
# pjdfstest goes there as another user.
chmod 755 "$memory"

unmount_and_check() {
    "$keel" mem check "$region"
}

if obtain_pjdfstest "$suite" pjdfstest-plain-0.2.2; then
    excluded=$work/excluded.txt
    cat crates/mem-mount/tests/suites/pjdfstest-excluded.txt crates/mem-preload/tests/suites/pjdfstest-excluded.txt \
        >"$excluded"
    # Other users may write the region as well: permissions inside are what is tested.
    "$keel" mem create "$region" --size 128M --mode 666 >/dev/null
    served=("$keel" mem run --strict "$region" --at "$work/here" --)
    "${served[@]}" chmod 1777 "$work/here"
    exercise_pjdfstest "$suite" pjdfstest-plain-0.2.2
fi
exit "$failed_any"
