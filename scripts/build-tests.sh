#!/usr/bin/env bash
# Builds every test and, of the same profile, the programs that tests, pages and suites start: the one build that the
# test command has. A script that needs a program calls this first, which takes a second when nothing has changed.
set -euo pipefail
cd "$(dirname "$0")/.."
# Of the examples only the one that tests start: clippy reads all of them.
cargo build --locked --quiet --workspace --tests --example valve
# Beside `keel`, as it is installed. Cargo puts libraries there only when they are named.
ln -f "${CARGO_TARGET_DIR:-target}"/debug/deps/libkeelmem.so "${CARGO_TARGET_DIR:-target}/debug/"
