//! One upstream from connection to connection, for as long as the node runs.

use super::backoff::Backoff;
use super::context::{Context, LOOK_MS, Leave};
use super::forwarder::Forwarder;
use super::options::Target;
use super::{mqtt, post};
use base::block::BlockDevice;
use std::time::Duration;
use tls::Progress;
use tokio::time::{sleep, timeout};

/// Forwards until the node stops.
pub(crate) async fn run<D: BlockDevice + 'static>(
    mut forwarder: Forwarder<D>,
    mut context: Context,
) {
    let mut backoff = Backoff::new();
    context.hold(&forwarder);
    context.publish_now(&mut forwarder);
    while !context.is_stopping() {
        let before = (forwarder.engine.answered(), context.judged_units);
        let leave = one_connection(&mut forwarder, &mut context).await;
        // A unit that was accepted after an unaccepted one must be sent again, so it is no progress.
        let is_progress = forwarder.engine.answered() > before.0;
        let is_taken_back = forwarder.engine.in_flight() > 0;
        context.ended(&mut forwarder, &leave, is_progress);
        if matches!(leave, Leave::Lost(_) | Leave::Later { .. }) && !is_progress && is_taken_back {
            context.is_doubtful = true;
        }
        let mut wait = Duration::ZERO;
        let (min, max) = (
            context.options.backoff_ms_min,
            context.options.backoff_ms_max,
        );
        if is_progress || context.judged_units > before.1 {
            backoff.reset();
        }
        let is_http = matches!(context.options.target, Target::Http { .. });
        match leave {
            Leave::Stopped => break,
            // A server may end connections at any time. A broker does not, and may be asked for a new one too often.
            Leave::Again if is_progress && is_http => {}
            Leave::Again => wait = backoff.next(min, max),
            Leave::Lost(why) => {
                wait = backoff.next(min, max);
                context.lost(&why);
            }
            Leave::Later { why, wait_ms, .. } => {
                wait = backoff.next(min, max).max(Duration::from_millis(wait_ms));
                context.lost(&why);
            }
        }
        context.publish_now(&mut forwarder);
        let mut left = wait;
        // Retention and the backlog go on meanwhile, so the figures are updated.
        while !left.is_zero() && !context.is_stopping() {
            let step = left.min(Duration::from_millis(LOOK_MS));
            tokio::select! {
                () = sleep(step) => left -= step,
                _ = context.stop.changed() => {}
            }
            context.write_cursor(&mut forwarder);
            context.publish_now(&mut forwarder);
        }
    }
    // The next start does not repeat readings that were acknowledged in the last moment.
    if let Err(error) = forwarder.write_cursor(true) {
        context.say(&error.to_string());
    }
    context.publish_now(&mut forwarder);
}

async fn one_connection<D: BlockDevice + 'static>(
    forwarder: &mut Forwarder<D>,
    context: &mut Context,
) -> Leave {
    enum Way {
        Mqtt(mqtt::Connection),
        Post(post::Connection),
    }
    let limit = Duration::from_millis(context.options.answer_ms_max);
    let options = context.options.clone();
    let progress = Progress::default();
    let connecting = async {
        match options.target {
            Target::Mqtt { .. } => mqtt::connect(&options, &progress).await.map(Way::Mqtt),
            Target::Http { .. } => post::connect(&options, &progress).await.map(Way::Post),
        }
    };
    let mut stop = context.stop.clone();
    let connected = tokio::select! {
        connected = timeout(limit, connecting) => connected,
        _ = stop.wait_for(|stop| *stop) => return Leave::Stopped,
    };
    let way = match connected {
        Err(_) => {
            let address = options.address();
            let hint = mqtt::hint(options.tls.as_ref());
            return Leave::Lost(progress.late(address, limit, hint));
        }
        Ok(Err(why)) => return Leave::Lost(why),
        Ok(Ok(way)) => way,
    };
    forwarder.engine.connected(forwarder.durable_end());
    match way {
        Way::Mqtt(mut connection) => {
            if !context.is_doubtful {
                context.reached();
            }
            let leave = connection.serve(forwarder, context).await;
            // If every message has its answer, no message is to blame; the first unfinished one may be a denied one.
            match leave {
                Leave::Lost(why) if connection.on_the_way.is_empty() => Leave::later(why),
                leave => leave,
            }
        }
        // The first answer shows whether an HTTP server is usable.
        Way::Post(mut connection) => connection.serve(forwarder, context).await,
    }
}
