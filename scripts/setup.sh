#!/usr/bin/env bash
# Makes sure that the machine can build Evenkeel. Says what it does, changes nothing that is there already.
#   scripts/setup.sh          what the build needs
#   scripts/setup.sh --test   also what the checks need (rustfmt, clippy, cargo-nextest, the MQTT broker mosquitto, the
#                             suite fio for the mount, fusermount3, with which users other than root mount,
#                             systemd-analyze, which reads the unit, the stores that the data path is measured
#                             against, python3 with venv for the package of clients, networks, disks and peers for
#                             the bench of streaming, MPICH and Open MPI with libclang, for keel-mpi, npm and chromium
#                             for the live page, and promtool)
#   scripts/setup.sh --stream also what the bench of streaming needs: networks, disks, the peer sshfs, and the programs
#                             that it starts from the network
#   scripts/setup.sh --bench  also what the bench's peer littlefs needs (libclang); status 3 without it
#   scripts/setup.sh --package [WORD...]  also what packages are made with (npm, binutils), and for each WORD:
#                             arm64, armhf, amd64: compiler and Rust library of that architecture, the emulator qemu;
#                             root: what a fresh Debian root is made with (debootstrap); container: that and buildah
set -euo pipefail

rust_version_min=1.88
nextest_version=0.9.114

say() { printf 'set-up: %s\n' "$*"; }
fail() {
    printf 'set-up: %s\n' "$*" >&2
    exit 1
}

