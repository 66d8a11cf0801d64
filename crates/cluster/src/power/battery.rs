//! Batteries, `/sys/class/power_supply/*/power_now` in microwatts, or `voltage_now` times `current_now` in microvolts
//! and microamperes. Only a discharging battery shows what the machine uses: charging power is not consumption, and on
//! mains nothing flows. The sign differs between drivers, so `status` gives the direction.

use super::root::{Root, read_number, read_text};
use super::source::{Meaning, Power, Source};

const FOLDER: &str = "sys/class/power_supply";

/// One battery of the machine.
#[derive(Debug)]
pub struct Battery {
    root: Root,
    folder: String,
    name: String,
}

/// Finds the batteries that supply the machine; those of mice and other devices do not.
pub(super) fn discover(root: &Root) -> Vec<Battery> {
    let read =
        |folder: &str, file: &str| read_text(&root.path(&format!("{FOLDER}/{folder}/{file}")));
    let names = root.names(FOLDER).into_iter();
    let batteries = names.filter(|folder| {
        read(folder, "type").as_deref() == Ok("Battery")
            && read(folder, "scope").as_deref() != Ok("Device")
    });
    batteries
        .map(|folder| Battery {
            root: root.clone(),
            name: format!("battery {folder}"),
            folder,
        })
        .collect()
}

impl Battery {
    fn watts(&self) -> Result<f64, String> {
        let path = |file: &str| self.root.path(&format!("{FOLDER}/{}/{file}", self.folder));
        if let Ok(0) = read_number(&path("present")) {
            return Err("no battery in its place".to_owned());
        }
        let status = read_text(&path("status"))?;
        if status != "Discharging" {
            let status = crate::error::excerpt(&status).to_lowercase();
            return Err(format!(
                "it is {status}: only a battery that is being discharged says what is used"
            ));
        }
        let microwatts = if path("power_now").exists() {
            read_number(&path("power_now"))? as f64
        } else {
            let microvolts = read_number(&path("voltage_now"))? as f64;
            microvolts * read_number(&path("current_now"))? as f64 / 1e6
        };
        if microwatts == 0.0 {
            return Err("0 W while it is being discharged: its gauge does not measure".to_owned());
        }
        Ok(microwatts.abs() / 1e6)
    }
}

impl Source for Battery {
    fn name(&self) -> &str {
        &self.name
    }

    fn covers(&self) -> &str {
        "the whole machine, while it runs from its battery"
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

    fn battery(files: &[(&str, &str)]) -> (Tree, Vec<Battery>) {
        let tree = Tree::new();
        tree.write(&format!("{FOLDER}/AC/type"), "Mains\n");
        tree.write(&format!("{FOLDER}/mouse/type"), "Battery\n");
        tree.write(&format!("{FOLDER}/mouse/scope"), "Device\n");
        tree.write(&format!("{FOLDER}/BAT0/type"), "Battery\n");
        for (file, text) in files {
            tree.write(&format!("{FOLDER}/BAT0/{file}"), text);
        }
        let found = discover(&tree.root());
        (tree, found)
    }

    #[test]
    fn power_is_read_or_computed_with_either_sign() {
        let cases: [&[(&str, &str)]; 4] = [
            &[("power_now", "8500000\n")],
            &[("power_now", "-8500000\n")],
            &[("voltage_now", "10000000\n"), ("current_now", "850000\n")],
            &[("voltage_now", "10000000\n"), ("current_now", "-850000\n")],
        ];
        for files in cases {
            let files = [files, &[("status", "Discharging\n")][..]].concat();
            let (_tree, mut found) = battery(&files);
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].name(), "battery BAT0");
            assert_eq!(found[0].read(0), Power::Measured { watts: 8.5 });
        }
    }

    #[test]
    fn power_is_unavailable_unless_the_battery_discharges() {
        let power = ("power_now", "8500000\n");
        let cases: [&[(&str, &str)]; 5] = [
            &[power, ("status", "Charging\n")],
            &[power, ("status", "Full\n")],
            &[power],
            &[("power_now", "0\n"), ("status", "Discharging\n")],
            &[power, ("present", "0\n"), ("status", "Discharging\n")],
        ];
        for files in cases {
            let (_tree, mut found) = battery(files);
            assert!(
                matches!(found[0].read(0), Power::Unavailable { .. }),
                "{files:?}"
            );
        }
    }
}
