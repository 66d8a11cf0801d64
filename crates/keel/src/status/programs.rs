//! Programs that the node keeps running, and the mounts that contain them: figures, judgement, lines.

use super::text::{grouped, span};
use serde::{Deserialize, Serialize};

/// A task of the configuration.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct TaskFigures {
    pub(crate) name: String,
    pub(crate) command: String,
    /// `stay` or `each-period`.
    pub(crate) start: String,
    /// Null if none is configured.
    pub(crate) period_ms: Option<f64>,
    pub(crate) deadline_ms: Option<f64>,
    pub(crate) cores: Vec<u16>,
    pub(crate) mount: Option<String>,
    /// `waiting_for_mount`, `running`, `between_runs`, `pausing` before the next start, `given_up`, `hanging` or
    /// `ending`.
    pub(crate) state: String,
    pub(crate) process: Option<u32>,
    pub(crate) running_since_ms: Option<u64>,
    /// Starts; unrequested ends and failed periodic runs; starts after such an end.
    pub(crate) starts: u64,
    pub(crate) failed: u64,
    pub(crate) restarts: u64,
    /// Consecutive restarts; the count restarts at zero once the program has run for the longest pause.
    pub(crate) restarts_in_row: u32,
    /// For periodic runs: runs that ended after the deadline, and releases that passed during a run.
    pub(crate) late: u64,
    pub(crate) releases_missed: u64,
    /// `program` or `node`; null if no task is declared for it.
    pub(crate) declared_by: Option<String>,
    /// Why the node could not declare it.
    pub(crate) declare_error: Option<String>,
    /// Whether the cores that it runs on differ from the configured ones.
    pub(crate) cores_refused: bool,
    /// Lines that it has written, and lines left out of the log because there were too many.
    pub(crate) output_lines: u64,
    pub(crate) output_lines_left_out: u64,
    /// Whether it has ended and not run long enough since, or its last run failed.
    pub(crate) failing: bool,
    /// The reason of the latest failure, which is never cleared.
    pub(crate) last_error: Option<String>,
}

/// A mount of the configuration.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct MountFigures {
    pub(crate) name: String,
    pub(crate) server: String,
    pub(crate) directory: String,
    /// Whether the tree is mounted.
    pub(crate) mounted: bool,
    pub(crate) process: Option<u32>,
    /// Starts of `keel stream mount`, and its unrequested ends.
    pub(crate) starts: u64,
    pub(crate) failed: u64,
    /// Whether it should be mounted and is not; and the latest reason, which is never cleared.
    pub(crate) failing: bool,
    pub(crate) last_error: Option<String>,
    #[serde(flatten)]
    pub(crate) traffic: MountTraffic,
}

/// What a mount's process has read and received since its start.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct MountTraffic {
    /// Connections to the server that are up; `None` until the process has said it.
    pub(crate) connections: Option<u64>,
    /// Blocks of 4 KiB that programs read, those of them that needed no network, and reads that failed.
    pub(crate) reads: u64,
    pub(crate) reads_local: u64,
    pub(crate) reads_failed: u64,
    pub(crate) bytes_received: u64,
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
        if let Some(cores) = crate::config::cores_text(&self.cores) {
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
