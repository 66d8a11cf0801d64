//! The loader or interpreter that a program's file names, and that the kernel needs to run it.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The maximum length of a loader's path, in bytes.
const PATH_BYTES_MAX: usize = 4096;

/// `PT_INTERP`: the program header of an ELF file that names its loader.
const PART_LOADER: u64 = 3;

/// Returns the loader of an ELF file, or the interpreter of a script, from the file's beginning; `None` if it names
/// none. It may be a relative path.
#[must_use]
pub fn loader(beginning: &[u8]) -> Option<PathBuf> {
    let name = match beginning.strip_prefix(b"#!") {
        Some(rest) => {
            let line = rest.split(|byte| *byte == b'\n').next()?;
            // Like the kernel: a carriage return belongs to the name, and such a file usually does not exist.
            let words = line.split(|byte| matches!(byte, b' ' | b'\t'));
            words.into_iter().find(|word| !word.is_empty())?
        }
        None => loader_of_elf(beginning)?,
    };
    let is_path = !name.is_empty() && name.len() <= PATH_BYTES_MAX && !name.contains(&0);
    is_path.then(|| PathBuf::from(std::ffi::OsStr::from_bytes(name)))
}

/// Returns the loader of an ELF file of either width and byte order; `None` if it is not an ELF file or names no
/// loader.
fn loader_of_elf(bytes: &[u8]) -> Option<&[u8]> {
    if !bytes.starts_with(b"\x7fELF") {
        return None;
    }
    let is_wide = *bytes.get(4)? == 2;
    let is_big = *bytes.get(5)? == 2;
    let number = |at: usize, length: usize| -> Option<u64> {
        let digits = bytes.get(at..at.checked_add(length)?)?;
        let add = |sum: u64, digit: &u8| (sum << 8) | u64::from(*digit);
        Some(match is_big {
            true => digits.iter().fold(0, add),
            false => digits.iter().rev().fold(0, add),
        })
    };
    // The offset of the program header table, the size of an entry, and the number of entries.
    let (table, entry, count) = if is_wide {
        (number(32, 8)?, number(54, 2)?, number(56, 2)?)
    } else {
        (number(28, 4)?, number(42, 2)?, number(44, 2)?)
    };
    // The kernel refuses other entry sizes.
    if entry != if is_wide { 56 } else { 32 } {
        return None;
    }
    for index in 0..count {
        let at = usize::try_from(table.checked_add(index.checked_mul(entry)?)?).ok()?;
        if number(at, 4)? != PART_LOADER {
            continue;
        }
        let (offset, length) = if is_wide {
            (
                number(at.checked_add(8)?, 8)?,
                number(at.checked_add(32)?, 8)?,
            )
        } else {
            (
                number(at.checked_add(4)?, 4)?,
                number(at.checked_add(16)?, 4)?,
            )
        };
        let from = usize::try_from(offset).ok()?;
        let until = from.checked_add(usize::try_from(length).ok()?)?;
        let name = bytes.get(from..until)?;
        return name.split(|byte| *byte == 0).next();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF header with one program header, which names the loader.
    fn elf(is_wide: bool, is_big: bool, name: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 200];
        bytes[..4].copy_from_slice(b"\x7fELF");
        (bytes[4], bytes[5]) = (1 + u8::from(is_wide), 1 + u8::from(is_big));
        let mut put = |at: usize, length: usize, value: u64| {
            let all = value.to_be_bytes();
            let mut digits = all[8 - length..].to_vec();
            if !is_big {
                digits.reverse();
            }
            bytes[at..at + length].copy_from_slice(&digits);
        };
        let name_bytes = name.len() as u64 + 1;
        if is_wide {
            for (at, length, value) in [
                (32, 8, 64),
                (54, 2, 56),
                (56, 2, 1),
                (64, 4, 3),
                (72, 8, 150),
                (96, 8, name_bytes),
            ] {
                put(at, length, value);
            }
        } else {
            for (at, length, value) in [
                (28, 4, 52),
                (42, 2, 32),
                (44, 2, 1),
                (52, 4, 3),
                (56, 4, 150),
                (68, 4, name_bytes),
            ] {
                put(at, length, value);
            }
        }
        bytes[150..150 + name.len()].copy_from_slice(name);
        bytes
    }

    #[test]
    fn loaders_of_programs_and_interpreters_of_scripts_are_found() {
        for (is_wide, is_big) in [(true, false), (false, false), (true, true), (false, true)] {
            let bytes = elf(is_wide, is_big, b"/lib/ld-x.so.1");
            assert_eq!(loader(&bytes), Some(PathBuf::from("/lib/ld-x.so.1")));
            // A file that is cut off anywhere must not cause a panic.
            for length in 0..bytes.len() {
                let _ = loader(&bytes[..length]);
            }
        }
        for (text, name) in [
            ("#!/bin/sh\n", Some("/bin/sh")),
            ("#! /usr/bin/env python3\n", Some("/usr/bin/env")),
            ("#!/bin/sh\r\n", Some("/bin/sh\r")),
            ("#!\n", None),
            ("#!", None),
            ("\x7fELF", None),
            ("text", None),
            ("", None),
        ] {
            assert_eq!(loader(text.as_bytes()), name.map(PathBuf::from), "{text:?}");
        }
        let itself = std::fs::read(std::env::current_exe().expect("known")).expect("readable");
        assert!(loader(&itself).is_some_and(|loader| loader.exists()));
    }

    proptest::proptest! {
        #[test]
        fn any_beginning_of_a_file_is_examined(
            mut bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200),
            is_elf: bool,
        ) {
            if is_elf && bytes.len() > 4 {
                bytes[..4].copy_from_slice(b"\x7fELF");
            }
            let _ = loader(&bytes);
        }
    }
}
