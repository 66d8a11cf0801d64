//! The state of the quality of service as people read it.

use crate::error::CliError;
use node::status::{PeriodState, QosState};

pub(super) fn understood(state: &serde_json::Value) -> Result<QosState, CliError> {
    serde_json::from_value(state.clone())
        .map_err(|error| CliError::failure("node", error, "use keel of the node's version"))
}

/// Returns the text for people; tests use it, too.
pub(super) fn text(state: &QosState) -> String {
    let mut lines = vec![mode_line(state)];
    for warning in &state.warnings {
        lines.push(format!("warning   {}", printable(warning)));
    }
    if let Some(error) = &state.gains_error {
        lines.push(format!("gains     NOT USED: {error}"));
    }
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    let held = |held: &str| match held {
        "low" => ", at its least",
        "high" => ", at its most",
        _ => "",
    };
    lines.push(format!(
        "speed     {}{} ({})",
        percent(state.speed),
        held(&state.speed_held),
        state.actuator
    ));
    if let Some(error) = &state.actuator_error {
        lines.push(match state.actuator_failures {
            0 => format!("          CANNOT BE SET: {error}"),
            failures => {
                format!("          could not be set {failures} times, the last time: {error}")
            }
        });
    }
    for left in &state.settings_left {
        lines.push(format!("          NOT PUT BACK: {}", printable(left)));
    }
    lines.push(format!(
        "updates   {} admitted{}; {} of {} keys fresh; {} readings left out, {} of them thrown away",
        percent(state.admitted),
        held(&state.admitted_held),
        state.keys_fresh,
        state.keys_temporal,
        state.readings_shed,
        state.readings_shed_dropped
    ));
    for key in state.shed_keys.iter().take(5) {
        lines.push(format!("          {} of {}", key.readings_shed, key.key));
    }
    match &state.last {
        None => lines.push("period    no instance yet".to_owned()),
        Some(last) => lines.push(format!(
            "period    {}{} instances: tardiness {:.3}{}, 95 % below {:.3}, {:.1} % late; data response ratio {:.3}{}",
            length(last, state.last_age_ms),
            last.instances,
            last.tardiness_mean,
            target(state.tardiness_target),
            last.tardiness_p95,
            last.miss_ratio * 100.0,
            last.data_ratio,
            target(state.data_ratio_target)
        )),
    }
    if !state.reports_refused.is_empty() {
        let reasons = state.reports_refused.iter();
        let reasons: Vec<String> = reasons.map(|(why, n)| format!("{why} {n}")).collect();
        lines.push(format!(
            "refused   reports of tasks that contradict themselves: {}",
            reasons.join(", ")
        ));
    }
    if state.tasks.is_empty() {
        lines.push("tasks     none; docs/clients.md shows how a program declares one".to_owned());
    }
    for task in &state.tasks {
        let late = if task.kind == "firm" {
            format!("{} aborted", task.aborted)
        } else {
            format!("{} late", task.deadline_misses)
        };
        lines.push(format!(
            "task      {} ({}, process {}): every {}, deadline {}; since it was declared {} instances, {late}, \
             {} releases missed; tardiness {:.3}, at most {:.3}{}",
            printable(&task.name),
            task.kind,
            task.process,
            us(task.period_us),
            us(task.deadline_us),
            task.instances,
            task.releases_missed,
            task.tardiness_mean,
            task.tardiness_max,
            match (task.silent, task.slow) {
                (_, true) => "; TOO SLOW for the loop, which does not go by it",
                (true, false) => "; SILENT",
                (false, false) => "",
            }
        ));
    }
    let ended = &state.tasks_ended;
    if ended.count > 0 {
        lines.push(format!(
            "ended     tasks since the node's start: {}, with {} instances, {} late, {} aborted, {} releases missed",
            ended.count,
            ended.instances,
            ended.deadline_misses,
            ended.aborted,
            ended.releases_missed
        ));
    }
    lines.join("\n") + "\n"
}

