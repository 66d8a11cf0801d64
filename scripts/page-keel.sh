# shellcheck shell=bash
# Sourced by the scripts that run the commands of a page: `keel` in PATH, with the page's ports exchanged for free ones,
# because a node may run on this machine already.

# A port of the loopback address that nobody listens on.
free_port() {
    local port
    while port=$((20000 + RANDOM % 40000)); do
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
