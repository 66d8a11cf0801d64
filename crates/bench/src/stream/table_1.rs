//! Table I of the paper: the parts of the time of one individually requested page. It compares a disk as slow as a
//! card, a network file system, and our system without prefetching.
//!
//! The paper measures below the virtual file system, from the request to its completion. Here it is the call that reads
//! one block of an open file, without readahead. The same blocks are read on all three systems. The first block of a
//! file is read before, to exclude what comes with it (its node, its extents, its list of hashes). Other caches are
//! cold, also the server's. Parts are means, so that they add up to the whole. What is not measured separately is the
//! rest; a negative rest shows the inaccuracy of the other parts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use stream::provide::{Arm, Provider};
use stream::store::Store;
use stream::{BlockAt, FileId};

use super::bed::{Bed, CARD, KEEL, Ours, Prepared, SSHFS, counter};
use super::cases::Course;
use super::clients::Place;
use super::copies::exchange_us;
use super::disks::forget_all;
use super::net::{HEADER_BYTES, Traffic};
use super::paper::{Named, WIRED, execution_order_of_both, read_pages_with};
use crate::figures::Metric;

/// The time of a part.
pub(crate) const PART_TIME: Metric = Metric::shown("part_time", "us");

/// Systems with their parts; the first part is the total.
pub(crate) const PARTS: [(&str, &[&str]); 3] = [
    (CARD, &[CARD, "ext4-card-kernel", "ext4-card-limit"]),
    (SSHFS, &[SSHFS, "sshfs-network", "sshfs-rest"]),
    (
        KEEL,
        &[
            KEEL,
            "keel-fuse",
            "keel-programs",
            "keel-store",
            "keel-network",
        ],
    ),
];

/// Maximum number of blocks in the mean.
const SAMPLES_MAX: usize = 400;

/// Memory of the server for content, in bytes.
const SERVER_BYTES: u64 = 256 << 20;

/// The blocks of each file that are read before the measurement, and those that are measured.
struct Blocks {
    before: Vec<(Place, Named)>,
    measured: Vec<(Place, Named)>,
}

impl Blocks {
    fn of(bed: &Bed<'_>, prepared: &Prepared) -> Result<Self, String> {
        let mut files = BTreeSet::new();
        let mut blocks = Self {
            before: Vec::new(),
            measured: Vec::new(),
        };
        for block in execution_order_of_both(bed, prepared)? {
            if blocks.measured.len() == SAMPLES_MAX {
                break;
            }
            let is_first = files.insert(block.0.0);
            let kind = if is_first {
                &mut blocks.before
            } else {
                &mut blocks.measured
            };
            kind.push(block);
        }
        Ok(blocks)
    }

    /// Reads the blocks of `before`. Then returns the mean microseconds of the measured ones; `between` is called
    /// before them.
    fn read(
        &self,
        bed: &Bed<'_>,
        root: &Path,
        join: &[PathBuf],
        between: impl FnOnce() -> Result<(), String>,
    ) -> Result<f64, String> {
        let named = |blocks: &[(Place, Named)]| -> Vec<Named> {
            blocks.iter().map(|(_, named)| named.clone()).collect()
        };
        let single = &["--single"];
        read_pages_with(bed, &named(&self.before), root, join, single)?;
        between()?;
        read_pages_with(bed, &named(&self.measured), root, join, single)
    }

    fn count(&self) -> f64 {
        self.measured.len().max(1) as f64
    }

    /// Returns the mean microseconds of a plain exchange with as many bytes in each direction as a block needed.
    fn network_us(&self, bed: &Bed<'_>, traffic: Traffic) -> Result<f64, String> {
        let each = |bytes: u64, packets: u64| {
            (bytes.saturating_sub(packets * HEADER_BYTES) as f64 / self.count()).round() as u64
        };
        let bytes = [
            each(traffic.to_server_bytes, traffic.to_server_packets).max(1),
            each(traffic.to_device_bytes, traffic.to_device_packets).max(1),
        ];
        exchange_us(bed, WIRED, bytes, self.measured.len() as u32)
    }
}

