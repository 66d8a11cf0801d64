//! `[[modbus]]`: devices that are asked for registers.

use super::Config;
use super::reader::{At, Section};
use super::values::host_port;
use ingest::intake::check_key;
use ingest::modbus::{
    Address, DEVICES_MAX, DeviceOptions, Parity, REGISTERS_MAX, Register, Serial, Table, ValueType,
    WordOrder,
};
use ingest::pattern;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Bytes of the longest address; it may hold a path.
const ADDRESS_BYTES_MAX: usize = 4095;
/// Bytes of the longest name.
const NAME_BYTES_MAX: usize = 256;
/// The longest waits, in ms.
const TIMEOUT_MS_MAX: u64 = 60_000;
const INTERVAL_MS_MAX: u64 = 86_400_000;
const RETRY_MS_MAX: u64 = 3_600_000;
/// Bits per second of a serial line.
const BAUD: (u64, u64) = (300, 4_000_000);
/// Numbers of scale and offset.
const NUMBER: (f64, f64) = (-1e15, 1e15);

/// Reads every device of a document.
pub(super) fn devices(top: &Section<'_, '_>) -> Vec<DeviceOptions> {
    let mut all: Vec<DeviceOptions> = Vec::new();
    let mut keys = BTreeSet::new();
    for section in top.sections("modbus", DEVICES_MAX) {
        let device = device(&section, &mut keys);
        if all.iter().any(|other| other.name == device.name) {
            let wrong = format!("is \"{}\" twice", device.name);
            let remedy = "give each a name of its own, or put the registers together";
            section.wrong(section.line_of("name"), "name", &wrong, remedy);
        }
        let is_other = |other: &&DeviceOptions| match (&other.address, &device.address) {
            (Address::Serial(one), Address::Serial(two)) => one.path == two.path && one != two,
            _ => false,
        };
        if all.iter().any(|other| is_other(&other)) {
            let wrong = "has other settings on the same port before";
            let remedy = "give all devices of a line the same baud, parity and stop_bits";
            section.wrong(section.line_of("address"), "address", wrong, remedy);
        }
        all.push(device);
        section.finish();
    }
    all
}

fn device(section: &Section<'_, '_>, keys: &mut BTreeSet<String>) -> DeviceOptions {
    let address = address(section);
    let unit = section.integer("unit", 1, (0, 255)) as u8;
    if !(1..=247).contains(&unit) && matches!(address, Address::Serial(_)) {
        let remedy = "give the number of the device, 1 to 247: on a serial line, 0 means all devices, and none \
                      answers; 248 to 255 are reserved";
        section.wrong(
            section.line_of("unit"),
            "unit",
            &format!("is {unit}"),
            remedy,
        );
    }
    let name = section.text("name", NAME_BYTES_MAX);
    let device = DeviceOptions {
        name: name.map_or_else(|| format!("{address} unit {unit}"), |at| at.value),
        unit,
        interval_ms: section.integer("interval_ms", 1_000, (10, INTERVAL_MS_MAX)),
        timeout_ms: section.integer("timeout_ms", 1_000, (10, TIMEOUT_MS_MAX)),
        gap_max: section.integer("gap_max", 0, (0, 2_000)) as u16,
        retry_ms_min: section.integer("retry_ms_min", 500, (10, RETRY_MS_MAX)),
        retry_ms_max: section.integer("retry_ms_max", 30_000, (10, RETRY_MS_MAX)),
        registers: registers(section, keys),
        address,
    };
    if device.retry_ms_max < device.retry_ms_min {
        let wrong = format!("is {}", device.retry_ms_max);
        let remedy = format!(
            "give at least retry_ms_min, which is {}",
            device.retry_ms_min
        );
        let line = section.line_of("retry_ms_max");
        section.wrong(line, "retry_ms_max", &wrong, remedy);
    }
    if device.registers.is_empty() {
        let remedy = "add [[modbus.register]] with a key, a table and an address";
        section.wrong(section.line(), "register", "is missing", remedy);
    }
    device
}

