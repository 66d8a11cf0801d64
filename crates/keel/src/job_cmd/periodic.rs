//! `keel cluster job`: runs a job of the configuration once. The advisor places it, based on measurements of the job on
//! this board.
//!
//! By `job.check` the answer is written after its check on one rank, before it, or without one.
//!
//! The job is measured again if there are no figures of earlier runs, or if the amount of history has changed.

use super::figures;
use super::input::ReadingsArgs;
use super::kernel::KernelArgs;
use super::output;
use super::overhead;
use super::parent::end_with;
use super::placed::Placed;
use super::run::{RunArgs, run_with};
use super::suspects;
use super::text_file;
use crate::client::NodeArgs;
use crate::cluster_cmd::boards::Boards;
use crate::error::CliError;
use crate::output::Output;
use clap::Args;
use cluster::advisor::Place;
use cluster::jobs::worker::Check;
use cluster::measure::HostEntry;
use config::{Config, JobConfig, beside};
use serde_json::{Value, json};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// How much the priority of a background job is lowered.
const NICE: libc::c_int = 10;

/// A job of the configuration.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel cluster job bearing\n  \
    keel cluster job bearing -c /etc/keel/keel.toml\n\n\
    The command prints one JSON object: where the job ran and why, and the result, which also replaces the file\n\
    of job.out. Measured figures are kept beside that file, with .figures.json; without them the job is\n\
    measured again.")]
pub(crate) struct JobArgs {
    /// Name of the job in the configuration
    name: String,
    /// Configuration file of the node
    #[arg(short, long, value_name = "FILE", default_value = "keel.toml")]
    config: PathBuf,
    /// Run as a job of the node with this process ID: at low priority, ending with the node, in lines of JSON
    #[arg(long, hide = true, value_name = "PROCESS")]
    background: Option<i32>,
}

pub(crate) fn run(arguments: &JobArgs) -> Result<u8, CliError> {
    if let Some(node) = arguments.background {
        if !end_with(node, libc::SIGTERM) {
            return Ok(crate::error::STATUS_FAILURE);
        }
        go_to_background();
    }
    let begun = Instant::now();
    let mut out = Output::new();
    let result = once(arguments, begun, &mut out);
    if let (Err(error), true) = (&result, arguments.background.is_some()) {
        out.json(&json!({"failed": error.to_string()}))?;
        out.flush()?;
        return Ok(crate::error::STATUS_FAILURE);
    }
    result?;
    out.flush()?;
    Ok(0)
}

/// Lowers the priority. The node may be a real-time process, and its children would be real-time processes, too.
fn go_to_background() {
    // SAFETY: all zeros are a valid `sched_param`, and the one that SCHED_BATCH takes.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: plain system calls about this process; `parameters` is valid for the first. Where one is refused the job
    // runs as it is.
    unsafe {
        libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters);
        libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
    }
}

fn once(arguments: &JobArgs, begun: Instant, out: &mut Output) -> Result<(), CliError> {
    let origin = arguments.config.display().to_string();
    // The node sends its current configuration: the file may have changed since the node read it.
    let config = match arguments.background {
        Some(_) => Config::from_reader(std::io::stdin(), &arguments.config)?,
        None => Config::load(&arguments.config)?,
    };
    let job = named(&config, &arguments.name, &origin)?;
    let readings = || ReadingsArgs {
        input: None,
        column: Vec::new(),
        key: Some(job.key.clone()),
        from: Some(format!("-{}s", job.history_seconds)),
        to: None,
        node: NodeArgs {
            node: Some(config.node.socket.clone()),
            config: None,
        },
    };
    let asked = Instant::now();
    let _alone = alone(job)?;
    // Waiting for another run is no overhead.
    let begun = begun + asked.elapsed();
    let suspects = suspects::of_run(job)?;
    let mut placed = Placed::find(job, &readings(), suspects.clone())?;
    let mut missing = missing_boards(job, &placed, readings())?;
    missing.retain(|(name, _)| suspects.iter().all(|(known, _)| known != name));
    if !missing.is_empty() {
        missing.extend(suspects);
        let first = placed;
        placed = Placed::find(job, &readings(), missing)?;
        placed.measuring_s += first.measuring_s;
        placed.is_measured_anew |= first.is_measured_anew;
    }
    if arguments.background.is_some() {
        out.json(&json!({"placed": placed.json()}))?;
        out.flush()?;
    }
    run_there(
        job,
        placed,
        readings(),
        (arguments.background.is_some(), begun),
        out,
    )
}

