//! `keel flash get`: a file of the store to standard output or to a file, and what can be saved of a damaged one.

use super::{Access, file_error, is_dash, name_text, open, refuse_the_image, standard_metadata};
use crate::error::CliError;
use crate::output::Output;
use crate::progress::Progress;
use crate::signals;
use base::block::FileDevice;
use flash::{FileHandle, PAYLOAD_BYTES, Store};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes read at a time: whole blocks, so that a read that fails can be repeated block by block.
const READ_BYTES: usize = 256 * PAYLOAD_BYTES;

pub(super) fn get(image: &Path, name: &OsStr, to: &Path, salvage: bool) -> Result<u8, CliError> {
    let name = name_text(name)?;
    let (target, shown) = if is_dash(to) {
        (
            standard_metadata(&io::stdout()),
            "standard output".to_owned(),
        )
    } else {
        (std::fs::metadata(to).ok(), to.display().to_string())
    };
    refuse_the_image(image, target.as_ref(), &shown)?;
    let mut store = open(image, Access::Read)?;
    let file = store
        .open_file(name)
        .map_err(|error| file_error(image, name, &error))?;
    let mut sink = Sink::open(to)?;
    let progress = Progress::start(format!("reading {name}"));
    let copied = copy(&mut store, file, salvage, &mut sink, &progress);
    drop(progress);
    let copied = match copied {
        Ok(copied) => copied,
        Err(Stop::Store(error)) => {
            // What lies before the damage has been read: it goes out.
            sink.hand_over()?;
            return Err(damage_error(image, name, &error));
        }
        Err(Stop::Sink(error)) => return Err(error),
    };
    sink.finish()?;
    if copied.unreadable > 0 {
        return Err(CliError::failure(
            name,
            format!(
                "{} of {} bytes could not be read and are zeros in {shown}",
                copied.unreadable, copied.length
            ),
            format!("see all damage with `keel flash check {}`", image.display()),
        ));
    }
    Ok(0)
}

fn damage_error(image: &Path, name: &str, error: &flash::Error) -> CliError {
    match error {
        flash::Error::Damaged { .. } => CliError::failure(
            name,
            error,
            "add --salvage to get what can be read, with zeros for the rest",
        ),
        other => file_error(image, name, other),
    }
}

struct Copied {
    length: u64,
    /// Bytes for which zeros were written.
    unreadable: u64,
}

/// Why copying ended early.
enum Stop {
    Store(flash::Error),
    Sink(CliError),
}

fn copy(
    store: &mut Store<FileDevice>,
    file: FileHandle,
    salvage: bool,
    sink: &mut Sink,
    progress: &Progress,
) -> Result<Copied, Stop> {
    let length = store.length(file).map_err(Stop::Store)?;
    let mut copied = Copied {
        length,
        unreadable: 0,
    };
    let mut buffer = vec![0; READ_BYTES];
    let mut offset = 0;
    // Up to here block by block, because something in between cannot be read.
    let mut blockwise_end = 0;
    while offset < length && sink.is_open() {
        sink.check_stop().map_err(Stop::Sink)?;
        let blockwise = offset < blockwise_end;
        let step = if blockwise { PAYLOAD_BYTES } else { READ_BYTES } as u64;
        let bytes = step.min(length - offset) as usize;
        match store.read(file, offset, &mut buffer[..bytes]) {
            // The length is as it was: nobody else writes to this store.
            Ok(_) => {}
            Err(error) if !is_unreadable(&error) => return Err(Stop::Store(error)),
            Err(_) if bytes > PAYLOAD_BYTES => {
                blockwise_end = offset + bytes as u64;
                continue;
            }
            Err(_) if salvage => {
                buffer[..bytes].fill(0);
                copied.unreadable += bytes as u64;
            }
            Err(error) => return Err(Stop::Store(error)),
        }
        sink.write(&buffer[..bytes]).map_err(Stop::Sink)?;
        progress.add(bytes);
        offset += bytes as u64;
    }
    Ok(copied)
}

/// Whether the failure is that of single blocks, so that others may still be read.
fn is_unreadable(error: &flash::Error) -> bool {
    use base::block::DeviceError;
    matches!(
        error,
        flash::Error::Damaged { .. }
            | flash::Error::Device(DeviceError::Io {
                operation: "read",
                ..
            })
    )
}

