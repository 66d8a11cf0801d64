#!/usr/bin/env bash
# Builds the demo and runs it. Arguments go to `keel-demo`, or with --full, for which it takes the whole program, to
# `keel demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
case " $* " in
*' --full '*) package=keel && run=(keel demo) ;;
*) package=demo && run=(keel-demo) ;;
esac
printf 'build: cargo build --release -p %s\n' "$package"
cargo build --release --locked --quiet -p "$package"
exec "${CARGO_TARGET_DIR:-target}/release/${run[0]}" "${run[@]:1}" "$@"
