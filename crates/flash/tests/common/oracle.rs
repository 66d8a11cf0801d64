//! The allowed contents of a store after a power cut, given the calls made on it.
//!
//! The rules in prose are at the top of `tests/crash.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use flash::{APPEND_ATOMIC_BYTES_MAX, OVERWRITE_ATOMIC_BYTES_MAX, PAYLOAD_BYTES};

use super::operation::{Files, Operation};
use super::pieces::{changed_blocks, put};

/// A call that has returned but need not be durable yet, with the file's content after it.
#[derive(Clone)]
struct Pending {
    call: Operation,
    after: Arc<Vec<u8>>,
}

/// The content that is certainly durable, the content that reads show, and the calls between the two.
#[derive(Clone)]
pub struct Ledger {
    durable: Files,
    now: Files,
    pending: Vec<Pending>,
}

/// The source of a name's content in one possible outcome.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// The file that had this name when the call began, with its pending calls.
    File(&'a str),
    /// These bytes exactly.
    Exactly(&'a [u8]),
}

impl Ledger {
    /// Returns a ledger in which everything in `files` is durable.
    pub fn new(files: Files) -> Self {
        Self {
            durable: files.clone(),
            now: files,
            pending: Vec::new(),
        }
    }

    /// Returns the content that the store shows as long as there is no power cut.
    pub fn now(&self) -> &Files {
        &self.now
    }

    /// Returns the number of calls that a cut may undo.
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Records that the call has succeeded.
    pub fn returned(&mut self, call: &Operation) {
        let old = call.changed_file().and_then(|name| self.now.get(name));
        let durable = old.map_or(call.makes_durable(), |old| call.is_durable_on(old));
        call.apply(&mut self.now);
        if durable {
            self.durable.clone_from(&self.now);
            self.pending.clear();
        } else {
            self.note_pending(call);
        }
    }

    /// Records that the call was refused after it had changed its file to `content`, which need not be durable.
    pub fn refused(&mut self, call: &Operation, content: Vec<u8>) {
        let Some(name) = call.changed_file() else {
            return;
        };
        if *self.now[name] != content {
            self.now.insert(name.to_owned(), Arc::new(content));
            self.note_pending(call);
        }
    }

    fn note_pending(&mut self, call: &Operation) {
        if let Some(after) = call.changed_file().and_then(|name| self.now.get(name)) {
            self.pending.push(Pending {
                call: call.clone(),
                after: Arc::clone(after),
            });
        }
    }

    /// Checks whether the store may hold `found` when the power is cut during `running`, or between two calls.
    ///
    /// # Errors
    /// The differences.
    pub fn judge(&self, found: &Files, running: Option<&Operation>) -> Result<(), String> {
        if same(found, &self.durable) || (running.is_none() && same(found, &self.now)) {
            return Ok(());
        }
        let outcomes = self.outcomes(running);
        if outcomes
            .iter()
            .any(|outcome| self.fits(outcome, found, running))
        {
            Ok(())
        } else {
            Err(self.differences(found, running))
        }
    }

    /// Returns the possible sets of names, with the sources of their contents.
    fn outcomes<'a>(
        &'a self,
        running: Option<&'a Operation>,
    ) -> Vec<BTreeMap<&'a str, Source<'a>>> {
        let before: BTreeMap<&str, Source> = self
            .durable
            .keys()
            .map(|name| (name.as_str(), Source::File(name)))
            .collect();
        let mut after = before.clone();
        let mut outcomes = vec![before];
        match running {
            Some(Operation::Create(name)) if !after.contains_key(name.as_str()) => {
                after.insert(name, Source::Exactly(&[]));
            }
            Some(Operation::Replace(name, data)) => {
                after.insert(name, Source::Exactly(data));
            }
            Some(Operation::Delete(name)) => {
                after.remove(name.as_str());
            }
            Some(Operation::Rename(from, to)) => {
                if let Some(source) = after.get(from.as_str()).copied() {
                    after.insert(to, source);
                    if from != to {
                        after.remove(from.as_str());
                    }
                }
            }
            _ => {}
        }
        outcomes.push(after);
        outcomes
    }

    fn fits(
        &self,
        outcome: &BTreeMap<&str, Source>,
        found: &Files,
        running: Option<&Operation>,
    ) -> bool {
        outcome.len() == found.len()
            && outcome.iter().all(|(name, source)| {
                found.get(*name).is_some_and(|content| match source {
                    Source::Exactly(bytes) => content.as_slice() == *bytes,
                    Source::File(before) => self.is_reachable(before, content, running),
                })
            })
    }

    /// Returns whether a cut may leave `found` in the file that was called `name` when the running call began.
    fn is_reachable(&self, name: &str, found: &Arc<Vec<u8>>, running: Option<&Operation>) -> bool {
        let mut state = &self.durable[name];
        for pending in &self.pending {
            if pending.call.changed_file() == Some(name) {
                if Arc::ptr_eq(state, found) || is_between(&pending.call, state, found) {
                    return true;
                }
                state = &pending.after;
            }
        }
        if Arc::ptr_eq(state, found) {
            return true;
        }
        match running.filter(|call| call.changed_file() == Some(name)) {
            Some(call) => is_between(call, state, found),
            None => state == found,
        }
    }

    fn differences(&self, found: &Files, running: Option<&Operation>) -> String {
        let mut after = self.now.clone();
        if let Some(call) = running {
            call.apply(&mut after);
        }
        let mut names: Vec<_> = found.keys().chain(self.durable.keys()).collect();
        names.extend(after.keys());
        names.sort_unstable();
        names.dedup();
        let mut text = format!(
            "running {}, {} calls not durable; ",
            running.map_or("nothing".to_owned(), Operation::brief),
            self.pending.len()
        );
        for name in names {
            let (durable, now) = (self.durable.get(name), after.get(name));
            if found.get(name) != durable || durable != now {
                let length = |files: &Files| files.get(name).map(|content| content.len());
                let agree = found.get(name).zip(now).map(|(found, now)| {
                    let same = found.iter().zip(now.iter());
                    same.take_while(|(left, right)| left == right).count()
                });
                text += &format!(
                    "{name}: found {:?} bytes, durable {:?}, after all {:?} (equal up to {agree:?}); ",
                    length(found),
                    length(&self.durable),
                    length(&after)
                );
            }
        }
        text
    }
}