/// Runs a job at its place, and writes its result. `begun` is the beginning of all of it, without waiting for other
/// runs.
fn run_there(
    job: &JobConfig,
    placed: Placed,
    readings: ReadingsArgs,
    (is_background, begun): (bool, Instant),
    out: &mut Output,
) -> Result<(), CliError> {
    let table = job
        .table
        .as_deref()
        .map(|table| (table, beside(table, "new")));
    if let Some((_, new)) = &table {
        // Left over from a run that was ended in the middle.
        std::fs::remove_file(new).ok();
    }
    let hosts = write_hosts(job, &placed)?;
    let new = table.as_ref().map(|(_, new)| new.clone());
    let mut words = words(job, hosts, new, readings);
    if placed.hosts.len() < 2 {
        words.link = None;
    }
    let placed_json = placed.json();
    // Missing boards take time until they count as missing, which is no overhead of a run with all boards.
    let has_all_boards = placed.missing.is_empty();
    let mut whole = Value::Null;
    let mut writes = 0;
    let mut write_answer = |shown: &output::Shown<'_>| -> Result<Value, CliError> {
        let result = output::json(shown)?;
        whole = json!({"job": job.name, "placed": placed_json, "result": result});
        text_file::replace(&job.out, &format!("{whole:#}\n"))?;
        writes += 1;
        let has_lost_none = result["lost"].as_array().is_none_or(Vec::is_empty);
        if writes == 1 && has_all_boards && has_lost_none {
            let computed_s = [&result["seconds"], &result["alone_s"]];
            let computed_s = computed_s.map(|part| part.as_f64().unwrap_or(0.0));
            let computed_s = computed_s.iter().sum::<f64>() + placed.measuring_s;
            overhead::keep(job, begun.elapsed().as_secs_f64() - computed_s)?;
        }
        // Later the table is in its place already.
        if let (1, Some((table, new))) = (writes, &table) {
            std::fs::rename(new, table).map_err(|error| CliError::io(table.display(), &error))?;
        }
        if job.check == Check::After && writes == 1 && is_background {
            out.json(&json!({"published": true}))?;
            out.flush()?;
        }
        Ok(result)
    };
    let mut has_suspects = false;
    let mut suspected = |boards: &[String]| {
        has_suspects = true;
        suspects::keep(job, boards)
    };
    let ran = run_with(&words, job.check, &mut suspected, &mut write_answer);
    if let (Err(error), true) = (&ran, writes >= 1 && job.check == Check::After) {
        // The answer is there, and must show that it is not confirmed.
        whole["check_failed"] = json!(error.to_string());
        text_file::replace(&job.out, &format!("{whole:#}\n"))?;
    }
    let result = ran?;
    if words.hosts.is_some() && !has_suspects {
        suspects::forget_tried(job);
    }
    figures::mend(job, placed.kept, &result)?;
    if is_background {
        out.json(&json!({"done": {"seconds": result["seconds"], "ranks": result["ranks"], "lost": result["lost"]}}))
    } else {
        out.json(&whole)
    }
}

/// Returns the job of this name.
fn named<'a>(config: &'a Config, name: &str, origin: &str) -> Result<&'a JobConfig, CliError> {
    let found = config.job.iter().find(|job| job.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = config.job.iter().map(|job| job.name.as_str()).collect();
        let there = if names.is_empty() {
            "there is none".to_owned()
        } else {
            format!("there are: {}", names.join(", "))
        };
        CliError::failure(
            origin,
            format!("has no [[job]] with the name {name}; {there}"),
            "name one of them",
        )
    })
}

/// Returns the boards of the file that cannot be reached or used, and how that is known. They are asked only if the job
/// is to run on several boards. A faulty board must not fail a job that can do without it.
fn missing_boards(
    job: &JobConfig,
    placed: &Placed,
    readings: ReadingsArgs,
) -> Result<Vec<(String, String)>, CliError> {
    if !matches!(placed.place, Place::Boards(2..)) {
        return Ok(Vec::new());
    }
    let Some(boards) = words(job, job.hosts.clone(), None, readings).boards() else {
        return Ok(Vec::new());
    };
    Ok(Boards::find(&boards)?.unusable())
}

