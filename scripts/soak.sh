#!/usr/bin/env bash
# Long runs that the test command has no time for, from random seeds. Of SOAK_SECONDS (default 3600) the crash suite of
# the store (power cuts in every kind of call, many lives of one store) gets half, killed demonstrations a quarter and
# the fuzz targets, where cargo-fuzz is installed, a quarter. One demonstration has every part. A node is killed 200
# times, and each fault of its parts lasts a minute of an hour. The in-memory file system gets as much again, beside it:
# kills, states of a crash, drawn orders, regions written over, and every program of its table, with the suites of
# others. The tests of the workspace run five times on a loaded machine, for about an hour. `keel doctor` makes its page
# with the short benches. Packages are made for three architectures, installed in fresh roots of three Debian releases,
# and started in a container and in an emulator. The documentation site is built.
# The first failure ends the run; its seed, or the file that reproduces it, stands above the last line.
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

# With what the tests need: without it, they would be skipped.
scripts/setup.sh --test
printf 'build: cargo build --release\n'
cargo build --release --locked --quiet -p keel -p mem-preload -p bench

FLASH_CRASH_SEED=${FLASH_CRASH_SEED:-$(od -An -N7 -tu8 /dev/urandom | tr -d ' ')}
FLASH_CRASH_SECONDS=$((seconds / 2))
export FLASH_CRASH_SEED FLASH_CRASH_SECONDS
printf 'soak: power cuts, kills and failures on the simulated device, %d s, from FLASH_CRASH_SEED=%s\n' \
    "$FLASH_CRASH_SECONDS" "$FLASH_CRASH_SEED"
if ! cargo test --release --locked --quiet -p flash --test it -- --nocapture soak::; then
    printf 'soak: FAILED in the power cuts; the failing seed stands above\n'
    exit 1
fi

# memory WHAT FILTER OPTIONS…: tests of the in-memory file system, of which the environment says how long.
memory() {
    local what=$1 filter=$2
    shift 2
    printf 'soak: in-memory file system: %s\n' "$what"
    if ! cargo test --release --locked --quiet -p mem "$@" -- --nocapture "$filter"; then
        printf 'soak: FAILED in the in-memory file system: %s; what failed stands above\n' "$what"
        exit 1
    fi
}

# The numbers are for about a quarter of the time together, on two processors that do nothing else.
KEEL_MEM_SEEDS=$seconds memory "$seconds regions that something has written over, used, checked, mended" \
    any_region_bytes --lib
KEEL_MEM_SEEDS=$((seconds / 2)) memory "$((seconds / 2)) regions that check calls whole, read by programs" \
    a_region_that_check_calls_whole --lib
KEEL_MEM_KILLS=$((seconds * 3)) memory "$((seconds * 3)) kills of processes that write" \
    processes::killed_processes --test it
KEEL_MEM_CRASH_SAMPLES=$((24 + seconds / 18)) memory "states of memory after a crash of the machine" \
    crash:: --lib
KEEL_MEM_ORDERS_TIMES=$((1 + seconds / 180)) memory "drawn orders of processes that lock, write and die" \
    interleaving:: --lib

runs=0
until_second=$((SECONDS + seconds / 4))
while [ "$SECONDS" -lt "$until_second" ]; do
    runs=$((runs + 1))
    printf 'soak: demonstration with kills, run %d\n' "$runs"
    "${CARGO_TARGET_DIR:-target}/release/keel" demo --headless --kill ||
        { printf 'soak: FAILED in run %d of keel demo --kill; its seed stands above\n' "$runs"; exit 1; }
done
printf 'soak: demonstration of every part\n'
said=$(mktemp)
"${CARGO_TARGET_DIR:-target}/release/keel" demo --full >"$said" 2>&1 || true
scripts/demo-judge.sh "$said" || { printf 'soak: FAILED in keel demo --full\n'; exit 1; }
rm "$said"

# Streaming beyond what the test command has time for: a link that is cut for a minute, 200 devices at once with a slow
# one among them, a mount in a group of 64 MiB whose program has 96 MiB, a server that is killed at 100 random blocks.
printf 'soak: programs from the network, cut off, many at once, with little memory\n'
if ! KEEL_STREAM_CUT_SECONDS=60 KEEL_STREAM_DEVICES=200 KEEL_STREAM_MEMORY_MEBIBYTES=64 \
    KEEL_STREAM_SEED=$RANDOM KEEL_STREAM_KILLS=100 \
    cargo test --release --locked --quiet -p keel --test it -- --nocapture \
    a_link_that_is_cut many_devices_start a_mount_with_less_memory at_random_blocks; then
    printf 'soak: FAILED in programs from the network\n'
    exit 1
