#!/usr/bin/env bash
# The checks for the minutes between two edits: formatting, clippy, structure, and the tests of the crates that differ
# from a revision, files that are not committed among them.
#   scripts/check.sh [REVISION]    HEAD without one
set -euo pipefail
exec </dev/null
cd "$(dirname "$0")/.."
revision=${1:-HEAD}
changed=$(git diff --name-only "$revision" -- && git ls-files --others --exclude-standard)

cargo fmt --all --check
cargo clippy --locked --quiet --workspace --all-targets -- -D warnings
cargo xtask tidy

packages=$(sed -nE 's|^crates/([^/]+)/.*|\1|p; s|^xtask/.*|xtask|p' <<<"$changed" | sort -u)
if [ -z "$packages" ]; then
    printf 'check: ok; no crate differs from %s\n' "$revision"
    exit 0
fi
# All test programs are built, as `make test` does: chosen by package, libraries would have other features and be built
# a second time.
filter=$(sed 's/.*/package(=&)/' <<<"$packages" | paste -sd '|')
printf 'check: tests of %s\n' "$(paste -sd ' ' <<<"$packages")"
scripts/build-tests.sh
cargo nextest run --locked --cargo-quiet --workspace --tests -E "$filter"
