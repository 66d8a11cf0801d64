//! Where a job of the configuration runs, and why: the advisor decides, from the kept figures of the job and the
//! overhead of earlier runs.

use super::figures::{MEASURED, POWER, is_near, kept, measure, write_kept};
use super::input::{self, ReadingsArgs};
use super::kernel::KernelArgs;
use super::overhead;
use super::text_file::read;
use crate::cluster_cmd::result_file::link;
use crate::error::CliError;
use cluster::advisor::{
    Advice, Fit, Input, Minimise, Origin, Place, Privacy, Question, advise, parse_question,
};
use cluster::jobs::worker::Check;
use cluster::measure::{HostEntry, parse_hosts};
use config::JobConfig;
use serde_json::{Value, json};
use std::time::Instant;

/// Where a job runs, and why.
pub(super) struct Placed {
    pub(super) place: Place,
    pub(super) advice: Advice,
    /// Why no place can keep the deadline, if the check or the overhead leaves no time.
    pub(super) check_alone: Option<String>,
    /// The configured deadline; the advisor gets the part that the check and the overhead leave.
    deadline_s: f64,
    pub(super) hosts: Vec<HostEntry>,
    /// Boards that cannot be reached or used, and how that is known.
    pub(super) missing: Vec<(String, String)>,
    /// The measured figures of the job, for the file.
    pub(super) kept: Question,
    pub(super) is_measured_anew: bool,
    /// Time for measuring the job, in s.
    pub(super) measuring_s: f64,
    /// Overhead of earlier runs, in s, if there were any.
    overhead_s: Option<f64>,
    /// Why the link's figures were not taken, if so.
    link_refused: Option<String>,
    /// The advice with the data centre among the options, if the file of figures includes one.
    elsewhere: Option<Advice>,
}

impl Placed {
    /// Places a job on the boards of its file, without those of them that are missing.
    pub(super) fn find(
        job: &JobConfig,
        readings: &ReadingsArgs,
        mut missing: Vec<(String, String)>,
    ) -> Result<Self, CliError> {
        let wrong =
            |error: cluster::Error| CliError::failure(&job.name, error, "see docs/cluster.md");
        let mut hosts = hosts_of(job)?;
        // A suspect of an earlier run may be no board of the file any more.
        missing.retain(|(name, _)| hosts.iter().any(|host| host.name == *name));
        hosts.retain(|host| missing.iter().all(|(name, _)| *name != host.name));
        let mut question = question_of(job)?;
        let (found, left_out) = input::read(readings)?;
        let settings = KernelArgs::of_job(job).settings(job.kernel);
        let help = "see docs/cluster.md";
        let order = input::order(&job.name, settings, (found, &left_out), help)?;
        let before = kept(job).filter(|kept| is_near(kept, order.readings.bytes() as f64));
        let is_measured_anew = before.is_none();
        let begun = Instant::now();
        let kept = before.map_or_else(|| measure(job, &order).map_err(wrong), Ok)?;
        let measuring_s = f64::from(is_measured_anew) * begun.elapsed().as_secs_f64();
        write_kept(job, &kept)?;
        take_kept(&mut question, &kept);
        // Messages cost nothing on one board. A line that says nothing must not cost the job its run.
        let link_refused = match job.link.as_ref().filter(|_| hosts.len() > 1) {
            Some(path) => link(path)?.give(&mut question).err(),
            None => None,
        };
        let link_refused = link_refused.map(|error| error.to_string());
        not_above(&mut question);
        question.boards_max = (hosts.len().max(1) as u32).min(cluster::advisor::BOARDS_MAX);
        // The answer must also be checked on one rank before the deadline, unless that comes later or never.
        let check_s = question.given[Input::SingleS as usize]
            .as_ref()
            .filter(|_| job.check == Check::Always)
            .map_or(0.0, |given| given.value);
        let overhead_s = overhead::kept(job);
        let before_s = check_s + overhead_s.unwrap_or(0.0);
        question.deadline_s = Some((job.deadline_s() - before_s).max(1e-3));
        let check_alone = no_time_left(job.deadline_s(), check_s, before_s);
        on_ranks(&mut question, job.ranks).map_err(wrong)?;
        let has_site = job.question.is_some();
        let (advice, elsewhere) = weighed(question, has_site, hosts.len()).map_err(wrong)?;
        let least = advice.choice.least_loss;
        let least = least.map(|at| advice.choice.options[at].place);
        let place = advice.advised().or(least);
        Ok(Self {
            place: place.unwrap_or(Place::Boards(1)),
            advice,
            check_alone,
            deadline_s: job.deadline_s(),
            hosts,
            missing,
            kept,
            is_measured_anew,
            measuring_s,
            overhead_s,
            link_refused,
            elsewhere,
        })
    }

    /// Returns why the job runs there.
    fn why(&self) -> String {
        let advice = &self.advice;
        let why = self.check_alone.clone().or_else(|| advice.why_none());
        let mut why = why.unwrap_or_else(|| {
            let what = match advice.question.minimise {
                _ if advice.risked().is_some() => "least expected loss",
                Minimise::Energy => "least energy",
                Minimise::Time => "least time",
                Minimise::Cost => "least cost",
            };
            format!("{what} of the options that keep the deadline")
        });
        for (name, how) in &self.missing {
            why.push_str(&format!("; without {name}, which {how}"));
        }
        why
    }

