//! The software bill of materials of a package, in CycloneDX form: every crate that its build takes, and the library of
//! the live page. `cargo metadata` knows crates, licences and edges; the lock files know checksums.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

/// The crate that carries the live page, and the lock file of what the page takes from npm.
const PAGE_CRATE: &str = "egress";
const PAGE_LOCK: &str = "crates/egress/web/package-lock.json";

/// Reference of the package itself.
const SUBJECT: &str = "evenkeel";

/// The part of `cargo metadata` that a bill needs.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    repository: Option<String>,
    /// Absent for crates of the workspace.
    source: Option<String>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<EdgeKind>,
}

#[derive(Deserialize)]
struct EdgeKind {
    /// Absent for what is compiled in; else `build` or `dev`.
    kind: Option<String>,
}

impl Edge {
    /// Returns whether the product has this edge, and whether it is more than one to a build script's tool.
    fn product(&self) -> Option<bool> {
        let kinds = || self.dep_kinds.iter().map(|one| one.kind.as_deref());
        let is_compiled_in = kinds().any(|kind| kind.is_none());
        (is_compiled_in || kinds().any(|kind| kind == Some("build"))).then_some(is_compiled_in)
    }
}

impl Package {
    fn is_macro(&self) -> bool {
        let mut kinds = self.targets.iter().flat_map(|target| &target.kind);
        kinds.any(|kind| kind == "proc-macro")
    }

    /// Returns the identifier that the rest of the bill uses. A crate of the workspace has no package URL: crates.io
    /// has others of the same names.
    fn reference(&self) -> String {
        match self.source {
            Some(_) => self.url(),
            None => format!("{}@{}", self.name, self.version),
        }
    }

    fn url(&self) -> String {
        let version = self.version.replace('+', "%2B");
        format!("pkg:cargo/{}@{version}", self.name)
    }

    fn component(
        &self,
        is_compiled_in: bool,
        checksums: &BTreeMap<(&str, &str), &str>,
    ) -> Result<Value, String> {
        let mut component = json!({
            "type": "library",
            "bom-ref": self.reference(),
            "name": self.name,
            "version": self.version,
            "scope": if is_compiled_in { "required" } else { "excluded" },
        });
        if let Some(license) = &self.license {
            // The form before SPDX expressions, which some crates still have.
            let choices: Vec<&str> = license.split('/').map(str::trim).collect();
            component["licenses"] = json!([{ "expression": choices.join(" OR ") }]);
        }
        if let Some(repository) = &self.repository {
            component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
        }
        if self.source.is_some() {
            let (name, version) = (self.name.as_str(), self.version.as_str());
            let checksum = checksums
                .get(&(name, version))
                .ok_or_else(|| format!("{name} {version} has no checksum in Cargo.lock"))?;
            component["purl"] = json!(self.url());
            component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        }
        Ok(component)
    }
}

/// The lock file of npm.
#[derive(Deserialize)]
struct PageLock {
    packages: BTreeMap<String, PagePackage>,
}

#[derive(Deserialize)]
struct PagePackage {
    version: String,
    license: Option<String>,
    integrity: Option<String>,
    #[serde(default)]
    dev: bool,
}

/// Returns the bill of a package of these crates for this target of rustc.
///
/// # Errors
/// A line if cargo or a file fails, or if one of the crates is not in the workspace.
pub(crate) fn document(root: &Path, target: &str, crates: &[&str]) -> Result<String, String> {
    let read = |path: &str| {
        fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: {error}"))
    };
    let metadata = cargo_metadata(root, target)?;
    let metadata: Metadata = serde_json::from_str(&metadata)
        .map_err(|error| format!("cargo metadata has an unknown form: {error}"))?;
    let mut bill = bill(&metadata, &read("Cargo.lock")?, &read(PAGE_LOCK)?, crates)?;
    bill["metadata"]["properties"] = json!([{ "name": "evenkeel:target", "value": target }]);
    // Packages of one commit are equal, so the time is the commit's.
    if let Ok(seconds) = std::env::var("SOURCE_DATE_EPOCH") {
        let seconds = seconds
            .parse()
            .map_err(|_| format!("SOURCE_DATE_EPOCH: {seconds:?} is no number of seconds"))?;
        bill["metadata"]["timestamp"] = json!(timestamp(seconds));
    }
    serde_json::to_string_pretty(&bill).map_err(|error| format!("bill of materials: {error}"))
}

fn cargo_metadata(root: &Path, target: &str) -> Result<String, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(["--filter-platform", target])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot start cargo metadata: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo metadata failed: {}", said.trim()));
    }
    String::from_utf8(output.stdout)
        .map_err(|error| format!("cargo metadata is not UTF-8: {error}"))
}

