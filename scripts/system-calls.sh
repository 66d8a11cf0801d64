#!/usr/bin/env bash
# Runs nodes of the tests under strace, and compares their system calls with the list of node.system_calls
# (crates/node/src/confinement/calls.rs). Prints calls that the list lacks, each a failure, and calls of the list
# that no node made. The last line is the total:
#   N passed, N failed, N skipped
#   scripts/system-calls.sh [FILTER]    a filter of nextest, for tests whose nodes start no program
set -euo pipefail
exec </dev/null
cd "$(dirname "$0")/.."
export LC_ALL=C

modules='node|node_edges|node_wire|client|watch|http|http_write|http_clients|intake|modbus|upstream|backup|export'
filter=${1:-"package(keel) and binary(it) and test(/^($modules|region|sparkplug|confinement)::/)"}
list=crates/node/src/confinement/calls.rs
# Calls from the start of a process until its filter is there, and those of the filter itself.
of_start='execve seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self setresuid setresgid setgroups
    setfsuid setfsgid setrlimit prlimit64 personality rt_sigtimedwait'

if ! command -v strace >/dev/null 2>&1; then
    printf 'skipped: system calls of nodes: no strace (remedy: apt-get install strace)\n0 passed, 0 failed, 1 skipped\n'
    exit 0
fi
scripts/build-tests.sh
target=$(realpath "${CARGO_TARGET_DIR:-target}")
keel=$target/debug/keel
work=$(mktemp -d)
# Nodes of other users write there, too.
chmod 1777 "$work"
mkdir "$work/calls"
chmod 1777 "$work/calls"

# The runner gets what is built, and builds nothing: cargo would put the program back.
cargo metadata --locked --format-version 1 >"$work/cargo.json"
cargo nextest list --locked --cargo-quiet --workspace --tests --list-type binaries-only --message-format json \
    >"$work/binaries.json"
mv "$keel" "$keel.traced"
trap 'mv -f "$keel.traced" "$keel"; rm -rf --one-file-system "$work"' EXIT
# With -D the process stays the child of the test, and strace becomes a process beside it.
cat >"$keel" <<END
#!/bin/sh
if [ "\$1" = run ]; then
    exec strace -D -f -qq -e signal=none -o "$work/calls/\$\$" "$keel.traced" "\$@"
fi
exec "$keel.traced" "\$@"
END
chmod 755 "$keel"

# A node is slower under strace, so a test may fail for its time. What its node called counts all the same.
cargo nextest run --cargo-metadata "$work/cargo.json" --binaries-metadata "$work/binaries.json" \
    --show-progress none -E "$filter" >"$work/log" 2>&1 || tail -n 3 "$work/log"

{ cat "$work"/calls/* 2>/dev/null || true; } | sed -nE 's/^[0-9]+ +([a-z0-9_]+)\(.*/\1/p' | sort -u >"$work/called"
if [ ! -s "$work/called" ]; then
    tail -n 20 "$work/log"
    printf 'system-calls: no node was traced\n0 passed, 1 failed, 0 skipped\n'
    exit 1
fi
# Not the calls that the tests of the list name.
sed '/^#\[cfg(test)\]/,$d' "$list" | grep -oE '\bSYS_[a-z0-9_]+' | sed 's/^SYS_//' | sort -u >"$work/listed"
# shellcheck disable=SC2086 # One word for each call.
printf '%s\n' $of_start | sort -u >"$work/start"
comm -23 "$work/called" "$work/listed" | comm -23 - "$work/start" >"$work/missing"
comm -13 "$work/called" "$work/listed" | paste -sd ' ' | sed 's/^/listed, and made by no node: /'
sed 's/^/system-calls: missing in the list: /' "$work/missing"
failed=$(wc -l <"$work/missing")
called=$(wc -l <"$work/called")
printf '%d passed, %d failed, 0 skipped\n' "$((called - failed))" "$failed"
[ "$failed" -eq 0 ]
