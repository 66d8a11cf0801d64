//! The node's socket: accepts clients up to a limit, and gives the place of the one that has been silent longest to a
//! newcomer when there is no other.

use super::image::make_parent;
use super::qos::requests::Guest;
use super::session::{self, failure};
use super::wire::{Fault, Wire};
use super::{Node, log};
use crate::error::{CliError, describe};
use base::error::Code;
use libkeel::protocol::Failure;
use std::cell::{Cell, RefCell};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Pause after the system has refused a connection, for lack of descriptors for example.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// A bound socket, whose file goes away with it.
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and number of the file, by which it is told from one that has taken its place.
    identity: Option<(u64, u64)>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.identity.is_some() && self.identity == identity(&self.path) {
            std::fs::remove_file(&self.path).ok();
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// Binds the socket, readable and writable for user and group. One that nobody listens on is replaced.
pub(crate) async fn bind(path: &Path) -> Result<Socket, CliError> {
    let failed = |error: io::Error| CliError::io(path.display(), &error);
    make_parent(path)?;
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            let remedy = "remove it, or name another socket in the configuration";
            return Err(CliError::failure(
                path.display(),
                "exists and is no socket",
                remedy,
            ));
        }
        Ok(_) => match UnixStream::connect(path).await {
            // Left behind by a node that was killed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(failed)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // No room in the queue of one that has stopped is somebody, too.
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                let wrong = format!(
                    "whether another node serves this socket cannot be told ({})",
                    describe(&error)
                );
                let remedy =
                    "run as its user, remove it, or name another socket in the configuration";
                return Err(CliError::failure(path.display(), wrong, remedy));
            }
            _ => {
                return Err(CliError::failure(
                    path.display(),
                    "another node serves this socket",
                    "end it, or name another socket in the configuration",
                ));
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    // Not wider for a moment and then changed: the mode holds from the first instant.
    // SAFETY: a plain system call that cannot fail; no other thread makes files now.
    let before = unsafe { libc::umask(0o117) };
    let bound = UnixListener::bind(path);
    // SAFETY: as above.
    unsafe { libc::umask(before) };
    Ok(Socket {
        listener: bound.map_err(failed)?,
        path: path.to_path_buf(),
        identity: identity(path),
    })
}

/// One client.
struct Client {
    /// Since when it has been silent; `None` while it is served.
    idle_since: Cell<Option<Instant>>,
    /// Its place is given away.
    leave: Notify,
}

/// Serves clients until the node stops, then lets those that are being served finish.
pub(crate) async fn run(node: Rc<Node>, socket: Socket) {
    let clients: Rc<RefCell<Vec<Rc<Client>>>> = Rc::default();
    let mut tasks = JoinSet::new();
    let mut stop = node.stop.clone();
    // Attempts that failed since the last one that did not.
    let mut failures: u64 = 0;
    loop {
        let accepted = tokio::select! {
            accepted = socket.listener.accept() => accepted,
            Some(_) = tasks.join_next() => continue,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Once per episode: it may last for hours, and is tried again ten times a second.
                if failures == 0 {
                    log::event("refused", format!("no client can connect ({error})"));
                }
                failures += 1;
                add(&node.counters.listener_failed);
                let text = format!("{}: {}", socket.path.display(), describe(&error));
                *node.counters.listener_error.borrow_mut() = Some(text);
                tokio::select! {
                    () = tokio::time::sleep(REFUSED_PAUSE) => continue,
                    _ = stop.wait_for(|stop| *stop) => break,
                }
            }
        };
        if failures > 0 {
            let text = format!("clients can connect again, after {failures} failed attempts");
            log::event("refused", text);
            failures = 0;
        }
        let client = Rc::new(Client {
            idle_since: Cell::new(Some(Instant::now())),
            leave: Notify::new(),
        });
        let connections_max = node.config.borrow().node.connections_max as usize;
        if let Err(failure) = make_room(&clients, connections_max) {
            add(&node.counters.connections_refused);
            tasks.spawn_local(async move {
                let mut wire = Wire::new(stream);
                wire.fail(&failure).await.ok();
            });
            continue;
        }
        clients.borrow_mut().push(Rc::clone(&client));
        node.counters.connections.set(clients.borrow().len() as u32);
        let (node, clients) = (Rc::clone(&node), Rc::clone(&clients));
        tasks.spawn_local(async move {
            serve(&node, stream, &client).await;
            clients
                .borrow_mut()
                .retain(|other| !Rc::ptr_eq(other, &client));
            node.counters.connections.set(clients.borrow().len() as u32);
        });
    }
    // No client finds the socket any more; those inside get their answers.
    drop(socket);
    while tasks.join_next().await.is_some() {}
}

pub(super) fn add(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

/// Makes sure that one more fits.
fn make_room(clients: &RefCell<Vec<Rc<Client>>>, connections_max: usize) -> Result<(), Failure> {
    let mut clients = clients.borrow_mut();
    if clients.len() < connections_max {
        return Ok(());
    }
    let idle = clients
        .iter()
        .enumerate()
        .filter_map(|(index, client)| Some((client.idle_since.get()?, index)))
        .min();
    let Some((_, index)) = idle else {
        let wrong = format!("{connections_max} clients are being served already");
        let remedy = "try again, or raise connections_max in the configuration";
        return Err(failure(Code::Busy, "node", wrong, remedy));
    };
    clients.swap_remove(index).leave.notify_one();
    Ok(())
}

async fn serve(node: &Node, stream: UnixStream, client: &Client) {
    let process = stream
        .peer_cred()
        .ok()
        .and_then(|peer| peer.pid())
        .and_then(|process| u32::try_from(process).ok());
    let mut guest = Guest {
        process,
        tasks: Vec::new(),
    };
    converse(node, stream, client, &mut guest).await;
    node.qos.leave(&guest.tasks);
}

async fn converse(node: &Node, stream: UnixStream, client: &Client, guest: &mut Guest) {
    let mut wire = Wire::new(stream);
    let mut stop = node.stop.clone();
    loop {
        // A task that is silent for long has a long period; its place is nobody else's.
        let is_lasting = !guest.tasks.is_empty();
        client.idle_since.set((!is_lasting).then(Instant::now));
        let request = tokio::select! {
            request = wire.request(is_lasting) => request,
            () = client.leave.notified() => return,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        client.idle_since.set(None);
        let request = match request {
            Ok(Some(request)) => request,
            Ok(None) | Err(Fault::Gone) => return,
            Err(Fault::Told(failure)) => {
                wire.fail(&failure).await.ok();
                return;
            }
        };
        add(&node.counters.requests);
        if session::answer(node, &mut wire, guest, request)
            .await
            .is_err()
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener as StdListener;

    #[tokio::test(flavor = "current_thread")]
    async fn only_a_socket_that_nobody_serves_is_replaced() {
        let dir = std::env::temp_dir().join(format!("keel-server-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("keel.sock");
        // Its owner takes nobody, so that its queue is full in the end.
        let owner = StdListener::bind(&path).unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) = UnixStream::connect(&path).await {
            waiting.push(stream);
        }
        let error = bind(&path).await.err().unwrap().to_string();
        assert!(error.contains("another node serves this socket"), "{error}");
        drop(waiting);
        drop(owner);
        let socket = bind(&path).await.unwrap();
        // A file that has taken its place is not this socket's to remove.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "other").unwrap();
        drop(socket);
        assert!(path.exists());
        std::fs::remove_file(&path).unwrap();
        drop(bind(&path).await.unwrap());
        assert!(!path.exists());
        std::fs::remove_dir(&dir).unwrap();
    }
}
