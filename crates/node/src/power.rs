//! The power that the board's sensors show. A thread of its own reads them: a chip on a slow bus may take long.

use crate::status::PowerFigures;
use base::clock::{Clock, SystemClock};
use cluster::power::{Power, Root, Source, discover};
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval between two readings of the sensors.
const INTERVAL: Duration = Duration::from_secs(5);

/// Sensors that the status has, at most.
const SENSORS_MAX: usize = 8;

/// The sensors' latest values.
pub(crate) struct PowerWatch {
    figures: Arc<Mutex<Vec<PowerFigures>>>,
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

impl PowerWatch {
    /// Starts the thread if the machine below `root` has a sensor.
    pub(crate) fn start(root: &Root) -> io::Result<Self> {
        let mut sources = discover(root);
        sources.truncate(SENSORS_MAX);
        let figures = Arc::new(Mutex::new(Vec::new()));
        let mut watch = Self {
            figures: Arc::clone(&figures),
            thread: None,
        };
        if sources.is_empty() {
            return Ok(watch);
        }
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("power".into())
            .spawn(move || {
                let clock = SystemClock::new();
                loop {
                    let read = read(&mut sources, clock.monotonic_ns());
                    *figures.lock().unwrap_or_else(PoisonError::into_inner) = read;
                    if stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                }
            })?;
        watch.thread = Some((stop, thread));
        Ok(watch)
    }

    /// Returns the figures for the status.
    pub(crate) fn figures(&self) -> Vec<PowerFigures> {
        let figures = self.figures.lock();
        figures.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the thread. Does not wait for it: a sensor that hangs must not hold up the node's end.
    pub(crate) fn finish(&self) {
        if let Some((stop, _)) = &self.thread {
            stop.send(()).ok();
        }
    }
}

fn read(sources: &mut [Box<dyn Source>], now_ns: u64) -> Vec<PowerFigures> {
    let one = |source: &mut Box<dyn Source>| {
        let (watts, why) = match source.read(now_ns) {
            Power::Measured { watts } => (Some(watts), None),
            Power::Modelled { watts, source } => (Some(watts), Some(format!("modelled: {source}"))),
            Power::Unavailable { why } => (None, Some(why)),
        };
        PowerFigures {
            name: source.name().to_owned(),
            covers: source.covers().to_owned(),
            watts,
            why,
        }
    };
    sources.iter_mut().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn each_sensor_of_the_board_has_its_value_or_the_reason() {
        let root = std::env::temp_dir().join(format!("keel-power-{}", std::process::id()));
        fs::remove_dir_all(&root).ok();
        let folder = |number: u8| root.join(format!("sys/class/hwmon/hwmon{number}"));
        let chip = |number: u8, file: &str, text: &str| {
            fs::write(folder(number).join(file), text).unwrap();
        };
        for number in [1, 2] {
            fs::create_dir_all(folder(number)).unwrap();
            let device = format!("../../5-004{number}");
            std::os::unix::fs::symlink(device, folder(number).join("device")).unwrap();
        }
        chip(1, "name", "ina219\n");
        chip(1, "power1_input", "4987000\n");
        chip(1, "curr1_input", "997\n");
        chip(2, "name", "ina219\n");
        chip(2, "power1_input", "broken\n");
        let mut sources = discover(&Root::new(&root));
        let found = read(&mut sources, 1);
        let watts: Vec<_> = found.iter().map(|sensor| sensor.watts).collect();
        assert_eq!(watts, [Some(4.987), None], "{found:?}");
        assert!(
            found[0].why.is_none() && found[1].why.is_some(),
            "{found:?}"
        );
        let watch = PowerWatch::start(&Root::new(&root)).unwrap();
        while watch.figures().len() < 2 {
            std::thread::yield_now();
        }
        watch.finish();
        let none = PowerWatch::start(&Root::new(root.join("nowhere"))).unwrap();
        assert!(none.figures().is_empty() && none.thread.is_none());
        fs::remove_dir_all(&root).unwrap();
    }
}
