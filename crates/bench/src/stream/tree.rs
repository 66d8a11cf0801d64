//! A folder with a program, its libraries and its data, as on this machine. It is the tree that is published, and that
//! the peers have on their disks.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

/// Maximum number of symbolic links on the way to a file, as in the kernel.
const LINKS_MAX: u32 = 40;

/// Mount points for the kernel's file systems, present in every tree.
pub(crate) const PLACES: [(&str, bool); 5] = [
    ("proc", true),
    ("tmp", true),
    ("dev", true),
    ("dev/null", false),
    ("dev/urandom", false),
];

/// The index by which the loader finds libraries directly.
const LIBRARY_INDEX: &str = "/etc/ld.so.cache";

/// The folder while it is being filled.
pub(crate) struct Tree {
    root: PathBuf,
    /// Files already added, by their path on this machine.
    files: BTreeSet<PathBuf>,
}

impl Tree {
    /// Creates a new folder that contains only the places of every tree.
    ///
    /// # Errors
    /// One line with the path.
    pub(crate) fn create(root: &Path) -> Result<Self, String> {
        let tree = Self {
            root: root.to_owned(),
            files: BTreeSet::new(),
        };
        make_directory(root)?;
        for (name, is_directory) in PLACES {
            let path = root.join(name);
            if is_directory {
                make_directory(&path)?;
            } else {
                fs::write(&path, b"").map_err(|error| named(&path, &error))?;
            }
        }
        Ok(tree)
    }

    /// Adds what is at a path of this machine: a file, or a directory without its content, with all links and
    /// directories on the way.
    ///
    /// # Errors
    /// One line with the path.
    pub(crate) fn add(&mut self, path: &Path) -> Result<(), String> {
        let mut todo: VecDeque<PathBuf> = parts(path);
        let mut at = PathBuf::from("/");
        let mut links = 0;
        while let Some(part) = todo.pop_front() {
            if part == Path::new("..") {
                at.pop();
                continue;
            }
            let next = at.join(&part);
            let data = fs::symlink_metadata(&next).map_err(|error| named(&next, &error))?;
            let inside = self.inside(&next);
            if data.is_symlink() {
                links += 1;
                if links > LINKS_MAX {
                    return Err(format!("{}: too many links", path.display()));
                }
                let target = fs::read_link(&next).map_err(|error| named(&next, &error))?;
                if fs::symlink_metadata(&inside).is_err() {
                    symlink(&target, &inside).map_err(|error| named(&inside, &error))?;
                }
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                let mut rest = parts(&target);
                rest.append(&mut todo);
                todo = rest;
            } else if data.is_dir() {
                make_directory(&inside)?;
                at = next;
            } else {
                if data.is_file() && self.files.insert(next.clone()) {
                    copy(&next, &inside)?;
                }
                at = next;
            }
        }
        Ok(())
    }

    /// Adds a directory with all its content, except what `is_left_out`. Dangling links are left out.
    ///
    /// # Errors
    /// One line with the path.
    pub(crate) fn add_all(
        &mut self,
        directory: &Path,
        is_left_out: &dyn Fn(&Path) -> bool,
    ) -> Result<(), String> {
        self.add(directory)?;
        let failed = |error: std::io::Error| named(directory, &error);
        for entry in fs::read_dir(directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let Ok(data) = fs::symlink_metadata(&path) else {
                continue;
            };
            if is_left_out(&path) || (data.is_symlink() && fs::metadata(&path).is_err()) {
                continue;
            }
            if data.is_dir() {
                self.add_all(&path, is_left_out)?;
            } else {
                self.add(&path)?;
            }
        }
        Ok(())
    }

    /// Adds what is at a path if it exists.
    ///
    /// # Errors
    /// One line with the path.
    pub(crate) fn add_if_there(&mut self, path: &Path) -> Result<(), String> {
        if path.exists() {
            self.add(path)
        } else {
            Ok(())
        }
    }

    /// Adds a file with the given content.
    ///
    /// # Errors
    /// One line with the path.
    pub(crate) fn write(&self, path: &str, bytes: &[u8]) -> Result<(), String> {
        let inside = self.inside(Path::new(path));
        if let Some(parent) = inside.parent() {
            fs::create_dir_all(parent).map_err(|error| named(parent, &error))?;
        }
        fs::write(&inside, bytes).map_err(|error| named(&inside, &error))
    }

