//! Programs that the node keeps running, and the mounts that contain them: figures, judgement, lines.

use super::text::{grouped, span};
use serde::{Deserialize, Serialize};

/// A task of the configuration.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct TaskFigures {
    /// Its name in the configuration.
    pub name: String,
    /// The command as one text.
    pub command: String,
    /// `stay` or `each-period`.
    pub start: String,
    /// Time between two releases, in ms; null if none is configured.
    pub period_ms: Option<f64>,
    /// Allowed response time, in ms; null if none is configured.
    pub deadline_ms: Option<f64>,
    /// Cores that it may run on; empty: all.
    pub cores: Vec<u16>,
    /// Name of the mount that contains its program; null if none does.
    pub mount: Option<String>,
    /// `waiting_for_mount`, `running`, `between_runs`, `pausing` before the next start, `given_up`, `hanging` or
    /// `ending`.
    pub state: String,
    /// Process ID; null if it does not run.
    pub process: Option<u32>,
    /// How long it has run, in ms; null if it does not run.
    pub running_since_ms: Option<u64>,
    /// Starts.
    pub starts: u64,
    /// Unrequested ends, and periodic runs that failed.
    pub failed: u64,
    /// Starts after such an end.
    pub restarts: u64,
    /// Consecutive restarts; the count restarts at zero once the program has run for the longest pause.
    pub restarts_in_row: u32,
    /// Periodic runs that ended after the deadline.
    pub late: u64,
    /// Releases that passed during a periodic run.
    pub releases_missed: u64,
    /// `program` or `node`; null if no task is declared for it.
    pub declared_by: Option<String>,
    /// Why the node could not declare it.
    pub declare_error: Option<String>,
    /// Whether the cores that it runs on differ from the configured ones.
    pub cores_refused: bool,
    /// Lines that it has written.
    pub output_lines: u64,
    /// Lines left out of the log because there were too many.
    pub output_lines_left_out: u64,
    /// Whether it has ended and not run long enough since, or its last run failed.
    pub failing: bool,
    /// The reason of the latest failure, which is never cleared.
    pub last_error: Option<String>,
}

/// A mount of the configuration.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct MountFigures {
    /// Its name in the configuration.
    pub name: String,
    /// `host:port` of the server.
    pub server: String,
    /// Where the tree is mounted.
    pub directory: String,
    /// Whether the tree is mounted.
    pub mounted: bool,
    /// Process ID of `keel stream mount`; null if it does not run.
    pub process: Option<u32>,
    /// Starts of `keel stream mount`.
    pub starts: u64,
    /// Its unrequested ends.
    pub failed: u64,
    /// Whether it should be mounted and is not.
    pub failing: bool,
    /// The latest reason of that, which is never cleared.
    pub last_error: Option<String>,
    /// What its process has read and received.
    #[serde(flatten)]
    pub traffic: MountTraffic,
}

/// What a mount's process has read and received since its start.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct MountTraffic {
    /// Connections to the server that are up; `None` until the process has said it.
    pub connections: Option<u64>,
    /// Blocks of 4 KiB that programs read.
    pub reads: u64,
    /// Those of them that needed no network.
    pub reads_local: u64,
    /// Reads that failed.
    pub reads_failed: u64,
    /// Bytes received from the server.
    pub bytes_received: u64,
}

const UNKNOWN: &str = "it is not known why";

/// Adds the reasons of tasks and mounts.
pub(super) fn judge(
    tasks: &[TaskFigures],
    mounts: &[MountFigures],
    add: &mut impl FnMut(&str, String),
) {
    for mount in mounts.iter().filter(|mount| mount.failing) {
        let why = mount.last_error.as_deref().unwrap_or(UNKNOWN);
        let (name, directory) = (&mount.name, &mount.directory);
        add(
            "mount_failing",
            format!("mount {name} is not on {directory}: {why}; programs that come from it wait"),
        );
    }
    for mount in mounts.iter().filter(|mount| mount.is_without_server()) {
        let (name, server) = (&mount.name, &mount.server);
        add(
            "mount_disconnected",
            format!(
                "mount {name} has no connection to {server}: programs get only what the cache holds"
            ),
        );
    }
    for task in tasks {
        let name = &task.name;
        let why = task.last_error.as_deref().unwrap_or(UNKNOWN);
        if task.state == "given_up" {
            let text = format!(
                "task {name} is given up after {} restarts: {why}; mend that and send the node SIGHUP",
                task.restarts_in_row
            );
            add("task_failing", text);
        } else if task.failing {
            let text = format!(
                "task {name} failed {} times in {} starts: {why}",
                task.failed, task.starts
            );
            add("task_failing", text);
        }
        if let Some(error) = &task.declare_error {
            let text =
                format!("task {name} is not declared, so its deadlines are not watched: {error}");
            add("task_failing", text);
        }
        if task.cores_refused {
            let text = format!(
                "task {name} does not run on its cores: they must exist and belong to the control group (cpuset) of \
                 the node"
            );
            add("task_failing", text);
        }
    }
}