fi

# A node whose parts fail: 200 kills, each start ready within 2 s, and each fault of docs/development.md for longer.
fault_seconds=$((seconds / 60))
fault_seed=$RANDOM
printf 'soak: 200 kills of a node, and faults of %d s each, from KEEL_FAULT_SEED=%d\n' "$fault_seconds" "$fault_seed"
faults() {
    KEEL_KILLS=200 KEEL_READY_MS_MAX=2000 KEEL_KILL_SEED=$fault_seed \
        cargo test --release --locked --quiet -p keel --test it -- --nocapture node_kill:: &&
        KEEL_FAULT_SECONDS=$fault_seconds KEEL_FAULT_SEED=$fault_seed \
            cargo test --release --locked --quiet -p keel --test it -- --nocapture --test-threads 1 \
            fault_broker:: fault_clock:: fault_device:: fault_full:: fault_link:: fault_machine:: fault_processes::
}
said=$(mktemp)
if ! faults | tee "$said"; then
    rm "$said"
    printf 'soak: FAILED in the faults of a node; the seed stands above\n'
    exit 1
fi
# Root can run all of them. The dots of the tests may stand before the word.
if grep -a -o 'skipped: .*' "$said" && [ "$(id -u)" -eq 0 ]; then
    rm "$said"
    printf 'soak: FAILED in the faults of a node: root has skipped what stands above\n'
    exit 1
fi
rm "$said"

# Small programs, large ones, and suites of others; the view's random operations for longer than the test command has.
printf 'soak: programs on a region of memory\n'
cargo test --release --locked --quiet -p mem-preload ||
    { printf 'soak: FAILED in the programs on a region\n'; exit 1; }
scripts/mem-programs.sh || { printf 'soak: FAILED in the larger programs on a region\n'; exit 1; }
scripts/mem-preload-suite.sh || { printf 'soak: FAILED in pjdfstest on a region\n'; exit 1; }
FSX_OPERATIONS=$((12000 + seconds * 20)) scripts/mem-suites.sh ||
    { printf 'soak: FAILED in the suites on a mounted region\n'; exit 1; }

# The page for others, by the words of docs/operate.md and with the benches themselves: tests of the command have a
# stand-in for them. What takes root is on it only where root runs this.
printf 'soak: the page of keel doctor\n'
card=$(mktemp -d "${TMPDIR:-/var/tmp}/keel-card.XXXXXX")
release=$(cd "${CARGO_TARGET_DIR:-target}/release" && pwd)
words=$(grep -m 1 '^keel doctor .*--report' docs/operate.md) ||
    { printf 'soak: FAILED: docs/operate.md has no keel doctor --report\n'; exit 1; }
(cd "$card" && PATH=$release:$PATH timeout 1800 bash -c "${words//\/mnt\/card/$card}") ||
    { printf 'soak: FAILED: %s\n' "$words"; exit 1; }
if [ "$(grep -c '^## keel bench ' "$card/card.md")" -ne 3 ] ||
    [ "$(grep -c '^Not measured: ' "$card/card.md")" -eq 3 ] ||
    { [ "$(id -u)" -eq 0 ] && grep '^Not measured: ' "$card/card.md"; } || [ "$(ls -A "$card")" != card.md ]; then
    printf 'soak: FAILED: the page of keel doctor lacks a bench, or a bench left something: %s\n' "$card"
    exit 1
fi
rm -rf --one-file-system "$card"

# The tests themselves, on a machine that does something else besides.
scripts/steady.sh || { printf 'soak: FAILED: a test is not steady\n'; exit 1; }

# Packages. Each architecture is a release build of its own.
printf 'soak: packages\n'
scripts/package.sh --arch amd64 --arch arm64 --arch armhf ||
    { printf 'soak: FAILED in making packages\n'; exit 1; }
scripts/package-test.sh || { printf 'soak: FAILED in the packages in a fresh root\n'; exit 1; }
scripts/container-test.sh || { printf 'soak: FAILED in the container\n'; exit 1; }
scripts/package-arm.sh || { printf 'soak: FAILED in the packages for boards\n'; exit 1; }
printf 'soak: documentation site\n'
scripts/docs.sh || { printf 'soak: FAILED in the documentation site\n'; exit 1; }

# The parser of the store's images gets half of the fuzzing; what is found on the way stays in fuzz/target/found.
fuzzed=0
if cargo +nightly fuzz --version >/dev/null 2>&1; then
    targets=(fuzz/fuzz_targets/*.rs)
    for target in "${targets[@]}"; do
        target=$(basename "$target" .rs)
        share=$((seconds / 8 / (${#targets[@]} - 1)))
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
