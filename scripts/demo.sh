#!/usr/bin/env bash
# Builds the demo and runs it. Arguments go to `keel-demo`, or with --full, for which it takes the whole program and the
# library for files in memory, to `keel demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
case " $* " in
*' --full '*) packages=(-p keel -p mem-preload) && run=(keel demo) ;;
*) packages=(-p demo) && run=(keel-demo) ;;
esac
printf 'build: cargo build --release %s\n' "${packages[*]}"
cargo build --release --locked --quiet "${packages[@]}"
exec "${CARGO_TARGET_DIR:-target}/release/${run[0]}" "${run[@]:1}" "$@"
