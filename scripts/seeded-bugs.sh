#!/usr/bin/env bash
# A suite that cannot fail proves nothing. Each feature below puts one known bug into a crate; the named test must
# then fail (having compiled), or this script does.
set -euo pipefail
cd "$(dirname "$0")/.."

# crate, feature, test target that must turn red
bugs=(
    "flash seeded-bug-swapped-barrier crash"
    "db seeded-bug-ack-before-flush crash_flash"
    "db seeded-bug-alarm-without-hysteresis alarms"
    "db seeded-bug-alarm-forgets-when-full alarms"
    "egress seeded-bug-actuator-first-wins outbox"
    "egress seeded-bug-cursor-before-ack forward_crash"
    "egress seeded-bug-ack-of-another forward_crash"
    "egress seeded-bug-window-unbounded forward_crash"
    "keel seeded-bug-ack-when-put node_kill"
)

log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0
failed=0

report() {
    if [ "$1" = red ]; then
        passed=$((passed + 1))
        printf 'ok: %s\n' "$2"
    else
        failed=$((failed + 1))
        printf 'FAILED: %s\n' "$2"
    fi
}

# Every seeded bug that a manifest declares is in the list above.
while IFS=: read -r manifest feature; do
    crate=$(basename "$(dirname "$manifest")")
    printf '%s\n' "${bugs[@]}" | grep -q "^$crate $feature " ||
        report green "$crate declares $feature, which no test is asked to find"
done < <(grep -Ho '^seeded-bug-[a-z-]*' crates/*/Cargo.toml)

for bug in "${bugs[@]}"; do
    read -r crate feature test <<<"$bug"
    command=(cargo test --locked --quiet -p "$crate" --features "$feature" --test "$test")
    if ! "${command[@]}" --no-run >"$log" 2>&1; then
        tail -n 30 "$log"
        report green "$crate with $feature cannot be built"
    elif "${command[@]}" >"$log" 2>&1; then
        report green "$crate with $feature: its tests still pass, so they do not see the bug"
    elif grep -q '^test result: FAILED' "$log"; then
        report red "$crate with $feature: $(grep -c -- '^---- .* stdout ----$' "$log") test(s) of $test turn red"
    else
        tail -n 30 "$log"
        report green "$crate with $feature: $test ended without a verdict"
    fi
done
printf 'seeded bugs: %d passed, %d failed, 0 skipped\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
