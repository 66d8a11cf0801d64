//! The node of one life, put together from the rooms as `keel` does it: store, database, rules of keys, and an intake
//! for each source. Its commit side runs when it is told to.

use std::sync::Arc;

use base::clock::Clock;
use base::sim::{Random, SimClock};
use db::{Database, ObjectId};
use flash::{OpenOptions, Store};
use ingest::intake::{
    Intake, IntakeOptions, KeyRules, LineOutcome, LineProgress, NodeDestination, Template,
    TemplateKind,
};

use crate::device::Device;
use crate::draw::Draw;
use crate::sensors::Feed;

/// The template of the keys; it does not depend on what is usual for new stores.
const LINE_KEY: &str = "{measurement}/{pairs}/{field}";

type Target = NodeDestination<Store<Device>>;

/// A node between its start and its end.
pub(crate) struct Node {
    pub(crate) database: Arc<Database<Store<Device>>>,
    intakes: Vec<Intake<Target>>,
    /// Of each object, the sensor whose readings it has, once that was asked.
    sensors: Vec<Option<u16>>,
}

impl Node {
    /// Starts a node on what the device holds.
    ///
    /// # Errors
    /// What prevented the start, as text.
    pub(crate) fn start(
        device: &Device,
        clock: &SimClock,
        draw: &Draw,
        random: Random,
    ) -> Result<Self, String> {
        let store = Store::open(device.clone(), &OpenOptions::default())
            .map_err(|error| format!("the store does not open: {error}"))?;
        let clock: Arc<dyn Clock> = Arc::new(clock.clone());
        let database = Database::open(store, Arc::clone(&clock), draw.options)
            .map_err(|error| format!("the database does not open: {error}"))?;
        if !draw.alarms.rules.is_empty() {
            database
                .set_alarms(&draw.alarms.rules, draw.alarms.transitions_max)
                .map_err(|error| format!("the alarms cannot be set: {error}"))?;
        }
        let database = Arc::new(database);
        let watched = Arc::downgrade(&database);
        let durable_end = move || {
            watched
                .upgrade()
                .map_or(0, |database| database.durable_end())
        };
        device.watch(random, Box::new(durable_end));
        let rules = KeyRules {
            auto_create: true,
            keys_max: draw.options.objects_max,
            default_validity_ms: draw.validity_ms,
            ..KeyRules::default()
        };
        let target = Arc::new(Target::new(Arc::clone(&database), clock, rules));
        target
            .declare_exact()
            .map_err(|error| format!("the keys cannot be declared: {error}"))?;
        let mut options = IntakeOptions {
            line_key: Template::parse(LINE_KEY, TemplateKind::Line)
                .map_err(|error| error.to_string())?,
            ..IntakeOptions::default()
        };
        if draw.takes_any_time {
            options.future_seconds_max = u64::MAX;
            options.past_days_max = u64::MAX;
        }
        // One more for probes.
        let intakes = (0..=draw.sources.len())
            .map(|_| Intake::new(options.clone(), Arc::clone(&target)))
            .collect();
        Ok(Self {
            database,
            intakes,
            sensors: Vec::new(),
        })
    }

    /// Offers a line of a source.
    pub(crate) fn offer(
        &mut self,
        source: usize,
        line: &str,
        progress: &mut LineProgress,
    ) -> LineOutcome {
        self.intakes[source].line_from(line.as_bytes(), progress)
    }

    /// Offers a line of a probe.
    pub(crate) fn offer_probe(&mut self, line: &str, progress: &mut LineProgress) -> LineOutcome {
        let last = self.intakes.len() - 1;
        self.offer(last, line, progress)
    }

    /// Returns the object of a sensor, if there is one.
    pub(crate) fn object_of(&mut self, feed: &Feed<'_>, sensor: u16) -> Option<ObjectId> {
        let mut sensors = self.sensors(feed).iter();
        let at = sensors.position(|other| *other == Some(sensor))?;
        Some(ObjectId(at as u32))
    }

    /// Returns which sensor each object has, and `None` for an object of no sensor.
    pub(crate) fn sensors(&mut self, feed: &Feed<'_>) -> &[Option<u16>] {
        let known = self.sensors.len() as u32;
        for id in known..self.database.objects() {
            let key = self.database.key(ObjectId(id));
            self.sensors.push(feed.sensor_of(key.as_str()));
        }
        &self.sensors
    }
}
