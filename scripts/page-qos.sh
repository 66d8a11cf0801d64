#!/usr/bin/env bash
# Makes docs/results/qos.md anew: its figures, tables and plots. The words between them stay.
#   scripts/page-qos.sh              measures here, as root on a quiet machine of two processors or more (about three
#                                    hours), and computes the simulated plant's part
#   scripts/page-qos.sh --simulated  computes the simulated plant's part anew
#   scripts/page-qos.sh --tables     writes the tables from the figures that are there
#   scripts/page-qos.sh FOUND        takes the figures of an earlier run: a folder with a folder for each experiment
#                                    (real-identification, real-workloads, sim-workloads and so on)
# The model of the experiments is the one of FOUND/real-identification; the simulated plant is the committed one.
set -euo pipefail
cd "$(dirname "$0")/.."
results=docs/results/qos
plant=crates/bench/data/berkeley-db.json
experiments=(workloads cores transient)

cargo build --release --locked --quiet -p bench
program="${CARGO_TARGET_DIR:-target}/release/keel-bench"
mkdir -p "$results"

# take FOLDER NAME: what is drawn and what the tables are made of. The rows of single samples are too many to keep.
take() {
    rm -rf "${results:?}/$2"
    mkdir -p "$results/$2"
    cp "$1/$2"/*.svg "$1/$2"/*.png "$1/$2"/*.json "$results/$2/"
    for table in "$1/$2"/*.csv; do
        case "$(basename "$table")" in
        transient-*) ;;
        *) cp "$table" "$results/$2/" ;;
        esac
    done
    rm -f "$results/$2/identified.json"
}

simulate() {
    for name in interference identification "${experiments[@]}"; do
        "$program" qos "$name" --plant sim --identified "$plant" --out "$1/sim-$name" >/dev/null
        take "$1" "sim-$name"
    done
}

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
case "${1:-}" in
--tables) ;;
--simulated) simulate "$made" ;;
'')
    "$program" qos identification --plant real --dir "$made" --out "$made/real-identification"
    found="$made/real-identification/identified.json"
    take "$made" real-identification
    "$program" qos interference --plant real --dir "$made" --out "$made/real-interference"
    take "$made" real-interference
    for name in "${experiments[@]}"; do
        "$program" qos "$name" --plant real --identified "$found" --dir "$made" --out "$made/real-$name"
        take "$made" "real-$name"
    done
    simulate "$made"
    ;;
*)
    [ $# -eq 1 ] || {
        printf 'page-qos: expected the folder of an earlier run\n' >&2
        exit 2
    }
    for folder in "$1"/*/; do
        take "$1" "$(basename "$folder")"
    done
    ;;
esac
"$program" qos-page --results "$results" --page docs/results/qos.md
printf 'written: docs/results/qos.md\n'
