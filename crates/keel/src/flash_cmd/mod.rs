//! `keel flash`: commands on a store in an image file or on a block device.

pub(crate) mod backup;
mod copy;
mod files;
mod get;
mod grow;
mod holder;
pub(crate) mod interruption;
mod make;
mod mount;
mod observed;
mod repair;
pub(crate) mod restore;
mod unfinished;
mod whole;
mod withheld;

use crate::cli::FlashCommand;
use crate::error::CliError;
use base::block::{BLOCK_BYTES, DeviceError, FileDevice, FileDeviceOptions};
use flash::{OpenOptions, Store};
use std::ffi::{CString, OsStr};
use std::fs::{File, Metadata};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Turns a limit of this user on the size of files (`ulimit -f`) into an explained error instead of ending the process.
pub(crate) fn explain_file_limit() {
    // SAFETY: no handler is set, only a signal of this process is ignored.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Removes the draft of a killed run, so that the next one can be made. Refuses anything but a regular file, in
/// particular a link: it may not be a draft of this program.
fn remove_old_draft(draft: &Path) -> Result<(), CliError> {
    let failed = |error: &std::io::Error| CliError::io(draft.display(), error);
    match draft.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(&error)),
        Ok(found) if found.is_file() => {
            // Another run may be using it.
            let held = open_device(draft, Access::Write)?;
            std::fs::remove_file(draft).map_err(|error| failed(&error))?;
            drop(held);
            Ok(())
        }
        Ok(_) => Err(CliError::failure(
            draft.display(),
            "is no file, and a draft must be made there",
            "move it away",
        )),
    }
}

/// Gives a draft its final name. If it must not replace a file, it fails if one exists: a node may have made a store
/// meanwhile.
fn put_in_place(draft: &Path, to: &Path, replaces: bool) -> std::io::Result<()> {
    if replaces {
        std::fs::rename(draft, to)?;
    } else {
        rename_to_nothing(draft, to)?;
    }
    sync_folder(to)
}

fn rename_to_nothing(from: &Path, to: &Path) -> std::io::Result<()> {
    let text = |path: &Path| CString::new(path.as_os_str().as_bytes());
    let (old, new) = (text(from)?, text(to)?);
    // SAFETY: both paths end with a zero and outlive the call.
    let done = unsafe {
        libc::renameat2(
            libc::AT_FDCWD,
            old.as_ptr(),
            libc::AT_FDCWD,
            new.as_ptr(),
            libc::RENAME_NOREPLACE,
        )
    };
    if done == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    // Some file systems do not support this flag.
    if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) && !to.exists() {
        return std::fs::rename(from, to);
    }
    Err(error)
}

/// Returns the target of a path, with links resolved: a draft lies beside it and replaces it. A dangling link is
/// refused, because its intention is unknown.
fn behind_links(path: &Path) -> Result<PathBuf, CliError> {
    let is_link = path
        .symlink_metadata()
        .is_ok_and(|found| found.is_symlink());
    if !is_link {
        return Ok(path.to_path_buf());
    }
    match std::fs::canonicalize(path) {
        Ok(real) => Ok(real),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(CliError::failure(
            path.display(),
            "is a symbolic link to nothing",
            "remove it, or name the file itself",
        )),
        Err(error) => Err(CliError::io(path.display(), &error)),
    }
}

/// Runs one command. Returns the exit status.
pub(crate) fn run(command: &FlashCommand) -> Result<u8, CliError> {
    explain_file_limit();
    match command {
        FlashCommand::Format {
            image,
            size,
            files,
            name_bytes,
            force,
            sparse,
            json,
        } => make::format(
            image,
            &make::Wanted {
                size: *size,
                files: *files,
                name_bytes: *name_bytes,
                force: *force,
                sparse: *sparse,
                is_private: false,
            },
            *json,
        ),
        FlashCommand::Copy {
            from,
            to,
            size,
            files,
            name_bytes,
            force,
            sparse,
            json,
        } => copy::copy(
            from,
            to,
            &copy::Wanted {
                size: *size,
                files: *files,
                name_bytes: *name_bytes,
                force: *force,
                sparse: *sparse,
            },
            *json,
        ),
        FlashCommand::Grow {
            image,
            size,
            sparse,
            json,
        } => grow::grow(image, *size, *sparse, *json),
        FlashCommand::Mv { image, old, new } => files::mv(image, old, new),
        FlashCommand::Truncate { image, name, size } => files::truncate(image, name, *size),
        FlashCommand::Ls { image, json } => files::ls(image, *json),
        FlashCommand::Put { image, name, from } => files::put(image, name, from),
        FlashCommand::Get {
            image,
            name,
            to,
            salvage,
        } => get::get(image, name, to, *salvage),
        FlashCommand::Append { image, name, from } => files::append(image, name, from),
        FlashCommand::Rm { image, name } => files::rm(image, name),
        FlashCommand::Stat {
            image,
            name: Some(name),
            json,
        } => files::stat(image, name, *json),
        FlashCommand::Stat {
            image,
            name: None,
            json,
        } => whole::stat(image, *json),
        FlashCommand::Check {
            image,
            repair: false,
            json,
        } => whole::check(image, *json),
        FlashCommand::Check {
            image,
            repair: true,
            json,
        } => repair::repair(image, *json),
        FlashCommand::Bounds { image, json } => whole::bounds(image, *json),
        FlashCommand::Mount(arguments) => mount::mount(arguments),
        FlashCommand::Dump { image, json } => whole::dump(image, *json),
    }
}

