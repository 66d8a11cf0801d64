//! The peers as programs: `keel-bench consumer`, started only by the bench. One of them takes the readings with the
//! node's own MQTT session and decoding and differs only in its storage. The other one is what the documentation of the
//! MQTT library shows, with manual acknowledgement.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::clock::SystemClock;
use db::{Database, DbOptions};
use ingest::durable::DurableWatch;
use ingest::intake::{
    Destination, Intake, IntakeOptions, KeyRules, NodeDestination, Outcome, PayloadKind, PutError,
    Reason, Retained, SubscriptionRule, Template,
};
use ingest::mqtt::{self, MqttOptions, MqttState, Qos, Subscription, Version};
use rumqttc::{AsyncClient, Event, Packet, QoS};

use super::sqlite::{SqliteDestination, SqliteLog};

/// The MQTT keep-alive, in seconds: long enough that no ping falls into a measurement.
pub(crate) const KEEP_ALIVE_SECONDS: u16 = 3600;

/// What a consumer does with readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Storage {
    /// SQLite, one lean table.
    Sqlite,
    /// The same with an index of key and time.
    SqliteIndexed,
    /// Our database: the node without all that is around it, to see what that costs.
    Keel,
}

/// How a consumer takes readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Front {
    /// As the node does.
    Node,
    /// With the library's client and event loop.
    Stock,
}

/// `keel-bench consumer`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    #[arg(long)]
    pub(crate) storage: Storage,
    #[arg(long)]
    pub(crate) front: Front,
    #[arg(long)]
    pub(crate) broker: SocketAddr,
    /// First level of the topics; also the name of the session.
    #[arg(long)]
    pub(crate) prefix: String,
    /// Where the data lies.
    #[arg(long)]
    pub(crate) folder: PathBuf,
    /// Longest time from a reading to its commit.
    #[arg(long)]
    pub(crate) commit_interval_ms: u32,
}

/// Consumes until it is killed.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let interval = Duration::from_millis(u64::from(options.commit_interval_ms));
    match options.storage {
        Storage::Keel => {
            let device = crate::store::open_direct(&options.folder.join("keel.img"))?;
            let open = flash::OpenOptions::default();
            let store = flash::Store::open(device, &open).map_err(|error| error.to_string())?;
            let settings = DbOptions {
                commit_interval_ms: options.commit_interval_ms,
                ..DbOptions::default()
            };
            let clock = Arc::new(SystemClock::new());
            let database = Database::open(store, clock.clone(), settings)
                .map_err(|error| error.to_string())?;
            let rules = KeyRules {
                auto_create: true,
                ..KeyRules::default()
            };
            consume(
                options,
                Arc::new(NodeDestination::new(Arc::new(database), clock, rules)),
            )
        }
        Storage::Sqlite | Storage::SqliteIndexed => {
            let log = SqliteLog::open(&options.folder, options.storage == Storage::SqliteIndexed)?;
            consume(options, Arc::new(SqliteDestination::start(log, interval)?))
        }
    }
}

fn consume<D: Destination>(options: &Options, destination: Arc<D>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let durable = DurableWatch::start(destination.clone()).map_err(|error| error.to_string())?;
    match options.front {
        Front::Node => runtime.block_on(as_the_node(options, destination, durable)),
        Front::Stock => runtime.block_on(as_documented(options, &*destination, durable)),
    }
}

/// The node's intake as the consumer of the session.
struct Taker<D: Destination>(Intake<D>);

impl<D: Destination> mqtt::Consumer for Taker<D> {
    fn message(&mut self, topic: &[u8], payload: &[u8], is_retained: bool) -> Outcome {
        mqtt::Consumer::message(&mut self.0, topic, payload, is_retained)
    }

    fn refuse(&mut self, reason: Reason) {
        self.0.refuse(reason);
    }
}

async fn as_the_node<D: Destination>(
    options: &Options,
    destination: Arc<D>,
    durable: DurableWatch,
) -> Result<(), String> {
    let filter = format!("{}/#", options.prefix);
    let intake = Intake::new(
        IntakeOptions {
            subscriptions: vec![SubscriptionRule {
                filter: filter.clone(),
                key: Template::topic(),
                payload: PayloadKind::Number,
                retained: Retained::default(),
            }],
            ..IntakeOptions::default()
        },
        destination,
    );
    let session = MqttOptions {
        version: Version::V311,
        keep_alive_seconds: KEEP_ALIVE_SECONDS,
        subscriptions: vec![Subscription {
            filter,
            qos: Qos::AtLeastOnce,
        }],
        ..MqttOptions::new(options.broker.to_string(), &options.prefix)
    };
    let (_controller, control) = mqtt::control();
    let state = Arc::new(MqttState::default());
    let taker = Rc::new(RefCell::new(Taker(intake)));
    Err(format!(
        "{:?}",
        mqtt::run(session, taker, durable, control, state).await
    ))
}

async fn as_documented<D: Destination>(
    options: &Options,
    destination: &D,
    mut durable: DurableWatch,
) -> Result<(), String> {
    let (host, port) = (options.broker.ip().to_string(), options.broker.port());
    let mut session = rumqttc::MqttOptions::new(&options.prefix, host, port);
    session.set_clean_session(false).set_manual_acks(true);
    session.set_keep_alive(Duration::from_secs(u64::from(KEEP_ALIVE_SECONDS)));
    let (client, mut events) = AsyncClient::new(session, 1 << 16);
    client
        .subscribe(format!("{}/#", options.prefix), QoS::AtLeastOnce)
        .await
        .map_err(|error| error.to_string())?;
    let unacknowledged: RefCell<VecDeque<(u64, rumqttc::Publish)>> = RefCell::default();
    let receive = async {
        let mut objects: HashMap<String, u32> = HashMap::new();
        loop {
            let event = events.poll().await.map_err(|error| error.to_string())?;
            if let Event::Incoming(Packet::Publish(publish)) = event {
                let number = take(destination, &mut objects, &publish).await?;
                unacknowledged.borrow_mut().push_back((number, publish));
            }
        }
    };
    let acknowledge = async {
        loop {
            durable.changed().await;
            let now = durable.get();
            if now.failed {
                return Err("the log has failed".to_owned());
            }
            let mut waiting = unacknowledged.borrow_mut();
            let done = waiting.partition_point(|(number, _)| *number < now.end);
            for (_, publish) in waiting.drain(..done) {
                client
                    .try_ack(&publish)
                    .map_err(|error| error.to_string())?;
            }
        }
    };
    tokio::select! {
        ended = receive => ended,
        ended = acknowledge => ended,
    }
}

/// Stores the readings of a message; waits while the destination accepts none.
async fn take<D: Destination>(
    destination: &D,
    objects: &mut HashMap<String, u32>,
    publish: &rumqttc::Publish,
) -> Result<u64, String> {
    let text = std::str::from_utf8(&publish.payload).map_err(|error| error.to_string())?;
    let value: f64 = text.parse().map_err(|error| format!("{text}: {error}"))?;
    let object = match objects.get(&publish.topic) {
        Some(object) => *object,
        None => {
            let object = destination
                .resolve(&publish.topic)
                .map_err(|reason| reason.name().to_owned())?;
            objects.insert(publish.topic.clone(), object);
            object
        }
    };
    loop {
        match destination.put(object, &value.to_le_bytes(), None) {
            Ok(number) => return Ok(number),
            Err(PutError::Wait { .. }) => tokio::time::sleep(Duration::from_millis(2)).await,
            Err(error) => return Err(format!("{error:?}")),
        }
    }
}
