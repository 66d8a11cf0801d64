//! Detects the end of processes: one thread waits for many of them at once.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::processes::{Process, look_at};

/// The maximum number of watched processes: each takes a descriptor.
const WATCHED_MAX: usize = 512;

struct Watched {
    process: Process,
    /// Readable once the process has ended.
    descriptor: OwnedFd,
}

#[derive(Default)]
struct State {
    watched: Vec<Watched>,
    is_over: bool,
}

struct Shared {
    state: Mutex<State>,
    /// An eventfd that is written to when `state` has changed.
    changed: OwnedFd,
}

impl Shared {
    // Ignores poisoning: no code panics with the lock held, and if it did, the state would be consistent.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes that live until the call returns. The call fails only where the count would exceed 2^64.
        unsafe { libc::write(self.changed.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    fn run(&self, on_end: &dyn Fn(Process)) {
        loop {
            let mut waited_for = {
                let state = self.state();
                if state.is_over {
                    return;
                }
                let all = state.watched.iter().map(|it| it.descriptor.as_raw_fd());
                std::iter::once(self.changed.as_raw_fd())
                    .chain(all)
                    .map(poll_for)
                    .collect::<Vec<_>>()
            };
            // SAFETY: the array has the given number of structures and lives until the call returns. Only this thread
            // closes the descriptors among them.
            let found = unsafe {
                libc::poll(
                    waited_for.as_mut_ptr(),
                    waited_for.len() as libc::nfds_t,
                    -1,
                )
            };
            if found < 0 {
                continue;
            }
            if waited_for[0].revents != 0 {
                let mut count = [0_u8; 8];
                // SAFETY: eight bytes that live until the call returns.
                unsafe { libc::read(waited_for[0].fd, count.as_mut_ptr().cast(), count.len()) };
            }
            let has_ended = |descriptor: RawFd| {
                let of = |it: &&libc::pollfd| it.fd == descriptor && it.revents != 0;
                waited_for[1..].iter().any(|it| of(&it))
            };
            let mut ended = Vec::new();
            self.state().watched.retain(|it| {
                let is_over = has_ended(it.descriptor.as_raw_fd());
                if is_over {
                    ended.push(it.process);
                }
                !is_over
            });
            ended.into_iter().for_each(on_end);
        }
    }
}

fn poll_for(descriptor: RawFd) -> libc::pollfd {
    libc::pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// The watcher. When it is dropped, its thread ends by itself.
pub(crate) struct Watcher(Arc<Shared>);

impl Watcher {
    /// Starts the watcher. Its thread calls `on_end` once for each process.
    pub(crate) fn start(on_end: impl Fn(Process) + Send + 'static) -> io::Result<Self> {
        // SAFETY: the call takes no pointers.
        let changed = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if changed < 0 {
            return Err(io::Error::last_os_error());
        }
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            // SAFETY: a new descriptor that nothing else owns.
            changed: unsafe { OwnedFd::from_raw_fd(changed) },
        });
        let watching = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("keel-watcher".to_owned())
            .spawn(move || watching.run(&on_end))?;
        Ok(Self(shared))
    }

    /// Watches a process. Returns `false` if it has ended, too many are watched already, or the kernel does not support
    /// pidfds.
    pub(crate) fn add(&self, process: Process) -> bool {
        // SAFETY: the arguments are two numbers.
        let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, process.number, 0) };
        if opened < 0 {
            return false;
        }
        // SAFETY: a new descriptor that nothing else owns.
        let descriptor = unsafe { OwnedFd::from_raw_fd(opened as RawFd) };
        // The kernel may have reused the number before the open, but not since.
        if look_at(process.number).map(|found| found.process) != Some(process) {
            return false;
        }
        let mut state = self.0.state();
        if state.watched.len() >= WATCHED_MAX {
            return false;
        }
        state.watched.push(Watched {
            process,
            descriptor,
        });
        drop(state);
        self.0.wake();
        true
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.0.state().is_over = true;
        self.0.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::sync::mpsc::channel;

    #[test]
    fn the_end_of_each_process_is_told_once() {
        let (tell, told) = channel();
        let watcher = Watcher::start(move |process| tell.send(process).unwrap()).unwrap();
        let mut children: Vec<_> = (0..2)
            .map(|_| {
                let mut command = Command::new("cat");
                command.stdin(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        let of = |number| look_at(number).unwrap().process;
        let [first, second] = [0, 1].map(|number: usize| of(children[number].id()));
        assert!(watcher.add(first) && watcher.add(second));
        children[1].kill().unwrap();
        assert_eq!(
            told.recv().unwrap(),
            second,
            "also before its parent has waited for it"
        );
        children[0].kill().unwrap();
        assert_eq!(told.recv().unwrap(), first);
        for child in &mut children {
            child.wait().unwrap();
        }
        assert!(!watcher.add(first), "a process that has ended");
        drop(watcher);
        assert!(
            told.recv().is_err(),
            "its thread has ended, and told no more"
        );
    }
}
