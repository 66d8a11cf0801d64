#!/usr/bin/env bash
# Makes docs/results/cluster.md anew: its figures, tables and plots. The words between them stay.
#   scripts/page-cluster.sh FOUND [PIECE...]  makes the pieces that FOUND lacks, or those that are named, and takes all
#                                             that are there. FOUND is a folder, made if it is not there; a run that was
#                                             interrupted goes on with the piece it was at. As root, on a quiet machine
#   scripts/page-cluster.sh --plan            says how long each piece takes, and measures nothing
#   scripts/page-cluster.sh --tables          writes the page from the figures that are in docs/results/cluster
# Pieces: fit, times of jobs against their size; advisor, its regret in the simulation; and with each MPI memory and
# link, ours beside C, run-1 and run-2, two runs of the default mode, which are compared when both are there, and
# boards, the suite on two boards on the line, for result ÷ watts beside run-1. Each is a report or a result file, and
# says its commit or label, machine and date. KEEL_ROUNDS: rounds of pairs, 11 if it does not say. KEEL_MPIS: which
# MPIs, `mpich openmpi` if it does not say. KEEL_RESULTS: where page and figures go instead of docs/results.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${KEEL_ROUNDS:-11}
parent=${KEEL_RESULTS:-docs/results}
results=$parent/cluster
thesis=$parent/cluster-thesis
page=$parent/cluster.md
read -ra mpis <<<"${KEEL_MPIS:-mpich openmpi}"
pieces=(fit advisor)
for mpi in "${mpis[@]}"; do
    for kind in memory link run-1 run-2 boards; do pieces+=("$kind-$mpi"); done
done

# Seconds of a round of pairs, and of a whole run: estimates for two processors with nothing else to do. What a piece
# took is said when it is done.
seconds_of() {
    case "$1" in
    fit) printf '%s' $((20 * rounds)) ;;
    advisor) printf '60' ;;
    memory-*) printf '%s' $((12 * rounds)) ;;
    link-*) printf '%s' $((30 * rounds)) ;;
    run-*) printf '420' ;;
    boards-*) printf '120' ;;
    esac
}

plan() {
    local piece seconds total=0
    for piece; do
        seconds=$(seconds_of "$piece")
        total=$((total + seconds))
        printf '  %-14s  about %3s min\n' "$piece" $(((seconds + 59) / 60))
    done
    printf '  together        about %3s min\n' $(((total + 59) / 60))
}

# What a piece leaves in FOUND.
file_of() {
    case "$1" in
    run-?-*)
        local rest=${1#run-}
        printf '%s-%s.jsonl' "${rest#?-}" "${rest%%-*}"
        ;;
    boards-*) printf '%s-boards.jsonl' "${1#boards-}" ;;
    *) printf '%s.json' "$1" ;;
    esac
}

known() {
    local piece
    for piece in "${pieces[@]}"; do
        if [ "$piece" = "$1" ]; then return 0; fi
    done
    printf 'page-cluster: %s: no such piece; there are %s\n' "$1" "${pieces[*]}" >&2
    exit 2
}

# A piece that was interrupted leaves nothing that would be taken for a whole one.
make_piece() {
    local name=$1 begun=$SECONDS file kind mpi label launcher
    file=$(file_of "$name")
    printf '== %s, %s: about %s min\n' "$name" "$(date +%H:%M)" $((($(seconds_of "$name") + 59) / 60))
    case "$name" in
    run-*)
        mpi=${name#run-?-}
        label=${file%.jsonl}
        launcher=$found/$label.sh
        rm -f "$found/$file.part" "$found/$label.cores"
        # Before each start, the launcher adds the time of a cache line between the cores to LABEL.cores.
        cat >"$launcher" <<EOF
#!/bin/sh
exec "$program" cluster-launch --mpi "$mpi" --times "$found/$label.cores" -- "\$@"
EOF
        chmod +x "$launcher"
        "$target/release/keel" cluster measure --hosts "$found/hosts" --program "$target/mpi-$mpi/release/keel-mpi" \
            --mpirun "$launcher" --label "$label" --out "$found/$file.part" >"$found/$name.txt"
        ;;
    boards-*)
        mpi=${name#boards-}
        rm -f "$found/$file.part"
        mkdir -p "$found/boards"
        # The same line as that of the piece `link`.
        bash crates/keel-mpi/boards/boards.sh --dir "$found/boards" --boards 2 --rate 1gbit --burst 32kb -- \
            "$target/release/keel" cluster measure --hosts "$found/boards/hosts" --launcher "$found/boards/shell" \
            --address 10.77.0.254/24 --interface eth0 --tcp --link-mbit 1000 --link-burst 32768 \
            --program "$target/mpi-$mpi/release/keel-mpi" --starts-max 3 --start-seconds 0 \
            --label "$mpi-boards" --out "$found/$file.part" >"$found/$name.txt"
        ;;
    fit | advisor)
        "$program" cluster --dir "$found" --only "$name" --rounds "$rounds" --commit "$commit" \
            --json "$found/$file.part" --csv "$found/$name.csv" >"$found/$name.txt"
        ;;
    *)
        kind=${name%-*}
        mpi=${name##*-}
        "$program" cluster --dir "$found" --only "$kind" --mpi "$mpi" --rounds "$rounds" --commit "$commit" \
            --json "$found/$file.part" --csv "$found/$name.csv" >"$found/$name.txt"
        ;;
    esac
    mv "$found/$file.part" "$found/$file"
    printf '   %s s\n' $((SECONDS - begun))
}

