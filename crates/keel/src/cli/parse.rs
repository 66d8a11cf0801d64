//! From arguments to a command, or to one line of error.

use super::Cli;
use crate::argument::first_paragraph;
use crate::error::{CliError, STATUS_USAGE};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};
use std::any::TypeId;
use std::ffi::OsString;
use std::path::PathBuf;

/// Parses the arguments of this process; `Err` is the exit status after help, version or one line of error.
pub(crate) fn parse() -> Result<Cli, u8> {
    let error = match parse_from(std::env::args_os()) {
        Ok(cli) => return Ok(cli),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed pipe (`keel --help | head -1`) is no failure.
            error.print().ok();
            Err(0)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            error.print().ok();
            Err(STATUS_USAGE)
        }
        _ => {
            let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
            eprintln!("keel: {}", complaint(&error, &arguments));
            Err(STATUS_USAGE)
        }
    }
}

/// Parses these arguments, the program's name first.
pub(super) fn parse_from<A>(arguments: impl IntoIterator<Item = A>) -> Result<Cli, clap::Error>
where
    A: Into<OsString> + Clone,
{
    let mut matches = definition().try_get_matches_from(arguments)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut definition()))
}

/// The definition as arguments are parsed by it: a value may begin with a hyphen where this cannot be meant otherwise.
/// So an error names the option and the values that it takes, and not an option `-1` that does not exist.
pub(super) fn definition() -> clap::Command {
    with_hyphens(Cli::command())
}

fn with_hyphens(command: clap::Command) -> clap::Command {
    let texts = [
        TypeId::of::<String>(),
        TypeId::of::<OsString>(),
        TypeId::of::<PathBuf>(),
    ];
    let command = command.mut_args(|argument| {
        if !argument.get_action().takes_values() {
            return argument;
        }
        let holds = argument.get_value_parser().type_id();
        match texts.iter().any(|text| holds == *text) {
            // Any text is a name. Another option behind it means that the name was forgotten.
            true => argument.allow_negative_numbers(true),
            // A number or a word of a list: what it cannot be is refused with what it must be.
            false => argument.allow_hyphen_values(true),
        }
    });
    command.mut_subcommands(with_hyphens)
}

/// The error for wrong arguments, without the program's name.
pub(super) fn complaint(error: &clap::Error, arguments: &[OsString]) -> CliError {
    let mut definition = definition();
    definition.build();
    let (command, path) = named(&definition, arguments);
    if let Some((option, flag, text)) = hyphened(error, command, arguments) {
        let wrong = format!("'{text}' begins with a hyphen, and so is no value of '{option}'");
        let remedy =
            format!("write `{flag}={text}` if it is the value; if not, see `{path} --help`");
        return CliError::usage("command line", wrong, remedy);
    }
    let wrong = plain(&first_paragraph(&error.render().to_string()));
    CliError::usage("command line", wrong, remedy(error, &path))
}

/// Returns the option of the command whose value would begin with a hyphen, if that is the error. The result is the
/// option as the help shows it, the option as it was given, and the value.
fn hyphened<'a>(
    error: &clap::Error,
    command: &clap::Command,
    arguments: &'a [OsString],
) -> Option<(String, &'a str, &'a str)> {
    let (Some(ContextValue::String(unknown)), None) = (
        error.get(ContextKind::InvalidArg),
        error.get(ContextKind::SuggestedArg),
    ) else {
        return None;
    };
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    arguments.windows(2).find_map(|pair| {
        let (flag, text) = (pair[0].to_str()?, pair[1].to_str()?);
        let option = command.get_arguments().find(|option| {
            let long = option.get_long().map(|long| format!("--{long}"));
            let short = option.get_short().map(|short| format!("-{short}"));
            long.as_deref() == Some(flag) || short.as_deref() == Some(flag)
        })?;
        // Of several letters behind one hyphen, the parser names the first that is no option.
        let letters = text.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        let letter = unknown.strip_prefix('-').unwrap_or(unknown);
        let is_it =
            text.starts_with(unknown.as_str()) || letters.is_some_and(|all| all.contains(letter));
        let takes = option.get_action().takes_values()
            && (!option.is_allow_hyphen_values_set() || option.is_require_equals_set());
        (is_it && takes).then(|| (option.to_string(), flag, text))
    })
}

/// What the parser says of numbers, in words of people.
fn plain(wrong: &str) -> String {
    let whole = match wrong.contains("invalid value '-") {
        true => "must be a whole number, and not negative",
        false => "must be a whole number",
    };
    [
        ("invalid digit found in string", whole),
        (
            "cannot parse integer from empty string",
            "must be a whole number",
        ),
        ("invalid float literal", "must be a number"),
        ("cannot parse float from empty string", "must be a number"),
        (
            "number too large to fit in target type",
            "is too large a number",
        ),
    ]
    .iter()
    .fold(wrong.to_owned(), |text, (said, meant)| {
        text.replace(said, meant)
    })
}

/// What to do about an error of the parser, which keeps what may have been meant apart from what is wrong.
pub(super) fn remedy(error: &clap::Error, command: &str) -> String {
    let meant = |kind| match error.get(kind) {
        Some(ContextValue::String(meant)) => vec![meant.clone()],
        Some(ContextValue::Strings(meant)) => meant.clone(),
        _ => Vec::new(),
    };
    let see = format!("see `{command} --help`");
    let is_hidden = |name: &String| {
        let program = Cli::command();
        let found = program.find_subcommand(name);
        found.is_some_and(|found| found.is_hide_set())
    };
    let mut subcommands = meant(ContextKind::SuggestedSubcommand);
    subcommands.retain(|name| !is_hidden(name));
    // The likeliest comes last.
    if let Some(name) = subcommands.pop() {
        return format!("did you mean `{command} {name}`? If not, {see}");
    }
    let mut others = meant(ContextKind::SuggestedArg);
    others.extend(meant(ContextKind::SuggestedValue));
    match (others.pop(), error.get(ContextKind::InvalidArg)) {
        (Some(name), _) => format!("did you mean `{name}`? If not, {see}"),
        // The parser's own suggestion, which stands behind the first paragraph.
        (None, Some(ContextValue::String(unknown)))
            if error.render().to_string().contains("as a value, use") =>
        {
            format!("write `--` before '{unknown}' if it is a name; if not, {see}")
        }
        (None, _) => see,
    }
}

/// The command that the arguments name, as far as they name one, and its words: `keel flash put`.
pub(super) fn named<'p>(
    program: &'p clap::Command,
    arguments: &[OsString],
) -> (&'p clap::Command, String) {
    let mut command = program;
    let mut path = command.get_name().to_owned();
    for argument in arguments {
        match command.find_subcommand(argument) {
            Some(found) if !found.is_hide_set() => command = found,
            _ => break,
        }
        path.push(' ');
        path.push_str(command.get_name());
    }
    (command, path)
}
