#!/usr/bin/env bash
# Whether the tests are steady: all of them on a machine that does something else besides, where none may fail at first.
#   scripts/steady.sh [LOAD...]    busy  two busy loops at the same priority, three times
#                                  one   one processor
#                                  build beside a build of the workspace in another folder
# All three without arguments. The last line is the total of runs:
#   N passed, N failed, 0 skipped
set -euo pipefail
exec </dev/null
cd "$(dirname "$0")/.."
scripts/setup.sh --test
scripts/build-tests.sh

work=$(mktemp -d)
beside=()
end_beside() {
    if [ "${#beside[@]}" -gt 0 ]; then kill "${beside[@]}" 2>/dev/null || true; fi
    beside=()
}
finish() {
    end_beside
    rm -rf "$work"
}
trap finish EXIT

passed=0
failed=0
# run NAME COMMAND...: runs the tests by the command, then ends the load beside them.
run() {
    local name=$1 started=$SECONDS status=0
    shift
    "$@" scripts/tests.sh >"$work/log" 2>&1 || status=$?
    end_beside
    local unsteady
    unsteady=$(grep '^unsteady: [0-9]' "$work/log" || echo 'no report')
    printf '%s: %d s, %s, %s\n' "$name" "$((SECONDS - started))" "$unsteady" "$(tail -n 1 "$work/log")"
    if [ "$status" -eq 0 ] && grep -q '^unsteady: 0$' "$work/log"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        sed -n '/^slowest tests:/,$p' "$work/log"
    fi
}

busy() {
    local number
    for number in 1 2; do
        sh -c 'while :; do :; done' &
        beside+=($!)
    done
}

# Builds the workspace again and again in a folder of its own.
builds() {
    # A group of its own, so that the compilers end with it.
    setsid sh -c "while :; do cargo build --locked --quiet --workspace --target-dir '$work/build'
        rm -rf '$work/build'; done" &
    beside+=("-$!")
}

[ "$#" -gt 0 ] || set -- busy one build
for load; do
    case $load in
    busy)
        for round in 1 2 3; do
            busy
            run "beside two busy loops, $round of 3" env
        done
        ;;
    one) run "on one processor" taskset -c 0 ;;
    build)
        builds
        run "beside a build" env
        ;;
    *)
        printf 'usage: scripts/steady.sh [busy|one|build]...\n' >&2
        exit 2
        ;;
    esac
done
printf 'steady: %d passed, %d failed, 0 skipped\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
