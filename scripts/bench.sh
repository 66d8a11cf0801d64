#!/usr/bin/env bash
# Builds the product and measures the store. Arguments go to `keel bench flash`.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
printf 'build: cargo build --release\n'
cargo build --release --locked --quiet -p keel -p bench
exec "${CARGO_TARGET_DIR:-target}/release/keel" bench flash "$@"
