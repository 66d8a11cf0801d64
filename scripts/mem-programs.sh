#!/usr/bin/env bash
# Larger programs, unmodified, on a region of memory and on a plain directory: each must do the same in both. The short
# list is in the tests of crates/mem-preload; this is the long one, for `make soak`. A program that is not installed is
# skipped.
#   scripts/mem-programs.sh [NAME…]    all, or these
# The last line is the total.
set -euo pipefail
exec </dev/null
cd "$(dirname "$0")/.."
cargo build --release --locked --quiet -p keel -p mem-preload
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
keel=$target/release/keel

# Memory, where there is some: what is compared is not what a disk does.
work=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
region=$work/region
plain=$work/plain
children=()
finish() {
    local child
    for child in "${children[@]:-}"; do
        [ -z "$child" ] || kill "$child" 2>/dev/null || true
    done
    ! mountpoint -q "$work/view" 2>/dev/null || umount "$work/view"
    rm -rf "$work"
}
trap finish EXIT
mkdir "$plain" "$work/view"
"$keel" mem create "$region" --size 1G >/dev/null

passed=0
failed=0
skipped=0
only=" $* "

# In the region, and served by it.
in_region() {
    "$keel" mem run --strict "$region" --at /keel -- "$@"
}

# verdict NAME WHAT STATUS: one line of the table.
verdict() {
    if [ "$3" -eq 0 ]; then
        passed=$((passed + 1))
        printf '| %s | %s | the same |\n' "$1" "$2"
    else
        failed=$((failed + 1))
        printf '| %s | %s | FAILED |\n' "$1" "$2"
    fi
}

# wanted NAME PROGRAM…: whether it is to be run, and can be.
wanted() {
    local name=$1 program
    shift
    if [ "$only" != "  " ] && [ "${only/ $name /}" = "$only" ]; then return 1; fi
    for program in "$@"; do
        if ! command -v "$program" >/dev/null 2>&1; then
            printf 'skipped: %s: %s is not installed\n' "$name" "$program"
            skipped=$((skipped + 1))
            return 1
        fi
    done
}

# Names of tests that did not pass, of a run of Python's own suite.
python_failures() {
    sed -nE 's/^(FAIL|ERROR): ([^ ]+) .*/\2/p' "$1" | sort -u
}