/// Returns the effect of a mode that has just been chosen.
pub(super) fn mode_now(state: &QosState) -> String {
    let mode = &state.mode;
    if is_identifying(state) {
        return mode_line(state);
    }
    let with = match state.actuator.as_str() {
        // The actuator is chosen once there are tasks.
        "none" if state.tasks.is_empty() => "speed",
        "none" => match &state.actuator_error {
            Some(error) => &format!("speed (CANNOT BE SET: {error})"),
            None => "speed",
        },
        actuator => &format!("speed ({actuator})"),
    };
    let driven = match mode.as_str() {
        "dvfs-only" => with.to_owned(),
        "qod-only" => "updates".to_owned(),
        "mimo" => format!("{with} and updates"),
        _ => return mode_line(state),
    };
    let from = if state.tasks.is_empty() {
        "once a task is declared".to_owned()
    } else {
        format!(
            "from the next sampling period on ({} ms)",
            state.sampling_period_ms
        )
    };
    format!("mode      {mode}: drives {driven}, {from}")
}

fn is_identifying(state: &QosState) -> bool {
    state.identification.state == "running"
}

fn mode_line(state: &QosState) -> String {
    let mut line = format!("mode      {}", state.mode);
    if is_identifying(state) {
        let now = &state.identification;
        line.push_str(", once the identification has ended that drives speed and updates now");
        // It begins with the next period.
        if now.periods_wanted > 0 {
            let (done, wanted) = (now.periods_done, now.periods_wanted);
            line.push_str(&format!(" ({done} of {wanted} periods)"));
        }
    } else if state.mode == "open" {
        line.push_str(": deadlines are watched, nothing is driven");
    } else if state.blind {
        line.push_str(": no figures, so full speed and all updates");
    } else if state.is_at_ease() {
        line.push_str(": the least speed is enough");
    } else if state.is_exhausted() {
        line.push_str(": BOTH INPUTS AT THEIR LIMITS, nothing is left to hold deadlines with");
    } else if state.single {
        line.push_str(": one input at its limit, the other one holds tardiness alone");
    }
    if !state.model_true {
        line.push_str("; the model no longer predicts: identify again");
    }
    if !state.obeyed && state.actuator == "none" {
        line.push_str("; nothing sets the speed");
    } else if !state.obeyed {
        line.push_str("; the machine does not do what it is told");
    }
    line
}

fn target(target: Option<f64>) -> String {
    target.map_or_else(String::new, |target| format!(" (to be {target:.3})"))
}

/// Returns the length of a period, and how long ago it ended.
fn length(last: &PeriodState, age_ms: Option<u64>) -> String {
    let seconds = |ms: u64| ms as f64 / 1e3;
    age_ms.map_or_else(String::new, |age_ms| {
        format!(
            "of {:.1} s, {:.1} s ago: ",
            seconds(last.length_ms),
            seconds(age_ms)
        )
    })
}

fn us(us: f64) -> String {
    if us < 1_000.0 {
        format!("{us:.0} µs")
    } else {
        format!("{:.1} ms", us / 1e3)
    }
}

