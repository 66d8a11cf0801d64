//! Nodes.

use crate::failure::guard;
use crate::handles::NODES;
use crate::pointer::{self, check_output, put};
use libkeel::Node;
use std::ffi::{OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Values are read where the node writes them. Otherwise each read asks the node through its socket.
pub const KEEL_SHARED: u32 = 1;
/// The node lived a tenth of a second ago; where values are not shared, it answers now.
pub const KEEL_LIVE: u32 = 2;

/// A node that has been attached to.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct keel_node {
    _opaque: [u8; 0],
}

/// Attaches to the node that serves `socket`. A node that ends and starts again is attached to anew by itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_attach(socket: *const c_char, node: *mut *mut keel_node) -> i32 {
    guard(|| {
        check_output(node)?;
        // SAFETY: the header's rules for pointers.
        let socket = unsafe { pointer::bytes(socket, "socket")? };
        let attached = Node::attach(Path::new(OsStr::from_bytes(socket)))?;
        let handle = NODES.insert(attached)?;
        // SAFETY: checked above.
        unsafe { put(node, std::ptr::without_provenance_mut(handle)) };
        Ok(())
    })
}

/// Closes the handle of a node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_detach(node: *mut keel_node) -> i32 {
    guard(|| NODES.remove(node.addr()).map(drop))
}

/// How the node is attached to: KEEL_SHARED, KEEL_LIVE, both, or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_node_state(node: *mut keel_node, flags: *mut u32) -> i32 {
    guard(|| {
        check_output(flags)?;
        let node = NODES.get(node.addr())?;
        let mut found = 0;
        for (flag, is_set) in [(KEEL_SHARED, node.is_shared()), (KEEL_LIVE, node.is_live())] {
            found |= if is_set { flag } else { 0 };
        }
        // SAFETY: checked above.
        unsafe { put(flags, found) };
        Ok(())
    })
}
