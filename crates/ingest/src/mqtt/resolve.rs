//! Resolves the broker's name to its addresses.
//!
//! A system look-up blocks its thread for as long as name servers are silent, half a minute or more, and cannot be
//! cancelled. On the runtime's few blocking threads, look-ups of an unreachable broker would block all other users. So
//! each look-up has a thread of its own, and there is never more than one.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Enough for the system's resolver and its plug-ins.
const STACK_BYTES: usize = 256 << 10;

type Found = io::Result<Vec<SocketAddr>>;
type LookUp = dyn Fn(&str) -> Found + Send + Sync;

/// Resolves the addresses of brokers, one at a time.
pub(crate) struct Resolver {
    look_up: Arc<LookUp>,
    pending: Option<Pending>,
}

struct Pending {
    address: String,
    answer: oneshot::Receiver<Found>,
}

impl Default for Resolver {
    fn default() -> Self {
        Self::new(|address| Ok(address.to_socket_addrs()?.collect()))
    }
}

impl Resolver {
    pub(super) fn new(look_up: impl Fn(&str) -> Found + Send + Sync + 'static) -> Self {
        Self {
            look_up: Arc::new(look_up),
            pending: None,
        }
    }

    /// Returns the addresses of `host:port`. Dropping the future cancels nothing: the next call waits for the current
    /// look-up, and uses its answer if it is for the same address.
    ///
    /// # Errors
    /// The system's error; or no thread could be created.
    pub(crate) async fn resolve(&mut self, address: &str) -> Found {
        if let Ok(literal) = address.parse() {
            return Ok(vec![literal]);
        }
        loop {
            let pending = match &mut self.pending {
                Some(pending) => pending,
                None => self.pending.insert(begin(&self.look_up, address)?),
            };
            let answer = (&mut pending.answer).await;
            let same = pending.address == address;
            self.pending = None;
            if same {
                // A sender that is dropped without an answer has panicked, which the system's look-up does not do.
                return answer.unwrap_or_else(|_| Err(io::Error::other("the look-up has failed")));
            }
        }
    }
}

fn begin(look_up: &Arc<LookUp>, address: &str) -> io::Result<Pending> {
    let (sender, answer) = oneshot::channel();
    let (look_up, name) = (Arc::clone(look_up), address.to_owned());
    std::thread::Builder::new()
        .name("resolver".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            // If the session has been stopped meanwhile, the receiver is gone.
            let _ = sender.send(look_up(&name));
        })?;
    Ok(Pending {
        address: address.to_owned(),
        answer,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Mutex;
    use std::sync::mpsc;
    use std::task::{Context, Waker};

    fn localhost(port: u16) -> Vec<SocketAddr> {
        vec![SocketAddr::from(([127, 0, 0, 1], port))]
    }

    /// Polls once.
    fn is_pending(future: impl Future<Output = Found>) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        pin!(future).poll(&mut context).is_pending()
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.build().unwrap().block_on(future)
    }

    #[test]
    fn one_look_up_is_under_way_however_often_it_is_given_up() {
        let (answers, wanted) = mpsc::channel::<Vec<SocketAddr>>();
        let wanted = Mutex::new(wanted);
        let (asked, questions) = mpsc::channel();
        let mut resolver = Resolver::new(move |address| {
            asked.send(address.to_owned()).unwrap();
            Ok(wanted.lock().unwrap().recv().unwrap())
        });
        for _ in 0..5 {
            assert!(is_pending(resolver.resolve("slow:1")));
        }
        assert_eq!(questions.recv(), Ok("slow:1".to_owned()));
        // Another broker must wait for its turn, unless it needs no look-up.
        assert!(is_pending(resolver.resolve("other:1")));
        let literal = block_on(resolver.resolve("127.0.0.1:5"));
        assert_eq!(literal.unwrap(), localhost(5));
        let literal = block_on(resolver.resolve("[::1]:5"));
        assert_eq!(literal.unwrap(), ["[::1]:5".parse().unwrap()]);
        assert!(questions.try_recv().is_err());
        answers.send(localhost(1)).unwrap();
        assert_eq!(
            block_on(resolver.resolve("slow:1")).unwrap(),
            localhost(1),
            "the answer to the question that was given up"
        );
        assert!(is_pending(resolver.resolve("slow:1")));
        assert_eq!(questions.recv(), Ok("slow:1".to_owned()));
        answers.send(localhost(2)).unwrap();
        answers.send(localhost(3)).unwrap();
        assert_eq!(
            block_on(resolver.resolve("other:1")).unwrap(),
            localhost(3),
            "not the answer to another question"
        );
        assert_eq!(questions.recv(), Ok("other:1".to_owned()));
    }

    #[test]
    fn a_look_up_that_fails_or_panics_is_an_error_and_the_next_one_works() {
        let tries = Mutex::new(0);
        let mut resolver = Resolver::new(move |_| {
            let mut tries = tries.lock().unwrap_or_else(|poison| poison.into_inner());
            *tries += 1;
            match *tries {
                1 => Err(io::Error::other("no such name")),
                2 => panic!("expected in this test"),
                _ => Ok(localhost(7)),
            }
        });
        for _ in 0..2 {
            assert!(block_on(resolver.resolve("name:7")).is_err());
        }
        assert_eq!(block_on(resolver.resolve("name:7")).unwrap(), localhost(7));
    }
}
