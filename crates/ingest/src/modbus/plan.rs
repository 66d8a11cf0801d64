//! Which registers are read together.

use super::options::{Register, Table};

/// Most words of one request, as the protocol says.
pub const WORDS_MAX: u16 = 125;

/// Most bits of one request, as the protocol says.
pub const BITS_MAX: u16 = 2000;

/// One request: addresses in a row of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The table.
    pub table: Table,
    /// The first address.
    pub address: u16,
    /// The number of addresses.
    pub count: u16,
    /// The indices of the registers that lie in it.
    pub registers: Vec<usize>,
}

/// Returns the requests that read all registers. Neighbours are read together if at most `gap_max` unwanted addresses
/// lie between them. A value is never divided, so that its words are of one moment.
#[must_use]
pub fn plan(registers: &[Register], gap_max: u16) -> Vec<Request> {
    let mut requests = Vec::new();
    for table in Table::ALL {
        let count_max = u32::from(if table.is_bits() { BITS_MAX } else { WORDS_MAX });
        let mut wanted: Vec<usize> = (0..registers.len())
            .filter(|index| registers[*index].table == table)
            .collect();
        wanted.sort_by_key(|index| registers[*index].address);
        // The end of the last request of this table.
        let mut end = None;
        for index in wanted {
            let register = &registers[index];
            let (from, to) = (u32::from(register.address), register.end());
            let last = requests.last_mut().zip(end).filter(|(request, end)| {
                let request: &&mut Request = request;
                let begin = u32::from(request.address);
                from <= end + u32::from(gap_max) && to.max(*end) - begin <= count_max
            });
            match last {
                Some((request, reached)) => {
                    let reached: u32 = reached.max(to);
                    request.count = (reached - u32::from(request.address)) as u16;
                    request.registers.push(index);
                    end = Some(reached);
                }
                None => {
                    requests.push(Request {
                        table,
                        address: register.address,
                        count: (to - from) as u16,
                        registers: vec![index],
                    });
                    end = Some(to);
                }
            }
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::super::options::{ValueType, WordOrder};
    use super::*;
    use proptest::prelude::*;

    fn register(table: Table, address: u16, kind: ValueType) -> Register {
        Register {
            key: "k".to_owned(),
            table,
            address,
            kind,
            bit: None,
            order: WordOrder::Abcd,
            scale: 1.0,
            offset: 0.0,
        }
    }

    fn spans(registers: &[Register], gap_max: u16) -> Vec<(Table, u16, u16)> {
        let requests = plan(registers, gap_max);
        requests
            .iter()
            .map(|request| (request.table, request.address, request.count))
            .collect()
    }

    #[test]
    fn neighbours_of_one_table_are_read_together() {
        let all = [
            register(Table::Input, 12, ValueType::F32),
            register(Table::Holding, 10, ValueType::U16),
            register(Table::Input, 10, ValueType::F32),
            register(Table::Input, 18, ValueType::U16),
            register(Table::Coil, 11, ValueType::Bool),
            // A second look at a part of a value that is read anyway.
            register(Table::Input, 11, ValueType::U16),
        ];
        let alone = (Table::Holding, 10, 1);
        let coil = (Table::Coil, 11, 1);
        assert_eq!(
            spans(&all, 0),
            [coil, alone, (Table::Input, 10, 4), (Table::Input, 18, 1)]
        );
        assert_eq!(
            spans(&all, 3)[2..],
            [(Table::Input, 10, 4), (Table::Input, 18, 1)]
        );
        assert_eq!(spans(&all, 4), [coil, alone, (Table::Input, 10, 9)]);
        assert_eq!(plan(&all, 4)[2].registers, [2, 5, 0, 3]);
        assert_eq!(plan(&[], 4), []);
    }

    #[test]
    fn a_request_ends_at_the_limit_of_the_protocol_and_before_a_value() {
        let words: Vec<Register> = (0..130)
            .map(|address| register(Table::Holding, address, ValueType::U16))
            .collect();
        assert_eq!(
            spans(&words, 0),
            [(Table::Holding, 0, 125), (Table::Holding, 125, 5)]
        );
        let longs: Vec<Register> = (0..63)
            .map(|place| register(Table::Holding, place * 2, ValueType::F32))
            .collect();
        assert_eq!(
            spans(&longs, 0),
            [(Table::Holding, 0, 124), (Table::Holding, 124, 2)]
        );
        let bits: Vec<Register> = (0..2001)
            .map(|address| register(Table::Discrete, address, ValueType::Bool))
            .collect();
        assert_eq!(
            spans(&bits, 0),
            [(Table::Discrete, 0, 2000), (Table::Discrete, 2000, 1)]
        );
        let last = [register(Table::Input, u16::MAX, ValueType::U16)];
        assert_eq!(spans(&last, u16::MAX), [(Table::Input, u16::MAX, 1)]);
    }

    fn any_register() -> impl Strategy<Value = Register> {
        let kind = prop::sample::select(&[ValueType::U16, ValueType::F32, ValueType::I64][..]);
        let bits = prop::sample::select(&[Table::Coil, Table::Discrete][..]);
        let words = prop::sample::select(&[Table::Holding, Table::Input][..]);
        let near = prop_oneof![0_u16..300, 0..3000_u16, u16::MAX - 200..=u16::MAX - 4];
        (bits, words, kind, near, any::<bool>()).prop_map(|(bits, words, kind, address, is_bit)| {
            match is_bit {
                true => register(bits, address, ValueType::Bool),
                false => register(words, address, kind),
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn each_value_is_read_once_and_whole_and_no_request_is_too_long(
            registers in prop::collection::vec(any_register(), 0..80),
            gap_max in 0_u16..40,
        ) {
            let mut read = Vec::new();
            for request in plan(&registers, gap_max) {
                let count_max = if request.table.is_bits() { BITS_MAX } else { WORDS_MAX };
                prop_assert!((1..=count_max).contains(&request.count));
                let (begin, end) = (
                    u32::from(request.address),
                    u32::from(request.address) + u32::from(request.count),
                );
                let inside: Vec<&Register> =
                    request.registers.iter().map(|index| &registers[*index]).collect();
                let is_inside = |one: &&Register| {
                    one.table == request.table && u32::from(one.address) >= begin && one.end() <= end
                };
                prop_assert!(inside.iter().all(is_inside));
                // No gap is longer, and no request asks for more than is wanted at its ends.
                let mut reached = begin;
                for one in &inside {
                    prop_assert!(u32::from(one.address) <= reached + u32::from(gap_max));
                    reached = reached.max(one.end());
                }
                prop_assert_eq!(reached, end);
                prop_assert_eq!(u32::from(inside[0].address), begin);
                read.extend(request.registers);
            }
            read.sort_unstable();
            prop_assert_eq!(read, (0..registers.len()).collect::<Vec<_>>());
        }
    }
}
