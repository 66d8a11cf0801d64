use super::*;
use crate::advisor::{Origin as Given, Question, advise};
use crate::results::{BenchmarkRow, Host, Known, Origin, PowerRow, Row, Stopped, tests::file};
use std::path::Path;

fn run(label: &str, boards: usize, us: f64) -> ResultFile {
    let mut file = file();
    file.header.label = label.to_owned();
    let host = file.header.hosts[0].clone();
    let named = |at: usize| Host {
        name: format!("b{at}"),
        ..host.clone()
    };
    file.header.hosts = (1..=boards).map(named).collect();
    let transport = if boards > 1 {
        Transport::Network
    } else {
        Transport::Memory
    };
    let row = |(benchmark, bytes): (Benchmark, u64)| {
        Row::Benchmark(BenchmarkRow {
            benchmark,
            ranks: boards.max(2) as u32,
            transport,
            bytes,
            iterations: 1,
            samples_us: vec![us; 5],
            starts: Vec::new(),
            stopped: Stopped::Fixed,
        })
    };
    let all = Benchmark::ALL
        .into_iter()
        .flat_map(|one| [64, 1_024].map(|bytes| (one, bytes)));
    file.rows = all.map(row).collect();
    file
}

fn of<'a>(thesis: &'a Thesis, label: &str, benchmark: Benchmark) -> &'a Efficiency {
    let mut rows = thesis.efficiency.iter();
    rows.find(|row| row.label == label && row.benchmark == benchmark && row.bytes == 1_024)
        .expect("there")
}

fn figure_of<'a>(thesis: &'a Thesis, name: &str) -> Option<&'a Figure> {
    thesis.figures.iter().find(|figure| figure.name == name)
}

#[test]
fn tables_alone_give_parity_power_and_the_hypothesis_and_the_faulty_row_is_reported() {
    let thesis = Thesis::new(&[], &[]).expect("the tables");
    let names: Vec<&str> = thesis
        .figures
        .iter()
        .map(|figure| figure.name.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "power",
            "needed",
            "hypothesis-per-watt",
            "hypothesis-per-joule",
            "data-centre"
        ]
    );
    let csv = thesis.parity_csv();
    assert!(
        csv.contains("bandwidth,4.9871,18.2385,0.515,3.66,3.11,\n"),
        "{csv}"
    );
    assert!(
        csv.contains("reduce,2.231,,,,,its average is below its own minimum; its average is below idle power\n"),
        "{csv}"
    );
    let power = figure_of(&thesis, "power").expect("drawn");
    assert!(
        !power.csv.contains("\nreduce,") && power.csv.contains("broadcast,4,19.4884\n"),
        "{}",
        power.csv
    );
    let needed = figure_of(&thesis, "needed").expect("drawn");
    assert_eq!(
        needed
            .csv
            .lines()
            .filter(|line| line.starts_with("allreduce,"))
            .count(),
        6
    );
}

#[test]
fn equation_3_4_only_falls_and_performance_per_joule_has_the_hump() {
    let thesis = Thesis::new(&[], &[]).expect("the tables");
    let curve = |name: &str, label: &str| -> Vec<f64> {
        let figure = figure_of(&thesis, name).expect("drawn");
        let lines = figure
            .csv
            .lines()
            .filter(|line| line.starts_with(&format!("{label},")));
        lines
            .map(|line| {
                line.rsplit(',')
                    .next()
                    .expect("a value")
                    .parse()
                    .expect("a number")
            })
            .collect()
    };
    for fraction in FRACTIONS {
        let falls = curve("hypothesis-per-watt", &format!("f = {fraction}"));
        assert_eq!(falls.len(), 6);
        assert!(falls.windows(2).all(|pair| pair[1] < pair[0]), "{falls:?}");
    }
    // f = 0.7: four boards are the best, if only slightly (n* = 3.51).
    let hump = curve("hypothesis-per-joule", "f = 0.7");
    let best = (0..hump.len()).max_by(|&a, &b| hump[a].total_cmp(&hump[b]));
    assert_eq!(best, Some(3), "{hump:?}");
}

