//! One request and its answer, over either framing.

use std::fmt;
use std::io::{self, Cursor};
use std::pin::pin;
use std::task::{Context as Waking, Poll, Waker};

use tokio::io::AsyncReadExt;
use tokio_modbus::client::{Client, Context, rtu, tcp};
use tokio_modbus::{Error, ExceptionCode, ProtocolError, Response, Slave};

use super::options::Table;
use super::plan::Request;

/// How messages are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Modbus TCP: a header with the number of the request.
    Tcp,
    /// Modbus RTU: the number of the device and a checksum.
    Rtu,
}

/// An answer that fits its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Of coils and discrete inputs.
    Bits(Vec<bool>),
    /// Of holding and input registers.
    Words(Vec<u16>),
}

/// Why a request has no answer; each has its own counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is no connection, or the port cannot be opened.
    NotConnected,
    /// The connection ended, or the port failed.
    ConnectionLost,
    /// Nothing came.
    Timeout,
    /// Bytes came that are no answer: noise, a wrong checksum, or a part of an answer.
    Garbled,
    /// What came is no answer to this request.
    AnswerInvalid,
    /// Exception 1.
    IllegalFunction,
    /// Exception 2.
    IllegalDataAddress,
    /// Exception 3.
    IllegalDataValue,
    /// Exception 4.
    DeviceFailure,
    /// Exceptions 5 and 6.
    DeviceBusy,
    /// Exceptions 10 and 11: a gateway does not reach the device.
    Gateway,
    /// Any other exception.
    OtherException,
}

impl Fault {
    /// Every fault, in the order of the counters.
    pub const ALL: [Self; 12] = [
        Self::NotConnected,
        Self::ConnectionLost,
        Self::Timeout,
        Self::Garbled,
        Self::AnswerInvalid,
        Self::IllegalFunction,
        Self::IllegalDataAddress,
        Self::IllegalDataValue,
        Self::DeviceFailure,
        Self::DeviceBusy,
        Self::Gateway,
        Self::OtherException,
    ];

    /// Returns its index in [`Self::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns its name in status output and documentation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotConnected => "not_connected",
            Self::ConnectionLost => "connection_lost",
            Self::Timeout => "timeout",
            Self::Garbled => "garbled",
            Self::AnswerInvalid => "answer_invalid",
            Self::IllegalFunction => "illegal_function",
            Self::IllegalDataAddress => "illegal_data_address",
            Self::IllegalDataValue => "illegal_data_value",
            Self::DeviceFailure => "device_failure",
            Self::DeviceBusy => "device_busy",
            Self::Gateway => "gateway",
            Self::OtherException => "other_exception",
        }
    }

    /// Returns whether the fault costs the registers of its request alone, and others of the device may be asked for.
    /// After the other faults that would only cost time: a gateway waits for the device each time.
    pub(super) const fn is_of_request(self) -> bool {
        matches!(
            self,
            Self::IllegalFunction
                | Self::IllegalDataAddress
                | Self::IllegalDataValue
                | Self::DeviceFailure
                | Self::OtherException
        )
    }

    /// Returns whether the device, or a gateway before it, has answered, although without values.
    pub(super) const fn is_exception(self) -> bool {
        self as usize >= Self::IllegalFunction as usize
    }
}

/// A fault, and what is to be said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The fault.
    pub fault: Fault,
    /// What happened, for people.
    pub text: String,
}

impl Failure {
    pub(super) fn new(fault: Fault, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { fault, text }
    }

    pub(super) fn invalid(what: &str) -> Self {
        Self::new(
            Fault::AnswerInvalid,
            format!("what came is no answer to the request: {what}"),
        )
    }
}

/// `input registers 10 to 12`
impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.table {
            Table::Coil => "coils",
            Table::Discrete => "discrete inputs",
            Table::Holding => "holding registers",
            Table::Input => "input registers",
        };
        let last = u32::from(self.address) + u32::from(self.count).saturating_sub(1);
        write!(f, "{what} {} to {last}", self.address)
    }
}

/// Sends a request and returns the answer, which is checked. Waits without a limit.
///
/// # Errors
/// [`Failure`]. After any fault but an exception, nothing is known of what is still under way on this client.
pub(super) async fn exchange(client: &mut Context, request: &Request) -> Result<Answer, Failure> {
    let (address, count) = (request.address, request.count);
    let asked = match request.table {
        Table::Coil => tokio_modbus::Request::ReadCoils(address, count),
        Table::Discrete => tokio_modbus::Request::ReadDiscreteInputs(address, count),
        Table::Holding => tokio_modbus::Request::ReadHoldingRegisters(address, count),
        Table::Input => tokio_modbus::Request::ReadInputRegisters(address, count),
    };
    // Not by the methods for each function: they take an answer of another length.
    match client.call(asked).await {
        Ok(Ok(response)) => fitting(response, request)
            .ok_or_else(|| Failure::invalid("it has another length, or is of another kind")),
        Ok(Err(exception)) => Err(of_exception(exception, request)),
        Err(Error::Protocol(ProtocolError::HeaderMismatch { .. })) => Err(Failure::invalid(
            "it is of another device, or to another request",
        )),
        Err(Error::Protocol(ProtocolError::FunctionCodeMismatch { .. })) => {
            Err(Failure::invalid("it is of another function"))
        }
        Err(Error::Transport(error)) if is_malformed(&error) => Err(Failure::new(
            Fault::Garbled,
            format!("the answer is malformed: {error}"),
        )),
        Err(Error::Transport(error)) => Err(Failure::new(
            Fault::ConnectionLost,
            base::error::io_text(&error),
        )),
    }
}

