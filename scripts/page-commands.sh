#!/usr/bin/env bash
# Runs the commands of pages: every ```sh block in its order, in one shell, in one temporary folder, with `keel` in
# PATH. Pages that are named together run one after the other, as a newcomer follows the links. A page whose commands do
# not work is a failed test.
#   scripts/page-commands.sh PAGE...
#
# What a page can say:
#   ```text right after a ```sh block    what that block prints (both outputs). `…` stands for anything within a
#                                        line, a line of `…` alone for any number of lines.
#   <!-- exit status: 0 3 -->            before a block: commands of it may end with these; otherwise with 0 only.
#   <!-- needs: mosquitto -->            before a block: skipped where that program is not installed.
#   <!-- not run: reason -->             before a block: skipped, and the reason is printed.
#   <!-- instead: COMMAND -->            besides: what is run in its place, for what later blocks need of it.
#   <!-- file: look.c -->                before a block of another language: the file that the text asks to save, by its
#                                        path from the folder; it is saved before the next ```sh block.
# The page's ports (8094 of the line protocol, 1883 of the broker, 8095 of HTTP) are exchanged for free ones on the way.
#
# The folder stands for a checkout, too: `crates`, `python` and `target/release` are there. What the test command has
# built takes the place of what the pages build, which would be the same once more, with optimisation and for minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/page-keel.sh

# All blocks together; longer means that one hangs.
page_seconds_max=${PAGE_SECONDS_MAX:-300}
pages=("$@")
[ "$#" -gt 0 ] || { printf 'usage: scripts/page-commands.sh PAGE...\n' >&2; exit 2; }
name=$(basename "$1" .md)

scripts/build-tests.sh
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
real_keel=$target/debug/keel
repository=$PWD

work=$(mktemp -d)
broker=
finish() {
    if [ -n "$broker" ]; then
        kill "$broker" 2>/dev/null || true
        wait "$broker" || true
    fi
    rm -rf "$work"
}
trap finish EXIT
mkdir "$work/blocks" "$work/here" "$work/bin" "$work/broker"

line_port=$(free_port)
broker_port=$(free_port)
http_port=$(free_port)
exchange="s/8094/$line_port/g;s/1883/$broker_port/g;s/8095/$http_port/g"

page_keel "$real_keel" "$work/bin" "$exchange"
page_checkout "$repository" "$target" "$work/here" "$work/bin"

