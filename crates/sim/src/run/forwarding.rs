//! Forwarding in a run: the turns of upstreams, their answers, lost connections, and the ends of lives.

use super::{Life, Run};
use crate::invariant::{Broken, Invariant};
use crate::node::Node;
use crate::report::Step;
use crate::upstream::{Link, UpstreamFault, World};

impl Run<'_> {
    /// Finds the cursors, as a start does before it takes readings, and holds the log from them on.
    pub(super) fn open_links(&self, node: &Node) -> Result<Vec<Link>, UpstreamFault> {
        let upstreams = self.upstreams.iter();
        let links = upstreams
            .map(|upstream| upstream.open(&node.database, &self.clock, self.now_ns))
            .collect::<Result<Vec<Link>, UpstreamFault>>()?;
        hold(node, &links);
        Ok(links)
    }

    /// Forwarding to an upstream has a turn, if this is the time of its next one.
    pub(super) fn forward(&mut self, life: &mut Life, upstream: usize) -> Result<(), Broken> {
        let link = &mut life.links[upstream];
        if !link.begin_turn(self.now_ns) {
            return Ok(());
        }
        if self.now_ns < life.free_ns {
            // The commit side or another upstream has the store.
            link.want_turn(&mut life.queue, upstream, life.free_ns);
            return Ok(());
        }
        let world = World {
            feed: &self.feed,
            ledger: &self.ledger,
            now_ns: self.now_ns,
        };
        let turned = self.upstreams[upstream].turn(link, world, &mut life.queue);
        life.free_ns = self.now_ns + life.device.take_spent_ns();
        hold(&life.node, &life.links);
        let sent = match turned {
            Ok(messages) => messages,
            Err(UpstreamFault::Failed(_)) if life.device.is_gone() => 0,
            Err(fault) => return Err(fault.into_broken(Invariant::Forwarded)),
        };
        if sent > 0 {
            let step = Step::Forwarded {
                upstream,
                messages: sent,
            };
            self.trail.note(self.now_ns, step);
        }
        self.check_moments(life)
    }

    /// The node gets an answer of an upstream, and forwarding goes on at once.
    pub(super) fn answer(
        &mut self,
        life: &mut Life,
        upstream: usize,
        connection: u64,
        token: u64,
    ) -> Result<(), Broken> {
        let link = &mut life.links[upstream];
        if self.upstreams[upstream].answer(link, connection, token)? {
            self.moved_ns = self.now_ns;
            self.trail
                .note(self.now_ns, Step::Answered { upstream, token });
            link.want_turn(&mut life.queue, upstream, self.now_ns);
        }
        Ok(())
    }

    /// The node notices that a connection is lost.
    pub(super) fn lose(&mut self, life: &mut Life, upstream: usize, connection: u64) {
        let (link, queue) = (&mut life.links[upstream], &mut life.queue);
        if self.upstreams[upstream].lose(link, connection, self.now_ns, queue) {
            self.trail
                .note(self.now_ns, Step::ConnectionLost { upstream });
        }
    }

    /// Whether every upstream has answered all of the log.
    pub(super) fn is_forwarded(life: &Life) -> bool {
        life.links.iter().all(Link::is_drained)
    }

    /// Checks, once nothing has moved for long, that no upstream is waited for.
    pub(super) fn check_not_stuck(life: &Life) -> Result<(), Broken> {
        // Lives before the last one do not wait for upstreams.
        let mut links = life.links.iter().enumerate();
        let stuck = links.find(|(_, link)| life.planned.is_none() && !link.is_drained());
        stuck.map_or(Ok(()), |(upstream, link)| {
            let found = format!(
                "upstream {upstream} gets nothing any more: {}",
                link.explain()
            );
            Err(Broken::new(Invariant::Forwarded, found))
        })
    }

    /// A life has crashed: what was sent beyond the durable cursors may come again.
    pub(super) fn crash_links(&mut self, links: Vec<Link>) {
        for (upstream, link) in self.upstreams.iter_mut().zip(links) {
            upstream.crashed(link);
        }
    }

    /// Forwarding stops before the database does.
    pub(super) fn stop_links(&mut self, life: &mut Life) -> Result<(), Broken> {
        for (upstream, link) in self.upstreams.iter_mut().zip(&mut life.links) {
            let waits = self.draw.is_quiet || self.random.coin();
            let stopped = upstream.stop(link, waits);
            stopped.map_err(|fault| fault.into_broken(Invariant::Forwarded))?;
        }
        self.check_moments(life)
    }

    /// Checks, after the last life, that every upstream has what the log has.
    pub(super) fn check_forwarded(&self) -> Result<(), Broken> {
        let (ledger, gone_end) = (&self.ledger, self.gone.end());
        let mut upstreams = self.upstreams.iter();
        upstreams.try_for_each(|upstream| upstream.complete(ledger, &self.followed, gone_end))
    }
}

/// Keeps the log from the oldest reading on that an upstream may still need.
fn hold(node: &Node, links: &[Link]) {
    let held = links.iter().filter_map(Link::held_from);
    node.database.hold_from(held.min());
}
