# shellcheck shell=bash
# Sourced by the scripts that run the commands of a page: `keel` in PATH, with the page's ports exchanged for free ones,
# because a node may run on this machine already; what stands for the checkout that some pages begin in; and the
# comparison of what a block prints.

# A port of the loopback address without a listener, below the ports that the system gives to connections.
free_port() {
    local port
    while port=$((20000 + RANDOM % 12000)); do
        if ! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            echo "$port"
            return
        fi
    done
}

# page_keel PROGRAM FOLDER SED: makes FOLDER/keel, which is PROGRAM, but that its example configuration passes SED.
page_keel() {
    cat >"$2/keel" <<END
#!/bin/sh
if [ "\$1 \$2" = "config example" ]; then "$1" "\$@" | sed '$3'; exit; fi
# The process id stays the same: pages send signals to it.
exec "$1" "\$@"
END
    chmod +x "$2/keel"
}

# page_checkout REPOSITORY TARGET PLACE FOLDER: makes PLACE look like a checkout whose libraries are built; in FOLDER
# are the programs that would build them. REPOSITORY itself is only read.
page_checkout() {
    local deps=$2/debug/deps environment=$2/python/environment cargo
    cargo=$(command -v cargo)
    mkdir -p "$3/target/release" "$3/python"
    ln -s "$1/crates" "$3/crates"
    ln -s "$1/python/examples" "$3/python/examples"
    ln -s "$deps/libkeel.so" "$deps/libkeel.a" "$3/target/release/"
    local mpi
    for mpi in mpich openmpi; do
        if [ -d "$2/mpi-$mpi/debug" ]; then
            mkdir "$3/target/mpi-$mpi"
            ln -s "$2/mpi-$mpi/debug" "$3/target/mpi-$mpi/release"
        fi
    done

    # What the test command has built is taken as it is; a page that is run alone may find nothing yet.
    cat >"$4/cargo" <<END
#!/bin/sh
set -eu
boiler=\$(dirname "\$PWD")/boiler
case "\$*" in
'build --release --package libkeel-c') [ ! -e '$deps/libkeel.so' ] || [ ! -e '$deps/libkeel.a' ] || exit 0 ;;
'build --release --package keel --example valve') [ ! -e '$2/debug/examples/valve' ] || exit 0 ;;
# A package beside the checkout. Its dependencies are those of the Python package: of the same versions, and built.
'new ../boiler')
    cd '$1'
    exec '$cargo' new --quiet "\$boiler"
    ;;
'add --manifest-path ../boiler/Cargo.toml --path crates/libkeel')
    cp '$1/python/Cargo.lock' "\$boiler/"
    cd '$1'
    exec '$cargo' add --quiet --manifest-path "\$boiler/Cargo.toml" --path crates/libkeel
    ;;
'build --release --manifest-path ../boiler/Cargo.toml')
    cd '$1'
    exec '$cargo' build --quiet --manifest-path "\$boiler/Cargo.toml" --target-dir '$2/python/build'
    ;;
'run --release --manifest-path ../boiler/Cargo.toml') exec '$2/python/build/debug/boiler' ;;
# What maturin asks for.
*--manifest-path*) exec '$cargo' "\$@" ;;
*) printf 'scripts/page-keel.sh does not know: cargo %s\n' "\$*" >&2; exit 1 ;;
esac
shift 2
cd '$1'
exec '$cargo' build --locked --quiet "\$@"
END
    mkdir "$3/target/release/examples"
    ln -s "$2/debug/examples/valve" "$3/target/release/examples/valve"

    # The environment of scripts/python-client.sh, by the name that the page gives it.
    cat >"$4/python3" <<END
#!/bin/sh
set -eu
[ "\$*" = '-m venv environment' ] || exec '$(command -v python3)' "\$@"
mkdir -p environment/bin
for program in python pip maturin; do
    ln -s "$4/environment-\$program" "environment/bin/\$program"
done
END
    cat >"$4/environment-python" <<END
#!/bin/sh
exec '$environment/bin/python' "\$@"
END
    cat >"$4/environment-pip" <<END
#!/bin/sh
exec '$environment/bin/pip' --quiet --disable-pip-version-check "\$@"
END
    cat >"$4/environment-maturin" <<END
#!/bin/bash
exec '$environment/bin/maturin' "\${@/--release/--profile=dev}" --quiet --manifest-path '$1/python/Cargo.toml' \\
    --target-dir '$2/python/build' --interpreter '$environment/bin/python'
END
    chmod +x "$4"/*
}

# matches SHOWN PRINTED: whether what a block printed is what the page shows. `…` stands for anything within a line, a
# line of `…` alone for any number of lines.
matches() {
    awk -v expected="$1" '
        function pattern(line) {
            gsub(/[][\\.^$*+?(){}|]/, "\\\\&", line)
            gsub(/…/, ".*", line)
            return "^" line "$"
        }
        # Whether got[g..] fits want[w..]; a line of … alone takes any number of lines.
        function fits(w, g) {
            for (; w <= wanted; w++) {
                if (want[w] == "…") {
                    for (; g <= got_count + 1; g++) if (fits(w + 1, g)) return 1
                    return 0
                }
                if (g > got_count || got[g] !~ pattern(want[w])) return 0
                g++
            }
            return g == got_count + 1
        }
        BEGIN { while ((getline line < expected) > 0) want[++wanted] = line }
        { got[++got_count] = $0 }
        END { exit !fits(1, 1) }' "$2"
}
