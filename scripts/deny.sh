#!/usr/bin/env bash
# What may enter the dependency tree (deny.toml), of this workspace and of `python`: licences, bans, sources, and
# advisories where their database can be reached. The last line is the total:
#   N passed, N failed, N skipped
#   scripts/deny.sh --offline  without advisories and without a network, as the test command does: a new advisory must
#                              not make an unchanged tree red
#   scripts/deny.sh --build    only installs cargo-deny, once for this user, which takes minutes: no test run does that
set -euo pipefail
exec </dev/null
cd "$(dirname "$0")/.."

# The version that deny.toml is written for.
deny_version=0.20
install_seconds_max=1200
fetch_seconds_max=60

mode=${1:-}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

is_there() { cargo deny --version 2>/dev/null | grep -qF "cargo-deny $deny_version."; }

if [ "$mode" = --build ]; then
    # Without optimisation, like the runner of the tests: a run takes seconds, and an optimised build minutes more.
    is_there || CARGO_PROFILE_DEV_DEBUG=false timeout "$install_seconds_max" cargo install --quiet --locked --debug \
        "cargo-deny@^$deny_version" >"$log" 2>&1 || { tail -n 5 "$log" >&2; exit 1; }
    exit 0
fi

# The workspaces share one file of rules.
workspaces=(./Cargo.toml ./python/Cargo.toml)
rules=$PWD/deny.toml
if ! is_there; then
    printf 'skipped: licences, bans, sources and advisories of dependencies: no cargo-deny %s (remedy: %s)\n' \
        "$deny_version" 'scripts/deny.sh --build'
    printf '0 passed, 0 failed, %d skipped\n' $((2 * ${#workspaces[@]}))
    exit 0
fi

passed=0
failed=0
skipped=0
# check MANIFEST CHECK...
check() {
    local manifest=$1 options=(--log-level error)
    shift
    if [ "$1" = advisories ] || [ "$mode" = --offline ]; then options+=(--offline); fi
    if cargo deny "${options[@]}" --manifest-path "$manifest" --config "$rules" check "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        cat "$log"
        printf 'deny: failed: %s of %s\n' "$*" "$manifest"
    fi
}
for manifest in "${workspaces[@]}"; do check "$manifest" licenses bans sources; done
if [ "$mode" = --offline ]; then
    skipped=${#workspaces[@]}
    printf 'skipped: advisories of dependencies: make lint compares them\n'
elif timeout "$fetch_seconds_max" cargo deny --log-level off fetch db >"$log" 2>&1; then
    for manifest in "${workspaces[@]}"; do check "$manifest" advisories; done
else
    skipped=${#workspaces[@]}
    printf 'skipped: advisories of dependencies: their database cannot be fetched (remedy: run again with a network)\n'
fi
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
