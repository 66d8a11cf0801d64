//! What `{tags}` of a template stands for in a node's store. A mark in the store says it. So a new version of the
//! program makes no new series in a store of an older one. `KEYS.md` beside this crate's manifest is the specification.

use super::key_mark::{MARK_BYTES, MarkError, PAIRS, VERSION, decode, encode};
use super::log;
use base::block::BlockDevice;
use command::error::CliError;
use config::Config;
use flash::Store;
use ingest::intake::TagsForm;

#[cfg(test)]
#[path = "key_form_tests.rs"]
mod tests;

/// Name of the file in the store.
pub(crate) const NAME: &str = "node-keys";

/// Size of the largest file; one of a later version may be longer than this version's.
const FILE_BYTES_MAX: usize = 16 * MARK_BYTES;

/// What the store's file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// There is none.
    Absent,
    /// This form.
    Form(TagsForm),
    /// It is there, and its content is none.
    Damaged,
    /// It is there, and cannot be read.
    Unread,
    /// Whether there is one cannot be read.
    Unknown,
    /// A later version of the program wrote it.
    Later {
        /// Version of the file.
        version: u32,
        /// The number of the form.
        form: u32,
    },
}

impl Mark {
    /// Reads the file of a store.
    pub(crate) fn read<D: BlockDevice>(store: &mut Store<D>) -> Self {
        let file = match store.open_file(NAME) {
            Ok(file) => file,
            Err(flash::Error::NotFound) => return Self::Absent,
            Err(error) => {
                log::event(
                    "keys",
                    format!(
                        "whether the store has the file {NAME} cannot be read: {error}; {{tags}} stands for {{values}}"
                    ),
                );
                return Self::Unknown;
            }
        };
        let mut bytes = [0; FILE_BYTES_MAX];
        let length = store.read(file, 0, &mut bytes);
        store.close_file(file);
        let length = match length {
            Ok(length) => length,
            // A store takes a block that the device failed to read for a damaged one, so this may pass.
            Err(error) => {
                log::event(
                    "keys",
                    format!(
                        "the file {NAME} cannot be read: {error}; only stores whose keys have pairs have it, so \
                         {{tags}} stands for {{pairs}}"
                    ),
                );
                return Self::Unread;
            }
        };
        match decode(bytes.get(..length).unwrap_or_default()) {
            Ok(form) => Self::Form(form),
            Err(MarkError::Later { version, form }) => Self::Later { version, form },
            Err(MarkError::Damaged) => Self::Damaged,
        }
    }

    /// Refuses a configuration whose keys depend on a mark that this program does not know.
    ///
    /// # Errors
    /// Why a node must not go on with it.
    pub(crate) fn check(self, config: &Config) -> Result<(), CliError> {
        let Self::Later { version, form } = self else {
            return Ok(());
        };
        match config.keys_with_tags().first() {
            None => Ok(()),
            Some((place, _)) => Err(CliError::failure(
                format!("the file {NAME} of the store"),
                format!(
                    "has version {version} and form {form}, this program knows {VERSION} and {PAIRS}: what {{tags}} of \
                     {place} stands for is not known"
                ),
                "use the version of keel that wrote it, or write {pairs} or {values} in place of {tags}",
            )),
        }
    }
}

/// What `{tags}` stands for in a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyForm {
    mark: Mark,
    pub(crate) tags: TagsForm,
}

impl KeyForm {
    /// Returns the form of a store, and marks a store without keys. To be called before any key is made: the mark is
    /// durable first, so no key is ever of another form than its store. `of_new` is the form of stores without keys.
    pub(crate) fn settle<D: BlockDevice>(
        mark: Mark,
        store: &mut Store<D>,
        has_keys: bool,
        of_new: TagsForm,
    ) -> Self {
        let tags = match mark {
            Mark::Form(form) => form,
            // No template has `{tags}`, or the node would not be here.
            Mark::Later { .. } => of_new,
            Mark::Damaged => {
                log::event(
                    "keys",
                    format!(
                        "the file {NAME} is damaged; only stores whose keys have pairs have it, so {{tags}} stands for \
                         {{pairs}}"
                    ),
                );
                if let Err(error) = store.replace(NAME, &encode()) {
                    log::event(
                        "keys",
                        format!("the file {NAME} cannot be written: {error}"),
                    );
                }
                TagsForm::Pairs
            }
            // It stays as it is: it may be intact, and of a later version.
            Mark::Unread => TagsForm::Pairs,
            Mark::Unknown => TagsForm::Values,
            Mark::Absent if has_keys || of_new == TagsForm::Values => TagsForm::Values,
            Mark::Absent => match store.replace(NAME, &encode()) {
                Ok(()) => TagsForm::Pairs,
                // Without a mark the next start takes the other form. So does this one: all keys have one form.
                Err(error) => {
                    log::event(
                        "keys",
                        format!(
                            "the file {NAME} cannot be written: {error}; {{tags}} stands for {{values}}"
                        ),
                    );
                    TagsForm::Values
                }
            },
        };
        Self { mark, tags }
    }

    /// Returns the form of a store that cannot be marked.
    pub(crate) fn unmarked() -> Self {
        Self {
            mark: Mark::Absent,
            tags: TagsForm::Values,
        }
    }

    /// As [`Mark::check`], for a configuration that is read again.
    ///
    /// # Errors
    /// As [`Mark::check`].
    pub(crate) fn check(self, config: &Config) -> Result<(), CliError> {
        self.mark.check(config)
    }

    /// Returns what the operator should know of it, if a key depends on it. This store is not as new ones are, or its
    /// file cannot be read.
    pub(crate) fn note(self, config: &Config) -> Option<String> {
        let note = config.tags_note(self.tags, TagsForm::OF_NEW_STORES);
        let is_unread = matches!(self.mark, Mark::Unread | Mark::Unknown);
        if !is_unread || config.keys_with_tags().is_empty() {
            return note;
        }
        let unread = format!(
            "the file {NAME} of the store cannot be read, so {{tags}} stands for {}",
            self.tags.placeholder()
        );
        Some(match note {
            Some(note) => format!("{unread}; {note}"),
            None => unread,
        })
    }
}
