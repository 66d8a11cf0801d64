use super::*;
use crate::jobs::order::Settings;
use crate::jobs::readings::Readings;
use crate::jobs::star::star;
use crate::power::fake::Tree;
use crate::random::Random;
use std::thread;

/// The output of all ranks together.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Said {
    fn lines(&self) -> Vec<Line> {
        let bytes = self.0.lock().expect("no panic").clone();
        let text = String::from_utf8(bytes).expect("text");
        text.lines()
            .map(|line| Line::parse(line).expect("a line").expect("sound"))
            .collect()
    }
}

/// A reader that takes one line and then closes.
struct Deaf(bool);

impl Write for Deaf {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if std::mem::replace(&mut self.0, true) {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn order(settings: Settings, rows: usize) -> Vec<u8> {
    let mut random = Random::new(4);
    let readings = Readings {
        names: vec!["value".to_owned()],
        columns: vec![(0..rows).map(|_| random.normal()).collect()],
        ..Readings::default()
    };
    let mut bytes = Vec::new();
    let order = Order::new(settings, readings).expect("sound");
    order.write(&mut bytes).expect("in memory");
    bytes
}

fn board(host: &str) -> Board {
    Board {
        host: host.to_owned(),
        boot: "4c5d".to_owned(),
        cores: 1,
    }
}

/// Runs all ranks to their end: returns whether each succeeded, and their output.
fn play(size: usize, options: &Options, input: &[u8]) -> (Vec<bool>, Vec<Line>) {
    let said = Said::default();
    let ranks = star(size, Some(Duration::from_secs(30))).expect("sockets");
    let ends = thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|mut rank| {
                let output = said.clone();
                scope.spawn(move || {
                    let board = board(&format!("b{}", rank.rank()));
                    run(&mut rank, &board, options, input, output, || ())
                })
            })
            .collect();
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        ended.collect()
    });
    (ends, said.lines())
}

fn report(lines: &[Line]) -> &Report {
    let mut reports = lines.iter().filter_map(|line| match line {
        Line::Report { report } => Some(report),
        _ => None,
    });
    let report = reports.next().expect("one");
    assert!(reports.next().is_none());
    report
}

const ALL: [Settings; 3] = [
    Settings::Vibration {
        window: 64,
        step: 32,
    },
    Settings::KMeans {
        window: 16,
        step: 8,
        clusters: 3,
        rounds_max: 5,
        seed: 1,
    },
    Settings::MatrixProfile { window: 16 },
];

#[test]
fn every_job_on_one_to_six_ranks_reports_the_answer_of_one() {
    for settings in ALL {
        let input = order(settings, 1_500);
        for size in [1, 2, 3, 6] {
            let options = Options {
                has_table: true,
                ..Options::default()
            };
            let (ends, lines) = play(size, &options, &input);
            assert_eq!(ends, vec![true; size], "{settings:?} on {size}: {lines:?}");
            let report = report(&lines);
            assert_eq!((report.compared, report.ranks), (Sameness::Same, size));
            assert_eq!(
                (report.kernel.as_str(), report.rows),
                (settings.kernel(), 1_500)
            );
            assert_eq!(report.fitted_fraction.is_some(), size > 1);
            assert_eq!(report.moved_bytes > 0, size > 1);
            assert!(report.alone_s > Some(0.0) && report.seconds >= report.computing_s);
            let shared = report.shared_fraction.expect("it was checked");
            assert!((0.0..=1.0).contains(&shared));
            let count = |is: &dyn Fn(&Line) -> bool| lines.iter().filter(|line| is(line)).count();
            assert_eq!(count(&|line| matches!(line, Line::Begin { .. })), size);
            assert_eq!(count(&|line| matches!(line, Line::Done { .. })), size);
            assert_eq!(count(&|line| matches!(line, Line::Energy { .. })), size);
            let windows = report.answer["windows"].as_u64().expect("a number") as usize;
            let rows = count(&|line| matches!(line, Line::Row { .. }));
            let clusters = report.answer["clusters"]
                .as_array()
                .map_or(windows, Vec::len);
            assert_eq!(rows, clusters + 1);
        }
    }
}

#[test]
fn the_answer_is_reported_before_its_check_or_without_one_on_request() {
    let input = order(ALL[0], 1_500);
    let played = |check: Check| {
        let options = Options {
            has_table: true,
            check,
            ..Options::default()
        };
        let (ends, lines) = play(3, &options, &input);
        assert_eq!(ends, [true; 3], "{lines:?}");
        let of_first = lines.into_iter().filter_map(|line| match line {
            Line::Report { report } => Some(format!("{:?}", report.compared)),
            Line::Row { at: 0, .. } => Some("table".to_owned()),
            Line::Whole { rows } => Some(format!("whole, {}", rows > 1)),
            _ => None,
        });
        of_first.collect::<Vec<_>>()
    };
    assert_eq!(played(Check::Always), ["Same", "table"]);
    assert_eq!(played(Check::Never), ["Unchecked", "table"]);
    let after = ["Unchecked", "table", "whole, true", "Same"];
    assert_eq!(played(Check::After), after);
}