impl MountFigures {
    /// Notes that the mount's process has ended.
    pub(crate) fn is_gone(&mut self) {
        (self.mounted, self.process) = (false, None);
        self.traffic.connections = None;
    }

    /// Returns whether it is mounted and known to have no connection.
    fn is_without_server(&self) -> bool {
        self.mounted && self.traffic.connections == Some(0)
    }

    /// Returns one line for people.
    pub(super) fn line(&self) -> String {
        let MountTraffic {
            reads,
            reads_local,
            reads_failed,
            ..
        } = self.traffic;
        let state = match (self.mounted, self.failing) {
            (true, _) if self.is_without_server() => "mounted, WITHOUT ITS SERVER",
            (true, _) => "mounted",
            (false, true) => "NOT THERE",
            (false, false) => "on its way",
        };
        let failed_reads = match reads_failed {
            0 => String::new(),
            count => format!("; {} READS FAILED", grouped(count)),
        };
        format!(
            "{}: {} on {}, {state}; {} starts, {} failed; {} blocks read, {} of them without the network{failed_reads}",
            self.name,
            self.server,
            self.directory,
            grouped(self.starts),
            grouped(self.failed),
            grouped(reads),
            grouped(reads_local)
        )
    }
}

impl TaskFigures {
    /// Returns one line for people.
    pub(super) fn line(&self) -> String {
        let mut when = String::new();
        if let Some(period) = self.period_ms {
            when = format!(", every {period} ms");
        }
        if let Some(deadline) = self.deadline_ms {
            when.push_str(&format!(", deadline {deadline} ms"));
        }
        if let Some(cores) = config::cores_text(&self.cores) {
            when.push_str(&format!(", {cores}"));
        }
        let state = match (self.state.as_str(), self.process, self.running_since_ms) {
            ("running", Some(process), Some(since)) => {
                format!("process {process} for {}", span(since))
            }
            ("waiting_for_mount", ..) => {
                format!("waits for mount {}", self.mount.as_deref().unwrap_or("?"))
            }
            ("between_runs", ..) => "between two runs".to_owned(),
            ("pausing", ..) => "HAS ENDED, starts again soon".to_owned(),
            ("given_up", ..) => "GIVEN UP".to_owned(),
            (other, ..) => other.to_owned(),
        };
        let late = match self.start.as_str() {
            "each-period" => format!(
                ", {} late, {} releases missed",
                grouped(self.late),
                grouped(self.releases_missed)
            ),
            _ => String::new(),
        };
        let declared = match self.declared_by.as_deref() {
            None => "not declared".to_owned(),
            Some(by) => format!("declared by the {by}"),
        };
        format!(
            "{}: {state}{when}; {} starts, {} failed{late}; {declared}",
            self.name,
            grouped(self.starts),
            grouped(self.failed)
        )
    }
}

#[cfg(test)]
impl MountFigures {
    /// Returns a tree that is mounted.
    pub(crate) fn streaming(connections: Option<u64>) -> Self {
        Self {
            name: "tools".to_owned(),
            mounted: true,
            traffic: MountTraffic {
                connections,
                ..MountTraffic::default()
            },
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_mount_names_its_faults() {
        let line = MountFigures::streaming(Some(0)).line();
        assert!(line.contains("WITHOUT ITS SERVER"), "{line}");
        let mut mount = MountFigures::streaming(Some(1));
        let line = mount.line();
        assert!(
            !line.contains("WITHOUT") && !line.contains("FAILED"),
            "{line}"
        );
        mount.traffic.reads_failed = 1234;
        let line = mount.line();
        assert!(line.contains("; 1,234 READS FAILED"), "{line}");
    }
}
