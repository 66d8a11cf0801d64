#!/usr/bin/env bash
# Makes docs/results/flash.md anew: its figures, tables and plots. The words between them stay.
#   scripts/page-flash.sh              measures here, as root on a quiet machine (about 40 minutes)
#   scripts/page-flash.sh --tables     writes the tables from the figures that are there
#   scripts/page-flash.sh FLASH APPENDS PAPER  takes the figures of earlier runs:
#       keel bench flash --json FLASH
#       keel bench flash --appends --rounds 25 --repetitions 50000 --json APPENDS
#       keel bench flash --paper --out PAPER --json PAPER/flash-paper.json
set -euo pipefail
cd "$(dirname "$0")/.."
results=docs/results

# The figures and plots of a folder that --paper has written; the single latencies are too many to keep.
take_paper() {
    mkdir -p "$results/flash"
    cp "$1"/*.png "$1"/*.svg "$1/summary.csv" "$results/flash/"
    cp "$1/flash-paper.json" "$results/"
}

case "${1:-}" in
--tables) ;;
'')
    made=$(mktemp -d)
    trap 'rm -rf "$made"' EXIT
    scripts/bench.sh --json "$made/flash.json"
    scripts/bench.sh --appends --rounds 25 --repetitions 50000 --json "$made/flash-appends.json"
    scripts/bench.sh --paper --out "$made/paper" --json "$made/paper/flash-paper.json"
    cp "$made/flash.json" "$made/flash-appends.json" "$results/"
    take_paper "$made/paper"
    ;;
*)
    [ $# -eq 3 ] || {
        printf 'page-flash: expected FLASH.json, APPENDS.json and the folder of --paper\n' >&2
        exit 2
    }
    cp "$1" "$results/flash.json"
    cp "$2" "$results/flash-appends.json"
    take_paper "$3"
    ;;
esac
cargo build --release --locked --quiet -p bench
"${CARGO_TARGET_DIR:-target}/release/keel-bench" flash-page \
    --json "$results/flash.json" --appends "$results/flash-appends.json" --paper "$results/flash-paper.json" \
    --page "$results/flash.md"
printf 'written: %s/flash.md\n' "$results"
