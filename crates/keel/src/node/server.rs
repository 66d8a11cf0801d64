//! The node's socket: accepts clients up to a limit, and gives the place of the one that has been silent longest to a
//! newcomer when there is no other.

use super::image::make_parent;
use super::protocol::Failure;
use super::session::{self, failure};
use super::wire::{Fault, Wire};
use super::{Node, log};
use crate::error::CliError;
use base::error::Code;
use std::cell::{Cell, RefCell};
use std::io;
use std::os::unix::fs::FileTypeExt;
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
}

impl Drop for Socket {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).ok();
    }
}

/// Binds the socket, readable and writable for user and group. One that nobody listens on is replaced.
pub(crate) fn bind(path: &Path) -> Result<Socket, CliError> {
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
        Ok(_) => {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(CliError::failure(
                    path.display(),
                    "another node serves this socket",
                    "end it, or name another socket in the configuration",
                ));
            }
            std::fs::remove_file(path).map_err(failed)?;
        }
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
    loop {
        let accepted = tokio::select! {
            accepted = socket.listener.accept() => accepted,
            Some(_) = tasks.join_next() => continue,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                log::event("refused", format!("a connection ({error})"));
                tokio::time::sleep(REFUSED_PAUSE).await;
                continue;
            }
        };
        let client = Rc::new(Client {
            idle_since: Cell::new(Some(Instant::now())),
            leave: Notify::new(),
        });
        let connections_max = node.config.borrow().node.connections_max as usize;
        if let Err(failure) = make_room(&clients, connections_max) {
            node.counters
                .connections_refused
                .set(node.counters.connections_refused.get() + 1);
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
    let mut wire = Wire::new(stream);
    let mut stop = node.stop.clone();
    loop {
        client.idle_since.set(Some(Instant::now()));
        let request = tokio::select! {
            request = wire.request() => request,
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
        node.counters.requests.set(node.counters.requests.get() + 1);
        if session::answer(node, &mut wire, &request).await.is_err() {
            return;
        }
    }
}