    pub(super) fn json(&self) -> Value {
        let advice = &self.advice;
        let option = advice
            .choice
            .options
            .iter()
            .find(|option| option.place == self.place);
        let assumed = advice.question.needed().into_iter().filter(|input| {
            let given = advice.question.given[*input as usize].as_ref();
            given.is_some_and(|given| matches!(given.origin, Origin::Assumed(_)))
        });
        let elsewhere = self.elsewhere.as_ref();
        let better = elsewhere
            .and_then(Advice::advised)
            .filter(|place| *place == Place::DataCentre);
        // An option to which the data may not go was not weighed, and has no figures.
        let options = elsewhere.unwrap_or(advice).choice.options.iter();
        let options = options.filter(|option| option.fit != Fit::Private);
        let options = options.map(|option| {
            json!({
                "place": option.place.to_string(),
                "time_s": option.time_s,
                "energy_j": option.energy_j,
                "late_probability": option.late_probability,
            })
        });
        let boards_missing = self.missing.iter();
        let boards_missing = boards_missing.map(|(name, how)| json!({"board": name, "how": how}));
        json!({
            "place": self.place.to_string(),
            "why": self.why(),
            "is_advised": advice.advised().is_some(),
            "expected_s": option.map(|option| option.time_s),
            "expected_j": option.map(|option| option.energy_j),
            "late_probability": option.map(|option| option.late_probability),
            "deadline_s": self.deadline_s,
            "overhead_s": self.overhead_s,
            "boards_missing": boards_missing.collect::<Vec<_>>(),
            "measured_anew": self.is_measured_anew,
            "link_refused": self.link_refused,
            "assumed": assumed.map(Input::name).collect::<Vec<_>>(),
            "better_elsewhere": better.map(|place| place.to_string()),
            "options": options.collect::<Vec<_>>(),
        })
    }
}

/// Replaces figures of a question by the measured ones.
fn take_kept(question: &mut Question, kept: &Question) {
    for input in MEASURED.into_iter().chain(POWER) {
        if let Some(given) = &kept.given[input as usize] {
            question.given[input as usize] = Some(given.clone());
        }
    }
}

/// Replaces the time on one rank by that on all ranks of this board, according to the parallel fraction.
fn on_ranks(question: &mut Question, ranks: u32) -> Result<(), cluster::Error> {
    let of = |input: Input| question.given[input as usize].clone();
    let (Some(single), Some(fraction)) = (of(Input::SingleS), of(Input::ParallelFraction)) else {
        return Ok(());
    };
    if ranks < 2 {
        return Ok(());
    }
    let part = (1.0 - fraction.value) + fraction.value / f64::from(ranks);
    let by = Origin::Measured(format!(
        "on one rank, and shared out among {ranks} by the parallel fraction"
    ));
    question.give_with_spread(Input::SingleS, single.value * part, by, single.spread)
}

/// Limits idle power: by noise, or in the file, it may exceed the power of a light load.
fn not_above(question: &mut Question) {
    let active = question.given[Input::BoardActiveW as usize]
        .as_ref()
        .map(|given| given.value);
    if let (Some(active), Some(idle)) =
        (active, question.given[Input::BoardIdleW as usize].as_mut())
    {
        idle.value = idle.value.min(active);
    }
}

/// Returns the advice for these boards, and that with the data centre, if the question has the figures of a site.
fn weighed(
    mut question: Question,
    has_site: bool,
    hosts: usize,
) -> Result<(Advice, Option<Advice>), cluster::Error> {
    let wants_elsewhere = question.privacy == Privacy::Anywhere && has_site;
    let elsewhere = wants_elsewhere.then(|| question.clone());
    question.privacy = if hosts > 1 {
        Privacy::Neighbours
    } else {
        Privacy::Board
    };
    question.assume();
    let advice = advise(&question)?;
    // A question about the data centre that lacks a figure has no answer; ignore it, since it is optional.
    let elsewhere = elsewhere.and_then(|question| advise(&question).ok());
    Ok((advice, elsewhere))
}

/// Returns the boards that the job may use.
fn hosts_of(job: &JobConfig) -> Result<Vec<HostEntry>, CliError> {
    match &job.hosts {
        Some(path) if !job.is_board_only => parse_hosts(&read(path)?).map_err(|error| {
            CliError::failure(path.display(), error, "write one board on each line")
        }),
        _ => Ok(Vec::new()),
    }
}

/// Returns the question with the figures of the job's file, if it has one.
fn question_of(job: &JobConfig) -> Result<Question, CliError> {
    let Some(path) = &job.question else {
        return Ok(Question::new(&job.name));
    };
    parse_question(&read(path)?).map_err(|error| {
        let remedy = "correct it; docs/cluster.md describes it";
        CliError::failure(path.display(), error, remedy)
    })
}

/// Returns why no place can keep the deadline, if all of it passes before and after computing.
fn no_time_left(deadline_s: f64, check_s: f64, before_s: f64) -> Option<String> {
    if check_s >= deadline_s {
        return Some(format!(
            "the check of its answer on one rank alone takes {check_s:.3} s of {deadline_s} s; job.check = \"after\" \
             puts it behind the answer"
        ));
    }
    (before_s >= deadline_s).then(|| {
        let overhead_s = before_s - check_s;
        format!(
            "start and reading the history took {overhead_s:.3} s in earlier runs, of {deadline_s} s for all; give it \
             more time, or less history"
        )
    })
}
