#!/usr/bin/env bash
# Runs the tests of the workspace and reports: what failed, what was unsteady, what was slow, and the total as the last
# line. Options go to `cargo nextest run`.
set -euo pipefail
cd "$(dirname "$0")/.."
report=${CARGO_TARGET_DIR:-target}/nextest/whole/junit.xml
rm -f "$report"
cargo nextest run --locked --cargo-quiet --workspace --profile whole --show-progress none "$@" || true
[ -e "$report" ] || { printf 'the tests did not run\n' >&2; exit 1; }
scripts/test-report.py "$report"
