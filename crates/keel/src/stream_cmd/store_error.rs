//! Errors of stores and of publishing, with their remedies.

use crate::descriptors::too_few;
use crate::error::{CliError, describe};
use std::io;
use std::path::Path;
use stream::publish::PublishError;
use stream::store::{StoreError, format_line};

/// Returns a path as one word of a shell: in quotes, if it has a space or another character with a meaning there.
pub(crate) fn shell_word(path: &Path) -> String {
    let shown = path.display().to_string();
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@%=,".contains(&byte) || byte >= 0x80;
    match !shown.is_empty() && shown.bytes().all(is_plain) {
        true => shown,
        false => format!("'{}'", shown.replace('\'', "'\\''")),
    }
}

/// Returns the error of a store.
pub(crate) fn store_error(store: &Path, error: &StoreError) -> CliError {
    let (thing, shown) = (store.display(), shell_word(store));
    match error {
        StoreError::System { path, source, .. }
            if source.raw_os_error() == Some(libc::EISDIR)
                && path.starts_with(store)
                && path != store =>
        {
            CliError::failure(
                path.display(),
                "is a directory, in place of a file of the store",
                format_args!("move it away; then `keel stream check {shown}` says what is missing"),
            )
        }
        StoreError::System { path, what, source } => system(path, what, source),
        StoreError::NotAStore { path } if has_manifests(path) => CliError::failure(
            path.join("format").display(),
            "is missing beside the store's manifests",
            format_args!("write the line `{}` into it", format_line()),
        ),
        StoreError::NotAStore { path } => CliError::failure(
            path.display(),
            "is not a store",
            "check the path; `keel stream pack TREE STORE` makes one in a new or empty folder",
        ),
        StoreError::Format { path, found, .. } => CliError::failure(
            path.display(),
            format_args!("is a store of format {found}, which this version does not know"),
            "use the version of keel that made it, or publish into a new store",
        ),
        StoreError::Empty { path } => CliError::failure(
            path.display(),
            "nothing is published in it",
            format_args!("publish a tree with `keel stream pack TREE {shown}`"),
        ),
        StoreError::Busy { path } => CliError::failure(
            path.display(),
            "another process publishes to it or prunes it",
            "wait until that is done",
        )
        .of_a_busy_thing(),
        StoreError::NoSuchVersion { version } => CliError::failure(
            thing,
            format_args!("has no version {version}"),
            format_args!("list them with `keel stream ls {shown}`"),
        ),
        StoreError::Damaged { path, what } => {
            let remedy = match path.file_name().and_then(|name| name.to_str()) {
                Some("format") => "write that line into it".to_owned(),
                Some("publisher.pub") => {
                    let first = match path.exists() {
                        true => format!("remove {}, then ", shell_word(path)),
                        false => String::new(),
                    };
                    format!(
                        "{first}`keel stream pack TREE {shown}` with the same key writes it again"
                    )
                }
                _ => format!("see all damage with `keel stream check {shown}`"),
            };
            CliError::failure(path.display(), format_args!("damaged: {what}"), remedy)
        }
        other => CliError::failure(
            thing,
            other,
            format_args!("see all damage with `keel stream check {shown}`"),
        ),
    }
}

/// Returns whether something was published there.
fn has_manifests(store: &Path) -> bool {
    let manifests = std::fs::read_dir(store.join("manifests"));
    manifests.is_ok_and(|mut entries| entries.next().is_some())
}

