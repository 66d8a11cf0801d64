#!/usr/bin/env bash
# The live page.
#   scripts/page.sh          builds the node with its page, starts it beside 1,024 made-up sensors, and says where to
#                            look; Ctrl-C ends it. What it stores goes away with it
#   scripts/page.sh --test   the page in headless Chromium; PAGE_SHOTS=FOLDER keeps pictures of it
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}

missing() {
    printf 'skipped: the live page; %s\n0 passed, 0 failed, 1 skipped\n' "$1"
    exit 0
}

if [ "${1:-}" = --test ]; then
    command -v npm >/dev/null 2>&1 || missing 'npm is not installed'
    chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
        missing 'chromium is not installed'
    modules=$target/page-test
    mkdir -p "$modules"
    cp crates/egress/web/test/package.json crates/egress/web/test/package-lock.json "$modules/"
    (cd "$modules" && npm ci --ignore-scripts --no-audit --no-fund >npm.log 2>&1) || {
        cat "$modules/npm.log" >&2
        exit 1
    }
    # In a folder of its own beside: the other tests' program is the one without the page.
    # Of the whole workspace, whose features are those of the tests' build: otherwise libraries are compiled once more.
    cargo build --locked --quiet --workspace --bin keel --example page_rig --features keel/web,egress/web
    mkdir -p "$target/page"
    cp "$target/debug/keel" "$target/debug/examples/page_rig" "$target/page/"
    PAGE_TEST_MODULES=$(cd "$modules" && pwd) CHROMIUM=$chromium node crates/egress/web/test/page.test.mjs \
        "$(cd "$target" && pwd)/page/keel" "$(cd "$target" && pwd)/page/page_rig" ${PAGE_SHOTS:+"$PAGE_SHOTS"}
    exit
fi

command -v npm >/dev/null 2>&1 || {
    printf 'page: npm is missing, which fetches the library for plots: install npm and node\n' >&2
    exit 1
}
printf 'build: cargo build --release -p keel --features web\n'
cargo build --release --locked --quiet -p keel --features web
keel=$(cd "$target" && pwd)/release/keel
work=$(mktemp -d "${TMPDIR:-/var/tmp}/keel-page.XXXXXX")
sensors=
node=
finish() {
    for process in $sensors $node; do
        kill "$process" 2>/dev/null || true
        wait "$process" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 0' INT TERM
printf '[store]\ncreate_mebibytes = 64\n[http]\nlisten = "%s"\n' "${PAGE_LISTEN:-127.0.0.1:8095}" >"$work/keel.toml"
"$keel" run -c "$work/keel.toml" 2>"$work/log" &
node=$!
until grep -q ' ready: ' "$work/log"; do
    kill -0 "$node" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
    sleep 0.1
done
node crates/egress/web/test/sensors.mjs 8094 1024 "${PAGE_RATE:-2}" &
sensors=$!
printf 'look at http://%s/ (Ctrl-C ends it)\n' "${PAGE_LISTEN:-127.0.0.1:8095}"
wait "$node"
