#!/usr/bin/env bash
# Makes docs/results/node.md anew: its figures and tables. The words between them stay.
#   scripts/page-node.sh              measures here, as root on a quiet machine with mosquitto (about 27 minutes)
#   scripts/page-node.sh --tables     writes the tables from the figures that are there
#   scripts/page-node.sh FOUND        takes the figures of an earlier run: the file of `keel bench node --json FOUND`
set -euo pipefail
cd "$(dirname "$0")/.."
results=docs/results

cargo build --release --locked --quiet -p bench -p keel
program="${CARGO_TARGET_DIR:-target}/release/keel-bench"
case "${1:-}" in
--tables) ;;
'')
    made=$(mktemp -d)
    trap 'rm -rf "$made"' EXIT
    "$program" node --dir "$made" --json "$made/node.json"
    cp "$made/node.json" "$results/"
    ;;
*)
    [ $# -eq 1 ] && [ -f "$1" ] || {
        printf 'page-node: expected the file of --json\n' >&2
        exit 2
    }
    cp "$1" "$results/node.json"
    ;;
esac
"$program" node-page --json "$results/node.json" --page "$results/node.md"
printf 'written: %s/node.md\n' "$results"
