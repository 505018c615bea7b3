//! Requests by rings (FUSE over io_uring): starts the serving threads of each processor. `queue` is
//! the loop of a thread, `entry` its memory. Requests are answered by `serve::answer`,
//! independently of how they arrive.
//!
//! The kernel has a queue per processor, and puts the request of a program into the queue of the
//! processor on which the program runs. Threads pinned to that processor answer it, so no other
//! processor is woken, which takes 30 to 70 us on virtual machines. A request may have to wait for
//! another host, so a queue has several threads. Each provides a single *entry* to the kernel, for
//! one request, so the kernel never gives a request to a busy thread while another is idle.
//!
//! 1. The kernel is told of rings only after every thread has one. It then sends no request until
//!    each of its queues has an entry.
//! 2. Forget and interrupt requests still arrive by `/dev/fuse`.

mod entry;

mod queue;

use rustix::thread::CpuSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use crate::kernel_cache::watches::ReplyTracker;
use crate::server::Server;
use crate::server::quiesce::Serving;
use queue::{LentRing, Queues};

/// Minimum number of threads per queue.
const THREADS_MIN: usize = 2;
/// Where the system lists online and possible processors.
const PROCESSORS: &str = "/sys/devices/system/cpu";

/// Result of a thread when it has started, and again when it has provided its entries.
type ThreadResult = Result<(), String>;

/// Threads with rings that the kernel does not know yet. They end on drop.
pub(crate) struct Prepared {
    /// Number of possible processors: the kernel's queues.
    queues: usize,
    threads: Vec<Waiting>,
    reports: Receiver<ThreadResult>,
}

/// A thread that waits for its server.
struct Waiting {
    /// The processor whose queue it serves, if only one.
    queue: Option<usize>,
    go: Sender<Arc<Server>>,
    thread: JoinHandle<()>,
}

/// Serving threads.
pub(crate) struct Rings {
    threads: Vec<JoinHandle<()>>,
}

impl Prepared {
    /// Starts threads, at least `threads` in total.
    ///
    /// # Errors
    /// Why rings are not possible.
    pub(crate) fn new(threads: usize) -> Result<Prepared, String> {
        let (possible, online) = (processors("possible")?, processors("online")?);
        let count = u16::try_from(possible.len()).map_err(|_| "too many processors".to_owned())?;
        let (busy, idle): (Vec<u16>, Vec<u16>) =
            (0..count).partition(|queue| online.contains(&usize::from(*queue)));
        let each = threads.div_ceil(busy.len().max(1)).max(THREADS_MIN);
        let (report, reports) = mpsc::channel();
        let mut prepared = Prepared { queues: possible.len(), threads: Vec::new(), reports };
        for &queue in &busy {
            for _ in 0..each {
                prepared.start(vec![queue], Some(queue.into()), &report)?;
            }
        }
        if !idle.is_empty() {
            // For processors that come online later.
            prepared.start(idle, None, &report)?;
        }
        prepared.await_all()?;
        Ok(prepared)
    }

    fn start(
        &mut self,
        queues: Vec<u16>,
        processor: Option<usize>,
        report: &Sender<ThreadResult>,
    ) -> Result<(), String> {
        let (go, gone) = mpsc::channel();
        let report = report.clone();
        let name = format!("ring {}", queues.first().copied().unwrap_or(0));
        let thread = std::thread::Builder::new().name(name);
        let thread = thread.spawn(move || serve(queues, processor, &report, &gone));
        let thread = thread.map_err(|error| error.to_string())?;
        self.threads.push(Waiting { queue: processor, go, thread });
        Ok(())
    }

    /// Waits for the result of each thread.
    fn await_all(&self) -> Result<(), String> {
        for _ in &self.threads {
            self.reports.recv().map_err(|error| error.to_string())??;
        }
        Ok(())
    }

    /// Number of the kernel's queues.
    pub(crate) const fn queue_count(&self) -> usize {
        self.queues
    }

