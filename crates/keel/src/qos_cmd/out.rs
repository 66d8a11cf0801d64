//! Writes the files of `keel qos identify` and `design`: a new file, or one that replaces another.

use crate::error::CliError;
use crate::replacement::Replacement;
use std::fs::{File, FileType, Metadata};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A checked path: there is no file yet, or a regular one.
pub(super) struct Out {
    given: PathBuf,
    /// The target of links: the file is replaced, the link stays.
    target: PathBuf,
    old: Option<Metadata>,
}

impl Out {
    /// Checks `given`. `input` is the file that the command reads; it must not be overwritten by mistake.
    ///
    /// # Errors
    /// The path is no regular file, is `input` or the destination of standard output, or must not be written.
    pub(super) fn look(given: &Path, input: Option<&Path>) -> Result<Self, CliError> {
        let shown = &given.display();
        let refused = |wrong: &str| Err(CliError::failure(shown, wrong, "name another file"));
        if given == Path::new("-") {
            return refused("is no file: standard output has what the command says");
        }
        let failed = |error: std::io::Error| CliError::io(shown, &error);
        let found = match std::fs::metadata(given) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if given.symlink_metadata().is_ok() {
                    return refused("is a symbolic link to nothing");
                }
                if given.as_os_str().as_bytes().ends_with(b"/") {
                    return refused("is the name of a directory");
                }
                return Ok(Self {
                    given: given.to_owned(),
                    target: given.to_owned(),
                    old: None,
                });
            }
            found => found.map_err(failed)?,
        };
        if !found.is_file() {
            return refused(&format!("is {}", kind_name(found.file_type())));
        }
        let is = |other: Option<Metadata>| {
            other.is_some_and(|other| (other.dev(), other.ino()) == (found.dev(), found.ino()))
        };
        if is(input.and_then(|input| std::fs::metadata(input).ok())) {
            return refused("is the file that is read");
        }
        // Replacing this file would lose what other streams write to it.
        if is(open_file(&std::io::stdout())) || is(open_file(&std::io::stderr())) {
            return refused("is where the command's words go");
        }
        // A user without write permission for the file must not replace it either. Do not block if a FIFO has taken its
        // place meanwhile.
        File::options()
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(given)
            .map_err(failed)?;
        Ok(Self {
            given: given.to_owned(),
            target: given.canonicalize().map_err(failed)?,
            old: Some(found),
        })
    }

    /// Checks whether a file of this size can be made there; the trial leaves nothing behind.
    ///
    /// # Errors
    /// The error that [`write`](Self::write) would return.
    pub(super) fn try_bytes(&self, bytes: usize) -> Result<(), CliError> {
        let mut trial = self.begin()?;
        trial.write(&vec![b'#'; bytes])?;
        trial.sync()
    }

    /// Writes the file completely or not at all.
    ///
    /// # Errors
    /// The error of the system; the old file then stays.
    pub(super) fn write(&self, text: &str) -> Result<(), CliError> {
        let mut file = self.begin()?;
        file.write(text.as_bytes())?;
        file.finish()
    }

    fn begin(&self) -> Result<Replacement, CliError> {
        Replacement::begin(&self.given, &self.target, self.old.as_ref(), "qos")
    }
}

/// Returns the metadata of the file behind a stream of this program.
fn open_file(stream: &impl AsFd) -> Option<Metadata> {
    let same = stream.as_fd().try_clone_to_owned().ok()?;
    File::from(same).metadata().ok()
}

fn kind_name(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A folder that is removed after the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("keel-out-{name}-{}", std::process::id()));
            std::fs::remove_dir_all(&path).ok();
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(&self.0).unwrap();
            let mut names: Vec<String> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    fn refused(given: &Path, input: Option<&Path>) -> String {
        match Out::look(given, input).map(|out| out.write("new\n")) {
            Err(error) => error.to_string(),
            Ok(written) => panic!("{}: {written:?}", given.display()),
        }
    }

    #[test]
    fn only_a_regular_file_is_replaced() {
        let folder = Folder::new("kinds");
        let at = |name: &str| folder.0.join(name);
        let socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let fifo = std::ffi::CString::new(at("fifo").as_os_str().as_bytes()).unwrap();
        // SAFETY: the path ends with a zero and lives until the call returns.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        // Use a device node of its own: if the test replaced it through a link to the system's, all programs would lose
        // the device.
        let device = std::ffi::CString::new(at("device").as_os_str().as_bytes()).unwrap();
        // SAFETY: as above.
        let made =
            unsafe { libc::mknod(device.as_ptr(), libc::S_IFCHR | 0o600, libc::makedev(1, 3)) };
        if made != 0 {
            println!("skipped: a device, which takes root");
        }
        std::os::unix::fs::symlink("nothing", at("dangling")).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        std::fs::write(at("model"), "old\n").unwrap();
        let model = at("model");
        let before = folder.names();
        for (name, said) in [
            ("socket", "is a socket; name another file"),
            ("fifo", "is a FIFO; name another file"),
            ("device", "is a device; name another file"),
            ("dangling", "is a symbolic link to nothing; name"),
            ("folder", "is a directory; name"),
            ("new/", "is the name of a directory; name"),
            ("model", "is the file that is read; name"),
            ("./model", "is the file that is read; name"),
        ] {
            if name == "device" && made != 0 {
                continue;
            }
            let wrong = refused(&at(name), Some(&model));
            assert!(wrong.contains(said), "{name}: {wrong}");
        }
        assert!(refused(Path::new("-"), None).contains("is no file"));
        assert!(refused(Path::new("/"), None).contains("is a directory"));
        assert_eq!(folder.names(), before);
        assert_eq!(std::fs::read_to_string(at("model")).unwrap(), "old\n");
        assert!(
            std::fs::symlink_metadata(at("fifo"))
                .unwrap()
                .file_type()
                .is_fifo()
        );
        drop(socket);
    }

    #[test]
    fn a_link_stays_and_the_file_behind_it_is_replaced_with_its_permissions() {
        let folder = Folder::new("links");
        let at = |name: &str| folder.0.join(name);
        std::fs::create_dir(at("behind")).unwrap();
        std::fs::write(at("behind/gains"), "old\n").unwrap();
        let mode = std::fs::Permissions::from_mode(0o640);
        std::fs::set_permissions(at("behind/gains"), mode).unwrap();
        std::os::unix::fs::symlink("behind/gains", at("link")).unwrap();
        let out = Out::look(&at("link"), None).unwrap();
        out.try_bytes(10_000).unwrap();
        assert_eq!(
            std::fs::read_to_string(at("link")).unwrap(),
            "old\n",
            "a trial changes nothing"
        );
        out.write("new\n").unwrap();
        assert!(at("link").symlink_metadata().unwrap().is_symlink());
        assert_eq!(
            std::fs::read_to_string(at("behind/gains")).unwrap(),
            "new\n"
        );
        let found = std::fs::metadata(at("behind/gains")).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o640);
        // Nothing is left beside it, and the missing file exists now.
        assert_eq!(std::fs::read_dir(at("behind")).unwrap().count(), 1);
        Out::look(&at("fresh"), None).unwrap().write("1\n").unwrap();
        assert_eq!(folder.names(), ["behind", "fresh", "link"]);
        let nowhere = at("none").join("gains");
        let wrong = Out::look(&nowhere, None).unwrap().try_bytes(1).unwrap_err();
        assert!(wrong.to_string().contains("no such file"), "{wrong}");
    }
}
