#!/usr/bin/env bash
# Makes docs/results/cluster.md anew: its figures, tables and plots. The words between them stay.
#   scripts/page-cluster.sh              measures here, as root on a quiet machine (about twenty minutes)
#   scripts/page-cluster.sh --tables     writes the tables from the figures that are there
#   scripts/page-cluster.sh REPORT       takes the figures of an earlier run of keel bench cluster --json REPORT
# KEEL_ROUNDS: rounds of pairs, 9 if it does not say.
set -euo pipefail
cd "$(dirname "$0")/.."
results=docs/results

cargo build --release --locked --quiet -p bench -p keel
target=${CARGO_TARGET_DIR:-target}
program=$target/release/keel-bench
case "${1:-}" in
--tables) ;;
'')
    scripts/mpi-build.sh --release
    made=$(mktemp -d)
    trap 'rm -rf "$made"' EXIT
    commit=$(git rev-parse --short=12 HEAD)
    if [ -n "$(git status --porcelain)" ]; then commit+=" with changes"; fi
    "$program" cluster --dir "$made" --rounds "${KEEL_ROUNDS:-9}" --commit "$commit" --keep "$made/runs" \
        --json "$made/cluster.json"
    mkdir -p "$results/cluster"
    cp "$made/cluster.json" "$results/"
    # Both libraries beside each other, as the command draws them.
    if [ -f "$made/runs/mpich-1.jsonl" ] && [ -f "$made/runs/openmpi-1.jsonl" ]; then
        "$target/release/keel" cluster report "$made/runs/mpich-1.jsonl" "$made/runs/openmpi-1.jsonl" \
            --csv "$results/cluster/libraries.csv" --plots "$results/cluster" >/dev/null
    fi
    ;;
*)
    [ $# -eq 1 ] || {
        printf 'page-cluster: expected one report\n' >&2
        exit 2
    }
    cp "$1" "$results/cluster.json"
    ;;
esac
"$program" cluster-page --json "$results/cluster.json" --plots "$results/cluster" --page "$results/cluster.md"
printf 'written: %s/cluster.md\n' "$results"