/// Returns the run of a job: on the boards of a file, or on this one alone.
fn words(
    job: &JobConfig,
    hosts: Option<PathBuf>,
    table: Option<PathBuf>,
    readings: ReadingsArgs,
) -> RunArgs {
    RunArgs {
        kernel: job.kernel,
        local: hosts.is_none().then_some(job.ranks),
        hosts,
        readings,
        settings: KernelArgs::of_job(job),
        retry: true,
        out: table,
        json: true,
        silence_seconds_max: 10,
        seconds_max: u64::from(job.run_seconds_max),
        idle_seconds: 0,
        pmic: false,
        sensor: None,
        root: PathBuf::from("/"),
        deadline: Some(job.deadline_s()),
        link: job.link.clone(),
        program: None,
        mpirun: None,
        launcher: None,
        address: job.address.clone(),
        interface: job.interface.clone(),
        tcp: false,
        mpi_arg: Vec::new(),
    }
}

/// Locks the job. Two runs of one job write the same files, so a manual run waits for a run of the node, and vice
/// versa. The lock is held until the file is closed.
fn alone(job: &JobConfig) -> Result<File, CliError> {
    create_folder_of(&job.out)?;
    if let Some(table) = &job.table {
        create_folder_of(table)?;
    }
    let path = beside(&job.out, "lock");
    let failed = |error: std::io::Error| CliError::io(path.display(), &error);
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(failed)?;
    loop {
        // SAFETY: a plain system call on a descriptor that is open.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
            return Ok(file);
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(failed(error));
        }
    }
}

fn create_folder_of(path: &Path) -> Result<(), CliError> {
    match path.parent().filter(|folder| *folder != Path::new("")) {
        Some(folder) => {
            std::fs::create_dir_all(folder).map_err(|error| CliError::io(folder.display(), &error))
        }
        None => Ok(()),
    }
}

/// Writes the list of boards, if the job runs on several. Returns its path.
fn write_hosts(job: &JobConfig, placed: &Placed) -> Result<Option<PathBuf>, CliError> {
    let Place::Boards(count @ 2..) = placed.place else {
        return Ok(None);
    };
    let path = beside(&job.out, "hosts");
    text_file::write(
        &path,
        &hosts_text(&placed.hosts[..count as usize], job.ranks),
    )?;
    Ok(Some(path))
}

