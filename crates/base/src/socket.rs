//! Peers that vanish: a connection to one stays occupied until the system finds out.

use std::os::fd::AsFd;
use std::time::Duration;

/// Silence after which a peer is probed, and the interval between probes. After `KEEP_ALIVE_TRIES` unanswered probes
/// the peer counts as gone.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TRIES: u32 = 3;

/// Lets the system find out within two minutes that the peer of a TCP connection is gone. If it cannot, the limits on
/// idle connections remain.
pub fn keep_alive(stream: &impl AsFd) {
    let socket = socket2::SockRef::from(stream);
    let probes = socket2::TcpKeepalive::new()
        .with_time(KEEP_ALIVE)
        .with_interval(KEEP_ALIVE)
        .with_retries(KEEP_ALIVE_TRIES);
    let _ = socket.set_tcp_keepalive(&probes);
    // The same for a peer that vanishes while answers are on their way to it.
    let _ = socket.set_tcp_user_timeout(Some(KEEP_ALIVE * (1 + KEEP_ALIVE_TRIES)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_peer_is_probed_and_given_up_within_two_minutes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = socket2::SockRef::from(&stream);
        assert!(!socket.keepalive().unwrap());
        keep_alive(&stream);
        assert!(socket.keepalive().unwrap());
        let seconds = Duration::from_secs;
        assert_eq!(socket.tcp_keepalive_time().unwrap(), seconds(30));
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), seconds(30));
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(seconds(120)));
    }
}
