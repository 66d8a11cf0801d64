#!/usr/bin/env bash
# Checks the Yocto layer as far as that can be done without BitBake, which no registry of packages has: the linter
# oelint-adv finds nothing; the list of crates is that of Cargo.lock, and cargo accepts it; licences, version, names of
# crates, options of the kernel and the service are what the rest of the tree says. Then faults are put into copies of
# the layer, and each must be found. The last line is the total:
#   N passed, N failed, N skipped
#   scripts/yocto-lint.sh [KEEL_PROGRAM]
#   scripts/yocto-lint.sh --environment    only installs the linter, once, beside the rest of the build
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C

layer=packaging/yocto/meta-evenkeel
recipe=recipes-evenkeel/evenkeel/evenkeel_0.1.0.bb
crates=recipes-evenkeel/evenkeel/evenkeel-crates.inc
kernel=recipes-kernel/linux
requirements=packaging/yocto/requirements.txt
not_linted=packaging/yocto/not-linted.txt
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
place=$target/yocto
environment=$place/environment
install_seconds_max=300
fetch_seconds_max=300
lint_seconds_max=300

# ----- what is installed or fetched, once -----

# The linter and what it knows of layers, in the versions that the file names: a newer one with new rules must not
# fail an unchanged tree. Status 1 and the reason on standard output where that is not possible.
environment() {
    if ! command -v python3 >/dev/null 2>&1; then
        echo "no python3 (remedy: apt-get install python3 python3-venv)"
        return 1
    fi
    if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        echo "python3 is older than 3.10"
        return 1
    fi
    if cmp -s "$requirements" "$environment/requirements.txt" && [ -x "$environment/bin/oelint-adv" ]; then return; fi
    mkdir -p "$place"
    rm -rf "$environment"
    if ! python3 -m venv "$environment" >"$place/log" 2>&1; then
        echo "python3 has no venv (remedy: apt-get install python3-venv)"
        return 1
    fi
    if ! timeout "$install_seconds_max" "$environment/bin/pip" install --quiet --disable-pip-version-check \
        --requirement "$requirements" >"$place/log" 2>&1; then
        echo "pip could not install $requirements: $(tail -n 1 "$place/log") (remedy: run again with a network)"
        return 1
    fi
    cp "$requirements" "$environment/requirements.txt"
}

if [ "${1:-}" = --environment ]; then
    reason=$(environment) || { printf '%s\n' "$reason"; exit 1; }
    exit 0
fi
keel=$(realpath -m "${1:-$target/debug/keel}")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0
skipped=0

# result ok|FAILED|skipped TEXT
result() {
    case $1 in
    ok) passed=$((passed + 1)) ;;
    FAILED) failed=$((failed + 1)) ;;
    skipped) skipped=$((skipped + 1)) ;;
    esac
    printf '%s: %s\n' "$1" "$2"
}

# Where cargo has put what it has downloaded, by NAME-VERSION.
declare -A archives

