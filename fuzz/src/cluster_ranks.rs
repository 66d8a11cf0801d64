//! The body of the fuzz target `cluster_ranks`. A test of `cluster` includes this file and runs the committed corpus
//! through it.

use cluster::jobs::lines::Line;
use cluster::jobs::order::{Head, Order};
use cluster::jobs::readings::Readings;
use cluster::measure::{event_line, parse_event, parse_hosts, ranks_of};

/// Input from boards, users and files: readings, lists of boards, and the messages between ranks and the command that
/// started them. The first byte selects the kind.
pub(crate) fn cluster_ranks(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else {
        return;
    };
    match (kind % 6, std::str::from_utf8(bytes)) {
        (0, _) => readings(bytes),
        (1, _) => order(bytes),
        // With a valid checksum, which no fuzzer finds.
        (2, _) => order(&[bytes, &crc32c::crc32c(bytes).to_le_bytes()].concat()),
        (3, Ok(text)) => hosts(text),
        (4, Ok(text)) => line(text),
        (5, Ok(text)) => event(text),
        _ => {}
    }
}

/// Accepted readings pass the check of a job, and no row is both accepted and left out.
fn readings(bytes: &[u8]) {
    match Readings::from_csv(bytes, &[]) {
        Ok((readings, left_out)) => {
            readings
                .check()
                .expect("readings that were taken are sound");
            assert!(
                readings
                    .columns
                    .iter()
                    .flatten()
                    .all(|value| value.is_finite())
            );
            let lines = bytes.split(|byte| *byte == b'\n').count() as u64;
            assert!(readings.rows() as u64 + left_out.total() <= lines);
        }
        Err(error) => is_line(&error),
    }
}

/// An accepted order is written and read back equal, and so are its numbers.
fn order(bytes: &[u8]) {
    let order = match Order::read(&mut &bytes[..]) {
        Ok(order) => order,
        Err(error) => return is_line(&error),
    };
    let mut written = Vec::new();
    order.write(&mut written).expect("memory takes everything");
    let again = Order::read(&mut &written[..]).expect("what was written is read");
    assert_eq!(again.settings, order.settings);
    assert_eq!(again.readings, order.readings);
    assert!(Head::from_numbers(&order.numbers()).is_some());
}

/// Each board has ranks, and a name that no launcher takes for an option.
fn hosts(text: &str) {
    match parse_hosts(text) {
        Ok(hosts) => {
            assert!(!hosts.is_empty());
            assert!(ranks_of(&hosts) as usize >= hosts.len());
            for host in &hosts {
                assert!(
                    !host.name.is_empty() && !host.name.starts_with('-'),
                    "{host:?}"
                );
                assert!(!host.name.contains(char::is_whitespace), "{host:?}");
            }
        }
        Err(error) => is_line(&error),
    }
}

/// An accepted line is written and read back equal.
fn line(text: &str) {
    match Line::parse(text) {
        Some(Ok(line)) => {
            if let Ok(text) = line.text() {
                assert!(!text.contains('\n'));
                assert_eq!(Line::parse(&text), Some(Ok(line)));
            }
        }
        Some(Err(error)) => is_line(&error),
        None => {}
    }
}

/// An accepted event is written and read back equal.
fn event(text: &str) {
    match parse_event(text) {
        Some(Ok(event)) => {
            if let Ok(text) = event_line(&event) {
                assert!(!text.contains('\n'));
                assert_eq!(parse_event(&text), Some(Ok(event)));
            }
        }
        Some(Err(error)) => is_line(&error),
        None => {}
    }
}

fn is_line(error: &cluster::Error) {
    let text = error.to_string();
    assert!(!text.contains('\n') && text.len() < 4_000, "{text}");
}
