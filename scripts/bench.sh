#!/usr/bin/env bash
# Builds the product and measures the store. Arguments go to `keel bench flash`.
# With --paper the peer littlefs is built in, where its bindings can be made.
set -euo pipefail
cd "$(dirname "$0")/.."
features=()
case " $* " in
*' --paper '*)
    status=0
    scripts/setup.sh --bench || status=$?
    case $status in
    0) features=(--features bench/littlefs) ;;
    3) printf 'build: without littlefs, which takes libclang; the report will list it as missing\n' ;;
    *) exit "$status" ;;
    esac
    ;;
*) scripts/setup.sh ;;
esac
printf 'build: cargo build --release -p keel -p bench %s\n' "${features[*]}"
cargo build --release --locked --quiet -p keel -p bench "${features[@]}"
exec "${CARGO_TARGET_DIR:-target}/release/keel" bench flash "$@"