/// Returns the bill without what depends on the moment.
fn bill(metadata: &Metadata, lock: &str, page: &str, crates: &[&str]) -> Result<Value, String> {
    let packages: BTreeMap<&str, &Package> = metadata
        .packages
        .iter()
        .map(|package| (package.id.as_str(), package))
        .collect();
    let nodes: BTreeMap<&str, &[Edge]> = metadata
        .resolve
        .nodes
        .iter()
        .map(|node| (node.id.as_str(), node.deps.as_slice()))
        .collect();
    let roots = roots(metadata, crates)?;
    let reached = reached(&packages, &nodes, &roots)?;
    let checksums = checksums(lock);
    let mut components = Vec::new();
    let mut edges = vec![json!({
        "ref": SUBJECT,
        "dependsOn": sorted(roots.iter().map(|package| package.reference())),
    })];
    for (id, is_compiled_in) in &reached {
        let package = packages[id];
        components.push(package.component(*is_compiled_in, &checksums)?);
        let product = nodes[id].iter().filter(|edge| edge.product().is_some());
        let mut targets = sorted(product.map(|edge| packages[edge.pkg.as_str()].reference()));
        if package.name == PAGE_CRATE && package.source.is_none() {
            for (component, reference) in page_components(page)? {
                components.push(component);
                edges.push(json!({ "ref": reference, "dependsOn": [] }));
                targets.insert(reference);
            }
        }
        edges.push(json!({ "ref": package.reference(), "dependsOn": targets }));
    }
    components.sort_by(|a, b| a["bom-ref"].as_str().cmp(&b["bom-ref"].as_str()));
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "lifecycles": [{ "phase": "build" }],
            "tools": { "components": [{ "type": "application", "name": "cargo xtask sbom" }] },
            "authors": [{ "name": "The Evenkeel project" }],
            "component": {
                "type": "application",
                "bom-ref": SUBJECT,
                "name": SUBJECT,
                "version": roots.first().map(|package| package.version.as_str()),
            },
        },
        "components": components,
        "dependencies": edges,
    }))
}

/// Returns the packages of these names in the workspace. Others of the same names may be among the dependencies.
fn roots<'a>(metadata: &'a Metadata, crates: &[&str]) -> Result<Vec<&'a Package>, String> {
    let mut roots = Vec::new();
    for name in crates {
        let mut own = metadata.packages.iter();
        let package = own
            .find(|package| package.name == *name && package.source.is_none())
            .ok_or_else(|| format!("{name} is no crate of the workspace"))?;
        roots.push(package);
    }
    Ok(roots)
}

/// Returns every package that the product's build takes, and whether its code is compiled in. Macros and build scripts
/// run in the build, and so does all below them.
fn reached<'a>(
    packages: &BTreeMap<&'a str, &'a Package>,
    nodes: &BTreeMap<&'a str, &'a [Edge]>,
    roots: &[&'a Package],
) -> Result<BTreeMap<&'a str, bool>, String> {
    let mut reached: BTreeMap<&str, bool> = BTreeMap::new();
    let mut pending: Vec<(&str, bool)> =
        roots.iter().map(|root| (root.id.as_str(), true)).collect();
    while let Some((id, is_compiled_in)) = pending.pop() {
        let (Some(package), Some(edges)) = (packages.get(id), nodes.get(id)) else {
            return Err(format!(
                "cargo metadata names {id} and does not describe it"
            ));
        };
        let is_compiled_in = is_compiled_in && !package.is_macro();
        if reached
            .get(id)
            .is_some_and(|known| *known || !is_compiled_in)
        {
            continue;
        }
        reached.insert(id, is_compiled_in);
        for edge in *edges {
            if let Some(is_code) = edge.product() {
                pending.push((edge.pkg.as_str(), is_compiled_in && is_code));
            }
        }
    }
    Ok(reached)
}

fn sorted(references: impl Iterator<Item = String>) -> BTreeSet<String> {
    references.collect()
}

/// Returns the checksum of each package of the lock file, by name and version.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    let mut checksums = BTreeMap::new();
    let (mut name, mut version) = ("", "");
    for line in lock.lines() {
        let Some((key, value)) = line.split_once(" = ") else {
            continue;
        };
        let value = value.trim_matches('"');
        match key {
            "name" => name = value,
            "version" => version = value,
            "checksum" => {
                checksums.insert((name, version), value);
            }
            _ => {}
        }
    }
    checksums
}

