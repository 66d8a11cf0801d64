//! Devices, and what to read of them.

use std::fmt;
use std::path::PathBuf;

/// Largest number of devices.
pub const DEVICES_MAX: usize = 64;

/// Largest number of registers of one device.
pub const REGISTERS_MAX: usize = 1024;

/// Addresses of a table.
const ADDRESSES: u32 = 1 << 16;

/// Where a device is reached. Devices with the same address share one link and take turns on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Modbus TCP at `host:port`.
    Tcp(String),
    /// Modbus RTU on a serial port.
    Serial(Serial),
}

/// A serial port and its settings; characters have 8 data bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serial {
    /// Its device file.
    pub path: PathBuf,
    /// Bits per second.
    pub baud: u32,
    /// The parity bit.
    pub parity: Parity,
    /// Stop bits, 1 or 2.
    pub stop_bits: u8,
}

/// The parity bit of a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parity {
    /// There is none.
    None,
    /// The number of ones is even.
    Even,
    /// The number of ones is odd.
    Odd,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp://{address}"),
            Self::Serial(serial) => write!(f, "rtu://{}", serial.path.display()),
        }
    }
}

/// One of the four tables of a device; each has addresses of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Coils: bits that can be written.
    Coil,
    /// Discrete inputs: bits.
    Discrete,
    /// Holding registers: words of 16 bits that can be written.
    Holding,
    /// Input registers: words of 16 bits.
    Input,
}

impl Table {
    /// Every table.
    pub const ALL: [Self; 4] = [Self::Coil, Self::Discrete, Self::Holding, Self::Input];

    /// Returns whether it holds bits instead of words.
    #[must_use]
    pub const fn is_bits(self) -> bool {
        matches!(self, Self::Coil | Self::Discrete)
    }

    /// Returns its name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Coil => "coil",
            Self::Discrete => "discrete",
            Self::Holding => "holding",
            Self::Input => "input",
        }
    }
}

/// What the bits of a register, or of several in a row, mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum ValueType {
    Bool,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
}

impl ValueType {
    /// Returns how many addresses a value takes.
    #[must_use]
    pub const fn addresses(self) -> u16 {
        match self {
            Self::Bool | Self::I16 | Self::U16 => 1,
            Self::I32 | Self::U32 | Self::F32 => 2,
            Self::I64 | Self::U64 | Self::F64 => 4,
        }
    }
}

/// The order of the bytes of a value, in the usual notation: A is the most significant byte of a value of 32 bits. For
/// values of 64 bits the words and bytes are swapped likewise; for values of 16 bits only the bytes can be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WordOrder {
    /// As the standard says: the most significant word first.
    #[default]
    Abcd,
    /// The least significant word first.
    Cdab,
    /// The most significant word first, the bytes of each word swapped.
    Badc,
    /// The least significant byte first.
    Dcba,
}

impl WordOrder {
    /// Returns whether the least significant word comes first.
    pub(super) const fn is_low_first(self) -> bool {
        matches!(self, Self::Cdab | Self::Dcba)
    }

    /// Returns whether the bytes of each word are swapped.
    pub(super) const fn is_swapped(self) -> bool {
        matches!(self, Self::Badc | Self::Dcba)
    }
}

/// One value of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Register {
    /// The key of its readings.
    pub key: String,
    /// Its table.
    pub table: Table,
    /// Its first address, from 0.
    pub address: u16,
    /// What it is.
    pub kind: ValueType,
    /// The bit that counts, 0 for the least significant, if the value is one bit of a word.
    pub bit: Option<u8>,
    /// The order of its words and bytes.
    pub order: WordOrder,
    /// The value is the number times this, plus `offset`.
    pub scale: f64,
    /// See `scale`.
    pub offset: f64,
}

/// A part of a register that does not fit the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Its name in the configuration.
    pub key: &'static str,
    /// What is wrong with it.
    pub wrong: &'static str,
    /// The remedy.
    pub remedy: &'static str,
}

impl Register {
    /// Returns whether the number is taken as it is.
    pub(super) fn is_plain(&self) -> bool {
        self.scale == 1.0 && self.offset == 0.0
    }

    /// Returns the address behind its last one.
    pub(super) fn end(&self) -> u32 {
        u32::from(self.address) + u32::from(self.kind.addresses())
    }

    /// Checks that its parts fit each other.
    ///
    /// # Errors
    /// The first part that does not.
    pub fn check(&self) -> Result<(), Misfit> {
        let wrong = |key, wrong, remedy| Err(Misfit { key, wrong, remedy });
        let is_bool = self.kind == ValueType::Bool;
        if self.table.is_bits() && !is_bool {
            return wrong(
                "type",
                "is no \"bool\", and the table holds bits",
                "remove it",
            );
        }
        let needs_bit = is_bool && !self.table.is_bits();
        if needs_bit && self.bit.is_none() {
            let remedy = "name the bit of the register, 0 to 15";
            return wrong("bit", "is missing, and the type is \"bool\"", remedy);
        }
        if !needs_bit && self.bit.is_some() {
            let remedy = "set type = \"bool\", or remove the line";
            return wrong("bit", "is for a \"bool\" in a register only", remedy);
        }
        if self.bit.is_some_and(|bit| bit > 15) {
            return wrong(
                "bit",
                "is above 15",
                "name the bit of the register, 0 to 15",
            );
        }
        if is_bool && !self.is_plain() {
            let remedy = "remove scale and offset";
            return wrong(
                "scale",
                "or offset is there, and the type is \"bool\"",
                remedy,
            );
        }
        if self.scale == 0.0 || !self.scale.is_finite() || !self.offset.is_finite() {
            return wrong(
                "scale",
                "is 0, or no number",
                "remove it, or give another number",
            );
        }
        if self.end() > ADDRESSES {
            let remedy = "give the address of its first register, from 0";
            return wrong("address", "leaves no room for the value", remedy);
        }
        Ok(())
    }
}

/// One device: its address, how often to ask it, and for what.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceOptions {
    /// Its name in the status.
    pub name: String,
    /// Where it is reached.
    pub address: Address,
    /// Its number at this address.
    pub unit: u8,
    /// Time between two polls.
    pub interval_ms: u64,
    /// Longest wait for a connection, and for an answer.
    pub timeout_ms: u64,
    /// Largest number of unused addresses between two registers that are read together.
    pub gap_max: u16,
    /// Shortest pause after a poll without an answer.
    pub retry_ms_min: u64,
    /// Longest pause after a poll without an answer.
    pub retry_ms_max: u64,
    /// What is read; each of them has passed [`Register::check`].
    pub registers: Vec<Register>,
}
