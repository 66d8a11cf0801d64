//! Modbus devices in the status: figures, judgement, text.

use super::text::{grouped, plural};
use ingest::modbus::{DeviceFigures as Found, DeviceOptions, FAILING_FROM, Fault};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A device of the configuration.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct DeviceFigures {
    /// Its name in the configuration.
    pub name: String,
    /// `tcp://host:port` or `rtu://` and a path.
    pub address: String,
    /// Number of the device on its line.
    pub unit: u8,
    /// Number of its registers in the configuration.
    pub registers: u64,
    /// Whether at least two polls in a row failed.
    pub failing: bool,
    /// Polls.
    pub polls: u64,
    /// Polls without an answer to every request.
    pub polls_failed: u64,
    /// Polls left out because earlier ones took too long.
    pub polls_missed: u64,
    /// Readings taken.
    pub readings: u64,
    /// Readings left out because the store took nothing for a second.
    pub readings_left_out: u64,
    /// Requests without an answer, by reason.
    pub faults: BTreeMap<String, u64>,
    /// The last error; it is not cleared when things go well again.
    pub last_error: Option<String>,
}

/// All devices.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct ModbusFigures {
    /// One for each `[[modbus]]`.
    pub modbus: Vec<DeviceFigures>,
    /// Requests without an answer, of all devices, by reason; empty without devices.
    pub modbus_faults: BTreeMap<String, u64>,
}

impl ModbusFigures {
    /// Adds a device.
    pub(crate) fn take(&mut self, options: &DeviceOptions, found: Found) {
        let faults: BTreeMap<String, u64> = Fault::ALL
            .iter()
            .zip(found.faults)
            .map(|(fault, count)| (fault.name().to_owned(), count))
            .collect();
        for (name, count) in &faults {
            *self.modbus_faults.entry(name.clone()).or_default() += count;
        }
        self.modbus.push(DeviceFigures {
            name: options.name.clone(),
            address: options.address.to_string(),
            unit: options.unit,
            registers: options.registers.len() as u64,
            failing: found.failed_in_row >= FAILING_FROM,
            polls: found.polls,
            polls_failed: found.polls_failed,
            polls_missed: found.polls_missed,
            readings: found.readings,
            readings_left_out: found.readings_left_out,
            faults,
            last_error: found.last_error,
        });
    }

    /// Adds the reasons of devices.
    pub(super) fn judge(&self, add: &mut impl FnMut(&str, String)) {
        for device in self.modbus.iter().filter(|device| device.failing) {
            let why = device
                .last_error
                .as_deref()
                .unwrap_or("it is not known why");
            let text = format!(
                "device {} does not give all its registers: {why}; what it does not give has no new readings",
                device.shown()
            );
            add("modbus_failing", text);
        }
    }
}

impl DeviceFigures {
    /// Returns its name, and its address where the name does not say it.
    fn shown(&self) -> String {
        let place = format!("{} unit {}", self.address, self.unit);
        if self.name == place {
            return place;
        }
        format!("{} ({place})", self.name)
    }

    /// Returns one line for people.
    pub(super) fn line(&self) -> String {
        let state = match (self.failing, self.polls) {
            (true, _) => "FAILS",
            (false, 0) => "not asked yet",
            (false, _) => "answers",
        };
        let faults = self.faults.iter().filter(|(_, count)| **count > 0);
        let mut more: Vec<String> = faults
            .map(|(name, count)| format!("{name} {}", grouped(*count)))
            .collect();
        for (count, what) in [
            (self.polls_missed, "polls left out"),
            (self.readings_left_out, "readings left out"),
        ] {
            if count > 0 {
                more.push(format!("{} {what}", grouped(count)));
            }
        }
        let more = match more.is_empty() {
            true => String::new(),
            false => format!("; {}", more.join(", ")),
        };
        format!(
            "{} {state}: {} of {} registers in {}, {} failed{more}",
            self.shown(),
            plural(self.readings, "reading", "readings"),
            self.registers,
            plural(self.polls, "poll", "polls"),
            grouped(self.polls_failed)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Judgement, NodeFigures, State, judge};
    use super::*;
    use ingest::modbus::Address;

    fn options(name: &str) -> DeviceOptions {
        DeviceOptions {
            name: name.to_owned(),
            address: Address::Tcp("10.0.0.5:502".to_owned()),
            unit: 7,
            interval_ms: 1_000,
            timeout_ms: 1_000,
            gap_max: 0,
            retry_ms_min: 1,
            retry_ms_max: 1,
            registers: Vec::new(),
        }
    }

    fn found(failed_in_row: u64) -> Found {
        let mut found = Found {
            polls: 1_200,
            polls_failed: 3,
            failed_in_row,
            readings: 2_400,
            last_error: Some("no answer within 1000 ms".to_owned()),
            ..Found::default()
        };
        found.faults[Fault::Timeout.index()] = 3;
        found
    }

    #[test]
    fn a_device_that_does_not_answer_is_named_with_the_reason() {
        let judged = |failed_in_row| {
            let mut figures = NodeFigures::default();
            figures.clock.trusted = true;
            figures.modbus.take(&options("meter"), found(failed_in_row));
            judge(&figures)
        };
        let well = Judgement {
            state: State::Ok,
            reasons: Vec::new(),
        };
        // One lost answer is no reason yet.
        assert_eq!([judged(0), judged(1)], [well.clone(), well]);
        let Judgement { state, reasons } = judged(2);
        assert_eq!(state, State::Degraded);
        let [reason] = &reasons[..] else {
            panic!("{reasons:?}");
        };
        assert_eq!(reason.code, "modbus_failing");
        let begin = "device meter (tcp://10.0.0.5:502 unit 7) does not give all its registers: \
                     no answer within 1000 ms;";
        assert!(reason.text.starts_with(begin), "{}", reason.text);
    }

    #[test]
    fn readings_that_a_slow_store_has_cost_are_named() {
        let text = |left_out| {
            let mut figures = NodeFigures::default();
            figures.clock.trusted = true;
            figures.last_minute.refused_busy = 7;
            let mut found = found(0);
            found.readings_left_out = left_out;
            figures.modbus.take(&options("meter"), found);
            let reasons = judge(&figures).reasons;
            let lagging = reasons.iter().find(|reason| reason.code == "lagging");
            lagging.unwrap().text.clone()
        };
        assert!(text(0).ends_with("senders had to wait"), "{}", text(0));
        let lost =
            ", and 4 readings of Modbus devices are lost since the start (readings_left_out)";
        assert!(text(4).ends_with(lost), "{}", text(4));
    }

    #[test]
    fn the_line_has_the_faults_by_reason_and_so_has_their_sum() {
        let mut all = ModbusFigures::default();
        assert!(all.modbus_faults.is_empty());
        all.take(&options("tcp://10.0.0.5:502 unit 7"), found(0));
        all.take(&options("meter"), found(2));
        assert_eq!(
            all.modbus[0].line(),
            "tcp://10.0.0.5:502 unit 7 answers: 2,400 readings of 0 registers in 1,200 polls, 3 failed; timeout 3"
        );
        assert!(
            all.modbus[1]
                .line()
                .starts_with("meter (tcp://10.0.0.5:502 unit 7) FAILS: ")
        );
        assert_eq!(all.modbus_faults["timeout"], 6);
        assert_eq!(all.modbus_faults.len(), Fault::ALL.len());
    }
}
