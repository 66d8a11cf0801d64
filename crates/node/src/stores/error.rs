//! The errors of a store and of its device, in terms of the command line.

use super::holder;
use super::image::find_image;
use base::block::{BLOCK_BYTES, DeviceError};
use command::error::CliError;
use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Returns the error of the device, in terms of the command line.
#[must_use]
pub fn device_error(image: &Path, error: &DeviceError) -> CliError {
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
            "lift the write protection, or run as a user with write access",
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
#[must_use]
pub fn store_error(image: &Path, error: &flash::Error) -> CliError {
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
#[must_use]
pub fn check_error(image: &Path, error: &flash::Error) -> CliError {
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
#[must_use]
pub fn file_error(image: &Path, name: &str, error: &flash::Error) -> CliError {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

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
    fn remedies_fit_the_error_of_the_device() {
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
    fn the_use_of_a_device_that_cannot_be_opened_is_named() {
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
