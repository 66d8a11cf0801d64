//! Determines from a program's file whether a preloaded library can serve it.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The longest chain of scripts as interpreters that the kernel follows.
const SCRIPTS_MAX: u32 = 5;

/// Bytes of a script's first line that the kernel reads.
const SCRIPT_LINE_BYTES: usize = 256;

/// Program headers that are checked, at most; real programs have about a dozen.
const HEADERS_MAX: u64 = 64;

/// Bytes of a program's notes that are checked, at most.
const NOTE_BYTES_MAX: u64 = 4096;

/// Why a program does not load a preloaded library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unserved {
    /// Nothing is loaded into a static program.
    Static,
    /// Its calls do not go through the C library.
    Go,
    /// It runs with more privileges than its caller.
    Privileged,
    /// It uses a different C library.
    Foreign,
}

impl Unserved {
    /// Returns the reason in words: the program …
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Static => "is linked statically",
            Self::Go => "is a Go program, which calls the kernel itself",
            Self::Privileged => {
                "runs with more rights than you have, so the system preloads nothing"
            }
            Self::Foreign => "is linked with another C library than that of this system",
        }
    }
}

/// Returns the file of a program, looked up as a shell does.
pub(super) fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| {
            file.metadata()
                .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        })
}

/// Returns why the program at `path` cannot be served; `None` if it can, or if its file does not tell.
pub(super) fn unserved(path: &Path) -> Option<Unserved> {
    let mut path = path.to_owned();
    for _ in 0..SCRIPTS_MAX {
        let file = File::open(&path).ok()?;
        let mut begin = [0; SCRIPT_LINE_BYTES];
        let length = file.read_at(&mut begin, 0).ok()?;
        if let Some(interpreter) = interpreter(&begin[..length]) {
            path = interpreter;
            continue;
        }
        if has_more_rights(&path, &file) {
            return Some(Unserved::Privileged);
        }
        return of_binary(&file);
    }
    None
}

/// Returns the interpreter of a script.
fn interpreter(begin: &[u8]) -> Option<PathBuf> {
    let line = begin.strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?;
    let name = line
        .split(|byte| matches!(byte, b' ' | b'\t'))
        .find(|word| !word.is_empty())?;
    Some(OsString::from_vec(name.to_vec()).into())
}

fn has_more_rights(path: &Path, file: &File) -> bool {
    let Ok(found) = file.metadata() else {
        return false;
    };
    let (user, group) = base::mount::effective_ids();
    let mode = found.mode();
    if mode & libc::S_ISUID != 0 && found.uid() != user
        || mode & libc::S_ISGID != 0 && mode & 0o010 != 0 && found.gid() != group
    {
        return true;
    }
    // File capabilities give root no additional privileges.
    if user == 0 {
        return false;
    }
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    let name = c"security.capability";
    // SAFETY: two C strings that live as long as the call; without a buffer only the length is returned.
    let length = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) };
    length > 0
}

/// A part of a program: kind, offset, length.
struct Part {
    kind: u32,
    at: u64,
    bytes: u64,
}

const PART_LOADER: u32 = 3;
const PART_NOTES: u32 = 4;

fn of_binary(file: &File) -> Option<Unserved> {
    let parts = parts(file)?;
    let read = |part: &Part| {
        let mut bytes = vec![0; part.bytes.min(NOTE_BYTES_MAX) as usize];
        file.read_exact_at(&mut bytes, part.at).ok()?;
        Some(bytes)
    };
    let is_go = |part: &Part| read(part).is_some_and(|notes| has_note(&notes, b"Go\0\0"));
    if parts
        .iter()
        .any(|part| part.kind == PART_NOTES && is_go(part))
    {
        return Some(Unserved::Go);
    }
    let Some(loader) = parts.iter().find(|part| part.kind == PART_LOADER) else {
        return Some(Unserved::Static);
    };
    let is_foreign = read(loader).is_some_and(|name| {
        name.windows(b"ld-musl".len())
            .any(|part| part == b"ld-musl")
    });
    is_foreign.then_some(Unserved::Foreign)
}

/// Returns the parts that an ELF file names; `None` if it is no ELF file of this machine's byte order.
fn parts(file: &File) -> Option<Vec<Part>> {
    let mut header = [0; 64];
    let length = file.read_at(&mut header, 0).ok()?;
    let header = &header[..length];
    let is_native_order = header.get(5)? == &if cfg!(target_endian = "little") { 1 } else { 2 };
    if header.get(..4)? != b"\x7fELF" || !is_native_order {
        return None;
    }
    let is_wide = *header.get(4)? == 2;
    let (table_at, size, count) = if is_wide {
        (
            number(header, 32, 8)?,
            number(header, 54, 2)?,
            number(header, 56, 2)?,
        )
    } else {
        (
            number(header, 28, 4)?,
            number(header, 42, 2)?,
            number(header, 44, 2)?,
        )
    };
    let mut parts = Vec::new();
    for place in 0..count.min(HEADERS_MAX) {
        let mut entry = [0; 56];
        let length = if is_wide { 56 } else { 32 };
        let at = table_at.checked_add(place * size)?;
        file.read_exact_at(&mut entry[..length], at).ok()?;
        let (at, bytes) = if is_wide {
            (number(&entry, 8, 8)?, number(&entry, 32, 8)?)
        } else {
            (number(&entry, 4, 4)?, number(&entry, 16, 4)?)
        };
        parts.push(Part {
            kind: number(&entry, 0, 4)? as u32,
            at,
            bytes,
        });
    }
    Some(parts)
}

