//! A front with TLS before a plain server, as a proxy would be. Tests of other rooms load this file.

#![allow(dead_code)]

use base::clock::SystemClock;
use std::net::SocketAddr;
use std::sync::Arc;
use tls::{Server, ServerOptions};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// Passes on what comes, until it is dropped.
pub struct Front {
    pub address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

fn quiet(_: &str) {}

impl Front {
    /// Starts a front with its own thread.
    pub fn start(options: ServerOptions, server: SocketAddr) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let front = Server::open(options, Arc::new(SystemClock::new()), quiet).unwrap();
        let front = Arc::new(front);
        let (stop, stopped) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    () = accept(listener, front, server) => {}
                    _ = stopped => {}
                }
            });
        });
        Self {
            address,
            _stop: stop,
        }
    }
}

async fn accept(listener: TcpListener, front: Arc<Server>, server: SocketAddr) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let front = Arc::clone(&front);
        tokio::spawn(async move {
            // The client has the reason of a failure.
            if let Ok(mut secure) = front.accept(async { Ok(stream) }).await
                && let Ok(mut plain) = TcpStream::connect(server).await
            {
                let _ = copy_bidirectional(&mut secure, &mut plain).await;
            }
        });
    }
}
