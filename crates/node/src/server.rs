//! The node's socket. It accepts clients up to a limit. When the limit is reached, a new client gets the place of the
//! client that has been idle longest. Beyond the limit there are places only for the operator. There the operator can
//! only read the status and control the quality of service.

use super::answer::failure;
use super::image::make_parent;
use super::qos::requests::Guest;
use super::state::{Node, add};
use super::wire::{Fault, Wire};
use super::{log, session};
use base::error::Code;
use command::error::{CliError, describe};
use libkeel::protocol::{Failure, Kind};
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

/// Pause after the system refused a connection, for example for lack of descriptors.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// Connections beyond the limit, only for requests of an operator.
const OPERATORS_MAX: usize = 4;

/// An operator's connection that is idle for longer is closed.
const OPERATOR_IDLE_MAX: Duration = Duration::from_secs(2);

/// An operator's connection gives its place to another one only after this time, so that it can send its request.
const OPERATOR_SETTLES: Duration = Duration::from_millis(100);

/// A bound socket; dropping it removes its file.
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode number of the file, to distinguish it from a file that has replaced it.
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

/// Binds the socket, readable and writable for user and group. Replaces a socket that no process listens on.
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
            // Left over from a killed node.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(failed)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // A full queue (`WouldBlock`) means that the socket has an owner, even if it is stopped.
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                let wrong = format!(
                    "whether another node serves this socket is unknown ({})",
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
    // Set the mask before binding instead of the mode afterwards: the mode holds from the first instant.
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
    /// Since when the client has been idle; `None` while it is served.
    idle_since: Cell<Option<Instant>>,
    /// Notified when its place is given to another client.
    leave: Notify,
    /// Whether it has a place beyond the limit.
    is_operator: bool,
}

/// Serves clients until the node stops, then lets current requests finish.
pub(crate) async fn run(node: Rc<Node>, socket: Socket) {
    let clients: Rc<RefCell<Vec<Rc<Client>>>> = Rc::default();
    let mut tasks = JoinSet::new();
    let mut stop = node.stop.clone();
    // Failed attempts since the last successful one.
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
                // Log once per episode: it may last for hours, with ten attempts per second.
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
        let Some(is_operator) = admit(&mut clients.borrow_mut(), &stream, &node) else {
            add(&node.counters.connections_refused);
            let failure = no_place(&node);
            tasks.spawn_local(async move {
                let mut wire = Wire::new(stream);
                wire.fail(&failure).await.ok();
            });
            continue;
        };
        let client = Rc::new(Client {
            idle_since: Cell::new(Some(Instant::now())),
            leave: Notify::new(),
            is_operator,
        });
        clients.borrow_mut().push(Rc::clone(&client));
        count(&node, &clients.borrow());
        let (node, clients) = (Rc::clone(&node), Rc::clone(&clients));
        tasks.spawn_local(async move {
            serve(&node, stream, &client).await;
            clients
                .borrow_mut()
                .retain(|other| !Rc::ptr_eq(other, &client));
            count(&node, &clients.borrow());
        });
    }
    // From here on no new client finds the socket; connected clients still get their answers.
    drop(socket);
    while tasks.join_next().await.is_some() {}
}

/// Counts the clients within the limit.
fn count(node: &Node, clients: &[Rc<Client>]) {
    let within = clients.iter().filter(|client| !client.is_operator).count();
    node.counters.connections.set(within as u32);
}

/// Makes room for one more client. Returns whether its place is beyond the limit; `None` if there is no place.
fn admit(clients: &mut Vec<Rc<Client>>, stream: &UnixStream, node: &Node) -> Option<bool> {
    let connections_max = node.config.borrow().node.connections_max as usize;
    if make_room(clients, false, connections_max, Duration::ZERO) {
        return Some(false);
    }
    let user = stream.peer_cred().ok()?.uid();
    (may_operate(user) && make_room(clients, true, OPERATORS_MAX, OPERATOR_SETTLES)).then_some(true)
}

/// Returns whether this user may also stop the node: root and the node's own user.
fn may_operate(user: libc::uid_t) -> bool {
    // SAFETY: a plain system call, which cannot fail.
    user == 0 || user == unsafe { libc::geteuid() }
}

/// Makes sure that fewer than `places` clients of one kind exist. If necessary, it removes the one that has been idle
/// longest, if it has been idle for `settled`.
fn make_room(
    clients: &mut Vec<Rc<Client>>,
    is_operator: bool,
    places: usize,
    settled: Duration,
) -> bool {
    let alike = |client: &Client| client.is_operator == is_operator;
    if clients.iter().filter(|client| alike(client)).count() < places {
        return true;
    }
    let now = Instant::now();
    let idle = clients
        .iter()
        .enumerate()
        .filter(|(_, client)| alike(client))
        .filter_map(|(index, client)| Some((client.idle_since.get()?, index)))
        .filter(|(since, _)| now.duration_since(*since) >= settled)
        .min();
    let Some((_, index)) = idle else { return false };
    clients.swap_remove(index).leave.notify_one();
    true
}