/// How a command uses the store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Look at its current state, even if another process writes to it.
    Read,
    /// Read all of it, which requires that it does not change.
    ReadAll,
    Write,
}

fn open(image: &Path, access: Access) -> Result<Store<FileDevice>, CliError> {
    let device = open_device(image, access)?;
    let options = OpenOptions {
        read_only: access != Access::Write,
        ..OpenOptions::default()
    };
    let opened = Store::open(device, &options);
    opened.map_err(|error| match access {
        Access::Read => read_error(image, &error, store_error(image, &error)),
        Access::ReadAll | Access::Write => store_error(image, &error),
    })
}

/// Opens a store exclusively for reading or changing it.
pub(crate) fn open_alone(image: &Path, writes: bool) -> Result<Store<FileDevice>, CliError> {
    let access = if writes {
        Access::Write
    } else {
        Access::ReadAll
    };
    open(image, access)
}

/// Opens a store read-only that this process has already locked.
fn open_held(image: &Path) -> Result<Store<FileDevice>, CliError> {
    let device = open_device(image, Access::Read)?;
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    Store::open(device, &options).map_err(|error| store_error(image, &error))
}

/// Returns the error of reading the store without a lock: while another program writes, a transitional state may look
/// damaged.
fn read_error(image: &Path, error: &flash::Error, otherwise: CliError) -> CliError {
    let is_doubtful = matches!(
        error,
        flash::Error::Damaged { .. } | flash::Error::NotAStore | flash::Error::Truncated { .. }
    );
    if is_doubtful && is_held(image) {
        return CliError::failure(
            image.display(),
            "another program is changing the store while it is read",
            "try again; should it stay, when that program has ended",
        );
    }
    otherwise
}

/// Returns whether another program has the store open for writing. A caller that has it open for writing itself must
/// not call this.
fn is_held(image: &Path) -> bool {
    let device = FileDevice::open(image, &device_options(Access::ReadAll));
    matches!(device, Err(DeviceError::InUse { .. }))
}

/// Returns the metadata of `image`, if it exists. Refuses what cannot be a store before it is opened: opening a FIFO
/// waits for its other end.
fn find_image(image: &Path) -> Result<Option<Metadata>, CliError> {
    let found = match std::fs::metadata(image) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(CliError::io(image.display(), &error)),
    };
    let kind = found.file_type();
    let wrong = if kind.is_file() || kind.is_block_device() {
        return Ok(Some(found));
    } else if kind.is_dir() {
        "is a directory"
    } else if kind.is_fifo() {
        "is a FIFO"
    } else if kind.is_socket() {
        "is a socket"
    } else {
        "is a character device"
    };
    Err(CliError::failure(
        image.display(),
        wrong,
        "name an image file or a block device",
    ))
}

/// Makes the names in this file's folder durable.
fn sync_folder(file: &Path) -> std::io::Result<()> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    match File::open(folder)?.sync_all() {
        // Some file systems cannot sync directories, and do not need it.
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Ok(()),
        done => done,
    }
}

/// Returns the metadata of standard input or output.
fn standard_metadata(stream: &impl AsFd) -> Option<Metadata> {
    let same = stream.as_fd().try_clone_to_owned().ok()?;
    File::from(same).metadata().ok()
}

/// Refuses to copy between a store and the image that it is in.
fn refuse_the_image(image: &Path, other: Option<&Metadata>, shown: &str) -> Result<(), CliError> {
    let (Some(image_found), Some(other)) = (find_image(image)?, other) else {
        return Ok(());
    };
    let both_devices =
        image_found.file_type().is_block_device() && other.file_type().is_block_device();
    let is_same = (image_found.dev(), image_found.ino()) == (other.dev(), other.ino())
        || (both_devices && image_found.rdev() == other.rdev());
    if is_same {
        return Err(CliError::usage(
            shown,
            format!("is the image {} itself", image.display()),
            "name another file",
        ));
    }
    Ok(())
}

