//! Reads a manifest, and refuses anything that breaks a rule before it allocates memory for it.

use super::{
    COLUMN_BYTES_MAX, DEPTH_MAX, FILE_BYTES_MAX, FORMAT, HEADER_BYTES, KIND_DIRECTORY, KIND_FILE,
    KIND_LINK, Kind, MAGIC, MODE_MAX, Manifest, ManifestError, NAME_BYTES_MAX, NODES_MAX, Name,
    Node, TARGET_BYTES_MAX, empty_content,
};
use crate::block::{ContentId, FileId};
use crate::wire::MANIFEST_BYTES_MAX;

const HASH_BYTES: usize = 32;
const SECOND_NS: u64 = 1_000_000_000;

/// The minimum size of a node, in bytes: one in each of the columns kind, attribute, seconds and nanoseconds.
const NODE_BYTES_MIN: u32 = 4;

/// The minimum size of a name, in bytes: its shared and own length, its node, and a byte of text.
const NAME_BYTES_LEAST: u32 = 4;

type Result<T> = std::result::Result<T, ManifestError>;

struct Header {
    version: u64,
    nodes: usize,
    names: usize,
    contents: usize,
    column_bytes: usize,
    compressed_bytes: usize,
}

impl Manifest {
    /// Reads a body. Does not check the signature: a manifest from elsewhere goes through [`super::verify`].
    ///
    /// # Errors
    /// It is no manifest, damaged, or beyond a limit.
    pub fn decode(body: &[u8]) -> Result<Self> {
        let header = Header::read(body)?;
        let rest = &body[HEADER_BYTES..];
        if rest.len() != header.compressed_bytes + header.contents * HASH_BYTES {
            return Err(ManifestError::Damaged("its length"));
        }
        let (compressed, hashes) = rest.split_at(header.compressed_bytes);
        let columns = zstd::bulk::decompress(compressed, header.column_bytes)
            .map_err(|_| ManifestError::Damaged("the compressed part"))?;
        if columns.len() != header.column_bytes {
            return Err(ManifestError::Damaged("the length of the compressed part"));
        }
        let mut columns = Columns { rest: &columns };
        let nodes = columns.nodes(&header, hashes)?;
        let names = columns.names(&header, &nodes)?;
        if !columns.rest.is_empty() {
            return Err(ManifestError::Damaged("bytes are left over"));
        }
        check_tree(&nodes, &names)?;
        Ok(Self {
            version: header.version,
            nodes,
            names,
        })
    }
}

impl Header {
    fn read(body: &[u8]) -> Result<Self> {
        if body.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(ManifestError::Limit("bytes"));
        }
        let header = body
            .first_chunk::<HEADER_BYTES>()
            .filter(|header| header[..8] == MAGIC)
            .ok_or(ManifestError::NotAManifest)?;
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        if word(8) != FORMAT {
            return Err(ManifestError::Format(word(8)));
        }
        let [nodes, names, contents, column_bytes, compressed_bytes] =
            [12, 24, 28, 32, 36].map(word);
        if nodes > NODES_MAX || names > NODES_MAX {
            return Err(ManifestError::Limit("files and names"));
        }
        if column_bytes > COLUMN_BYTES_MAX {
            return Err(ManifestError::Limit("bytes of names and attributes"));
        }
        if nodes == 0
            || contents > nodes
            || nodes > column_bytes / NODE_BYTES_MIN
            || names > column_bytes / NAME_BYTES_LEAST
        {
            return Err(ManifestError::Damaged("its counts"));
        }
        Ok(Self {
            version: u64::from(word(16)) | u64::from(word(20)) << 32,
            nodes: nodes as usize,
            names: names as usize,
            contents: contents as usize,
            column_bytes: column_bytes as usize,
            compressed_bytes: compressed_bytes as usize,
        })
    }
}

/// The unread rest of the columns.
struct Columns<'b> {
    rest: &'b [u8],
}

impl<'b> Columns<'b> {
    fn bytes(&mut self, length: usize) -> Result<&'b [u8]> {
        let (bytes, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(ManifestError::Damaged("it ends too early"))?;
        self.rest = rest;
        Ok(bytes)
    }

