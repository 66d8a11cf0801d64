#!/usr/bin/env bash
# Builds the product and measures a part of it beside its peers. Arguments go to `keel bench`:
#   scripts/bench.sh [flash] …       the store; also where only options are given
#   scripts/bench.sh mem …           the in-memory file system; as root, with several GiB of memory
#   scripts/bench.sh node …          the node, behind a broker on this machine
#   scripts/bench.sh db …            the data path; as root, with several GiB of memory and disk
#   scripts/bench.sh qos …           deadlines under load, on a machine or on a simulated plant
#   scripts/bench.sh cluster …       messages between ranks, with each MPI that is installed; the line takes root
#   scripts/bench.sh stream …        programs from the network; as root, on a quiet machine
# For `flash --paper` the peer littlefs is built in, where its bindings can be made.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in
'' | -*) set -- flash "$@" ;;
esac
build=(-p keel -p bench)
setup=()
case "$1 $* " in
mem\ *) build+=(-p mem-preload) ;;
flash\ *' --paper '*) setup=(--bench) ;;
cluster\ * | db\ * | qos\ *) setup=(--test) ;;
stream\ *) setup=(--stream) ;;
esac
status=0
scripts/setup.sh "${setup[@]}" || status=$?
case "$status ${setup[*]}" in
'0 ' | '0 --test' | '0 --stream') ;;
'0 --bench') build+=(--features bench/littlefs) ;;
'3 --bench') printf 'build: without littlefs, which takes libclang; the report will list it as missing\n' ;;
*) exit "$status" ;;
esac
printf 'build: cargo build --release %s\n' "${build[*]}"
cargo build --release --locked --quiet "${build[@]}"
if [ "$1" = cluster ]; then scripts/mpi-build.sh --release; fi
exec "${CARGO_TARGET_DIR:-target}/release/keel" bench "$@"