# Python's tests of files: those that fail in the region and not in a plain directory must be the ones listed.
run_python() {
    local suite expected
    # Neither pipes with names nor sockets with names live in a region, and a map takes memory for holes too.
    for suite in "test_io:" "test_os:" $'test_mmap:test_around_2GB\ntest_around_4GB' "test_fileio:" "test_shutil:" \
        "test_tempfile:" "test_posix:" "test_glob:" "test_zipfile:" "test_pathlib:test_is_socket_true" \
        "test_tarfile:test_pipe" "test_bufio:" "test_dbm:" "test_file:" "test_gzip:" "test_mailbox:" \
        "test_fcntl:test_fcntl_64_bit" "test_subprocess:test_pass_fds_redirected"; do
        expected=${suite#*:}
        suite=${suite%%:*}
        if ! python3 -c "import test.$suite" 2>/dev/null; then
            printf 'skipped: python %s: its tests are not installed\n' "$suite"
            skipped=$((skipped + 1))
            continue
        fi
        python3 -m test -v --tempdir="$plain" "$suite" >"$work/plain.log" 2>&1 || true
        in_region python3 -m test -v --tempdir=/keel/python "$suite" >"$work/region.log" 2>&1 || true
        local new status=0
        new=$(comm -13 <(python_failures "$work/plain.log") <(python_failures "$work/region.log"))
        grep -q '^Ran [1-9]' "$work/region.log" || status=1
        if [ "$new" != "$expected" ]; then
            status=1
            printf '%s: these fail only in the region:\n%s\n' "$suite" "$new"
            tail -n 40 "$work/region.log"
        fi
        local count
        count=$(sed -nE 's/^Ran ([0-9]+) tests.*/\1 tests/p' "$work/region.log" | tail -n 1)
        verdict "python3, $suite" "$count${expected:+, but ${expected//$'\n'/ and }}" "$status"
    done
}

# What a server has acknowledged is in its append-only file, and is there again after a restart.
run_redis() {
    local status=0 start
    for start in 1 2; do
        in_region redis-server --port 0 --unixsocket "$work/redis" --dir /keel/redis --appendonly yes --save "" \
            >"$work/redis-$start.log" 2>&1 &
        local server=$!
        children+=("$server")
        local tries=0
        until redis-cli -s "$work/redis" ping 2>/dev/null | grep -q PONG; do
            tries=$((tries + 1))
            if [ "$tries" -gt 300 ]; then
                tail -n 20 "$work/redis-$start.log"
                return 1
            fi
            sleep 0.1
        done
        if [ "$start" -eq 1 ]; then
            redis-benchmark -s "$work/redis" -q -n 20000 -r 100000 -t set,lpush,incr >/dev/null || status=1
            redis-cli -s "$work/redis" bgrewriteaof >/dev/null
            until redis-cli -s "$work/redis" info persistence | grep -q 'aof_rewrite_in_progress:0'; do sleep 0.1; done
            redis-cli -s "$work/redis" debug digest >"$work/digest-1"
        else
            redis-cli -s "$work/redis" debug digest >"$work/digest-2"
        fi
        redis-cli -s "$work/redis" shutdown nosave >/dev/null 2>&1 || true
        wait "$server" || true
    done
    cmp "$work/digest-1" "$work/digest-2" || status=1
    return "$status"
}

run_rocksdb() {
    local where
    for where in plain region; do
        local prefix=() folder=$plain/rocksdb
        if [ "$where" = region ]; then
            prefix=(in_region)
            folder=/keel/rocksdb
        fi
        "${prefix[@]}" db_bench --db="$folder" --num=50000 --seed=7 --threads=2 --verify_checksum=true \
            --benchmarks=fillrandom,overwrite,deleterandom,compact,readrandom,readseq,verifychecksum \
            >"$work/rocksdb-$where.log" 2>&1 || { tail -n 20 "$work/rocksdb-$where.log"; return 1; }
    done
    # Another process, and every checksum again.
    in_region db_bench --db=/keel/rocksdb --use_existing_db=true --num=50000 --benchmarks=verifychecksum,readseq \
        >"$work/rocksdb-again.log" 2>&1 || { tail -n 20 "$work/rocksdb-again.log"; return 1; }
}

# Its class filesystem, but for those that need what a region refuses (bind-mount, binderfs, dnotify, fiemap, inotify,
# lease, xattr) or does not look at (fsize); and others that use files.
stressors=(access chattr chdir chmod chown copy-file dentry dir dirdeep dirmany dup eventfd fallocate fanotify fcntl
    file-ioctl filename flock fpunch fstat getdent handle hdd inode-flags io iomix ioprio link locka lockf lockofd mknod
    open procfs rename symlink sync-file touch utime verity mmap mmapfork msync readahead seek sendfile splice)

run_stress() {
    local name status=0
    for name in "${stressors[@]}"; do
        timeout 120 "$keel" mem run --strict "$region" --at /keel -- stress-ng --temp-path /keel --"$name" 1 \
            --timeout 2 --verify --hdd-bytes 8M --iomix-bytes 8M --fallocate-bytes 8M --seek-size 8M \
            --copy-file-bytes 128M --sync-file-bytes 8M --readahead-bytes 8M >"$work/stress.log" 2>&1 ||
            { printf 'stress-ng --%s:\n' "$name"; tail -n 12 "$work/stress.log"; status=1; }
    done
    return "$status"
}

# What was written is read again and compared, block by block.
run_fio() {
    local mode engine block blocks rw
    # Also a region that writes cache lines back.
    "$keel" mem create "$work/flushed" --size 128M --flush cache-lines >/dev/null || return 1
    for mode in posix sync flushed; do
        for engine in psync sync vsync pvsync mmap; do
            blocks=(4096 100k)
            if [ "$engine" = psync ]; then blocks=(512 4096 16k 100k); fi
            for block in "${blocks[@]}"; do
                for rw in randwrite write; do
                    verify_by_fio "$mode" --ioengine="$engine" --bs="$block" --rw="$rw" || return 1
                done
            done
        done
    done
    "$keel" mem check "$work/flushed" || return 1
    rm -r "$work/flushed" "$work/flushed.stubs"
}

# $1 the mode, or flushed; then options of fio.
verify_by_fio() {
    local options=(--mode "$1") where=$region
    if [ "$1" = flushed ]; then
        options=()
        where=$work/flushed
    fi
    shift
    local served=("$keel" mem run --strict "$where" --at /keel)
    "${served[@]}" "${options[@]}" -- fio --aux-path="$work" --name=verify --directory=/keel --size=8M --numjobs=2 \
        --verify=crc32c --do_verify=1 --verify_fatal=1 --fallocate=none "$@" >"$work/fio.log" 2>&1 ||
        { printf 'fio %s:\n' "$*"; tail -n 20 "$work/fio.log"; return 1; }
    "${served[@]}" -- rm -f /keel/verify.0.0 /keel/verify.1.0
}

# A program that no library can be put in front of.
run_static() {
    "$keel" mem mount "$region" "$work/view" >"$work/mount.log" 2>&1 &
    local mount=$! status=0 tries=0
    children+=("$mount")
    until mountpoint -q "$work/view"; do
        tries=$((tries + 1))
        [ "$tries" -lt 100 ] || { cat "$work/mount.log"; return 1; }
        sleep 0.1
    done
    # shellcheck disable=SC2016
    local script='mkdir "$1" && cd "$1" && mkdir d && seq 1 20000 >d/a && sort -n d/a >d/b && cmp d/a d/b &&
        tar cf t d && mkdir e &&
        tar xf t -C e && cmp d/a e/d/a && gzip e/d/a && rm -r d && ls -R && md5sum e/d/b'
    busybox sh -c "$script" - "$work/view/static" >"$work/static-view" || status=1
    busybox sh -c "$script" - "$plain/static" >"$work/static-plain" || status=1
    cmp "$work/static-view" "$work/static-plain" || status=1
    # A preloaded program sees what the other wrote.
    in_region md5sum /keel/static/e/d/b | cut -d' ' -f1 >"$work/sum"
    [ "$(cat "$work/sum")" = "$(md5sum <"$plain/static/e/d/b" | cut -d' ' -f1)" ] || status=1
    umount "$work/view"
    wait "$mount" || true
    return "$status"
}

in_region mkdir /keel/redis /keel/python
printf '| program | what | result |\n|---|---|---|\n'
if wanted python3 python3; then run_python; fi
for entry in "redis:redis-server, append-only file rewritten, restarted:redis-server redis-cli redis-benchmark" \
    "rocksdb:db_bench, filled, overwritten, compacted, checksums verified:db_bench" \
    "stress:stress-ng, ${#stressors[@]} stressors of files, verifying:stress-ng" \
    "fio:verification, both modes and with write-back, five engines, 512 B to 100 KiB:fio" \
    "static:busybox, static, through the mount:busybox mountpoint"; do
    name=${entry%%:*}
    what=${entry#*:}
    programs=${what##*:}
    # shellcheck disable=SC2086
    if wanted "$name" $programs; then
        status=0
        "run_$name" || status=1
        verdict "$name" "${what%:*}" "$status"
    fi
done
"$keel" mem check "$region" >"$work/check.log" 2>&1 && status=0 || { status=1; cat "$work/check.log"; }
verdict "keel mem check" "the region, after all of it" "$status"
printf 'mem programs: %d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
exit $((failed > 0))
