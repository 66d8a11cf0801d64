#!/usr/bin/env bash
# Runs the tests of the workspace and reports: what failed, what was unsteady, what was slow, and the total as the last
# line. Options go to `cargo nextest run`.
set -euo pipefail
cd "$(dirname "$0")/.."
# The report is always there; the folder of the build does not change its place.
report=target/nextest/whole/junit.xml
rm -f "$report"
# What a test that was killed left there would meet another process of its number.
TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/keel-t.XXXXXX")
# Some tests act as another user there.
chmod 755 "$TMPDIR"
export TMPDIR
trap 'rm -rf --one-file-system "$TMPDIR" || printf "tests: %s is left\n" "$TMPDIR" >&2' EXIT
status=0
# More than processors: .config/nextest.toml says which tests take the place of two. Each test is started by the runner
# itself; a process between them, 10 ms of it for each test, would only help against Ctrl-Z at the wrong moment.
NEXTEST_DOUBLE_SPAWN=0 cargo nextest run --locked --cargo-quiet --workspace --tests --profile whole \
    --show-progress none --test-threads $((2 * $(nproc))) "$@" || status=$?
# Only a run of all tests judges as many states after crashes as are promised.
states_min=200000
if [ $# -gt 0 ]; then states_min=0; fi
if [ -e "$report" ]; then scripts/test-report.py "$report" "$states_min" || [ "$status" -ne 0 ] || status=1; fi
# A run that was cut short has a report in which nothing failed, and a status that says so.
if [ "$status" -ne 0 ]; then
    printf 'the tests failed, or did not run to their end: cargo nextest ended with status %d\n' "$status" >&2
    exit 1
fi
