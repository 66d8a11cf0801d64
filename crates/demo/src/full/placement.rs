//! Where the job may run: on this machine, or in a data centre that exists only as the figures of a file. The node
//! weighs both by what it measures of the job.

use super::figures::number;
use super::promises::{self, Promise};
use serde_json::{Value, json};

/// File with the figures, as a `[[job]]` takes it.
pub(super) const QUESTION: &str = "site.json";

/// File with the result of the job, which also says what was weighed.
pub(super) const RESULT: &str = "history.json";

/// Returns the figures of the site. The node asks about a data centre only if none is missing.
pub(super) fn question() -> String {
    let stated =
        |value: f64| json!({"value": value, "stated": "for the demo: no machine stands behind it"});
    let assumed = |value: f64| json!({"value": value, "assumed": "as by `keel advise --assume`"});
    let question = json!({
        "version": 1,
        "name": "history",
        "data_may_go": "anywhere",
        "inputs": {
            // 10 Mbit/s each way, to a machine that is eight times as fast.
            "up_bytes_per_s": stated(1.25e6),
            "down_bytes_per_s": stated(1.25e6),
            "machine_speed": stated(8.0),
            "round_trip_s": assumed(0.05),
            "machine_active_w": assumed(18.2385),
            "machine_idle_w": assumed(4.4801),
            "pue": assumed(1.58),
            "radio_j_per_byte": assumed(2e-6),
            "network_j_per_byte": assumed(4.8e-6),
            // A sensor of this machine takes precedence.
            "board_active_w": assumed(4.9871),
            "board_idle_w": assumed(2.5663),
        },
    });
    format!("{question:#}\n")
}

/// Returns the promise of the place. `before` and `after` are the node's two lives, `result` is the job's result.
pub(super) fn placed_promise(before: &Value, after: &Value, result: &Value) -> Promise {
    let lives = [before, after].map(|status| &status["jobs"][0]);
    let sum = |name: &str| lives.iter().map(|job| number(job, &[name])).sum::<u64>();
    let (runs, failed) = (sum("runs"), sum("failed"));
    let last = lives.iter().rev().find(|job| job["place"].is_string());
    let job = last.copied().cloned().unwrap_or_default();
    let said = |name: &str| job[name].as_str().unwrap_or("unknown").to_owned();
    let assumed = job["assumed"].as_array().map_or(0, Vec::len);
    let placed = &result["placed"];
    let options: Vec<String> = placed["options"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|option| {
            let of = |name: &str| option[name].as_f64().unwrap_or(f64::NAN);
            format!(
                "{} {:.4} s and {:.4} J",
                option["place"].as_str().unwrap_or("unknown"),
                of("time_s"),
                of("energy_j")
            )
        })
        .collect();
    let elsewhere = placed["better_elsewhere"].as_str();
    let is_weighed = runs > failed && job["place"].is_string() && options.len() > 1;
    let advice = match elsewhere {
        None => String::new(),
        Some(place) => {
            format!("; {place} would be better, and a node sends nothing there by itself")
        }
    };
    Promise {
        text: promises::PLACED,
        // It says that another place is better, and cannot do it.
        is_kept: match elsewhere {
            Some(_) if is_weighed => None,
            _ => Some(is_weighed),
        },
        figure: format!(
            "the history of a sensor, {runs} runs, {failed} failed, on {}: {} ({assumed} figures assumed); weighed by \
             what was measured of it and by stated figures of a data centre: {}{advice}; the last took {:.2} s",
            said("place"),
            said("why").replace("; ", ", "),
            options.join(", "),
            job["last_seconds"].as_f64().unwrap_or(0.0)
        ),
        values: json!({
            "runs": runs, "failed": failed, "place": job["place"], "why": job["why"], "assumed": job["assumed"],
            "options": placed["options"], "better_elsewhere": placed["better_elsewhere"],
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_shown_only_if_another_was_weighed_and_the_better_one_was_taken() {
        let status = json!({"jobs": [{
            "runs": 2, "failed": 0, "place": "one board", "why": "least energy; so it is", "assumed": ["pue"],
        }]});
        let board = json!({"place": "one board", "time_s": 0.01, "energy_j": 0.02});
        let centre = json!({"place": "the data centre", "time_s": 0.07, "energy_j": 0.3});
        let of = |options: Value, elsewhere: Value| {
            let placed = json!({"options": options, "better_elsewhere": elsewhere});
            placed_promise(&Value::Null, &status, &json!({"placed": placed}))
        };
        let both = json!([board, centre]);
        let kept = of(both.clone(), Value::Null);
        assert_eq!(kept.is_kept, Some(true));
        let weighed = "one board 0.0100 s and 0.0200 J, the data centre 0.0700 s and 0.3000 J;";
        assert!(kept.figure.contains(weighed), "{}", kept.figure);
        assert!(
            kept.figure.contains("least energy, so it is"),
            "{}",
            kept.figure
        );
        let better = of(both, json!("the data centre"));
        assert_eq!(better.is_kept, None);
        assert!(
            better.figure.contains("the data centre would be better"),
            "{}",
            better.figure
        );
        // With a single candidate nothing was chosen.
        assert_eq!(of(json!([board]), Value::Null).is_kept, Some(false));
        let none = placed_promise(&status, &Value::Null, &Value::Null);
        assert_eq!(none.is_kept, Some(false));
    }

    #[test]
    fn the_figures_of_the_site_each_say_where_they_come_from() {
        let question: Value = serde_json::from_str(&question()).unwrap();
        for (name, figure) in question["inputs"].as_object().unwrap() {
            let is_said = figure["stated"].is_string() != figure["assumed"].is_string();
            assert!(is_said && figure["value"].is_number(), "{name}: {figure}");
        }
    }
}