fn open_device(image: &Path, access: Access) -> Result<FileDevice, CliError> {
    find_image(image)?;
    FileDevice::open(image, &device_options(access)).map_err(|error| device_error(image, &error))
}

fn device_options(access: Access) -> FileDeviceOptions {
    FileDeviceOptions {
        create_bytes: None,
        read_only: access != Access::Write,
        direct: true,
        // A single look takes no lock: it finds the store as recovery would.
        exclusive: access != Access::Read,
    }
}

/// Returns the error of the device, in terms of the command line.
pub(crate) fn device_error(image: &Path, error: &DeviceError) -> CliError {
    let shown = image.display();
    let (number, is_open) = match error {
        DeviceError::Open { source, .. } => (source.raw_os_error(), true),
        DeviceError::Io { source, .. } => (source.raw_os_error(), false),
        _ => (None, false),
    };
    // If the image can be read, only the permission to write is missing.
    let is_read_only = match number {
        Some(libc::EROFS) => true,
        Some(libc::EACCES | libc::EPERM) => !is_open || File::open(image).is_ok(),
        _ => false,
    };
    // For a mounted device, some systems only report that opening is not permitted.
    let refused = matches!(number, Some(libc::EPERM | libc::EACCES | libc::EBUSY)) && is_open;
    let holder = find_image(image)
        .ok()
        .flatten()
        .filter(|found| refused && found.file_type().is_block_device())
        .and_then(|_| base::block::find_holder(image));
    if let Some(holder) = holder {
        return held_error(image, &holder);
    }
    match error {
        _ if is_read_only => CliError::failure(
            shown,
            "is read-only",
            "lift the write protection, or run as a user who may write to it",
        ),
        _ if matches!(number, Some(libc::ENOSPC | libc::EDQUOT)) => {
            CliError::failure(shown, "the disk below is full", "free some space")
        }
        _ if number == Some(libc::EFBIG) => CliError::failure(
            shown,
            "the file system below allows no file of this size",
            "choose a smaller --size",
        ),
        DeviceError::Open { source, .. } => CliError::io(shown, source),
        DeviceError::InUse { .. } => match base::block::find_holder(image) {
            Some(holder) => held_error(image, &holder).of_a_busy_thing(),
            None => {
                let program =
                    holder::holder(image).map_or_else(String::new, |who| format!(" ({who})"));
                CliError::failure(
                    shown,
                    format!("in use by another program{program}"),
                    "end that program, then try again",
                )
                .of_a_busy_thing()
            }
        },
        other => CliError::failure(shown, other, "check the device"),
    }
}

fn held_error(image: &Path, holder: &str) -> CliError {
    CliError::failure(
        image.display(),
        holder,
        "unmount it or take it out of use, then try again",
    )
}

/// Returns the error of the store as a whole.
pub(crate) fn store_error(image: &Path, error: &flash::Error) -> CliError {
    use flash::Part;
    let image_shown = &image.display();
    match error {
        flash::Error::Device(device) => device_error(image, device),
        flash::Error::NotAStore => CliError::failure(
            image_shown,
            error,
            "check the path; `keel flash format` would make a new store and erase what is there",
        ),
        flash::Error::Version { .. } => {
            CliError::failure(image_shown, error, "use the version of keel that made it")
        }
        flash::Error::Truncated { blocks_made, .. } => {
            let bytes = blocks_made * BLOCK_BYTES as u64;
            let mend = format!(
                "restore the whole image; or, on a copy of it, `truncate --size {bytes} {image_shown}` and then \
                 `keel flash check --repair` save what is left; do not format it"
            );
            CliError::failure(image_shown, error, mend)
        }
        // Without these records no other command can open the store.
        flash::Error::Damaged {
            part: Part::Record, ..
        } => CliError::failure(
            image_shown,
            error,
            "copy the image, then mend it with `keel flash check --repair`",
        ),
        flash::Error::Damaged {
            part: Part::Superblock,
            ..
        } => CliError::failure(image_shown, error, "restore the image from a copy"),
        flash::Error::Damaged { .. } => CliError::failure(
            image_shown,
            error,
            format!("see all damage with `keel flash check {image_shown}`"),
        ),
        flash::Error::Format { .. } => CliError::coded(error.code(), image_shown, error, ""),
        other => CliError::failure(image_shown, other, ""),
    }
}

