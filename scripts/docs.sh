#!/usr/bin/env bash
# Builds the documentation site into target/site/html with mdbook.
#   scripts/docs.sh [OPTIONS OF mdbook build]      such as --open
set -euo pipefail
cd "$(dirname "$0")/.."
site=${CARGO_TARGET_DIR:-target}/site
cargo xtask site "$site"
if ! command -v mdbook >/dev/null; then
    printf 'docs: mdbook is missing: cargo install --locked mdbook\n' >&2
    exit 1
fi
mdbook build "$@" "$site"
printf 'docs: %s/html/index.html\n' "$site"