fn same(left: &Files, right: &Files) -> bool {
    left.len() == right.len()
        && left.iter().zip(right).all(|((one, left), (other, right))| {
            one == other && (Arc::ptr_eq(left, right) || left == right)
        })
}

/// Returns whether a cut in the middle of `call` may leave `found` in a file that held `old`. The states before and
/// after the call count too.
pub fn is_between(call: &Operation, old: &[u8], found: &[u8]) -> bool {
    match call {
        Operation::Append(_, data) | Operation::AppendNosync(_, data) => {
            let grown = found.strip_prefix(old);
            if data.len() <= APPEND_ATOMIC_BYTES_MAX {
                grown.is_some_and(|added| added.is_empty() || added == data)
            } else {
                grown.is_some_and(|added| data.starts_with(added))
            }
        }
        Operation::WriteAt(_, offset, data) | Operation::WriteAtNosync(_, offset, data) => {
            is_between_write(*offset as usize, data, old, found)
        }
        Operation::WritePiecesNosync(_, pieces) | Operation::WritePiecesAtOnce(_, pieces) => {
            call.is_done(old) && is_between_pieces(pieces, old, found) || found == old
        }
        Operation::Truncate(_, length) => {
            let length = *length as usize;
            if length <= old.len() {
                found == old || found == &old[..length]
            } else {
                found.len() <= length
                    && found
                        .strip_prefix(old)
                        .is_some_and(|added| added.iter().all(|byte| *byte == 0))
            }
        }
        _ => found == old,
    }
}

/// Returns whether a file that held `old` may hold `found` after `call` was refused for lack of blocks. The state is as
/// after a cut, but not as after the whole call. An append that is atomic must be refused completely.
pub fn is_refused_half_way(call: &Operation, old: &[u8], found: &[u8]) -> bool {
    if let Operation::Append(_, data) | Operation::AppendNosync(_, data) = call
        && data.len() <= APPEND_ATOMIC_BYTES_MAX
    {
        return found == old;
    }
    let mut after = old.to_vec();
    call.change(&mut after);
    found == old || (found != after && is_between(call, old, found))
}

fn is_between_write(offset: usize, data: &[u8], old: &[u8], found: &[u8]) -> bool {
    if data.is_empty() || found == old {
        return found == old;
    }
    let end = offset + data.len();
    if offset > old.len() {
        // The gap is filled first, then the data behind it is written.
        let Some(added) = found.strip_prefix(old) else {
            return false;
        };
        let gap = added.len().min(offset - old.len());
        return added[..gap].iter().all(|byte| *byte == 0) && data.starts_with(&added[gap..]);
    }
    if found.len() < old.len()
        || found.len() > end.max(old.len())
        || found[..offset] != old[..offset]
    {
        return false;
    }
    // The number of data bytes that arrived: if the file became longer its length tells, otherwise as many as agree.
    let written = if found.len() > old.len() {
        found.len() - offset
    } else {
        let place = found[offset..].iter().zip(data);
        place.take_while(|(found, data)| found == data).count()
    };
    let whole = end <= old.len() && data.len() <= OVERWRITE_ATOMIC_BYTES_MAX;
    let behind = (offset + written).min(old.len());
    (!whole || written == data.len())
        && found[offset..offset + written] == data[..written]
        && (found.len() > old.len() || found[behind..] == old[behind..])
}

/// Bytes that make the file longer come first, one piece after the other. Then come the changed blocks within the file,
/// in order and three at a time; three or fewer are written at once.
fn is_between_pieces(pieces: &[(u64, Vec<u8>)], old: &[u8], found: &[u8]) -> bool {
    let mut now = old.to_vec();
    for (offset, data) in pieces {
        let start = (*offset as usize).max(old.len());
        let rest = data.get(start - *offset as usize..).unwrap_or_default();
        if is_between_write(start, rest, &now, found) {
            return true;
        }
        put(&[(start as u64, rest.to_vec())], &mut now);
    }
    let mut after = now.clone();
    put(pieces, &mut after);
    for record in changed_blocks(old, pieces).chunks(3) {
        for block in record {
            let start = block * PAYLOAD_BYTES;
            let end = (start + PAYLOAD_BYTES).min(old.len());
            now[start..end].copy_from_slice(&after[start..end]);
        }
        if found == now {
            return true;
        }
    }
    false
}

/// Returns `file` as a model that shares its contents.
pub fn shared(model: &super::Model) -> Files {
    model
        .iter()
        .map(|(name, content)| (name.clone(), Arc::new(content.clone())))
        .collect()
}
