#!/usr/bin/env bash
# Long runs that the test command has no time for, from random seeds. SOAK_SECONDS (default 3600) is shared half
# and half between the crash suite of the store (power cuts in every kind of call, many lives of one store) and
# killed demonstrations. The first failure ends the run; its seed stands above the last line.
set -euo pipefail
exec </dev/null
cd "$(dirname "$0")/.."
seconds=${SOAK_SECONDS:-3600}
case $seconds in
    '' | *[!0-9]*)
        printf 'soak: SOAK_SECONDS must be a whole number of seconds, not "%s"\n' "$seconds" >&2
        exit 2
        ;;
esac

scripts/setup.sh
printf 'build: cargo build --release\n'
cargo build --release --locked --quiet -p keel -p bench

FLASH_CRASH_SEED=${FLASH_CRASH_SEED:-$(od -An -N7 -tu8 /dev/urandom | tr -d ' ')}
FLASH_CRASH_SECONDS=$((seconds / 2))
export FLASH_CRASH_SEED FLASH_CRASH_SECONDS
printf 'soak: power cuts, kills and failures on the simulated device, %d s, from FLASH_CRASH_SEED=%s\n' \
    "$FLASH_CRASH_SECONDS" "$FLASH_CRASH_SEED"
if ! cargo test --release --locked --quiet -p flash --test soak -- --nocapture; then
    printf 'soak: FAILED in the power cuts; the failing seed stands above\n'
    exit 1
fi

runs=0
until_second=$((SECONDS + seconds / 2))
while [ "$SECONDS" -lt "$until_second" ]; do
    runs=$((runs + 1))
    printf 'soak: demonstration with kills, run %d\n' "$runs"
    "${CARGO_TARGET_DIR:-target}/release/keel" demo --headless --kill ||
        { printf 'soak: FAILED in run %d of keel demo --kill; its seed stands above\n' "$runs"; exit 1; }
done
printf 'soak: ok, %d s of power cuts and %d killed demonstrations\n' "$FLASH_CRASH_SECONDS" "$runs"
