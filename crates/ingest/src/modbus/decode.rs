//! Values of registers.

use db::value::Value;

use super::exchange::Answer;
use super::options::{Register, ValueType};
use crate::intake::Reason;

/// Returns the value of a register in an answer that begins at address `begin` of its table. Whole numbers stay exact;
/// one that is scaled becomes a double.
///
/// # Errors
/// [`Reason::NotFinite`]; [`Reason::PacketInvalid`] if the register does not lie in the answer.
pub fn value(register: &Register, begin: u16, answer: &Answer) -> Result<Value<'static>, Reason> {
    let outside = Reason::PacketInvalid;
    let first = usize::from(register.address.checked_sub(begin).ok_or(outside)?);
    let words = match answer {
        Answer::Bits(bits) => {
            let bit = bits.get(first).filter(|_| register.kind == ValueType::Bool);
            return bit.copied().map(Value::Boolean).ok_or(outside);
        }
        Answer::Words(words) => {
            let end = first + usize::from(register.kind.addresses());
            words.get(first..end).ok_or(outside)?
        }
    };
    let raw = joined(words, register);
    let signed = |value: i64| match register.is_plain() {
        true => Ok(Value::Integer(value)),
        false => scaled(value as f64, register),
    };
    let unsigned = |value: u64| match register.is_plain() {
        true => Ok(Value::Unsigned(value)),
        false => scaled(value as f64, register),
    };
    match register.kind {
        ValueType::Bool => {
            let bit = register.bit.filter(|bit| *bit < 16).ok_or(outside)?;
            Ok(Value::Boolean((raw >> bit) & 1 == 1))
        }
        ValueType::I16 => signed(i64::from(raw as u16 as i16)),
        ValueType::I32 => signed(i64::from(raw as u32 as i32)),
        ValueType::I64 => signed(raw as i64),
        ValueType::U16 | ValueType::U32 | ValueType::U64 => unsigned(raw),
        ValueType::F32 => scaled(f64::from(f32::from_bits(raw as u32)), register),
        ValueType::F64 => scaled(f64::from_bits(raw), register),
    }
}

/// Returns the bits of up to four words, in the order of the register.
fn joined(words: &[u16], register: &Register) -> u64 {
    let order = register.order;
    let join = |raw: u64, word: &u16| {
        let word = match order.is_swapped() {
            true => word.swap_bytes(),
            false => *word,
        };
        (raw << 16) | u64::from(word)
    };
    match order.is_low_first() {
        true => words.iter().rev().fold(0, join),
        false => words.iter().fold(0, join),
    }
}

fn scaled(number: f64, register: &Register) -> Result<Value<'static>, Reason> {
    if register.is_plain() {
        return finite(number);
    }
    // 0.1 is not exact in binary, and 10 is: 3 / 10 is the double that is called 0.3, and 3 * 0.1 is another one.
    let inverse = 1.0 / register.scale;
    let product = match inverse.fract() == 0.0 && 1.0 / inverse == register.scale {
        true => number / inverse,
        false => number * register.scale,
    };
    finite(product + register.offset)
}

