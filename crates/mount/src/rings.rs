//! Requests by rings (FUSE over io_uring): starting the threads that serve them, so many for each
//! processor. What one such thread does is in `queue`, its memory in `entry`; how a request is
//! answered is not here: `Server::answer` does not know how it came.
//!
//! The kernel has a queue for each processor, and puts the request of a program into that of the
//! processor which the program runs on. Threads that are pinned there answer it: nothing wakes
//! another processor up, which takes 30 to 70 us on virtual machines. Who answers may have to wait
//! for another host; so a queue has several threads, and each has lent the kernel a single
//! *entry*, for one request: a request is never given to a thread that is busy while another is
//! not.
//!
//! 1. The kernel is told of rings only after every thread has one. When it was told, it sends no request
//!    before each of its queues has an entry.
//! 2. What is forgotten or interrupted still comes by `/dev/fuse`.

mod entry;

mod queue;

use rustix::thread::CpuSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use crate::serve::Server;
use queue::Queues;

/// Threads of a queue, at least.
const THREADS_MIN: usize = 2;
/// Where the system says which processors there are, and which may come.
const PROCESSORS: &str = "/sys/devices/system/cpu";

/// What a thread comes to when it is started, and when it has lent its entries.
type Said = Result<(), String>;

/// Threads with their rings, of which the kernel knows nothing yet. They end if this goes.
pub(crate) struct Prepared {
    threads: Vec<Waiting>,
    said: Receiver<Said>,
}

/// A thread that waits for what it is to serve.
struct Waiting {
    go: Sender<Arc<Server>>,
    thread: JoinHandle<()>,
}

/// Threads that serve.
pub(crate) struct Rings {
    threads: Vec<JoinHandle<()>>,
}

impl Prepared {
    /// Starts threads, of all queues together at least so many.
    ///
    /// # Errors
    /// Why there can be no rings.
    pub(crate) fn new(threads: usize) -> Result<Prepared, String> {
        let (possible, online) = (processors("possible")?, processors("online")?);
        let count = u16::try_from(possible.len()).map_err(|_| "too many processors".to_owned())?;
        let (busy, idle): (Vec<u16>, Vec<u16>) =
            (0..count).partition(|queue| online.contains(&usize::from(*queue)));
        let each = threads.div_ceil(busy.len().max(1)).max(THREADS_MIN);
        let (says, said) = mpsc::channel();
        let mut prepared = Prepared { threads: Vec::new(), said };
        for &queue in &busy {
            for _ in 0..each {
                prepared.start(vec![queue], Some(queue.into()), &says)?;
            }
        }
        if !idle.is_empty() {
            // Of processors that are switched on later.
            prepared.start(idle, None, &says)?;
        }
        prepared.all_said()?;
        Ok(prepared)
    }

    fn start(
        &mut self,
        queues: Vec<u16>,
        processor: Option<usize>,
        says: &Sender<Said>,
    ) -> Result<(), String> {
        let (go, gone) = mpsc::channel();
        let says = says.clone();
        let name = format!("ring {}", queues.first().copied().unwrap_or(0));
        let thread = std::thread::Builder::new().name(name);
        let thread = thread.spawn(move || serve(queues, processor, &says, &gone));
        let thread = thread.map_err(|error| error.to_string())?;
        self.threads.push(Waiting { go, thread });
        Ok(())
    }

    /// Each thread says one word.
    fn all_said(&self) -> Result<(), String> {
        for _ in &self.threads {
            self.said.recv().map_err(|error| error.to_string())??;
        }
        Ok(())
    }

    /// Begins to serve: the kernel was told.
    ///
    /// # Errors
    /// Why the kernel does not take the entries. The mount is of no use then: it waits for them.
    pub(crate) fn begin(self, server: &Arc<Server>) -> Result<Rings, String> {
        for waiting in &self.threads {
            waiting.go.send(Arc::clone(server)).map_err(|error| error.to_string())?;
        }
        self.all_said()?;
        Ok(Rings { threads: self.threads.into_iter().map(|waiting| waiting.thread).collect() })
    }
}

impl Rings {
    /// Waits until the mount is gone.
    pub(crate) fn join(self) {
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// What a thread does.
fn serve(
    queues: Vec<u16>,
    processor: Option<usize>,
    says: &Sender<Said>,
    go: &Receiver<Arc<Server>>,
) {
    let made = pin(processor).and_then(|()| Queues::new(queues));
    let _ = says.send(made.as_ref().map(|_| ()).map_err(ToString::to_string));
    let (Ok(made), Ok(server)) = (made, go.recv()) else { return };
    let (serving, telling) = (server.turns.begin(), server.watches.telling());
    let lent = made.lend(Arc::clone(&server));
    let _ = says.send(lent.as_ref().map(|_| ()).map_err(ToString::to_string));
    let Ok(mut lent) = lent else { return };
    if let Err(error) = lent.serve(&serving, &telling) {
        // The kernel would wait for it for ever; so all calls end now, and the mount with them.
        tracing::error!(%error, "a ring failed");
        std::process::exit(1);
    }
}

/// Only on that processor: what is sent for (`queue`) goes to the queue of the processor that asks.
fn pin(processor: Option<usize>) -> io::Result<()> {
    let Some(processor) = processor else { return Ok(()) };
    if processor >= CpuSet::MAX_CPU {
        return Err(io::Error::other(format!("a thread can not stay on processor {processor}")));
    }
    let mut only = CpuSet::new();
    only.set(processor);
    rustix::thread::sched_setaffinity(None, &only)?;
    Ok(())
}

/// Numbers of processors, from a list such as `0-3,8`.
fn processors(which: &str) -> Result<Vec<usize>, String> {
    let path = format!("{PROCESSORS}/{which}");
    let list = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    listed(&list).ok_or_else(|| format!("{path} says {list:?}"))
}

fn listed(list: &str) -> Option<Vec<usize>> {
    let mut found = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        found.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_understood() {
        assert_eq!(listed("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(listed("0"), Some(vec![0]));
        assert_eq!((listed(""), listed("0-x")), (None, None));
    }
}
