//! The paths of a version. Learned actions are stored by path.

use crate::block::{ContentId, FileId};
use crate::manifest::{Manifest, ROOT};
use crate::predict::Catalogue;
use std::sync::Arc;

/// A version and the path of each of its nodes. If a file has several names, the first one counts.
pub struct Names {
    manifest: Arc<Manifest>,
    paths: Vec<Box<[u8]>>,
}

impl Names {
    /// Collects the paths of a version.
    #[must_use]
    pub fn new(manifest: Arc<Manifest>) -> Self {
        let mut paths: Vec<Box<[u8]>> = vec![Box::default(); manifest.nodes.len()];
        let mut open = vec![ROOT];
        // In a checked manifest each directory has one name, so each is visited once.
        while let Some(directory) = open.pop() {
            for name in manifest.entries(directory) {
                let at = name.node.0 as usize;
                if !paths.get(at).is_some_and(|path| path.is_empty()) {
                    continue;
                }
                let mut path = paths[directory.0 as usize].to_vec();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(&name.name);
                paths[at] = path.into();
                if manifest.file(name.node).is_none() {
                    open.push(name.node);
                }
            }
        }
        Self { manifest, paths }
    }

    /// Returns the path of a node, without a leading slash.
    #[must_use]
    pub fn path(&self, file: FileId) -> Option<&[u8]> {
        self.paths.get(file.0 as usize).map(AsRef::as_ref)
    }
}

impl Catalogue for Names {
    fn describe(&self, file: FileId) -> Option<(&[u8], ContentId, u32)> {
        let (_, content) = self.manifest.file(file)?;
        Some((self.path(file)?, content, self.manifest.blocks(file)))
    }

    fn find(&self, path: &[u8]) -> Option<(FileId, ContentId, u32)> {
        let file = self.manifest.find(path)?;
        let (_, content) = self.manifest.file(file)?;
        Some((file, content, self.manifest.blocks(file)))
    }
}
