#!/usr/bin/env bash
# Makes Debian packages: evenkeel (the node with its live page, its unit, man pages, completions, alert rules and
# dashboard), libkeel (libraries and headers for programs of your own) and evenkeel-bench (measurements, which
# `keel doctor --report` takes).
#   scripts/package.sh [--arch amd64|arm64|armhf]... [--out DIR] [--container]
# Without --arch: for this machine. Into target/packages unless --out says where. Times in the files are that of the
# commit. --container: also packaging/container, with buildah, for this machine; scripts/container-test.sh starts a node
# in it.
# They start on Debian 11 and later: they are linked with its C library, which comes from a mirror of Debian
# (DEBIAN_MIRROR, else the usual one).
set -euo pipefail
umask 022
exec </dev/null
cd "$(dirname "$0")/.."

fail() {
    printf 'package: %s\n' "$*" >&2
    exit 1
}

arches=()
out=${CARGO_TARGET_DIR:-target}/packages
container=
while [ "$#" -gt 0 ]; do
    case $1 in
        --arch) arches+=("${2:?}"); shift ;;
        --out) out=${2:?}; shift ;;
        --container) container=yes ;;
        *)
            printf 'usage: scripts/package.sh [--arch ARCH]... [--out DIR] [--container]\n' >&2
            exit 2
            ;;
    esac
    shift
done
command -v dpkg-deb >/dev/null || fail "dpkg-deb is missing; packages are made on Debian and systems made from it"
own=$(dpkg --print-architecture)
[ "${#arches[@]}" -gt 0 ] || arches=("$own")
[ -z "$container" ] || arches+=("$own")
mapfile -t arches < <(printf '%s\n' "${arches[@]}" | sort -u)
scripts/setup.sh --package "${arches[@]}" ${container:+container}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
mkdir -p "$out"
out=$(cd "$out" && pwd)
target=${CARGO_TARGET_DIR:-target}
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

printf 'package: man pages and completions (cargo xtask pages)\n'
cargo xtask pages "$stage/pages"

# The name that Rust has for an architecture of Debian, and the prefix of its tools.
rust_of() {
    case $1 in
        amd64) printf 'x86_64-unknown-linux-gnu' ;;
        arm64) printf 'aarch64-unknown-linux-gnu' ;;
        armhf) printf 'armv7-unknown-linux-gnueabihf' ;;
        *) fail "$1 is none of amd64, arm64, armhf" ;;
    esac
}
gnu_of() {
    case $1 in
        amd64) printf 'x86_64-linux-gnu' ;;
        arm64) printf 'aarch64-linux-gnu' ;;
        armhf) printf 'arm-linux-gnueabihf' ;;
    esac
}

# The library that programs preload is written for x86-64 and 64-bit ARM.
has_preload() { [ "$1" != armhf ]; }

# The oldest Debian that packages start on, and its C library: one that is linked with a newer one asks for symbols that
# it lacks.
oldest=bullseye
oldest_libc=2.31