fn address(section: &Section<'_, '_>) -> Address {
    const REMEDY: &str = "give \"tcp://192.168.1.50:502\" or \"rtu:///dev/ttyUSB0\"";
    let given = section.required("address", ADDRESS_BYTES_MAX, REMEDY);
    // Requested in any case, so that they are known keys.
    let baud = section.integer("baud", 9_600, BAUD) as u32;
    let parities = [
        ("none", Parity::None),
        ("even", Parity::Even),
        ("odd", Parity::Odd),
    ];
    let parity = section.choice("parity", Parity::None, &parities);
    let stop_bits = section.integer("stop_bits", 1, (1, 2)) as u8;
    if let Some(path) = given
        .value
        .strip_prefix("rtu://")
        .filter(|path| path.starts_with('/'))
    {
        return Address::Serial(Serial {
            path: PathBuf::from(path),
            baud,
            parity,
            stop_bits,
        });
    }
    for key in ["baud", "parity", "stop_bits"] {
        if section.has(key) {
            let remedy = "remove the line, or give an address that begins with rtu://";
            section.wrong(
                section.line_of(key),
                key,
                "is for a serial line only",
                remedy,
            );
        }
    }
    let place = given.value.strip_prefix("tcp://").and_then(host_port);
    match place {
        // An IPv6 address needs its brackets back.
        Some((host, port)) if host.contains(':') => Address::Tcp(format!("[{host}]:{port}")),
        Some((host, port)) => Address::Tcp(format!("{host}:{port}")),
        None => {
            if !given.value.is_empty() {
                let wrong = format!("is \"{}\"", given.value);
                section.wrong(given.line, "address", &wrong, REMEDY);
            }
            Address::Tcp(String::new())
        }
    }
}

fn registers(section: &Section<'_, '_>, keys: &mut BTreeSet<String>) -> Vec<Register> {
    let mut all = Vec::new();
    for one in section.sections("register", REGISTERS_MAX) {
        let register = register(&one);
        if !keys.insert(register.key.clone()) && !register.key.is_empty() {
            let wrong = format!("is \"{}\" twice", register.key);
            let remedy = "give each register a key of its own";
            one.wrong(one.line_of("key"), "key", &wrong, remedy);
        }
        if let Err(misfit) = register.check() {
            let line = one.line_of(misfit.key);
            one.wrong(line, misfit.key, misfit.wrong, misfit.remedy);
        }
        all.push(register);
        one.finish();
    }
    all
}

fn register(section: &Section<'_, '_>) -> Register {
    const KEY: &str = "name the key of its readings, such as \"hall/meter/voltage\"";
    const TABLE: &str = "give \"coil\", \"discrete\", \"holding\" or \"input\"";
    const ADDRESS: &str =
        "give its address from 0: 40001 in the document of a device is 0 of \"holding\"";
    let key = section.required("key", db::KEY_BYTES_MAX, KEY);
    check(section, &key);
    for (key, remedy) in [("table", TABLE), ("address", ADDRESS)] {
        if !section.has(key) {
            section.wrong(section.line(), key, "is missing", remedy);
        }
    }
    let tables = Table::ALL.map(|table| (table.name(), table));
    let table = section.choice("table", Table::Holding, &tables);
    let types = [
        ("bool", ValueType::Bool),
        ("i16", ValueType::I16),
        ("u16", ValueType::U16),
        ("i32", ValueType::I32),
        ("u32", ValueType::U32),
        ("i64", ValueType::I64),
        ("u64", ValueType::U64),
        ("f32", ValueType::F32),
        ("f64", ValueType::F64),
    ];
    let by_default = match table.is_bits() {
        true => ValueType::Bool,
        false => ValueType::U16,
    };
    let orders = [
        ("ABCD", WordOrder::Abcd),
        ("CDAB", WordOrder::Cdab),
        ("BADC", WordOrder::Badc),
        ("DCBA", WordOrder::Dcba),
    ];
    let bit = section.integer("bit", 0, (0, 15)) as u8;
    Register {
        key: key.value,
        table,
        address: section.integer("address", 0, (0, 65_535)) as u16,
        kind: section.choice("type", by_default, &types),
        bit: section.has("bit").then_some(bit),
        order: section.choice("word_order", WordOrder::Abcd, &orders),
        scale: section.number("scale", 1.0, NUMBER),
        offset: section.number("offset", 0.0, NUMBER),
    }
}

fn check(section: &Section<'_, '_>, key: &At<String>) {
    if key.value.is_empty() {
        return; // Already told.
    }
    if check_key(&key.value).is_err() {
        let wrong = format!("is \"{}\"", key.value);
        let remedy = "give levels divided by /, none of them + or #, without invisible characters";
        section.wrong(key.line, "key", &wrong, remedy);
    }
}

/// Returns what a device does, in one phrase.
pub(super) fn sentence(device: &DeviceOptions) -> String {
    let count = device.registers.len();
    let registers = if count == 1 { "register" } else { "registers" };
    let requests = ingest::modbus::plan(&device.registers, device.gap_max).len();
    let asked = if requests == 1 { "request" } else { "requests" };
    format!(
        "Modbus {} unit {}: {count} {registers} in {requests} {asked} every {} ms",
        device.address, device.unit, device.interval_ms
    )
}

