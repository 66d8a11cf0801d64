//! The images that are damaged: stores after different histories.

use std::sync::OnceLock;

use base::sim::{Keep, Random, SimDevice};
use flash::{Bound, Error, FormatOptions, OpenOptions, Store};

use super::device::{Allowance, Watched};
use super::format::Places;
use super::history::History;
use super::session::{Call, Session, Trust};

/// Size of the longest name in all images, in bytes.
pub(crate) const NAME_BYTES_MAX: u16 = 40;
const SEED: u64 = 5;
/// Identity of every store created here; it seeds the checksums.
pub(crate) const IDENTITY: [u8; 16] = *b"a store to break";
/// For calls that are not limited.
pub(crate) const EVERYTHING: Allowance = Allowance {
    reads: u64::MAX,
    writes: u64::MAX,
    flushes: u64::MAX,
};

/// A store to damage.
pub(crate) struct Image {
    pub(crate) device: SimDevice,
    /// Earlier states of the device: the content of lost writes.
    pub(crate) earlier: Vec<SimDevice>,
    pub(crate) block_count: u64,
    pub(crate) places: Places,
    pub(crate) history: History,
    /// The limit of opening on any device.
    pub(crate) mount: Bound,
}

/// Returns all images, which are created at the first call.
pub(crate) fn images() -> &'static [Image] {
    static IMAGES: OnceLock<Vec<Image>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        vec![
            Life::new(96, 10).dropped(small),
            Life::new(224, 40).closed(various),
            Life::new(640, 40).dropped(active),
            Life::new(704, 160).dropped(spilled),
            Life::new(704, 160).dropped(just_spilled),
            Life::new(256, 20).cut(3, changing),
            Life::new(256, 20).cut(30, changing),
            Life::new(256, 20).cut(5, replacing),
            Life::new(128, 20).dropped(full),
        ]
    })
}

/// Returns bytes that appear nowhere else.
pub(crate) fn content(salt: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Random::new(salt).fill(&mut bytes);
    bytes
}

/// A store whose history is being created.
struct Life {
    device: Watched,
    block_count: u64,
    earlier: Vec<SimDevice>,
}

/// Makes one call after another; the device may be inspected in between.
struct Maker<'a> {
    session: Session<'a>,
    earlier: &'a mut Vec<SimDevice>,
    salt: u64,
    /// Errors are expected: the store is full, or without power.
    may_fail: bool,
}

impl Life {
    fn new(block_count: u64, files_max: u64) -> Self {
        let mut device = Watched::new(SimDevice::new(block_count, SEED), Vec::new());
        device.allow("format", EVERYTHING);
        let options = FormatOptions {
            files_max,
            name_bytes_max: NAME_BYTES_MAX,
            uuid: IDENTITY,
            hash_key: [9; 16],
        };
        let formatted = Store::format(&mut device, &options).map(|_| ());
        formatted.unwrap_or_else(|error| panic!("{error}"));
        Self {
            device,
            block_count,
            earlier: Vec::new(),
        }
    }