# c_library ARCH: sets `compiler`, which uses that library. Checked with Debian's keys.
c_library() {
    local arch=$1 gnu work sysroot options link to mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
    local names=(libc6 libc6-dev linux-libc-dev libgcc-s1) keys=/usr/share/keyrings/debian-archive-keyring.gpg
    gnu=$(gnu_of "$arch")
    mkdir -p "$target/sysroot"
    sysroot=$(cd "$target/sysroot" && pwd)/$oldest-$arch
    compiler=$sysroot.cc
    # Named before everything that the compiler looks for by itself, for it looks beside itself first. Written at each
    # run, as this folder may have been moved.
    printf '#!/bin/sh\nexec %s-gcc --sysroot="%s" %s %s "$@"\n' "$gnu" "$sysroot" \
        "-B'$sysroot/usr/lib/$gnu' -B'$sysroot/lib/$gnu'" \
        "-isystem '$sysroot/usr/include/$gnu' -isystem '$sysroot/usr/include'" >"$compiler"
    chmod 755 "$compiler"
    [ "$(cat "$sysroot/names" 2>/dev/null)" != "${names[*]}" ] || return 0
    printf 'package: fetching the C library of %s for %s\n' "$oldest" "$arch"
    [ -e "$keys" ] || fail "$keys is missing: install debian-archive-keyring"
    work=$stage/apt-$arch
    mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/root"
    printf 'deb [signed-by=%s] %s %s main\n' "$keys" "$mirror" "$oldest" >"$work/list"
    : >"$work/status"
    options=(-qq -o "APT::Architecture=$arch" -o "APT::Architectures=$arch" -o APT::Sandbox::User=root
        -o "Dir::Etc::sourcelist=$work/list" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null
        -o "Dir::State::lists=$work/lists" -o "Dir::State::status=$work/status" -o "Dir::Cache=$work"
        -o Acquire::Languages=none)
    (cd "$work/archives" && apt-get "${options[@]}" update && apt-get "${options[@]}" download "${names[@]}") \
        >"$work/log" 2>&1 || {
        cat "$work/log" >&2
        fail "no C library of $oldest for $arch from $mirror; name a mirror that has it: DEBIAN_MIRROR=URL"
    }
    for archive in "$work"/archives/*.deb; do dpkg-deb --extract "$archive" "$work/root"; done
    # Links that would lead to the libraries of this machine.
    find "$work/root" -type l -lname '/*' -print0 | while IFS= read -r -d '' link; do
        to=$(readlink "$link")
        ln -sfnr "$work/root$to" "$link"
    done
    printf '%s' "${names[*]}" >"$work/root/names"
    rm -rf "$sysroot"
    mv "$work/root" "$sysroot"
}

# build ARCH: sets `built`, the folder of what was built, and `tools`, the prefix of strip and objdump.
build() {
    local arch=$1 rust upper compiler arguments=(-p keel --features keel/web -p libkeel-c -p flash-c -p bench)
    rust=$(rust_of "$arch")
    if has_preload "$arch"; then arguments+=(-p mem-preload); fi
    c_library "$arch"
    printf 'package: building for %s\n' "$arch"
    tools=$(gnu_of "$arch")-
    upper=$(printf '%s' "$rust" | tr 'a-z-' 'A-Z_')
    built=$target/$rust/release
    env "CARGO_TARGET_${upper}_LINKER=$compiler" "CC_${rust//-/_}=$compiler" "AR_${rust//-/_}=${tools}ar" \
        cargo build --release --locked --quiet --target "$rust" "${arguments[@]}"
}

# notices RUST CRATE...: licences of everything that is compiled into the crates, with the words that their holders want
# to see.
notices() {
    local rust=$1 name version licence folder files file
    shift
    printf 'What is compiled into this package besides Evenkeel itself, and under which licences.\n'
    cargo tree --locked --target "$rust" --edges normal,no-proc-macro --prefix none --format '{p}|{l}' \
        "${@/#/-p}" | sed 's/ (\*)$//' | grep -v ' (/' | sort -u |
        while IFS='|' read -r name licence; do
            [ -n "$name" ] || continue
            licence=${licence% (\**}
            read -r name version _ <<<"$name"
            printf '\n%s %s: %s\n' "$name" "${version#v}" "$licence"
            folder=$(find "${CARGO_HOME:-$HOME/.cargo}/registry/src" -maxdepth 2 -type d \
                -name "$name-${version#v}" -print -quit 2>/dev/null || true)
            [ -n "$folder" ] || continue
            # Of a choice the one that asks for least; where there is none, all of them.
            files=$(find "$folder" -maxdepth 1 -type f -iname '*MIT*')
            [ -n "$files" ] ||
                files=$(find "$folder" -maxdepth 1 -type f \( -iname 'LICEN[CS]E*' -o -iname 'COPYING*' \))
            sort <<<"$files" | while read -r file; do
                [ -z "$file" ] || sed 's/^/    /' "$file"
            done
        done
    # The live page's library for plots comes from npm.
    case " $* " in *' keel '*)
        printf '\nuPlot: MIT\n'
        sed 's/^/    /' "$(find "$built/build" -path '*/out/uplot-license.txt' -print -quit)"
        ;;
    esac
}

