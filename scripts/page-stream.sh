#!/usr/bin/env bash
# Makes docs/results/stream.md anew: its figures, tables and plots. The words between them stay.
#   scripts/page-stream.sh FOUND [PIECE...]  makes the pieces that FOUND lacks, or those that are named, and takes all
#                                            that are there. FOUND is a folder, made if it is not there; a run that was
#                                            interrupted goes on. As root, on a quiet machine
#   scripts/page-stream.sh --tables          writes the tables from the figures that are in docs/results/stream
# Pieces: start card again first unread memory clients loss, of the table of goals; paper. KEEL_ROUNDS says how many
# rounds are measured, 7 if it does not; KEEL_TASKS which programs, all if it does not.
set -euo pipefail
cd "$(dirname "$0")/.."
results=docs/results/stream
pieces=(start card again first unread memory clients loss paper)

cargo build --release --locked --quiet -p bench -p keel
program="${CARGO_TARGET_DIR:-target}/release/keel-bench"
mkdir -p "$results"

make_piece() {
    local options=(--dir "$found" --rounds "${KEEL_ROUNDS:-7}" --json "$found/$1.part")
    if [ -n "${KEEL_TASKS:-}" ]; then options+=(--tasks "$KEEL_TASKS"); fi
    case "$1" in
    paper) options+=(--paper --out "$found/drawings") ;;
    *) options+=(--only "$1") ;;
    esac
    printf '== %s\n' "$1"
    "$program" stream "${options[@]}"
    mv "$found/$1.part" "$found/$(name_of "$1").json"
}

name_of() {
    case "$1" in
    paper) printf 'paper' ;;
    *) printf 'goals-%s' "$1" ;;
    esac
}

case "${1:-}" in
--tables) ;;
'' | -*)
    printf 'page-stream: expected a folder for what is found, or --tables\n' >&2
    exit 2
    ;;
*)
    mkdir -p "$1"
    found=$(cd "$1" && pwd)
    shift
    if [ $# -gt 0 ]; then
        for piece; do make_piece "$piece"; done
    else
        for piece in "${pieces[@]}"; do
            [ -f "$found/$(name_of "$piece").json" ] || make_piece "$piece"
        done
    fi
    cp "$found"/goals-*.json "$found"/paper.json "$results/"
    if [ -d "$found/drawings" ]; then cp "$found"/drawings/* "$results/"; fi
    ;;
esac
"$program" stream-page --results "$results" --page docs/results/stream.md
printf 'written: docs/results/stream.md\n'