/// Returns a name without control characters: names come from programs, and could control the terminal.
fn printable(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use node::status::{TaskState, TasksEnded};

    #[test]
    fn the_text_names_each_problem_of_the_state() {
        let mut state = QosState {
            mode: "mimo".to_owned(),
            actuator: "rtgroup".to_owned(),
            speed: 1.0,
            speed_held: "high".to_owned(),
            admitted: 0.5,
            admitted_held: "low".to_owned(),
            saturated: true,
            model_true: true,
            obeyed: true,
            tardiness_target: Some(0.8),
            last: Some(PeriodState {
                length_ms: 1_000,
                instances: 10,
                tardiness_mean: 1.25,
                miss_ratio: 0.8,
                ..PeriodState::default()
            }),
            last_age_ms: Some(600),
            reports_refused: [("tardiness_sum".to_owned(), 3)].into(),
            tasks: vec![TaskState {
                slow: true,
                name: "fire\u{1b}[2J".to_owned(),
                kind: "firm".to_owned(),
                aborted: 8,
                period_us: 100_000.0,
                deadline_us: 500.0,
                ..TaskState::default()
            }],
            tasks_ended: TasksEnded {
                count: 2,
                instances: 30,
                deadline_misses: 4,
                ..TasksEnded::default()
            },
            ..QosState::default()
        };
        let said = text(&state);
        for part in [
            "BOTH INPUTS AT THEIR LIMITS",
            "speed     100 %, at its most (rtgroup)",
            "50 % admitted, at its least",
            "of 1.0 s, 0.6 s ago: 10 instances: tardiness 1.250 (to be 0.800)",
            "contradict themselves: tardiness_sum 3",
            "TOO SLOW",
            "80.0 % late",
            "every 100.0 ms, deadline 500 µs",
            "8 aborted",
            "ended     tasks since the node's start: 2, with 30 instances, 4 late, 0 aborted, 0 releases missed",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(!said.contains('\u{1b}'));
        // The least speed together with all updates is no problem.
        (state.speed_held, state.admitted_held) = ("low".to_owned(), "high".to_owned());
        let said = text(&state);
        assert!(said.contains("mimo: the least speed is enough\n"), "{said}");
        // If no actuator could be opened, no speed was set.
        state.actuator_error = Some("no policy".to_owned());
        state.settings_left = vec!["write schedutil to it".to_owned()];
        let said = text(&state);
        assert!(said.contains("CANNOT BE SET: no policy"), "{said}");
        assert!(
            said.contains("NOT PUT BACK: write schedutil to it"),
            "{said}"
        );
        state.actuator_failures = 3;
        assert!(text(&state).contains("could not be set 3 times"));
        state.identification.state = "running".to_owned();
        (
            state.identification.periods_done,
            state.identification.periods_wanted,
        ) = (12, 420);
        for said in [text(&state), mode_now(&state)] {
            assert!(said.contains("mimo, once the identification"), "{said}");
            assert!(said.contains("12 of 420 periods"), "{said}");
        }
        state.identification = node::status::IdentificationState::default();
        state.model_true = false;
        state.obeyed = false;
        let said = text(&state);
        assert!(
            said.contains("identify again") && said.contains("does not do"),
            "{said}"
        );
    }

    #[test]
    fn a_chosen_mode_names_its_driven_inputs_and_their_start() {
        let mut state = QosState {
            actuator: "cpufreq".to_owned(),
            sampling_period_ms: 1_000,
            tasks: vec![TaskState::default()],
            model_true: true,
            obeyed: true,
            ..QosState::default()
        };
        let mut said = |mode: &str, is_with_task: bool| {
            mode.clone_into(&mut state.mode);
            if !is_with_task {
                (state.tasks, state.actuator) = (Vec::new(), "none".to_owned());
            }
            mode_now(&state)
        };
        assert_eq!(
            said("mimo", true),
            "mode      mimo: drives speed (cpufreq) and updates, from the next sampling period on (1000 ms)"
        );
        assert_eq!(
            said("dvfs-only", true),
            "mode      dvfs-only: drives speed (cpufreq), from the next sampling period on (1000 ms)"
        );
        assert_eq!(
            said("open", true),
            "mode      open: deadlines are watched, nothing is driven"
        );
        assert_eq!(
            said("qod-only", false),
            "mode      qod-only: drives updates, once a task is declared"
        );
        // A machine that lacks the configured actuator.
        state.tasks = vec![TaskState::default()];
        state.actuator_error = Some("this machine has no cpufreq".to_owned());
        "mimo".clone_into(&mut state.mode);
        assert_eq!(
            mode_now(&state),
            "mode      mimo: drives speed (CANNOT BE SET: this machine has no cpufreq) and updates, from the next \
             sampling period on (1000 ms)"
        );
    }
}