/// Returns the error of publishing or pruning.
pub(super) fn publish_error(store: &Path, error: &PublishError) -> CliError {
    match error {
        PublishError::Tree { path, what, source } => system(path, what, source),
        PublishError::Changing { path } => CliError::failure(
            path.display(),
            "changes each time that it is read",
            "end what writes to it, or publish a copy of the tree",
        ),
        PublishError::TooLong { path, .. }
        | PublishError::TooMany { path }
        | PublishError::TooDeep { path } => {
            let text = error.to_string();
            let path = path.display().to_string();
            let wrong = text.strip_prefix(&path).unwrap_or(&text);
            let wrong = wrong.trim_start_matches([':', ' ']);
            CliError::failure(&path, wrong, "publish a part of the tree")
        }
        PublishError::StoreInTree { store, tree } => CliError::usage(
            store.display(),
            format_args!("lies in {}, which is to be published", tree.display()),
            "choose a place outside of the tree",
        ),
        PublishError::NotAKey { path } if path.starts_with(store) => CliError::failure(
            path.display(),
            "is not an ed25519 key in PKCS#8",
            "put back a copy of the store's key: it takes no other, and devices trust no other",
        ),
        PublishError::NotAKey { path } => CliError::failure(
            path.display(),
            "is not an ed25519 key in PKCS#8",
            "check the path, or make a key with `keel stream key FILE`",
        ),
        PublishError::NoKey { path } => CliError::failure(
            path.display(),
            "the key that this store is signed with is not in it",
            "name it with --key",
        ),
        PublishError::OtherKey {
            path,
            expected,
            found,
        } => CliError::failure(
            path.display(),
            format_args!("is signed by {expected}, and the key is {found}"),
            "use that key, or publish into a new store: devices that trust the one refuse the other; `keel stream \
             check` says whether publisher.pub was changed",
        ),
        PublishError::PacksFull { path } => CliError::failure(
            path.display(),
            format_args!("has {} packs, and takes no more", stream::store::PACKS_MAX),
            format_args!(
                "drop old versions with `keel stream prune {} --keep 8`",
                shell_word(store)
            ),
        ),
        PublishError::NoVersionLeft { path } => CliError::failure(
            path.display(),
            "its newest version has the highest number that there is",
            "publish into a new store, with a new key",
        ),
        PublishError::Store(error) => store_error(store, error),
        other => CliError::failure(store.display(), other, "check what is published"),
    }
}

fn system(path: &Path, what: &str, source: &io::Error) -> CliError {
    if let Some(told) = too_few(source) {
        return told;
    }
    let error = CliError::io(path.display(), source);
    // For a problem in the file system, the reason is sufficient.
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::EPERM | libc::EEXIST)
        | Some(libc::EISDIR) => error,
        // The path exists, but it is no directory.
        None if source.kind() == io::ErrorKind::NotADirectory => {
            error.with_remedy("name a directory")
        }
        _ => CliError::failure(
            path.display(),
            format_args!("{what}: {}", describe(source)),
            match source.raw_os_error() {
                Some(libc::ENOSPC | libc::EDQUOT) => "free some space, then try again",
                Some(libc::EROFS) => "choose a place that can be written",
                None if source.kind() == io::ErrorKind::InvalidInput => "put a file in its place",
                _ => "try again, and check the disk if it stays",
            },
        ),
    }
}

#[cfg(test)]
mod tests {
    use command::descriptors::too_few_behind;
    use std::io;
    use stream::device::{CacheError, DeviceError};
    use stream::store::StoreError;

    #[test]
    fn a_remedy_quotes_a_path_that_is_more_than_one_word() {
        let word = |text: &str| super::shell_word(text.as_ref());
        assert_eq!(word("/srv/plant-2.store"), "/srv/plant-2.store");
        assert_eq!(word("my store"), "'my store'");
        assert_eq!(word("it's"), r"'it'\''s'");
        let store = std::path::Path::new("my store");
        let error = super::store_error(store, &StoreError::NoSuchVersion { version: 7 });
        let text = error.to_string();
        assert!(text.contains("`keel stream ls 'my store'`"), "{text}");
    }

    #[test]
    fn too_few_are_known_behind_other_errors() {
        let system = |number| StoreError::System {
            path: "x".into(),
            what: "cannot be opened",
            source: io::Error::from_raw_os_error(number),
        };
        let told = too_few_behind(&system(libc::EMFILE)).unwrap();
        assert_eq!(told.status(), 1);
        let text = told.to_string();
        assert!(
            text.contains("ulimit -n") && text.contains("LimitNOFILE="),
            "{text}"
        );
        let told = too_few_behind(&system(libc::ENFILE)).unwrap();
        assert!(told.to_string().contains("fs.file-max"));
        assert!(too_few_behind(&system(libc::ENOENT)).is_none());
        let device = DeviceError::Cache(CacheError::Io {
            what: "opening".to_owned(),
            source: io::Error::from_raw_os_error(libc::EMFILE),
        });
        assert!(too_few_behind(&device).is_some());
        assert!(too_few_behind(&DeviceError::Stopped).is_none());
    }
}