#[test]
fn power_is_measured_where_each_host_has_it_and_the_thesis_s_otherwise() {
    let mut files = [run("one", 1, 1.0), run("four", 4, 100.0)];
    let thesis = Thesis::new(&files, &[]).expect("read");
    let row = of(&thesis, "four", Benchmark::Bandwidth);
    assert_eq!((row.boards, row.watts.clone()), (4, Ok(4.0 * 4.9871)));
    assert!(row.watts_from.contains("table 5.6"));
    assert!((row.per_watt().expect("known") - 1e4 / (4.0 * 4.9871)).abs() < 1e-6);
    assert!(
        (of(&thesis, "one", Benchmark::Latency).result - 1e6).abs() < 1e-6,
        "more is better"
    );
    // The faulty row gives no power, and so no efficiency.
    let reduce = of(&thesis, "four", Benchmark::Reduce);
    assert!(
        reduce.per_watt().is_none()
            && reduce
                .watts
                .clone()
                .is_err_and(|why| why.contains("below idle"))
    );
    assert!(figure_of(&thesis, "per-watt-reduce").is_none());
    for at in 1..=4 {
        files[1].rows.push(Row::Power(PowerRow {
            during: "reduce".to_owned(),
            host: format!("b{at}"),
            source: "ina219".to_owned(),
            covers: "a board".to_owned(),
            origin: Origin::Measured,
            seconds: 1.0,
            samples: 10,
            gap_s_max: 0.1,
            average_w: 5.0,
            maximum_w: 5.0,
            minimum_w: 5.0,
            energy_j: 5.0,
            idle_w: Known::Value(2.0),
        }));
    }
    let thesis = Thesis::new(&files, &[]).expect("read");
    assert_eq!(of(&thesis, "four", Benchmark::Reduce).watts, Ok(20.0));
    assert!(
        thesis
            .efficiency_csv()
            .contains("four,reduce,network,4,4,1024,10000,KB/s,20,measured,500,")
    );
    // 100 us at 20 W are 2 mJ.
    let reduce = of(&thesis, "four", Benchmark::Reduce);
    let per_joule = reduce.per_joule().expect("known");
    assert!((per_joule / (10_000.0 / 2e-3) - 1.0).abs() < 1e-9);
    let csv = thesis.efficiency_csv();
    let heading = csv.lines().next().expect("a heading");
    assert!(heading.ends_with(",result_per_watt,result_per_joule,kind"));
    assert!(csv.contains(&format!(",500,{per_joule},boards\n")), "{csv}");
    // One host has no value: nothing is shown as measured.
    files[1].rows.pop();
    let thesis = Thesis::new(&files, &[]).expect("read");
    assert!(of(&thesis, "four", Benchmark::Reduce).watts.is_err());
}

fn power(host: &str, source: &str, average_w: f64) -> Row {
    Row::Power(PowerRow {
        during: "bandwidth".to_owned(),
        host: host.to_owned(),
        source: source.to_owned(),
        covers: "something".to_owned(),
        origin: Origin::Measured,
        seconds: 1.0,
        samples: 10,
        gap_s_max: 0.1,
        average_w,
        maximum_w: average_w,
        minimum_w: average_w,
        energy_j: average_w,
        idle_w: Known::Value(2.0),
    })
}

#[test]
fn power_is_that_of_the_same_boards_by_sensors_that_can_be_told_apart() {
    let watts = |files: &[ResultFile], label: &str, boards: u32| {
        let thesis = Thesis::new(files, &[]).expect("read");
        let rows = thesis.efficiency.iter();
        rows.filter(|row| (row.label.as_str(), row.boards) == (label, boards))
            .find(|row| row.benchmark == Benchmark::Bandwidth)
            .map(|row| (row.watts.clone(), row.watts_from.clone()))
            .expect("there")
    };
    let measured = |watts: f64| (Ok(watts), "measured".to_owned());
    // Two runs with the same label: each has its own boards' power, in any order.
    let mut two = run("yocto", 2, 50.0);
    let mut four = run("yocto", 4, 100.0);
    for at in 1..=2 {
        two.rows.push(power(&format!("b{at}"), "ina219", 3.0));
    }
    for at in 1..=4 {
        four.rows.push(power(&format!("b{at}"), "ina219", 5.0));
    }
    for files in [[two.clone(), four.clone()], [four.clone(), two.clone()]] {
        assert_eq!(watts(&files, "yocto", 2), measured(6.0));
        assert_eq!(watts(&files, "yocto", 4), measured(20.0));
    }
    let thesis = Thesis::new(&[two, four], &[]).expect("read");
    let curves: Vec<&str> = figure_of(&thesis, "per-watt-bandwidth")
        .expect("there")
        .csv
        .lines()
        .filter_map(|line| line.split(',').next())
        .collect();
    assert!(
        !curves.contains(&"yocto"),
        "two runs are two curves: {curves:?}"
    );
    // A meter for all boards counts as a whole.
    let mut metered = run("metered", 4, 100.0);
    metered.rows.push(power("all boards", "meter", 17.5));
    assert_eq!(watts(&[metered], "metered", 4), measured(17.5));
    // Several rails are ambiguous; packages are not, and the platform includes all of them.
    let mut rails = run("rails", 1, 100.0);
    rails.rows.push(power("b1", "ina219 5-0040", 3.0));
    rails.rows.push(power("b1", "ina219 5-0041", 1.0));
    assert_ne!(watts(&[rails], "rails", 1).1, "measured");
    let mut packages = run("packages", 1, 100.0);
    packages.rows.push(power("b1", "rapl package-0", 3.0));
    packages.rows.push(power("b1", "rapl package-1", 4.0));
    assert_eq!(watts(&[packages.clone()], "packages", 1), measured(7.0));
    packages.rows.push(power("b1", "rapl psys", 9.0));
    assert_eq!(watts(&[packages], "packages", 1), measured(9.0));
}

