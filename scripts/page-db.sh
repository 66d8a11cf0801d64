#!/usr/bin/env bash
# Makes docs/results/db.md anew: its figures, tables and plots. The words between them stay.
#   scripts/page-db.sh              measures here, as root on a quiet machine (about a quarter of an hour)
#   scripts/page-db.sh --tables     writes the tables from the figures that are there
#   scripts/page-db.sh FOUND        takes the figures of an earlier run: the folder of
#       keel bench db --out FOUND --json FOUND/db.json
set -euo pipefail
cd "$(dirname "$0")/.."
results=docs/results

take() {
    mkdir -p "$results/db"
    cp "$1"/*.png "$1"/*.svg "$results/db/"
    cp "$1/db.json" "$results/"
}

cargo build --release --locked --quiet -p bench
program="${CARGO_TARGET_DIR:-target}/release/keel-bench"
case "${1:-}" in
--tables) ;;
'')
    made=$(mktemp -d)
    trap 'rm -rf "$made"' EXIT
    "$program" db --dir "$made" --out "$made/found" --json "$made/db.json"
    mv "$made/db.json" "$made/found/"
    take "$made/found"
    ;;
*)
    [ $# -eq 1 ] || {
        printf 'page-db: expected the folder of --out\n' >&2
        exit 2
    }
    take "$1"
    ;;
esac
"$program" db-page --json "$results/db.json" --page "$results/db.md"
printf 'written: %s/db.md\n' "$results"
