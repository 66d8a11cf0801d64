//! What a seed decides about an upstream and the link to it.

use base::sim::Random;
use egress::forward::{Begin, Format, KeyRule, MqttVersion, Order, Target, UpstreamOptions};

/// Most upstreams of a run.
const UPSTREAMS_MAX: u64 = 3;
/// An upstream that refuses readings refuses those whose number has one remainder by this.
const REFUSED_ONE_IN: u64 = 97;
/// A refused unit is sent in halves, so units beyond this would be refused too often to get anywhere.
const REFUSING_WINDOW_MAX: u32 = 64;

/// How an upstream takes readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A broker, with a message for each reading.
    Messages,
    /// A broker, with several readings in a message.
    Batches,
    /// A server that takes lines by POST, one request after the other.
    Posts,
}

/// One upstream and its link, as a seed decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpstreamDraw {
    pub(crate) kind: Kind,
    pub(crate) order: Order,
    pub(crate) begin: Begin,
    /// Whether the log is kept for it.
    pub(crate) hold: bool,
    /// Most readings beyond the durable cursor.
    pub(crate) window: u32,
    pub(crate) batch_bytes_max: usize,
    pub(crate) linger_ms: u64,
    /// How long nothing is sent while the clock is not trusted.
    pub(crate) clock_wait_ms: u64,
    /// How often the log is looked at.
    pub(crate) poll_ns: u64,
    /// Most messages without an answer.
    pub(crate) unanswered_max: usize,
    /// Longest time from a message to its answer.
    pub(crate) answer_ns_max: u64,
    /// One message in this many breaks the link; 0: none.
    pub(crate) breaks_one_in: u64,
    /// The remainder by [`REFUSED_ONE_IN`] of the readings that it refuses.
    pub(crate) refused: Option<u64>,
}

impl UpstreamDraw {
    /// Draws the upstreams of a run. Links of a quiet run do not break.
    pub(crate) fn some(random: &mut Random, is_quiet: bool) -> Vec<Self> {
        let count = random.below(UPSTREAMS_MAX + 1);
        (0..count).map(|_| Self::one(random, is_quiet)).collect()
    }

    /// Draws an upstream.
    pub(super) fn one(random: &mut Random, is_quiet: bool) -> Self {
        let kind = [Kind::Messages, Kind::Batches, Kind::Posts][random.index(3)];
        let breaks_one_in = [0, 40, 400][random.index(3)];
        let is_refusing = random.below(4) == 0;
        let windows = [
            2 + random.below(30),
            50 + random.below(200),
            500 + random.below(1_500),
        ];
        let window = windows[random.index(windows.len())] as u32;
        let refused = random.below(REFUSED_ONE_IN);
        Self {
            kind,
            order: [Order::OldestFirst, Order::RecentFirst][random.index(2)],
            begin: [Begin::Now, Begin::Oldest][random.index(2)],
            hold: random.coin(),
            window: match is_refusing {
                true => window.min(REFUSING_WINDOW_MAX),
                false => window,
            },
            batch_bytes_max: [1 << 10, 8 << 10, 256 << 10][random.index(3)],
            linger_ms: [0, 50, 1_000][random.index(3)],
            clock_wait_ms: [0, 2_000][random.index(2)],
            poll_ns: [5_000_000, 20_000_000, 200_000_000][random.index(3)],
            unanswered_max: match kind {
                Kind::Messages | Kind::Batches => [1, 20, 100][random.index(3)],
                Kind::Posts => 1,
            },
            answer_ns_max: [0, 2_000_000, 20_000_000][random.index(3)],
            breaks_one_in: match is_quiet {
                true => 0,
                false => breaks_one_in,
            },
            refused: (is_refusing && !is_quiet).then_some(refused),
        }
    }

    /// Whether the upstream refuses this reading.
    pub(super) fn refuses(&self, number: u64) -> bool {
        self.refused == Some(number % REFUSED_ONE_IN)
    }

    /// Whether readings must come in the order of the log. They do not if a batch is refused while later ones are on
    /// their way: it is sent again behind them.
    pub(super) fn keeps_order(&self) -> bool {
        let is_overtaken = self.kind == Kind::Batches && self.refused.is_some();
        self.order == Order::OldestFirst && !is_overtaken
    }

    /// Returns the options that the node has for it.
    pub(super) fn options(&self, index: usize) -> UpstreamOptions {
        let broker = |topic: &str| Target::Mqtt {
            address: "upstream:1883".to_owned(),
            version: MqttVersion::V5,
            client_id: "sim".to_owned(),
            login: None,
            topic: topic.to_owned(),
            keep_alive_seconds: 30,
            inflight_max: 100,
        };
        let target = match self.kind {
            Kind::Messages => broker("t/{key}"),
            Kind::Batches => broker("all"),
            Kind::Posts => Target::Http {
                address: "upstream:8086".to_owned(),
                host: "upstream".to_owned(),
                path: "/write?precision=ns".to_owned(),
                authorization: None,
            },
        };
        // Readings to which the node gives the time are no function of a number.
        let not_probes = KeyRule {
            pattern: "probe/#".to_owned(),
            forward: false,
            ..KeyRule::default()
        };
        UpstreamOptions {
            format: Format::Line,
            rules: vec![not_probes, KeyRule::default()],
            order: self.order,
            begin: self.begin,
            hold: self.hold,
            window_readings_max: self.window,
            batch_bytes_max: self.batch_bytes_max,
            linger_ms: self.linger_ms,
            clock_wait_ms_max: self.clock_wait_ms,
            ..UpstreamOptions::new(format!("up-{index}"), target)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_upstream_is_drawn_and_has_possible_options() {
        let (mut kinds, mut counts) = ([0; 3], [0; 4]);
        let (mut refusing, mut breaking, mut held, mut recent) = (0, 0, 0, 0);
        for seed in 0..200 {
            let is_quiet = seed % 10 == 0;
            let drawn = UpstreamDraw::some(&mut Random::new(seed), is_quiet);
            counts[drawn.len()] += 1;
            for (index, draw) in drawn.iter().enumerate() {
                let options = draw.options(index);
                assert_eq!(options.check(), Ok(()), "{draw:?}");
                assert_eq!(options.is_batched(), draw.kind != Kind::Messages);
                kinds[draw.kind as usize] += 1;
                refusing += u64::from(draw.refused.is_some());
                breaking += u64::from(draw.breaks_one_in > 0);
                held += u64::from(draw.hold);
                recent += u64::from(draw.order == Order::RecentFirst);
                assert!(!is_quiet || draw.breaks_one_in == 0 && draw.refused.is_none());
            }
        }
        assert!(kinds.iter().chain(&counts).all(|count| *count > 20));
        for count in [refusing, breaking, held, recent] {
            assert!(count > 20, "{refusing} {breaking} {held} {recent}");
        }
    }
}
