//! The crate graph: which crate may depend on which, and which external crates are reserved to a few crates.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use super::finding::Finding;

/// Crates and the crates each may use, except `base`, which every crate may use. Planned crates are listed already, so
/// that the graph is complete and a new crate starts within its limits.
const EDGES: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("fuse", &[]),
    ("c-interface", &[]),
    ("flash", &[]),
    ("mem", &[]),
    ("stream", &[]),
    ("control", &[]),
    ("actuator", &["control"]),
    ("db", &["mem", "flash"]),
    ("command", &[]),
    ("tls", &[]),
    ("ingest", &["db", "tls"]),
    ("trace", &["db"]),
    (
        "demo",
        &["command", "db", "flash", "libkeel", "mem", "trace"],
    ),
    ("egress", &["db", "flash", "tls"]),
    ("cluster", &[]),
    (
        "config",
        &[
            "actuator", "cluster", "command", "control", "db", "egress", "ingest", "tls",
        ],
    ),
    (
        "node",
        &[
            "actuator", "cluster", "command", "config", "control", "db", "egress", "flash",
            "ingest", "libkeel", "mem", "tls",
        ],
    ),
    (
        "keel",
        &[
            "flash",
            "flash-mount",
            "mem",
            "mem-mount",
            "db",
            "control",
            "stream",
            "stream-mount",
            "cluster",
            "command",
            "config",
            "demo",
            "ingest",
            "egress",
            "libkeel",
            "node",
            "tls",
        ],
    ),
    ("flash-mount", &["flash", "fuse"]),
    ("flash-c", &["c-interface", "flash"]),
    ("flash-sqlite", &["flash"]),
    ("mem-mount", &["mem", "fuse"]),
    ("stream-mount", &["stream", "fuse"]),
    ("mem-preload", &["mem"]),
    ("keel-mpi", &["cluster"]),
    ("libkeel", &["actuator", "db", "mem"]),
    ("libkeel-c", &["c-interface", "libkeel"]),
    ("python", &["libkeel"]),
];

/// Additional edges for tests alone: a crate's tests may build the store that its production code is given.
const TEST_EDGES: &[(&str, &[&str])] = &[
    ("ingest", &["flash"]),
    // Programs in C are tested beside a node.
    ("keel", &["libkeel-c"]),
];

/// Tools, which may use anything and which nothing may use.
const TOOLS: &[&str] = &["bench", "fuzz", "sim", "xtask"];

/// External crates that only some crates may use, and their purpose.
struct Reserved {
    what: &'static str,
    crates: &'static [&'static str],
    rooms: &'static [&'static str],
    /// Crates whose tests and examples alone may use them.
    test_rooms: &'static [&'static str],
}

const RESERVED: &[Reserved] = &[
    Reserved {
        what: "async runtime",
        crates: &[
            "tokio",
            "async-std",
            "async-executor",
            "smol",
            "futures-executor",
            "glommio",
            "monoio",
            "compio",
        ],
        rooms: &[
            "ingest", "egress", "stream", "tls", "node", "keel", "sim", "bench",
        ],
        test_rooms: &[],
    },
    Reserved {
        what: "peer to measure against",
        crates: &[
            "heed",
            "lmdb",
            "rocksdb",
            "littlefs2",
            "dashmap",
            "redb",
            "fjall",
            "sled",
            "rusqlite",
            "sequential-storage",
        ],
        rooms: &["bench"],
        // The tests compare its extension with SQLite itself.
        test_rooms: &["flash-sqlite"],
    },
    Reserved {
        what: "MPI",
        crates: &["mpi", "mpi-sys"],
        rooms: &["keel-mpi"],
        test_rooms: &[],
    },
];

/// The part of `cargo metadata` that the rules need.
pub(crate) struct Workspace {
    pub(crate) crates: Vec<Crate>,
    /// Library roots, relative to the workspace.
    pub(crate) libraries: Vec<String>,
}

/// One workspace crate and the crates in its manifest.
pub(crate) struct Crate {
    pub(crate) name: String,
    /// Relative path of its `Cargo.toml`.
    pub(crate) manifest: String,
    /// Names of dependencies of every kind, and whether the edge is for tests alone.
    pub(crate) dependencies: Vec<(String, bool)>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: String,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: String,
}

