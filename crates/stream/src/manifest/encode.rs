//! Writes a manifest: compressed columns, so that similar values are adjacent, and behind them the hashes, which do not
//! compress.

use super::{FORMAT, HEADER_BYTES, KIND_DIRECTORY, KIND_FILE, KIND_LINK, Kind, MAGIC, Manifest};
use crate::block::ContentId;
use std::collections::HashMap;

/// High, because a manifest is compressed once and sent to every device.
const LEVEL: i32 = 19;

impl Manifest {
    /// Returns the body, which the caller then signs. Does not check the rules of the manifest: the reader refuses a
    /// manifest that breaks one.
    ///
    /// # Panics
    /// Only if memory for compression cannot be allocated.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (columns, contents) = self.columns();
        let compressed = zstd::bulk::compress(&columns, LEVEL).expect("memory to compress in");
        let mut body =
            Vec::with_capacity(HEADER_BYTES + compressed.len() + contents.len() * 32 + 96);
        body.extend_from_slice(&MAGIC);
        body.extend_from_slice(&FORMAT.to_le_bytes());
        body.extend_from_slice(&count(self.nodes.len()));
        body.extend_from_slice(&self.version.to_le_bytes());
        body.extend_from_slice(&count(self.names.len()));
        body.extend_from_slice(&count(contents.len()));
        body.extend_from_slice(&count(columns.len()));
        body.extend_from_slice(&count(compressed.len()));
        body.extend_from_slice(&compressed);
        for content in contents {
            body.extend_from_slice(&content.0);
        }
        body
    }

    fn columns(&self) -> (Vec<u8>, Vec<ContentId>) {
        let mut out = Vec::new();
        self.write_attributes(&mut out);
        let mut previous_s = 0_i64;
        for node in &self.nodes {
            put_signed(&mut out, node.modified_s.wrapping_sub(previous_s));
            previous_s = node.modified_s;
        }
        for node in &self.nodes {
            put(&mut out, u64::from(node.modified_ns));
        }
        let contents = self.write_contents(&mut out);
        let targets = || {
            self.nodes.iter().filter_map(|node| match &node.kind {
                Kind::Link { target } => Some(target),
                _ => None,
            })
        };
        targets().for_each(|target| put(&mut out, target.len() as u64));
        targets().for_each(|target| out.extend_from_slice(target));
        self.write_names(&mut out);
        (out, contents)
    }

    /// Writes the kinds of the nodes, and their permissions and owners, of which there are few distinct ones.
    fn write_attributes(&self, out: &mut Vec<u8>) {
        let mut seen = HashMap::new();
        let mut attributes = Vec::new();
        let mut column = Vec::new();
        for node in &self.nodes {
            let attribute = (node.mode, node.user, node.group);
            let index = *seen.entry(attribute).or_insert_with(|| {
                attributes.push(attribute);
                attributes.len() as u64 - 1
            });
            put(&mut column, index);
        }
        put(out, attributes.len() as u64);
        for (mode, user, group) in attributes {
            put(out, u64::from(mode));
            put(out, u64::from(user));
            put(out, u64::from(group));
        }
        out.extend(self.nodes.iter().map(|node| match node.kind {
            Kind::Directory => KIND_DIRECTORY,
            Kind::File { .. } => KIND_FILE,
            Kind::Link { .. } => KIND_LINK,
        }));
        out.extend_from_slice(&column);
    }

    /// Writes the sizes and the contents of files. A content is 0 for the next one of the list, or 1 plus its index in
    /// the list.
    fn write_contents(&self, out: &mut Vec<u8>) -> Vec<ContentId> {
        let files = || {
            self.nodes.iter().filter_map(|node| match node.kind {
                Kind::File {
                    size_bytes,
                    content,
                } => Some((size_bytes, content)),
                _ => None,
            })
        };
        files().for_each(|(size_bytes, _)| put(out, size_bytes));
        let mut places = HashMap::new();
        let mut contents = Vec::new();
        for (_, content) in files().filter(|(size_bytes, _)| *size_bytes > 0) {
            let place = *places.entry(content).or_insert_with(|| {
                contents.push(content);
                0
            });
            put(out, place);
            if place == 0 {
                places.insert(content, contents.len() as u64);
            }
        }
        contents
    }

    fn write_names(&self, out: &mut Vec<u8>) {
        let mut at = 0;
        for (number, node) in self.nodes.iter().enumerate() {
            if matches!(node.kind, Kind::Directory) {
                let from = at;
                while self
                    .names
                    .get(at)
                    .is_some_and(|name| name.directory.0 as usize == number)
                {
                    at += 1;
                }
                put(out, (at - from) as u64);
            }
        }
        let mut texts = Vec::new();
        let mut expected = 1_i64;
        let mut previous: Option<&super::Name> = None;
        let mut lengths = Vec::new();
        let mut nodes = Vec::new();
        for name in &self.names {
            let shared = previous
                .filter(|previous| previous.directory == name.directory)
                .map_or(0, |previous| shared_bytes(&previous.name, &name.name));
            put(out, shared as u64);
            put(&mut lengths, (name.name.len() - shared) as u64);
            put_signed(&mut nodes, i64::from(name.node.0) - expected);
            texts.extend_from_slice(&name.name[shared..]);
            expected = i64::from(name.node.0) + 1;
            previous = Some(name);
        }
        out.extend_from_slice(&lengths);
        out.extend_from_slice(&nodes);
        out.extend_from_slice(&texts);
    }
}

fn shared_bytes(left: &[u8], right: &[u8]) -> usize {
    left.iter()
        .zip(right)
        .take_while(|(left, right)| left == right)
        .count()
}

fn count(number: usize) -> [u8; 4] {
    // A count that does not fit is far beyond every limit of the reader, which then refuses it.
    u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes()
}

/// Writes a number with seven bits in each byte, the lowest first. The highest bit says that more bytes follow.
fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Writes a signed number: 0, -1, 1, -2, 2 become 0, 1, 2, 3, 4.
fn put_signed(out: &mut Vec<u8>, number: i64) {
    put(out, ((number << 1) ^ (number >> 63)) as u64);
}
