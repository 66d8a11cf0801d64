//! What a device says of the blocks that a task needs: from the server, from its notes, or nothing.

use crate::device_support::{
    Fake, Flow, MemoryCache, Peer, Tree, at, rejected, settings, wait_until,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stream::device::{
    Device, DeviceError, PLAN_BLOCKS_MAX, PlanAnswer, PlanOrigin, Reason, Settings, TaskPlan,
};
use stream::wire::{Answer, BLOCKS_PER_MESSAGE_MAX, Request};
use stream::{BlockAt, FileId};

/// What a server does when it is asked for the plan of a task.
#[derive(Clone, Copy, Debug)]
enum Says {
    Nothing,
    Part,
    Blocks,
    /// It does not answer.
    Silence,
    /// It sends a beginning, and closes the connection.
    Beginning,
}

fn plan() -> Vec<BlockAt> {
    (0..40).map(|index| at(1, index)).collect()
}

fn say(peer: &mut Peer, id: u32, has_more: bool, blocks: &[BlockAt]) {
    let blocks = blocks.to_vec();
    peer.send(&Answer::Plan {
        id,
        has_more,
        blocks,
    });
}

fn answer(peer: &mut Peer, id: u32, says: Says) -> Flow {
    match says {
        Says::Nothing => return Flow::Usual,
        Says::Silence => {}
        Says::Blocks => say(peer, id, false, &plan()),
        Says::Part => {
            say(peer, id, true, &[]);
            say(peer, id, false, &[]);
        }
        Says::Beginning => {
            say(peer, id, true, &plan()[..5]);
            return Flow::Close;
        }
    }
    Flow::Done
}

/// Starts a server whose answers the test chooses.
fn server() -> (Fake, Arc<Mutex<Says>>) {
    let says = Arc::new(Mutex::new(Says::Nothing));
    let chosen = Arc::clone(&says);
    let fake = Fake::start(Tree::usual(), move |peer, request| match request {
        Request::AskPlan { id, .. } => {
            let says = *chosen.lock().unwrap();
            answer(peer, *id, says)
        }
        _ => Flow::Usual,
    });
    (fake, says)
}

fn device(fake: &Fake) -> Device {
    Device::start(Settings {
        cache: Some(Arc::new(MemoryCache::default()) as _),
        deadline: Duration::from_secs(2),
        ..settings(fake)
    })
    .unwrap()
}

/// Only a whole answer of the server is what the server has learned.
#[test]
fn a_plan_says_where_it_comes_from() {
    let (mut fake, says) = server();
    let device = device(&fake);
    let asked = |what: Says, device: &Device| -> TaskPlan {
        let connects = device.counters().connects;
        *says.lock().unwrap() = what;
        let found = device.plan_noted(FileId(1)).unwrap();
        if matches!(what, Says::Beginning) {
            wait_until(|| device.counters().connects > connects && device.is_connected());
        }
        found
    };
    let unknown = [
        (Says::Nothing, PlanAnswer::Nothing),
        (Says::Part, PlanAnswer::Part),
        (Says::Silence, PlanAnswer::Missing),
        (Says::Beginning, PlanAnswer::Missing),
    ];
    for (what, answer) in unknown {
        let found = asked(what, &device);
        assert_eq!(
            (found.answer, found.origin()),
            (answer, PlanOrigin::Nothing)
        );
        assert!(found.blocks.is_empty() && !found.is_cut, "{what:?}");
        assert!(matches!(found.known(), Err(DeviceError::NoPlan)));
    }
    let found = asked(Says::Blocks, &device);
    assert_eq!(found.origin(), PlanOrigin::Server);
    assert_eq!((found.blocks, found.is_cut), (plan(), false));
    // From now on the list is noted.
    for (what, answer) in unknown {
        let found = asked(what, &device);
        assert_eq!((found.answer, found.origin()), (answer, PlanOrigin::Note));
        assert_eq!(found.blocks, plan(), "{what:?}");
    }
    fake.stop();
    wait_until(|| !device.is_connected());
    let found = device.plan(FileId(1)).unwrap();
    assert_eq!(
        (found.answer, found.origin()),
        (PlanAnswer::Missing, PlanOrigin::Note)
    );
}

/// Such a start may have read a small part of what the task needs.
#[test]
fn a_start_that_failed_makes_no_note() {
    let mut fake = Fake::start(Tree::usual(), |_, _| Flow::Usual);
    let cache = Arc::new(MemoryCache::default());
    let device = Device::start(Settings {
        cache: Some(Arc::clone(&cache) as _),
        deadline: Duration::from_secs(2),
        around: false,
        ..settings(&fake)
    })
    .unwrap();
    let token = device.begin(FileId(1));
    device.read(Some(token), at(1, 0)).unwrap();
    fake.stop();
    wait_until(|| !device.is_connected());
    device.read(Some(token), at(1, 60)).unwrap_err();
    device.end(token, true);
    let found = device.plan_noted(FileId(1)).unwrap();
    assert_eq!(
        (found.answer, found.origin()),
        (PlanAnswer::Missing, PlanOrigin::Nothing)
    );
    device.stop();
    assert!(!cache.has_note("plan-"));
}

#[test]
fn a_plan_that_is_longer_than_a_list_is_cut_and_says_so() {
    let fake = Fake::start(Tree::usual(), |peer, request| match request {
        Request::AskPlan { id, .. } => {
            let all: Vec<BlockAt> = peer.tree.all();
            let all = all.into_iter().cycle().take(BLOCKS_PER_MESSAGE_MAX);
            let message: Vec<BlockAt> = all.collect();
            let messages = 2 * PLAN_BLOCKS_MAX / BLOCKS_PER_MESSAGE_MAX;
            for number in 1..=messages {
                say(peer, *id, number < messages, &message);
            }
            Flow::Done
        }
        _ => Flow::Usual,
    });
    let device = device(&fake);
    let found = device.plan(FileId(1)).unwrap();
    assert_eq!((found.answer, found.is_cut), (PlanAnswer::Blocks, true));
    assert_eq!(found.blocks.len(), PLAN_BLOCKS_MAX);
    // What comes behind the kept blocks is part of the answer.
    assert_eq!(rejected(&device, Reason::Unrequested), 0);
}
