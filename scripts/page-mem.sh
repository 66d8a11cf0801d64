#!/usr/bin/env bash
# Makes docs/results/mem.md anew: its figures, tables and plots. The words between them stay.
#   scripts/page-mem.sh              measures here, as root on a quiet machine (about three quarters of an hour)
#   scripts/page-mem.sh --tables     writes the tables from the figures that are there
#   scripts/page-mem.sh PAPER        takes the figures of an earlier run: the folder of
#       keel bench mem --paper --out PAPER --json PAPER/mem.json
set -euo pipefail
cd "$(dirname "$0")/.."
results=docs/results

take() {
    mkdir -p "$results/mem"
    cp "$1"/*.png "$1"/*.svg "$1"/*.csv "$results/mem/"
    cp "$1/mem.json" "$results/"
}

cargo build --release --locked --quiet -p bench -p mem-preload
program="${CARGO_TARGET_DIR:-target}/release/keel-bench"
case "${1:-}" in
--tables) ;;
'')
    made=$(mktemp -d)
    trap 'rm -rf "$made"' EXIT
    "$program" mem --dir "$made" --paper --out "$made/paper" --json "$made/mem.json"
    mv "$made/mem.json" "$made/paper/"
    take "$made/paper"
    ;;
*)
    [ $# -eq 1 ] || {
        printf 'page-mem: expected the folder of --paper\n' >&2
        exit 2
    }
    take "$1"
    ;;
esac
"$program" mem-page --json "$results/mem.json" --page "$results/mem.md"
printf 'written: %s/mem.md\n' "$results"