    fn number(&mut self) -> Result<u64> {
        let mut number = 0_u64;
        for place in 0..10 {
            let byte = self.bytes(1)?[0];
            let bits = u64::from(byte & 0x7f);
            if place == 9 && bits > 1 {
                break;
            }
            number |= bits << (7 * place);
            if byte & 0x80 == 0 {
                // Each number has exactly one encoding.
                if byte == 0 && place > 0 {
                    break;
                }
                return Ok(number);
            }
        }
        Err(ManifestError::Damaged("a number"))
    }

    /// Reads a number that must be below `end`.
    fn below(&mut self, end: u64, what: &'static str) -> Result<u64> {
        let number = self.number()?;
        if number < end {
            Ok(number)
        } else {
            Err(ManifestError::Damaged(what))
        }
    }

    fn signed(&mut self) -> Result<i64> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn nodes(&mut self, header: &Header, hashes: &[u8]) -> Result<Vec<Node>> {
        let mut attributes = Vec::new();
        for _ in 0..self.below(header.nodes as u64 + 1, "more attributes than nodes")? {
            let mode = self.below(u64::from(MODE_MAX) + 1, "permission bits")?;
            let user = self.below(1 << 32, "an owner")?;
            let group = self.below(1 << 32, "a group")?;
            attributes.push((mode as u16, user as u32, group as u32));
        }
        let kinds = self.bytes(header.nodes)?;
        if kinds.iter().any(|kind| *kind > KIND_LINK) || kinds[0] != KIND_DIRECTORY {
            return Err(ManifestError::Damaged("the kind of a node"));
        }
        let mut nodes = Vec::with_capacity(header.nodes);
        for _ in kinds {
            let index = self.below(attributes.len() as u64, "an attribute")?;
            let (mode, user, group) = attributes[index as usize];
            nodes.push(Node {
                kind: Kind::Directory,
                mode,
                user,
                group,
                modified_s: 0,
                modified_ns: 0,
            });
        }
        let mut modified_s = 0_i64;
        for node in &mut nodes {
            modified_s = modified_s.wrapping_add(self.signed()?);
            node.modified_s = modified_s;
        }
        for node in &mut nodes {
            node.modified_ns = self.below(SECOND_NS, "a time")? as u32;
        }
        self.files(kinds, hashes, &mut nodes)?;
        self.links(kinds, &mut nodes)?;
        Ok(nodes)
    }

