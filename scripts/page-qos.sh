#!/usr/bin/env bash
# Makes docs/results/qos.md anew: its figures, tables and plots. The words between them stay.
#   scripts/page-qos.sh FOUND [PIECE...]  makes the pieces that FOUND lacks, or those that are named, and takes all that
#                                         are there. FOUND is a folder, made if it is not there; a run that was
#                                         interrupted goes on. As root, on a quiet machine of two processors or more
#   scripts/page-qos.sh --tables          writes the tables from the figures that are in docs/results/qos
# Pieces; in brackets the minutes of each piece that measures on this machine:
#   real-identification (8)  real-interference (6)  real-workloads (29)  real-transient (15)
#   real-cores, only if it is named: with two processors it measures what real-workloads has measured
#   sim-interference  sim-identification  sim-workloads  sim-cores  sim-transient
# KEEL_LINE_NS_MIN is a time in ns. Only sampling periods count in which a cache line takes at least this time from one
# processor to the next. It is for virtual processors, which a host can move near each other; a piece then takes longer.
# The model of the real ones is that of real-identification. The simulated plant is crates/bench/data/berkeley-db.json,
# which is what real-identification had found on the machine that it names.
set -euo pipefail
cd "$(dirname "$0")/.."
results=docs/results/qos
pieces=(real-identification real-interference real-workloads real-transient
    sim-interference sim-identification sim-workloads sim-cores sim-transient)

cargo build --release --locked --quiet -p bench
program="${CARGO_TARGET_DIR:-target}/release/keel-bench"
mkdir -p "$results"

# take NAME: what is drawn and what the tables are made of. The rows of single samples are kept where a machine has made
# them; those of the simulated plant are too many, and come again with the same seed.
take() {
    rm -rf "${results:?}/$1"
    mkdir -p "$results/$1"
    cp "$found/$1"/*.json "$results/$1/"
    rm -f "$results/$1/identified.json"
    local file
    for file in "$found/$1"/*.svg "$found/$1"/*.png "$found/$1"/*.csv; do
        case "$1/$(basename "$file")" in
        sim-*/transient-*.csv | */'*'*) ;;
        *) cp "$file" "$results/$1/" ;;
        esac
    done
}

# make PIECE: an experiment that was interrupted leaves nothing that would be taken for a whole one.
make_piece() {
    local name=${1#*-} kind=${1%%-*}
    local options=(--out "$found/$1.part" --plant "$kind")
    local measured=(--dir "$found" --keep-awake --line-ns-min "${KEEL_LINE_NS_MIN:-0}")
    case "$1" in
    real-identification) options+=("${measured[@]}") ;;
    real-*) options+=("${measured[@]}" --identified "$found/real-identification/identified.json") ;;
    esac
    printf '== %s\n' "$1"
    rm -rf "${found:?}/$1.part"
    "$program" qos "$name" "${options[@]}"
    rm -rf "${found:?}/$1"
    mv "$found/$1.part" "$found/$1"
}

case "${1:-}" in
--tables) ;;
'' | -*)
    printf 'page-qos: expected a folder for what is found, or --tables\n' >&2
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
            [ -d "$found/$piece" ] || make_piece "$piece"
        done
    fi
    for piece in "${pieces[@]}" real-cores; do
        if [ -d "$found/$piece" ]; then take "$piece"; fi
    done
    ;;
esac
"$program" qos-page --results "$results" --page docs/results/qos.md
printf 'written: docs/results/qos.md\n'
