//! `keel flash get`: copies a file of the store to standard output or to a file, and salvages a damaged one.

use super::text::{is_dash, name_text};
use crate::error::CliError;
use crate::output::Output;
use crate::replacement::Replacement;
use crate::signals;
use base::block::FileDevice;
use clap::Args;
use command::progress::Progress;
use flash::{FileHandle, PAYLOAD_BYTES, Store};
use node::stores::{
    Access, file_error, is_held, open, read_error, refuse_the_image, standard_metadata,
};
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Bytes per read: whole blocks, so that a failed read can be repeated block by block.
const READ_BYTES: usize = 256 * PAYLOAD_BYTES;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
        keel flash get store.img notes.txt > notes.txt\n  \
        keel flash get store.img notes.txt notes.txt --salvage\n\n\
        OUT is replaced only by a complete file. If the file is damaged, OUT stays as it was, unless --salvage\n\
        is given. --salvage is refused while another program writes to the store. Standard output gets\n\
        everything before the damage.")]
pub(crate) struct GetArgs {
    /// File or block device
    image: PathBuf,
    /// Name of the file in the store
    name: OsString,
    /// Destination of the bytes; - is standard output
    #[arg(default_value = "-", value_name = "OUT")]
    to: PathBuf,
    /// Continue after damage, with zeros for unreadable data; exit status 1 if there was damage
    #[arg(long)]
    salvage: bool,
}

