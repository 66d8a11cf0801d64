//! Framing of what a broker sends, as pure functions on bytes: nothing is copied or allocated, and no bytes cause a
//! panic.

use super::Version;

/// Size of one read from the socket, in bytes.
pub const READ_BYTES: usize = 64 << 10;
/// Largest packet other than PUBLISH, in bytes without the fixed header.
pub const CONTROL_BYTES_MAX: usize = 64 << 10;

/// A protocol error: nothing after it can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// A PUBLISH packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    /// As sent: not checked to be UTF-8.
    pub topic: &'a [u8],
    /// As sent.
    pub payload: &'a [u8],
    /// The properties of MQTT 5, as sent.
    pub properties: &'a [u8],
    /// 0 with QoS 0, otherwise never 0.
    pub packet_id: u16,
    /// 0, 1 or 2.
    pub qos: u8,
    /// Whether the broker has sent it before.
    pub duplicate: bool,
    /// Whether the broker has kept it for new subscribers.
    pub retained: bool,
}

impl Publish<'_> {
    /// Returns the identifiers of the subscriptions for which the broker sends this; yields `None` and ends where its
    /// properties are unreadable.
    pub fn subscriptions(&self) -> impl Iterator<Item = Option<u32>> + '_ {
        let mut rest = self.properties;
        std::iter::from_fn(move || {
            while !rest.is_empty() {
                match property(rest) {
                    Some((id, behind)) => {
                        rest = behind;
                        if id.is_some() {
                            return Some(id);
                        }
                    }
                    None => {
                        rest = &[];
                        return Some(None);
                    }
                }
            }
            None
        })
    }
}

/// Reads the first property of a PUBLISH. Returns the identifier of a subscription, if it is one, and the bytes after
/// it.
fn property(bytes: &[u8]) -> Option<(Option<u32>, &[u8])> {
    let (&kind, behind) = bytes.split_first()?;
    let text_bytes = |at| number(behind, at).map(|bytes| 2 + usize::from(bytes));
    let bytes = match kind {
        // Payload format, expiry interval, topic alias.
        0x01 => 1,
        0x02 => 4,
        0x23 => 2,
        // Content type, response topic, correlation data.
        0x03 | 0x08 | 0x09 => text_bytes(0)?,
        0x26 => {
            let name = text_bytes(0)?;
            name + text_bytes(name)?
        }
        0x0b => {
            let (bytes, id) = variable_integer(behind).ok()??;
            let id = u32::try_from(id).ok()?;
            return Some((Some(id), behind.get(bytes..)?));
        }
        _ => return None,
    };
    Some((None, behind.get(bytes..)?))
}

/// The beginning of a PUBLISH packet that is too large to be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oversized {
    /// 0 with QoS 0, otherwise never 0.
    pub packet_id: u16,
    /// 0, 1 or 2.
    pub qos: u8,
    /// Number of bytes after this beginning that belong to it.
    pub skip: usize,
}

/// The types of packets, other than PUBLISH, that a broker may send here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Answer to CONNECT.
    ConnAck,
    /// Second step of QoS 2.
    PubRel,
    /// Answer to SUBSCRIBE.
    SubAck,
    /// Answer to UNSUBSCRIBE.
    UnsubAck,
    /// Answer to PINGREQ.
    PingResp,
    /// MQTT 5: the broker ends the connection.
    Disconnect,
}