/// Returns the warning about keys that no reading can make.
pub(super) fn warning(config: &Config) -> Option<String> {
    // Without any declaration, another warning says it for all sources.
    if config.keys.auto_create || config.key.is_empty() {
        return None;
    }
    let registers = || config.modbus.iter().flat_map(|device| &device.registers);
    let is_declared = |key: &str| {
        let mut rules = config.key.iter();
        rules.any(|rule| pattern::matches(&rule.pattern, key))
    };
    let mut refused = registers().filter(|register| !is_declared(&register.key));
    let first = refused.next()?;
    Some(format!(
        "keys.auto_create is false, and no [[key]] declares {} of {} keys of [[modbus]], such as {}: their readings \
         will be refused",
        1 + refused.count(),
        registers().count(),
        first.key
    ))
}

#[cfg(test)]
mod tests {
    use super::super::reload;
    use super::*;
    use std::path::Path;

    fn parse(text: &str) -> Result<Vec<DeviceOptions>, String> {
        let config = Config::parse(text, "keel.toml", Path::new(""));
        config
            .map(|config| config.modbus)
            .map_err(|error| error.to_string())
    }

    /// A device with one register; `device` and `register` are further lines of theirs.
    fn text(address: &str, device: &str, register: &str) -> String {
        format!(
            "[[modbus]]\naddress = \"{address}\"\n{device}\n[[modbus.register]]\nkey = \"a\"\ntable = \"holding\"\n\
             address = 7\n{register}\n"
        )
    }

    #[test]
    fn defaults_match_the_page() {
        let devices = parse(&text("tcp://h:502", "", "")).unwrap();
        let expected = DeviceOptions {
            name: "tcp://h:502 unit 1".to_owned(),
            address: Address::Tcp("h:502".to_owned()),
            unit: 1,
            interval_ms: 1_000,
            timeout_ms: 1_000,
            gap_max: 0,
            retry_ms_min: 500,
            retry_ms_max: 30_000,
            registers: vec![Register {
                key: "a".to_owned(),
                table: Table::Holding,
                address: 7,
                kind: ValueType::U16,
                bit: None,
                order: WordOrder::Abcd,
                scale: 1.0,
                offset: 0.0,
            }],
        };
        assert_eq!(devices, [expected]);
        let said = sentence(&devices[0]);
        assert_eq!(
            said,
            "Modbus tcp://h:502 unit 1: 1 register in 1 request every 1000 ms"
        );
        let devices = parse(&text("rtu:///dev/ttyS1", "parity = \"even\"", "")).unwrap();
        let serial = Serial {
            path: "/dev/ttyS1".into(),
            baud: 9_600,
            parity: Parity::Even,
            stop_bits: 1,
        };
        assert_eq!(devices[0].address, Address::Serial(serial));
        assert_eq!(devices[0].name, "rtu:///dev/ttyS1 unit 1");
        let devices = parse(&text("tcp://[::1]:502", "", "")).unwrap();
        assert_eq!(devices[0].address, Address::Tcp("[::1]:502".to_owned()));
    }

    #[test]
    fn settings_that_do_not_fit_are_refused_with_line_and_remedy() {
        let tcp = "tcp://h:502";
        for (given, expected) in [
            (
                text("h:502", "", ""),
                "keel.toml:2: modbus.address is \"h:502\"; give \"tcp://192.168.1.50:502\" or \"rtu:///dev/ttyUSB0\"",
            ),
            (
                text("tcp://h", "", ""),
                "keel.toml:2: modbus.address is \"tcp://h\"; give \"tcp://192.168.1.50:502\" or \"rtu:///dev/ttyUSB0\"",
            ),
            (
                text("rtu://ttyUSB0", "", ""),
                "keel.toml:2: modbus.address is \"rtu://ttyUSB0\"; give \"tcp://192.168.1.50:502\" or \
                 \"rtu:///dev/ttyUSB0\"",
            ),
            (
                text(tcp, "baud = 9600", ""),
                "keel.toml:3: modbus.baud is for a serial line only; remove the line, or give an address that begins \
                 with rtu://",
            ),
            (
                text("rtu:///dev/ttyS1", "unit = 0", ""),
                "keel.toml:3: modbus.unit is 0; give the number of the device, 1 to 247: on a serial line, 0 means all \
                 devices, and none answers; 248 to 255 are reserved",
            ),
            (
                text("rtu:///dev/ttyS1", "unit = 248", ""),
                "keel.toml:3: modbus.unit is 248; give the number of the device, 1 to 247: on a serial line, 0 means \
                 all devices, and none answers; 248 to 255 are reserved",
            ),
            (
                text(tcp, "retry_ms_min = 40_000", ""),
                "keel.toml:1: modbus.retry_ms_max is 30000; give at least retry_ms_min, which is 40000",
            ),
            (
                format!("[[modbus]]\naddress = \"{tcp}\"\n"),
                "keel.toml:1: modbus.register is missing; add [[modbus.register]] with a key, a table and an address",
            ),
            (
                text(tcp, "", "type = \"bool\""),
                "keel.toml:4: modbus.register.bit is missing, and the type is \"bool\"; name the bit of the register, \
                 0 to 15",
            ),
            (
                text(tcp, "", "bit = 3"),
                "keel.toml:8: modbus.register.bit is for a \"bool\" in a register only; set type = \"bool\", or remove \
                 the line",
            ),
            (
                text(tcp, "", "scale = 0"),
                "keel.toml:8: modbus.register.scale is 0, or no number; remove it, or give another number",
            ),
            (
                text(tcp, "", "").replace("holding\"", "coil\"\ntype = \"u16\""),
                "keel.toml:7: modbus.register.type is no \"bool\", and the table holds bits; remove it",
            ),
            (
                text(tcp, "", "type = \"f64\"").replace("= 7", "= 65533"),
                "keel.toml:7: modbus.register.address leaves no room for the value; give the address of its first \
                 register, from 0",
            ),
            (
                text(tcp, "", "").replace("\"a\"", "\"a/+\""),
                "keel.toml:5: modbus.register.key is \"a/+\"; give levels divided by /, none of them + or #, without \
                 invisible characters",
            ),
            (
                text(tcp, "", "").replace("address = 7\n", ""),
                "keel.toml:4: modbus.register.address is missing; give its address from 0: 40001 in the document of a \
                 device is 0 of \"holding\"",
            ),
            (
                text(tcp, "", "").replace("address = 7\n", "address = 40001\nadress = 7\n"),
                "keel.toml:8: unknown key modbus.register.adress; did you mean address?",
            ),
        ] {
            assert_eq!(parse(&given).unwrap_err(), expected, "{given}");
        }
    }

