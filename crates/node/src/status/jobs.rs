//! Judges the periodic jobs of a node.

use super::JobFigures;

/// Adds the reasons of jobs: a failed last run, and boards that the last run was without.
pub(super) fn judge(jobs: &[JobFigures], add: &mut impl FnMut(&str, String)) {
    for job in jobs.iter().filter(|job| job.failing) {
        let why = job.last_error.as_deref().unwrap_or("it is not known why");
        let (failed, runs) = (job.failed, job.runs);
        add(
            "job_failing",
            format!(
                "the last run of job {} failed, as {failed} of {runs} did: {why}",
                job.name
            ),
        );
    }
    for job in jobs.iter().filter(|job| !job.boards_missing.is_empty()) {
        let boards = job.boards_missing.join(", ");
        add(
            "job_boards_missing",
            format!(
                "the last run of job {} was without boards: {boards}",
                job.name
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(jobs: &[JobFigures]) -> Vec<(String, String)> {
        let mut added = Vec::new();
        let mut add = |code: &str, text: String| added.push((code.to_owned(), text));
        judge(jobs, &mut add);
        added
    }

    #[test]
    fn a_job_without_a_board_of_its_file_is_a_reason_that_names_the_board() {
        let mut job = JobFigures {
            name: "bearing".to_owned(),
            boards_missing: vec!["b2 (cannot be reached: no route to host)".to_owned()],
            ..JobFigures::default()
        };
        let found = reasons(&[job.clone()]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, "job_boards_missing");
        let wanted = "the last run of job bearing was without boards: b2 (cannot be reached: ";
        assert!(found[0].1.starts_with(wanted), "{found:?}");
        job.boards_missing.clear();
        assert!(reasons(&[job]).is_empty());
    }
}
