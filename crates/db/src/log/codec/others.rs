//! Encoders for tests alone: records of earlier formats.

use super::*;

/// Appends an anchor of the formats up to 2, whose times are in ms.
pub(crate) fn put_anchor_ms(out: &mut Vec<u8>, seal: Seal, anchor: &Anchor) {
    frame(out, ANCHOR, seal, 49, |out| {
        out.extend_from_slice(&anchor.boot_id);
        out.extend_from_slice(&anchor.arrival_us.to_le_bytes());
        out.extend_from_slice(&anchor.sensor.ms().to_le_bytes());
        out.extend_from_slice(&anchor.wall.ms().to_le_bytes());
        out.extend_from_slice(&anchor.lsn.to_le_bytes());
        out.push(u8::from(anchor.wall_trusted));
    });
}

/// Appends one object of a checkpoint of the formats up to 2, with its time in ms.
pub(crate) fn put_object_ms(out: &mut Vec<u8>, seal: Seal, object: &Object<'_>) {
    // All but the kind and the unit of the time is as in format 3.
    let latest = object.latest.map(|latest| Latest {
        time: Time::from_ns(latest.time.ms()),
        ..latest
    });
    let begin = out.len();
    put_object(out, seal, &Object { latest, ..*object });
    out[begin] = OBJECT;
    put_right(&mut out[begin..], seal);
}

/// Appends the last record of a checkpoint of the formats up to 2.
pub(crate) fn put_trailer_plain(out: &mut Vec<u8>, seal: Seal, objects: u32) {
    frame(out, TRAILER, seal, 4, |out| {
        out.extend_from_slice(&objects.to_le_bytes());
    });
}

/// Gives the head of a file another version. It begins with kind, length and eight bytes of magic.
pub(crate) fn set_version(head: &mut [u8], seal: Seal, version: u32) {
    head[10..14].copy_from_slice(&version.to_le_bytes());
    put_right(head, seal);
}

/// Gives a record that is no reading the right checksum.
pub(crate) fn put_right(record: &mut [u8], seal: Seal) {
    let (framed, check) = record.split_at_mut(record.len() - CHECK_BYTES);
    check.copy_from_slice(&seal.check(framed).to_le_bytes());
}