    /// Adds the libraries of all programs and libraries in the tree, and their dependencies in turn, as the loader of
    /// this machine finds them.
    ///
    /// # Errors
    /// One line with the path, or that `ldd` is missing.
    pub(crate) fn add_libraries(&mut self) -> Result<(), String> {
        self.add_if_there(Path::new(LIBRARY_INDEX))?;
        let elf: Vec<PathBuf> = self
            .files
            .iter()
            .filter(|path| is_elf(path))
            .cloned()
            .collect();
        let output = Command::new("ldd")
            .args(&elf)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("ldd: {error}"))?;
        // `ldd` fails if one of the files has no libraries; it still lists those of the others.
        for library in libraries(&String::from_utf8_lossy(&output.stdout)) {
            self.add(&library)?;
        }
        Ok(())
    }

    /// Returns the folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn inside(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// Returns the total bytes of the files below a folder and their number; hard links count once per name.
///
/// # Errors
/// One line with the path.
pub(crate) fn extent(folder: &Path) -> Result<(u64, u64), String> {
    let mut total = (0, 0);
    for entry in fs::read_dir(folder).map_err(|error| named(folder, &error))? {
        let path = entry.map_err(|error| named(folder, &error))?.path();
        let data = fs::symlink_metadata(&path).map_err(|error| named(&path, &error))?;
        let (bytes, files) = if data.is_dir() {
            extent(&path)?
        } else {
            (data.len(), 1)
        };
        total = (total.0 + bytes, total.1 + files);
    }
    Ok(total)
}

/// Returns the paths in the output of `ldd`: after the arrow, or alone.
fn libraries(text: &str) -> BTreeSet<PathBuf> {
    let lines = text.lines().filter(|line| line.starts_with('\t'));
    let found = lines.filter_map(|line| {
        let from = line.split_once("=>").map_or(line, |(_, path)| path);
        let path = from.split_once(" (").map_or(from, |(path, _)| path).trim();
        path.starts_with('/').then(|| PathBuf::from(path))
    });
    found.collect()
}

fn parts(path: &Path) -> VecDeque<PathBuf> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(PathBuf::from(name)),
        Component::ParentDir => Some(PathBuf::from("..")),
        _ => None,
    });
    parts.collect()
}

fn is_elf(path: &Path) -> bool {
    let mut magic = [0; 4];
    // Object files have the magic number, too, but are only data; they are recognised by their suffix.
    let is_object = path.as_os_str().as_bytes().ends_with(b".o");
    !is_object
        && File::open(path).is_ok_and(|mut file| file.read_exact(&mut magic).is_ok())
        && magic == *b"\x7fELF"
}

fn make_directory(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|error| named(path, &error))
}

/// Copies a file with its mode and modification time: Python checks its compiled files by that time.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| named(from, &error);
    fs::copy(from, to).map_err(failed)?;
    let data = fs::metadata(from).map_err(failed)?;
    let file = File::options().write(true).open(to).map_err(failed)?;
    file.set_modified(data.modified().map_err(failed)?)
        .map_err(failed)?;
    // Drop set-user-ID and similar bits: no program here may run as another user.
    let mode = data.permissions().mode() & 0o777;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).map_err(failed)
}

fn named(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_parsed_from_the_output_of_ldd() {
        let text = "/usr/bin/a:\n\tlinux-vdso.so.1 (0x00007ffe)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux.so.2 (0x7f)\n/b.so:\n\tstatically linked\n\tlibgone.so => not found\n";
        let expected = ["/lib/x/libc.so.6", "/lib64/ld-linux.so.2"].map(PathBuf::from);
        assert_eq!(libraries(text), BTreeSet::from(expected));
    }

    #[test]
    fn a_program_comes_with_its_links_and_libraries_and_its_time() {
        let folder = std::env::temp_dir().join(format!("keel-bench-tree-{}", std::process::id()));
        let mut tree = Tree::create(&folder).unwrap();
        let shell = Path::new("/bin/sh");
        tree.add(shell).unwrap();
        tree.add_libraries().unwrap();
        let real = fs::canonicalize(shell).unwrap();
        let inside = tree.inside(&real);
        assert_eq!(fs::read(&inside).unwrap(), fs::read(&real).unwrap());
        let time = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        assert_eq!(time(&inside), time(&real));
        assert!(tree.files.len() > 1, "{:?}", tree.files);
        assert!(folder.join("dev/null").is_file());
        let (bytes, files) = extent(&folder).unwrap();
        assert!(bytes > 4096 && files > 3);
        fs::remove_dir_all(&folder).unwrap();
    }
}
