#!/usr/bin/env bash
# The checks for the minutes between two edits: formatting, clippy (of fuzz targets, too) and structure of everything;
# and tests of what differs from a revision, files that are not committed among them:
#   crates/NAME, xtask         the tests of that crate and of all crates that depend on it
#   fuzz                       the tests that replay the corpora
#   python, crates/libkeel     the tests of the Python package, and its formatting and clippy
# Files that none of these cover are named at the end: manifests and settings of the workspace, documents, scripts,
# packaging, the live page. `make test` covers them, and programs that a test of another crate starts.
#   scripts/check.sh [REVISION]    HEAD without one
set -euo pipefail
exec </dev/null
cd "$(dirname "$0")/.."
revision=${1:-HEAD}
changed=$(git diff --name-only "$revision" -- && git ls-files --others --exclude-standard)
differs() { grep -qE "$1" <<<"$changed"; }

cargo fmt --all --check
cargo clippy --locked --quiet --workspace --all-targets -- -D warnings
cargo xtask tidy

filter=$(sed -nE 's|^crates/([^/]+)/.*|\1|p; s|^xtask/.*|xtask|p' <<<"$changed" | sort -u | sed 's/.*/rdeps(=&)/')
if differs '^fuzz/'; then filter+=$'\ntest(/^fuzz_corpus::/)'; fi
filter=$(sed '/^$/d' <<<"$filter" | paste -sd '|')
if [ -n "$filter" ]; then
    printf 'check: tests of %s\n' "$filter"
    # All test programs are built, as `make test` does: chosen by package, libraries would have other features and be
    # built a second time.
    scripts/build-tests.sh
    cargo nextest run --locked --cargo-quiet --workspace --tests --no-tests=pass -E "$filter"
fi
if differs '^(python|crates/libkeel)/'; then scripts/python-client.sh; fi
# The live page has a test of its own, in a browser.
others=$(sed -E -e '/^crates\/[^/]+\/web\//b' -e '/^(crates|xtask|fuzz|python)\//d; /^$/d' <<<"$changed" | sort -u)
if [ -n "$others" ]; then
    printf 'check: no test of this command covers these, make test does: %s\n' "$(paste -sd ' ' <<<"$others")"
fi
if [ -z "$changed" ]; then printf 'check: ok; nothing differs from %s\n' "$revision"; fi