    fn files(&mut self, kinds: &[u8], hashes: &[u8], nodes: &mut [Node]) -> Result<()> {
        let of_files = || (0..kinds.len()).filter(|at| kinds[*at] == KIND_FILE);
        for at in of_files() {
            nodes[at].kind = Kind::File {
                size_bytes: self.below(FILE_BYTES_MAX + 1, "the size of a file")?,
                content: empty_content(),
            };
        }
        let mut contents = hashes.as_chunks::<HASH_BYTES>().0.iter();
        let mut seen: Vec<(ContentId, u64)> = Vec::new();
        for at in of_files() {
            let Kind::File {
                size_bytes,
                content,
            } = &mut nodes[at].kind
            else {
                continue;
            };
            if *size_bytes == 0 {
                continue;
            }
            let place = self.below(seen.len() as u64 + 1, "a content that is not listed")?;
            if place == 0 {
                let hash = contents
                    .next()
                    .ok_or(ManifestError::Damaged("fewer contents than are used"))?;
                seen.push((ContentId(*hash), *size_bytes));
                *content = ContentId(*hash);
            } else {
                let (of, bytes) = seen[place as usize - 1];
                if bytes != *size_bytes {
                    return Err(ManifestError::Damaged("a content has two sizes"));
                }
                *content = of;
            }
        }
        if contents.next().is_some() {
            return Err(ManifestError::Damaged("more contents than are used"));
        }
        // A content that is listed twice would pass the check of sizes.
        seen.sort_unstable();
        if seen.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(ManifestError::Damaged("a content is listed twice"));
        }
        Ok(())
    }

    fn links(&mut self, kinds: &[u8], nodes: &mut [Node]) -> Result<()> {
        let mut lengths = Vec::new();
        for at in (0..kinds.len()).filter(|at| kinds[*at] == KIND_LINK) {
            let length = self.below(TARGET_BYTES_MAX as u64 + 1, "the length of a link")?;
            lengths.push((at, length as usize));
        }
        for (at, length) in lengths {
            let target = self.bytes(length)?;
            if target.is_empty() || target.contains(&0) {
                return Err(ManifestError::Damaged("where a link leads"));
            }
            nodes[at].kind = Kind::Link {
                target: target.into(),
            };
        }
        Ok(())
    }

    fn names(&mut self, header: &Header, nodes: &[Node]) -> Result<Vec<Name>> {
        let mut directories = Vec::new();
        let mut left = header.names as u64;
        for (number, node) in nodes.iter().enumerate() {
            if matches!(node.kind, Kind::Directory) {
                let names = self.below(left + 1, "more names than there are")?;
                left -= names;
                directories.push((FileId(number as u32), names));
            }
        }
        if left > 0 {
            return Err(ManifestError::Damaged("names without a directory"));
        }
        let length_end = NAME_BYTES_MAX as u64 + 1;
        let mut shapes = Vec::with_capacity(header.names);
        for _ in 0..header.names {
            shapes.push((self.below(length_end, "the length of a name")? as usize, 0));
        }
        for shape in &mut shapes {
            shape.1 = self.below(length_end, "the length of a name")? as usize;
        }
        let mut expected = 1_i64;
        let mut of = Vec::with_capacity(header.names);
        for _ in 0..header.names {
            let node = expected
                .checked_add(self.signed()?)
                .filter(|node| (1..nodes.len() as i64).contains(node))
                .ok_or(ManifestError::Damaged("a name of nothing"))?;
            of.push(FileId(node as u32));
            expected = node + 1;
        }
        let mut names: Vec<Name> = Vec::with_capacity(header.names);
        for (directory, count) in directories {
            for entry in 0..count {
                let (shared, own) = shapes[names.len()];
                let previous = names
                    .last()
                    .filter(|_| entry > 0)
                    .map_or(&[][..], |name| &*name.name);
                let head = previous
                    .get(..shared)
                    .ok_or(ManifestError::Damaged("the length of a name"))?;
                let name: Box<[u8]> = [head, self.bytes(own)?].concat().into();
                check_name(&name)?;
                if entry > 0 && *previous >= *name {
                    return Err(ManifestError::Damaged("names out of order"));
                }
                let node = of[names.len()];
                names.push(Name {
                    directory,
                    name,
                    node,
                });
            }
        }
        Ok(names)
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    let is_right = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'));
    if is_right {
        Ok(())
    } else {
        Err(ManifestError::Damaged("a name that no file can have"))
    }
}

/// Checks that each node has a name, a directory exactly one, and that all paths begin at the root.
fn check_tree(nodes: &[Node], names: &[Name]) -> Result<()> {
    let is_directory = |node: FileId| matches!(nodes[node.0 as usize].kind, Kind::Directory);
    let mut is_named = vec![false; nodes.len()];
    is_named[0] = true;
    let mut parents = vec![FileId(0); nodes.len()];
    for name in names {
        let node = name.node.0 as usize;
        if is_named[node] && is_directory(name.node) {
            return Err(ManifestError::Damaged("a directory with two names"));
        }
        is_named[node] = true;
        parents[node] = name.directory;
    }
    if is_named.contains(&false) {
        return Err(ManifestError::Damaged("a node without a name"));
    }
    // The depth of each directory; 0 if not known yet.
    let mut depths = vec![0_u32; nodes.len()];
    depths[0] = 1;
    let mut way = Vec::new();
    for node in (0..nodes.len()).filter(|node| is_directory(FileId(*node as u32))) {
        let mut at = node;
        while depths[at] == 0 {
            way.push(at);
            if way.len() > DEPTH_MAX as usize {
                return Err(ManifestError::Damaged(
                    "directories too deep or in themselves",
                ));
            }
            at = parents[at].0 as usize;
        }
        let mut depth = depths[at];
        while let Some(below) = way.pop() {
            depth += 1;
            depths[below] = depth;
        }
        if depth > DEPTH_MAX {
            return Err(ManifestError::Damaged("directories too deep"));
        }
    }
    Ok(())
}
