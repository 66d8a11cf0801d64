#!/usr/bin/env bash
# Long runs that the test command has no time for, from random seeds. Of SOAK_SECONDS (default 3600) the crash suite of
# the store (power cuts in every kind of call, many lives of one store) gets half, killed demonstrations a quarter and
# the fuzz targets, where cargo-fuzz is installed, a quarter; programs on a region of memory take what they need, about
# ten minutes. The first failure ends the run; its seed, or the file that reproduces it, stands above the last line.
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

# Some 50 ms each: a twentieth of the time, beside it.
printf 'soak: %d regions that something has written over\n' "$seconds"
if ! KEEL_MEM_SEEDS=$seconds cargo test --release --locked --quiet -p mem --lib -- whatever_a_region_says; then
    printf 'soak: FAILED in the regions written over; the seeds stand above\n'
    exit 1
fi

runs=0
until_second=$((SECONDS + seconds / 4))
while [ "$SECONDS" -lt "$until_second" ]; do
    runs=$((runs + 1))
    printf 'soak: demonstration with kills, run %d\n' "$runs"
    "${CARGO_TARGET_DIR:-target}/release/keel" demo --headless --kill ||
        { printf 'soak: FAILED in run %d of keel demo --kill; its seed stands above\n' "$runs"; exit 1; }
done

printf 'soak: larger programs on a region of memory\n'
scripts/mem-programs.sh || { printf 'soak: FAILED in the programs on a region\n'; exit 1; }

# The parser of the store's images gets half of the fuzzing; what is found on the way stays in fuzz/target/found.
fuzzed=0
if cargo +nightly fuzz --version >/dev/null 2>&1; then
    for target in flash_image flash_raw mem_region mem_checkpoint line_protocol mqtt_payload mqtt_packet \
        configuration; do
        share=$((seconds / 56))
        if [ "$target" = flash_image ]; then share=$((seconds / 8)); fi
        printf 'soak: fuzzing %s, %d s\n' "$target" "$share"
        mkdir -p "fuzz/target/found/$target"
        (cd fuzz && cargo +nightly fuzz run -s none "$target" "target/found/$target" "corpus/$target" -- \
            -max_total_time="$share" -timeout=60 -verbosity=0) ||
            { printf 'soak: FAILED in %s; the input is in fuzz/artifacts/%s\n' "$target" "$target"; exit 1; }
        fuzzed=$((fuzzed + share))
    done
else
    printf 'skipped: fuzzing; it needs a nightly toolchain and cargo install --locked cargo-fuzz\n'
fi
printf 'soak: ok, %d s of power cuts, %d killed demonstrations and %d s of fuzzing\n' \
    "$FLASH_CRASH_SECONDS" "$runs" "$fuzzed"
