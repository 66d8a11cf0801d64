//! The thread of a connection: it connects, reads, and reconnects when the connection ends.

use super::receive::Receiver;
use super::state::Reader;
use crate::device::counters::{Reason, add};
use crate::device::transport::{Connection, Ended, Greeted, Incoming, Transport, greet};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// After a connection that lived at least this long, the next attempt is made at once.
const LIVED: Duration = Duration::from_secs(1);

/// The pause after a refused greeting.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// Keeps one connection up until the device is stopped. `first` is a connection that is up already.
pub(crate) fn keep(reader: &Arc<Reader>, first: Option<(Arc<Connection>, Greeted)>) {
    let mut next = first;
    let mut pause = Duration::ZERO;
    while !reader.is_stopped() {
        let left_alone = reader.transport.left_alone();
        if !left_alone.is_zero() {
            reader.transport.pause(left_alone);
            continue;
        }
        let (connection, greeted) = match next.take() {
            Some(up) => up,
            None if !reader.settings.is_persistent && !reader.prefetch.has_waiters() => {
                reader.transport.wait_for_want();
                continue;
            }
            None => match again(reader) {
                Ok(greeted) => (reader.transport.up(greeted.control.clone()), greeted),
                Err(ended) => {
                    pause = Transport::next_pause(pause);
                    match ended {
                        Ended::Wrong(reason) => reader.transport.lied(&reader.counts, reason, None),
                        Ended::Refused(_) => {
                            add(&reader.counts.refused, 1);
                            pause = REFUSED_PAUSE;
                        }
                        Ended::Link(_) | Ended::Socket(_) => {}
                    }
                    reader.transport.pause(pause);
                    continue;
                }
            },
        };
        let begun = Instant::now();
        let has_served = serve(reader, connection, greeted);
        add(&reader.counts.disconnects, 1);
        if has_served || begun.elapsed() >= LIVED {
            pause = Duration::ZERO;
        } else {
            pause = Transport::next_pause(pause);
            reader.transport.pause(pause);
        }
    }
}

fn again(reader: &Reader) -> Result<Greeted, Ended> {
    greet(
        &reader.transport,
        &reader.counts,
        Some(reader.disk.manifest.version),
        Some(reader.manifest_hash),
        reader.settings.deadline / 3,
        || {},
    )
}

// Reads until the connection ends. Returns whether any message was received.
fn serve(reader: &Arc<Reader>, connection: Arc<Connection>, greeted: Greeted) -> bool {
    let Greeted {
        mut incoming,
        writer,
        ..
    } = greeted;
    let (writing, of_writer) = (Arc::clone(&connection), Arc::clone(reader));
    let thread = thread::Builder::new()
        .name("stream-writer".to_owned())
        .spawn(move || of_writer.transport.write(&writing, writer));
    let mut has_served = false;
    if let Ok(thread) = thread {
        reader.connected(&connection);
        has_served = read(reader, &connection, &mut incoming);
        reader.transport.down(&connection);
        reader.disconnected(&connection);
        // The writer thread ends with the connection and does not panic.
        let _ = thread.join();
    } else {
        reader.transport.down(&connection);
    }
    has_served
}

fn read(reader: &Reader, connection: &Connection, incoming: &mut Incoming) -> bool {
    let receiver = Receiver::new(reader, connection);
    let mut has_served = false;
    let number = Some(connection.number);
    let lied = |reason: Reason| reader.transport.lied(&reader.counts, reason, number);
    loop {
        match incoming.next(&reader.transport) {
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
                if reader.is_stopped() || connection.control.is_ended() {
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
