use super::*;
use proptest::prelude::*;

#[test]
fn a_wide_interval_of_a_fixed_number_of_samples_is_marked_too() {
    let row = |samples_us: &[f64], stopped| BenchmarkRow {
        benchmark: Benchmark::Latency,
        ranks: 2,
        transport: Transport::Memory,
        bytes: 64,
        iterations: 10,
        samples_us: samples_us.to_vec(),
        starts: Vec::new(),
        stopped,
    };
    let is_wide = |row: &BenchmarkRow| row.is_wide(&row.median_us().expect("a median"));
    let (far, near) = ([1.0, 2.0, 3.0, 4.0, 9.0], [2.0; 5]);
    assert!(is_wide(&row(&far, Stopped::Fixed)));
    assert!(!is_wide(&row(&near, Stopped::Fixed)));
    assert!(is_wide(&row(&near, Stopped::Exhausted)));
    assert!(!is_wide(&row(&far, Stopped::Narrow)));
    // One sample has no interval.
    assert!(!is_wide(&row(&[2.0], Stopped::Fixed)));
}

#[test]
fn a_file_that_was_appended_to_itself_says_where_it_ends() {
    let text = file().text().expect("a text");
    let twice = format!("{text}{text}");
    let error = ResultFile::parse(twice.as_bytes()).expect_err("appended");
    let line = text.lines().count();
    let wanted =
        format!("line {line}: the file ends here, but more follows: something was appended");
    assert_eq!(error.to_string(), wanted);
}

fn known<T>(value: T) -> Known<T> {
    Known::Value(value)
}

fn host(name: &str) -> Host {
    Host {
        name: name.to_owned(),
        ranks: 1,
        pinning: known("rank 0 on core 1".to_owned()),
        cores: known(2),
        processor: known("Atom E3825".to_owned()),
        system: known("Yocto 2.1".to_owned()),
        kernel: known("4.4.0".to_owned()),
        frequency_options: known("CPU_FREQ, X86_ACPI_CPUFREQ".to_owned()),
        forks_since_boot: known(1_234),
        governor: Known::Unavailable("no cpufreq below /sys".to_owned()),
    }
}

pub(crate) fn file() -> ResultFile {
    ResultFile {
        header: Header {
            label: "yocto".to_owned(),
            created_ms: 1_780_272_000_000,
            mode: Mode::Sound,
            mpi: known("MPICH 4.0.2".to_owned()),
            link: Link {
                rate_bits_per_s: known(1_000_000_000),
                burst_bytes: known(32_768),
            },
            hosts: vec![host("b1"), host("b2")],
            power_source: known("ina219 5-0040".to_owned()),
        },
        rows: vec![
            Row::Benchmark(BenchmarkRow {
                benchmark: Benchmark::Allreduce,
                ranks: 2,
                transport: Transport::Network,
                bytes: 1_024,
                iterations: 1,
                samples_us: vec![14.5, 14.25, 15.0, 14.375, 61.0],
                starts: Vec::new(),
                stopped: Stopped::Narrow,
            }),
            Row::Power(PowerRow {
                during: "allreduce".to_owned(),
                host: "b1".to_owned(),
                source: "ina219 5-0040".to_owned(),
                covers: "the board's input".to_owned(),
                origin: Origin::Measured,
                seconds: 12.5,
                samples: 125,
                gap_s_max: 0.125,
                average_w: 4.25,
                maximum_w: 5.5,
                minimum_w: 2.875,
                energy_j: 53.125,
                idle_w: known(2.5),
            }),
            Row::Power(PowerRow {
                during: "allreduce".to_owned(),
                host: "b2".to_owned(),
                source: "rapl package-0".to_owned(),
                covers: "a processor package".to_owned(),
                origin: Origin::Unavailable("permission denied".to_owned()),
                seconds: 12.5,
                samples: 0,
                gap_s_max: 12.5,
                average_w: 0.0,
                maximum_w: 0.0,
                minimum_w: 0.0,
                energy_j: 0.0,
                idle_w: Known::Unavailable("permission denied".to_owned()),
            }),
        ],
    }
}

/// Returns a text of any content with a valid end line.
fn sealed(body: &str) -> String {
    let rows = body.lines().count() - 1;
    let sum = crc32c::crc32c(body.as_bytes());
    format!("{body}{{\"kind\":\"end\",\"rows\":{rows},\"crc32c\":\"{sum:08x}\"}}\n")
}

/// Returns the lines of the file without its end.
fn body() -> String {
    let text = file().text().expect("in range");
    let lines: Vec<&str> = text.lines().collect();
    lines[..lines.len() - 1]
        .iter()
        .map(|line| format!("{line}\n"))
        .collect()
}

