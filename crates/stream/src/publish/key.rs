//! Key files: the secret key as PKCS#8, readable only by its owner, and the public key as a line of hexadecimal digits.

use super::PublishError;
use crate::manifest::{self, KeyPair, PublicKey};
use crate::regular::is_of_the_file;
use crate::store::StoreError;
use crate::store::files::{self, Layout};
use crate::store::read_publisher;
use crate::wire::MANIFEST_BYTES_MAX;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Creates a key in a file that must not exist yet.
///
/// # Errors
/// The file exists or cannot be written.
pub fn create(path: &Path) -> Result<PublicKey, PublishError> {
    let (pair, secret) = KeyPair::generate()?;
    let failed = |error| StoreError::system(path, "cannot be made", error);
    let mut file = std::fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    let written = file.write_all(&secret).and_then(|()| file.sync_all());
    let written = written.map_err(failed);
    let lasting =
        written.and_then(|()| files::sync_folder(path.parent().unwrap_or(Path::new("."))));
    if let Err(error) = lasting {
        // An incomplete or unsynced key file must not block the next attempt.
        std::fs::remove_file(path).ok();
        return Err(error.into());
    }
    Ok(pair.public())
}

/// Reads a key.
///
/// # Errors
/// The file cannot be read or is not a key.
pub fn load(path: &Path) -> Result<KeyPair, PublishError> {
    let not_a_key = || PublishError::NotAKey {
        path: PathBuf::from(path),
    };
    let bytes = files::read_small(path).map_err(|error| match error.kind() {
        // Longer than any key.
        io::ErrorKind::FileTooLarge => not_a_key(),
        _ => StoreError::system(path, "cannot be read", error).into(),
    })?;
    KeyPair::from_pkcs8(&bytes).map_err(|_| not_a_key())
}

/// Returns the key to sign with in a store: the given one, or the store's own. Creates the store's own key if nothing
/// was published yet.
pub(crate) fn of_store(layout: &Layout, given: Option<&Path>) -> Result<KeyPair, PublishError> {
    let expected = read_publisher(layout)?;
    let own = layout.secret_key();
    let pair = match given {
        Some(path) => load(path)?,
        None => match load(&own) {
            Err(PublishError::Store(StoreError::System { source, .. }))
                if source.kind() == io::ErrorKind::NotFound =>
            {
                // If something was published already, no device would trust a new key.
                if expected.is_some() || !layout.versions()?.is_empty() {
                    return Err(PublishError::NoKey { path: own });
                }
                let (pair, secret) = KeyPair::generate()?;
                files::replace(&own, &secret, 0o600)?;
                pair
            }
            other => other?,
        },
    };
    let found = pair.public();
    let signer = match expected {
        Some(_) => expected,
        None => signer(layout)?,
    };
    if let Some(expected) = signer.filter(|signer| *signer != found) {
        return Err(PublishError::OtherKey {
            path: layout.folder.clone(),
            expected,
            found,
        });
    }
    if expected.is_none() {
        files::replace(&layout.public_key(), format!("{found}\n").as_bytes(), 0o644)?;
    }
    Ok(pair)
}

/// Returns the signer of the newest sound manifest, for a store without `publisher.pub`; `None` if nothing was
/// published.
fn signer(layout: &Layout) -> Result<Option<PublicKey>, PublishError> {
    let mut damaged = None;
    for version in layout.versions()?.into_iter().rev() {
        let path = layout.manifest(version);
        let signed = match files::read_limited(&path, MANIFEST_BYTES_MAX) {
            Ok(signed) => signed,
            Err(error) if is_of_the_file(&error) => Vec::new(),
            Err(error) => return Err(StoreError::system(&path, "cannot be read", error).into()),
        };
        let signer = manifest::publisher(&signed);
        if let Some(signer) = signer.filter(|signer| manifest::verify(&signed, signer).is_ok()) {
            return Ok(Some(signer));
        }
        damaged.get_or_insert(path);
    }
    match damaged {
        Some(path) => {
            let what = "it is damaged, and publisher.pub is missing: put back a copy of that";
            Err(StoreError::damaged(&path, what).into())
        }
        None => Ok(None),
    }
}