/// Where bytes go.
enum Sink {
    Output(Output),
    /// Something that cannot be replaced: a terminal, a pipe, `/dev/null`.
    Special(File, String),
    File(Replacement),
}

impl Sink {
    fn open(to: &Path) -> Result<Self, CliError> {
        if is_dash(to) {
            return Ok(Self::Output(Output::new()));
        }
        let shown = to.display().to_string();
        let failed = |error: io::Error| CliError::io(&shown, &error);
        let found = match std::fs::metadata(to) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if to.symlink_metadata().is_ok() {
                    return Err(CliError::failure(
                        shown,
                        "is a symbolic link to nothing",
                        "remove it, or name another file",
                    ));
                }
                return Replacement::begin(to, to, None).map(Self::File);
            }
            Err(error) => return Err(failed(error)),
        };
        if found.is_dir() {
            return Err(CliError::failure(
                shown,
                "is a directory",
                "name a file in it",
            ));
        }
        // Also where the file will be replaced: who may not write to it may not do that either.
        let file = File::options().write(true).open(to).map_err(failed)?;
        if found.is_file() {
            let target = to.canonicalize().map_err(failed)?;
            Replacement::begin(to, &target, Some(&found)).map(Self::File)
        } else {
            Ok(Self::Special(file, shown))
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        match self {
            Self::Output(out) => out.bytes(bytes),
            Self::Special(file, shown) => file
                .write_all(bytes)
                .map_err(|error| CliError::io(&*shown, &error)),
            Self::File(file) => {
                let written = file.file.write_all(bytes);
                written.map_err(|error| CliError::io(&file.shown, &error))
            }
        }
    }

    fn is_open(&self) -> bool {
        match self {
            Self::Output(out) => out.is_open(),
            Self::Special(..) | Self::File(_) => true,
        }
    }

    /// The temporary file has to go when somebody interrupts.
    fn check_stop(&self) -> Result<(), CliError> {
        match self {
            Self::File(file) if signals::stop_requested() => Err(CliError::failure(
                &file.shown,
                "interrupted; nothing was written",
                "",
            )),
            _ => Ok(()),
        }
    }

    /// Lets out what has been written so far, to where that is of use.
    fn hand_over(&mut self) -> Result<(), CliError> {
        match self {
            Self::Output(out) => out.flush(),
            Self::Special(..) | Self::File(_) => Ok(()),
        }
    }

    fn finish(mut self) -> Result<(), CliError> {
        self.hand_over()?;
        match self {
            Self::Output(_) | Self::Special(..) => Ok(()),
            Self::File(file) => file.finish(),
        }
    }
}

/// A file that takes the place of another one when it is whole; until then it lies beside it.
struct Replacement {
    file: File,
    /// Its path until it is whole.
    path: PathBuf,
    target: PathBuf,
    shown: String,
}

impl Replacement {
    /// `old` is what is known of the file at `target`, if there is one.
    fn begin(to: &Path, target: &Path, old: Option<&Metadata>) -> Result<Self, CliError> {
        let folder = match target.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        signals::catch_stop();
        let path = folder.join(format!(".keel-get-{}.tmp", std::process::id()));
        let failed = |error: io::Error| CliError::io(folder.display(), &error);
        // One that is there can only be left over from a process of the same number that was killed.
        std::fs::remove_file(&path).ok();
        let mode = if old.is_some() { 0o600 } else { 0o666 };
        let file = File::options()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&path)
            .map_err(failed)?;
        let made = Self {
            file,
            path,
            target: target.to_path_buf(),
            shown: to.display().to_string(),
        };
        if let Some(old) = old {
            // Only root may give files away; for all others the new one is theirs.
            std::os::unix::fs::fchown(&made.file, Some(old.uid()), Some(old.gid())).ok();
            made.file
                .set_permissions(old.permissions())
                .map_err(failed)?;
        }
        Ok(made)
    }

    fn finish(self) -> Result<(), CliError> {
        // The content before the name: after a power cut the old file or the new one, never an empty one.
        let moved = self
            .file
            .sync_all()
            .and_then(|()| std::fs::rename(&self.path, &self.target));
        moved.map_err(|error| CliError::io(&self.shown, &error))
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // After the renaming there is none.
        std::fs::remove_file(&self.path).ok();
    }
}
