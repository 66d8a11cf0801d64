//! Chips on a board that measure a rail: INA219, INA226 and relatives (one channel), INA3221 (three). `power*_input` in
//! microwatts if the driver has it, otherwise `in*_input` in millivolts times `curr*_input` in milliamperes.
//!
//! The number of a chip's folder changes with each start. A chip is identified by its name and its device (`ina219
//! 5-0040`: bus and address), which are looked up again at each read.

use super::root::{Root, read_number, read_text};
use super::source::{Meaning, Power, Source};
use std::path::PathBuf;

const FOLDER: &str = "sys/class/hwmon";

/// Driver names of the chips.
const CHIPS: &[&str] = &[
    "ina209", "ina219", "ina220", "ina226", "ina228", "ina230", "ina231", "ina237", "ina238",
    "ina260", "ina3221",
];

/// Voltage and current are two reads; the load can change between them. Number of attempts until both voltages agree.
const TRIES: usize = 3;

/// Largest relative difference of two voltages that count as equal.
const VOLTAGE_DIFFERENCE_MAX: f64 = 0.05;

/// One channel of one chip.
#[derive(Debug)]
pub struct Channel {
    root: Root,
    name: String,
    covers: String,
    chip: String,
    device: String,
    channel: Option<u32>,
}

/// Finds the channels of all chips.
pub(super) fn discover(root: &Root) -> Vec<Channel> {
    let mut channels = Vec::new();
    for (_, chip, device) in chips(root) {
        let numbers: Vec<Option<u32>> = if chip == "ina3221" {
            (1..=3).map(Some).collect()
        } else {
            vec![None]
        };
        for channel in numbers {
            let folder = folder_of(root, &chip, &device);
            let label = folder.ok().and_then(|folder| {
                let file = format!("in{}_label", channel.unwrap_or(1));
                read_text(&folder.join(file)).ok()
            });
            let number = channel.map_or(String::new(), |number| format!(" channel {number}"));
            channels.push(Channel {
                root: root.clone(),
                name: format!("{chip} {device}{number}"),
                covers: label.map_or("the rail of its shunt".to_owned(), |label| {
                    format!("the rail `{}`", crate::error::excerpt(&label))
                }),
                chip: chip.clone(),
                device: device.clone(),
                channel,
            });
        }
    }
    channels.sort_by(|a, b| a.name.cmp(&b.name));
    channels
}

/// Returns folder, name and device of each chip.
fn chips(root: &Root) -> Vec<(PathBuf, String, String)> {
    let mut found = Vec::new();
    for number in root.names(FOLDER) {
        let folder = root.path(&format!("{FOLDER}/{number}"));
        let Ok(chip) = read_text(&folder.join("name")) else {
            continue;
        };
        if !CHIPS.contains(&chip.as_str()) {
            continue;
        }
        let device = std::fs::read_link(folder.join("device")).ok();
        let device = device.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
        found.push((
            folder,
            chip,
            device.unwrap_or_else(|| "without a device".to_owned()),
        ));
    }
    found
}

/// Returns the current folder of a chip.
fn folder_of(root: &Root, chip: &str, device: &str) -> Result<PathBuf, String> {
    let mut found = chips(root)
        .into_iter()
        .filter(|(_, name, of)| name == chip && of == device);
    match (found.next(), found.next()) {
        (Some((folder, ..)), None) => Ok(folder),
        (None, _) => Err(format!("{chip} {device} is gone")),
        (Some(_), Some(_)) => Err(format!(
            "there are two of {chip} {device}, which cannot be told apart"
        )),
    }
}

impl Channel {
    fn watts(&self) -> Result<f64, String> {
        let folder = folder_of(&self.root, &self.chip, &self.device)?;
        let channel = self.channel.unwrap_or(1);
        if self.channel.is_some()
            && let Ok(0) = read_number(&folder.join(format!("in{channel}_enable")))
        {
            return Err("the channel is switched off".to_owned());
        }
        // One-channel chips have the shunt's voltage in in0 and the rail's in in1.
        let volt_path = folder.join(format!("in{channel}_input"));
        let power_path = folder.join(format!("power{channel}_input"));
        if power_path.exists() {
            let microwatts = read_number(&power_path)?;
            if microwatts == 0 && matches!(read_number(&volt_path), Ok(0) | Err(_)) {
                return Err("0 V and 0 W: nothing is connected to it".to_owned());
            }
            // These chips multiply without the sign, which only the current has: reverse power is below 0.
            let watts = microwatts as f64 / 1e6;
            if microwatts <= 0 {
                return Ok(watts);
            }
            let current = read_number(&folder.join(format!("curr{channel}_input")))
                .map_err(|why| format!("the direction of the power is unknown: {why}"))?;
            return Ok(if current < 0 { -watts } else { watts });
        }
        for _ in 0..TRIES {
            let before = read_number(&volt_path)? as f64;
            let milliamperes = read_number(&folder.join(format!("curr{channel}_input")))? as f64;
            let after = read_number(&volt_path)? as f64;
            if before == 0.0 && after == 0.0 {
                return Err("0 V: nothing is connected to it".to_owned());
            }
            if (before - after).abs() <= VOLTAGE_DIFFERENCE_MAX * before.abs().max(after.abs()) {
                return Ok((before + after) / 2.0 * milliamperes / 1e6);
            }
        }
        Err("its voltage changes from read to read".to_owned())
    }
}

