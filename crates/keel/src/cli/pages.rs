//! Man pages and completions, made from the one definition of the command line. Packages take them from here
//! (`cargo xtask pages DIR`), so that nothing can be out of date and `keel` itself carries none of it.
//!
//! **Files:** `DIR/man/keel*.1`, `DIR/completions/keel.bash`, `_keel` (zsh), `keel.fish`.

use super::Cli;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;

/// Where `cargo xtask pages` wants the files.
const FOLDER_VARIABLE: &str = "KEEL_PAGES_DIR";

/// One page: title, words, options, subcommands, and what the help says after them, line by line as it stands there.
fn man_page(command: &Command, name: &str) -> io::Result<Vec<u8>> {
    // Names live as long as the program, which ends with its tests.
    let shown: &'static str = name.to_owned().leak();
    let named = command.clone().name(shown).bin_name(name.replace('-', " "));
    let source = format!("Evenkeel {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(named)
        .title(name)
        .section("1")
        .source(source)
        .manual("Evenkeel");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command
        .get_arguments()
        .any(|argument| !argument.is_hide_set())
    {
        man.render_options_section(&mut page)?;
    }
    if visible(command).next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(words) = command.get_after_help() {
        write!(page, ".SH NOTES\n.nf\n")?;
        for line in words.to_string().lines() {
            writeln!(page, "{}", as_text(line))?;
        }
        writeln!(page, ".fi")?;
    }
    Ok(page)
}

/// A line of which the formatter takes nothing for a request.
fn as_text(line: &str) -> String {
    let line = line
        .replace('\\', "\\(rs")
        .replace('-', "\\-")
        .replace('\'', "\\(aq");
    match line.as_bytes().first() {
        Some(b'.' | b'\'') => format!("\\&{line}"),
        _ => line,
    }
}

pub(super) fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    let subcommands = command.get_subcommands();
    subcommands.filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

fn write_man_pages(command: &Command, name: &str, folder: &Path) -> io::Result<usize> {
    std::fs::write(folder.join(format!("{name}.1")), man_page(command, name)?)?;
    let mut written = 1;
    for below in visible(command) {
        let name = format!("{name}-{}", below.get_name());
        written += write_man_pages(below, &name, folder)?;
    }
    Ok(written)
}

/// The command without what only the program itself starts: completions would offer that.
fn public(command: &Command) -> Command {
    let mut copy = Command::new(&*command.get_name().to_owned().leak());
    if let Some(about) = command.get_about() {
        copy = copy.about(about.clone());
    }
    let arguments = command.get_arguments();
    copy = copy.args(
        arguments
            .filter(|argument| !argument.is_hide_set())
            .cloned(),
    );
    if command.is_disable_help_flag_set() {
        copy = copy.disable_help_flag(true);
    }
    copy.subcommands(visible(command).map(public))
}

/// Writes everything; answers how many man pages there are.
fn write_all(folder: &Path) -> io::Result<usize> {
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    for folder in [&man, &completions] {
        std::fs::create_dir_all(folder)?;
    }
    let mut program = Cli::command();
    program.build();
    let written = write_man_pages(&program, "keel", &man)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut public(&Cli::command()), "keel", &completions)?;
    }
    Ok(written)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every visible command by its words, such as `keel flash put`.
pub(super) fn commands(command: &Command, words: &str, found: &mut BTreeSet<String>) {
    found.insert(words.to_owned());
    for below in visible(command) {
        commands(below, &format!("{words} {}", below.get_name()), found);
    }
}

#[test]
fn are_made() {
    let asked = std::env::var_os(FOLDER_VARIABLE);
    let own = std::env::temp_dir().join(format!("keel-pages-{}", std::process::id()));
    let folder = asked.as_ref().map_or(own.as_path(), Path::new);
    let written = write_all(folder).unwrap();
    let mut all = BTreeSet::new();
    let program = Cli::command();
    commands(&program, "keel", &mut all);
    assert_eq!(written, all.len());
    let completions = folder.join("completions");
    let shells = ["keel.bash", "_keel", "keel.fish"].map(|name| read(&completions.join(name)));
    for words in &all {
        let page = read(&folder.join(format!("man/{}.1", words.replace(' ', "-"))));
        assert!(page.contains(".SH SYNOPSIS"), "{words}");
        let last = words.rsplit(' ').next().unwrap();
        for shell in &shells {
            assert!(shell.contains(last), "{words} is in no completion");
        }
    }
    for hidden in ["demo-writer", "demo\\-writer"] {
        for shell in &shells {
            assert!(
                !shell.contains(hidden),
                "completions offer the hidden {hidden}"
            );
        }
        assert!(!read(&folder.join("man/keel.1")).contains(hidden));
    }
    // What people copy keeps its lines and letters.
    let page = read(&folder.join("man/keel-flash-format.1"));
    assert!(page.contains("\n  keel flash format "), "{page}");
    if asked.is_none() {
        std::fs::remove_dir_all(&own).unwrap();
    } else {
        println!(
            "{written} man pages and completions for 3 shells in {}",
            folder.display()
        );
    }
}

#[test]
fn no_line_is_taken_for_a_request() {
    assert_eq!(
        as_text(".img --size 'x' \\n"),
        "\\&.img \\-\\-size \\(aqx\\(aq \\(rsn"
    );
    assert_eq!(as_text("  plain"), "  plain");
}
