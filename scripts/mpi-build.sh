#!/usr/bin/env bash
# Builds keel-mpi for each MPI that is installed, MPICH and Open MPI, each into a folder of its own, and beside it the
# same loops in plain C, which it is measured beside.
#   scripts/mpi-build.sh [--release] [mpich] [openmpi]    those that are named, or all that are there
# Prints the folder of each. Status 3 where none is installed, or what is named is not.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=debug
options=()
wanted=()
for word; do
    case "$word" in
    --release)
        profile=release
        options=(--release)
        ;;
    mpich | openmpi) wanted+=("$word") ;;
    *)
        printf 'mpi-build: %s: expected --release, mpich or openmpi\n' "$word" >&2
        exit 2
        ;;
    esac
done

has_libclang() {
    ldconfig -p 2>/dev/null | grep -q 'libclang[-.0-9]*\.so' ||
        compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null
}

if ! has_libclang; then
    printf 'mpi-build: libclang is not installed: apt-get install libclang-dev\n' >&2
    exit 3
fi

if [ ${#wanted[@]} -eq 0 ]; then
    for mpi in mpich openmpi; do
        if command -v "mpicc.$mpi" >/dev/null 2>&1; then wanted+=("$mpi"); fi
    done
    if [ ${#wanted[@]} -eq 0 ]; then
        printf 'mpi-build: no MPI is installed: apt-get install mpich libmpich-dev, or openmpi-bin libopenmpi-dev\n' >&2
        exit 3
    fi
fi

parent=${CARGO_TARGET_DIR:-target}
for mpi in "${wanted[@]}"; do
    command -v "mpicc.$mpi" >/dev/null 2>&1 || {
        printf 'mpi-build: mpicc.%s is not installed\n' "$mpi" >&2
        exit 3
    }
    folder=$parent/mpi-$mpi
    # What does not depend on the library need not be compiled twice.
    for other in "$parent"/mpi-*; do
        if [ ! -d "$folder/$profile" ] && [ -f "$other/$profile/loops" ]; then
            mkdir -p "$folder"
            cp -a "$other/$profile" "$folder/"
            CARGO_TARGET_DIR=$folder cargo clean --quiet --locked "${options[@]}" -p mpi -p mpi-sys -p keel-mpi
        fi
    done
    CARGO_TARGET_DIR=$folder MPICC=mpicc.$mpi \
        cargo build --locked --quiet "${options[@]}" -p keel-mpi --features mpi
    "mpicc.$mpi" -std=gnu11 -O2 -Wall -Wextra -Wno-stringop-overflow \
        -o "$folder/$profile/loops" crates/keel-mpi/peer/loops.c
    printf '%s\n' "$folder/$profile"
done