/// What the bytes begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// An incomplete packet: the buffer must hold at least this many bytes before the next attempt.
    More(usize),
    /// A message, and the size of its whole packet.
    Publish(Publish<'a>, usize),
    /// A message above the limit, and the size of its beginning; [`Oversized::skip`] more bytes follow.
    Oversized(Oversized, usize),
    /// Any other packet: its type, its bytes with the fixed header, and where the fixed header ends.
    Control(Kind, &'a [u8], usize),
}

/// Reads the first packet of `bytes`. `packet_bytes_max` limits PUBLISH packets, without their fixed header.
///
/// # Errors
/// [`Malformed`].
pub fn next(
    bytes: &[u8],
    version: Version,
    packet_bytes_max: usize,
) -> Result<Step<'_>, Malformed> {
    let Some(&first) = bytes.first() else {
        return Ok(Step::More(2));
    };
    let (header, remaining) = match variable_integer(&bytes[1..])? {
        Some((size, value)) => (1 + size, value),
        None => return Ok(Step::More(bytes.len() + 1)),
    };
    let (kind, flags) = (first >> 4, first & 0x0f);
    if kind == 3 {
        let qos = (flags >> 1) & 3;
        if qos == 3 {
            return Err(Malformed("a PUBLISH with QoS 3"));
        }
        if remaining > packet_bytes_max {
            return oversized(bytes, header, remaining, qos);
        }
        let size = header + remaining;
        let Some(body) = bytes.get(header..size) else {
            return Ok(Step::More(size));
        };
        return Ok(Step::Publish(publish(body, flags, qos, version)?, size));
    }
    let kind = kind_of(kind, flags, version)?;
    if remaining > CONTROL_BYTES_MAX {
        return Err(Malformed("a control packet above 64 KiB"));
    }
    let size = header + remaining;
    match bytes.get(..size) {
        Some(packet) => Ok(Step::Control(kind, packet, header)),
        None => Ok(Step::More(size)),
    }
}

fn kind_of(kind: u8, flags: u8, version: Version) -> Result<Kind, Malformed> {
    let (kind, due) = match kind {
        2 => (Kind::ConnAck, 0),
        6 => (Kind::PubRel, 2),
        9 => (Kind::SubAck, 0),
        11 => (Kind::UnsubAck, 0),
        13 => (Kind::PingResp, 0),
        14 if version == Version::V5 => (Kind::Disconnect, 0),
        4 | 5 | 7 => {
            return Err(Malformed(
                "an acknowledgement of a message that was never sent",
            ));
        }
        _ => return Err(Malformed("a packet type that no broker sends")),
    };
    if flags != due {
        return Err(Malformed("wrong flags in a fixed header"));
    }
    Ok(kind)
}

/// Reads a variable byte integer: its size and its value; `None` when bytes are missing.
fn variable_integer(bytes: &[u8]) -> Result<Option<(usize, usize)>, Malformed> {
    let mut value = 0;
    for (index, &byte) in bytes.iter().take(4).enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((index + 1, value)));
        }
    }
    if bytes.len() >= 4 {
        return Err(Malformed("a length of more than four bytes"));
    }
    Ok(None)
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes([pair[0], pair[1]]))
}

const SHORT: Malformed = Malformed("a PUBLISH that ends before its topic or packet id");
const NO_ID: Malformed = Malformed("a PUBLISH with packet id 0");

fn publish(body: &[u8], flags: u8, qos: u8, version: Version) -> Result<Publish<'_>, Malformed> {
    let topic_end = 2 + usize::from(number(body, 0).ok_or(SHORT)?);
    let topic = body.get(2..topic_end).ok_or(SHORT)?;
    let mut at = topic_end;
    let mut properties = &[][..];
    let mut packet_id = 0;
    if qos > 0 {
        packet_id = number(body, at).ok_or(SHORT)?;
        if packet_id == 0 {
            return Err(NO_ID);
        }
        at += 2;
    }
    if version == Version::V5 {
        let rest = body.get(at..).ok_or(SHORT)?;
        let (size, length) =
            variable_integer(rest)?.ok_or(Malformed("a PUBLISH without properties"))?;
        properties = rest.get(size..size + length).unwrap_or_default();
        at += size + length;
        if topic.is_empty() {
            return Err(Malformed("a topic alias, which was never allowed"));
        }
    }
    let payload = body
        .get(at..)
        .ok_or(Malformed("a PUBLISH that ends before its properties do"))?;
    Ok(Publish {
        topic,
        payload,
        properties,
        packet_id,
        qos,
        duplicate: flags & 8 != 0,
        retained: flags & 1 != 0,
    })
}