impl Course<'_> {
    /// Runs one round.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn table_1(&mut self, place: usize, case: &'static str) -> Result<(), String> {
        let bed = self.bed;
        let blocks = Blocks::of(bed, &self.prepared[place])?;
        if blocks.measured.is_empty() {
            return Err("no file of which two blocks are needed".to_owned());
        }
        let ours = ours(bed, &self.prepared[place], &blocks)?;
        let mut systems = vec![(KEEL, ours)];
        match sshfs(bed, &mut self.prepared[place], &blocks) {
            Ok(us) => systems.push((SSHFS, us)),
            Err(error) => self.figures.missing(format!("{SSHFS} in {case} ({error})")),
        }
        if self.prepared[place].card.is_some() {
            systems.push((CARD, card(bed, &mut self.prepared[place], &blocks)?));
        }
        for (system, us) in systems {
            let parts = PARTS.iter().find(|(name, _)| *name == system);
            for (part, us) in parts.map_or(&[][..], |(_, parts)| parts).iter().zip(us) {
                self.figures.record(case, part, PART_TIME, us);
            }
        }
        Ok(())
    }
}

/// Returns the total; the kernel with FUSE; the programs of both sides with TLS, hashes and compression; the server's
/// store and its disk; the network.
fn ours(bed: &Bed<'_>, prepared: &Prepared, blocks: &Blocks) -> Result<Vec<f64>, String> {
    let mut how = Ours::on_demand();
    // Readahead of the server cannot be assigned to a page.
    how.serving.provide = "none";
    let running = bed.run_ours(prepared, WIRED, &how)?;
    let mut before = (0.0, 0.0, Traffic::default());
    let look = || -> Result<(f64, f64, Traffic), String> {
        let figures = running.mounted.figures()?;
        let figure = |name| counter(&figures, name).ok_or(format!("the mount counts no {name}"));
        Ok((
            figure("read_us")?,
            figure("requests")?,
            bed.line().traffic()?,
        ))
    };
    let whole_us = blocks.read(bed, &running.at, &[], || {
        before = look()?;
        Ok(())
    })?;
    let after = look()?;
    running.end()?;
    let requests = after.1 - before.1;
    if requests < blocks.count() {
        return Err(format!(
            "{requests} requests for {} blocks: something came that was not asked for",
            blocks.count()
        ));
    }
    let mount_us = (after.0 - before.0) / blocks.count();
    let network_us = blocks.network_us(bed, after.2.since(before.2))?;
    let store_us = store_us(prepared, blocks)?;
    let rest_us = mount_us - network_us - store_us;
    Ok(vec![
        whole_us,
        whole_us - mount_us,
        rest_us,
        store_us,
        network_us,
    ])
}

/// Returns the mean microseconds in which the server's store provides a block, with the server's requests. A segment is
/// read from the disk once, and kept.
fn store_us(prepared: &Prepared, blocks: &Blocks) -> Result<f64, String> {
    let failed = |error: stream::store::StoreError| error.to_string();
    let store = Arc::new(Store::open(&prepared.store).map_err(failed)?);
    let newest = store.newest().map_err(failed)?;
    let published = store.published(newest).map_err(failed)?;
    let provider = Provider::new(store, Arm::None, SERVER_BYTES);
    forget_all()?;
    let read = |((file, index), _): &(Place, Named)| {
        let at = BlockAt {
            file: FileId(*file),
            index: *index,
        };
        let bytes = provider.blocks(&published, &[at]);
        bytes.map(drop).map_err(|error| error.to_string())
    };
    blocks.before.iter().try_for_each(read)?;
    let begun = Instant::now();
    blocks.measured.iter().try_for_each(read)?;
    Ok(begun.elapsed().as_secs_f64() * 1e6 / blocks.count())
}

/// Returns the total; the network; the kernel, FUSE and the programs of both sides with the server's disk.
fn sshfs(bed: &Bed<'_>, prepared: &mut Prepared, blocks: &Blocks) -> Result<Vec<f64>, String> {
    let mut before = Traffic::default();
    let (whole_us, after) = bed.with_sshfs(prepared, WIRED, |_, at| {
        let whole_us = blocks.read(bed, at, &[], || {
            before = bed.line().traffic()?;
            Ok(())
        })?;
        Ok((whole_us, bed.line().traffic()?))
    })?;
    let network_us = blocks.network_us(bed, after.since(before))?;
    Ok(vec![whole_us, network_us, whole_us - network_us])
}

/// Returns the total; the kernel and the disk in memory without the limit; what the limit adds.
fn card(bed: &Bed<'_>, prepared: &mut Prepared, blocks: &Blocks) -> Result<Vec<f64>, String> {
    let card = prepared.card.as_mut().ok_or("it could not be made")?;
    let members = card.group.members();
    let mut read = |join: &[PathBuf]| {
        card.disk.remount()?;
        forget_all()?;
        blocks.read(bed, card.disk.folder(), join, || Ok(()))
    };
    let kernel_us = read(&[])?;
    let whole_us = read(&[members])?;
    Ok(vec![whole_us, kernel_us, whole_us - kernel_us])
}
