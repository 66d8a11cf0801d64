//! The run from the first process to the comparison.

use super::feed::Feed;
use super::figures::{self, number};
use super::placement;
use super::processes::{self, AT, Process, late, wait_for};
use super::program;
use super::promises::{self, Promise, Summary};
use super::sink::Sink;
use crate::directory::StoreDirectory;
use crate::options::Args;
use crate::summary::grouped;
use command::error::{CliError, describe};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use trace::Trace;

/// Folder of the results where no program can be served files in memory.
const RESULTS: &str = "results";

/// Timeout of a part of the run.
const PART_MAX: Duration = Duration::from_secs(60);

/// How long the power cut waits for in-flight readings.
const OPEN_MAX: Duration = Duration::from_secs(2);

/// Longest recovery after the power cut that still counts as "within seconds".
const BACK_MAX: Duration = Duration::from_secs(15);

/// The most late instances, in percent: this machine is not tuned, and all parts run on it at once.
const LATE_PERCENT_MAX: f64 = 10.0;

/// Readings in a window of the job.
const WINDOW: &str = "16";

/// A plain shell program: reads the line of results until it is told to end, and counts the reads, incomplete lines and
/// different lines.
const READER: &str = r#"reads=0 torn=0 fresh=0 last=
while [ ! -e "$2" ]; do
  i=0
  while [ $i -lt 20 ]; do
    if read -r first rest < "$1"; then
      reads=$((reads+1))
      [ "$first" = "${rest##* }" ] || torn=$((torn+1))
      [ "$first" = "$last" ] || { fresh=$((fresh+1)); last=$first; }
    fi
    i=$((i+1))
  done 2> /dev/null
  sleep 0.05
done
echo "counted $reads $torn $fresh"
"#;

/// A run.
pub(super) struct Run<'p> {
    folder: &'p Path,
    region: PathBuf,
    trace: Arc<Trace>,
    end_ms: u64,
    speed: f64,
    begun: Instant,
    /// Why programs cannot be mounted here; `None` if they can.
    no_mount: Option<String>,
    /// Why no program can be served files in memory; `None` if one can.
    no_library: Option<String>,
    program_bytes: u64,
}

/// Counters of the shell program.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    reads: u64,
    torn: u64,
    fresh: u64,
}

/// Time from the power cut until parts were back, in ms.
#[derive(Clone, Copy, Debug, Default)]
struct BackAfter {
    ready: Option<f64>,
    readings: Option<f64>,
    task: Option<f64>,
}

type Say<'s> = &'s mut dyn FnMut(&str) -> Result<(), CliError>;

impl Drop for Run<'_> {
    fn drop(&mut self) {
        std::fs::remove_file(&self.region).ok();
        std::fs::remove_dir_all(mem::stubs_path(&self.region)).ok();
    }
}

