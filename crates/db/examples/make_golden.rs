//! Writes the golden files of the format that this code writes: `cargo run -p db --example make_golden`.

use std::path::PathBuf;

#[path = "../tests/golden/scenario.rs"]
mod scenario;

fn main() -> std::io::Result<()> {
    let version = db::log::codec::FORMAT_VERSION;
    let directory =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/format-{version}"));
    let owners = directory.with_file_name(format!("owners-{version}"));
    for (directory, store) in [
        (directory, scenario::write()),
        (owners, scenario::write_owners()),
    ] {
        std::fs::create_dir_all(&directory)?;
        for name in store.names() {
            let bytes = store.file(name).map(Vec::as_slice).unwrap_or_default();
            std::fs::write(directory.join(name), bytes)?;
            println!("{name}: {} bytes", bytes.len());
        }
    }
    let name = format!("tests/golden/table-{}", db::table::FORMAT_VERSION);
    std::fs::write(
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(&name),
        scenario::table(),
    )?;
    println!("{name}");
    Ok(())
}