    /// Begins to serve, after the kernel was told of rings.
    ///
    /// # Errors
    /// Why the kernel does not accept the entries. The mount is useless then, because the kernel
    /// waits for them.
    pub(crate) fn begin(self, server: &Arc<Server>) -> Result<Rings, String> {
        for waiting in &self.threads {
            waiting.go.send(Arc::clone(server)).map_err(|error| error.to_string())?;
        }
        self.await_all()?;
        for queue in self.threads.iter().filter_map(|waiting| waiting.queue) {
            server.serving.add(queue);
        }
        Ok(Rings { threads: self.threads.into_iter().map(|waiting| waiting.thread).collect() })
    }
}

impl Rings {
    /// Starts one more thread for the queue of a processor.
    ///
    /// # Errors
    /// As of the start of a thread.
    pub(crate) fn start_thread(server: &Arc<Server>, queue: usize) -> io::Result<JoinHandle<()>> {
        let number = u16::try_from(queue).map_err(io::Error::other)?;
        let server = Arc::clone(server);
        let thread = std::thread::Builder::new().name(format!("ring {queue}"));
        thread.spawn(move || {
            let (serving, tracker) = (server.quiesce.begin(), server.watches.tracker());
            let made = pin_to_processor(Some(queue)).and_then(|()| Queues::new(vec![number]));
            match made.and_then(|made| made.lend(Arc::clone(&server))) {
                Ok(mut lent) => {
                    lent.take_waiting(queue);
                    run_ring(&mut lent, &serving, &tracker);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot add a thread to a ring");
                    server.serving.remove(queue);
                }
            }
        })
    }

    /// Waits until the mount is gone.
    pub(crate) fn await_threads(self) {
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// Main function of a thread.
fn serve(
    queues: Vec<u16>,
    processor: Option<usize>,
    report: &Sender<ThreadResult>,
    go: &Receiver<Arc<Server>>,
) {
    let made = pin_to_processor(processor).and_then(|()| Queues::new(queues));
    let _ = report.send(made.as_ref().map(|_| ()).map_err(ToString::to_string));
    let (Ok(made), Ok(server)) = (made, go.recv()) else { return };
    let (serving, tracker) = (server.quiesce.begin(), server.watches.tracker());
    let lent = made.lend(Arc::clone(&server));
    let _ = report.send(lent.as_ref().map(|_| ()).map_err(ToString::to_string));
    let Ok(mut lent) = lent else { return };
    run_ring(&mut lent, &serving, &tracker);
}

fn run_ring(lent: &mut LentRing, serving: &Serving<'_>, tracker: &ReplyTracker<'_>) {
    if let Err(error) = lent.serve(serving, tracker) {
        // The kernel would wait for the thread for ever. Exiting ends all calls and the mount.
        tracing::error!(%error, "a ring failed");
        #[expect(clippy::exit, reason = "the kernel waits for this thread alone")]
        std::process::exit(1);
    }
}

/// Pins the thread, also because a poke (`queue`) goes to the queue of the processor that sends it.
fn pin_to_processor(processor: Option<usize>) -> io::Result<()> {
    let Some(processor) = processor else { return Ok(()) };
    if processor >= CpuSet::MAX_CPU {
        return Err(io::Error::other(format!("cannot pin a thread to processor {processor}")));
    }
    let mut only = CpuSet::new();
    only.set(processor);
    rustix::thread::sched_setaffinity(None, &only)?;
    Ok(())
}

/// Processor numbers from a list such as `0-3,8`.
fn processors(which: &str) -> Result<Vec<usize>, String> {
    let path = format!("{PROCESSORS}/{which}");
    let list = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    parse_list(&list).ok_or_else(|| format!("{path} report {list:?}"))
}

fn parse_list(list: &str) -> Option<Vec<usize>> {
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
        assert_eq!(parse_list("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_list("0"), Some(vec![0]));
        assert_eq!((parse_list(""), parse_list("0-x")), (None, None));
    }
}