find_archives() {
    local file name
    while read -r file; do
        name=${file##*/}
        archives[${name%.crate}]=$file
    done < <(find "${CARGO_HOME:-$HOME/.cargo}/registry/cache" -name '*.crate' 2>/dev/null)
}

# The crates of the list, unpacked as BitBake's fetcher leaves them. Sets `without_pool` to the reason where that is not
# possible.
without_pool=
pool() {
    local name missing=0
    find_archives
    crate_names "$layer" >"$work/names"
    while read -r name; do [ -n "${archives[$name]:-}" ] || missing=$((missing + 1)); done <"$work/names"
    if [ "$missing" -ne 0 ]; then
        # Crates for other systems, which no build here wants.
        if ! timeout "$fetch_seconds_max" cargo fetch --locked --quiet >"$work/fetch" 2>&1; then
            without_pool="$missing crates cannot be downloaded (remedy: run again with a network)"
            return
        fi
        find_archives
    fi
    mkdir -p "$place/crates"
    while read -r name; do
        [ -e "$place/crates/$name/.cargo-checksum.json" ] && continue
        [ -n "${archives[$name]:-}" ] || continue # the check that cargo accepts the list says which one
        rm -rf "${place:?}/crates/$name"
        tar -xzf "${archives[$name]}" --no-same-owner -C "$place/crates"
        printf '{"files": {}, "package": "%s"}\n' "$(sha256sum "${archives[$name]}" | cut -d ' ' -f 1)" \
            >"$place/crates/$name/.cargo-checksum.json"
    done <"$work/names"
}

# NAME-VERSION of each crate in the list of LAYER.
crate_names() {
    sed -n 's|^    crate://crates\.io/[^;]*;name=\([^ ]*\) \\$|\1|p' "$1/$crates"
}

# ----- checks: each takes a layer, prints what is wrong with it and returns 1 if anything is -----

crates_are_those_of_the_lock_file() {
    scripts/yocto-crates.sh >"$work/list" || return 1
    diff "$work/list" "$1/$crates" >"$work/difference" && return
    head -n 6 "$work/difference"
    echo "$crates is not what Cargo.lock says; run scripts/yocto-crates.sh --write"
    return 1
}

# cargo gets the listed crates and no others, no network, and the recipe's arguments.
cargo_accepts_the_crates() {
    local home=$work/cargo-home name sum arguments status=0
    rm -rf "$home"
    mkdir -p "$home/bitbake"
    # The list has a name twice, in an address and before a checksum; what is only there once has no pair.
    sed -n 's|^SRC_URI\[\(.*\)\.sha256sum\] = "\([0-9a-f]*\)"$|\1 \2|p' "$1/$crates" >"$work/checksums"
    diff <(crate_names "$1" | sort) <(cut -d ' ' -f 1 "$work/checksums" | sort) || return 1
    while read -r name sum; do
        printf '%s  %s\n' "$sum" "${archives[$name]:-$name, which cargo has not downloaded}"
        ln -s "$place/crates/$name" "$home/bitbake/$name"
    done <"$work/checksums" >"$work/sums"
    sha256sum --quiet --check "$work/sums" 2>&1 || return 1
    printf '[source.crates-io]\nreplace-with = "bitbake"\n[source.bitbake]\ndirectory = "%s"\n' "$home/bitbake" \
        >"$home/config.toml"
    cargo_arguments "$1" >"$work/arguments"
    while read -r arguments; do
        # shellcheck disable=SC2086
        if ! CARGO_HOME=$home cargo tree --frozen --quiet --depth 0 $arguments >"$work/tree" 2>&1; then
            cat "$work/tree"
            echo "$recipe: cargo refuses \`$arguments\`"
            status=1
        fi
    done <"$work/arguments"
    return "$status"
}

# What the recipe of LAYER has cargo build, a line for each way to configure it.
cargo_arguments() {
    local always
    always=$(sed -n 's/^CARGO_BUILD_FLAGS:append = "\(.*\)"$/\1/p' "$1/$recipe")
    [ -n "$always" ] || { echo "--package the-recipe-has-no-CARGO_BUILD_FLAGS"; return; }
    printf '%s\n' "$always"
    sed -n "s/^PACKAGECONFIG\\[[a-z]*\\] = \"\\([^,\"]*\\).*/$always \\1/p" "$1/$recipe"
}

version_is_that_of_the_workspace() {
    local version
    version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
    [ -f "$1/recipes-evenkeel/evenkeel/evenkeel_$version.bb" ] && return
    echo "Cargo.toml has version $version; rename the recipe to evenkeel_$version.bb, here and in scripts/yocto-lint.sh"
    return 1
}

licences_are_those_of_the_tree() {
    local file sum licence status=0 count=0
    while read -r file sum; do
        count=$((count + 1))
        [ "$(md5sum <"$file" | cut -d ' ' -f 1)" = "$sum" ] && continue
        echo "$recipe: the md5 of $file is another"
        status=1
    done < <(grep -o 'file://LICENSE-[A-Z]*;md5=[0-9a-f]*' "$1/$recipe" | sed 's|file://||; s|;md5=| |')
    if [ "$count" -ne "$(find . -maxdepth 1 -name 'LICENSE-*' | wc -l)" ]; then
        echo "$recipe: not every licence of the tree"
        status=1
    fi
    licence=$(sed -n 's/^license = "\(.*\)"$/\1/p' Cargo.toml)
    grep -qxF "LICENSE = \"${licence/ OR / | }\"" "$1/$recipe" || { echo "$recipe: LICENSE is not $licence"; status=1; }
    return "$status"
}

# Options of Linux in the form that its tools read, none twice, and those that the page of clusters names.
kernel_options_are_complete() {
    local files=$1/$kernel/files status=0 kind option fragments
    grep -oh '[a-z0-9-]*\.cfg' "$1/$kernel/evenkeel-linux.inc" | sort -u >"$work/named"
    if ! find "$files" -name '*.cfg' -printf '%f\n' | sort | diff - "$work/named"; then
        echo "$kernel: the fragments in files/ and those in evenkeel-linux.inc are not the same"
        status=1
    fi
    if grep -Evn '^(#.*|CONFIG_[A-Z0-9_]+=(y|m|"[^"]*"))?$' "$files"/*.cfg; then status=1; fi
    for kind in x86 ondemand; do
        fragments=("$files/evenkeel-cpufreq.cfg" "$files/evenkeel-node.cfg" "$files/evenkeel-$kind.cfg")
        grep -ho '^CONFIG_[A-Z0-9_]*' "${fragments[@]}" | sort >"$work/options"
        option=$(uniq -d "$work/options")
        [ -z "$option" ] || { echo "$kernel ($kind): twice: $option"; status=1; }
        for option in CPU_FREQ CPU_FREQ_STAT CPU_FREQ_GOV_ONDEMAND CPU_FREQ_GOV_PERFORMANCE CPU_FREQ_GOV_USERSPACE \
            FUSE_FS; do
            grep -qx "CONFIG_$option" "$work/options" && continue
            echo "$kernel ($kind): CONFIG_$option is missing"
            status=1
        done
    done
    for option in CONFIG_X86_ACPI_CPUFREQ=y CONFIG_X86_INTEL_PSTATE=y CONFIG_CMDLINE_BOOL=y \
        'CONFIG_CMDLINE="cpufreq.default_governor=ondemand"'; do
        grep -qxF "$option" "$files/evenkeel-x86.cfg" || { echo "evenkeel-x86.cfg: $option is missing"; status=1; }
    done
    grep -qx CONFIG_CPU_FREQ_DEFAULT_GOV_ONDEMAND=y "$files/evenkeel-ondemand.cfg" ||
        { echo "evenkeel-ondemand.cfg: CONFIG_CPU_FREQ_DEFAULT_GOV_ONDEMAND=y is missing"; status=1; }
    return "$status"
}

# Files of the tree that the recipe installs. They are not in the layer, so a recipe does not follow when they move.
installed_files_exist() {
    local file status=0 count=0
    while read -r file; do
        count=$((count + 1))
        [ -f "$file" ] || { echo "$recipe installs $file, which does not exist"; status=1; }
    done < <(sed -n 's|^    install .* ${S}/\([^ ]*\) .*|\1|p' "$1/$recipe")
    [ "$count" -ge 3 ] || { echo "$recipe: its lines of \`install\` are not understood"; status=1; }
    return "$status"
}

# With what it knows of each release that the layer says it is for.
linter_finds_nothing() {
    local files release releases suppressed
    mapfile -t files < <(find "$1" -name '*.bb' -o -name '*.bbappend' -o -name 'layer.conf' | sort)
    mapfile -t suppressed < <(sed -n 's/^\(oelint[^ ]*\) - .*/--suppress=\1/p' "$not_linted")
    releases=$(sed -n 's/^LAYERSERIES_COMPAT_evenkeel = "\(.*\)"$/\1/p' "$1/conf/layer.conf")
    [ -n "$releases" ] || { echo "layer.conf names no release of Yocto"; return 1; }
    for release in $releases; do
        timeout "$lint_seconds_max" "$environment/bin/oelint-adv" --quiet --relpaths --release "$release" \
            "${suppressed[@]}" "${files[@]}" >"$work/findings" 2>&1 && [ ! -s "$work/findings" ] && continue
        head -n 40 "$work/findings"
        echo "oelint-adv ($release): $1: lines of findings: $(wc -l <"$work/findings")"
        return 1
    done
}

# What is kept from the linter says why, on the same line.
suppressions_are_explained() {
    if grep -rn nooelint "$1" --include='*.bb*' --include='*.inc' --include='*.conf' |
        grep -vE '# nooelint: [a-zA-Z0-9.,_-]+ - .{10,}'; then
        echo "write: # nooelint: RULE - REASON"
        return 1
    fi
    if grep -vnE '^(#.*|oelint[a-zA-Z0-9._-]+ - .{10,})$' "$not_linted"; then
        echo "$not_linted: write: RULE - REASON"
        return 1
    fi
}

# An append is comments and one line, which reads the rest from beside it if the distribution has the feature: a layer
# that is merely added changes no recipe of others.
appends_ask_for_consent() {
    local append lines name status=0 count=0
    local consent="require \${@bb.utils.contains('DISTRO_FEATURES', 'evenkeel', 'NAME', '', d)}"
    while read -r append; do
        count=$((count + 1))
        lines=$(grep -vE '^(#.*)?$' "$append")
        name=$(sed -n 's/^require .*'"'"'\([a-z-]*\.inc\)'"'"'.*/\1/p' <<<"$lines")
        [ "$lines" = "${consent/NAME/$name}" ] && [ -f "$(dirname "$append")/$name" ] && continue
        echo "$append: more, or something else, than a \`require\` for the feature evenkeel"
        status=1
    done < <(find "$1" -name '*.bbappend')
    [ "$count" -ge 2 ] || { echo "$1: $count appends, where kernel and MPICH have one each"; status=1; }
    return "$status"
}

# The page shows the unit that packages and images have.
unit_is_that_of_the_page() {
    awk '/^\[Unit\]$/ { inside = 1 } /^```$/ { if (inside) exit } inside' docs/operate.md |
        diff - packaging/systemd/keel.service && return
    echo "packaging/systemd/keel.service is not the unit of docs/operate.md"
    return 1
}

# ----- the run -----

# check FUNCTION LAYER
check() {
    if "$1" "$2" >"$work/output" 2>&1; then
        result ok "${1//_/ }"
    else
        sed 's/^/  /' "$work/output"
        result FAILED "${1//_/ }"
    fi
}

without_linter=$(environment) && without_linter= || true
pool

check crates_are_those_of_the_lock_file "$layer"
if [ -z "$without_pool" ]; then
    check cargo_accepts_the_crates "$layer"
else
    result skipped "cargo accepts the crates: $without_pool"
fi
check version_is_that_of_the_workspace "$layer"
check licences_are_those_of_the_tree "$layer"
check kernel_options_are_complete "$layer"
check installed_files_exist "$layer"
check suppressions_are_explained "$layer"
check appends_ask_for_consent "$layer"
if [ -z "$without_linter" ]; then
    check linter_finds_nothing "$layer"
else
    result skipped "the linter finds nothing: $without_linter"
fi
check unit_is_that_of_the_page "$layer"
if [ ! -x "$keel" ]; then
    result skipped "the service's configuration: $keel is not built"
elif "$keel" config check packaging/systemd/keel.toml >"$work/output" 2>&1; then
    result ok "keel accepts the service's configuration"
else
    sed 's/^/  /' "$work/output"
    result FAILED "keel accepts the service's configuration"
fi

# A check that cannot fail proves nothing. Each fault is put into a copy of the layer; the named check must find it.
# fault FUNCTION FILE SED DESCRIPTION
fault() {
    local copy=$work/meta-evenkeel
    case $1 in
    linter_finds_nothing) [ -z "$without_linter" ] || { result skipped "fault: $4: no linter"; return; } ;;
    cargo_accepts_the_crates) [ -z "$without_pool" ] || { result skipped "fault: $4: no crates"; return; } ;;
    esac
    rm -rf "$copy"
    cp -R "$layer" "$copy"
    sed -i -e "$3" "$copy/$2"
    if cmp -s "$layer/$2" "$copy/$2"; then
        result FAILED "fault: $4: nothing was changed in $2"
    elif "$1" "$copy" >"$work/output" 2>&1; then
        result FAILED "fault: $4: ${1//_/ } all the same"
    else
        result ok "fault: $4: found"
    fi
}

