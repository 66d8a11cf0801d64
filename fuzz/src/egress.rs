//! The bodies of the fuzz targets of `egress`. A test of `egress` includes this file too and runs the committed corpora
//! through it.

#![allow(dead_code, reason = "each target uses one of them")]

use egress::forward::cursor::{CursorRecord, Found, PARTS_MAX};
use egress::forward::mqtt::packet::{self, Packet};
use egress::forward::post::{self, Verdict};
use egress::forward::{MqttVersion, engine::Engine};
use egress::http::unpack::{Unpack, UnpackError};

/// The content of a cursor's file. A record that is found is valid, and is written and found again; an engine that
/// starts from it knows how much is left.
pub(crate) fn upstream_cursor(data: &[u8]) {
    let Found::Record(record, _) = CursorRecord::find(data) else {
        return;
    };
    assert!((1..=PARTS_MAX).contains(&record.spans.len()));
    assert!(
        record
            .spans
            .windows(2)
            .all(|pair| pair[0].end <= pair[1].next)
    );
    assert!(record.spans.iter().all(|span| span.next <= span.end));
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    assert_eq!(
        CursorRecord::find(&bytes),
        Found::Record(record.clone(), false)
    );
    let target = egress::forward::Target::Mqtt {
        address: "h:1".into(),
        version: MqttVersion::V5,
        client_id: "c".into(),
        login: None,
        topic: "{key}".into(),
        keep_alive_seconds: 30,
        inflight_max: 10,
    };
    let options = egress::forward::UpstreamOptions::new("fuzz", target);
    let mut engine = Engine::new(options, &record, 1000);
    engine.log_begins(500);
    assert!(engine.backlog(1000) <= 1000);
    assert!(engine.send().is_none());
}

/// Data from an upstream. The first byte selects: data from a broker, in either version and cut in any way, or the
/// answer of an HTTP server.
pub(crate) fn upstream_answer(data: &[u8]) {
    let Some((&kind, bytes)) = data.split_first() else {
        return;
    };
    let version = match kind % 3 {
        0 => MqttVersion::V311,
        1 => MqttVersion::V5,
        _ => {
            if let Ok(
                Verdict::Unwanted(said) | Verdict::Later(said, _) | Verdict::Failed(said, _),
            ) = post::read_answer(bytes)
            {
                assert!(said.chars().count() < 400 && !said.contains(char::is_control));
            }
            return;
        }
    };
    let whole = packets(bytes, version, usize::MAX);
    let parts = packets(bytes, version, 1 + usize::from(kind / 3));
    assert_eq!(whole, parts);
}

/// Returns each packet, and whether the stream ends with malformed bytes.
fn packets(bytes: &[u8], version: MqttVersion, read_bytes: usize) -> (Vec<Packet>, bool) {
    let (mut found, mut at, mut end) = (Vec::new(), 0, 0);
    loop {
        match packet::next(&bytes[at..end], version) {
            Err(_) => return (found, true),
            Ok(Some((one, length))) => {
                assert!(length >= 2 && at + length <= end);
                if let Packet::PubAck(id, _) = one {
                    assert!(id > 0);
                }
                found.push(one);
                at += length;
            }
            Ok(None) if end == bytes.len() => return (found, false),
            Ok(None) => end = end.saturating_add(read_bytes).min(bytes.len()),
        }
    }
}

/// A body packed with gzip. However it is cut into pieces, it unpacks to the same or is refused. It never has more
/// bytes than the limit. With a limit of one byte less than its length it is refused. Each step gets on. The first two
/// bytes choose the length of pieces and the limit.
pub(crate) fn http_body(data: &[u8]) {
    let Some((&[piece, limit], packed)) = data.split_first_chunk::<2>() else {
        return;
    };
    let bytes_max = usize::from(limit) * 64;
    let whole = unpacked(packed, usize::MAX, bytes_max);
    let parts = unpacked(packed, 1 + usize::from(piece), bytes_max);
    assert_eq!(whole.as_ref().ok(), parts.as_ref().ok());
    if let Ok(body) = whole {
        assert!(body.len() <= bytes_max);
        let exact = unpacked(packed, usize::MAX, body.len());
        assert_eq!(exact.as_deref(), Ok(&body[..]));
        if let Some(less) = body.len().checked_sub(1) {
            assert_eq!(unpacked(packed, 1, less), Err(UnpackError::Large));
        }
    }
}

fn unpacked(packed: &[u8], piece: usize, bytes_max: usize) -> Result<Vec<u8>, UnpackError> {
    let mut unpack = Unpack::new(bytes_max);
    let steps_max = 2 * (packed.len() + bytes_max) + 2;
    let mut steps = 0;
    for mut piece in packed.chunks(piece) {
        while unpack.step(&mut piece)? {
            steps += 1;
            assert!(steps <= steps_max, "{unpack:?} does not get on");
        }
        assert!(piece.is_empty());
    }
    unpack.finish()
}