impl<'p> Run<'p> {
    pub(super) fn new(
        directory: &'p StoreDirectory,
        arguments: &Args,
        no_library: Option<String>,
    ) -> Result<Self, CliError> {
        let end_ms = arguments.seconds * 1_000;
        let trace = trace::bundled(end_ms)
            .map_err(|error| CliError::failure("fire trace", error, "build keel anew"))?;
        let name = format!("keel-demo-{}.region", std::process::id());
        let shared = Path::new("/dev/shm");
        let folder = directory.folder();
        Ok(Self {
            folder,
            region: if shared.is_dir() {
                shared.join(&name)
            } else {
                std::path::absolute(folder)
                    .unwrap_or_else(|_| folder.to_path_buf())
                    .join(&name)
            },
            trace: Arc::new(trace),
            end_ms,
            speed: arguments.speed,
            begun: Instant::now(),
            no_mount: no_mount(),
            no_library,
            program_bytes: 0,
        })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn status(&self) -> Option<Value> {
        processes::status(&self.file("keel.sock"))
    }

    fn say(&self, say: Say<'_>, text: &str) -> Result<(), CliError> {
        say(&format!(
            "{:6.1} s  {text}",
            self.begun.elapsed().as_secs_f64()
        ))
    }

    /// Publishes this program, which also contains the analysis, and serves it.
    fn serve(&mut self) -> Result<(Process, String), CliError> {
        let bin = self.file("tree/bin");
        let failed = |error: std::io::Error| CliError::io("tree", &error);
        std::fs::create_dir_all(&bin).map_err(failed)?;
        let own = std::env::current_exe().map_err(failed)?;
        let program = bin.join("analysis");
        if std::fs::hard_link(&own, &program).is_err() {
            std::fs::copy(&own, &program).map_err(failed)?;
        }
        self.program_bytes = program.metadata().map_err(failed)?.len();
        processes::demand(
            self.folder,
            &["stream", "pack", "tree", "plant.store", "--level", "1"],
        )?;
        let arguments = [
            "stream",
            "serve",
            "plant.store",
            "--listen",
            "127.0.0.1:0",
            "--insecure",
        ];
        let mut server = Process::start(self.folder, "server", &arguments)?;
        let address = wait_for(PART_MAX, || {
            server.check()?;
            let said = server.said();
            let line = said.lines().find(|line| line.starts_with("serving "));
            Ok(line
                .and_then(|line| line.rsplit(' ').next())
                .map(str::to_owned))
        })?;
        Ok((server, address.ok_or_else(|| late("the server", PART_MAX))?))
    }

    fn configuration(&self, server: &str, upstream: &str, key: &str) -> String {
        let region = self.region.display();
        let (mount, program, whence) = match &self.no_mount {
            None => (
                format!(
                    "[[mount]]\nname = \"plant\"\nserver = \"{server}\"\ndirectory = \"plant\"\ninsecure = true\n\
                     cache = \"plant-cache\"\ncache_mebibytes_max = 512\n"
                ),
                "bin/analysis",
                "mount = \"plant\"\n",
            ),
            Some(_) => (String::new(), "./tree/bin/analysis", ""),
        };
        let (results, region_at) = match &self.no_library {
            None => (AT, format!("region_at = \"{AT}\"\n")),
            Some(_) => (RESULTS, String::new()),
        };
        let (question, result) = (placement::QUESTION, placement::RESULT);
        format!(
            "[node]\nsocket = \"keel.sock\"\n\
             [store]\nimage = \"demo.img\"\ncreate_mebibytes = 64\ncommit_interval_ms = 100\n\
             [time]\nwall_clock = \"trusted\"\n\
             [line]\ntcp_listen = \"\"\nunix_socket = \"line.sock\"\nprecision = \"ms\"\nkey = \"{{measurement}}\"\n\
             [region]\nfile = \"{region}\"\ncreate_mebibytes = 32\ncheckpoint_image = \"region.img\"\n\
             checkpoint_create_mebibytes = 64\ncheckpoint_interval_seconds = 1\n\
             {mount}\
             [[task]]\nname = \"analysis\"\ncommand = [\"{program}\", \"demo-analysis\", \"{results}\"]\n\
             {whence}{region_at}\
             period_ms = {}\ndeadline_ms = {}\nrestart_ms_min = 100\nrestart_ms_max = 1000\nrestarts_max = 0\n\
             [[job]]\nname = \"history\"\nkernel = \"matrix-profile\"\nkey = \"{key}\"\nwindow = {WINDOW}\n\
             period_seconds = 4\nout = \"{result}\"\nquestion = \"{question}\"\n\
             [[upstream]]\nname = \"sink\"\nkind = \"http\"\nurl = \"http://{upstream}/write\"\nbegin = \"oldest\"\n\
             linger_ms = 100\nbackoff_ms_min = 50\nbackoff_ms_max = 500\n",
            program::PERIOD.as_millis(),
            program::DEADLINE.as_millis(),
        )
    }

    fn start_node(&self) -> Result<Process, CliError> {
        let mut node = Process::start(
            self.folder,
            "node",
            &["run", "-c", "keel.toml", "--volatile-device"],
        )?;
        let ready = wait_for(PART_MAX, || {
            node.check()?;
            Ok(self.status())
        })?;
        ready
            .map(|_| node)
            .ok_or_else(|| late("the node", PART_MAX))
    }

    /// Waits until the analysis runs and has declared its deadlines. Returns its process.
    fn wait_for_task(
        &self,
        node: &mut Process,
        limit: Duration,
        but: u64,
    ) -> Result<Option<u64>, CliError> {
        wait_for(limit, || {
            node.check()?;
            let status = self.status().unwrap_or_default();
            let task = &status["tasks"][0];
            let runs = task["state"] == "running" && task["declared_by"] == "program";
            Ok(task["process"]
                .as_u64()
                .filter(|process| runs && *process != but))
        })
    }

    /// Starts the shell program; `None` if it cannot be served.
    fn start_reader(&self) -> Result<Option<Process>, CliError> {
        if self.no_library.is_some() {
            return Ok(None);
        }
        std::fs::remove_file(self.file("reader.stop")).ok();
        let stop = std::path::absolute(self.file("reader.stop"));
        let stop = stop.map_err(|error| CliError::io("reader", &error))?;
        let program = std::env::current_exe().map_err(|error| CliError::io("keel", &error))?;
        let mut command = Command::new(program);
        command
            .args(["mem", "run"])
            .arg(&self.region)
            .args(["--at", AT, "--", "sh", "-c", READER, "sh"]);
        command.arg(format!("{AT}/{}", program::SUMMARY)).arg(stop);
        Process::start_command(self.folder, "reader", &mut command).map(Some)
    }

    /// Returns whether the results are there for a program that starts now.
    fn results_are_there(&self) -> Result<bool, CliError> {
        if self.no_library.is_some() {
            return Ok(false);
        }
        let region = self.region.display().to_string();
        let file = format!("{AT}/{}", program::SUMMARY);
        let read = processes::ask(
            self.folder,
            &["mem", "run", &region, "--at", AT, "--", "cat", &file],
        )?;
        Ok(read.status.success() && !read.stdout.is_empty())
    }

    /// Returns what a read costs a shell, in µs: of the results in the region, and of a file on disk.
    fn read_costs(&self) -> Result<(Option<f64>, Option<f64>), CliError> {
        if self.no_library.is_some() {
            return Ok((None, None));
        }
        processes::write(
            &self.file("line.txt"),
            "1 a line as long as the one in the region, to compare with 1\n",
        )?;
        let file = format!("{AT}/{}", program::SUMMARY);
        Ok((
            figures::shell_read_us(self.folder, Some(&self.region), &file),
            figures::shell_read_us(self.folder, None, "./line.txt"),
        ))
    }

    /// Ends the shell program and adds its counters.
    fn end_reader(&self, reader: Option<Process>, sum: &mut Counted) -> Result<(), CliError> {
        let Some(mut reader) = reader else {
            return Ok(());
        };
        processes::write(&self.file("reader.stop"), "")?;
        let line = wait_for(Duration::from_secs(10), || {
            let said = reader.said();
            let line = said.lines().rfind(|line| line.starts_with("counted "));
            Ok(line.map(str::to_owned))
        })?;
        reader.end();
        std::fs::remove_file(self.file("reader.log")).ok();
        let line = line.unwrap_or_default();
        let mut numbers = line
            .split(' ')
            .skip(1)
            .map(|word| word.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        sum.reads += next();
        sum.torn += next();
        sum.fresh += next();
        Ok(())
    }

    /// Waits for a trace time.
    fn wait_for_trace(
        &self,
        node: &mut Process,
        feed: &Feed,
        time_ms: u64,
    ) -> Result<(), CliError> {
        let limit = Duration::from_secs_f64(self.end_ms as f64 / 1e3 / self.speed) + PART_MAX;
        wait_for(limit, || {
            node.check()?;
            let now_ms = feed.now_ms.load(Ordering::Relaxed);
            Ok((now_ms >= time_ms || feed.is_over()).then_some(()))
        })?
        .ok_or_else(|| late("the trace", limit))
    }

    /// Runs the whole demo.
    pub(super) fn run(mut self, say: Say<'_>) -> Result<Summary, CliError> {
        if let Some(why) = self.no_mount.clone() {
            self.say(
                say,
                &format!(
                    "programs cannot be mounted here: {why}; the analysis starts from its folder"
                ),
            )?;
        }
        if let Some(why) = self.no_library.clone() {
            self.say(say, &format!("files in memory cannot be shown here: {why}"))?;
            let results = self.file(RESULTS);
            std::fs::create_dir_all(&results)
                .map_err(|error| CliError::io(results.display(), &error))?;
        }
        let (mut server, address) = self.serve()?;
        self.say(
            say,
            &format!(
                "a server publishes the analysis, {} bytes",
                grouped(self.program_bytes)
            ),
        )?;
        let sink = Sink::start().map_err(|error| CliError::io("upstream", &error))?;
        let sensors = self.trace.sensors().as_slice();
        // The sensor with the highest rate of readings.
        let key = sensors.iter().min_by_key(|sensor| sensor.period_ms);
        let key = key.map_or("", |sensor| sensor.name.as_str());
        let text = self.configuration(&address, &sink.address.to_string(), key);
        let config = self.file("keel.toml");
        if config.exists() {
            return Err(CliError::failure(
                config.display(),
                "exists already",
                "choose an empty folder for --dir",
            ));
        }
        processes::write(&config, &text)?;
        processes::write(&self.file(placement::QUESTION), &placement::question())?;
        let mut node = self.start_node()?;
        self.say(
            say,
            "the node serves: store, region, mount, task, job, upstream",
        )?;
        let first = self.wait_for_task(&mut node, PART_MAX, 0)?;
        let Some(first) = first else {
            let status = self.status().unwrap_or_default();
            let why = status["tasks"][0]["last_error"]
                .as_str()
                .unwrap_or("it is not known why");
            let remedy = "run it again with --dir, and look at the logs there";
            return Err(CliError::failure("analysis", why, remedy));
        };
        let from = match &self.no_mount {
            None => "from its mount",
            Some(_) => "from a folder",
        };
        self.say(say, &format!("the analysis runs {from} as process {first}"))?;
        // Not before: a start from the network takes as long as it takes, and the parts of the trace would be over.
        let line = self.file("line.sock");
        let mut feed = Feed::start(Arc::clone(&self.trace), &line, self.end_ms, self.speed)
            .map_err(|error| CliError::io("sensors", &error))?;
        let mut counted = Counted::default();
        let reader = self.start_reader()?;
        self.wait_for_trace(&mut node, &feed, self.end_ms / 4)?;

        // One program dies; its files stay, and it is restarted.
        // SAFETY: a plain system call; the process belongs to the node that this program has started.
        unsafe { libc::kill(first as libc::pid_t, libc::SIGKILL) };
        let survives = self.results_are_there()?;
        let second = self.wait_for_task(&mut node, PART_MAX, first)?;
        self.say(say, "the analysis was killed, and runs again")?;
        self.wait_for_trace(&mut node, &feed, self.end_ms / 2)?;

        // The power fails, and the network with it.
        let before = self.status().unwrap_or_default();
        self.end_reader(reader, &mut counted)?;
        let mount = before["mounts"][0]["process"].as_u64();
        // Cut while the node holds readings that are not yet on flash; between two commits there may be none.
        let open = wait_for(OPEN_MAX, || {
            let acknowledged = feed.acknowledged.load(Ordering::Relaxed);
            let open = feed
                .sent
                .load(Ordering::Relaxed)
                .saturating_sub(acknowledged);
            Ok((open > 0).then_some(open))
        })?
        .unwrap_or(0);
        node.kill();
        server.kill();
        for process in [mount, second].into_iter().flatten() {
            // SAFETY: as above. They end by themselves when their node is killed; a power cut does not wait for that.
            unsafe { libc::kill(process as libc::pid_t, libc::SIGTERM) };
        }
        std::fs::remove_file(&self.region).ok();
        let acknowledged = feed.acknowledged.load(Ordering::Relaxed);
        let cut = Instant::now();
        self.say(
            say,
            &format!("POWER CUT with {open} readings on their way; the network is gone, too"),
        )?;
        let (mut node, back) = self.come_back(&feed, cut, acknowledged)?;
        let text = |after: Option<f64>| {
            after.map_or("never".to_owned(), |ms| format!("{:.1} s", ms / 1e3))
        };
        self.say(
            say,
            &format!(
                "back: the node after {}, readings after {}, the analysis after {}",
                text(back.ready),
                text(back.readings),
                text(back.task)
            ),
        )?;
        let reader = self.start_reader()?;
        self.wait_for_trace(&mut node, &feed, self.end_ms)?;
        let after = self.wait_for_rest(&mut node, &feed)?;
        let stream = match &self.no_mount {
            None => processes::demand(self.folder, &["stream", "status", "plant", "--json"])
                .ok()
                .and_then(|text| serde_json::from_str::<Value>(&text).ok()),
            Some(_) => None,
        };
        let costs = self.read_costs()?;
        self.end_reader(reader, &mut counted)?;
        feed.end();
        let ended_well = node.end();
        self.say(
            say,
            "the node has ended; its store is compared with what the sensors know",
        )?;
        let record = feed.record.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &record.error {
            return Err(CliError::failure("sensors", error, ""));
        }
        let found = figures::compare(self.folder, "demo.img", self.trace.sensors(), &record)?;
        let acknowledged = feed.acknowledged.load(Ordering::Relaxed);
        let mut promises = vec![
            Promise {
                text: promises::DURABLE,
                is_kept: Some(
                    found.missing == 0 && found.unexpected == 0 && acknowledged > 0 && ended_well,
                ),
                figure: format!(
                    "{} readings acknowledged, {} missing, {} altered or never sent; {} on their way at the power cut, \
                     {} stored twice, {} refused",
                    grouped(acknowledged),
                    found.missing,
                    found.unexpected,
                    open,
                    found.twice,
                    record.refused
                ),
                values: json!({
                    "acknowledged": acknowledged, "stored": found.stored, "missing": found.missing,
                    "unexpected": found.unexpected, "on_their_way_at_the_cut": open, "stored_twice": found.twice,
                    "refused": record.refused,
                }),
            },
            back_promise(back, &after),
            bounded_promise(&before, &after),
            deadline_promise(&before, &after),
            controlled_promise(&after),
        ];
        promises.push(self.shared_promise(counted, survives, &after, costs));
        promises.push(self.streamed_promise(&before, stream.as_ref(), back));
        let result = std::fs::read_to_string(self.file(placement::RESULT)).unwrap_or_default();
        let result: Value = serde_json::from_str(&result).unwrap_or_default();
        promises.push(placement::placed_promise(&before, &after, &result));
        promises.push(forwarded_promise(&after, &sink));
        Ok(Summary {
            promises,
            seconds: self.begun.elapsed().as_secs_f64(),
            trace_seconds: self.end_ms as f64 / 1e3,
            speed: self.speed,
            kept_in: None,
        })
    }

    /// Restarts the node and measures when all parts are back.
    fn come_back(
        &self,
        feed: &Feed,
        cut: Instant,
        acknowledged: u64,
    ) -> Result<(Process, BackAfter), CliError> {
        let ms = || cut.elapsed().as_secs_f64() * 1e3;
        let mut node = self.start_node()?;
        let mut back = BackAfter {
            ready: Some(ms()),
            ..BackAfter::default()
        };
        wait_for(PART_MAX, || {
            node.check()?;
            // Behind the end of the trace no readings come.
            let is_over = feed.is_over();
            if back.readings.is_none() && feed.acknowledged.load(Ordering::Relaxed) > acknowledged {
                back.readings = Some(ms());
            }
            let status = self.status().unwrap_or_default();
            let is_task_back = figures::instances(&status).0 > 0
                && status["tasks"][0]["state"] == "running"
                && status["tasks"][0]["declared_by"] == "program";
            if back.task.is_none() && is_task_back {
                back.task = Some(ms());
            }
            let is_fed = back.readings.is_some() || is_over;
            Ok((is_fed && back.task.is_some()).then_some(()))
        })?;
        Ok((node, back))
    }

    /// Waits until all readings are upstream and the job has run. Returns the status at that time.
    fn wait_for_rest(&self, node: &mut Process, feed: &Feed) -> Result<Value, CliError> {
        let limit = PART_MAX / 2;
        let found = wait_for(limit, || {
            node.check()?;
            let status = self.status().unwrap_or_default();
            let job = &status["jobs"][0];
            let has_run =
                number(job, &["runs"]) > number(job, &["failed"]) && job["running"] == false;
            let is_done = feed.is_over() && has_run && number(&status["upstream"][0], &["in_flight"]) == 0
                // The analysis puts results continuously, so some backlog always remains.
                && number(&status["upstream"][0], &["backlog_readings"]) < 100;
            Ok(is_done.then_some(status))
        })?;
        Ok(found.or_else(|| self.status()).unwrap_or_default())
    }

    fn shared_promise(
        &self,
        counted: Counted,
        survives: bool,
        after: &Value,
        costs: (Option<f64>, Option<f64>),
    ) -> Promise {
        let text = promises::SHARED;
        if let Some(why) = &self.no_library {
            return Promise {
                text,
                is_kept: None,
                figure: format!("programs cannot be served here: {why}"),
                values: json!({"unavailable": why}),
            };
        }
        let files = number(after, &["region", "restored_files"]);
        let us = |cost: Option<f64>| cost.map_or("unknown".to_owned(), |us| format!("{us:.1} µs"));
        Promise {
            text,
            is_kept: Some(
                counted.reads > 0
                    && counted.torn == 0
                    && counted.fresh > 1
                    && survives
                    && files > 0,
            ),
            figure: format!(
                "a shell read results {} times, {} different ones, {} torn; a read costs it {}, of a file on disk {}; \
                 they were there after the analysis was killed, and {files} files after the power cut",
                grouped(counted.reads),
                grouped(counted.fresh),
                counted.torn,
                us(costs.0),
                us(costs.1)
            ),
            values: json!({
                "reads": counted.reads, "different": counted.fresh, "torn": counted.torn, "read_us": costs.0,
                "disk_read_us": costs.1, "after_death": survives, "restored_files": files,
            }),
        }
    }

    fn streamed_promise(&self, before: &Value, stream: Option<&Value>, back: BackAfter) -> Promise {
        let text = promises::STREAMED;
        if let Some(why) = &self.no_mount {
            return Promise {
                text,
                is_kept: None,
                figure: format!("mounts are not permitted here: {why}"),
                values: json!({"unavailable": why}),
            };
        }
        let stream = stream.cloned().unwrap_or_default();
        let of = |name: &str| number(&stream, &[name]);
        let blocks = self.program_bytes.div_ceil(4096);
        let starts = number(&before["tasks"][0], &["starts"]);
        let is_offline = of("connects") == 0 && back.task.is_some();
        let had = of("cache_blocks");
        Promise {
            text,
            is_kept: Some(
                is_offline && starts > 0 && of("rejected_all") == 0 && had > 0 && had < blocks,
            ),
            figure: format!(
                "{} of {} blocks of the program came over the network, {} were rejected; without network it read {} \
                 blocks from the cache and ran, with {} connections",
                grouped(had),
                grouped(blocks),
                of("rejected_all"),
                grouped(of("reads_cached") + of("fed")),
                of("connects")
            ),
            values: json!({
                "program_blocks": blocks, "cache_blocks": had, "rejected": of("rejected_all"),
                "reads": of("reads"), "reads_cached": of("reads_cached"), "fed": of("fed"), "connects": of("connects"),
            }),
        }
    }
}

fn back_promise(back: BackAfter, after: &Value) -> Promise {
    let limit = BACK_MAX.as_secs_f64() * 1e3;
    let all = [back.ready, back.readings, back.task];
    let generation = number(after, &["region", "restored_generation"]);
    let last = all
        .iter()
        .try_fold(0.0_f64, |most, one| one.map(|one| most.max(one)));
    let text = |ms: Option<f64>| ms.map_or("never".to_owned(), |ms| format!("{ms:.0} ms"));
    Promise {
        text: promises::BACK,
        is_kept: Some(last.is_some_and(|last| last <= limit) && generation > 0),
        figure: format!(
            "node {}, readings {}, analysis {}; the region from its checkpoint of generation {generation}",
            text(back.ready),
            text(back.readings),
            text(back.task)
        ),
        values: json!({
            "ready_ms": back.ready, "readings_ms": back.readings, "task_ms": back.task,
            "restored_generation": generation,
        }),
    }
}

fn bounded_promise(before: &Value, after: &Value) -> Promise {
    let of = |status: &Value, name: &str| number(status, &["flash", name]);
    let lives =
        [before, after].map(|status| (of(status, "operations"), of(status, "operations_bound")));
    let operations: u64 = lives.iter().map(|life| life.0).sum();
    let bound: u64 = lives.iter().map(|life| life.1).sum();
    Promise {
        text: promises::BOUNDED,
        is_kept: Some(operations > 0 && lives.iter().all(|life| life.0 <= life.1)),
        figure: format!(
            "{} writes and flushes of the device, {} allowed for the calls that were made",
            grouped(operations),
            grouped(bound)
        ),
        values: json!({"operations": operations, "operations_bound": bound}),
    }
}

fn deadline_promise(before: &Value, after: &Value) -> Promise {
    let (first, second) = (figures::instances(before), figures::instances(after));
    let (instances, late) = (first.0 + second.0, first.1 + second.1);
    let percent = if instances == 0 {
        100.0
    } else {
        late as f64 * 100.0 / instances as f64
    };
    Promise {
        text: promises::DEADLINES,
        is_kept: Some(percent <= LATE_PERCENT_MAX),
        figure: format!(
            "{} of {} instances of the analysis were late, {percent:.1} % (at most {LATE_PERCENT_MAX} % here)",
            grouped(late),
            grouped(instances)
        ),
        values: json!({"instances": instances, "late": late}),
    }
}

/// The half of the deadlines' promise that is never shown: a model takes minutes on an idle machine.
fn controlled_promise(after: &Value) -> Promise {
    let mode = after["qos"]["mode"].as_str().unwrap_or("open");
    Promise {
        text: promises::CONTROLLED,
        is_kept: None,
        figure: format!(
            "controller {mode}: its model is made on the board, by `keel qos identify`"
        ),
        values: json!({"mode": mode}),
    }
}

fn forwarded_promise(after: &Value, sink: &Sink) -> Promise {
    let upstream = &after["upstream"][0];
    let of = |name: &str| number(upstream, &[name]);
    let lines = sink.arrived.lines.load(Ordering::Relaxed);
    let arrived = sink.arrived.distinct.lock();
    let arrived = arrived.unwrap_or_else(PoisonError::into_inner);
    let of_task = format!(",key={} ", program::KEY);
    let derived = arrived.iter().filter(|line| line.contains(&of_task));
    let (distinct, derived) = (arrived.len() as u64, derived.count() as u64);
    let lost = of("forward_lost") + of("missing");
    Promise {
        text: promises::FORWARDED,
        // Lines acknowledged according to the cursor have arrived.
        is_kept: Some(
            lines > 0
                && derived > 0
                && lost == 0
                && lines >= of("acknowledged")
                && of("refused_total") == 0,
        ),
        figure: format!(
            "{} lines arrived, {} of them different, {} of these results of the analysis; {} acknowledged, {lost} \
             lost, {} refused",
            grouped(lines),
            grouped(distinct),
            grouped(derived),
            grouped(of("acknowledged")),
            of("refused_total")
        ),
        values: json!({
            "lines": lines, "different": distinct, "results": derived, "acknowledged": of("acknowledged"), "lost": lost,
            "backlog": of("backlog_readings"),
        }),
    }
}

/// Returns why programs cannot be mounted here; `None` if they can.
fn no_mount() -> Option<String> {
    let opened = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse");
    if let Err(error) = opened {
        return Some(format!("/dev/fuse: {}", describe(&error)));
    }
    let has_helper = ["/usr/bin/fusermount3", "/bin/fusermount3"]
        .iter()
        .any(|path| Path::new(path).exists());
    if base::mount::effective_ids().0 != 0 && !has_helper {
        return Some("users other than root need the package fuse3".to_owned());
    }
    None
}
