#!/usr/bin/env bash
# Every check and test. Each step runs even when an earlier one failed. Only what is wrong is printed: the output of a
# step that passes is not. The last line is the total, alone:
#   N passed, N failed, N skipped
# A test that this machine cannot run prints `skipped: <reason>` and counts as skipped, not as passed.
set -euo pipefail
exec </dev/null
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never

logs=$(mktemp -d)
beside=
trap 'if [ -n "$beside" ]; then kill "$beside" || true; fi; rm -rf "$logs"' EXIT

# A step that takes longer hangs. Each test has a limit of its own, in .config/nextest.toml.
step_seconds_max=1800
# What a run that passes may print: a longer log is not read.
log_lines_max=600

passed=0
failed=0
skipped=0
lines=0
times=()

# step NAME COMMAND...: runs the command. Its output counts by the lines of it that end in
# `N passed, N failed, N skipped`; a command that prints none counts as one check.
step() {
    local name=$1 log="$logs/$1" status=0 started=$SECONDS
    shift
    printf '== %s\n' "$name"
    timeout --kill-after=10 "$step_seconds_max" "$@" >"$log" 2>&1 || status=$?
    local found p f s
    read -r found p f s <<<"$(awk '
        # What nextest says of a run that failed is said by the report of it, too.
        /^ *Summary / { next }
        /[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { found++; p += $(NF - 5); f += $(NF - 3); s += $(NF - 1) }
        END { print found + 0, p + 0, f + 0, s + 0 }' "$log")"
    if [ "$found" -eq 0 ]; then
        [ "$status" -eq 0 ] && p=1 || f=1
    fi
    # A step that fails without a failed test (it did not compile, a process died) is a failure all the same.
    if [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
    passed=$((passed + p))
    failed=$((failed + f))
    skipped=$((skipped + s))
    local result=ok
    if [ "$f" -ne 0 ]; then
        result=FAILED
        cat "$log"
        if [ "$status" -eq 124 ]; then printf '%s: ended after %d s\n' "$name" "$step_seconds_max"; fi
    elif [ "$s" -ne 0 ]; then
        grep '^skipped: ' "$log" || true
        lines=$((lines + $(grep -c '^skipped: ' "$log" || true)))
    fi
    times+=("$(printf '%-14s %5d s  %-6s %d passed, %d failed, %d skipped' \
        "$name" "$((SECONDS - started))" "$result" "$p" "$f" "$s")")
}

finish() {
    {
        printf '\n== summary\n'
        printf '%s\n' "${times[@]}"
        printf '%-14s %5d s\n\n' total "$SECONDS"
        # What the tests' report says after its skipped tests: the slowest, crash states, the failed and unsteady ones.
        if [ -e "$logs/tests" ]; then sed -n '/^slowest tests:/,$p' "$logs/tests" | sed '$d'; fi
        if [ -e "$logs/mpi" ]; then
            awk '/^unsteady: .* failed at first/ { on = 1 } /^[0-9]+ passed, / { on = 0 } on' "$logs/mpi"
        fi
    } | tee "$logs/summary"
    # A line for the name of each step, and the last one.
    lines=$((lines + ${#times[@]} + $(wc -l <"$logs/summary") + 1))
    if [ "$failed" -eq 0 ] && [ "$lines" -ge "$log_lines_max" ]; then
        failed=1
        printf 'log FAILED: it has %d lines; a run that passes has fewer than %d\n' "$lines" "$log_lines_max"
    fi
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    exit $((failed > 0))
}

step set-up scripts/setup.sh --test
if [ "$failed" -ne 0 ]; then finish; fi

step format cargo fmt --all --check
step clippy cargo clippy --locked --quiet --workspace --all-targets -- -D warnings
step structure cargo xtask tidy
step test-report scripts/test-report-test.py
step build scripts/build-tests.sh
# What later steps build in folders of their own, on processors that tests leave idle: many of them wait.
nice -n 19 timeout --kill-after=10 "$step_seconds_max" scripts/build-beside.sh >"$logs/beside" 2>&1 &
beside=$!
step tests scripts/tests.sh
# Examples in the documentation of the code, which nextest does not run.
step doc-tests cargo test --doc --locked --quiet --workspace
step readme scripts/readme-commands.sh
step start scripts/page-commands.sh docs/start.md
step operate scripts/page-commands.sh docs/operate.md
step http scripts/page-commands.sh docs/http.md
step page scripts/page.sh --test
waited=$SECONDS
wait "$beside" || tail -n 5 "$logs/beside"
beside=
times+=("$(printf '%-14s %5d s' 'build beside' "$((SECONDS - waited))")")
step python scripts/python-client.sh
# After the Python package, whose environment it takes.
step clients scripts/page-commands.sh docs/clients.md docs/client-c.md docs/client-python.md docs/qos.md
step mpi scripts/mpi-suites.sh
step mount scripts/mount-suites.sh
step mem-view scripts/mem-suites.sh
step mem-calls scripts/mem-preload-suite.sh
# After the build, whose program reads the configuration that the image has.
step yocto scripts/yocto-lint.sh
step dependencies scripts/deny.sh --offline
step seeded-bugs scripts/seeded-bugs.sh
finish