    /// Returns the image after the history and a clean close.
    fn closed(self, life: fn(&mut Maker<'_>)) -> Image {
        self.live(None, true, life)
    }

    /// Returns the image after the history, when the process was killed.
    fn dropped(self, life: fn(&mut Maker<'_>)) -> Image {
        self.live(None, false, life)
    }

    /// Returns the image of a power cut at write `writes` of the part after [`Maker::last_part`]. All writes since the
    /// last flush have arrived except the last one, which is torn.
    fn cut(self, writes: u64, life: fn(&mut Maker<'_>)) -> Image {
        self.live(Some(writes), false, life)
    }

    fn live(mut self, cut: Option<u64>, close: bool, life: fn(&mut Maker<'_>)) -> Image {
        self.device.inner.set_power_cut_after_writes(None);
        let store = Store::open(&mut self.device, &OpenOptions::default());
        let store = store.unwrap_or_else(|error| panic!("{error}"));
        let mut maker = Maker {
            session: Session::of(store, History::default(), Trust::default()),
            earlier: &mut self.earlier,
            salt: 1,
            may_fail: false,
        };
        life(&mut maker);
        if cut.is_some() {
            maker.earlier();
            maker
                .session
                .store
                .device_mut()
                .inner
                .set_power_cut_after_writes(cut);
            maker.may_fail = true;
            maker.salt += 1000;
            life(&mut maker);
        }
        let bounds = maker.session.store.bounds();
        let history = if close {
            let (history, closed) = maker.session.close();
            closed.unwrap_or_else(|error| panic!("{error}"));
            history
        } else {
            maker.session.history
        };
        let device = &self.device.inner;
        assert_eq!(
            device.is_powered(),
            cut.is_none(),
            "the cut comes in the life"
        );
        let last = device.unflushed_count().saturating_sub(1);
        let device = device.crash_image(&|index| {
            if index == last && cut.is_some() {
                Keep::Torn {
                    sector_mask: 0x5555_5555_5555_50ff,
                }
            } else {
                Keep::Whole
            }
        });
        Image {
            places: Places::find(&device, self.block_count),
            device,
            earlier: self.earlier,
            block_count: self.block_count,
            history,
            mount: bounds.mount(),
        }
    }
}

impl Maker<'_> {
    fn call(&mut self, call: &Call) {
        match self.session.call(call) {
            Ok(()) => {}
            Err(Error::Full) if self.may_fail => {}
            Err(error) => assert!(self.may_fail, "{call:?}: {error}"),
        }
    }

    fn append(&mut self, name: &str, length: usize) {
        self.salt += 1;
        let data = content(self.salt, length);
        self.call(&Call::Append(name.to_owned(), data));
    }

    fn delete(&mut self, name: &str) {
        self.call(&Call::Delete(name.to_owned()));
    }

    /// Stores the current state of the device.
    fn earlier(&mut self) {
        let device = self.session.store.device().inner.clone();
        self.earlier.push(device);
    }
}

fn small(maker: &mut Maker<'_>) {
    maker.append("one", 100);
    maker.earlier();
    maker.append("two", 5000);
    maker.append("one", 200);
    // The last record gives an identity to a file.
    maker.call(&Call::Create("three".to_owned()));
}

/// Files of many lengths, some deleted, some changed.
fn various(maker: &mut Maker<'_>) {
    for (number, length) in [0, 1, 3903, 3904, 3905, 15_616, 40_000, 90_000]
        .into_iter()
        .enumerate()
    {
        let name = format!("file {number}");
        maker.call(&Call::Create(name.clone()));
        for piece in [length / 2, length - length / 2] {
            maker.append(&name, piece);
        }
    }
    maker.earlier();
    maker.delete("file 3");
    maker.delete("file 6");
    maker.call(&Call::Rename("file 1".to_owned(), "renamed".to_owned()));
    maker.call(&Call::WriteAt(
        "file 7".to_owned(),
        5_000,
        content(90, 9_000),
    ));
    maker.append("file 5", 10_000);
    maker.call(&Call::Truncate("file 5".to_owned(), 12_345));
}

/// More files in turn than the root has slots for.
fn active(maker: &mut Maker<'_>) {
    for round in 0..3 {
        for number in 0..35 {
            maker.append(
                &format!("active {number}"),
                700 + 97 * number + 1000 * round,
            );
        }
        maker.earlier();
    }
}

/// Enough free pieces to spill the list, and more calls after that.
fn spilled(maker: &mut Maker<'_>) {
    just_spilled(maker);
    maker.append("last", 300);
    maker.delete("long c");
    maker.append("short 51", 20_000);
}

/// Just enough free pieces that the very last record spills them; lists of runs are among them.
fn just_spilled(maker: &mut Maker<'_>) {
    // Long files that grow in turn have many runs.
    for _ in 0..12 {
        for name in ["long a", "long b", "long c"] {
            maker.append(name, 9_000);
        }
    }
    for number in 0..76 {
        maker.append(&format!("short {number}"), 10);
    }
    maker.earlier();
    maker.delete("long a");
    maker.delete("long b");
    for number in (0..76).step_by(2) {
        let device = &maker.session.store.device().inner;
        if !Places::find(device, 704).lists.is_empty() {
            return;
        }
        maker.delete(&format!("short {number}"));
    }
    panic!("no list of free pieces was spilled");
}

/// Everything that changes the content.
fn changing(maker: &mut Maker<'_>) {
    for name in ["a", "b", "c"] {
        maker.append(name, 30_000);
        maker.append(name, 5_000);
    }
    maker.earlier();
    maker.salt += 1;
    let data = content(maker.salt, 10_000);
    maker.call(&Call::WriteAt("a".to_owned(), 3_000, data.clone()));
    maker.call(&Call::Truncate("b".to_owned(), 9_000));
    maker.call(&Call::Rename("b".to_owned(), "c".to_owned()));
    maker.call(&Call::WriteAt("a".to_owned(), 60_000, data));
    maker.call(&Call::Truncate("a".to_owned(), 20_000));
    maker.append("a", 8_000);
    maker.delete("a");
}

fn replacing(maker: &mut Maker<'_>) {
    maker.salt += 1;
    let data = content(maker.salt, 100_000);
    maker.call(&Call::Replace("whole".to_owned(), data));
    maker.append("other", 20_000);
}

fn full(maker: &mut Maker<'_>) {
    maker.append("a", 20_000);
    maker.may_fail = true;
    for length in [60_000, 30_000, 9_000, 3_000, 3_000, 1_000, 1_000, 100] {
        maker.append("b", length);
        maker.append("c", length / 2);
    }
    maker.earlier();
    maker.delete("a");
    for length in [4_000, 4_000, 4_000, 4_000, 100] {
        maker.append("b", length);
        maker.append("c", length / 2);
    }
}
