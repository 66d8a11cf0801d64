#!/usr/bin/env bash
# The tests of keel-mpi with each MPI that is installed, on emulated boards. Prints totals as the other suites do; what
# cannot run here says `skipped:` and why.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
said=$(mktemp)
trap 'rm -f "$said"' EXIT
built=$(scripts/mpi-build.sh 2>"$said") || status=$?
if [ "$status" -eq 3 ]; then
    printf 'skipped: %s\n0 passed, 0 failed, 1 skipped\n' "$(cat "$said")"
    exit 0
elif [ "$status" -ne 0 ]; then
    printf '%s\n0 passed, 1 failed, 0 skipped\n' "$(cat "$said")"
    exit 1
fi

parent=${CARGO_TARGET_DIR:-target}
scripts/build-tests.sh
export KEEL_PROGRAM
KEEL_PROGRAM=$(realpath "$parent/debug/keel")
failed=0
for folder in $built; do
    mpi=$(basename "$(dirname "$folder")")
    mpi=${mpi#mpi-}
    printf '\n-- %s\n' "$mpi"
    # Clusters of polling ranks, one after the other.
    report=target/nextest/whole/junit.xml
    rm -f "$report"
    CARGO_TARGET_DIR=$(dirname "$folder") MPICC=mpicc.$mpi \
        cargo nextest run --locked --cargo-quiet -p keel-mpi --features mpi --profile whole --show-progress none \
        --test-threads 1 || failed=1
    scripts/test-report.py "$report" || failed=1
done
# What the page shows is for MPICH.
if [ -x "$parent/mpi-mpich/debug/keel-mpi" ]; then
    scripts/page-commands.sh docs/boards.md || failed=1
else
    printf 'skipped: the commands of docs/boards.md: MPICH is not installed\n'
fi
exit "$failed"
