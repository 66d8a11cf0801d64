//! Tests that the committed header is what cbindgen generates from the source.
//!
//! After a change of the interface, `KEELFLASH_WRITE_HEADER=1 cargo test -p flash-c --test it header::` writes it
//! again.

use std::path::Path;

fn generated() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in [
        "failure.rs",
        "interface/text.rs",
        "interface/store.rs",
        "interface/upkeep.rs",
        "interface/file.rs",
    ] {
        builder = builder.with_src(folder.join("src").join(file));
    }
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn the_committed_header_is_that_of_the_source() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/keelflash.h");
    let text = generated();
    if std::env::var_os("KEELFLASH_WRITE_HEADER").is_some() {
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
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/interface");
    let header = generated();
    let mut functions = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let source = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        assert_eq!(
            source.matches("#[unsafe(no_mangle)]").count(),
            source.matches("extern \"C\" fn keelflash_").count(),
            "each function has a name that C can find"
        );
        for (at, _) in source.match_indices("extern \"C\" fn keelflash_") {
            let name = source[at + "extern \"C\" fn ".len()..]
                .split('(')
                .next()
                .unwrap();
            assert!(header.contains(&format!("{name}(")), "{name}");
            functions += 1;
        }
    }
    println!("{functions} functions");
    assert!(functions > 20);
}
