//! A slot for a connection: its thread connects, reads, and reconnects when the connection ends.

use super::counters::{Reason, add};
use super::greet::{Ended, Greeted, greet};
use super::inner::Inner;
use super::network::{Connection, Network};
use super::receive::Receiver;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// After a connection that lived at least this long, the next attempt is made at once.
const LIVED: Duration = Duration::from_secs(1);

/// The pause after a refused greeting.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// Keeps one connection up until the device is stopped. `first` is a connection that is up already.
pub(super) fn keep(inner: &Arc<Inner>, first: Option<(Arc<Connection>, Greeted)>) {
    let mut next = first;
    let mut pause = Duration::ZERO;
    while !inner.is_stopped() {
        let left_alone = inner.network.left_alone();
        if !left_alone.is_zero() {
            inner.network.pause(left_alone);
            continue;
        }
        let (connection, greeted) = match next.take() {
            Some(up) => up,
            None if !inner.settings.is_persistent && !inner.stage.has_waiters() => {
                inner.network.wait_for_want();
                continue;
            }
            None => match again(inner) {
                Ok(greeted) => (inner.network.up(greeted.control.clone()), greeted),
                Err(ended) => {
                    pause = Network::next_pause(pause);
                    match ended {
                        Ended::Wrong(reason) => inner.network.lied(&inner.counts, reason, None),
                        Ended::Refused(_) => {
                            add(&inner.counts.refused, 1);
                            pause = REFUSED_PAUSE;
                        }
                        Ended::Link(_) | Ended::Socket(_) => {}
                    }
                    inner.network.pause(pause);
                    continue;
                }
            },
        };
        let begun = Instant::now();
        let has_served = serve(inner, connection, greeted);
        add(&inner.counts.disconnects, 1);
        if has_served || begun.elapsed() >= LIVED {
            pause = Duration::ZERO;
        } else {
            pause = Network::next_pause(pause);
            inner.network.pause(pause);
        }
    }
}

fn again(inner: &Inner) -> Result<Greeted, Ended> {
    greet(
        &inner.network,
        &inner.counts,
        Some(inner.manifest.version),
        Some(inner.manifest_hash),
        inner.settings.deadline / 3,
        || {},
    )
}

// Reads until the connection ends. Returns whether any message was received.
fn serve(inner: &Arc<Inner>, connection: Arc<Connection>, greeted: Greeted) -> bool {
    let Greeted {
        mut incoming,
        writer,
        ..
    } = greeted;
    let (writing, of_writer) = (Arc::clone(&connection), Arc::clone(inner));
    let thread = thread::Builder::new()
        .name("stream-writer".to_owned())
        .spawn(move || writing.write(writer, &of_writer.network));
    let mut has_served = false;
    if let Ok(thread) = thread {
        inner.connected(&connection);
        has_served = read(inner, &connection, &mut incoming);
        inner.network.down(&connection);
        inner.disconnected(&connection);
        // The writer thread ends with the connection and does not panic.
        let _ = thread.join();
    } else {
        inner.network.down(&connection);
    }
    has_served
}

fn read(inner: &Inner, connection: &Connection, incoming: &mut super::greet::Incoming) -> bool {
    let receiver = Receiver::new(inner, connection);
    let mut has_served = false;
    let number = Some(connection.number);
    let lied = |reason: Reason| inner.network.lied(&inner.counts, reason, number);
    loop {
        match incoming.next(&inner.network) {
            Ok(Some(answer)) => {
                if let Err(reason) = receiver.take(answer) {
                    lied(reason);
                    return has_served;
                }
                has_served = true;
                if connection.control.is_ended() {
                    // Messages that were received but not processed yet are of no use any more.
                    return has_served;
                }
            }
            Ok(None) => {
                if inner.is_stopped() || connection.control.is_ended() {
                    return has_served;
                }
            }
            Err(Ended::Wrong(reason)) => {
                lied(reason);
                return has_served;
            }
            Err(_) => return has_served,
        }
    }
}