fn is_malformed(error: &io::Error) -> bool {
    // A message that ends too early is an end of its bytes for the parser; the stream's own end is another kind.
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof
    )
}

/// Returns the answer if it is of the function and the length that were asked for.
fn fitting(response: Response, request: &Request) -> Option<Answer> {
    let count = usize::from(request.count);
    match (request.table, response) {
        (Table::Coil, Response::ReadCoils(mut bits))
        | (Table::Discrete, Response::ReadDiscreteInputs(mut bits)) => {
            // They come in whole bytes.
            if bits.len() != count.next_multiple_of(8) {
                return None;
            }
            bits.truncate(count);
            Some(Answer::Bits(bits))
        }
        (Table::Holding, Response::ReadHoldingRegisters(words))
        | (Table::Input, Response::ReadInputRegisters(words)) => {
            (words.len() == count).then_some(Answer::Words(words))
        }
        _ => None,
    }
}

fn of_exception(exception: ExceptionCode, request: &Request) -> Failure {
    let (fault, what) = match exception {
        ExceptionCode::IllegalFunction => (
            Fault::IllegalFunction,
            "it does not have the table (illegal function)",
        ),
        ExceptionCode::IllegalDataAddress => (
            Fault::IllegalDataAddress,
            "it does not have all of these addresses (illegal data address)",
        ),
        ExceptionCode::IllegalDataValue => (
            Fault::IllegalDataValue,
            "it does not take the request (illegal data value)",
        ),
        ExceptionCode::ServerDeviceFailure => (Fault::DeviceFailure, "it has failed"),
        ExceptionCode::Acknowledge | ExceptionCode::ServerDeviceBusy => {
            (Fault::DeviceBusy, "it is busy")
        }
        ExceptionCode::GatewayPathUnavailable => (
            Fault::Gateway,
            "the gateway has no way to it (gateway path unavailable)",
        ),
        ExceptionCode::GatewayTargetDevice => (
            Fault::Gateway,
            "the gateway gets no answer of it (gateway target device)",
        ),
        _ => (Fault::OtherException, "it answers with an exception"),
    };
    let code = u8::from(exception);
    Failure::new(
        fault,
        format!("{what}, exception {code}, asked for {request}"),
    )
}