/// Returns the failure for a client that gets no place.
fn no_place(node: &Node) -> Failure {
    let connections_max = node.config.borrow().node.connections_max;
    let wrong = format!("{connections_max} clients are being served already");
    let remedy = "try again, or raise connections_max in the configuration";
    failure(Code::Busy, "node", wrong, remedy)
}

/// Returns whether a client beyond the limit may send this request.
fn is_of_operator(kind: u16) -> bool {
    matches!(Kind::of(kind), Some(Kind::Status | Kind::Qos))
}

async fn serve(node: &Node, stream: UnixStream, client: &Client) {
    let peer = stream.peer_cred().ok();
    let process = peer.as_ref().and_then(|peer| peer.pid());
    let mut guest = Guest {
        process: process.and_then(|process| u32::try_from(process).ok()),
        may_operate: peer.is_some_and(|peer| may_operate(peer.uid())),
        tasks: Vec::new(),
    };
    converse(node, stream, client, &mut guest).await;
    node.qos.leave(&guest.tasks);
}

async fn converse(node: &Node, stream: UnixStream, client: &Client, guest: &mut Guest) {
    let mut wire = Wire::new(stream);
    let mut stop = node.stop.clone();
    loop {
        // A connection with tasks may be silent because of a long period, so it keeps its place.
        let is_lasting = !guest.tasks.is_empty();
        client.idle_since.set((!is_lasting).then(Instant::now));
        let request = tokio::select! {
            request = wire.request(is_lasting) => request,
            () = client.leave.notified() => return turn_away(node, &mut wire, client).await,
            () = tokio::time::sleep(OPERATOR_IDLE_MAX), if client.is_operator => {
                return turn_away(node, &mut wire, client).await;
            }
            _ = stop.wait_for(|stop| *stop) => return,
        };
        client.idle_since.set(None);
        let request = match request {
            Ok(Some(request)) => request,
            Ok(None) | Err(Fault::Gone) => return,
            Err(Fault::Reply(failure)) => {
                wire.fail(&failure).await.ok();
                return;
            }
        };
        if client.is_operator && !is_of_operator(request.kind) {
            return turn_away(node, &mut wire, client).await;
        }
        add(&node.counters.requests);
        if session::answer(node, &mut wire, guest, request)
            .await
            .is_err()
        {
            return;
        }
    }
}

/// Ends a connection that lost its place. One beyond the limit is told the same as at connecting; others were merely
/// idle.
async fn turn_away(node: &Node, wire: &mut Wire, client: &Client) {
    if client.is_operator {
        add(&node.counters.connections_refused);
        wire.fail(&no_place(node)).await.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener as StdListener;

    #[tokio::test(flavor = "current_thread")]
    async fn only_a_socket_without_a_server_is_replaced() {
        let dir = std::env::temp_dir().join(format!("keel-server-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("keel.sock");
        // The owner accepts no connection, so its queue becomes full.
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
        // The socket must not remove a file that has replaced it.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "other").unwrap();
        drop(socket);
        assert!(path.exists());
        std::fs::remove_file(&path).unwrap();
        drop(bind(&path).await.unwrap());
        assert!(!path.exists());
        std::fs::remove_dir(&dir).unwrap();
    }

    #[tokio::test(flavor = "current_thread")]
    async fn places_of_one_kind_are_given_to_that_kind() {
        let client = |is_operator, idle_since| {
            Rc::new(Client {
                idle_since: Cell::new(idle_since),
                leave: Notify::new(),
                is_operator,
            })
        };
        let now = Instant::now();
        let ordinary = client(false, None);
        let operator = client(true, Some(now + Duration::from_secs(60)));
        let mut clients = vec![Rc::clone(&ordinary), Rc::clone(&operator)];
        assert!(make_room(&mut clients, false, 2, Duration::ZERO));
        assert!(
            !make_room(&mut clients, false, 1, Duration::ZERO),
            "it is served, and the operator is none of these"
        );
        assert!(
            !make_room(&mut clients, true, 1, OPERATOR_SETTLES),
            "it has only just come"
        );
        operator.idle_since.set(now.checked_sub(OPERATOR_SETTLES));
        assert!(make_room(&mut clients, true, 1, OPERATOR_SETTLES));
        assert_eq!(clients.len(), 1);
        assert!(Rc::ptr_eq(&clients[0], &ordinary));
        operator.leave.notified().await;
    }

    #[test]
    fn an_operator_is_root_or_the_user_of_the_node() {
        // SAFETY: a plain system call, which cannot fail.
        let own = unsafe { libc::geteuid() };
        assert!(may_operate(0) && may_operate(own));
        assert!(!may_operate(own + 1) && !may_operate(u32::MAX));
        let all = (0..=u16::MAX).filter(|kind| is_of_operator(*kind));
        let expected = [Kind::Status as u16, Kind::Qos as u16];
        assert_eq!(all.collect::<Vec<_>>(), expected);
    }
}