pub(super) fn run(arguments: &GetArgs) -> Result<u8, CliError> {
    let (image, to, salvage) = (&arguments.image, &arguments.to, arguments.salvage);
    let name = name_text(&arguments.name)?;
    let (target, shown) = if is_dash(to) {
        (
            standard_metadata(&io::stdout()),
            "standard output".to_owned(),
        )
    } else {
        (std::fs::metadata(to).ok(), to.display().to_string())
    };
    refuse_the_image(image, target.as_ref(), &shown)?;
    // Salvage must lock: a file that another process is changing only looks damaged, and must not be filled with zeros.
    let mut access = if salvage {
        Access::ReadAll
    } else {
        Access::Read
    };
    let mut copy = Copy::default();
    let mut sink = None;
    let progress = Progress::start(format!("reading {name}"));
    let copied = loop {
        let (mut store, file) = copy.open(image, name, access)?;
        let sink = match &mut sink {
            Some(sink) => sink,
            none => none.insert(Sink::open(to)?),
        };
        match copy.run(&mut store, file, salvage, sink, &progress) {
            // The file is damaged, or was changed meanwhile: reading with the lock tells which.
            Err(Stop::Store(error)) if access == Access::Read && is_unreadable(&error) => {
                access = Access::ReadAll;
            }
            done => break done,
        }
    };
    drop(progress);
    let Some(mut sink) = sink else { return Ok(0) };
    match copied {
        Ok(()) => {}
        Err(Stop::Store(error)) => {
            // The content before the damage has been read: output it.
            sink.hand_over()?;
            return Err(damage_error(image, name, &error));
        }
        Err(Stop::Sink(error)) => return Err(error),
    }
    sink.finish()?;
    if copy.unreadable > 0 {
        return Err(CliError::failure(
            name,
            format!(
                "{} of {} bytes could not be read and are zeros in {shown}",
                copy.unreadable, copy.length
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

/// Why copying ended early.
enum Stop {
    Store(flash::Error),
    Sink(CliError),
}

/// The progress of a copy.
#[derive(Default)]
struct Copy {
    /// Identity of the content, once known.
    file_id: Option<u64>,
    length: u64,
    offset: u64,
    /// Bytes that were replaced by zeros.
    unreadable: u64,
}

impl Copy {
    /// Opens the store and the file in it, which must be the same file as at the begin of the copy.
    fn open(
        &mut self,
        image: &Path,
        name: &str,
        access: Access,
    ) -> Result<(Store<FileDevice>, FileHandle), CliError> {
        let changing = || {
            CliError::failure(
                name,
                "another program has changed it while it was read",
                "try again; should it stay, when that program has ended",
            )
        };
        if self.file_id.is_some() && is_held(image) {
            return Err(changing());
        }
        let mut store = open(image, access)?;
        let failed =
            |error: flash::Error| read_error(image, &error, file_error(image, name, &error));
        let found = store.stat(name).map_err(failed)?;
        let file = store.open_file(name).map_err(failed)?;
        match self.file_id {
            None => {
                self.file_id = Some(found.file_id);
                self.length = store.length(file).map_err(failed)?;
            }
            Some(file_id) if file_id != found.file_id || found.length_bytes < self.length => {
                return Err(changing());
            }
            Some(_) => {}
        }
        Ok((store, file))
    }

    fn run(
        &mut self,
        store: &mut Store<FileDevice>,
        file: FileHandle,
        salvage: bool,
        sink: &mut Sink,
        progress: &Progress,
    ) -> Result<(), Stop> {
        let mut buffer = vec![0; READ_BYTES];
        // Read block by block up to here, because some block before it cannot be read.
        let mut blockwise_end = 0;
        while self.offset < self.length && sink.is_open() {
            sink.check_stop().map_err(Stop::Sink)?;
            let blockwise = self.offset < blockwise_end;
            let step = if blockwise { PAYLOAD_BYTES } else { READ_BYTES } as u64;
            let bytes = step.min(self.length - self.offset) as usize;
            match store.read(file, self.offset, &mut buffer[..bytes]) {
                // All bytes were read: the store checked the length when it was opened.
                Ok(_) => {}
                Err(error) if !is_unreadable(&error) => return Err(Stop::Store(error)),
                Err(_) if bytes > PAYLOAD_BYTES => {
                    blockwise_end = self.offset + bytes as u64;
                    continue;
                }
                Err(_) if salvage => {
                    buffer[..bytes].fill(0);
                    self.unreadable += bytes as u64;
                }
                Err(error) => return Err(Stop::Store(error)),
            }
            sink.write(&buffer[..bytes]).map_err(Stop::Sink)?;
            progress.add(bytes);
            self.offset += bytes as u64;
        }
        Ok(())
    }
}

/// Returns whether single blocks failed, so that others may still be readable.
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

/// A destination of bytes.
enum Sink {
    Output(Output),
    /// A destination that cannot be replaced: a terminal, a pipe, `/dev/null`.
    Special {
        file: File,
        shown: String,
        /// Whether a pipe still has its reader.
        is_open: bool,
    },
    File(Replacement),
}

impl Sink {
    fn open(to: &Path) -> Result<Self, CliError> {
        if is_dash(to) {
            return Ok(Self::Output(Output::new()));
        }
        let shown = to.display().to_string();
        let failed = |error: io::Error| CliError::io(&shown, &error);
        let begin = |target: &Path, old: Option<&Metadata>| {
            // Catch signals, so that an interruption removes the partial file.
            signals::catch_stop();
            Replacement::begin(to, target, old, "get").map(Self::File)
        };
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
                return begin(to, None);
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
        // Check this even if the file will be replaced: a user without write permission may not replace it either.
        let file = File::options().write(true).open(to).map_err(failed)?;
        if found.is_file() {
            let target = to.canonicalize().map_err(failed)?;
            begin(&target, Some(&found))
        } else {
            Ok(Self::Special {
                file,
                shown,
                is_open: true,
            })
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        match self {
            Self::Output(out) => out.bytes(bytes),
            Self::Special {
                file,
                shown,
                is_open,
            } => match file.write_all(bytes) {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                    *is_open = false;
                    Ok(())
                }
                done => done.map_err(|error| CliError::io(&*shown, &error)),
            },
            Self::File(file) => file.write(bytes),
        }
    }

    fn is_open(&self) -> bool {
        match self {
            Self::Output(out) => out.is_open(),
            Self::Special { is_open, .. } => *is_open,
            Self::File(_) => true,
        }
    }

    /// Fails on a signal, so that the temporary file is removed.
    fn check_stop(&self) -> Result<(), CliError> {
        match self {
            Self::File(file) if signals::stop_requested() => Err(CliError::failure(
                file.shown(),
                "interrupted; nothing was written",
                "",
            )),
            _ => Ok(()),
        }
    }

    /// Outputs what has been written so far, if that is useful at the destination.
    fn hand_over(&mut self) -> Result<(), CliError> {
        match self {
            Self::Output(out) => out.flush(),
            Self::Special { .. } | Self::File(_) => Ok(()),
        }
    }

    fn finish(mut self) -> Result<(), CliError> {
        self.hand_over()?;
        match self {
            Self::Output(_) | Self::Special { .. } => Ok(()),
            Self::File(file) => file.finish(),
        }
    }
}
