//! The definition of the command line, and the words of its errors.

use super::parse::{complaint, definition, named, parse_from, remedy};
use super::*;
use clap::CommandFactory;
use clap::error::ErrorKind;

#[test]
fn every_command_on_stores_and_regions_has_an_example() {
    let program = Cli::command();
    for room in ["flash", "mem", "qos", "stream", "power", "cluster"] {
        let commands = program.find_subcommand(room).unwrap();
        for command in commands
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
        {
            let help = command.get_after_help().map(ToString::to_string);
            let example = format!("keel {room} {} ", command.get_name());
            assert!(
                help.is_some_and(|help| help.contains(&example)),
                "{example}has none"
            );
        }
    }
}

#[test]
fn a_wrong_number_is_refused_in_plain_words() {
    for (text, said) in [
        ("--uid x", "must be a number such as 1000"),
        ("--gid 4294967295", "must be a number such as 1000"),
        ("--open-files x", "must be a whole number"),
        ("--open-files=", "must be a whole number"),
        ("--open-files 99999999999999999999", "is too large a number"),
        ("--sync-seconds -1", "-1 is not in 1..=3600"),
        ("--mode -1", "must be octal"),
    ] {
        let line = format!("keel flash mount a b {text}");
        let wrong = said_of(&line);
        assert!(wrong.contains(said), "{wrong}");
        let option = text.split([' ', '=']).next().unwrap();
        assert!(wrong.contains(option), "{wrong}");
    }
}

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
    definition().debug_assert();
}

/// The error of a command line; empty if it has none.
fn said_of(line: &str) -> String {
    let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    match parse_from(&words) {
        Ok(_) => String::new(),
        Err(error) => complaint(&error, &words[1..]).to_string(),
    }
}

/// Every option that takes a value, and every value without an option, of this command and those below it, with the
/// words before the value.
fn values(command: &clap::Command, words: &str, found: &mut Vec<(String, clap::Arg)>) {
    let takes = command
        .get_arguments()
        .filter(|option| !option.is_positional() && option.get_action().takes_values());
    found.extend(takes.map(|option| {
        let long = option.get_long().expect("a long name");
        (format!("{words} --{long}"), option.clone())
    }));
    let mut before = words.to_owned();
    for value in command.get_positionals() {
        // Any word is the value of these.
        if !value.is_last_set() && !value.is_trailing_var_arg_set() {
            found.push((before.clone(), value.clone()));
        }
        before += " 1";
    }
    for below in command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
    {
        values(below, &format!("{words} {}", below.get_name()), found);
    }
}

#[test]
fn a_value_with_a_hyphen_is_taken_or_its_option_or_place_is_named() {
    let (mut program, mut found) = (Cli::command(), Vec::new());
    program.build();
    values(&program, "keel", &mut found);
    let is_there = |wanted: &str| found.iter().any(|(words, _)| words == wanted);
    for words in [
        "keel demo --speed",
        "keel flash truncate 1 1",
        "keel put 1",
        "keel cluster run",
    ] {
        assert!(is_there(words), "{words}");
    }
    let count = found.iter().filter(|found| found.1.is_positional()).count();
    assert!(
        count > 50 && found.len() - count > 100,
        "{count} of {}",
        found.len()
    );
    let mut wrong = Vec::new();
    for (words, value) in &found {
        for text in ["-1", "-1e-3", "-.5", "-4K", "-x", "--zonk"] {
            let line = format!("{words} {text}");
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let Err(error) = parse_from(&words) else {
                continue;
            };
            // The value was taken, and something else is missing.
            if matches!(
                error.kind(),
                ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict
            ) {
                continue;
            }
            let said = complaint(&error, &words[1..]).to_string();
            // A name without an option goes behind `--`.
            let is_behind = value.is_positional() && said.contains("write `--` before '-");
            if !is_behind && !said.contains(&format!("'{value}'")) {
                wrong.push(format!("{line}: {said}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_value_with_a_hyphen_gets_a_remedy() {
    for (line, said) in [
        ("keel demo --speed -1", "must be a number from 0.1 to 1000"),
        (
            "keel demo --seconds -1",
            "must be a whole number, and not negative",
        ),
        ("keel demo --dir -x", "write `--dir=-x` if it is the value"),
        (
            "keel stream mount a b --insecure --figures -x",
            "must be a whole number",
        ),
        ("keel stream pack a b --level -3", "-3 is not in 1..=19"),
        ("keel run -c -x", "write `-c=-x` if it is the value"),
        (
            "keel status --node -jx",
            "'-jx' begins with a hyphen, and so is no value of '--node <PATH>'",
        ),
        (
            "keel get a --via -x",
            "[possible values: auto, region, socket]",
        ),
        ("keel get -x", "write `--` before '-x' if it is a name"),
        ("keel flash truncate a b -1", "must be a number of bytes"),
    ] {
        let whole = said_of(line);
        assert!(whole.contains(said), "{line}: {whole}");
        assert_eq!(whole.lines().count(), 1, "{whole}");
    }
    for line in [
        "keel qos design m --tardiness -0.5",
        "keel qos design m --data-ratio -1e-3",
        "keel demo --dir=-x",
        "keel run -c=-x",
        "keel demo --dir -5",
        "keel get -- -x",
        "keel get -5",
        "keel put a -1e-3",
        "keel put a -.5",
        "keel history a --from -15m",
        "keel cluster measure --hosts h --mpi-arg --mca",
    ] {
        assert_eq!(said_of(line), "", "{line}");
    }
}

#[test]
fn the_command_that_was_meant_is_found() {
    let of = |text: &str| {
        let words: Vec<OsString> = text.split(' ').map(OsString::from).collect();
        named(&definition(), &words).1
    };
    assert_eq!(of("flash put --bad x"), "keel flash put");
    assert_eq!(of("flash nonsense put"), "keel flash");
    assert_eq!(of("--flash"), "keel");
    assert_eq!(of("demo-writer"), "keel");
}

#[test]
fn a_similar_command_or_option_is_suggested() {
    let of = |text: &str| {
        let words: Vec<OsString> = text.split(' ').map(OsString::from).collect();
        let error = parse_from(&words).unwrap_err();
        remedy(&error, &named(&definition(), &words[1..]).1)
    };
    for (text, meant) in [
        ("keel statsu", "`keel status`"),
        ("keel histroy a", "`keel history`"),
        ("keel flash fromat x", "`keel flash format`"),
        ("keel mem craete x", "`keel mem create`"),
        ("keel config exmaple", "`keel config example`"),
        ("keel get a --jsno", "`--json`"),
    ] {
        let remedy = of(text);
        assert!(
            remedy.starts_with(&format!("did you mean {meant}? ")),
            "{remedy}"
        );
    }
    assert_eq!(of("keel zzz"), "see `keel --help`");
    // What only the program itself starts is no suggestion.
    assert!(!of("keel demo-writr").contains("demo-writer"));
}