/// The minimum that must be transferred: with the input at rank 0, everything except that rank's own share.
#[test]
fn bytes_moved_are_the_input_plus_the_answer() {
    let settings = Settings::Vibration {
        window: 100,
        step: 100,
    };
    let (_, lines) = play(4, &Options::default(), &order(settings, 4_000));
    let moved = report(&lines).moved_bytes;
    // 30 windows of 100 readings are sent, 30 × 12 features are returned; plus the starts and headers of the parts.
    let least = 8 * 30 * (100 + 12);
    assert!((least..least + 1_000).contains(&moved), "{moved} {least}");
}

#[test]
fn an_order_that_is_damaged_ends_all_ranks_with_the_reason() {
    let mut input = order(ALL[0], 500);
    let last = input.len() - 1;
    input[last] ^= 1;
    let (ends, lines) = play(3, &Options::default(), &input);
    assert_eq!(ends, [false; 3]);
    let whys: Vec<(Option<usize>, &str)> = lines
        .iter()
        .filter_map(|line| match line {
            Line::Failed { blames, why, .. } => Some((*blames, why.as_str())),
            _ => None,
        })
        .collect();
    assert_eq!(whys.len(), 3);
    assert!(
        whys.iter().all(|(blames, _)| *blames == Some(0)),
        "{whys:?}"
    );
    assert!(
        whys.iter()
            .any(|(_, why)| why.contains("damaged on the way")),
        "{whys:?}"
    );
}

#[test]
fn energy_is_measured_where_a_board_has_a_sensor_and_unavailable_where_not() {
    let tree = Tree::new();
    tree.write("sys/class/hwmon/hwmon0/name", "ina226\n");
    tree.write("sys/class/hwmon/hwmon0/power1_input", "5000000\n");
    tree.write("sys/class/hwmon/hwmon0/curr1_input", "1000\n");
    tree.write("sys/class/hwmon/hwmon0/in1_input", "5000\n");
    let options = |root: PathBuf, sensor: Option<&str>| Options {
        root,
        sensor: sensor.map(str::to_owned),
        idle: Duration::from_millis(60),
        has_table: false,
        ..Options::default()
    };
    let board = |options: &Options| {
        let (ends, lines) = play(2, options, &order(ALL[2], 3_000));
        assert_eq!(ends, [true; 2]);
        let mut boards = lines.iter().filter_map(|line| match line {
            Line::Energy { board, .. } => Some(board.clone()),
            _ => None,
        });
        boards.next_back().expect("one")
    };
    match board(&options(tree.path(""), None)) {
        Known::Value(board) => {
            assert!(
                (board.average_w - 5.0).abs() < 1e-9 && board.modelled.is_none(),
                "{board:?}"
            );
            assert!((board.energy_j - 5.0 * board.seconds).abs() < 1e-9 && board.seconds > 0.0);
            assert!(
                matches!(board.idle_w, Known::Value(watts) if (watts - 5.0).abs() < 1e-9),
                "{board:?}"
            );
        }
        Known::Unavailable(why) => panic!("{why}"),
    }
    let why = |options: &Options| match board(options) {
        Known::Unavailable(why) => why,
        Known::Value(board) => panic!("{board:?}"),
    };
    assert!(why(&options(tree.path("nowhere"), None)).starts_with("no sensor of power:"));
    assert_eq!(
        why(&options(tree.path(""), Some("rapl"))),
        "no sensor has `rapl` in its name"
    );
}

#[test]
fn a_rank_whose_output_is_closed_is_told_and_ends() {
    let (sender, receiver) = sync_channel(1);
    let options = Options {
        idle: 3 * BEAT,
        ..Options::default()
    };
    let input = order(ALL[0], 500);
    let is_done = run(
        &mut Alone,
        &board("b0"),
        &options,
        input.as_slice(),
        Deaf(false),
        move || {
            sender.send(()).ok();
        },
    );
    assert!(!is_done);
    assert_eq!(receiver.recv(), Ok(()));
}

#[test]
fn options_come_back_from_their_words() {
    for options in [
        Options::default(),
        Options {
            root: PathBuf::from("/a b"),
            pmic: true,
            check: Check::After,
            sensor: Some("rapl psys".to_owned()),
            idle: Duration::from_millis(1_500),
            has_table: true,
            seconds_max: 61,
        },
    ] {
        let words = options.words();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert_eq!(Options::parse(&words), Ok(options));
    }
    for wrong in [
        &["--root"][..],
        &["--seconds-max", "0"],
        &["--idle-ms", "x"],
        &["--check", "later"],
        &["--more"],
        &["job"],
    ] {
        assert!(Options::parse(wrong).is_err(), "{wrong:?}");
    }
}