# libc_of PROGRAM...: the oldest C library that has what they ask for.
libc_of() {
    local newest
    newest=$("${tools}objdump" -T "$@" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1 | sed 's/^GLIBC_//')
    [ "$(printf '%s\n%s\n' "$newest" "$oldest_libc" | sort -V | tail -n 1)" = "$oldest_libc" ] ||
        fail "$*: asks for the C library $newest, and $oldest has $oldest_libc"
    printf '%s' "$newest"
}

# control PACKAGE ARCH ROOT DEPENDS FIELDS DESCRIPTION
control() {
    local package=$1 arch=$2 root=$3 depends=$4 fields=$5 description=$6
    mkdir -p "$root/DEBIAN"
    {
        printf 'Package: %s\nVersion: %s\nArchitecture: %s\nSection: embedded\nPriority: optional\n' \
            "$package" "$version" "$arch"
        printf 'Maintainer: The Evenkeel project <evenkeel@example.org>\nInstalled-Size: %s\n' \
            "$(du -k -s --apparent-size "$root" | cut -f 1)"
        printf 'Depends: %s\n' "$depends"
        [ -z "$fields" ] || printf '%s\n' "$fields"
        printf 'Description: %s\n' "$description"
    } >"$root/DEBIAN/control"
}

# finish PACKAGE ARCH ROOT: sums, times and owners, and the file itself.
finish() {
    local package=$1 arch=$2 root=$3
    (cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) \
        >"$root/DEBIAN/md5sums"
    find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$root" "$out/${package}_${version}_${arch}.deb" >/dev/null
    printf 'package: %s\n' "$out/${package}_${version}_${arch}.deb"
}

# documents ROOT PACKAGE ARCH CRATE...: licences, what has changed, and the software bill of materials, which is also
# put beside the package.
documents() {
    local root=$1 package=$2 bill=$out/${2}_${version}_$3.cdx.json rust
    rust=$(rust_of "$3")
    shift 3
    local folder=$root/usr/share/doc/$package
    mkdir -p "$folder"
    {
        printf 'Evenkeel is under either of two licences, at your choice: Apache-2.0 or MIT.\n\n'
        cat LICENSE-MIT
        printf '\nThe other one is in /usr/share/common-licenses/Apache-2.0.\n'
        printf '\nLicences of what is compiled in: notices.gz in this folder.\n'
        printf 'Every crate of the build, with its checksum, in CycloneDX form: sbom.cdx.json.gz.\n'
    } >"$folder/copyright"
    gzip -9n <CHANGELOG.md >"$folder/changelog.gz"
    notices "$rust" "$@" | gzip -9n >"$folder/notices.gz"
    cargo xtask sbom "$rust" "$@" >"$bill"
    gzip -9n <"$bill" >"$folder/sbom.cdx.json.gz"
}

