//! Requests of clients: declaring a task, reporting what a task did, showing or changing the quality of service.

use super::state::Wishes;
use super::tasks::{Declared, TaskId, is_thread_of};
use crate::answer::{Answer, failure, framed};
use crate::state::Node;
use base::error::Code;
use control::controller::{self, SetPoints};
use control::regulator::Excitation;
use libkeel::protocol::{
    Failure, Kind, Mode, Qos, Task, TaskDeclared, TaskKind, TaskNoted, TaskPeriod,
};
use serde::Deserialize;

/// The peer of a connection, and what it has declared there.
#[derive(Debug, Default)]
pub(crate) struct Guest {
    /// Whether it may also stop the node.
    pub(crate) may_operate: bool,
    /// Its process, as reported by the kernel.
    pub(crate) process: Option<u32>,
    pub(crate) tasks: Vec<TaskId>,
}

/// Declares a task for as long as the connection lasts.
pub(crate) fn declare(node: &Node, guest: &mut Guest, task: &Task) -> Answer {
    if let Some(id) = guest.tasks.first() {
        let wrong = format!("this connection carries task {id} already");
        let remedy = "declare each task on a connection of its own";
        return Err(failure(Code::Exists, &task.name, wrong, remedy));
    }
    task.check().map_err(|wrong| {
        failure(
            Code::Invalid,
            &task.name,
            wrong,
            "see NODE.md for the ranges",
        )
    })?;
    let id = node.qos.declare(Declared {
        name: task.name.clone(),
        period_ns: task.period_ns,
        deadline_ns: task.deadline_ns,
        is_firm: task.kind == TaskKind::Firm,
        weight: task.weight,
        process: guest.process.unwrap_or(task.process),
        thread: own_thread(guest.process, task),
    })?;
    guest.tasks.push(id);
    let sampling_period_ms = node.config.borrow().qos.sampling_period_ms;
    framed(
        Kind::TaskDeclared,
        &TaskDeclared {
            id,
            sampling_period_ms,
        },
    )
}

/// Returns the thread, if it belongs to the peer's process: a client must not slow down threads of other processes. A
/// process in another namespace has different numbers, so its thread is unknown.
fn own_thread(process: Option<u32>, task: &Task) -> Option<u32> {
    let process = process.filter(|process| *process == task.process)?;
    is_thread_of(task.thread, process).then_some(task.thread)
}

/// Records what a task of this connection did.
pub(crate) fn note(node: &Node, guest: &Guest, period: &TaskPeriod) -> Answer {
    let id = period.id;
    if !guest.tasks.contains(&id) {
        return Err(failure(
            Code::NotFound,
            format!("task {id}"),
            "was not declared on this connection",
            "declare it here",
        ));
    }
    let figures = period.figures().map_err(|wrong| {
        node.qos.refuse_report("numbers");
        failure(
            Code::Invalid,
            format!("task {id}"),
            wrong,
            "see NODE.md for what a period may say",
        )
    })?;
    let sampling_period_ms = node.qos.report(id, &figures)?;
    framed(Kind::TaskNoted, &TaskNoted { sampling_period_ms })
}

/// Parameters of an identification.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Identify {
    periods: u32,
    profile: u32,
    speed: f64,
    speed_amplitude: f64,
    admitted: f64,
    admitted_amplitude: f64,
}

/// Applies the requested changes, then shows the state.
pub(crate) fn regulate(node: &Node, guest: &Guest, asked: Qos) -> Answer {
    let Qos {
        mode,
        tardiness,
        data_ratio,
        identify,
        stop_identify,
    } = asked;
    let mut wishes = Wishes {
        stop_identification: stop_identify,
        ..Wishes::default()
    };
    if let Some(mode) = mode {
        wishes.mode = Some(driven(mode));
    }
    if tardiness.is_some() || data_ratio.is_some() {
        let now = node.qos.set_points().ok_or_else(no_gains)?;
        wishes.set_points = Some(SetPoints {
            tardiness: tardiness.unwrap_or(now.tardiness),
            data_ratio: data_ratio.unwrap_or(now.data_ratio),
        });
    }
    if let Some(object) = identify {
        let asked: Identify = serde_json::from_value(object.into()).map_err(|error| {
            failure(
                Code::Invalid,
                "identification",
                error,
                "see NODE.md for its fields",
            )
        })?;
        wishes.identify = Some(Excitation {
            profiled: asked.profile,
            driven: asked.periods,
            center: [asked.speed, asked.admitted],
            amplitude: [asked.speed_amplitude, asked.admitted_amplitude],
        });
    }
    if wishes != Wishes::default() {
        node.qos.wish(wishes, guest.process)?;
    }
    framed(Kind::QosState, &node.qos.state(guest.process))
}

/// Returns the mode in the loop's terms.
fn driven(mode: Mode) -> controller::Mode {
    match mode {
        Mode::Open => controller::Mode::Open,
        Mode::DvfsOnly => controller::Mode::SpeedOnly,
        Mode::QodOnly => controller::Mode::AdmissionOnly,
        Mode::Mimo => controller::Mode::Both,
    }
}

fn no_gains() -> Failure {
    failure(
        Code::Unsupported,
        "set points",
        "there are no gains to hold them with",
        "make some with `keel qos identify` and `keel qos design`",
    )
}