fn finite(number: f64) -> Result<Value<'static>, Reason> {
    match number.is_finite() {
        true => Ok(Value::Float(number)),
        false => Err(Reason::NotFinite),
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::{Table, WordOrder};
    use super::*;
    use proptest::prelude::*;

    fn register(kind: ValueType, order: WordOrder) -> Register {
        Register {
            key: "k".to_owned(),
            table: Table::Holding,
            address: 5,
            kind,
            bit: None,
            order,
            scale: 1.0,
            offset: 0.0,
        }
    }

    /// What is at address 5, behind one word that is not asked for.
    fn of_words(register: &Register, words: &[u16]) -> Result<Value<'static>, Reason> {
        let answer = [&[0xdead][..], words, &[0xbeef]].concat();
        value(register, 4, &Answer::Words(answer))
    }

    #[test]
    fn each_type_follows_the_documents_of_devices() {
        use ValueType::*;
        for (kind, words, expected) in [
            (I16, vec![0xfffe], Value::Integer(-2)),
            (U16, vec![0xfffe], Value::Unsigned(65_534)),
            (I32, vec![0xffff, 0xfffe], Value::Integer(-2)),
            (U32, vec![0x0001, 0x0000], Value::Unsigned(65_536)),
            (I64, vec![0x8000, 0, 0, 1], Value::Integer(i64::MIN + 1)),
            // Above 2^53, where a double would not be exact.
            (U64, vec![0x0020, 0, 0, 1], Value::Unsigned((1 << 53) + 1)),
            (F32, vec![0x41ac, 0x0000], Value::Float(21.5)),
            (
                F32,
                vec![0x4366, 0x3333],
                Value::Float(f64::from(230.2_f32)),
            ),
            (F64, vec![0x4035, 0x8000, 0, 0], Value::Float(21.5)),
        ] {
            let register = register(kind, WordOrder::Abcd);
            assert_eq!(of_words(&register, &words), Ok(expected), "{kind:?}");
        }
    }

    #[test]
    fn the_four_orders_follow_the_usual_notation() {
        for (order, words) in [
            (WordOrder::Abcd, [0x1122, 0x3344]),
            (WordOrder::Cdab, [0x3344, 0x1122]),
            (WordOrder::Badc, [0x2211, 0x4433]),
            (WordOrder::Dcba, [0x4433, 0x2211]),
        ] {
            let register = register(ValueType::U32, order);
            let expected = Ok(Value::Unsigned(0x1122_3344));
            assert_eq!(of_words(&register, &words), expected, "{order:?}");
        }
        let short = register(ValueType::U16, WordOrder::Badc);
        assert_eq!(of_words(&short, &[0x1122]), Ok(Value::Unsigned(0x2211)));
        let long = register(ValueType::U64, WordOrder::Dcba);
        let words = [0x8877, 0x6655, 0x4433, 0x2211];
        let expected = Ok(Value::Unsigned(0x1122_3344_5566_7788));
        assert_eq!(of_words(&long, &words), expected);
    }

    #[test]
    fn a_scaled_number_is_the_decimal_one() {
        let scaled = |kind, scale, offset| Register {
            scale,
            offset,
            ..register(kind, WordOrder::Abcd)
        };
        for (scale, offset, word, expected) in [
            (0.1, 0.0, 3, 0.3),
            (0.1, 0.0, 2302, 230.2),
            (0.01, 0.0, 7, 0.07),
            (0.001, -40.0, 61_500, 21.5),
            (2.0, 1.0, 3, 7.0),
            (-0.5, 0.0, 3, -1.5),
            (1.0, 0.5, 3, 3.5),
        ] {
            let register = scaled(ValueType::U16, scale, offset);
            let found = of_words(&register, &[word]);
            assert_eq!(found, Ok(Value::Float(expected)), "{scale} {offset} {word}");
        }
        let cold = scaled(ValueType::I16, 0.1, 0.0);
        assert_eq!(of_words(&cold, &[0xff9c]), Ok(Value::Float(-10.0)));
        let huge = scaled(ValueType::F64, 1e300, 0.0);
        assert_eq!(of_words(&huge, &[0x7fe0, 0, 0, 0]), Err(Reason::NotFinite));
    }

    #[test]
    fn bits_are_taken_of_words_and_of_tables_of_bits() {
        let mut flag = register(ValueType::Bool, WordOrder::Abcd);
        for (bit, expected) in [(0, true), (1, false), (7, true), (15, true)] {
            flag.bit = Some(bit);
            assert_eq!(of_words(&flag, &[0x8081]), Ok(Value::Boolean(expected)));
        }
        let coil = Register {
            table: Table::Coil,
            bit: None,
            ..flag
        };
        let bits = Answer::Bits(vec![false, true]);
        assert_eq!(value(&coil, 4, &bits), Ok(Value::Boolean(true)));
        assert_eq!(value(&coil, 5, &bits), Ok(Value::Boolean(false)));
        for begin in [3, 6] {
            assert_eq!(value(&coil, begin, &bits), Err(Reason::PacketInvalid));
        }
    }

    fn any_order() -> impl Strategy<Value = WordOrder> {
        use WordOrder::*;
        prop::sample::select(&[Abcd, Cdab, Badc, Dcba][..])
    }

    /// The words in which a device with this order sends a value, by way of its bytes.
    fn words_of(bytes: &[u8], order: WordOrder) -> Vec<u16> {
        let pair = |two: &[u8]| match order {
            WordOrder::Abcd | WordOrder::Cdab => u16::from_be_bytes([two[0], two[1]]),
            WordOrder::Badc | WordOrder::Dcba => u16::from_le_bytes([two[0], two[1]]),
        };
        let mut words: Vec<u16> = bytes.chunks(2).map(pair).collect();
        if matches!(order, WordOrder::Cdab | WordOrder::Dcba) {
            words.reverse();
        }
        words
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn numbers_come_back_exactly_in_each_order(bits in any::<u64>(), order in any_order()) {
            let whole = bits as i64;
            for (kind, bytes, expected) in [
                (ValueType::U64, bits.to_be_bytes().to_vec(), Value::Unsigned(bits)),
                (ValueType::I64, whole.to_be_bytes().to_vec(), Value::Integer(whole)),
                (ValueType::U32, (bits as u32).to_be_bytes().to_vec(), Value::Unsigned(bits & 0xffff_ffff)),
                (ValueType::I32, (bits as i32).to_be_bytes().to_vec(), Value::Integer(i64::from(bits as i32))),
                (ValueType::U16, (bits as u16).to_be_bytes().to_vec(), Value::Unsigned(bits & 0xffff)),
                (ValueType::I16, (bits as i16).to_be_bytes().to_vec(), Value::Integer(i64::from(bits as i16))),
            ] {
                let words = words_of(&bytes, order);
                prop_assert_eq!(of_words(&register(kind, order), &words), Ok(expected));
            }
            let (long, short) = (f64::from_bits(bits), f32::from_bits(bits as u32));
            for (kind, bytes, expected) in [
                (ValueType::F64, long.to_be_bytes().to_vec(), long),
                (ValueType::F32, short.to_be_bytes().to_vec(), f64::from(short)),
            ] {
                let found = of_words(&register(kind, order), &words_of(&bytes, order));
                match expected.is_finite() {
                    true => prop_assert_eq!(found, Ok(Value::Float(expected))),
                    false => prop_assert_eq!(found, Err(Reason::NotFinite)),
                }
            }
        }

        #[test]
        fn a_register_beside_the_answer_is_refused(
            begin in any::<u16>(),
            address in any::<u16>(),
            words in prop::collection::vec(any::<u16>(), 0..8),
        ) {
            let long = Register { address, ..register(ValueType::U64, WordOrder::Abcd) };
            let (from, count) = (u32::from(begin), words.len() as u32);
            let is_inside = u32::from(address) >= from && u32::from(address) + 4 <= from + count;
            prop_assert_eq!(value(&long, begin, &Answer::Words(words)).is_ok(), is_inside);
        }
    }
}
