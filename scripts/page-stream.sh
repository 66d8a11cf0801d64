#!/usr/bin/env bash
# Makes docs/results/stream.md anew: its figures, tables and plots. The words between them stay.
#   scripts/page-stream.sh FOUND [PIECE...]  makes the pieces that FOUND lacks, or those that are named, and takes all
#                                            that are there. FOUND is a folder, made if it is not there; a run that was
#                                            interrupted goes on with the piece it was at. As root, on a quiet machine
#   scripts/page-stream.sh --plan            says how long each piece takes, and measures nothing
#   scripts/page-stream.sh --tables          writes page and plots from the figures that are in docs/results/stream
# Pieces: start card others again first unread memory clients loss, of the table of goals; paper; and, only if it is
# named, arms: figure 7c by itself. The page shows figure 7c of the newer of paper and arms.
# Each is one report and one table with the value of each round, and says its commit, machine, date and command; paper
# has plots, and a table for each. The page judges every goal of which there is a figure.
# KEEL_ROUNDS: rounds that are measured, 7 if it does not say.
# KEEL_TASKS: which programs, all if it does not say. KEEL_RESULTS: where page and figures go instead of docs/results.
# KEEL_PROGRAM: a keel-bench, with keel beside it, instead of the one that is built first.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${KEEL_ROUNDS:-7}
parent=${KEEL_RESULTS:-docs/results}
results=$parent/stream
page=$parent/stream.md
pieces=(start card others again first unread memory clients loss paper)
known_pieces=("${pieces[@]}" arms)

# Seconds of a round with all five programs, and of what comes before: estimates for two processors with nothing else
# to do.
# What a piece took is said when it is done.
declare -A round_s=([start]=98 [card]=38 [others]=112 [again]=27 [first]=55 [unread]=50 [memory]=12 [clients]=300
    [loss]=110 [arms]=70 [paper]=420)
prepare_s=45

seconds_of() {
    printf '%s' $((${round_s[$1]} * $rounds + prepare_s))
}

plan() {
    local piece seconds total=0
    for piece; do
        seconds=$(seconds_of "$piece")
        total=$((total + seconds))
        printf '  %-8s %2s rounds  about %3s min\n' "$piece" "$rounds" $(((seconds + 59) / 60))
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
    for piece in "${known_pieces[@]}"; do
        if [ "$piece" = "$1" ]; then return 0; fi
    done
    printf 'page-stream: %s: no such piece; there are %s\n' "$1" "${known_pieces[*]}" >&2
    exit 2
}

# A piece that was interrupted leaves nothing that would be taken for a whole one.
make_piece() {
    local name begun
    name=$(name_of "$1")
    local options=(--dir "$found" --rounds "$rounds" --commit "$commit")
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
program=${KEEL_PROGRAM:-${CARGO_TARGET_DIR:-target}/release/keel-bench}
if [ -z "${KEEL_PROGRAM:-}" ]; then cargo build --release --locked --quiet -p bench -p keel; fi
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
    for piece in "${known_pieces[@]}"; do
        name=$(name_of "$piece")
        if [ -f "$found/$name.json" ]; then cp "$found/$name.json" "$found/$name.csv" "$results/"; fi
    done
    # An older figure 7c by itself would hide that of the paper's run.
    if [[ " ${wanted[*]} " == *" paper "* ]] && [ "$found/paper.json" -nt "$found/goals-arms.json" ]; then
        rm -f "$results/goals-arms.json" "$results/goals-arms.csv"
    fi
    if [ -d "$found/drawings" ]; then cp "$found"/drawings/* "$results/"; fi
fi
"$program" stream-page --results "$results" --page "$page"
printf 'written: %s\n' "$page"