#[test]
fn the_golden_file_is_written_and_read_bit_for_bit() {
    let golden = include_bytes!("../../tests/golden/result-v1.jsonl");
    assert_eq!(ResultFile::parse(golden), Ok(file()));
    let marked = [&b"\xef\xbb\xbf"[..], &golden[..]].concat();
    assert_eq!(ResultFile::parse(&marked), Ok(file()));
    assert_eq!(file().text().expect("in range").as_bytes(), golden);
}

#[test]
fn every_cut_and_every_changed_bit_is_found() {
    let text = file().text().expect("in range").into_bytes();
    for length in 0..text.len() {
        assert!(
            ResultFile::parse(&text[..length]).is_err(),
            "{length} bytes"
        );
    }
    for at in 0..text.len() {
        let mut changed = text.clone();
        changed[at] ^= 1;
        // White space in the end line, and the case of its digits, are not significant.
        assert_ne!(ResultFile::parse(&changed).ok(), Some(file()), "byte {at}");
    }
}

#[test]
fn another_version_is_refused_by_its_number() {
    let text = sealed(&body().replacen("\"version\":1", "\"version\":2,\"new\":0", 1));
    assert_eq!(
        ResultFile::parse(text.as_bytes()),
        Err(Error::Version {
            version: 2,
            known: 1
        })
    );
}

#[test]
fn a_value_out_of_range_is_refused_with_its_line() {
    assert_eq!(ResultFile::parse(sealed(&body()).as_bytes()), Ok(file()));
    for (from, to, line) in [
        ("\"label\":\"yocto\"", "\"label\":\"\"", 1),
        ("\"label\":\"yocto\"", "\"label\":\"a\\nb\"", 1),
        ("\"label\":\"yocto\"", "\"label\":\"yocto\",\"lable\":1", 1),
        ("\"ranks\":2", "\"ranks\":1", 2),
        ("\"iterations\":1", "\"iterations\":0", 2),
        ("14.25", "-14.25", 2),
        ("14.25", "1e999", 2),
        ("[14.5,14.25,15.0,14.375,61.0]", "[]", 2),
        ("\"allreduce\",\"ranks\"", "\"allreduced\",\"ranks\"", 2),
        (
            "\"stopped\":\"narrow\"",
            "\"stopped\":\"narrow\",\"why\":1",
            2,
        ),
        ("\"minimum_w\":2.875", "\"minimum_w\":6.0", 3),
        ("\"average_w\":0.0", "\"average_w\":4.0", 4),
    ] {
        assert!(body().contains(from), "{from}");
        let text = sealed(&body().replacen(from, to, 1));
        let error = ResultFile::parse(text.as_bytes()).expect_err(to);
        assert!(
            matches!(error, Error::Malformed { line: at, .. } if at == line),
            "{to}: {error}"
        );
    }
}

#[test]
fn an_unreadable_file_is_not_written() {
    let mut wrong = file();
    if let Row::Benchmark(row) = &mut wrong.rows[0] {
        row.samples_us[0] = f64::NAN;
    }
    assert!(wrong.text().is_err());
    let mut wrong = file();
    wrong.header.hosts.clear();
    assert!(wrong.text().is_err());
}

#[test]
fn results_are_in_the_units_of_the_original() {
    assert_eq!(Benchmark::Bandwidth.result(1_024, 1.0), 1e6);
    assert_eq!(Benchmark::Bibandwidth.result(1_024, 1.0), 2e6);
    assert_eq!(Benchmark::Roundtrip.result(64, 20.0), 50_000.0);
    assert_eq!(Benchmark::Latency.result(64, 8.0), 8.0);
    let two = Benchmark::ALL
        .into_iter()
        .filter(|benchmark| benchmark.is_between_two());
    assert_eq!(two.count(), 4);
}

proptest! {
    #[test]
    fn a_written_file_is_read_back_unchanged(
        samples in proptest::collection::vec(1e-9..1e12, 1..30),
        bytes in any::<u64>(),
        created_ms in any::<i64>(),
        label in "[a-zé\"\\\\ ]{1,20}",
        watts in -1e6..1e6,
    ) {
        let mut written = file();
        written.header.label = label;
        written.header.created_ms = created_ms;
        if let Row::Benchmark(row) = &mut written.rows[0] {
            row.samples_us = samples;
            row.bytes = bytes;
        }
        if let Row::Power(row) = &mut written.rows[1] {
            row.energy_j = watts;
        }
        let text = written.text().expect("in range");
        prop_assert_eq!(ResultFile::parse(text.as_bytes()), Ok(written));
    }
}
