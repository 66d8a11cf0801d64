//! A device as the source of blocks.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use stream::device::{Device, Pages, Start};
use stream::manifest::{Manifest, ROOT};
use stream::{BlockAt, FileId, Token};

use crate::json::escaped;
use crate::pages::PageCache;
use crate::source::{Source, Unreadable};

impl Source for Device {
    fn manifest(&self) -> Arc<Manifest> {
        Arc::clone(Device::manifest(self))
    }

    fn begin(&self, task: FileId) -> Token {
        Device::begin(self, task)
    }

    fn end(&self, token: Token, has_exited: bool) {
        Device::end(self, token, has_exited);
    }

    fn read(
        &self,
        token: Option<Token>,
        at: BlockAt,
        since: Instant,
    ) -> Result<Arc<[u8]>, Unreadable> {
        Device::read_since(self, token, at, since).map_err(|error| Unreadable(error.to_string()))
    }

    fn read_now(&self, token: Option<Token>, at: BlockAt) -> Option<Arc<[u8]>> {
        Device::read_now(self, token, at)
    }

    fn want(&self, token: Option<Token>, blocks: &[BlockAt]) {
        Device::want(self, token, blocks);
    }

    fn counters(&self) -> String {
        let mut text = String::from("{");
        for (name, count) in Device::counters(self).named() {
            // Names are those of fields, so they need no escape. Writing to a string does not fail.
            write!(text, "\"{name}\":{count},").ok();
        }
        if let Some(failure) = self.cache_failure() {
            write!(text, "\"cache_failure\":\"{}\",", escaped(&failure)).ok();
        }
        if let Some(failure) = self.server_failure() {
            write!(text, "\"server_failure\":\"{}\",", escaped(&failure.text)).ok();
        }
        let manifest = Device::manifest(self);
        write!(text, "\"version\":{},\"starts\":[", manifest.version).ok();
        let starts: Vec<_> = self
            .starts()
            .iter()
            .map(|start| shown(manifest, start))
            .collect();
        text + &starts.join(",") + "]}"
    }

    fn set_pages(&self, pages: Option<Arc<PageCache>>) {
        Device::set_pages(self, pages.map(|pages| pages as Arc<dyn Pages>));
    }
}

fn shown(manifest: &Manifest, start: &Start) -> String {
    format!(
        "{{\"task\":\"{}\",\"read\":{},\"pushed\":{},\"unread\":{},\"round_trips\":{},\"requests\":{},\
         \"is_audit\":{},\"is_exact\":{}}}",
        escaped(&path_of(manifest, start.task)),
        start.read,
        start.pushed,
        start.unread,
        start.round_trips,
        start.requests,
        start.is_audit,
        start.is_exact
    )
}

fn path_of(manifest: &Manifest, file: FileId) -> String {
    let mut parts = Vec::new();
    let mut at = file;
    while at != ROOT {
        let Some(name) = manifest.names.iter().find(|name| name.node == at) else {
            break;
        };
        parts.push(String::from_utf8_lossy(&name.name).into_owned());
        at = name.directory;
    }
    parts.reverse();
    parts.join("/")
}