/// A modelled value in place of a measured one.
fn modelled(row: Row) -> Row {
    match row {
        Row::Power(row) => Row::Power(PowerRow {
            origin: Origin::Modelled("a fit".to_owned()),
            ..row
        }),
        Row::Benchmark(_) => row,
    }
}

#[test]
fn a_larger_machine_has_the_power_of_table_5_7_and_curves_of_its_own() {
    let boards = [run("boards", 1, 1.0), run("boards", 2, 50.0)];
    let thesis = Thesis::new(&boards, &[run("nuc", 1, 0.5)]).expect("read");
    let machine = of(&thesis, "nuc", Benchmark::Bandwidth);
    assert_eq!(
        (machine.is_machine, machine.watts.clone()),
        (true, Ok(18.2385))
    );
    // The row of reduce contradicts itself in table 5.6 only.
    assert_eq!(of(&thesis, "nuc", Benchmark::Reduce).watts, Ok(19.2853));
    for row in &thesis.efficiency {
        assert_eq!(row.label == "nuc", row.is_machine);
        let table = if row.is_machine { "5.7" } else { "5.6" };
        let from = format!("the thesis's table {table} for each host");
        assert_eq!(row.watts_from, from, "{row:?}");
    }
    let of_machine = |csv: &str| {
        csv.lines()
            .filter(|line| line.ends_with(",machine"))
            .count()
    };
    assert_eq!(of_machine(&thesis.efficiency_csv()), 16);
    let per_watt = Benchmark::Bandwidth.result(64, 0.5) / 18.2385;
    let by_size = figure_of(&thesis, "per-watt-bandwidth").expect("drawn");
    let point = format!("machine nuc,64,{per_watt}\n");
    assert!(by_size.csv.contains(&point), "{}", by_size.csv);
    let by_boards = figure_of(&thesis, "by-boards-bandwidth").expect("drawn");
    let level = "64 B  machine nuc  memory";
    let level = format!("{level},1,{per_watt}\n{level},2,{per_watt}\n");
    assert!(by_boards.csv.contains(&level), "{}", by_boards.csv);
    // The machine is no number of boards.
    let alone = Thesis::new(&boards[1..], &[run("nuc", 1, 0.5)]).expect("read");
    assert!(figure_of(&alone, "by-boards-bandwidth").is_none());
    // Its own watts come before the table's.
    let mut measured = run("nuc", 1, 0.5);
    measured.rows.push(power("b1", "meter", 16.5));
    let thesis = Thesis::new(&boards, &[measured]).expect("read");
    let machine = of(&thesis, "nuc", Benchmark::Bandwidth);
    assert_eq!(
        (machine.watts.clone(), machine.watts_from.as_str()),
        (Ok(16.5), "measured")
    );
}

