//! The sources of a node, on the main thread: line protocol and MQTT, both through one intake, and Modbus.

use super::clock::NodeClock;
use super::database::Target;
use super::{log, settings};
use command::error::CliError;
use config::Config;
use ingest::durable::DurableWatch;
use ingest::intake::{Intake, IntakeCounters, IntakeOptions, Outcome, Outgoing, Reason, TagsForm};
use ingest::line::{self, LineListeners, LineState};
use ingest::modbus::{self, DeviceOptions, DeviceState};
use ingest::mqtt::{self, MqttState};
use std::cell::RefCell;
use std::fmt::Display;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinHandle, spawn_local};

/// Poll interval of the broker link's state, to log its changes.
const LINK_PERIOD: Duration = Duration::from_millis(500);

/// Sources that have ended while the node runs, each with the reason.
pub(crate) type Ended = Rc<RefCell<Vec<String>>>;

/// The one intake of a node.
pub(crate) type Shared = Rc<RefCell<Intake<Target>>>;

/// The intake as the MQTT session sees it.
struct Messages(Shared);

impl mqtt::Consumer for Messages {
    fn message(&mut self, topic: &[u8], payload: &[u8], is_retained: bool) -> Outcome {
        mqtt::Consumer::message(&mut *self.0.borrow_mut(), topic, payload, is_retained)
    }
    fn refuse(&mut self, reason: Reason) {
        self.0.borrow_mut().refuse(reason);
    }
    fn outgoing(&mut self) -> Option<Outgoing> {
        self.0.borrow_mut().outgoing()
    }
}

/// The checked parts of the configuration that the sources need.
pub(crate) struct Plan {
    intake: IntakeOptions,
    line: line::LineOptions,
    mqtt: Option<mqtt::MqttOptions>,
    modbus: Vec<DeviceOptions>,
}

impl Plan {
    /// Converts and checks everything, and reads the password.
    pub(crate) fn of(config: &Config) -> Result<Self, CliError> {
        // Certificates are judged by the clock that the whole node has.
        let clock = NodeClock::of(config);
        let mqtt = config.mqtt.as_ref();
        let mqtt = mqtt.map(|mqtt| settings::mqtt(mqtt, &clock)).transpose()?;
        if let Some(options) = &mqtt {
            options
                .check()
                .map_err(|error| CliError::failure("mqtt", error, "correct the configuration"))?;
        }
        Ok(Self {
            intake: settings::intake(config)?,
            line: settings::line(config),
            mqtt,
            modbus: config.modbus.clone(),
        })
    }

    /// Returns the plan for a store in which `{tags}` stands for this.
    pub(crate) fn with_tags(mut self, form: TagsForm) -> Self {
        self.intake = self.intake.with_tags(form);
        self
    }
}

/// Running sources.
pub(crate) struct Sources {
    pub(crate) intake: Shared,
    pub(crate) counters: Arc<IntakeCounters>,
    pub(crate) line: Arc<LineState>,
    pub(crate) mqtt: Option<Arc<MqttState>>,
    /// One for each device, in the order of the configuration.
    pub(crate) modbus: Vec<Arc<DeviceState>>,
    /// Addresses and paths of the listeners.
    pub(crate) listen: Vec<String>,
    pub(crate) ended: Ended,
    line_control: line::Controller,
    mqtt_control: Option<mqtt::Controller>,
    modbus_control: modbus::Controller,
    tasks: Vec<JoinHandle<()>>,
}

impl Sources {
    /// Binds the listeners and starts everything. Must be called on the main thread's runtime.
    pub(crate) fn start(
        plan: Plan,
        target: &Arc<Target>,
        durable: &DurableWatch,
    ) -> Result<Self, CliError> {
        let intake = Intake::new(plan.intake, Arc::clone(target));
        let counters = intake.counters();
        let intake: Shared = Rc::new(RefCell::new(intake));
        let unix_socket = plan.line.unix_socket.clone();
        let listeners = LineListeners::bind(plan.line)
            .map_err(|error| CliError::coded(error.code(), "line", error, ""))?;
        let tcp = listeners.tcp_address().map(|address| address.to_string());
        let unix = unix_socket.map(|path| path.display().to_string());
        let line_state = Arc::new(LineState::default());
        let (line_control, control) = line::control();
        let running = line::run(
            listeners,
            Rc::clone(&intake),
            durable.clone(),
            control,
            Arc::clone(&line_state),
        );
        let ended = Ended::default();
        let works = async move {
            match running.await {
                Ok(line::Ended::Stopped) => {}
                Ok(line::Ended::LogFailed) => log::event("failed", "the log takes nothing more"),
                Err(error) => return Err(error.to_string()),
            }
            Ok(())
        };
        let attended = attend("line protocol", works, Rc::clone(&ended));
        let mut tasks = vec![spawn_local(attended)];
        let (mut mqtt_state, mut mqtt_control) = (None, None);
        if let Some(options) = plan.mqtt {
            let state = Arc::new(MqttState::default());
            let (controller, control) = mqtt::control();
            let address = options.address.clone();
            let running = mqtt::run(
                options,
                Rc::new(RefCell::new(Messages(Rc::clone(&intake)))),
                durable.clone(),
                control,
                Arc::clone(&state),
            );
            let watched = Arc::clone(&state);
            let works = async move {
                let ended = tokio::select! {
                    ended = running => ended,
                    () = say_link(&watched, &address) => return Ok(()),
                };
                match ended {
                    mqtt::Ended::Stopped => {}
                    mqtt::Ended::LogFailed => log::event("failed", "the log takes nothing more"),
                    mqtt::Ended::OptionsInvalid(error) => return Err(error.to_string()),
                }
                Ok(())
            };
            tasks.push(spawn_local(attend("mqtt", works, Rc::clone(&ended))));
            (mqtt_state, mqtt_control) = (Some(state), Some(controller));
        }
        let devices: Vec<(DeviceOptions, Arc<DeviceState>)> = plan
            .modbus
            .into_iter()
            .map(|device| (device, Arc::default()))
            .collect();
        let modbus_states = devices.iter().map(|(_, state)| Arc::clone(state)).collect();
        let (modbus_control, control) = modbus::control();
        // Each address is attended for itself: one that ends takes no other with it.
        for bus in modbus::Bus::of(devices) {
            let name = format!("modbus {}", bus.address());
            let (target, counters) = (Arc::clone(target), Arc::clone(&counters));
            let running = modbus::run(bus, target, counters, control.clone());
            let works = async move {
                if running.await == modbus::Ended::LogFailed {
                    log::event("failed", "the log takes nothing more");
                }
                Ok(())
            };
            tasks.push(spawn_local(attend(name, works, Rc::clone(&ended))));
        }
        Ok(Self {
            intake,
            counters,
            line: line_state,
            mqtt: mqtt_state,
            modbus: modbus_states,
            listen: tcp.into_iter().chain(unix).collect(),
            ended,
            line_control,
            mqtt_control,
            modbus_control,
            tasks,
        })
    }

