//! The body of the fuzz target of answers of Modbus devices.
//!
//! **Holds:** one function. It checks the conditions for any input, and panics if one is violated.
//!
//! **Must not know:** the fuzzer. A test of `ingest` includes this file and runs the committed corpus through it on the
//! stable toolchain.
//!
//! **Invariants:** the function depends on its input alone.

use db::value::Value;
use ingest::intake::Reason;
use ingest::modbus::{
    Answer, BITS_MAX, Failure, Framing, Register, Request, Table, ValueType, WORDS_MAX, WordOrder,
    answer_in, value,
};

const UNIT: u8 = 17;
const BEGIN: u16 = 100;

const KINDS: [ValueType; 9] = [
    ValueType::Bool,
    ValueType::I16,
    ValueType::U16,
    ValueType::I32,
    ValueType::U32,
    ValueType::I64,
    ValueType::U64,
    ValueType::F32,
    ValueType::F64,
];

const ORDERS: [WordOrder; 4] = [
    WordOrder::Abcd,
    WordOrder::Cdab,
    WordOrder::Badc,
    WordOrder::Dcba,
];

/// The bytes that come after a request. An answer is taken only if it has the function and the length that were asked
/// for. Every register in it has a value that can be stored, and no register beside it has one. The first byte chooses
/// framing, table, and whether the rest is packed properly. The second byte chooses how much was asked for, the third
/// type, order and scale.
pub fn modbus_answer(data: &[u8]) {
    let Some((&[how, count, kind], rest)) = data.split_first_chunk::<3>() else {
        return;
    };
    let table = Table::ALL[usize::from(how >> 1) % 4];
    let count = match table.is_bits() {
        true => (1 + u16::from(count) * 8).min(BITS_MAX),
        false => (1 + u16::from(count)).min(WORDS_MAX),
    };
    let request = Request {
        table,
        address: BEGIN,
        count,
        registers: Vec::new(),
    };
    let framing = match how & 1 {
        0 => Framing::Tcp,
        _ => Framing::Rtu,
    };
    let bytes = match how & 8 {
        0 => rest.to_vec(),
        _ => packed(rest, framing),
    };
    let found = answer_in(&bytes, framing, UNIT, &request);
    assert_eq!(found, answer_in(&bytes, framing, UNIT, &request));
    let answer = match found {
        Ok(answer) => answer,
        Err(Failure { text, .. }) => {
            assert!(!text.is_empty() && !text.contains('\n'), "{text}");
            return;
        }
    };
    match &answer {
        Answer::Bits(bits) => assert!(table.is_bits() && bits.len() == usize::from(count)),
        Answer::Words(words) => assert!(!table.is_bits() && words.len() == usize::from(count)),
    }
    let end = u32::from(BEGIN) + u32::from(count);
    for address in [
        BEGIN - 1,
        BEGIN,
        BEGIN + 1,
        BEGIN + count - 1,
        BEGIN + count,
    ] {
        let register = register(table, address, kind);
        let reached = u32::from(address) + u32::from(register.kind.addresses());
        let is_inside = address >= BEGIN && reached <= end;
        match value(&register, BEGIN, &answer) {
            Ok(Value::Float(number)) => assert!(is_inside && number.is_finite()),
            Ok(found) => {
                assert!(is_inside && found.encoded_bytes() <= 9);
                assert_eq!(
                    table.is_bits(),
                    matches!(found, Value::Boolean(_)) && register.bit.is_none()
                );
            }
            Err(Reason::NotFinite) => assert!(is_inside),
            Err(reason) => assert!(!is_inside && reason == Reason::PacketInvalid),
        }
    }
}

fn register(table: Table, address: u16, kind: u8) -> Register {
    let kinds = if table.is_bits() { 1 } else { KINDS.len() };
    let order = ORDERS[usize::from(kind >> 4) % 4];
    let kind = KINDS[usize::from(kind) % kinds];
    let is_bit = kind == ValueType::Bool && !table.is_bits();
    let register = Register {
        key: "key".to_owned(),
        table,
        address,
        kind,
        bit: is_bit.then_some(15),
        order,
        scale: if order == WordOrder::Dcba && kind != ValueType::Bool {
            0.1
        } else {
            1.0
        },
        offset: 0.0,
    };
    assert_eq!(register.check(), Ok(()));
    register
}

/// Packs a message as a device does; a longer one than the protocol knows is cut.
fn packed(message: &[u8], framing: Framing) -> Vec<u8> {
    let message = &message[..message.len().min(253)];
    match framing {
        Framing::Tcp => {
            let bytes = message.len() as u8 + 1;
            [&[0, 0, 0, 0, 0, bytes, UNIT][..], message].concat()
        }
        Framing::Rtu => {
            let mut packed = [&[UNIT][..], message].concat();
            let mut crc = 0xffff_u16;
            for byte in &packed {
                crc ^= u16::from(*byte);
                for _ in 0..8 {
                    crc = (crc >> 1) ^ if crc & 1 == 1 { 0xa001 } else { 0 };
                }
            }
            packed.extend(crc.to_le_bytes());
            packed
        }
    }
}
