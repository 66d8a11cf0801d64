//! Requests of clients, each passed to the function that answers it.

use super::answer::{failure, framed, read};
use super::qos::requests::{self, Guest};
use super::state::Node;
use super::wire::{Fault, Request, Wire};
use super::{backup, figures, get, history, owners, puts, watch};
use base::error::Code;
use libkeel::protocol::{self, Get, History, Keys, KeysRelease, Kind, Watch};

/// Answers one request.
pub(crate) async fn answer(
    node: &Node,
    wire: &mut Wire,
    guest: &mut Guest,
    request: Request,
) -> Result<(), Fault> {
    let kind = Kind::of(request.kind);
    let answer = if request.version != protocol::VERSION && kind.is_some() {
        let wrong = format!(
            "has version {}, this node speaks {}",
            request.version,
            protocol::VERSION
        );
        Err(failure(
            Code::Unsupported,
            "request",
            wrong,
            "use keel of the node's version",
        ))
    } else {
        match kind {
            Some(Kind::Get) => read(&request).and_then(|asked: Get| get::latest(node, &asked.key)),
            Some(Kind::Put) => return puts::answer(node, wire, request).await,
            Some(Kind::Together) => match read(&request) {
                Ok(asked) => puts::together(node, guest, &asked).await,
                Err(failure) => Err(failure),
            },
            Some(Kind::Status) => read(&request)
                .and_then(|_: protocol::Status| framed(Kind::State, &figures::report(node))),
            Some(Kind::Task) => {
                read(&request).and_then(|task| requests::declare(node, guest, &task))
            }
            Some(Kind::TaskPeriod) => {
                read(&request).and_then(|period| requests::note(node, guest, &period))
            }
            Some(Kind::Qos) => {
                read(&request).and_then(|asked| requests::regulate(node, guest, asked))
            }
            Some(Kind::Keys) => read(&request).and_then(|asked: Keys| get::keys(node, &asked)),
            Some(Kind::KeysRelease) => match read(&request) {
                Ok(asked) => owners::release(node, &asked as &KeysRelease).await,
                Err(failure) => Err(failure),
            },
            Some(Kind::Watch) => match read(&request) {
                Ok(asked) => return watch::run(node, wire, &asked as &Watch).await,
                Err(failure) => Err(failure),
            },
            Some(Kind::History) => match read(&request) {
                Ok(asked) => return history::run(node, wire, &asked as &History).await,
                Err(failure) => Err(failure),
            },
            Some(Kind::Backup) => match read(&request) {
                // The backup contains the key by which the store recognizes its own bytes, so only operators may have
                // it.
                Ok(protocol::Backup {}) if guest.may_operate => {
                    return backup::run(node, wire).await;
                }
                Ok(_) => Err(failure(
                    Code::Denied,
                    "backup",
                    "only root and the node's own user may make one",
                    "run as one of them",
                )),
                Err(failure) => Err(failure),
            },
            _ => {
                let wrong = format!("kind {} is unknown to this node", request.kind);
                Err(failure(
                    Code::Unsupported,
                    "request",
                    wrong,
                    "use keel of the node's version",
                ))
            }
        }
    };
    match answer {
        Ok(frame) => wire.send(&frame).await,
        Err(failure) => wire.fail(&failure).await,
    }
}