#[test]
fn modelled_power_is_taken_where_none_is_measured_and_is_named() {
    let mut modelled_only = run("pi", 2, 50.0);
    for at in 1..=2 {
        let row = modelled(power(&format!("b{at}"), "pi5 pmic", 3.5));
        modelled_only.rows.push(row);
    }
    let watts = |files: &[ResultFile]| {
        let thesis = Thesis::new(files, &[]).expect("read");
        let row = of(&thesis, "pi", Benchmark::Bandwidth);
        (row.watts.clone(), row.watts_from.clone())
    };
    let said = "modelled: a fit".to_owned();
    assert_eq!(watts(&[modelled_only.clone()]), (Ok(7.0), said.clone()));
    // A measured value of one board does not make the sum measured.
    let mut mixed = modelled_only.clone();
    mixed.rows.push(power("b2", "ina219", 4.0));
    assert_eq!(watts(&[mixed]), (Ok(7.5), said));
    let mut measured = run("pi", 2, 50.0);
    measured.rows.retain(|row| matches!(row, Row::Power(_)));
    measured.rows.push(power("all boards", "meter", 9.0));
    assert_eq!(
        watts(&[modelled_only, measured]),
        (Ok(9.0), "measured".to_owned())
    );
}

#[test]
fn power_against_boards_is_drawn_where_two_numbers_of_boards_have_it_measured() {
    let mut files = [1_usize, 2, 4].map(|boards| run("ours", boards, 50.0));
    for file in &mut files {
        for at in 1..=file.header.hosts.len() {
            file.rows.push(power(&format!("b{at}"), "ina219", 4.5));
        }
    }
    let mut nuc = run("nuc", 1, 0.5);
    nuc.rows.push(power("b1", "meter", 16.5));
    let csv = |files: &[ResultFile], machines: &[ResultFile]| {
        let thesis = Thesis::new(files, machines).expect("read");
        figure_of(&thesis, "power-measured").map(|figure| figure.csv.clone())
    };
    let ours = "curve,boards,watts\nbandwidth,1,4.5\nbandwidth,2,9\nbandwidth,4,18\n";
    assert_eq!(csv(&files, &[]).as_deref(), Some(ours));
    let levels = "machine  least,1,16.5\nmachine  least,4,16.5\n\
                  machine  greatest,1,16.5\nmachine  greatest,4,16.5\n";
    assert_eq!(csv(&files, &[nuc]), Some(format!("{ours}{levels}")));
    // A modelled value is no point.
    let last = files[2].rows.pop().expect("a row");
    files[2].rows.push(modelled(last));
    let two = "curve,boards,watts\nbandwidth,1,4.5\nbandwidth,2,9\n";
    assert_eq!(csv(&files, &[]).as_deref(), Some(two));
    assert_eq!(csv(&files[1..], &[]), None);
    // Two labels are two curves.
    files[1].header.label = "others".to_owned();
    let each = "curve,boards,watts\nbandwidth  ours,1,4.5\nbandwidth  others,2,9\n";
    assert_eq!(csv(&files, &[]).as_deref(), Some(each));
}

#[test]
fn memory_of_one_board_is_no_point_of_a_curve_through_the_network() {
    let files = [
        run("one", 1, 1.0),
        run("two", 2, 50.0),
        run("four", 4, 100.0),
    ];
    let thesis = Thesis::new(&files, &[]).expect("read");
    let figure = figure_of(&thesis, "by-boards-roundtrip").expect("drawn");
    let of = |label: &str| {
        figure
            .csv
            .lines()
            .filter(|line| line.starts_with(label))
            .count()
    };
    assert_eq!(
        (of("64 B  network,"), of("64 B  memory,")),
        (2, 1),
        "{}",
        figure.csv
    );
    assert!(figure.svg.contains("two of them at work"));
    // Each size has a mark and a legend for memory.
    assert!(
        figure.svg.contains("r=\"4\" fill=\"#fff\""),
        "{}",
        figure.svg
    );
    assert!(figure_of(&thesis, "per-watt-roundtrip").is_some());
    let one = Thesis::new(&files[..1], &[]).expect("read");
    assert!(figure_of(&one, "by-boards-roundtrip").is_none());
}