fault linter_finds_nothing "$recipe" '/^LICENSE = /d' "a recipe without LICENSE"
fault linter_finds_nothing "$kernel/linux-yocto_%.bbappend" '$aSRC_URI_append = " file://old.cfg"' \
    "an override in the form of 2020"
fault linter_finds_nothing conf/layer.conf '/^LAYERSERIES_COMPAT/d' "a layer for no release"
fault appends_ask_for_consent "$kernel/linux-yocto_%.bbappend" '$aKERNEL_DEBUG = "True"' "an append that always acts"
fault suppressions_are_explained "$recipe" '1i# nooelint: oelint.var.mandatoryvar.HOMEPAGE' \
    "a suppression without a reason"
fault crates_are_those_of_the_lock_file "$crates" '/serde_json/d' "a crate that the list does not have"
fault crates_are_those_of_the_lock_file "$crates" 's/sha256sum\] = "0/sha256sum] = "1/' "checksums of other files"
fault cargo_accepts_the_crates "$crates" '/serde_json/d' "a crate that cargo needs and is not given"
fault cargo_accepts_the_crates "$crates" 's/sha256sum\] = "0/sha256sum] = "1/' "checksums of other downloads"
fault cargo_accepts_the_crates "$recipe" 's/--package mem-preload/--package mem-preloaded/' \
    "a crate that does not exist"
fault licences_are_those_of_the_tree "$recipe" 's/md5=3b83/md5=3b84/' "the checksum of another licence"
fault kernel_options_are_complete "$kernel/files/evenkeel-cpufreq.cfg" '/CPU_FREQ_STAT/d' "an option that is missing"
fault kernel_options_are_complete "$kernel/evenkeel-linux.inc" '/evenkeel-node/d' "a fragment that no kernel gets"
fault installed_files_exist "$recipe" 's|systemd/keel\.toml|systemd/keel.conf|' "a file that moved"

printf 'yocto: %d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
