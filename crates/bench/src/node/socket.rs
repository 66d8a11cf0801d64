//! The number of bytes that a consumer has sent to the broker, counted by the kernel on the broker's side of the
//! connection. The count is the same for every system, and no system has to report it. After a consumer has subscribed,
//! every four further bytes are one PUBACK.

use std::fs;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Size of a PUBACK in MQTT 3.1.1, in bytes.
pub(crate) const PUBACK_BYTES: u64 = 4;

/// `NETLINK_SOCK_DIAG`, `SOCK_DIAG_BY_FAMILY`, and the extension bit of `INET_DIAG_INFO`.
const NETLINK_SOCK_DIAG: libc::c_int = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_INFO: u16 = 2;

/// Offset of `tcpi_bytes_received` in the kernel's `struct tcp_info`, which grows only at its end.
const BYTES_RECEIVED_AT: usize = 128;

/// Sizes of `struct inet_diag_msg` and of `struct inet_diag_req_v2`, in bytes.
const MESSAGE_BYTES: usize = 72;
const REQUEST_BYTES: usize = 56;

/// An established TCP connection over IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
    pub(crate) inode: u32,
    pub(crate) bytes_received: u64,
}

/// A netlink socket that queries the kernel about connections of one port.
pub(crate) struct Sockets {
    netlink: OwnedFd,
    answer: Vec<u8>,
}

impl Sockets {
    /// # Errors
    /// An error if the kernel lacks this service.
    pub(crate) fn open() -> Result<Self, String> {
        // SAFETY: no memory is passed.
        let fd = unsafe {
            libc::socket(
                libc::AF_NETLINK,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC,
                NETLINK_SOCK_DIAG,
            )
        };
        if fd < 0 {
            return Err(format!(
                "socket statistics: {}",
                std::io::Error::last_os_error()
            ));
        }
        // SAFETY: the descriptor is new and has no other owner.
        let netlink = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self {
            netlink,
            answer: vec![0; 64 << 10],
        })
    }

    /// Returns established connections with this local port, or with this remote port.
    pub(crate) fn list(
        &mut self,
        local_port: u16,
        remote_port: u16,
    ) -> Result<Vec<Connection>, String> {
        let failed = || format!("socket statistics: {}", std::io::Error::last_os_error());
        let mut request = Vec::with_capacity(16 + REQUEST_BYTES);
        request.extend_from_slice(&((16 + REQUEST_BYTES) as u32).to_ne_bytes());
        request.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        request.extend_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
        request.extend_from_slice(&[0; 8]);
        let extensions = 1u8 << (INET_DIAG_INFO - 1);
        request.extend_from_slice(&[libc::AF_INET as u8, libc::IPPROTO_TCP as u8, extensions, 0]);
        // The state "established" has number 1.
        request.extend_from_slice(&(1u32 << 1).to_ne_bytes());
        request.extend_from_slice(&local_port.to_be_bytes());
        request.extend_from_slice(&remote_port.to_be_bytes());
        request.resize(16 + REQUEST_BYTES, 0);
        // SAFETY: the buffer is valid for its length during the call.
        let sent = unsafe {
            libc::send(
                self.netlink.as_raw_fd(),
                request.as_ptr().cast(),
                request.len(),
                0,
            )
        };
        if sent < 0 {
            return Err(failed());
        }
        let mut found = Vec::new();
        loop {
            let (room, bytes) = (self.answer.len(), self.answer.as_mut_ptr());
            // SAFETY: the buffer is valid and writable for its length during the call.
            let got = unsafe { libc::recv(self.netlink.as_raw_fd(), bytes.cast(), room, 0) };
            let got = usize::try_from(got).map_err(|_| failed())?;
            if take_messages(&self.answer[..got], &mut found)? {
                return Ok(found);
            }
        }
    }

    /// Returns the broker's side of the connection that process `pid` has to the broker's port, or `None` while there
    /// is none.
    pub(crate) fn of_process(
        &mut self,
        pid: u32,
        broker_port: u16,
    ) -> Result<Option<Connection>, String> {
        let inodes = socket_inodes(pid);
        let theirs = self.list(0, broker_port)?;
        let port = theirs
            .iter()
            .find(|connection| inodes.contains(&connection.inode))
            .map(|connection| connection.local_port);
        let Some(port) = port else { return Ok(None) };
        let ours = self.list(broker_port, port)?;
        Ok(ours
            .into_iter()
            .find(|connection| connection.remote_port == port))
    }
}

/// Adds the connections of one netlink answer. Returns `true` after the last answer.
fn take_messages(mut bytes: &[u8], found: &mut Vec<Connection>) -> Result<bool, String> {
    while let (Some(length), Some(kind)) = (u32_at(bytes, 0), u16_at(bytes, 4)) {
        let length = (length as usize).min(bytes.len());
        let body = bytes.get(16..length).unwrap_or_default();
        match libc::c_int::from(kind) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => return Err("the kernel gives no socket statistics".to_owned()),
            _ => found.extend(connection(body)),
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn connection(body: &[u8]) -> Option<Connection> {
    let port = |at: usize| Some(u16::from_be_bytes([*body.get(at)?, *body.get(at + 1)?]));
    let mut connection = Connection {
        local_port: port(4)?,
        remote_port: port(6)?,
        inode: u32_at(body, MESSAGE_BYTES - size_of::<u32>())?,
        bytes_received: 0,
    };
    let mut attributes = body.get(MESSAGE_BYTES..)?;
    while let (Some(length), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        if kind == INET_DIAG_INFO {
            let field = attributes.get(4 + BYTES_RECEIVED_AT..)?.first_chunk()?;
            connection.bytes_received = u64::from_ne_bytes(*field);
        }
        attributes = attributes
            .get(usize::from(length).max(4).next_multiple_of(4)..)
            .unwrap_or_default();
    }
    Some(connection)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the inodes of the sockets that a process has open.
fn socket_inodes(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"));
    let links = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    links
        .filter_map(|link| {
            let text = link.to_string_lossy().into_owned();
            text.strip_prefix("socket:[")?
                .strip_suffix(']')?
                .parse()
                .ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_kernel_counts_the_bytes_that_a_process_sent() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[7; 12]).unwrap();
        server.read_exact(&mut [0; 12]).unwrap();
        // Without this kernel service the bench reports it and measures what it can.
        let Ok(mut sockets) = Sockets::open() else {
            return;
        };
        let found = sockets.list(port, 0).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].bytes_received, 12);
        let own = sockets.of_process(std::process::id(), port).unwrap();
        assert_eq!(own.map(|connection| connection.bytes_received), Some(12));
    }
}