#[test]
fn two_labels_on_one_carrier_are_curves_of_their_own_against_boards() {
    let mut files = vec![run("mpich-1", 1, 1.0)];
    for (label, us) in [("mpich", 50.0), ("openmpi", 60.0)] {
        files.extend([2, 4].map(|boards| run(label, boards, us)));
    }
    let thesis = Thesis::new(&files, &[]).expect("read");
    let figure = figure_of(&thesis, "by-boards-roundtrip").expect("drawn");
    let found: Vec<(&str, &str)> = figure
        .csv
        .lines()
        .skip(1)
        .filter_map(|line| {
            line.rsplit_once(',')
                .and_then(|(point, _)| point.split_once(','))
        })
        .collect();
    let mut expected = Vec::new();
    for label in ["mpich", "openmpi"] {
        for bytes in [64, 1_024] {
            let name = format!("{bytes} B  {label}  network");
            expected.extend(["2", "4"].map(|boards| (name.clone(), boards)));
        }
    }
    // Memory has one label, which is not named.
    expected.extend([64, 1_024].map(|bytes| (format!("{bytes} B  memory"), "1")));
    let expected: Vec<(&str, &str)> = expected
        .iter()
        .map(|(name, boards)| (name.as_str(), *boards))
        .collect();
    assert_eq!(found, expected, "{}", figure.csv);
    // The two labels of a size have two colours.
    let color_of = |name: &str| {
        let line = figure.svg.lines().find(|line| line.contains(name));
        let (_, rest) = line?.split_once("stroke=\"")?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let colors = ["64 B, mpich", "64 B, openmpi"].map(|name| color_of(name).expect("drawn"));
    assert_ne!(colors[0], colors[1]);
}

/// The figure about the data centre is the advisor's break-even of the input.
#[test]
fn the_data_centre_s_break_even_is_the_advisor_s() {
    let thesis = Thesis::new(&[], &[]).expect("the tables");
    let figure = figure_of(&thesis, "data-centre").expect("drawn");
    let shown = |curve: &str, speed: f64| -> f64 {
        let start = format!("{curve},{speed},");
        let line = figure
            .csv
            .lines()
            .find_map(|line| line.strip_prefix(&start));
        line.expect("a point").parse().expect("a number")
    };
    let advised = |speed: f64, network_j_per_byte: Option<f64>| {
        let mut question = Question::new("a job");
        let stated = || Given::Stated("for the test".to_owned());
        let mut give = |input: Input, value: f64| {
            question.give(input, value, stated()).expect("in range");
        };
        give(Input::SingleS, 1.0);
        give(Input::InputBytes, 1e5);
        give(Input::UpBytesPerS, 1e6);
        give(Input::DownBytesPerS, 1e6);
        give(Input::MachineSpeed, speed);
        if let Some(joules) = network_j_per_byte {
            give(Input::NetworkJPerByte, joules);
        }
        question.assume();
        // The values themselves are compared, not what their uncertainty makes of them.
        for given in question.given.iter_mut().flatten() {
            given.spread = 0.0;
        }
        let advice = advise(&question).expect("an answer");
        let mut points = advice.break_even.iter();
        let found = points.find(|point| point.input == Input::InputBytes);
        found.map(|point| point.at / 1e3)
    };
    for (curve, speed, network) in [
        ("LTE  core network", 20.0, None),
        ("LTE  core network", 50.0, None),
        ("LTE alone", 20.0, Some(0.0)),
    ] {
        let at = advised(speed, network).expect("a break-even");
        let drawn = shown(curve, speed);
        assert!(
            (at / drawn - 1.0).abs() < 1e-3,
            "{curve} {speed}: {at} {drawn}"
        );
    }
    // So slow a machine needs more energy for any input.
    assert_eq!(shown("LTE  core network", 8.0), 0.0);
    assert_eq!(advised(8.0, None), None);
    // The page names both.
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let page = std::fs::read_to_string(docs.join("cluster-thesis.md")).expect("the page");
    let text = format!(
        "{:.0} kB for each second of computing where it is 20 times as fast, {:.0} kB where it is 50 times as fast",
        shown("LTE  core network", 20.0),
        shown("LTE  core network", 50.0)
    );
    assert!(page.contains(&text), "{text}");
}

/// The result page contains the table as the program generates it, and the current drawings and values.
#[test]
fn the_result_page_agrees_with_the_tables() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let read = |name: &str| {
        std::fs::read_to_string(docs.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let page = read("cluster-thesis.md");
    let thesis = Thesis::new(&[], &[]).expect("the tables");
    for row in &thesis.parity.rows {
        let line = format!(
            "| {} | {:.3} | {:.3} | {:.3} | {:.2} | {:.2} | {:.0} % | {:.0} % |",
            row.benchmark,
            row.board_w,
            row.machine_w,
            row.idle_ratio,
            row.boards,
            row.boards_at(0.85),
            100.0 * row.share_needed(3),
            100.0 * row.share_needed(4)
        );
        assert!(page.contains(&line), "{line}");
    }
    for figure in &thesis.figures {
        assert_eq!(
            read(&format!("cluster-thesis/{}.csv", figure.name)),
            figure.csv,
            "{}",
            figure.name
        );
        assert_eq!(
            read(&format!("cluster-thesis/{}.svg", figure.name)),
            figure.svg,
            "{}",
            figure.name
        );
        assert!(
            page.contains(&format!("cluster-thesis/{}.svg", figure.name)),
            "{}",
            figure.name
        );
    }
    assert_eq!(read("cluster-thesis/parity.csv"), thesis.parity_csv());
    // Each conclusion links what shows it, in its own item of the list.
    for one in CONCLUSIONS {
        let start = format!("- **{}", one.text);
        let item = page.split("\n- ").map(|item| format!("- {item}"));
        let item = item.into_iter().find(|item| item.starts_with(&start));
        let item = item.unwrap_or_else(|| panic!("{}", one.text));
        let link = format!("(cluster-thesis/{}.", one.shown_by);
        assert!(item.contains(&link), "{item}");
        let is_figure = |figure: &Figure| figure.name == one.shown_by;
        assert!(one.shown_by == "parity" || thesis.figures.iter().any(is_figure));
    }
}

/// A number as the page writes it.
fn grouped(value: f64) -> String {
    if value < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The table of the page about what was measured, and the shares below it, are those of the values beside it.
#[test]
fn the_table_of_results_per_watt_is_that_of_the_values() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let read = |name: &str| std::fs::read_to_string(docs.join(name)).expect("it is there");
    let (page, values) = (
        read("cluster-thesis.md"),
        read("cluster-thesis/efficiency.csv"),
    );
    let mut lines = values
        .lines()
        .map(|line| line.split(',').collect::<Vec<_>>());
    let heading = lines.next().expect("a heading");
    let at = |name: &str| {
        let place = heading.iter().position(|column| *column == name);
        place.unwrap_or_else(|| panic!("{name}"))
    };
    let [label, benchmark, bytes, unit, per_watt] =
        ["label", "benchmark", "bytes", "unit", "result_per_watt"].map(at);
    let rows: Vec<Vec<&str>> = lines.collect();
    let value = |run: &str, name: &str, size: &str| -> Option<f64> {
        let mut rows = rows.iter();
        let row = rows.find(|row| [row[label], row[benchmark], row[bytes]] == [run, name, size])?;
        row[per_watt].parse().ok()
    };
    let mut shares = Vec::new();
    for one in Benchmark::ALL {
        let name = one.name();
        // On the line ÷ in memory.
        let share = |size: &str| {
            Some(100.0 * value("mpich-boards", name, size)? / value("mpich-1", name, size)?)
        };
        let sizes = rows
            .iter()
            .filter(|row| row[benchmark] == name && row[label] == "mpich-1");
        for row in sizes {
            shares.extend(share(row[bytes]).map(|share| (row[bytes].to_owned(), share)));
        }
        // The row of reduce contradicts itself, so it has no watts.
        if one == Benchmark::Reduce {
            assert!(!page.contains("| reduce | KB/s |"));
            continue;
        }
        let mut line = format!("| {name} | {} |", self::unit(one));
        for size in ["64", "16384", "262144"] {
            for run in ["mpich-1", "mpich-boards"] {
                let value = value(run, name, size).unwrap_or_else(|| panic!("{run} {name} {size}"));
                line += &format!(" {} |", grouped(value));
            }
        }
        assert!(page.contains(&line), "{line}");
        assert!(
            rows.iter()
                .any(|row| row[benchmark] == name && row[unit] == self::unit(one))
        );
    }
    let range = |sizes: &[&str]| {
        let of_them = shares
            .iter()
            .filter(|(size, _)| sizes.is_empty() || sizes.contains(&size.as_str()));
        let (least, most) = of_them.fold((f64::INFINITY, 0.0_f64), |(least, most), (_, share)| {
            (least.min(*share), most.max(*share))
        });
        format!("{least:.1} to {most:.1} %")
    };
    for text in [
        format!(
            "give {} of the result per watt",
            range(&["64", "16384", "262144"])
        ),
        format!("over all sizes it is {}", range(&[])),
    ] {
        assert!(page.contains(&text), "{text}");
    }
}
