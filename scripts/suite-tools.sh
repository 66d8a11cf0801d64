# For scripts that run suites of others against a mount; to be sourced. $keel is the program, $tools where programs of
# the registry are kept, $work a folder for logs, $suite_seconds_max the longest that a suite may take.

mounted=

# Mounts on $work/here: $1 flash or mem, $2 the image or region, then options. The directory gets a name of its own:
# pjdfstest must never see another file system.
mount_here() {
    mkdir -p "$work/here"
    : >"$work/mount.log"
    "$keel" "$1" mount "$2" "$work/here" "${@:3}" >"$work/mount.log" 2>&1 &
    mounted=$!
    # A machine that does much else besides takes its time.
    for _ in $(seq 600); do
        if grep -q ' is mounted on ' "$work/mount.log"; then return 0; fi
        kill -0 "$mounted" 2>/dev/null || break
        sleep 0.1
    done
    cat "$work/mount.log"
    return 1
}

# Ends the mount in order, and says how it ended if not.
end_mount() {
    local status=0
    kill "$mounted"
    wait "$mounted" || status=$?
    mounted=
    if [ "$status" -ne 0 ]; then
        printf 'the mount ended with status %d: ' "$status"
        cat "$work/mount.log"
        return 1
    fi
}

# Ends a mount that a failure has left.
end_mount_left() {
    if [ -n "$mounted" ]; then
        kill "$mounted" 2>/dev/null || true
        wait "$mounted" || true
    fi
}

# Builds a program of the registry once. $1 folder below $tools, $2 name, $3 version, then options of cargo install.
obtain() {
    local folder=$1 name=$2 version=$3
    if [ -x "$tools/$folder/bin/$name" ]; then return 0; fi
    printf 'building %s %s\n' "$name" "$version"
    timeout "$suite_seconds_max" cargo install --quiet --debug --root "$tools/$folder" \
        --target-dir "$tools/build" "$name@$version" "${@:4}" >"$work/install.log" 2>&1
}

# Ends a suite that cannot run.
skip() {
    printf 'skipped: %s\n' "$*"
    printf '%s: 0 passed, 0 failed, 1 skipped\n' "$1"
}

failed_any=0
verdict() {
    printf '%s: %d passed, %d failed, %d skipped\n' "$1" "$2" "$3" "$4"
    if [ "$3" -ne 0 ]; then failed_any=1; fi
}

# Writes the configuration of pjdfstest to $work/pjdfstest.toml: $1 is the list of cases that are expected to fail.
configure_pjdfstest() {
    {
        printf '[settings]\nnaptime = 0.02\nexpected_failures = [\n'
        awk '!/^#/ && NF { printf "  \"%s\",\n", $1 }' "$1"
        printf ']\n'
        cat crates/flash-mount/tests/suites/pjdfstest.toml
    } >"$work/pjdfstest.toml"
}

# Says what pjdfstest has found, with $2 the list of cases that were expected to fail and $3 the status that it and the
# check after it ended with, and counts it under the name $1.
judge_pjdfstest() {
    grep -A 2 -E '(FAILED|PASSED UNEXPECTEDLY)$' "$work/pjdfstest.log" || true
    local summary
    summary=$(sed -n 's/^Summary: //p' "$work/pjdfstest.log")
    printf '%s: %s\n' "$1" "${summary:-ended early}"
    awk -v name="$1" '!/^#/ && NF { $1 = ""; count[$0]++ }
        END { for (reason in count) printf "%s: %d cases are expected to fail:%s\n", name, count[reason], reason }' "$2"
    # The cases that its configuration here leaves out are not ours to count.
    local cases bad
    cases=$(sed -n 's/.* \([0-9]*\) passed.*/\1/p' <<<"$summary")
    bad=$(sed -n 's/^\([0-9]*\) failed.*/\1/p' <<<"$summary")
    if [ "$3" -ne 0 ] && [ "${bad:-0}" -eq 0 ]; then bad=1; fi
    verdict "$1" "${cases:-0}" "${bad:-1}" 0
}
