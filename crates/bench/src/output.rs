//! The report of a bench: its table on standard output, and its figures as JSON in a file.

use std::io::Write;
use std::path::PathBuf;

use crate::report::Json;

/// Where the JSON report goes; shared by every bench.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Output {
    /// Write the figures as JSON to FILE.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Writes the JSON and the table of a bench that has run.
///
/// # Errors
/// That of the bench, or as [`write`].
pub(crate) fn write_report(
    output: &Output,
    report: Result<(Json, String), String>,
) -> Result<(), String> {
    let (json, table) = report?;
    write(output, table, &json)
}

/// Writes the report to the requested file, and the table to standard output.
///
/// # Errors
/// One line with the path, or with the reason why standard output takes nothing.
pub(crate) fn write(output: &Output, mut text: String, json: &Json) -> Result<(), String> {
    if let Some(path) = &output.json {
        let json =
            serde_json::to_string_pretty(json).map_err(|error| format!("report: {error}"))?;
        std::fs::write(path, json + "\n")
            .map_err(|error| format!("{}: {error}", path.display()))?;
        text.push_str(&format!("\nwritten: {}\n", path.display()));
    }
    match std::io::stdout().write_all(text.as_bytes()) {
        // A reader may close the pipe early; this is not an error.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(format!("standard output: {error}"))
        }
        _ => Ok(()),
    }
}