# NNN.sh the commands, NNN.expected what they print, NNN.status what they may end with, NNN.needs a program, NNN.not-run
# why they are not run, NNN.files/ what is to be saved before them: its path behind =, with | for /.
awk -v folder="$work/blocks" '
    function name(ending) { return sprintf("%s/%03d.%s", folder, count, ending) }
    function said(line) { sub(/^<!-- [a-z ]*: /, "", line); sub(/ -->$/, "", line); return line }
    /^<!-- exit status: .* -->$/ { status = said($0); next }
    /^<!-- needs: .* -->$/ { needs = said($0); next }
    /^<!-- not run: .* -->$/ { not_run = said($0); next }
    /^<!-- instead: .* -->$/ { instead = said($0); next }
    /^<!-- file: .* -->$/ { file = said($0); next }
    !open && /^```sh$/ {
        open = "sh"; count++; after = 0
        printf "%s\n", status == "" ? "0" : status > name("status")
        if (needs != "") print needs > name("needs")
        if (not_run != "") { open = "other"; print not_run > name("not-run"); print instead > name("sh") }
        status = needs = not_run = instead = ""
        next
    }
    !open && after && /^```text$/ { open = "expected"; printf "" > name("expected"); after = 0; next }
    !open && /^```/ && file != "" {
        open = "file"; after = 0
        gsub("/", "|", file)
        path = sprintf("%s/%03d.files/=%s", folder, count + 1, file)
        system(sprintf("mkdir -p %s/%03d.files", folder, count + 1))
        file = ""
        next
    }
    !open && /^```/ { open = "other"; after = 0; next }
    open && /^```$/ { after = open == "sh"; open = ""; next }
    open == "sh" || open == "expected" { print > name(open) }
    open == "file" { print > path }
    !open && NF { after = 0 }' "${pages[@]}"
sed -i "$exchange" "$work"/blocks/*.sh "$work"/blocks/*.expected

# Where a program that a block needs may lie besides.
places=/usr/sbin:$target/python/environment/bin

mosquitto=$(PATH="$PATH:$places" command -v mosquitto || true)
if [ -n "$mosquitto" ] && grep -qs mosquitto "$work"/blocks/*.needs; then
    cat >"$work/broker/mosquitto.conf" <<END
listener $broker_port 127.0.0.1
allow_anonymous true
max_inflight_messages 0
max_queued_messages 1000000
persistence false
END
    "$mosquitto" -c "$work/broker/mosquitto.conf" >"$work/broker/log" 2>&1 &
    broker=$!
fi

# One shell for all blocks, as the reader has it. It notes each command that fails, and ends what it started.
cat >"$work/run" <<'END'
failures=()
trap 'for job in $(jobs -p); do kill "$job"; done 2>/dev/null' EXIT
trap 'exit 1' TERM
trap 'failures+=("$?")' ERR
for block in "$1"/*.sh; do
    base=${block%.sh}
    if [ -e "$base.needs" ] && ! PATH="$PATH:$2" command -v "$(<"$base.needs")" >/dev/null; then continue; fi
    if [ -e "$base.files" ]; then
        for saved in "$base.files"/=*; do cp "$saved" "$(basename "$saved" | cut -c 2- | tr '|' /)"; done
    fi
    failures=()
    echo begun >"$base.begun"
    source "$block" >"$base.out" 2>&1
    echo "${failures[*]}" >"$base.ended"
done
END
(
    cd "$work/here"
    PATH="$work/bin:$PATH" timeout "$page_seconds_max" bash "$work/run" "$work/blocks" "$places" </dev/null
) || true

passed=0
failed=0
skipped=0
for block in "$work"/blocks/*.sh; do
    base=${block%.sh}
    problem=
    if [ -e "$base.needs" ] && ! PATH="$PATH:$places" command -v "$(<"$base.needs")" >/dev/null; then
        printf 'skipped: %s is not installed\n' "$(<"$base.needs")"
        skipped=$((skipped + 1))
        continue
    elif [ ! -e "$base.begun" ]; then
        problem="was not reached within $page_seconds_max s"
    elif [ ! -e "$base.ended" ]; then
        problem="did not end within $page_seconds_max s"
    else
        for status in $(<"$base.ended"); do
            if [[ " $(<"$base.status") " != *" $status "* ]]; then problem="a command ended with status $status"; fi
        done
        if [ -z "$problem" ] && [ -e "$base.expected" ] && ! matches "$base.expected" "$base.out"; then
            problem='it prints something else than the page shows'
        fi
    fi
    if [ -z "$problem" ] && [ -e "$base.not-run" ]; then
        printf 'skipped: %s\n' "$(<"$base.not-run")"
        skipped=$((skipped + 1))
        continue
    elif [ -z "$problem" ]; then
        passed=$((passed + 1))
        continue
    fi
    failed=$((failed + 1))
    printf '%s: this block failed: %s\n' "$name" "$problem"
    sed 's/^/  $ /' "$block"
    if [ -e "$base.expected" ]; then sed 's/^/  expected: /' "$base.expected"; fi
    if [ -e "$base.out" ]; then sed 's/^/  printed:  /' "$base.out"; fi
done
if [ "$failed" -gt 0 ] && [ -e "$work/here/keel.log" ]; then sed 's/^/  keel.log: /' "$work/here/keel.log"; fi
printf '%s: %d passed, %d failed, %d skipped\n' "$name" "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
