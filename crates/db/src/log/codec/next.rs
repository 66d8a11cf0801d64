//! Encoders of format 3, for tests alone: the writer writes format 2.

use super::*;

/// Appends an anchor whose times are in ns.
pub(crate) fn put_anchor_ns(out: &mut Vec<u8>, seal: Seal, anchor: &Anchor) {
    let older = if anchor.is_older_store {
        IS_OLDER_STORE
    } else {
        0
    };
    frame(out, ANCHOR_NS, seal, 49, |out| {
        out.extend_from_slice(&anchor.boot_id);
        out.extend_from_slice(&anchor.arrival_us.to_le_bytes());
        out.extend_from_slice(&anchor.sensor.ns().to_le_bytes());
        out.extend_from_slice(&anchor.wall.ns().to_le_bytes());
        out.extend_from_slice(&anchor.lsn.to_le_bytes());
        out.push(u8::from(anchor.wall_trusted) | older);
    });
}

/// Appends a reading in a form of format 3, whether or not the form can say its time.
pub(crate) fn put_reading_ns(
    out: &mut Vec<u8>,
    reading: &Reading<'_>,
    context: &Context,
    form: Form,
) {
    let ns = reading.time.ns();
    let us = ns.div_euclid(1000);
    let (kind, number) = match form {
        Form::Us => (READING_US, us),
        Form::Ns => (READING_NS, ns),
        Form::WholeNs => (READING_NS | READING_WIDE, ns),
        Form::Offset => (READING_NS, us.wrapping_sub(reading.arrival_us as i64)),
        Form::Ms | Form::WholeMs => unreachable!("a form of format 2"),
    };
    let flag = |is_set, bit| if is_set { bit } else { 0 };
    let kind = kind
        | flag(reading.wall_trusted, READING_TRUSTED)
        | flag(reading.node_time, READING_NODE_TIME)
        | flag(reading.retained, READING_RETAINED);
    let bytes = varint_bytes(u64::from(reading.id)) + form.bytes() + 4 + reading.value.len();
    let seal = context.seal_at(ns, reading.arrival_us);
    frame(out, kind, seal, bytes, |out| {
        put_varint(out, u64::from(reading.id));
        out.extend_from_slice(&number.to_le_bytes()[..form.bytes()]);
        out.extend_from_slice(&(reading.arrival_us as u32).to_le_bytes());
        out.extend_from_slice(reading.value);
    });
}

/// Appends the owner of an object's key.
pub(crate) fn put_owner(out: &mut Vec<u8>, seal: Seal, owner: &Owner<'_>) {
    let bytes = varint_bytes(u64::from(owner.id)) + 4 + owner.series.len();
    frame(out, OWNER, seal, bytes, |out| {
        put_varint(out, u64::from(owner.id));
        out.extend_from_slice(&owner.template.to_le_bytes());
        out.extend_from_slice(owner.series.as_bytes());
    });
}

/// Appends one object of a checkpoint, with its time in ns.
pub(crate) fn put_object_ns(out: &mut Vec<u8>, seal: Seal, object: &Object<'_>) {
    // All but the kind and the unit of the time is as in format 2.
    let latest = object.latest.map(|latest| Latest {
        time: Time::from_ms(latest.time.ns()),
        ..latest
    });
    let begin = out.len();
    put_object(out, seal, &Object { latest, ..*object });
    out[begin] = OBJECT_NS;
    put_right(&mut out[begin..], seal);
}

/// Appends the last record of a checkpoint of format 3.
pub(crate) fn put_trailer_flags(out: &mut Vec<u8>, seal: Seal, objects: u32, is_older_store: bool) {
    frame(out, TRAILER, seal, 5, |out| {
        out.extend_from_slice(&objects.to_le_bytes());
        out.push(if is_older_store { IS_OLDER_STORE } else { 0 });
    });
}

/// Gives a record that is no reading the right checksum.
pub(crate) fn put_right(record: &mut [u8], seal: Seal) {
    let (framed, check) = record.split_at_mut(record.len() - CHECK_BYTES);
    check.copy_from_slice(&seal.check(framed).to_le_bytes());
}
