#!/usr/bin/env bash
# Every check and test. Each step runs even when an earlier one failed; the last line is the total, alone:
#   N passed, N failed, N skipped
# A test that this machine cannot run prints `skipped: <reason>` and counts as skipped, not as passed.
set -euo pipefail
exec </dev/null
cd "$(dirname "$0")/.."

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

passed=0
failed=0
skipped=0
times=()

# step NAME COMMAND...: runs the command. Its output counts by the totals it prints (cargo's `test result:` and
# lines that end in `N passed, N failed, N skipped`); a command that prints none counts as one check.
step() {
    local name=$1 log="$logs/step" status=0 started=$SECONDS
    shift
    printf '\n== %s\n' "$name"
    "$@" 2>&1 | tee "$log" || status=$?
    local totals
    totals=$(awk '
        /^test result: / || /[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ {
            gsub(/[;,.]/, " ")
            found = 1
            for (i = 2; i <= NF; i++) {
                if ($i == "passed") p += $(i - 1)
                if ($i == "failed") f += $(i - 1)
                if ($i == "ignored" || $i == "skipped") s += $(i - 1)
            }
        }
        /^skipped: / { unable++ }
        END { print found + 0, p + 0, f + 0, s + 0, unable + 0 }' "$log")
    local found p f s unable
    read -r found p f s unable <<<"$totals"
    if [ "$found" -eq 0 ]; then
        [ "$status" -eq 0 ] && p=1 || f=1
    elif grep -q '^test result: ' "$log"; then
        # The harness counts a test that could not run as passed.
        p=$((p - unable))
        s=$((s + unable))
    fi
    # A step that fails without a failed test (it did not compile, a process died) is a failure all the same.
    if [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
    passed=$((passed + p))
    failed=$((failed + f))
    skipped=$((skipped + s))
    local result=ok
    if [ "$f" -ne 0 ]; then result=FAILED; fi
    times+=("$(printf '%-14s %5d s  %-6s %d passed, %d failed, %d skipped' \
        "$name" "$((SECONDS - started))" "$result" "$p" "$f" "$s")")
}

finish() {
    printf '\n== summary\n'
    printf '%s\n' "${times[@]}"
    printf '%-14s %5d s\n' total "$SECONDS"
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    exit $((failed > 0))
}

step set-up scripts/setup.sh --test
if [ "$failed" -ne 0 ]; then finish; fi

step format cargo fmt --all --check
step clippy cargo clippy --locked --quiet --workspace --all-targets -- -D warnings
step structure cargo xtask tidy
# A workspace of its own, which nothing else here builds. Checking links nothing, so the fuzzer's own C++ is left out.
step fuzz-targets env CUSTOM_LIBFUZZER_PATH=left-out/libfuzzer.a cargo check --locked --quiet --bins \
    --manifest-path fuzz/Cargo.toml --target-dir "${CARGO_TARGET_DIR:-target}"
step build cargo test --locked --quiet --workspace --no-run
step tests cargo test --locked --workspace --no-fail-fast -- --show-output
step python scripts/python-client.sh
step readme scripts/readme-commands.sh
step start scripts/page-commands.sh docs/start.md
step operate scripts/page-commands.sh docs/operate.md
step http scripts/page-commands.sh docs/http.md
step page scripts/page.sh --test
# After the Python package, whose environment it takes.
step clients scripts/page-commands.sh docs/clients.md docs/client-c.md docs/client-python.md docs/qos.md
step mpi scripts/mpi-suites.sh
step mount scripts/mount-suites.sh
step mem-view scripts/mem-suites.sh
step mem-calls scripts/mem-preload-suite.sh
# After the build, whose program reads the configuration that the image has.
step yocto scripts/yocto-lint.sh
step seeded-bugs scripts/seeded-bugs.sh
finish
