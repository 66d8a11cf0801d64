//! The publisher of a manifest: ed25519 keys and signatures.

use super::{Manifest, ManifestError};
use crate::wire::MANIFEST_BYTES_MAX;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use std::fmt;
use std::str::FromStr;

const KEY_BYTES: usize = 32;
const SIGNATURE_BYTES: usize = 64;

/// The public key of a publisher that a device trusts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; KEY_BYTES]);

/// The key pair that a publisher signs with.
pub struct KeyPair(Ed25519KeyPair);

impl KeyPair {
    /// Returns a new key pair and its bytes as PKCS#8, which must be kept secret.
    ///
    /// # Errors
    /// [`ManifestError::Key`] if the system gives no random numbers.
    pub fn generate() -> Result<(Self, Vec<u8>), ManifestError> {
        let bytes =
            Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| ManifestError::Key)?;
        Ok((Self::from_pkcs8(bytes.as_ref())?, bytes.as_ref().to_vec()))
    }

    /// Reads a key pair from PKCS#8, with or without the public key in it.
    ///
    /// # Errors
    /// [`ManifestError::Key`] if the bytes are not a key pair.
    pub fn from_pkcs8(bytes: &[u8]) -> Result<Self, ManifestError> {
        let pair =
            Ed25519KeyPair::from_pkcs8_maybe_unchecked(bytes).map_err(|_| ManifestError::Key)?;
        Ok(Self(pair))
    }

    /// Returns the public key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        let mut key = [0; KEY_BYTES];
        key.copy_from_slice(self.0.public_key().as_ref());
        PublicKey(key)
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "KeyPair({})", self.public())
    }
}

/// Returns the body followed by the public key and the signature.
#[must_use]
pub fn sign(body: &[u8], pair: &KeyPair) -> Vec<u8> {
    let mut signed = Vec::with_capacity(body.len() + KEY_BYTES + SIGNATURE_BYTES);
    signed.extend_from_slice(body);
    signed.extend_from_slice(&pair.public().0);
    let signature = pair.0.sign(&signed);
    signed.extend_from_slice(signature.as_ref());
    signed
}

/// Returns the publisher named in the bytes. The signature is not checked.
#[must_use]
pub fn publisher(signed: &[u8]) -> Option<PublicKey> {
    let (rest, _) = signed.split_last_chunk::<SIGNATURE_BYTES>()?;
    let (_, key) = rest.split_last_chunk::<KEY_BYTES>()?;
    Some(PublicKey(*key))
}

/// Reads a manifest that this publisher has signed.
///
/// # Errors
/// The signature is not the publisher's, or what was signed is no manifest.
pub fn verify(signed: &[u8], expected: &PublicKey) -> Result<Manifest, ManifestError> {
    if signed.len() as u64 > MANIFEST_BYTES_MAX {
        return Err(ManifestError::Limit("bytes"));
    }
    let found = publisher(signed).ok_or(ManifestError::NotAManifest)?;
    let (message, signature) = signed.split_at(signed.len() - SIGNATURE_BYTES);
    // Check the signature before the keys: in a truncated manifest, the bytes in the key's place are not a key.
    UnparsedPublicKey::new(&ED25519, &found.0)
        .verify(message, signature)
        .map_err(|_| ManifestError::Signature)?;
    if found != *expected {
        return Err(ManifestError::Publisher {
            found,
            expected: *expected,
        });
    }
    Manifest::decode(&message[..message.len() - KEY_BYTES])
}

impl fmt::Display for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for PublicKey {
    type Err = ManifestError;

    fn from_str(text: &str) -> Result<Self, ManifestError> {
        let text = text.trim().as_bytes();
        if text.len() != 2 * KEY_BYTES {
            return Err(ManifestError::Key);
        }
        let mut key = [0; KEY_BYTES];
        for (byte, digits) in key.iter_mut().zip(text.as_chunks::<2>().0) {
            let digit = |at: usize| (digits[at] as char).to_digit(16).ok_or(ManifestError::Key);
            *byte = (digit(0)? << 4 | digit(1)?) as u8;
        }
        Ok(Self(key))
    }
}
