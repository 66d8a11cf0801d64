#!/usr/bin/env bash
# A suite that cannot fail proves nothing. Each bug of crates/base/src/seeded_bug.rs is turned on, and the tests named
# here must then fail. A release build must not contain the bugs.
#   N passed, N failed, N skipped
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build-tests.sh

# bug, package and tests that must turn red
bugs=(
    "swapped-barrier flash crash::"
    "ack-before-flush db crash_flash::"
    "wake-up-lost db stepped::a_sleeping"
    "ack-when-put keel node_kill::"
    "key-tail-ignored db table::"
    "key-cut-at-64 ingest intake_keys::"
    "time-truncated db history::every_range"
    "offset-trembles db history::corrected_times_are_ordered"
    "owner-not-logged db owners::"
    "old-segment-continued db golden::a_segment_of_an_older"
    "alarm-without-hysteresis db alarms::"
    "alarm-forgets-when-full db alarms::"
    "expiry-uncounted db full::expiry_counts"
    "age-by-wall db history::a_clock_that_is_set_back"
    "actuator-first-wins egress outbox::"
    "cursor-before-ack egress forward_crash::"
    "ack-of-another egress forward_crash::"
    "window-unbounded egress forward_crash::"
    "slash-unescaped ingest series::"
    "integer-through-double keel integers::"
)

log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0
failed=0

report() {
    if [ "$1" = ok ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        tail -n 30 "$log"
    fi
    printf '%s: %s\n' "$1" "$2"
}

while read -r bug; do
    printf '%s\n' "${bugs[@]}" | grep -q "^$bug " || report FAILED "$bug: no test is asked to find it"
done < <(sed -nE 's/^ +Self::[A-Za-z0-9]+ => "(.*)",/\1/p' crates/base/src/seeded_bug.rs)

for bug in "${bugs[@]}"; do
    read -r name package tests <<<"$bug"
    status=0
    KEEL_SEEDED_BUG=$name cargo nextest run --locked --cargo-quiet --workspace --tests --show-progress none \
        --fail-fast -E "package($package) and test(/^$tests/)" >"$log" 2>&1 || status=$?
    case $status in
    0) report FAILED "$name: $tests of $package still pass, so they do not see the bug" ;;
    # What nextest ends with when tests ran and some failed.
    100) report ok "$name: $tests of $package turn red" ;;
    *) report FAILED "$name: the tests ended with status $status" ;;
    esac
done

# Whether the variable's name is in the code of the crate that turns bugs on, as cargo builds it with these options. The
# library holds the crate's documentation besides, which names it, too.
contains_bugs() {
    local library members
    library=$(cargo build --locked --quiet --package base --message-format json "$@" |
        sed -nE '/"name":"base"/s/.*"filenames":\["([^"]*\.rlib)".*/\1/p')
    mapfile -t members < <(ar t "$library" | grep '\.o$')
    ar p "$library" "${members[@]}" | grep -c KEEL_SEEDED_BUG >"$log"
}
if ! contains_bugs; then
    report FAILED "a debug build does not contain the bugs"
elif contains_bugs --release; then
    report FAILED "a release build contains the bugs"
else
    report ok "a release build does not contain the bugs"
fi
printf 'seeded bugs: %d passed, %d failed, 0 skipped\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
