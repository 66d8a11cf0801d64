#!/usr/bin/env bash
# Builds the product and runs the main job. Arguments go to `keel demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
printf 'build: cargo build --release -p keel\n'
cargo build --release --locked --quiet -p keel
exec "${CARGO_TARGET_DIR:-target}/release/keel" demo "$@"
