//! The thread that waits for locks, for writeback, for page drops and for a mount that is behind, on
//! behalf of requests. One thread handles all of them, because their number is unbounded and each blocks
//! a program. It submits them in order of arrival, sleeps until an answer arrives or a request is
//! interrupted, and replies.

use fuse::Header;
use fuse::abi::capability;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use wire::errno::Result;

use crate::server::Server;
use crate::server::waits::{
    CatchUpWait, LockFileRef, PendingWait, StartedWait, WaitKind, has_signal,
};

/// Interval at which the thread checks that the daemon is alive.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Hands a wait to the thread, which calls `say` with its result.
pub(crate) fn wait_for(
    server: &Arc<Server>,
    header: Header,
    started: Box<StartedWait>,
    say: impl FnOnce(Result<()>) + Send + 'static,
) {
    let is_stopped = server.locks.begin(header.unique);
    // A signal that comes before a ring has the request is never told (Linux 6.14 to 6.18 at least): the
    // caller has it pending, and would wait for as long as the lock is held.
    let has_rings = server.agreed.capabilities & capability::OVER_IO_URING != 0;
    if has_rings && started.is_interruptible() && has_signal(header.pid) {
        is_stopped.store(true, Relaxed);
    }
    let pending = PendingWait {
        unique: header.unique,
        pid: header.pid,
        is_stopped,
        started,
        say: Box::new(say),
    };
    let wait_thread = server.locks.wait_thread.get_or_init(|| {
        let (to, new) = channel();
        let server = Arc::clone(server);
        let thread = std::thread::Builder::new().name("waits".to_owned());
        thread.spawn(move || run_waits(&server, &new)).ok().map(|_| to)
    });
    let refused = match wait_thread {
        Some(to) => to.send(pending).err().map(|unsent| unsent.0),
        None => Some(pending),
    };
    match refused {
        Some(pending) => {
            let outcome = pending.started.unwaited();
            end_wait(server, pending, outcome);
        }
        None => server.client.wake_for_waits(),
    }
}

fn end_wait(server: &Server, pending: PendingWait, outcome: Result<()>) {
    let PendingWait { unique, started, say, .. } = pending;
    server.locks.end(unique);
    release_wait(server, *started);
    say(outcome);
}

/// Ends a wait and drops its reference to a lock file.
pub(crate) fn release_wait(server: &Server, started: StartedWait) {
    if let WaitKind::Lock(wait, LockFileRef(lock_file)) = started.0 {
        drop(wait);
        lock_file.into_iter().for_each(|file| server.handles.put(file));
    }
}

/// The result of a wait that has ended. One for a lock is prolonged while the mount is behind: its holder
/// relies on the state that the lock protects.
fn poll(server: &Server, pending: &mut PendingWait) -> Option<Result<()>> {
    let outcome = pending.started.poll()?;
    let is_lock = matches!(pending.started.0, WaitKind::Lock(..));
    if !is_lock || outcome.is_err() || !server.client.is_behind() {
        return Some(outcome);
    }
    let prolonged = StartedWait(WaitKind::CatchUp(CatchUpWait::new(server.client)));
    release_wait(server, std::mem::replace(&mut pending.started, prolonged));
    None
}

fn run_waits(server: &Server, new: &Receiver<PendingWait>) {
    let mut all = Vec::new();
    let mut requested = Instant::now();
    loop {
        if all.is_empty() {
            let Ok(first) = new.recv() else { return };
            all.push(first);
        }
        let asks = requested.elapsed() >= CHECK_INTERVAL;
        if asks {
            requested = Instant::now();
        }
        let answered = server.client.answered_waits(asks);
        all.extend(new.try_iter());
        let mut ended = Vec::new();
        all = all
            .into_iter()
            .filter_map(|mut one: PendingWait| {
                if one.is_stopped.load(Relaxed) {
                    one.started.interrupt(one.pid);
                }
                match poll(server, &mut one) {
                    None => Some(one),
                    Some(outcome) => {
                        ended.push((one, outcome));
                        None
                    }
                }
            })
            .collect();
        ended.into_iter().for_each(|(one, outcome)| end_wait(server, one, outcome));
        if !all.is_empty() {
            server.client.sleep_for_waits(answered);
        }
    }
}
