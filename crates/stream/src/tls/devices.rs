//! The list of devices: one line for each, `FINGERPRINT NAME TENANT`.

use super::TlsError;
use super::files::{self, LIST_BYTES_MAX};
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::path::Path;

/// The maximum number of devices of an authority.
pub const DEVICES_MAX: usize = 65_536;

/// The maximum length of a name, in characters.
const NAME_CHARACTERS_MAX: usize = 64;

/// One device of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The blake3 hash of its certificate.
    pub fingerprint: [u8; 32],
    /// Its name, which is unique in the list.
    pub name: String,
    /// The tenant that it belongs to.
    pub tenant: String,
}

/// The devices that a server admits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    list: Vec<Device>,
    places: HashMap<[u8; 32], usize>,
}

impl Devices {
    /// Reads a list.
    ///
    /// # Errors
    /// The file cannot be read, a line is invalid, or a name or fingerprint occurs twice. With an invalid list no
    /// device is admitted.
    pub fn load(path: &Path) -> Result<Self, TlsError> {
        let bytes = files::read(path, LIST_BYTES_MAX)?;
        let text = String::from_utf8(bytes)
            .map_err(|_| TlsError::damaged(path, "the list of devices is not text"))?;
        Self::parse(&text).map_err(|problem| TlsError::damaged(path, problem))
    }

    /// Parses the text of a list. Ignores empty lines and those that begin with `#`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        // Some editors begin a file with a byte order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let (mut devices, mut names) = (Self::default(), HashSet::new());
        for (line, number) in text.lines().zip(1..) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let device = Device::parse(line)
                .ok_or_else(|| format!("line {number} is not FINGERPRINT NAME TENANT"))?;
            if !names.insert(device.name.clone()) {
                return Err(format!("line {number}: {} stands there twice", device.name));
            }
            if devices.list.len() == DEVICES_MAX {
                return Err(format!("more than {DEVICES_MAX} devices"));
            }
            let place = devices.list.len();
            if devices.places.insert(device.fingerprint, place).is_some() {
                return Err(format!(
                    "line {number}: this fingerprint stands there twice"
                ));
            }
            devices.list.push(device);
        }
        Ok(devices)
    }

    /// Returns the tenant of the device with this certificate; `None` if it is not on the list.
    #[must_use]
    pub fn tenant(&self, fingerprint: &[u8; 32]) -> Option<&str> {
        self.device(fingerprint)
            .map(|device| device.tenant.as_str())
    }

    /// Returns the device with this certificate.
    #[must_use]
    pub fn device(&self, fingerprint: &[u8; 32]) -> Option<&Device> {
        self.places.get(fingerprint).map(|place| &self.list[*place])
    }

    /// Returns all devices, in the order of the list.
    #[must_use]
    pub fn list(&self) -> &[Device] {
        &self.list
    }

    /// Returns the list with one more device at the end.
    pub(super) fn with(mut self, device: Device) -> Result<Self, TlsError> {
        if self.list.iter().any(|known| known.name == device.name) {
            return Err(TlsError::Listed(device.name));
        }
        if self.list.len() >= DEVICES_MAX {
            return Err(TlsError::Full);
        }
        self.places.insert(device.fingerprint, self.list.len());
        self.list.push(device);
        Ok(self)
    }

    /// Returns the text of the list.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for device in &self.list {
            for byte in device.fingerprint {
                // Writing into a string does not fail.
                let _ = write!(text, "{byte:02x}");
            }
            let _ = writeln!(text, " {} {}", device.name, device.tenant);
        }
        text
    }
}

impl Device {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (fingerprint, name, tenant) = (words.next()?, words.next()?, words.next()?);
        if words.next().is_some() {
            return None;
        }
        Some(Self {
            fingerprint: fingerprint_of(fingerprint)?,
            name: check_name(name).ok()?.to_owned(),
            tenant: check_name(tenant).ok()?.to_owned(),
        })
    }
}

/// Parses 64 hexadecimal digits.
fn fingerprint_of(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut fingerprint = [0; 32];
    for (byte, pair) in fingerprint.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(fingerprint)
}

/// Checks a name of a device or tenant: 1 to 64 of `a-z`, `0-9`, `.`, `_` and `-`. The first one is a letter or digit,
/// so that the name is also a valid file name.
///
/// # Errors
/// The name is not valid.
pub fn check_name(name: &str) -> Result<&str, TlsError> {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    let is_good = (1..=NAME_CHARACTERS_MAX).contains(&bytes.len())
        && is_letter(bytes[0])
        && bytes
            .iter()
            .all(|byte| is_letter(*byte) || b"._-".contains(byte));
    if is_good {
        Ok(name)
    } else {
        Err(TlsError::Name(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(byte: u8, name: &str, tenant: &str) -> String {
        format!("{} {name} {tenant}\n", format!("{byte:02x}").repeat(32))
    }

    #[test]
    fn a_device_is_found_by_its_fingerprint() {
        let text = [
            "# devices\n\n",
            &line(0xab, "one", "default"),
            &line(2, "two", "lab"),
        ]
        .concat();
        let devices = Devices::parse(&text).unwrap();
        assert_eq!(devices.tenant(&[0xab; 32]), Some("default"));
        assert_eq!(devices.device(&[2; 32]).unwrap().name, "two");
        assert_eq!(devices.tenant(&[3; 32]), None);
        assert_eq!(Devices::parse(&devices.text()).unwrap(), devices);
        assert_eq!(Devices::parse("").unwrap().list(), []);
        let marked = format!("\u{feff}{}", devices.text());
        assert_eq!(Devices::parse(&marked).unwrap(), devices);
    }

    #[test]
    fn a_malformed_list_lets_no_device_in() {
        let good = line(1, "one", "default");
        let twice = good.clone() + &line(1, "other", "default");
        let same_name = good.clone() + &line(2, "one", "default");
        for bad in [
            &good[2..],
            &format!("{} more", good.trim()),
            "0123 one default",
            &good.replace("one", "One"),
            &good.replace("default", "../x"),
            &good.replacen("01", "0g", 1),
            &good.replacen("01", "+1", 1),
            &good.replace(" default", ""),
            &twice,
            &same_name,
        ] {
            assert!(Devices::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_list_is_not_longer_than_it_may_be() {
        let mut devices = Devices::default();
        for number in 0..DEVICES_MAX as u32 {
            let mut fingerprint = [0; 32];
            fingerprint[..4].copy_from_slice(&number.to_le_bytes());
            devices.list.push(Device {
                fingerprint,
                name: format!("device-{number}"),
                tenant: "default".to_owned(),
            });
        }
        let text = devices.text();
        assert!(text.len() as u64 <= LIST_BYTES_MAX);
        assert_eq!(Devices::parse(&text).unwrap().list().len(), DEVICES_MAX);
        assert!(Devices::parse(&(text + &line(0xff, "one-more", "default"))).is_err());
        let one_more = Device {
            fingerprint: [0xff; 32],
            name: "one-more".to_owned(),
            tenant: "default".to_owned(),
        };
        assert!(matches!(devices.with(one_more), Err(TlsError::Full)));
    }
}
