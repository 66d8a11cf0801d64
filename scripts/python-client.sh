#!/usr/bin/env bash
# Checks the Python package, which is a workspace of its own, builds it as its users do, with maturin, and runs its
# tests against a node. The last line is the total:
#   N passed, N failed, N skipped
#   scripts/python-client.sh [KEEL_PROGRAM | --build]    with --build nothing is run
# What maturin and the package are installed in is made once, beside the rest of the build.
set -euo pipefail
cd "$(dirname "$0")/.."

build_only=
if [ "${1:-}" = --build ]; then build_only=yes && shift; fi
keel=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/debug/keel}")
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/python
environment=$target/environment

unable() {
    printf 'skipped: %s\n0 passed, 0 failed, 1 skipped\n' "$*"
    exit 0
}

cargo fmt --check --manifest-path python/Cargo.toml
[ -x "$keel" ] || { printf '%s is not built\n' "$keel" >&2; exit 1; }
command -v python3 >/dev/null 2>&1 || unable "no python3"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' || unable "python3 is older than 3.9"
mkdir -p "$target"
if [ ! -x "$environment/bin/maturin" ]; then
    python3 -m venv "$environment" >"$target/log" 2>&1 || unable "python3 has no venv: apt-get install python3-venv"
    "$environment/bin/pip" install --quiet --disable-pip-version-check 'maturin>=1.9,<2' >"$target/log" 2>&1 ||
        { tail -n 3 "$target/log"; unable "pip could not install maturin"; }
fi

PYO3_PYTHON="$environment/bin/python" cargo clippy --locked --quiet --all-targets \
    --manifest-path python/Cargo.toml --target-dir "$target/build" -- -D warnings
rm -rf "$target/wheels"
# Without optimisation: it is the quickest to build, and what is tested is the same.
(cd python && "$environment/bin/maturin" build --quiet --locked --profile dev --out "$target/wheels" \
    --target-dir "$target/build" --interpreter "$environment/bin/python")
for wheel in "$target"/wheels/keel-*-abi3-*.whl; do
    "$environment/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps --no-index "$wheel"
done
if [ -n "$build_only" ]; then exit; fi
# A step before may have built the program with other features.
if [ $# -eq 0 ]; then scripts/build-tests.sh; fi
"$environment/bin/python" python/tests/test_keel.py "$keel"
