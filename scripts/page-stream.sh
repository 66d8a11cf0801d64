#!/usr/bin/env bash
# Makes docs/results/stream.md anew: its figures, tables and plots. The words between them stay.
#   scripts/page-stream.sh FOUND [PIECE...]  makes the pieces that FOUND lacks, or those that are named, and takes all
#                                            that are there. FOUND is a folder, made if it is not there; a run that was
#                                            interrupted goes on with the piece it was at. As root, on a quiet machine
#   scripts/page-stream.sh --plan            says how long each piece takes, and measures nothing
#   scripts/page-stream.sh --tables          writes the page from the figures that are in docs/results/stream
# Pieces: start card again first unread memory clients loss, of the table of goals; paper. Each is one report and one
# table with the value of each round, and says its commit, machine, date and command; paper has plots, and a table for
# each. The page judges every goal of which there is a figure.
# KEEL_ROUNDS: rounds that are measured, 7 if it does not say; KEEL_PAPER_ROUNDS: those of paper, 3.
# KEEL_TASKS: which programs, all if it does not say. KEEL_RESULTS: where page and figures go instead of docs/results.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${KEEL_ROUNDS:-7}
paper_rounds=${KEEL_PAPER_ROUNDS:-3}
parent=${KEEL_RESULTS:-docs/results}
results=$parent/stream
page=$parent/stream.md
pieces=(start card again first unread memory clients loss paper)

# Seconds of a round with all five programs, as measured with two processors of 2.x GHz, and of what comes before.
declare -A round_s=([start]=0 [card]=0 [again]=0 [first]=0 [unread]=0 [memory]=0 [clients]=0 [loss]=0 [paper]=0)
prepare_s=0

rounds_of() {
    if [ "$1" = paper ]; then printf '%s' "$paper_rounds"; else printf '%s' "$rounds"; fi
}

seconds_of() {
    printf '%s' $((${round_s[$1]} * $(rounds_of "$1") + prepare_s))
}

plan() {
    local piece seconds total=0
    for piece; do
        seconds=$(seconds_of "$piece")
        total=$((total + seconds))
        printf '  %-8s %2s rounds  about %3s min\n' "$piece" "$(rounds_of "$piece")" $(((seconds + 59) / 60))
    done
    printf '  together            about %3s min\n' $(((total + 59) / 60))
}

name_of() {
    case "$1" in
    paper) printf 'paper' ;;
    *) printf 'goals-%s' "$1" ;;
    esac
}

known() {
    local piece
    for piece in "${pieces[@]}"; do
        if [ "$piece" = "$1" ]; then return 0; fi
    done
    printf 'page-stream: %s: no such piece; there are %s\n' "$1" "${pieces[*]}" >&2
    exit 2
}

# A piece that was interrupted leaves nothing that would be taken for a whole one.
make_piece() {
    local name begun
    name=$(name_of "$1")
    local options=(--dir "$found" --rounds "$(rounds_of "$1")" --commit "$commit")
    options+=(--json "$found/$name.part" --csv "$found/$name.csv.part")
    if [ -n "${KEEL_TASKS:-}" ]; then options+=(--tasks "$KEEL_TASKS"); fi
    case "$1" in
    paper) options+=(--paper --out "$found/drawings") ;;
    *) options+=(--only "$1") ;;
    esac
    printf '== %s, %s: about %s min\n' "$1" "$(date +%H:%M)" $((($(seconds_of "$1") + 59) / 60))
    begun=$SECONDS
    "$program" stream "${options[@]}" >"$found/$name.txt"
    mv "$found/$name.csv.part" "$found/$name.csv"
    mv "$found/$name.part" "$found/$name.json"
    printf '   %s s\n' $((SECONDS - begun))
}

case "${1:-}" in
--plan)
    plan "${pieces[@]}"
    exit 0
    ;;
--tables | [!-]*) ;;
*)
    printf 'page-stream: expected a folder for what is found, --plan or --tables\n' >&2
    exit 2
    ;;
esac
cargo build --release --locked --quiet -p bench -p keel
program="${CARGO_TARGET_DIR:-target}/release/keel-bench"
if [ "$1" != --tables ]; then
    mkdir -p "$1"
    found=$(cd "$1" && pwd)
    shift
    commit=$(git rev-parse --short=12 HEAD)
    if [ -n "$(git status --porcelain)" ]; then commit+=" with changes"; fi
    wanted=()
    if [ $# -gt 0 ]; then
        for piece; do known "$piece"; done
        wanted=("$@")
    else
        for piece in "${pieces[@]}"; do
            [ -f "$found/$(name_of "$piece").json" ] || wanted+=("$piece")
        done
    fi
    plan "${wanted[@]}"
    for piece in "${wanted[@]}"; do make_piece "$piece"; done
    mkdir -p "$results"
    [ -f "$page" ] || cp docs/results/stream.md "$page"
    for piece in "${pieces[@]}"; do
        name=$(name_of "$piece")
        if [ -f "$found/$name.json" ]; then cp "$found/$name.json" "$found/$name.csv" "$results/"; fi
    done
    if [ -d "$found/drawings" ]; then cp "$found"/drawings/* "$results/"; fi
fi
"$program" stream-page --results "$results" --page "$page"
printf 'written: %s\n' "$page"
