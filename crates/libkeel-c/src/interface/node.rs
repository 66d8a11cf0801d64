//! Nodes.

use crate::failure::{guard, of_client};
use crate::handles::NODES;
use crate::pointer;
use c_interface::pointer::{check_output, put};
use libkeel::Node;
use std::ffi::{OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Values are read in place, where the node writes them. Without this flag each read asks the node through its socket.
pub const KEEL_SHARED: u32 = 1;
/// The node was alive at the last check; the library checks every 100 ms. If values are not shared: it answers now.
pub const KEEL_LIVE: u32 = 2;

/// The handle of an attached node. Opaque.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct keel_node {
    _opaque: [u8; 0],
}

/// Attaches to the node that serves `socket`. If the node ends and starts again, the library attaches to it again
/// automatically.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_attach(socket: *const c_char, node: *mut *mut keel_node) -> i32 {
    guard(|| {
        check_output(node)?;
        // SAFETY: the header's rules for pointers.
        let socket = unsafe { pointer::bytes(socket, "socket")? };
        let attached = Node::attach(Path::new(OsStr::from_bytes(socket)));
        let handle = NODES.insert(attached.map_err(of_client)?)?;
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

/// Writes the state of the node to `flags`: KEEL_SHARED, KEEL_LIVE, both, or 0.
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