/// Returns the error of `keel flash check`, which must not advise to run itself.
fn check_error(image: &Path, error: &flash::Error) -> CliError {
    match error {
        flash::Error::Damaged { .. } => CliError::failure(
            image.display(),
            error,
            "save files with `keel flash get --salvage`, then mend it with `keel flash check --repair`",
        ),
        other => store_error(image, other),
    }
}

/// Returns the error about one file of the store.
fn file_error(image: &Path, name: &str, error: &flash::Error) -> CliError {
    let name = if name.is_empty() { "''" } else { name };
    match error {
        flash::Error::NotFound => CliError::failure(
            name,
            error,
            format!("list the files with `keel flash ls {}`", image.display()),
        ),
        flash::Error::NameInvalid { .. } => CliError::usage(name, error, "choose another name"),
        flash::Error::Damaged { .. } => CliError::failure(
            name,
            error,
            format!("see all damage with `keel flash check {}`", image.display()),
        ),
        flash::Error::Full => CliError::failure(
            image.display(),
            "no room",
            "delete files with `keel flash rm`, or make it larger with `keel flash grow`",
        ),
        flash::Error::Device(_)
        | flash::Error::NotAStore
        | flash::Error::Version { .. }
        | flash::Error::Truncated { .. } => store_error(image, error),
        // The store's own text contains the remedy.
        other => CliError::failure(name, other, ""),
    }
}

/// Returns a name as text. Names in a store are UTF-8; the store checks all other rules.
fn name_text(name: &OsStr) -> Result<&str, CliError> {
    name.to_str().ok_or_else(|| {
        CliError::usage(
            name.display(),
            "the name is not UTF-8",
            "choose another name",
        )
    })
}

/// Returns a name for people: characters that could control the terminal are escaped, and so is the backslash.
pub(crate) fn shown_name(name: &str) -> String {
    let quotes = ['\'', '"'];
    // Quotes are harmless, but Rust would escape them.
    let escaped = |piece: &str| {
        let text = piece.trim_end_matches(quotes);
        format!("{}{}", text.escape_debug(), &piece[text.len()..])
    };
    name.split_inclusive(quotes).map(escaped).collect()
}

/// Returns a path for people, in the same way.
fn shown_path(path: &Path) -> String {
    shown_name(&path.display().to_string())
}

/// Returns whether the path stands for standard input or output.
fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(error: &DeviceError) -> String {
        device_error(Path::new("/proc/version"), error).to_string()
    }

    fn io(operation: &'static str, number: i32) -> DeviceError {
        DeviceError::Io {
            operation,
            first_block: 7,
            source: std::io::Error::from_raw_os_error(number),
        }
    }

    #[test]
    fn remedies_fit_what_the_device_says() {
        for number in [libc::EROFS, libc::EACCES, libc::EPERM] {
            let open = DeviceError::Open {
                path: "/proc/version".into(),
                source: std::io::Error::from_raw_os_error(number),
            };
            assert!(text(&open).contains("is read-only; lift"), "{number}");
            assert!(text(&io("write", number)).contains("is read-only; lift"));
        }
        let full = text(&io("write", libc::ENOSPC));
        assert!(full.contains("the disk below is full; free some space"));
        let large = text(&io("write", libc::EFBIG));
        assert!(large.contains("choose a smaller --size"), "{large}");
        assert!(text(&io("read", libc::EIO)).contains("check the device"));
    }

    #[test]
    fn of_a_device_that_may_not_be_opened_the_use_is_named() {
        let Some(device) = device_of_root() else {
            println!("skipped: the root of this system is on no device with a path");
            return;
        };
        for number in [libc::EPERM, libc::EACCES, libc::EBUSY] {
            let refused = DeviceError::Open {
                path: device.clone(),
                source: std::io::Error::from_raw_os_error(number),
            };
            let text = device_error(&device, &refused).to_string();
            assert!(text.contains(": mounted on /"), "{text}");
            assert!(text.ends_with("; unmount it or take it out of use, then try again"));
        }
    }

    fn device_of_root() -> Option<std::path::PathBuf> {
        let number = std::fs::metadata("/").ok()?.dev();
        let (major, minor) = (libc::major(number), libc::minor(number));
        let folder = format!("/sys/dev/block/{major}:{minor}");
        let name = std::fs::canonicalize(folder).ok()?;
        let device = Path::new("/dev").join(name.file_name()?);
        let found = std::fs::metadata(&device).ok()?;
        (found.file_type().is_block_device() && found.rdev() == number).then_some(device)
    }
}
