//! `keel top` in a terminal: it shows the figures until a key ends it, and leaves the terminal as it was.

use crate::common::node::{Node, SMALL};
use crate::common::{keel, wait_until};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// What tells a terminal to show its other page again, with what stood there before.
const LEAVES: &str = "\u{1b}[?1049l";

/// Returns a terminal of 80 columns and 24 lines: the end of the user, and that of the program.
fn terminal() -> (File, OwnedFd) {
    let (mut user, mut program) = (-1, -1);
    let size = libc::winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the call writes the two descriptors and reads the size; it keeps none of these. A name and settings are
    // not asked for.
    let result = unsafe {
        libc::openpty(
            &raw mut user,
            &raw mut program,
            std::ptr::null_mut(),
            std::ptr::null(),
            &raw const size,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the call above has opened both, and nothing else owns them.
    unsafe { (File::from_raw_fd(user), OwnedFd::from_raw_fd(program)) }
}

#[test]
fn top_shows_the_figures_in_a_terminal_until_a_key_ends_it() {
    let node = Node::start(SMALL);
    node.ok(&["put", "hall/temperature", "21.5"]);
    for key in ["q", "\u{1b}", "\u{3}"] {
        let (mut user, program) = terminal();
        let mut top = keel()
            .arg("top")
            .current_dir(node.dir.path())
            .env("TERM", "xterm-256color")
            .stdin(program.try_clone().unwrap())
            .stdout(program.try_clone().unwrap())
            .stderr(program)
            .spawn()
            .unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut screen, into) = (user.try_clone().unwrap(), Arc::clone(&shown));
        // It ends with the error of a terminal that no program has open any more.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                into.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        let shows = |text: &str| String::from_utf8_lossy(&shown.lock().unwrap()).contains(text);
        // Single words: what stands beside them may be drawn later.
        wait_until("the picture", || {
            let ended = top.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}");
            ["Evenkeel", "deadlines", "ends"].into_iter().all(shows)
        });
        assert!(!shows(LEAVES));
        user.write_all(key.as_bytes()).unwrap();
        let mut ended = None;
        wait_until("the end", || {
            ended = top.try_wait().unwrap();
            ended.is_some()
        });
        assert!(ended.unwrap().success(), "{key:?}: {ended:?}");
        wait_until("the terminal as it was", || shows(LEAVES));
    }
}