impl Workspace {
    /// Reads the JSON of `cargo metadata --no-deps --format-version 1`.
    ///
    /// # Errors
    /// A message if the JSON has another format.
    pub(crate) fn parse(json: &str, root: &Path) -> Result<Self, String> {
        let metadata: Metadata = serde_json::from_str(json)
            .map_err(|error| format!("cargo metadata has an unknown shape: {error}"))?;
        let relative = |path: &str| {
            Path::new(path)
                .strip_prefix(root)
                .unwrap_or(Path::new(path))
                .display()
                .to_string()
        };
        let mut crates = Vec::new();
        let mut libraries = Vec::new();
        for package in metadata.packages {
            let is_library = |target: &&Target| target.kind.iter().any(|kind| kind.contains("lib"));
            libraries.extend(
                package
                    .targets
                    .iter()
                    .filter(is_library)
                    .map(|target| relative(&target.src_path)),
            );
            let edge = |edge: Dependency| (edge.name, edge.kind.as_deref() == Some("dev"));
            crates.push(Crate {
                name: package.name,
                manifest: relative(&package.manifest_path),
                dependencies: package.dependencies.into_iter().map(edge).collect(),
            });
        }
        Ok(Self { crates, libraries })
    }

    /// Returns the names of all workspace crates.
    pub(crate) fn names(&self) -> Vec<String> {
        self.crates.iter().map(|one| one.name.clone()).collect()
    }
}

/// Finds every edge between workspace crates that is not in the graph.
pub(crate) fn check_edges(workspace: &Workspace) -> Vec<Finding> {
    let names: BTreeSet<&str> = workspace
        .crates
        .iter()
        .map(|one| one.name.as_str())
        .collect();
    let mut findings = Vec::new();
    for one in &workspace.crates {
        let Some(room_edges) = edges_of(EDGES, &one.name) else {
            if !TOOLS.contains(&one.name.as_str()) {
                let text = format!(
                    "crate {} is not in the drawing of rooms: add it to the edges with its issue",
                    one.name
                );
                findings.push(Finding::new(&one.manifest, 0, "edges", text));
            }
            continue;
        };
        let test_edges = edges_of(TEST_EDGES, &one.name).unwrap_or(&[]);
        for (to, for_tests) in one
            .dependencies
            .iter()
            .filter(|(to, _)| names.contains(to.as_str()))
        {
            let to = to.as_str();
            let permitted = to == "base" && one.name != "base"
                || room_edges.contains(&to)
                || *for_tests && test_edges.contains(&to);
            if !permitted {
                let kind = if *for_tests { " (for tests)" } else { "" };
                let text = format!("{} must not depend on {to}{kind}", one.name);
                findings.push(Finding::new(&one.manifest, 0, "edges", text));
            }
        }
    }
    findings
}

fn edges_of(table: &'static [(&str, &[&str])], name: &str) -> Option<&'static [&'static str]> {
    table
        .iter()
        .find(|(room, _)| *room == name)
        .map(|(_, edges)| *edges)
}

/// Finds reserved external crates that a crate reaches, directly or through the lock file's closure.
pub(crate) fn check_reserved(workspace: &Workspace, lock: &str) -> Vec<Finding> {
    let graph = parse_lock(lock);
    let workspace_names: BTreeSet<&str> = workspace
        .crates
        .iter()
        .map(|one| one.name.as_str())
        .collect();
    let mut findings = Vec::new();
    for one in &workspace.crates {
        // The search stops at workspace crates: each is checked itself.
        let reached = |with_tests: bool| {
            let outside = one
                .dependencies
                .iter()
                .filter(|(_, for_tests)| with_tests || !for_tests)
                .map(|(name, _)| name.as_str())
                .filter(|name| !workspace_names.contains(name));
            closure(&graph, outside.collect())
        };
        let (reached_by_all, reached_by_product) = (reached(true), reached(false));
        for reserved in RESERVED
            .iter()
            .filter(|reserved| !reserved.rooms.contains(&one.name.as_str()))
        {
            let reached = if reserved.test_rooms.contains(&one.name.as_str()) {
                &reached_by_product
            } else {
                &reached_by_all
            };
            for name in reserved
                .crates
                .iter()
                .filter(|name| reached.contains(**name))
            {
                let text = format!(
                    "{} reaches {name} ({}), which is only for {}",
                    one.name,
                    reserved.what,
                    reserved.rooms.join(", ")
                );
                findings.push(Finding::new(&one.manifest, 0, "reserved", text));
            }
        }
    }
    findings
}

fn closure<'a>(
    graph: &BTreeMap<&'a str, BTreeSet<&'a str>>,
    start: Vec<&'a str>,
) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut pending = start;
    while let Some(name) = pending.pop() {
        if reached.insert(name) {
            pending.extend(graph.get(name).into_iter().flatten());
        }
    }
    reached
}

