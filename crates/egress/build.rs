//! With the feature `web`, fetches the page's library for plots: npm compares it with the hash in
//! `web/package-lock.json`. Without the feature nothing is done.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Path in the package, and the name in the page.
const FILES: [(&str, &str); 3] = [
    ("dist/uPlot.iife.min.js", "uplot.js"),
    ("dist/uPlot.min.css", "uplot.css"),
    ("LICENSE", "uplot-license.txt"),
];

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_WEB").is_none() {
        return Ok(());
    }
    println!("cargo::rerun-if-changed=web/package.json");
    println!("cargo::rerun-if-changed=web/package-lock.json");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo names no OUT_DIR")?);
    // Separate from the sources, which may be in a read-only directory.
    let place = out.join("npm");
    std::fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    for name in ["package.json", "package-lock.json"] {
        copy(&Path::new("web").join(name), &place.join(name))?;
    }
    let npm = Command::new("npm")
        .args([
            "ci",
            "--ignore-scripts",
            "--omit=dev",
            "--no-audit",
            "--no-fund",
        ])
        .current_dir(&place)
        .output()
        .map_err(|error| {
            format!("npm: {error}; the feature web needs it: install npm, or build without web")
        })?;
    if !npm.status.success() {
        let said = String::from_utf8_lossy(&npm.stderr);
        return Err(format!(
            "npm ci failed; the feature web needs it once per build:\n{said}"
        ));
    }
    for (file, name) in FILES {
        copy(
            &place.join("node_modules/uplot").join(file),
            &out.join(name),
        )?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let copied = std::fs::copy(from, to);
    copied
        .map(drop)
        .map_err(|error| format!("{}: {error}", from.display()))
}
