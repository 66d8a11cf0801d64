//! The committed header is cbindgen's output for the source, compiles as older C and as C++, and declares every
//! function of the library, which exports nothing else.
//!
//! After a change of the interface, `KEEL_WRITE_HEADER=1 cargo test -p libkeel-c --test header` regenerates it.

use std::path::Path;
use std::process::Command;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

fn generated() -> String {
    let folder = Path::new(HERE);
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in [
        "failure.rs",
        "interface/text.rs",
        "interface/node.rs",
        "interface/key.rs",
        "interface/ticket.rs",
        "interface/task.rs",
    ] {
        builder = builder.with_src(folder.join("src").join(file));
    }
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    String::from_utf8(text).unwrap()
}

/// Returns the functions of the source.
fn functions() -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(Path::new(HERE).join("src/interface")).unwrap() {
        let source = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let found = source.split("extern \"C\" fn keel_").skip(1);
        let found: Vec<_> = found
            .filter_map(|rest| Some(format!("keel_{}", rest.split_once('(')?.0)))
            .collect();
        assert_eq!(
            source.matches("#[unsafe(no_mangle)]").count(),
            found.len(),
            "each function has a name that C can find"
        );
        names.extend(found);
    }
    names
}

#[test]
fn the_committed_header_is_that_of_the_source() {
    let path = Path::new(HERE).join("include/keel.h");
    let text = generated();
    if std::env::var_os("KEEL_WRITE_HEADER").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    let differs = |(line, (first, second)): (usize, (&str, &str))| {
        (first != second).then(|| format!("line {}: {first:?}, generated {second:?}", line + 1))
    };
    let mut lines = committed.lines().zip(text.lines()).enumerate();
    assert_eq!(lines.find_map(differs), None);
    assert_eq!(committed.len(), text.len());
}

#[test]
fn every_exported_function_is_in_the_header() {
    let header = generated();
    let functions = functions();
    for name in &functions {
        assert!(header.contains(&format!("{name}(")), "{name}");
    }
    assert!(functions.len() > 20, "{}", functions.len());
}

#[test]
fn nothing_but_the_interface_is_exported() {
    let folder = std::env::current_exe().unwrap();
    let library = folder.parent().unwrap().join("libkeel.so");
    let output = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(library)
        .output();
    let Ok(output) = output else {
        println!("skipped: nm is not installed");
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let mut names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    names.sort_unstable();
    let mut wanted = functions();
    wanted.sort_unstable();
    assert_eq!(names, wanted);
}

#[test]
fn the_header_is_good_for_older_c_and_for_cpp() {
    let folder = std::env::temp_dir().join(format!("keel-header-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    for (compiler, standard, ending) in [("cc", "-std=c99", "c"), ("c++", "-std=c++11", "cc")] {
        let source = folder.join("program").with_extension(ending);
        let text = "#include \"keel.h\"\nint main(void) { return keel_version() == NULL; }\n";
        std::fs::write(&source, text).unwrap();
        let built = Command::new(compiler)
            .args([
                "-Wall",
                "-Wextra",
                "-Werror",
                "-pedantic",
                standard,
                "-c",
                "-o",
            ])
            .arg(folder.join("program.o"))
            .arg("-I")
            .arg(Path::new(HERE).join("include"))
            .arg(&source)
            .output();
        match built {
            Ok(built) => {
                let text = String::from_utf8_lossy(&built.stderr).into_owned();
                assert!(built.status.success(), "{compiler}: {text}");
            }
            Err(error) => println!("skipped: no {compiler}: {error}"),
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
