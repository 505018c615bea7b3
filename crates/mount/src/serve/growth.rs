//! Starts more serving threads when all of a group are busy for long (`server::serving_threads`).

use crate::server::Server;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Starts threads by `start`, which gets the number of a group, until the mount is over; then waits for
/// them.
pub(super) fn run(
    server: &Arc<Server>,
    start: impl Fn(&Arc<Server>, usize) -> io::Result<JoinHandle<()>>,
) {
    let mut started = Vec::new();
    let mut is_reported = false;
    while let Some(stuck) = server.serving.await_stuck() {
        for group in stuck {
            if !server.serving.add(group) {
                continue;
            }
            match start(server, group) {
                Ok(thread) => started.push(thread),
                Err(error) => {
                    server.serving.remove(group);
                    if !std::mem::replace(&mut is_reported, true) {
                        tracing::warn!(%error, "cannot start a thread while all wait for long");
                    }
                }
            }
        }
    }
    for thread in started {
        let _ = thread.join();
    }
}