/// Returns what the live page takes from npm, each with its reference.
fn page_components(lock: &str) -> Result<Vec<(Value, String)>, String> {
    let lock: PageLock = serde_json::from_str(lock)
        .map_err(|error| format!("{PAGE_LOCK} has an unknown form: {error}"))?;
    let mut components = Vec::new();
    for (path, package) in &lock.packages {
        let Some(name) = path.strip_prefix("node_modules/") else {
            continue;
        };
        if package.dev {
            continue;
        }
        let url = format!("pkg:npm/{}@{}", name.replace('@', "%40"), package.version);
        let hash = package
            .integrity
            .as_deref()
            .and_then(|hash| hash.strip_prefix("sha512-"))
            .and_then(|hash| STANDARD.decode(hash).ok())
            .ok_or_else(|| format!("{PAGE_LOCK}: {name} has no hash of the kind sha512"))?;
        let mut component = json!({
            "type": "library",
            "bom-ref": url,
            "name": name,
            "version": package.version,
            "scope": "required",
            "purl": url,
            "hashes": [{ "alg": "SHA-512", "content": hexadecimal(&hash) }],
        });
        if let Some(license) = &package.license {
            component["licenses"] = json!([{ "expression": license }]);
        }
        components.push((component, url));
    }
    Ok(components)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the time in UTC, from seconds since 1970.
fn timestamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Eras of 400 years, whose days are all alike; a year begins in March, so that a leap day is its last.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> String {
        let output = Command::new("rustc").arg("-vV").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let host = text.lines().find_map(|line| line.strip_prefix("host: "));
        host.unwrap().to_owned()
    }

    #[test]
    fn the_bill_of_a_node_agrees_with_the_lock_file() {
        let root = crate::workspace().unwrap();
        let text = document(&root, &host(), &["keel"]).unwrap();
        // A folder of the build says where it was made, and nothing of what is in it.
        assert!(!text.contains(root.to_str().unwrap()));
        let bill: Value = serde_json::from_str(&text).unwrap();
        let lock = fs::read_to_string(root.join("Cargo.lock")).unwrap();
        let checksums = checksums(&lock);
        let components = bill["components"].as_array().unwrap();
        let mut references = BTreeSet::from([SUBJECT]);
        for component in components {
            let text = |name: &str| component[name].as_str().unwrap();
            assert!(
                references.insert(text("bom-ref")),
                "{component} is there twice"
            );
            assert!(
                component["licenses"][0]["expression"].is_string(),
                "{component}"
            );
            if component["purl"]
                .as_str()
                .is_some_and(|url| url.starts_with("pkg:cargo/"))
            {
                let checksum = checksums.get(&(text("name"), text("version")));
                assert_eq!(
                    component["hashes"][0]["content"].as_str(),
                    checksum.copied()
                );
            }
        }
        let mut described = BTreeSet::new();
        for edges in bill["dependencies"].as_array().unwrap() {
            assert!(described.insert(edges["ref"].as_str().unwrap()));
            for to in edges["dependsOn"].as_array().unwrap() {
                assert!(
                    references.contains(to.as_str().unwrap()),
                    "{to} is no component"
                );
            }
        }
        assert_eq!(described, references);
        let scope = |name: &str| {
            let mut found = components.iter().filter(|one| one["name"] == name);
            found.next().map(|one| one["scope"].as_str().unwrap())
        };
        for name in ["base", "flash", "tokio", "ring", "uplot"] {
            assert_eq!(scope(name), Some("required"), "{name}");
        }
        // A macro runs in the compiler, and a tool of tests not at all.
        assert_eq!(scope("serde_derive"), Some("excluded"));
        assert_eq!(scope("clap_mangen"), None);
    }

    fn sample(kind: &str) -> Metadata {
        let text = r#"{"packages": [
            {"id": "a", "name": "keel", "version": "1.0.0", "license": "MIT", "targets": [{"kind": ["bin"]}]},
            {"id": "b", "name": "two", "version": "2.0.0+3", "license": "MIT/Apache-2.0", "source": "registry+x",
             "targets": [{"kind": ["lib"]}]}],
            "resolve": {"nodes": [{"id": "a", "deps": [{"pkg": "b", "dep_kinds": [{"kind": KIND}]}]},
                                  {"id": "b", "deps": []}]}}"#;
        serde_json::from_str(&text.replace("KIND", kind)).unwrap()
    }

    const LOCK: &str = "[[package]]\nname = \"two\"\nversion = \"2.0.0+3\"\nchecksum = \"ab\"\n";

    #[test]
    fn a_crate_of_the_build_alone_is_excluded_and_one_of_tests_is_not_named() {
        let of = |kind| bill(&sample(kind), LOCK, "{}", &["keel"]).unwrap();
        for (kind, scope) in [("null", "required"), (r#""build""#, "excluded")] {
            let bill = of(kind);
            let two = &bill["components"][1];
            assert_eq!(
                (&two["name"], &two["scope"]),
                (&json!("two"), &json!(scope))
            );
            assert_eq!(two["licenses"][0]["expression"], "MIT OR Apache-2.0");
            assert_eq!(two["purl"], "pkg:cargo/two@2.0.0%2B3");
        }
        assert_eq!(of(r#""dev""#)["components"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn a_crate_without_a_checksum_and_a_crate_of_another_workspace_are_refused() {
        let bill = |lock, name| bill(&sample("null"), lock, "{}", &[name]).unwrap_err();
        assert_eq!(
            bill("", "keel"),
            "two 2.0.0+3 has no checksum in Cargo.lock"
        );
        assert_eq!(bill(LOCK, "two"), "two is no crate of the workspace");
    }

    #[test]
    fn times_follow_the_calendar() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00Z");
        assert_eq!(timestamp(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(timestamp(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(timestamp(1_767_225_599), "2025-12-31T23:59:59Z");
    }
}