case "${1:-}" in
--plan)
    plan "${pieces[@]}"
    exit 0
    ;;
--tables | [!-]*) ;;
*)
    printf 'page-cluster: expected a folder for what is found, --plan or --tables\n' >&2
    exit 2
    ;;
esac
cargo build --release --locked --quiet -p bench -p keel
target=$(realpath "${CARGO_TARGET_DIR:-target}")
program=$target/release/keel-bench
if [ "$1" != --tables ]; then
    scripts/mpi-build.sh --release "${mpis[@]}" >/dev/null
    mkdir -p "$1"
    found=$(cd "$1" && pwd)
    shift
    printf 'localhost:2\n' >"$found/hosts"
    commit=$(git rev-parse --short=12 HEAD)
    if [ -n "$(git status --porcelain)" ]; then commit+=" with changes"; fi
    wanted=()
    if [ $# -gt 0 ]; then
        for piece; do known "$piece"; done
        wanted=("$@")
    else
        for piece in "${pieces[@]}"; do
            [ -f "$found/$(file_of "$piece")" ] || wanted+=("$piece")
        done
    fi
    plan "${wanted[@]}"
    for piece in "${wanted[@]}"; do make_piece "$piece"; done
    mkdir -p "$results"
    [ -f "$page" ] || cp docs/results/cluster.md "$page"
    for piece in fit advisor; do
        if [ -f "$found/$piece.json" ]; then cp "$found/$piece.json" "$found/$piece.csv" "$results/"; fi
    done
    for mpi in "${mpis[@]}"; do
        # Takes the two runs that are there; nothing is measured for it.
        if [ -f "$found/$mpi-1.jsonl" ] && [ -f "$found/$mpi-2.jsonl" ]; then
            "$program" cluster --dir "$found" --only agreement --mpi "$mpi" --keep "$found" --commit "$commit" \
                --json "$results/agreement-$mpi.json" --csv "$results/agreement-$mpi.csv" \
                >"$found/agreement-$mpi.txt"
        fi
        for kind in memory link; do
            if [ -f "$found/$kind-$mpi.json" ]; then cp "$found/$kind-$mpi.json" "$found/$kind-$mpi.csv" "$results/"; fi
        done
    done
    # Both libraries beside each other, as the command draws them.
    if [ -f "$found/mpich-1.jsonl" ] && [ -f "$found/openmpi-1.jsonl" ]; then
        "$target/release/keel" cluster report "$found/mpich-1.jsonl" "$found/openmpi-1.jsonl" \
            --csv "$results/libraries.csv" --plots "$results" >/dev/null
    fi
    # Where two runs do not agree, the page compares their intervals.
    if [ -f "$found/openmpi-2.jsonl" ]; then
        rm -f "$results/openmpi-second-run.csv"
        "$target/release/keel" cluster report "$found/openmpi-2.jsonl" \
            --csv "$results/openmpi-second-run.csv" >/dev/null
    fi
    # Result ÷ watts: one host, and two boards on the line. Its page names one MPI library, the first.
    measured=()
    for file in "$found/${mpis[0]}-1.jsonl" "$found/${mpis[0]}-boards.jsonl"; do
        if [ -f "$file" ]; then measured+=("$file"); fi
    done
    "$target/release/keel" cluster report --thesis "${measured[@]}" --plots "$thesis" >/dev/null
fi
"$program" cluster-page --results "$results" --page "$page"
printf 'written: %s\n' "$page"