impl Source for Channel {
    fn name(&self) -> &str {
        &self.name
    }

    fn covers(&self) -> &str {
        &self.covers
    }

    fn meaning(&self) -> Meaning {
        Meaning::Moment
    }

    fn read(&mut self, _now_ns: u64) -> Power {
        match self.watts() {
            Ok(watts) => Power::Measured { watts },
            Err(why) => Power::unavailable(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::Tree;
    use super::*;

    fn chip(tree: &Tree, number: u32, name: &str, device: &str) -> String {
        let folder = format!("{FOLDER}/hwmon{number}");
        tree.write(&format!("{folder}/name"), format!("{name}\n"));
        tree.link(
            &format!("{folder}/device"),
            format!("../../devices/i2c/{device}"),
        );
        folder
    }

    fn why(power: &Power) -> &str {
        match power {
            Power::Unavailable { why } => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_channel_and_three_channel_chips_are_read() {
        let tree = Tree::new();
        chip(&tree, 0, "coretemp", "coretemp.0");
        let ina219 = chip(&tree, 1, "ina219", "5-0040");
        tree.write(&format!("{ina219}/power1_input"), "4987000\n");
        tree.write(&format!("{ina219}/curr1_input"), "997\n");
        let ina3221 = chip(&tree, 2, "ina3221", "1-0041");
        for (file, text) in [
            ("in1_label", "VDD_IN\n"),
            ("in1_enable", "1\n"),
            ("in1_input", "5000\n"),
            ("curr1_input", "800\n"),
            ("in2_enable", "0\n"),
            ("in2_input", "5000\n"),
            ("curr2_input", "10\n"),
            ("in3_input", "0\n"),
            ("curr3_input", "0\n"),
        ] {
            tree.write(&format!("{ina3221}/{file}"), text);
        }
        let mut found = discover(&tree.root());
        let names: Vec<&str> = found.iter().map(Channel::name).collect();
        let expected = [
            "ina219 5-0040",
            "ina3221 1-0041 channel 1",
            "ina3221 1-0041 channel 2",
            "ina3221 1-0041 channel 3",
        ];
        assert_eq!(names, expected);
        assert_eq!(found[1].covers(), "the rail `VDD_IN`");
        assert_eq!(found[0].read(0), Power::Measured { watts: 4.987 });
        assert_eq!(found[1].read(0), Power::Measured { watts: 4.0 });
        // Reverse power: both kinds of chips show it.
        tree.write(&format!("{ina219}/curr1_input"), "-997\n");
        assert_eq!(found[0].read(0), Power::Measured { watts: -4.987 });
        // If the sign cannot be read, none is assumed.
        tree.remove(&format!("{ina219}/curr1_input"));
        assert!(why(&found[0].read(0)).contains("direction of the power"));
        tree.write(&format!("{ina3221}/curr1_input"), "-800\n");
        assert_eq!(found[1].read(0), Power::Measured { watts: -4.0 });
        assert!(why(&found[2].read(0)).contains("switched off"));
        assert!(why(&found[3].read(0)).contains("nothing is connected"));
    }

    #[test]
    fn a_chip_is_found_under_another_number_and_another_chip_under_its_own_is_not_taken() {
        let tree = Tree::new();
        let folder = chip(&tree, 2, "ina226", "1-0040");
        tree.write(&format!("{folder}/power1_input"), "3000000\n");
        tree.write(&format!("{folder}/curr1_input"), "600\n");
        let mut found = discover(&tree.root());
        tree.rename(&folder, &format!("{FOLDER}/hwmon7"));
        let other = chip(&tree, 2, "ina226", "1-0044");
        tree.write(&format!("{other}/power1_input"), "9000000\n");
        assert_eq!(found[0].read(0), Power::Measured { watts: 3.0 });
        std::fs::remove_dir_all(tree.path(&format!("{FOLDER}/hwmon7"))).expect("a folder");
        assert!(why(&found[0].read(0)).contains("is gone"));
    }

    #[test]
    fn an_unknown_power_is_unavailable_and_never_zero() {
        let tree = Tree::new();
        let folder = chip(&tree, 0, "ina219", "1-0040");
        let mut found = discover(&tree.root());
        assert!(why(&found[0].read(0)).contains("no such file"));
        tree.write(&format!("{folder}/power1_input"), "");
        assert!(why(&found[0].read(0)).contains("is empty"));
        tree.write(&format!("{folder}/power1_input"), "1.5\n");
        assert!(why(&found[0].read(0)).contains("no whole number"));
        tree.write(&format!("{folder}/power1_input"), "0\n");
        tree.write(&format!("{folder}/in1_input"), "0\n");
        assert!(why(&found[0].read(0)).contains("nothing is connected"));
        // 0 W with a voltage is a load that is switched off.
        tree.write(&format!("{folder}/in1_input"), "5000\n");
        assert_eq!(found[0].read(0), Power::Measured { watts: 0.0 });
    }

    #[test]
    fn two_chips_that_cannot_be_told_apart_are_not_read() {
        let tree = Tree::new();
        for number in [0, 1] {
            tree.write(&format!("{FOLDER}/hwmon{number}/name"), "ina219\n");
            tree.write(&format!("{FOLDER}/hwmon{number}/power1_input"), "1000000\n");
        }
        for mut channel in discover(&tree.root()) {
            assert!(why(&channel.read(0)).contains("two of"));
        }
    }
}