    #[test]
    fn devices_of_one_line_agree_and_names_and_keys_are_there_once() {
        let other = |text: String| text.replace("\"a\"", "\"b\"");
        let line = |device: &str| text("rtu:///dev/ttyS1", device, "");
        let both = line("") + &other(line("unit = 2"));
        assert_eq!(parse(&both).unwrap().len(), 2);
        let faster = line("") + &other(line("unit = 2\nbaud = 19200"));
        assert_eq!(
            parse(&faster).unwrap_err(),
            "keel.toml:10: modbus.address has other settings on the same port before; give all devices of a line the \
             same baud, parity and stop_bits"
        );
        let twice = line("") + &other(line(""));
        assert_eq!(
            parse(&twice).unwrap_err(),
            "keel.toml:9: modbus.name is \"rtu:///dev/ttyS1 unit 1\" twice; give each a name of its own, or put the \
             registers together"
        );
        // Over TCP, and at the limit of a line.
        assert_eq!(parse(&line("unit = 247")).unwrap()[0].unit, 247);
        let tcp = parse(&text("tcp://h:502", "unit = 255", "")).unwrap();
        assert_eq!(tcp[0].unit, 255);
        // Registers of one device may be asked for at two intervals.
        let named = line("") + &other(line("name = \"slow ones\""));
        assert_eq!(parse(&named).unwrap()[1].name, "slow ones");
        let same_key = line("") + &line("unit = 2");
        assert_eq!(
            parse(&same_key).unwrap_err(),
            "keel.toml:13: modbus.register.key is \"a\" twice; give each register a key of its own"
        );
    }

    #[test]
    fn the_summary_names_modbus_devices_and_warns_of_refused_keys() {
        let parse = |more: &str| {
            let given = text("tcp://h:502", "", "") + more;
            Config::parse(&given, "keel.toml", Path::new("")).unwrap()
        };
        let config = parse("");
        assert!(
            config
                .sources_sentence()
                .contains("Modbus tcp://h:502 unit 1")
        );
        assert!(config.warnings().is_empty(), "{:?}", config.warnings());
        let no_line = "[line]\ntcp_listen = \"\"\nunix_socket = \"\"\n";
        assert!(parse(no_line).warnings().is_empty(), "a source is there");
        let refused = parse("[keys]\nauto_create = false\n[[key]]\npattern = \"b\"\n");
        let warnings = refused.warnings();
        assert_eq!(
            warnings,
            [
                "keys.auto_create is false, and no [[key]] declares 1 of 1 keys of [[modbus]], such as a: their \
                 readings will be refused"
            ]
        );
        let declared = parse("[keys]\nauto_create = false\n[[key]]\npattern = \"+\"\n");
        assert!(declared.warnings().is_empty());
        // Devices last as long as the node.
        let changes = reload(&parse(no_line), &config);
        assert!(!changes.needs_restart.contains(&"modbus"));
        let none = Config::parse("", "keel.toml", Path::new("")).unwrap();
        let changes = reload(&none, &config);
        assert_eq!(changes.needs_restart, ["modbus"]);
        assert!(changes.effective.modbus.is_empty());
    }
}
