//! Large programs, in the region and in a plain directory: servers, databases, testers of file systems. This runs few
//! and small cases; `scripts/mem-programs.sh` has the long list.

use crate::support::{AT, Both, is_installed, text_of};

const CAPACITY_BYTES: u64 = 512 << 20;

fn compare(program: &str, script: &str) {
    if is_installed(program) {
        let both = Both::new(CAPACITY_BYTES);
        both.compare("sh", &format!("cd \"$HERE\" || exit 1\n{script}\n"));
    }
}

#[test]
fn redis_reads_back_its_append_file() {
    compare(
        "redis-server",
        r#"
socket=$(mktemp -u -t keelmem-redis-XXXXXX)
start() {
    redis-server --port 0 --unixsocket "$socket" --appendonly yes --save '' --dir . > log 2>&1 & server=$!
    until redis-cli -s "$socket" ping > /dev/null 2>&1; do sleep 0.05; done
}
stop() { redis-cli -s "$socket" shutdown nosave 2> /dev/null; wait $server; }
start; for i in $(seq 300); do echo "set key$i value$i"; done | redis-cli -s "$socket" | sort | uniq -c
redis-cli -s "$socket" bgrewriteaof
until redis-cli -s "$socket" info persistence | grep -q 'aof_rewrites:1'; do sleep 0.05; done
redis-cli -s "$socket" append key7 more; { kill -9 $server; wait $server; } 2> /dev/null
start; redis-cli -s "$socket" dbsize; redis-cli -s "$socket" get key7; stop; find . -name '*.manifest'
"#,
    );
}

#[test]
fn rocksdb_works_in_a_region_as_in_a_directory() {
    compare(
        "db_bench",
        r#"
db_bench --benchmarks=fillrandom,readrandom,overwrite,compact,readseq --num=5000 --db="$HERE/r" 2>&1 |
    grep -E 'micros|rror|ailed' | sed 's/ *:.*//'
db_bench --benchmarks=fillseq,readrandom --num=5000 --mmap_read=1 --mmap_write=1 --db="$HERE/m" 2>&1 |
    grep -E 'micros|rror|ailed' | sed 's/ *:.*//'
"#,
    );
}

#[test]
fn fio_verifies_its_files_in_a_region() {
    compare(
        "fio",
        r#"
for engine in psync pvsync sync mmap; do
    fio --name=v --directory="$HERE" --rw=randrw --bsrange=512-64k --bs_unaligned --size=6m --ioengine=$engine \
        --verify=crc32c --numjobs=2 --thread --randseed=7 --verify_fatal=1 2>&1 | grep -oE 'err= *[0-9]+|verify.*'
done
fio --name=j --directory="$HERE" --rw=randwrite --bs=4k --size=4m --ioengine=psync --verify=md5 --numjobs=2 2>&1 |
    grep -oE 'err= *[0-9]+|verify.*'
"#,
    );
}

/// Some of the tests of stress-ng.
const STRESSORS: &[&str] = &["rename", "fallocate", "lockofd", "mmap", "dirdeep"];

#[test]
fn stress_ng_verifies_its_files_in_a_region() {
    if !is_installed("stress-ng") {
        return;
    }
    let both = Both::new(CAPACITY_BYTES);
    for stressor in STRESSORS {
        let output = both
            .served("stress-ng")
            .arg(format!("--{stressor}"))
            .arg("1")
            .arg(format!("--{stressor}-ops"))
            .args(["100", "-t", "20", "--verify", "--temp-path", AT])
            .output()
            .expect("stress-ng runs");
        let text = text_of(&output, AT);
        assert!(
            output.status.success() && !text.contains("fail:"),
            "{stressor}: {text}"
        );
    }
}

/// Some of Python's own tests, by module.
const TESTS: &[&str] = &["test_fileio", "test_shutil"];

#[test]
fn python_passes_its_own_tests_in_a_region() {
    if !is_installed("python3") {
        return;
    }
    let has_tests = std::process::Command::new("python3")
        .args(["-c", "import test.test_fileio"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !has_tests {
        println!("skipped: python3 comes without its tests");
        return;
    }
    let both = Both::new(CAPACITY_BYTES);
    for test in TESTS {
        let output = both
            .served("python3")
            .args(["-m", "test", "--tempdir", AT, test])
            .env("TMPDIR", AT)
            .current_dir("/")
            .output()
            .expect("python3 runs");
        let text = text_of(&output, AT);
        assert!(output.status.success(), "{test}: {text}");
    }
}