/// Returns the answer to the first request of a client to whom these bytes come. It is what tests and the fuzz target
/// call; the source itself reads from links.
///
/// # Errors
/// As for any exchange.
pub fn answer_in(
    bytes: &[u8],
    framing: Framing,
    unit: u8,
    request: &Request,
) -> Result<Answer, Failure> {
    // Behind them nothing comes, as long as the other end is held.
    let (silence, _held) = tokio::io::duplex(1);
    let received = Cursor::new(bytes.to_vec()).chain(silence);
    let transport = tokio::io::join(received, tokio::io::sink());
    let mut client = match framing {
        Framing::Tcp => tcp::attach_slave(transport, Slave(unit)),
        Framing::Rtu => rtu::attach_slave(transport, Slave(unit)),
    };
    let asked = pin!(exchange(&mut client, request));
    match asked.poll(&mut Waking::from_waker(Waker::noop())) {
        Poll::Ready(found) => found,
        Poll::Pending => Err(Failure::new(Fault::Timeout, "no answer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(table: Table, address: u16, count: u16) -> Request {
        let registers = Vec::new();
        Request {
            table,
            address,
            count,
            registers,
        }
    }

    /// A message of a device over TCP, to the first request.
    fn tcp_message(unit: u8, rest: &[u8]) -> Vec<u8> {
        let bytes = u8::try_from(rest.len() + 1).unwrap();
        [&[0, 0, 0, 0, 0, bytes, unit][..], rest].concat()
    }

    /// A message of a device on a serial line, with its checksum.
    fn rtu_message(unit: u8, rest: &[u8]) -> Vec<u8> {
        let mut message = [&[unit][..], rest].concat();
        let mut crc = 0xffff_u16;
        for byte in &message {
            crc ^= u16::from(*byte);
            for _ in 0..8 {
                crc = (crc >> 1) ^ if crc & 1 == 1 { 0xa001 } else { 0 };
            }
        }
        message.extend(crc.to_le_bytes());
        message
    }

    #[test]
    fn every_fault_has_its_own_place_and_name() {
        for (index, fault) in Fault::ALL.into_iter().enumerate() {
            assert_eq!(fault.index(), index);
            let same = Fault::ALL
                .iter()
                .filter(|other| other.name() == fault.name());
            assert_eq!(same.count(), 1);
        }
        assert!(Fault::Gateway.is_exception() && !Fault::AnswerInvalid.is_exception());
        let of_request = Fault::ALL.iter().filter(|fault| fault.is_of_request());
        assert_eq!(of_request.filter(|fault| fault.is_exception()).count(), 5);
    }

    #[test]
    fn only_an_answer_of_the_right_kind_and_length_is_taken() {
        let two = request(Table::Holding, 7, 2);
        let right = [3, 4, 0x12, 0x34, 0x56, 0x78];
        let words = Ok(Answer::Words(vec![0x1234, 0x5678]));
        assert_eq!(
            answer_in(&tcp_message(9, &right), Framing::Tcp, 9, &two),
            words
        );
        assert_eq!(
            answer_in(&rtu_message(9, &right), Framing::Rtu, 9, &two),
            words
        );
        for (rest, fault) in [
            // Of the other table, too short, too long, an odd number of bytes.
            (&[4, 4, 0x12, 0x34, 0x56, 0x78][..], Fault::AnswerInvalid),
            (&[3, 2, 0x12, 0x34][..], Fault::AnswerInvalid),
            (&[3, 6, 0, 1, 0, 2, 0, 3][..], Fault::AnswerInvalid),
            (&[3, 3, 0, 1, 0][..], Fault::Garbled),
            (&[0x83, 2][..], Fault::IllegalDataAddress),
            (&[0x84, 2][..], Fault::AnswerInvalid),
            (&[0x83, 6][..], Fault::DeviceBusy),
            (&[0x83, 11][..], Fault::Gateway),
            (&[0x83, 99][..], Fault::OtherException),
        ] {
            for (message, framing) in [
                (tcp_message(9, rest), Framing::Tcp),
                (rtu_message(9, rest), Framing::Rtu),
            ] {
                let found = answer_in(&message, framing, 9, &two).unwrap_err();
                assert_eq!(found.fault, fault, "{rest:?} {framing:?}: {}", found.text);
                assert!(!found.text.contains('\n'), "{}", found.text);
            }
        }
        // Of another device, with another number, with a wrong checksum, cut off.
        for rest in [&right[..], &[0x83, 2][..]] {
            let other = answer_in(&rtu_message(8, rest), Framing::Rtu, 9, &two);
            assert_eq!(other.unwrap_err().fault, Fault::AnswerInvalid, "{rest:?}");
            let mut late = tcp_message(9, rest);
            late[1] = 77;
            let found = answer_in(&late, Framing::Tcp, 9, &two);
            assert_eq!(found.unwrap_err().fault, Fault::AnswerInvalid, "{rest:?}");
        }
        let mut spoilt = rtu_message(9, &right);
        spoilt[4] ^= 1;
        let found = answer_in(&spoilt, Framing::Rtu, 9, &two);
        assert_eq!(found.unwrap_err().fault, Fault::Timeout);
        let cut = &rtu_message(9, &right)[..8];
        let found = answer_in(cut, Framing::Rtu, 9, &two);
        assert_eq!(found.unwrap_err().fault, Fault::Timeout);
    }

    #[test]
    fn bits_come_in_whole_bytes() {
        let ten = request(Table::Coil, 0, 10);
        let found = answer_in(
            &tcp_message(1, &[1, 2, 0b1000_0001, 0b10]),
            Framing::Tcp,
            1,
            &ten,
        );
        let mut bits = vec![false; 10];
        (bits[0], bits[7], bits[9]) = (true, true, true);
        assert_eq!(found, Ok(Answer::Bits(bits)));
        let short = answer_in(&tcp_message(1, &[1, 1, 0]), Framing::Tcp, 1, &ten);
        assert_eq!(short.unwrap_err().fault, Fault::AnswerInvalid);
        // It promises more bytes than it has.
        let cut = answer_in(&tcp_message(1, &[1, 200, 0]), Framing::Tcp, 1, &ten);
        assert_eq!(cut.unwrap_err().fault, Fault::Garbled);
    }

    #[test]
    fn noise_before_an_answer_is_skipped() {
        let one = request(Table::Input, 0, 1);
        let answer = rtu_message(5, &[4, 2, 0x01, 0x02]);
        for noise in [
            &[0x00][..],
            &[0xff][..],
            &[0x00, 0xff][..],
            &[0xff, 0xff, 0xff][..],
        ] {
            let found = answer_in(&[noise, &answer[..]].concat(), Framing::Rtu, 5, &one);
            assert_eq!(found, Ok(Answer::Words(vec![0x0102])), "{noise:?}");
        }
    }
}