/// Returns the number of `bytes` bytes at `at`, in this machine's byte order.
fn number(from: &[u8], at: usize, bytes: usize) -> Option<u64> {
    let part = from.get(at..at + bytes)?;
    let mut word = [0; 8];
    if cfg!(target_endian = "little") {
        word[..bytes].copy_from_slice(part);
    } else {
        word[8 - bytes..].copy_from_slice(part);
    }
    Some(u64::from_ne_bytes(word))
}

/// Returns whether one of these notes is of `name`.
fn has_note(mut notes: &[u8], name: &[u8]) -> bool {
    while let (Some(name_bytes), Some(bytes)) = (number(notes, 0, 4), number(notes, 4, 4)) {
        let (name_bytes, bytes) = (name_bytes as usize, bytes as usize);
        if notes.get(12..12 + name_bytes.min(notes.len())) == Some(name) {
            return true;
        }
        let next = name_bytes
            .checked_next_multiple_of(4)
            .zip(bytes.checked_next_multiple_of(4))
            .and_then(|(name, rest)| name.checked_add(rest)?.checked_add(12));
        match next.and_then(|next| notes.get(next..)) {
            Some(rest) => notes = rest,
            None => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a 64-bit ELF file with these parts, each with its bytes.
    fn elf(parts: &[(u32, &[u8])]) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..4].copy_from_slice(b"\x7fELF");
        file[4] = 2;
        file[5] = if cfg!(target_endian = "little") { 1 } else { 2 };
        file[32..40].copy_from_slice(&64_u64.to_ne_bytes());
        file[54..56].copy_from_slice(&56_u16.to_ne_bytes());
        file[56..58].copy_from_slice(&(parts.len() as u16).to_ne_bytes());
        let mut at = 64 + parts.len() as u64 * 56;
        for (kind, bytes) in parts {
            let mut entry = vec![0; 56];
            entry[..4].copy_from_slice(&kind.to_ne_bytes());
            entry[8..16].copy_from_slice(&at.to_ne_bytes());
            entry[32..40].copy_from_slice(&(bytes.len() as u64).to_ne_bytes());
            file.extend(entry);
            at += bytes.len() as u64;
        }
        parts.iter().for_each(|(_, bytes)| file.extend(*bytes));
        file
    }

    fn judged(content: &[u8], mode: u32) -> Option<Unserved> {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("keel-program-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let judged = unserved(&path);
        std::fs::remove_file(&path).unwrap();
        judged
    }

    #[test]
    fn a_program_that_cannot_be_served_is_told_by_its_file() {
        let glibc = &b"/lib64/ld-linux-x86-64.so.2\0"[..];
        let mut go = Vec::new();
        // A note of another owner comes first.
        for (name, kind) in [(b"GNU\0", 3_u32), (b"Go\0\0", 4)] {
            go.extend(4_u32.to_ne_bytes());
            go.extend(3_u32.to_ne_bytes());
            go.extend(kind.to_ne_bytes());
            go.extend(name);
            go.extend([1, 2, 3, 0]);
        }
        for (content, expected) in [
            (elf(&[(1, b""), (PART_LOADER, glibc)]), None),
            (elf(&[(1, b"")]), Some(Unserved::Static)),
            (
                elf(&[(PART_LOADER, b"/lib/ld-musl-x86_64.so.1\0")]),
                Some(Unserved::Foreign),
            ),
            (
                elf(&[(PART_LOADER, glibc), (PART_NOTES, &go)]),
                Some(Unserved::Go),
            ),
            (elf(&[(PART_LOADER, glibc), (PART_NOTES, &go[..20])]), None),
            (b"".to_vec(), None),
            (b"\x7fELF".to_vec(), None),
            (b"#!\n".to_vec(), None),
            (b"#! /nosuch/interpreter -x\n".to_vec(), None),
        ] {
            assert_eq!(judged(&content, 0o755), expected);
        }
        // Truncated at any length, it is no program, and must not cause a failure.
        let whole = elf(&[(PART_LOADER, glibc), (PART_NOTES, &go)]);
        for length in 0..whole.len() {
            judged(&whole[..length], 0o755);
        }
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        assert_eq!(
            judged(b"#!/bin/sh\n", 0o755),
            unserved(Path::new("/bin/sh"))
        );
        assert_eq!(
            interpreter(b"#! /usr/bin/env python3\n"),
            Some("/usr/bin/env".into())
        );
        assert_eq!(find(OsStr::new("./x")), Some("./x".into()));
        assert!(find(OsStr::new("sh")).is_some_and(|path| path.is_absolute()));
        assert_eq!(find(OsStr::new("no-such-program-anywhere")), None);
    }
}
