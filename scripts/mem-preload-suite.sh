#!/usr/bin/env bash
# pjdfstest (what POSIX says about single calls) against a region by the preloaded library; scripts/mem-suites.sh runs
# it against a mount. It comes from the crate registry and is built once, into the folder of build results. Where this
# machine cannot run it, it is skipped, with the reason.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/suite-tools.sh

# A longer one hangs.
suite_seconds_max=600
name=mem-preload-pjdfstest

if [ "$(id -u)" -ne 0 ]; then
    skip "$name" "acts as several users, for which it must be root"
    exit 0
fi
cargo build --locked --quiet --package keel --package mem-preload
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
keel=$target/debug/keel
tools=$target/mount-suites

work=$(mktemp -d)
# pjdfstest goes there as another user.
chmod 755 "$work"
memory=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
chmod 755 "$memory"
trap 'rm -rf "$work" "$memory"' EXIT

if ! obtain pjdfstest-plain-0.2.2 pjdfstest 0.2.2; then
    skip "$name" "cannot be built from the registry: $(tail -n 1 "$work/install.log")"
    exit 0
fi
excluded=$work/excluded.txt
cat crates/mem-mount/tests/suites/pjdfstest-excluded.txt crates/mem-preload/tests/suites/pjdfstest-excluded.txt \
    >"$excluded"
configure_pjdfstest "$excluded"
mkdir "$work/other"
status=0
# Other users may write the region, too: permissions inside are what is tested.
"$keel" mem create "$memory/region" --size 128M --mode 666 >/dev/null
"$keel" mem run --strict "$memory/region" --at /keel -- chmod 1777 /keel
NO_COLOR=1 RUST_BACKTRACE=0 timeout "$suite_seconds_max" "$keel" mem run --strict "$memory/region" --at /keel -- \
    "$tools/pjdfstest-plain-0.2.2/bin/pjdfstest" --configuration-file "$work/pjdfstest.toml" --path /keel \
    --secondary-fs "$work/other" >"$work/pjdfstest.log" 2>&1 || status=$?
"$keel" mem check "$memory/region" || status=1
judge_pjdfstest "$name" "$excluded" "$status"
exit "$failed_any"
