#!/usr/bin/env bash
# Every check that looks at the sources without running them.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh --test
cargo fmt --all --check
cargo fmt --check --manifest-path python/Cargo.toml
cargo clippy --locked --quiet --workspace --all-targets -- -D warnings
# The program that links MPI, where one is installed with what its bindings are made with.
if command -v mpicc.mpich >/dev/null 2>&1; then
    CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/mpi-mpich MPICC=mpicc.mpich \
        cargo clippy --locked --quiet -p keel-mpi --features mpi --all-targets -- -D warnings
else
    printf 'skipped: clippy of keel-mpi (remedy: apt-get install mpich libmpich-dev libclang-dev)\n'
fi
# The package of Python clients, a workspace of its own; pyo3 asks the interpreter what it is.
if command -v python3 >/dev/null 2>&1 && python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))'; then
    cargo clippy --locked --quiet --all-targets --manifest-path python/Cargo.toml \
        --target-dir "${CARGO_TARGET_DIR:-target}/python/build" -- -D warnings
else
    printf 'skipped: clippy of the Python package (remedy: install python3, 3.9 or later)\n'
fi
cargo xtask tidy
# Instructions for it stand in `mem-preload` and `mem`, which that builds. Only building shows that they are any.
arm=aarch64-unknown-linux-gnu
if [ -d "$(rustc --print target-libdir --target "$arm")" ]; then
    cargo rustc --locked --quiet --target "$arm" -p mem-preload --lib --crate-type rlib
else
    printf 'skipped: code for 64-bit ARM (remedy: rustup target add %s)\n' "$arm"
fi
scripts/deny.sh
printf 'lint: ok\n'