# strip_apart PACKAGE ARCH FILE...: takes symbols and line tables out of programs and libraries, for boards with small
# cards, and puts them into an archive beside the package. Unpacked into /, a debugger finds them there by the path of
# each file and the name that stays in it.
strip_apart() {
    local package=$1 arch=$2 file kept symbols
    shift 2
    kept=$stage/$arch/$package-symbols
    for file; do
        symbols=$kept/usr/lib/debug/${file#"$stage/$arch/$package/"}.debug
        mkdir -p "$(dirname "$symbols")"
        "${tools}objcopy" --only-keep-debug "$file" "$symbols"
        "${tools}strip" --strip-unneeded "$file"
        "${tools}objcopy" --add-gnu-debuglink="$symbols" "$file"
        printf '%s, %s: %s bytes\n' "$(basename "$file")" "$arch" "$(stat -c %s "$file")"
    done
    XZ_OPT=-1 tar -C "$kept" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
        -cJf "$out/${package}-symbols_${version}_${arch}.tar.xz" usr/lib/debug
}

package_node() {
    local arch=$1 root=$stage/$1/evenkeel libc programs crates=(keel)
    install -D -m 755 "$built/keel" "$root/usr/bin/keel"
    programs=("$root/usr/bin/keel")
    if has_preload "$arch"; then
        # Where keel looks for it: ../lib/keel.
        install -D -m 644 "$built/libkeelmem.so" "$root/usr/lib/keel/libkeelmem.so"
        programs+=("$root/usr/lib/keel/libkeelmem.so")
        crates+=(mem-preload)
    fi
    strip_apart evenkeel "$arch" "${programs[@]}"
    install -D -m 644 packaging/systemd/keel.service "$root/lib/systemd/system/keel.service"
    install -D -m 644 packaging/systemd/keel.toml "$root/etc/keel/keel.toml"
    install -D -m 644 packaging/prometheus/evenkeel.rules.yml "$root/usr/share/evenkeel/evenkeel.rules.yml"
    install -D -m 644 packaging/grafana/evenkeel.json "$root/usr/share/evenkeel/evenkeel.json"
    install -D -m 644 "$stage/pages/completions/keel.bash" "$root/usr/share/bash-completion/completions/keel"
    install -D -m 644 "$stage/pages/completions/_keel" "$root/usr/share/zsh/vendor-completions/_keel"
    install -D -m 644 "$stage/pages/completions/keel.fish" "$root/usr/share/fish/vendor_completions.d/keel.fish"
    mkdir -p "$root/usr/share/man/man1"
    local page
    for page in "$stage"/pages/man/*.1; do
        gzip -9n <"$page" >"$root/usr/share/man/man1/$(basename "$page").gz"
    done
    documents "$root" evenkeel "$arch" "${crates[@]}"
    libc=$(libc_of "${programs[@]}")
    control evenkeel "$arch" "$root" \
        "libc6 (>= $libc), libgcc-s1, init-system-helpers (>= 1.54~), passwd" \
        "Recommends: fuse3
Suggests: evenkeel-bench, libkeel" \
        'Node for sensor readings: to flash and to programs, in time
 Takes readings from sensors, keeps them on flash across power cuts, and
 shows them to programs that have to act on them in time.'
    printf '/etc/keel/keel.toml\n' >"$root/DEBIAN/conffiles"
    install -m 755 packaging/deb/postinst packaging/deb/prerm packaging/deb/postrm "$root/DEBIAN"
    finish evenkeel "$arch" "$root"
}

package_libraries() {
    local arch=$1 root=$stage/$1/libkeel folder libc
    folder=$root/usr/lib/$(gnu_of "$arch")
    install -D -m 644 "$built/libkeel.so" "$folder/libkeel.so"
    install -D -m 644 "$built/libkeelflash.so" "$folder/libkeelflash.so"
    strip_apart libkeel "$arch" "$folder"/*.so
    install -D -m 644 crates/libkeel-c/include/keel.h "$root/usr/include/keel.h"
    install -D -m 644 crates/flash-c/include/keelflash.h "$root/usr/include/keelflash.h"
    documents "$root" libkeel "$arch" libkeel-c flash-c
    libc=$(libc_of "$folder"/*.so)
    control libkeel "$arch" "$root" "libc6 (>= $libc), libgcc-s1" "" \
        'Libraries and headers for programs that use an Evenkeel node or its stores
 libkeel reads values of a node where they lie, puts readings and declares
 periodic tasks; libkeelflash uses a store without a node.'
    printf 'activate-noawait ldconfig\n' >"$root/DEBIAN/triggers"
    finish libkeel "$arch" "$root"
}

package_bench() {
    local arch=$1 root=$stage/$1/evenkeel-bench libc
    install -D -m 755 "$built/keel-bench" "$root/usr/bin/keel-bench"
    strip_apart evenkeel-bench "$arch" "$root/usr/bin/keel-bench"
    documents "$root" evenkeel-bench "$arch" bench
    libc=$(libc_of "$root/usr/bin/keel-bench")
    control evenkeel-bench "$arch" "$root" "libc6 (>= $libc), libgcc-s1, evenkeel (= $version)" "" \
        'Measurements of Evenkeel beside its peers
 The program that `keel bench` runs, and whose short measurements
 `keel doctor --report` puts on its page.'
    finish evenkeel-bench "$arch" "$root"
}

for arch in "${arches[@]}"; do
    build "$arch"
    package_node "$arch"
    package_libraries "$arch"
    package_bench "$arch"
done
if [ -n "$container" ]; then
    packaging/container/build.sh "$out/evenkeel_${version}_${own}.deb"
    scripts/container-test.sh localhost/evenkeel
fi
