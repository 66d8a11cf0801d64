#!/usr/bin/env bash
# Runs the README's commands: every ```sh block but the first two (make demo, make test), in their order, in one
# temporary folder, with `keel` in PATH. A document whose commands do not work is a failed test. The port of a node,
# 8094, is exchanged for a free one on the way.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/page-keel.sh

# A block that takes longer than this hangs.
block_seconds_max=300

scripts/build-tests.sh
binaries=$(cd "${CARGO_TARGET_DIR:-target}/debug" && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/blocks" "$work/here" "$work/bin"
exchange="s/8094/$(free_port)/g"
page_keel "$binaries/keel" "$work/bin" "$exchange"
awk -v folder="$work/blocks" '
    !open && /^```sh$/ { open = 1; count++; next }
    open && /^```$/ { open = 0; next }
    open && count > 2 { printf "%s\n", $0 > sprintf("%s/%03d", folder, count) }' README.md
sed -i "$exchange" "$work"/blocks/*

# A block that fails on its way must not leave what it started.
run_block='trap '\''for job in $(jobs -p); do kill "$job"; done 2>/dev/null'\'' EXIT; source "$1"'

passed=0
failed=0
for block in "$work"/blocks/*; do
    [ -e "$block" ] || continue
    sed 's/^/README $ /' "$block"
    if (cd "$work/here" && PATH="$work/bin:$binaries:$PATH" timeout "$block_seconds_max" \
        bash -euo pipefail -c "$run_block" block "$block") 2>&1; then
        passed=$((passed + 1))
    else
        printf 'README: this block failed (status %d)\n' "$?"
        failed=$((failed + 1))
    fi
done
printf 'readme: %d passed, %d failed, 0 skipped\n' "$passed" "$failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
