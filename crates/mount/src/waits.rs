//! Those who wait for locks of this mount, or for files to be saved below: one thread carries them all,
//! as nobody knows how many there are, and each keeps a process. It hands in what they wait for in the
//! order in which they came, sleeps until an answer comes or one is interrupted, and says how each ended.

use client::{LockWait, OfdIndex, SaveWait};
use fuse::Header;
use fuse::request::Lock;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use wire::errno::{Errno, Result};

use crate::answer::Request;
use crate::locks::Carries;
use crate::serve::Server;

/// How often it is asked whether the daemon is there.
const LOOK: Duration = Duration::from_millis(50);

/// Takes what came of a wait.
type Say = Box<dyn FnOnce(Result<()>) + Send>;

/// What is waited for.
enum Waited {
    /// The carrier's reference goes with the wait.
    Lock(LockWait<'static>, Carries),
    Save(SaveWait<'static>),
}

/// A wait that began.
pub(crate) struct Begun(Waited);

impl Begun {
    /// What is said where nobody more can wait.
    pub(crate) const fn refusal(&self) -> Errno {
        match self.0 {
            Waited::Lock(..) => Errno::ENOLCK,
            Waited::Save(_) => Errno::EIO,
        }
    }

    /// Who waits got a signal. It ends a close or a sync only if it ends him: programs go by that.
    fn interrupt(&mut self, pid: u32) {
        match &mut self.0 {
            Waited::Lock(wait, _) => wait.interrupt(),
            Waited::Save(wait) if is_killed(pid) => wait.interrupt(),
            Waited::Save(_) => {}
        }
    }

    fn poll(&mut self) -> Option<Result<()>> {
        match &mut self.0 {
            Waited::Lock(wait, _) => wait.poll(),
            Waited::Save(wait) => wait.poll(),
        }
    }
}

/// One who waits.
pub(crate) struct Carried {
    unique: u64,
    /// The thread.
    pid: u32,
    is_over: Arc<AtomicBool>,
    begun: Box<Begun>,
    say: Say,
}

impl Request<'_> {
    /// Takes a lock that may be waited for; `Some`: it has to be.
    pub(crate) fn take_or_wait(&self, wanted: &Lock) -> Result<Option<Begun>> {
        let begun = self.begin_lock(wanted)?;
        Ok(begun.map(|(wait, carries)| Begun(Waited::Lock(wait, carries))))
    }

    /// Tells what was written to an open file, which is to be saved before that is answered.
    pub(crate) fn begin_save(&self, file: OfdIndex) -> Result<Begun> {
        Ok(Begun(Waited::Save(self.server.client.begin_save(file)?)))
    }
}

impl Server {
    /// Has it waited for, and said how that ended.
    pub(crate) fn wait_for(
        self: &Arc<Self>,
        header: Header,
        begun: Box<Begun>,
        say: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        let is_over = self.locks.begin(header.unique);
        let carried =
            Carried { unique: header.unique, pid: header.pid, is_over, begun, say: Box::new(say) };
        let carrier = self.locks.carrier.get_or_init(|| {
            let (to, new) = channel();
            let server = Arc::clone(self);
            let thread = std::thread::Builder::new().name("waits".to_owned());
            thread.spawn(move || server.carry_waits(&new)).ok().map(|_| to)
        });
        let refused = match carrier {
            Some(to) => to.send(carried).err().map(|unsent| unsent.0),
            None => Some(carried),
        };
        match refused {
            Some(carried) => {
                let refusal = carried.begun.refusal();
                self.end_wait(carried, Err(refusal));
            }
            None => self.client.wake_for_waits(),
        }
    }

    fn end_wait(&self, carried: Carried, outcome: Result<()>) {
        let Carried { unique, begun, say, .. } = carried;
        self.locks.end(unique);
        self.let_wait_go(*begun);
        say(outcome);
    }

    /// A wait is over.
    pub(crate) fn let_wait_go(&self, begun: Begun) {
        if let Waited::Lock(wait, Carries(carrier)) = begun.0 {
            drop(wait);
            carrier.into_iter().for_each(|file| self.handles.put(file));
        }
    }

    fn carry_waits(&self, new: &Receiver<Carried>) {
        let mut all = Vec::new();
        let mut asked = Instant::now();
        loop {
            if all.is_empty() {
                let Ok(first) = new.recv() else { return };
                all.push(first);
            }
            let asks = asked.elapsed() >= LOOK;
            if asks {
                asked = Instant::now();
            }
            let answered = self.client.answered_waits(asks);
            all.extend(new.try_iter());
            let mut ended = Vec::new();
            all = all
                .into_iter()
                .filter_map(|mut one: Carried| {
                    if one.is_over.load(Relaxed) {
                        one.begun.interrupt(one.pid);
                    }
                    match one.begun.poll() {
                        None => Some(one),
                        Some(outcome) => {
                            ended.push((one, outcome));
                            None
                        }
                    }
                })
                .collect();
            ended.into_iter().for_each(|(one, outcome)| self.end_wait(one, outcome));
            if !all.is_empty() {
                self.client.sleep_for_waits(answered);
            }
        }
    }
}

/// True if a thread is about to be killed, or is there no more.
fn is_killed(pid: u32) -> bool {
    const KILLED: u64 = 1 << (libc::SIGKILL - 1);
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let pending = status.lines().filter_map(|line| {
        let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    });
    pending.fold(0, |all, mask| all | mask) & KILLED != 0
}