fn oversized(
    bytes: &[u8],
    header: usize,
    remaining: usize,
    qos: u8,
) -> Result<Step<'_>, Malformed> {
    let Some(topic) = number(bytes, header) else {
        return Ok(Step::More(header + 2));
    };
    let id_at = header + 2 + usize::from(topic);
    let beginning = if qos > 0 { id_at + 2 } else { id_at };
    let Some(skip) = (header + remaining).checked_sub(beginning) else {
        return Err(SHORT);
    };
    if bytes.len() < beginning {
        return Ok(Step::More(beginning));
    }
    let packet_id = if qos > 0 {
        number(bytes, id_at).ok_or(SHORT)?
    } else {
        0
    };
    if qos > 0 && packet_id == 0 {
        return Err(NO_ID);
    }
    let found = Oversized {
        packet_id,
        qos,
        skip,
    };
    Ok(Step::Oversized(found, beginning))
}

/// Returns the packet id at the beginning of the variable header, if there is one.
#[must_use]
pub fn packet_id(packet: &[u8], header: usize) -> Option<u16> {
    number(packet, header).filter(|id| *id != 0)
}

/// The bytes between socket and [`next`]: one buffer of [`READ_BYTES`]. It grows only for a larger packet, up to the
/// limit of [`next`], and shrinks again after it.
#[derive(Debug)]
pub struct Reader {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Number of bytes of an oversized packet still to come.
    skip: usize,
    skipped: Option<Oversized>,
    need: usize,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    /// Creates an empty reader.
    #[must_use]
    pub fn new() -> Self {
        Self {
            buffer: vec![0; READ_BYTES],
            start: 0,
            end: 0,
            skip: 0,
            skipped: None,
            need: 0,
        }
    }

    /// Returns the space for the next bytes from the socket; never empty after [`peek`](Self::peek) has returned
    /// `More`.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.need > self.buffer.len() {
            self.buffer.resize(self.need, 0);
        } else if self.buffer.len() > READ_BYTES && self.end.max(self.need) <= READ_BYTES {
            self.buffer.truncate(READ_BYTES);
            self.buffer.shrink_to_fit();
        }
        &mut self.buffer[self.end..]
    }

    /// Records that `bytes` have been written to [`space`](Self::space).
    pub fn filled(&mut self, bytes: usize) {
        self.end = self.end.saturating_add(bytes).min(self.buffer.len());
    }

    /// Returns the first packet, as [`next`] does; it stays until [`advance`](Self::advance). An oversized packet is
    /// skipped here as its bytes arrive. It is returned, with nothing left to skip, once its last byte has arrived.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn peek(
        &mut self,
        version: Version,
        packet_bytes_max: usize,
    ) -> Result<Step<'_>, Malformed> {
        loop {
            if let Some(oversized) = self.skipped {
                let now = self.skip.min(self.end - self.start);
                self.skip -= now;
                self.start += now;
                if self.skip > 0 {
                    self.need = 1;
                    return Ok(Step::More(1));
                }
                return Ok(Step::Oversized(
                    Oversized {
                        skip: 0,
                        ..oversized
                    },
                    0,
                ));
            }
            let held = self.end - self.start;
            match next(
                &self.buffer[self.start..self.end],
                version,
                packet_bytes_max,
            )? {
                Step::More(need) => {
                    self.need = need.max(held + 1);
                    return Ok(Step::More(self.need));
                }
                Step::Oversized(found, beginning) => {
                    self.start += beginning;
                    self.skip = found.skip;
                    self.skipped = Some(found);
                }
                // Parsed again below, so that the borrow of the buffer ends in the arm above.
                Step::Publish(..) | Step::Control(..) => break,
            }
        }
        next(
            &self.buffer[self.start..self.end],
            version,
            packet_bytes_max,
        )
    }

    /// Removes the packet that was peeked; `bytes` as returned with it.
    pub fn advance(&mut self, bytes: usize) {
        self.skipped = None;
        self.need = 0;
        self.start = self.start.saturating_add(bytes).min(self.end);
    }
}