# Installs Debian packages, or says what is to be done where that is not possible.
install_packages() {
    local sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null 2>&1 || fail "missing: $*. Install them as root: apt-get install $*"
        sudo=(sudo)
    fi
    command -v apt-get >/dev/null 2>&1 || fail "missing: $*. Install what provides them on this system, then run again"
    say "installing $* (apt-get)"
    local log
    log=$(mktemp)
    if ! { "${sudo[@]}" apt-get update -qq &&
        "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } \
        >"$log" 2>&1 </dev/null; then
        cat "$log" >&2
        rm -f "$log"
        fail "apt-get could not install $*"
    fi
    rm -f "$log"
}

# The broker that the tests start themselves, on ports and in directories of their own. Its package would start one as
# a service, too, which a test run has no business to do.
install_broker() {
    install_quietly mosquitto mosquitto-clients || say "the tests that need mosquitto will be skipped"
}

# Installs packages without the services in them being started.
install_quietly() {
    local policy=/usr/sbin/policy-rc.d made= done=0
    if [ "$(id -u)" -eq 0 ] && [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        made=yes
    fi
    (install_packages "$@") || done=1
    if [ -n "$made" ]; then rm -f "$policy"; fi
    return "$done"
}

has_broker() {
    command -v mosquitto_pub >/dev/null 2>&1 && { command -v mosquitto || [ -x /usr/sbin/mosquitto ]; } >/dev/null 2>&1
}

# The stores of `keel bench db` that are C libraries, opened at run time; the package of each.
stores='libdb-5.3.so:libdb5.3 liblmdb.so.0:liblmdb0 librocksdb.so:librocksdb7.8'

missing_stores() {
    local store
    for store in $stores; do
        ldconfig -p 2>/dev/null | grep -q "${store%%:*}" || printf '%s\n' "${store#*:}"
    done
}

# What `keel bench stream` makes its line and disks with, and its peer; the package of each.
stream_tools='ip:iproute2 tc:iproute2 nft:nftables mkfs.ext4:e2fsprogs losetup:mount sshfs:sshfs
    ssh-keygen:openssh-client'

# The programs that it starts from the network.
stream_programs='gcc:gcc javac:default-jdk-headless openssl:openssl perl:perl python3:python3'

# Whether a program is where the bench looks for the programs that it starts from the network, which is not the PATH.
has_stream_program() {
    local folder
    for folder in /usr/bin /bin /usr/local/bin; do
        if [ -e "$folder/$1" ]; then return 0; fi
    done
    return 1
}

# Installs the tools, and the given programs.
install_stream_tools() {
    local tool package missing=()
    for tool in $stream_tools; do
        PATH="$PATH:/usr/sbin:/sbin" command -v "${tool%%:*}" >/dev/null 2>&1 || missing+=("${tool#*:}")
    done
    for tool; do
        has_stream_program "${tool%%:*}" || missing+=("${tool#*:}")
    done
    [ -x /usr/sbin/sshd ] || missing+=(openssh-server)
    for package in $(printf '%s\n' "${missing[@]}" | sort -u); do
        (install_quietly "$package") ||
            say "without $package the bench of streaming is not run, or lacks a program or the peer sshfs"
    done
}

# What keel-mpi is built with and its boards are emulated with; the package of each.
mpi_tools='mpicc.mpich:libmpich-dev mpiexec.hydra:mpich mpicc.openmpi:libopenmpi-dev mpirun.openmpi:openmpi-bin
    unshare:util-linux ip:iproute2'

missing_mpi_tools() {
    local tool
    for tool in $mpi_tools; do
        PATH="$PATH:/usr/sbin:/sbin" command -v "${tool%%:*}" >/dev/null 2>&1 || printf '%s\n' "${tool#*:}"
    done
    has_libclang || printf 'libclang-dev\n'
}

add_component() {
    command -v rustup >/dev/null 2>&1 || fail "$1 is missing: install it beside $(rustc --version)"
    say "adding $1 (rustup)"
    rustup component add "$1" >/dev/null 2>&1 || fail "rustup could not add $1"
}

# The runner of the tests. It is built once for this user, without optimisation: it waits for tests most of the time.
install_nextest() {
    local log
    log=$(mktemp)
    say "installing cargo-nextest $nextest_version (cargo install, about two minutes)"
    if ! CARGO_PROFILE_DEV_DEBUG=false cargo install --quiet --locked --debug \
        --no-default-features --features default-no-update "cargo-nextest@$nextest_version" >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        rm -f "$log"
        fail "cargo-nextest could not be installed; see https://nexte.st/docs/installation"
    fi
    rm -f "$log"
}

# A C compiler that links is what rustc needs to link, and all it needs.
can_link() {
    command -v cc >/dev/null 2>&1 && printf 'int main(void) { return 0; }\n' | cc -x c -o /dev/null - 2>/dev/null
}

has_libclang() {
    ldconfig -p 2>/dev/null | grep -q 'libclang[-.0-9]*\.so'
}

command -v cargo >/dev/null 2>&1 ||
    fail "Rust is missing. Install it as https://rustup.rs says: curl --proto '=https' -sSf https://sh.rustup.rs | sh"

rust_version=$(rustc --version | cut -d ' ' -f 2)
if [ "$(printf '%s\n%s\n' "$rust_version_min" "$rust_version" | sort -V | head -n 1)" != "$rust_version_min" ]; then
    fail "Rust $rust_version is too old, $rust_version_min or later is needed: rustup update stable"
fi

can_link || install_packages gcc libc6-dev
can_link || fail "cc is there but cannot link a program: check the C compiler's installation"

if [ "${1:-}" = --test ]; then
    cargo fmt --version >/dev/null 2>&1 || add_component rustfmt
    cargo clippy --version >/dev/null 2>&1 || add_component clippy
    cargo nextest --version >/dev/null 2>&1 || install_nextest
    has_broker || install_broker
    command -v fio >/dev/null 2>&1 || (install_packages fio) || say "the suites that need fio will be skipped"
    command -v fusermount3 >/dev/null 2>&1 || (install_packages fuse3) ||
        say "without fuse3 only root can mount a store; tests that do so as another user will be skipped"
    # Not systemd-sysv, which would make it the init of this machine.
    command -v systemd-analyze >/dev/null 2>&1 || (install_quietly systemd) ||
        say "the unit is not read by systemd itself: systemd-analyze is missing"
    python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || (install_packages python3 python3-venv) ||
        say "the Python package is not tested: python3 with venv is missing"
    # Into an environment of its own, beside the rest of the build.
    unable=$("$(dirname "$0")/yocto-lint.sh" --environment) || say "recipes for Yocto are not linted: $unable"
    install_stream_tools
    missing_mpi=$(missing_mpi_tools | sort -u)
    # shellcheck disable=SC2086 # One word for each package.
    [ -z "$missing_mpi" ] || (install_packages $missing_mpi) ||
        say "keel-mpi is tested with no MPI, or with one of two: missing $(printf '%s' "$missing_mpi" | tr '\n' ' ')"
    # npm fetches the live page's library for plots, and a driver for the browser that its test runs it in.
    command -v npm >/dev/null 2>&1 || (install_packages nodejs npm) || say "the live page is not tested: npm is missing"
    command -v chromium >/dev/null 2>&1 || (install_packages chromium fonts-dejavu-core) ||
        say "the live page is not tested: chromium is missing"
    command -v promtool >/dev/null 2>&1 || (install_quietly prometheus) ||
        say "the alert rules are compared with the metrics, and not read by Prometheus itself: promtool is missing"
    for store in $(missing_stores); do
        (install_packages "$store") || say "without $store its store is missing from the bench of the data path"
    done
fi

if [ "${1:-}" = --stream ]; then
    # shellcheck disable=SC2086 # One word for each program.
    install_stream_tools $stream_programs
fi

if [ "${1:-}" = --bench ] && ! has_libclang; then
    (install_packages libclang-dev) && has_libclang || exit 3
fi

# Each package that lacks its program.
install_missing() {
    local pair missing=()
    for pair in "$@"; do
        PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%:*}" >/dev/null 2>&1 || missing+=("${pair#*:}")
    done
    if [ "${#missing[@]}" -gt 0 ]; then install_packages "${missing[@]}"; fi
}

# What packages for an architecture of Debian are built with: its compiler, and Rust's library for it. The C library is
# fetched by scripts/package.sh.
install_compiler() {
    local arch=$1 gnu=$2 rust=$3
    if [ "$arch" = "$(dpkg --print-architecture)" ]; then
        install_missing "$gnu-gcc:gcc"
    else
        install_missing "$gnu-gcc:gcc-${gnu/_/-}" qemu-arm:qemu-user
        # For what is emulated.
        [ -e "/usr/$gnu/include/stdio.h" ] || install_packages "libc6-dev-$arch-cross"
    fi
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || install_packages debian-archive-keyring
    [ -d "$(rustc --print target-libdir --target "$rust")" ] || {
        command -v rustup >/dev/null 2>&1 || fail "Rust's library for $rust is missing: install it beside rustc"
        say "adding $rust (rustup)"
        rustup target add "$rust" >/dev/null 2>&1 || fail "rustup could not add $rust"
    }
}

if [ "${1:-}" = --package ]; then
    install_missing npm:npm node:nodejs objdump:binutils xz:xz-utils
    for word in "${@:2}"; do
        case $word in
        amd64) install_compiler amd64 x86_64-linux-gnu x86_64-unknown-linux-gnu ;;
        arm64) install_compiler arm64 aarch64-linux-gnu aarch64-unknown-linux-gnu ;;
        armhf) install_compiler armhf arm-linux-gnueabihf armv7-unknown-linux-gnueabihf ;;
        root) install_missing debootstrap:debootstrap unshare:util-linux ip:iproute2 ;;
        container) install_missing debootstrap:debootstrap buildah:buildah ;;
        *) fail "$word: is none of amd64, arm64, armhf, root, container" ;;
        esac
    done
fi

say "ready: rustc $rust_version, $(cc --version | head -n 1)"