    /// Applies another configuration, as far as a running node can.
    pub(crate) fn reload(&mut self, plan: Plan) {
        self.intake.borrow_mut().reload(plan.intake);
        if let (Some(control), Some(options)) = (&self.mqtt_control, plan.mqtt)
            && let Err(error) = control.reload(options)
        {
            log::event("reload", format!("mqtt stays as it was: {error}"));
        }
    }

    /// Stops reading. Readings already taken have `wait_ms_max` to become durable and to be acknowledged.
    pub(crate) fn stop(&self, wait_ms_max: u64) {
        self.modbus_control.stop();
        self.line_control.stop(wait_ms_max);
        if let Some(control) = &self.mqtt_control {
            control.stop(wait_ms_max);
        }
    }

    /// Returns when all sources have ended.
    pub(crate) async fn ended(&mut self) {
        for task in &mut self.tasks {
            // What attends a source does not panic.
            task.await.ok();
        }
    }
}

/// Runs a source to its end. If that comes without a request, keeps the reason for the status: no other figure shows
/// that the source has ended. A failed log is shown by itself.
async fn attend(
    name: impl Display,
    works: impl Future<Output = Result<(), String>> + 'static,
    ended: Ended,
) {
    let why = match spawn_local(works).await {
        Ok(Ok(())) => return,
        Ok(Err(why)) => why,
        // The runtime has already reported it.
        Err(_) => "it panicked".to_owned(),
    };
    log::event("failed", format!("{name}: {why}"));
    ended.borrow_mut().push(format!("{name}: {why}"));
}

/// Logs when the link to the broker is established and lost. Never returns.
async fn say_link(state: &MqttState, address: &str) {
    let mut was = None;
    let mut ticks = tokio::time::interval(LINK_PERIOD);
    let mut error_said = None;
    loop {
        ticks.tick().await;
        let figures = state.figures();
        let error = state.last_error();
        let is_up = figures.connected;
        if was != Some(is_up) && (is_up || was.is_some()) {
            let what = if is_up { "connected to" } else { "lost" };
            log::event("mqtt", format!("{what} {address}"));
        }
        if !is_up && error.is_some() && error != error_said {
            let text = error.as_deref().unwrap_or_default();
            log::event("mqtt", with_address(address, text));
            error_said.clone_from(&error);
        }
        if is_up {
            error_said = None;
        }
        was = Some(is_up);
    }
}

/// Returns a reason with the address that it is about, once.
fn with_address(address: &str, why: &str) -> String {
    let has_it = why
        .strip_prefix(address)
        .is_some_and(|rest| rest.starts_with(": "));
    match has_it {
        true => why.to_owned(),
        false => format!("{address}: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_begins_with_the_address_has_it_once() {
        let of = |why: &str| with_address("h:1883", why);
        assert_eq!(of("h:1883: cannot connect"), "h:1883: cannot connect");
        assert_eq!(of("the broker is gone"), "h:1883: the broker is gone");
        assert_eq!(of("h:18830: no"), "h:1883: h:18830: no");
    }

    #[tokio::test]
    async fn a_source_that_ends_by_itself_is_kept_with_its_reason() {
        let ended = Ended::default();
        let ends = async {
            attend("one", async { Ok(()) }, Rc::clone(&ended)).await;
            let refused = async { Err("the socket cannot be watched".to_owned()) };
            attend("two", refused, Rc::clone(&ended)).await;
            let panics = async { panic!("a source of this test") };
            attend("three", panics, Rc::clone(&ended)).await;
        };
        tokio::task::LocalSet::new().run_until(ends).await;
        assert_eq!(
            *ended.borrow(),
            ["two: the socket cannot be watched", "three: it panicked"]
        );
    }
}