/// Returns the list of boards. Each has the ranks of this board, by which the job was placed, or more if the file says
/// so.
fn hosts_text(hosts: &[HostEntry], ranks: u32) -> String {
    hosts
        .iter()
        .map(|host| format!("{} slots={}\n", host.name, host.ranks.max(ranks)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_cmd::figures::{kept_name, write_kept};
    use cluster::advisor::{Input, Minimise, Origin, Question, question_text};
    use cluster::results::{Benchmark, BenchmarkRow, ResultFile, Row, Stopped, Transport};

    fn readings(input: Option<PathBuf>, key: Option<String>) -> ReadingsArgs {
        ReadingsArgs {
            input,
            column: Vec::new(),
            key,
            from: None,
            to: None,
            node: NodeArgs {
                node: None,
                config: None,
            },
        }
    }

    #[test]
    fn the_link_file_is_not_read_for_a_job_of_one_board() {
        let folder = std::env::temp_dir().join(format!("keel-job-link-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let input = folder.join("day.csv");
        let rows: String = (0..2_000).map(|row| format!("{}\n", row % 7)).collect();
        std::fs::write(&input, format!("value\n{rows}")).expect("a file");
        let readings = readings(Some(input), None);
        let find = |hosts: &str| {
            let text = "[[job]]\nname = \"a\"\nkernel = \"vibration\"\nkey = \"k\"\nout = \"a.json\"\n\
                        hosts = \"hosts\"\nlink = \"lost.jsonl\"\n";
            std::fs::write(folder.join("hosts"), hosts).expect("a file");
            let config = Config::parse(text, "keel.toml", &folder).expect("valid");
            Placed::find(&config.job[0], &readings, Vec::new())
        };
        let placed = find("b1\n").expect("placed");
        assert_eq!(placed.place, Place::Boards(1));
        let error = find("b1\nb2\n").err().expect("no such file").to_string();
        assert!(error.contains("lost.jsonl"), "{error}");
        std::fs::remove_dir_all(&folder).expect("the folder");
    }

    #[test]
    fn boards_keep_a_deadline_that_one_board_cannot_unless_the_check_comes_first() {
        let folder = std::env::temp_dir().join(format!("keel-job-check-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let input = folder.join("day.csv");
        let rows: String = (0..2_000).map(|row| format!("{}\n", row % 7)).collect();
        std::fs::write(&input, format!("value\n{rows}")).expect("a file");
        std::fs::write(folder.join("hosts"), "b1\nb2\n").expect("a file");
        let readings = readings(Some(input), None);
        let find = |check: &str| {
            let text = format!(
                "[[job]]\nname = \"a\"\nkernel = \"vibration\"\nkey = \"k\"\nout = \"a.json\"\n\
                 hosts = \"hosts\"\ndeadline_seconds = 6.0\n{check}"
            );
            let config = Config::parse(&text, "keel.toml", &folder).expect("valid");
            let job = &config.job[0];
            // Measured before: 10 s on one board, 5 s on two.
            let mut figures = Question::new(kept_name(job));
            for (input, value) in [
                (Input::SingleS, 10.0),
                (Input::ParallelFraction, 0.999),
                (Input::ExchangeTimes, 2.0),
                (Input::ExchangeBytes, 8_000.0),
                (Input::InputBytes, 16_000.0),
                (Input::OutputBytes, 1_000.0),
                // Less than the board of reference needs without load.
                (Input::BoardActiveW, 2.0),
            ] {
                let by = Origin::Measured("for the test".to_owned());
                figures.give(input, value, by).expect("in range");
            }
            write_kept(job, &figures).expect("written");
            Placed::find(job, &readings, Vec::new()).expect("placed")
        };
        for check in ["", "check = \"always\"\n"] {
            let placed = find(check);
            assert!(placed.advice.advised().is_none() && !placed.is_measured_anew);
            // No place is in time, so all lose the same; the fastest ends least late.
            assert_eq!(placed.place, Place::Boards(2), "{check}");
            let why = placed.check_alone.expect("a reason");
            assert!(why.contains("takes 10.000 s of 6 s"), "{why}");
        }
        for check in ["check = \"after\"\n", "check = \"never\"\n"] {
            let placed = find(check);
            assert_eq!(placed.advice.advised(), Some(Place::Boards(2)), "{check}");
            let idle = placed.advice.question.given[Input::BoardIdleW as usize].as_ref();
            let idle = idle.expect("assumed");
            assert!((1.0..1.1).contains(&idle.value), "{idle:?}");
            assert!(matches!(idle.origin, Origin::Assumed(_)), "{idle:?}");
            assert_eq!((placed.place, placed.check_alone), (Place::Boards(2), None));
        }
        std::fs::remove_dir_all(&folder).expect("the folder");
    }

    #[test]
    fn a_data_centre_is_weighed_with_this_board_and_named_only_if_it_is_better() {
        let folder = std::env::temp_dir().join(format!("keel-job-site-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let input = folder.join("day.csv");
        let rows: String = (0..2_000).map(|row| format!("{}\n", row % 7)).collect();
        std::fs::write(&input, format!("value\n{rows}")).expect("a file");
        let readings = readings(Some(input), None);
        let find = |machine_speed: f64| {
            let mut site = Question::new("site");
            for (input, value) in [
                (Input::BoardActiveW, 5.0),
                (Input::BoardIdleW, 2.5),
                (Input::UpBytesPerS, 1e6),
                (Input::DownBytesPerS, 1e6),
                (Input::RoundTripS, 0.05),
                (Input::MachineSpeed, machine_speed),
                (Input::MachineActiveW, 18.0),
                (Input::MachineIdleW, 4.0),
                (Input::Pue, 1.5),
                (Input::RadioJPerByte, 2e-6),
                (Input::NetworkJPerByte, 5e-6),
            ] {
                let by = Origin::Stated("for the test".to_owned());
                site.give(input, value, by).expect("in range");
            }
            let site = question_text(&site).expect("a text");
            std::fs::write(folder.join("site.json"), site).expect("a file");
            let text = "[[job]]\nname = \"a\"\nkernel = \"vibration\"\nkey = \"k\"\nout = \"a.json\"\n\
                        question = \"site.json\"\n";
            let config = Config::parse(text, "keel.toml", &folder).expect("valid");
            let job = &config.job[0];
            // Measured before: 10 s on one board.
            let mut figures = Question::new(kept_name(job));
            for (input, value) in [
                (Input::SingleS, 10.0),
                (Input::ParallelFraction, 0.999),
                (Input::ExchangeTimes, 2.0),
                (Input::ExchangeBytes, 8_000.0),
                (Input::InputBytes, 16_000.0),
                (Input::OutputBytes, 1_000.0),
            ] {
                let by = Origin::Measured("for the test".to_owned());
                figures.give(input, value, by).expect("in range");
            }
            write_kept(job, &figures).expect("written");
            let placed = Placed::find(job, &readings, Vec::new());
            placed.expect("placed").json()
        };
        // Here 25 J. There 210 J at the same speed, and 2 J at a hundred times the speed; the bytes take 0.1 J.
        for (machine_speed, better) in [(1.0, Value::Null), (100.0, json!("the data centre"))] {
            let placed = find(machine_speed);
            assert_eq!(placed["place"], "one board", "{placed}");
            assert_eq!(placed["better_elsewhere"], better, "{placed}");
            let places = [
                &placed["options"][0]["place"],
                &placed["options"][1]["place"],
            ];
            assert_eq!(places, ["one board", "the data centre"], "{placed}");
            assert!(placed["options"][2].is_null(), "{placed}");
        }
        std::fs::remove_dir_all(&folder).expect("the folder");
    }

    /// A job of a new folder, whose figures were measured before: this time on one board.
    fn measured_before(name: &str, more: &str, single_s: f64) -> (PathBuf, Config, ReadingsArgs) {
        let folder = std::env::temp_dir().join(format!("keel-job-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let input = folder.join("day.csv");
        let rows: String = (0..2_000).map(|row| format!("{}\n", row % 7)).collect();
        std::fs::write(&input, format!("value\n{rows}")).expect("a file");
        let text = format!(
            "[[job]]\nname = \"a\"\nkernel = \"vibration\"\nkey = \"k\"\nout = \"a.json\"\ncheck = \"never\"\n{more}"
        );
        let config = Config::parse(&text, "keel.toml", &folder).expect("valid");
        let mut figures = Question::new(kept_name(&config.job[0]));
        for (input, value) in [
            (Input::SingleS, single_s),
            (Input::ParallelFraction, 0.999),
            (Input::ExchangeTimes, 2.0),
            (Input::ExchangeBytes, 8_000.0),
            (Input::InputBytes, 16_000.0),
            (Input::OutputBytes, 1_000.0),
        ] {
            let by = Origin::Measured("for the test".to_owned());
            figures.give(input, value, by).expect("in range");
        }
        write_kept(&config.job[0], &figures).expect("written");
        (folder, config, readings(Some(input), None))
    }

    #[test]
    fn the_overhead_of_earlier_runs_counts_against_the_deadline() {
        let more = "deadline_seconds = 2.0\n";
        let (folder, config, readings) = measured_before("overhead", more, 0.5);
        let job = &config.job[0];
        let find = || {
            let placed = Placed::find(job, &readings, Vec::new());
            placed.expect("placed").json()
        };
        let first = find();
        assert!(first["late_probability"].as_f64() < Some(0.01), "{first}");
        assert!(first["overhead_s"].is_null(), "{first}");
        overhead::keep(job, 1.9).expect("written");
        let second = find();
        assert!(second["late_probability"].as_f64() > Some(0.9), "{second}");
        assert_eq!(second["overhead_s"], 1.9);
        overhead::keep(job, 3.9).expect("written");
        let third = find();
        let why = third["why"].as_str().expect("a reason");
        assert!(
            why.contains("took 2.900 s in earlier runs, of 2 s for all"),
            "{why}"
        );
        std::fs::remove_dir_all(&folder).expect("the folder");
    }

    #[test]
    fn an_option_that_was_not_weighed_has_no_figures_in_the_result() {
        let (folder, config, readings) = measured_before("weighed", "", 0.5);
        let placed = Placed::find(&config.job[0], &readings, Vec::new());
        let placed = placed.expect("placed").json();
        let options = placed["options"].as_array().expect("options");
        let places: Vec<&Value> = options.iter().map(|option| &option["place"]).collect();
        assert_eq!(places, ["one board"], "{placed}");
        assert!(options[0]["time_s"].as_f64() > Some(0.0), "{placed}");
        std::fs::remove_dir_all(&folder).expect("the folder");
    }

    #[test]
    fn the_reason_of_a_place_is_what_the_question_minimises() {
        let more = "question = \"site.json\"\n";
        let (folder, config, readings) = measured_before("minimise", more, 0.5);
        for (minimise, words) in [
            (Minimise::Energy, "least energy of the options"),
            (Minimise::Time, "least time of the options"),
        ] {
            let mut site = Question::new("site");
            site.minimise = minimise;
            let site = question_text(&site).expect("a text");
            std::fs::write(folder.join("site.json"), site).expect("a file");
            let placed = Placed::find(&config.job[0], &readings, Vec::new());
            let placed = placed.expect("placed").json();
            let why = placed["why"].as_str().expect("a reason");
            assert!(why.starts_with(words), "{placed}");
        }
        std::fs::remove_dir_all(&folder).expect("the folder");
    }

    #[test]
    fn a_job_falls_back_to_the_boards_that_are_left_and_names_the_others() {
        let more = "hosts = \"hosts\"\ndeadline_seconds = 6.0\n";
        let (folder, config, readings) = measured_before("missing", more, 10.0);
        std::fs::write(folder.join("hosts"), "b1\nb2\n").expect("a file");
        let find = |missing: Vec<(String, String)>| {
            let placed = Placed::find(&config.job[0], &readings, missing);
            placed.expect("placed").json()
        };
        assert_eq!(find(Vec::new())["place"], "2 boards");
        let missing = (
            "b2".to_owned(),
            "cannot be reached: no route to host".to_owned(),
        );
        let placed = find(vec![missing]);
        assert_eq!(placed["place"], "one board", "{placed}");
        assert_eq!(placed["boards_missing"][0]["board"], "b2", "{placed}");
        let why = placed["why"].as_str().expect("a reason");
        assert!(
            why.contains("; without b2, which cannot be reached: no route"),
            "{why}"
        );
        std::fs::remove_dir_all(&folder).expect("the folder");
    }

    #[test]
    fn a_line_that_says_nothing_does_not_end_a_job() {
        let more = "hosts = \"hosts\"\nlink = \"link.jsonl\"\n";
        let (folder, config, readings) = measured_before("wild", more, 10.0);
        std::fs::write(folder.join("hosts"), "b1\nb2\n").expect("a file");
        let golden = include_bytes!("../../../cluster/tests/golden/result-v1.jsonl");
        let mut file = ResultFile::parse(golden).expect("a result file");
        let row = |bytes: u64, us: f64| {
            Row::Benchmark(BenchmarkRow {
                benchmark: Benchmark::Roundtrip,
                ranks: 2,
                transport: Transport::Network,
                bytes,
                iterations: 10,
                samples_us: vec![us; 3],
                starts: Vec::new(),
                stopped: Stopped::Fixed,
            })
        };
        // No line without a negative slope is near the first two.
        let points = [(4, 400.0), (1_024, 10.0), (16_384, 400.0)];
        file.rows = points.map(|(bytes, us)| row(bytes, us)).into();
        std::fs::write(folder.join("link.jsonl"), file.text().expect("a text")).expect("a file");
        let placed = Placed::find(&config.job[0], &readings, Vec::new());
        let placed = placed.expect("placed").json();
        let why = placed["link_refused"].as_str().expect("a reason");
        assert!(why.contains("no usable line"), "{placed}");
        std::fs::remove_dir_all(&folder).expect("the folder");
    }

    #[test]
    fn a_job_is_launched_through_the_configured_interface_and_address() {
        let text = "[[job]]\nname = \"a\"\nkernel = \"vibration\"\nkey = \"k\"\nout = \"a.json\"\n\
                    hosts = \"hosts\"\nlink = \"link.jsonl\"\ninterface = \"eth1\"\naddress = \"10.0.0.5/24\"\n";
        let config = Config::parse(text, "keel.toml", Path::new("/etc/keel")).expect("valid");
        let readings = readings(None, Some("k".to_owned()));
        let words = words(&config.job[0], Some("hosts".into()), None, readings);
        assert_eq!(
            words.link.as_deref(),
            Some(Path::new("/etc/keel/link.jsonl"))
        );
        let boards = words.boards().expect("boards");
        assert_eq!(boards.interface.as_deref(), Some("eth1"));
        assert_eq!(boards.address.as_deref(), Some("10.0.0.5/24"));
    }
}
