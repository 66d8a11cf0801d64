#!/usr/bin/env bash
# Every check that looks at the sources without running them.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh --test
cargo fmt --all --check
cargo clippy --locked --quiet --workspace --all-targets -- -D warnings
cargo xtask tidy
# Instructions for it stand in `mem-preload` and `mem`, which that builds. Only building shows that they are any.
arm=aarch64-unknown-linux-gnu
if [ -d "$(rustc --print target-libdir --target "$arm")" ]; then
    cargo rustc --locked --quiet --target "$arm" -p mem-preload --lib --crate-type rlib
else
    printf 'skipped: code for 64-bit ARM (remedy: rustup target add %s)\n' "$arm"
fi
if ! command -v cargo-deny >/dev/null 2>&1; then
    printf 'skipped: licences and advisories of dependencies (remedy: cargo install --locked cargo-deny)\n'
    exit 0
fi
cargo deny --log-level error check licenses bans sources
if cargo deny --log-level off fetch db; then
    cargo deny --log-level error check --disable-fetch advisories
else
    printf 'skipped: advisories (the advisory database cannot be fetched; remedy: run again with a network)\n'
fi
printf 'lint: ok\n'