/// Returns package names and the names they depend on; versions of one name are merged, which can only add edges.
fn parse_lock(lock: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut graph: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut package = "";
    let mut in_dependencies = false;
    for line in lock.lines() {
        if let Some(name) = line.strip_prefix("name = ") {
            package = name.trim_matches('"');
        } else if line.starts_with("dependencies = [") {
            in_dependencies = true;
        } else if line == "]" {
            in_dependencies = false;
        } else if in_dependencies
            && let Some(name) = line.trim().trim_matches([',', '"']).split(' ').next()
        {
            graph.entry(package).or_default().insert(name);
        }
    }
    graph
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(crates: &[(&str, &[(&str, bool)])]) -> Workspace {
        let crates = crates.iter().map(|(name, dependencies)| Crate {
            name: (*name).to_owned(),
            manifest: format!("crates/{name}/Cargo.toml"),
            dependencies: dependencies
                .iter()
                .map(|(to, for_tests)| ((*to).to_owned(), *for_tests))
                .collect(),
        });
        Workspace {
            crates: crates.collect(),
            libraries: Vec::new(),
        }
    }

    #[test]
    fn an_edge_outside_the_drawing_is_found() {
        let findings = check_edges(&workspace(&[
            ("base", &[]),
            ("db", &[]),
            ("flash", &[("base", false), ("db", false)]),
        ]));
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].text, "flash must not depend on db");
    }

    #[test]
    fn test_edges_serve_tests_alone() {
        let crates: &[(&str, &[(&str, bool)])] = &[("flash", &[]), ("ingest", &[("flash", true)])];
        assert!(check_edges(&workspace(crates)).is_empty());
        let crates: &[(&str, &[(&str, bool)])] = &[("flash", &[]), ("ingest", &[("flash", false)])];
        assert_eq!(check_edges(&workspace(crates)).len(), 1);
    }

    #[test]
    fn an_unknown_crate_and_a_used_tool_are_found() {
        let findings = check_edges(&workspace(&[
            ("utils", &[]),
            ("bench", &[]),
            ("db", &[("bench", true)]),
        ]));
        assert_eq!(findings.len(), 2);
    }

    #[test]
    fn a_runtime_is_found_directly_and_through_the_lock() {
        let lock = "[[package]]\nname = \"helper\"\ndependencies = [\n \"tokio\",\n]\n";
        for dependency in ["tokio", "helper"] {
            let findings = check_reserved(&workspace(&[("flash", &[(dependency, false)])]), lock);
            assert_eq!(findings.len(), 1, "{dependency}");
            assert!(findings[0].text.contains("async runtime"));
        }
        assert!(check_reserved(&workspace(&[("egress", &[("tokio", false)])]), lock).is_empty());
    }

    #[test]
    fn a_peer_outside_bench_is_found() {
        let findings = check_reserved(
            &workspace(&[("bench", &[("redb", false)]), ("db", &[("redb", true)])]),
            "",
        );
        assert_eq!(findings.len(), 1);
        assert!(findings[0].text.starts_with("db reaches redb"));
    }

    #[test]
    fn a_peer_may_serve_the_tests_of_a_room_that_is_named_for_it() {
        let with = |for_tests| {
            let crates: &[(&str, &[(&str, bool)])] =
                &[("flash-sqlite", &[("rusqlite", for_tests)])];
            check_reserved(&workspace(crates), "").len()
        };
        assert_eq!((with(true), with(false)), (0, 1));
    }

    #[test]
    fn metadata_is_read() {
        let json = r#"{"packages": [{"name": "db", "manifest_path": "/w/crates/db/Cargo.toml",
            "dependencies": [{"name": "base", "kind": null}, {"name": "proptest", "kind": "dev"}],
            "targets": [{"kind": ["lib"], "src_path": "/w/crates/db/src/lib.rs"}]}]}"#;
        let parsed = Workspace::parse(json, Path::new("/w")).expect("known shape");
        assert_eq!(parsed.libraries, ["crates/db/src/lib.rs"]);
        assert_eq!(
            parsed.crates[0].dependencies[1],
            ("proptest".to_owned(), true)
        );
        assert!(Workspace::parse("{}", Path::new("/w")).is_err());
    }
}
