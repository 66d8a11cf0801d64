//! The server is killed and restarted at each block of a short action, and at random blocks of a long one.

use crate::common::TempDir;
use crate::stream_common::proxy::{Fault, Proxy};
use crate::stream_common::{Mount, Server, cannot_mount, is_whole, learn, longer, runs_well};

/// Bytes from the server between two kills: about one compressed block with its overhead.
const STEP_BYTES: u64 = 2_500;

/// Starts the program in its own mount. After `after_bytes` bytes from the server, the connection breaks and the server
/// is killed. Returns whether the server sent more bytes than that.
fn starts_while_the_server_dies(
    dir: &TempDir,
    server: &mut Server,
    proxy: &Proxy,
    after_bytes: u64,
    arguments: &[&str],
) -> bool {
    let mount = Mount::start(dir, &format!("at{after_bytes}"), proxy.address, &[]);
    proxy.set(Fault::CloseAfter(after_bytes));
    let died = std::thread::scope(|scope| {
        let runs = scope.spawn(|| runs_well(dir, &mount, arguments));
        while proxy.passed() <= after_bytes && !runs.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let died = proxy.passed() > after_bytes;
        if died {
            server.restart();
        }
        proxy.set(Fault::None);
        runs.join().unwrap();
        died
    });
    is_whole(dir, &mount);
    died
}

#[test]
fn a_server_killed_at_any_block_of_a_short_action_costs_no_program_its_bytes() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let mut server = Server::of_tree(&dir, &[]);
    let proxy = Proxy::start(server.address);
    let arguments = &["20-30"];
    // Unlearned: each requested block comes with its neighbours.
    let mut kills = 0;
    for step in 0..40 {
        if !starts_while_the_server_dies(&dir, &mut server, &proxy, step * STEP_BYTES, arguments) {
            break;
        }
        kills += 1;
    }
    assert!(kills >= 10, "{kills}");
    // Learned: the prefetch plan is cut in its middle.
    learn(&dir, &server, arguments);
    let mut kills = 0;
    for step in 0..40 {
        if !starts_while_the_server_dies(&dir, &mut server, &proxy, step * STEP_BYTES, arguments) {
            break;
        }
        kills += 1;
    }
    assert!(kills >= 8, "{kills}");
}

#[test]
fn a_server_killed_at_random_blocks_of_a_long_action_costs_no_bytes() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let mut server = Server::of_tree(&dir, &[]);
    let proxy = Proxy::start(server.address);
    let arguments = &["0-250", "300-599"];
    learn(&dir, &server, arguments);
    let mut kills = 0;
    let (mut state, rounds) = (
        longer("KEEL_STREAM_SEED", 12_345),
        longer("KEEL_STREAM_KILLS", 8),
    );
    println!("KEEL_STREAM_SEED={state} KEEL_STREAM_KILLS={rounds}");
    for _ in 0..rounds {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let after = (state >> 33) % 1_000_000;
        kills += u32::from(starts_while_the_server_dies(
            &dir,
            &mut server,
            &proxy,
            after,
            arguments,
        ));
    }
    assert!(u64::from(kills) >= rounds / 2, "{kills}");
}
