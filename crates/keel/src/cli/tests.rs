//! The definition of the command line, and the words of its errors.

use super::*;

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
fn what_is_no_number_is_said_in_plain_words() {
    for (text, said) in [
        ("--uid x", "must be a number such as 1000"),
        ("--gid 4294967295", "must be a number such as 1000"),
        ("--open-files x", "must be a whole number"),
        ("--open-files=", "must be a whole number"),
        ("--open-files 99999999999999999999", "is too large a number"),
    ] {
        let line = format!("keel flash mount a b {text}");
        let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
        let wrong = plain(&first_paragraph(&error.render().to_string()));
        assert!(wrong.contains(said), "{wrong}");
        let option = text.split([' ', '=']).next().unwrap();
        assert!(wrong.contains(option), "{wrong}");
    }
}

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn the_command_that_was_meant_is_found() {
    let of = |text: &str| subcommand(text.split(' ').map(OsString::from));
    assert_eq!(of("flash put --bad x"), "keel flash put");
    assert_eq!(of("flash nonsense put"), "keel flash");
    assert_eq!(of("--flash"), "keel");
    assert_eq!(of("demo-writer"), "keel");
}

#[test]
fn what_was_meant_is_suggested() {
    let of = |text: &str| {
        let error = Cli::try_parse_from(text.split(' ')).unwrap_err();
        remedy(
            &error,
            &subcommand(text.split(' ').skip(1).map(OsString::from)),
        )
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

#[test]
fn sizes_with_and_without_suffix() {
    assert_eq!(size("4096"), Ok(4096));
    assert_eq!(size("256M"), Ok(256 << 20));
    assert_eq!(size("1k"), Ok(1024));
    assert_eq!(size("2GiB"), Ok(2 << 30));
    assert_eq!(size("1T"), Ok(1 << 40));
    for bad in ["", "M", "1.5G", "-1", "1Q", "99999999T", "1 M"] {
        assert!(size(bad).is_err(), "{bad}");
    }
}

#[test]
fn speeds_have_a_range() {
    assert_eq!(speed("10"), Ok(10.0));
    for bad in ["0", "nan", "inf", "-1", "1001", "x"] {
        assert!(speed(bad).is_err(), "{bad}");
    }
}
