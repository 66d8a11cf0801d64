//! The threads that wait for blocks, so that the threads that reply to the kernel never wait.
//!
//! There are as many threads as waiting reads, up to a limit, and idle threads end. A device in normal use has none.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The maximum number of threads, and so of concurrently waiting reads; more reads queue for a thread.
const THREADS_MAX: usize = 256;

/// The maximum number of reads that queue for a thread; more are refused. The kernel has at most one for each thread of
/// a program.
const QUEUE_MAX: usize = 4096;

/// The time after which an idle thread ends.
const IDLE: Duration = Duration::from_secs(2);

/// The stack size of a thread, in bytes: waiting for a block needs no deep calls.
const STACK_BYTES: usize = 256 << 10;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    /// The number of threads that wait for work.
    idle: usize,
    threads: usize,
    is_over: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

impl Shared {
    // Ignores poisoning: no code panics with the lock held, and if it did, the state would be consistent.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut state = self.state();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                job();
                state = self.state();
                continue;
            }
            if state.is_over {
                break;
            }
            state.idle += 1;
            let (found, waited) = self
                .work
                .wait_timeout(state, IDLE)
                .unwrap_or_else(PoisonError::into_inner);
            state = found;
            state.idle -= 1;
            if waited.timed_out() && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }
}

/// The pool of reader threads. After a drop it accepts no more jobs, but completes the queued ones.
#[derive(Default)]
pub(crate) struct Readers(Arc<Shared>);

impl Readers {
    /// Runs `job` on a thread that may wait. Returns `false` if too many jobs are queued; `job` is then dropped.
    pub(crate) fn give(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.0.state();
        if state.queue.len() >= QUEUE_MAX {
            return false;
        }
        state.queue.push_back(Box::new(job));
        if state.idle >= state.queue.len() || state.threads >= THREADS_MAX {
            drop(state);
            self.0.work.notify_one();
            return true;
        }
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new()
            .name("keel-reader".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || shared.serve());
        match thread {
            Ok(_) => state.threads += 1,
            // Other threads exist, so the job is only delayed.
            Err(_) if state.threads > 0 => {}
            Err(_) => {
                state.queue.pop_back();
                return false;
            }
        }
        true
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.0.state().is_over = true;
        self.0.work.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::mpsc::channel;

    #[test]
    fn as_many_readers_wait_at_once_as_there_are_threads() {
        let readers = Readers::default();
        let all_there = Arc::new(Barrier::new(65));
        let (tell, told) = channel();
        for number in 0..64 {
            let (all_there, tell) = (Arc::clone(&all_there), tell.clone());
            assert!(readers.give(move || {
                all_there.wait();
                tell.send(number).unwrap();
            }));
        }
        all_there.wait();
        drop(tell);
        let mut numbers: Vec<_> = told.iter().collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..64).collect::<Vec<_>>());
    }

    #[test]
    fn readers_beyond_the_threads_wait_their_turn_and_far_more_are_refused() {
        let readers = Readers::default();
        let (open, gate) = channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let (tell, told) = channel();
        let mut taken = 0;
        loop {
            let (gate, tell) = (Arc::clone(&gate), tell.clone());
            let is_taken = readers.give(move || {
                gate.lock().unwrap().recv().ok();
                tell.send(()).unwrap();
            });
            if !is_taken {
                break;
            }
            taken += 1;
            assert!(taken <= THREADS_MAX + QUEUE_MAX);
        }
        assert!(taken >= QUEUE_MAX);
        drop((open, tell, readers));
        assert_eq!(told.iter().count(), taken);
    }
}
