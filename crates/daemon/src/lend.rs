//! Memory that is lent to this daemon (`data::lend`): the thread that looks how much is idle and lets the
//! target know, and the one that gives blocks of the arena back to the system.
//!
//! What was agreed on by `forebay lend` and `reclaim` is kept in a file beside the logs: it counts for a
//! daemon that is started again, too.

use crate::idle::Idle;
use crate::inbox::Note;
use crate::settings::Settings;
use crate::shared::{Guest, Shared};
use crate::target::TargetLoop;
use data::lend::GIVE_BACKS_MAX;
use data::lending::{Lending, Reason, Terms};
use placement::map::WORKER_OF_TARGET;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::FallocateFlags;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Instant;
use wire::welcome::{LEND_IDLE, LEND_STEP_BYTES};

/// Between two looks at which groups this process is in, in looks.
const GROUPS_LOOKS: u32 = 64;

/// What all threads reach.
pub(crate) struct Desk {
    /// What the settings say: the arena, and what `lend auto` means.
    memory: u64,
    least: Option<u64>,
    terms: Mutex<Terms>,
    file: PathBuf,
    /// Wakes the thread that looks.
    bell: OwnedFd,
    pub(crate) allowed: AtomicU64,
    pub(crate) held: AtomicU64,
    pub(crate) used: AtomicU64,
    reason: AtomicU8,
    /// What is idle allows less than was agreed on.
    is_short: AtomicBool,
    /// Blocks that began to be given back.
    pub(crate) give_backs: AtomicU64,
    /// Bytes that were given back since the start, and the time that it took.
    pub(crate) given_back: AtomicU64,
    pub(crate) given_back_micros: AtomicU64,
}

/// What an order of so many steps means.
fn terms_of(steps: u32, memory: u64, least: Option<u64>) -> Terms {
    match steps {
        LEND_IDLE => Terms::Idle { least: least.unwrap_or(0), most: memory },
        steps => Terms::Fixed(u64::from(steps).saturating_mul(LEND_STEP_BYTES).min(memory)),
    }
}

fn read(file: &Path) -> Option<u32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

impl Desk {
    /// What was agreed on before, else what the settings say.
    pub(crate) fn new(settings: &Settings) -> rustix::io::Result<Desk> {
        let (memory, least) = (settings.memory, settings.memory_least);
        let file = settings.data.join("lent");
        let by_settings = match least {
            Some(least) => Terms::Idle { least, most: memory },
            None => Terms::Fixed(memory),
        };
        let terms = read(&file).map_or(by_settings, |steps| terms_of(steps, memory, least));
        Ok(Desk {
            memory,
            least,
            terms: Mutex::new(terms),
            file,
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            allowed: AtomicU64::new(memory),
            held: AtomicU64::new(0),
            used: AtomicU64::new(0),
            reason: AtomicU8::new(Reason::Set as u8),
            is_short: AtomicBool::new(false),
            give_backs: AtomicU64::new(0),
            given_back: AtomicU64::new(0),
            given_back_micros: AtomicU64::new(0),
        })
    }

    /// Other terms from now on.
    pub(crate) fn agree(&self, steps: u32) {
        let terms = terms_of(steps, self.memory, self.least);
        *self.terms.lock().unwrap_or_else(PoisonError::into_inner) = terms;
        let new = self.file.with_extension("new");
        let kept =
            fs::write(&new, format!("{steps}\n")).and_then(|()| fs::rename(&new, &self.file));
        if let Err(error) = kept {
            tracing::warn!(%error, "what is lent is forgotten if the daemon is started again");
        }
        tracing::info!(?terms, "memory is lent on other terms");
        // A counter that is full has rung.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    pub(crate) fn terms(&self) -> Terms {
        *self.terms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True while pieces sink to make room for programs.
    pub(crate) fn is_giving_back(&self) -> bool {
        self.is_short.load(Relaxed) || self.used.load(Relaxed) > self.allowed.load(Relaxed)
    }

    /// Why the allowance is what it is, for people.
    pub(crate) fn reason(&self) -> &'static str {
        Reason::of(self.reason.load(Relaxed)).map_or("unknown", Reason::word)
    }
}

/// The thread that looks.
pub(crate) fn watch(shared: &Arc<Shared>) {
    let desk = &shared.lend;
    let mut lending = Lending::new(desk.terms(), shared.host_count);
    let mut idle = Idle::new(Path::new("/"));
    let mut last = desk.memory;
    let mut is_armed = false;
    for look in 1u32.. {
        if desk.terms() != lending.terms() {
            lending.agree(desk.terms());
        }
        if look.is_multiple_of(GROUPS_LOOKS) {
            idle.find_groups();
        }
        let readings = match lending.terms() {
            Terms::Fixed(_) => data::lending::Readings::default(),
            Terms::Idle { .. } => {
                if !std::mem::replace(&mut is_armed, true) {
                    idle.arm();
                }
                idle.read(desk.held.load(Relaxed))
            }
        };
        let now = u64::try_from(shared.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let verdict = lending.look(now, &readings);
        let before = desk.reason.swap(verdict.reason as u8, Relaxed);
        desk.is_short.store(!matches!(verdict.reason, Reason::Set | Reason::Most), Relaxed);
        if verdict.allowance != last {
            if before != verdict.reason as u8 {
                let (bytes, reason) = (verdict.allowance, verdict.reason.word());
                tracing::info!(bytes, reason, "allowance of memory");
            }
            last = verdict.allowance;
            shared.tell(WORKER_OF_TARGET, Note::Lend(last));
        }
        wait(desk, &idle, verdict.look_in_millis);
    }
}

/// Waits until it is time, a program stalls, or the terms change.
fn wait(desk: &Desk, idle: &Idle, millis: Option<u64>) {
    let mut polled = vec![PollFd::new(&desk.bell, PollFlags::IN)];
    if millis.is_some() {
        polled.extend(idle.triggers());
    }
    let limit = millis.map(|millis| Timespec {
        tv_sec: (millis / 1000).cast_signed(),
        tv_nsec: (millis % 1000 * 1_000_000).cast_signed(),
    });
    // Interrupted: one look too many.
    let _ = poll(&mut polled, limit.as_ref());
    let _ = rustix::io::read(&desk.bell, &mut [0; 8]);
}

/// The way to the thread that gives back.
pub(crate) struct Giver {
    blocks: mpsc::SyncSender<(u64, u8)>,
}

/// The thread's side.
pub(crate) struct Blocks {
    blocks: mpsc::Receiver<(u64, u8)>,
    arena: OwnedFd,
}

/// Both sides.
pub(crate) fn giver(arena: &impl AsFd) -> std::io::Result<(Giver, Blocks)> {
    let (to, blocks) = mpsc::sync_channel(GIVE_BACKS_MAX);
    let arena = arena.as_fd().try_clone_to_owned()?;
    Ok((Giver { blocks: to }, Blocks { blocks, arena }))
}

impl Giver {
    /// Hands a block in; the answer comes to the target's worker.
    pub(crate) fn give_back(&self, shared: &Shared, (place, length_log2): (u64, u8)) {
        shared.lend.give_backs.fetch_add(1, Relaxed);
        if self.blocks.try_send((place, length_log2)).is_err() {
            let outcome = Err(wire::Errno::EIO);
            shared.tell(WORKER_OF_TARGET, Note::GivenBack { place, length_log2, outcome });
        }
    }
}

/// Gives a range of the arena back to the system.
pub(crate) fn punch(arena: impl AsFd, place: u64, length: u64) -> rustix::io::Result<()> {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(&arena, how, place, length))
}

impl Blocks {
    /// Gives blocks back until the worker is gone.
    pub(crate) fn run(self, shared: &Shared) {
        while let Ok((place, length_log2)) = self.blocks.recv() {
            let begun = Instant::now();
            let outcome = punch(&self.arena, place, 1 << length_log2);
            let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(0);
            match outcome {
                Ok(()) => drop(shared.lend.given_back.fetch_add(1 << length_log2, Relaxed)),
                Err(error) => tracing::warn!(place, %error, "memory can not be given back"),
            }
            shared.lend.given_back_micros.fetch_add(micros, Relaxed);
            let outcome = outcome.map_err(shm::segment::errno);
            shared.tell(WORKER_OF_TARGET, Note::GivenBack { place, length_log2, outcome });
        }
    }
}

impl TargetLoop {
    /// The arena may hold so much from now on.
    pub(crate) fn lend(&mut self, shared: &Shared, guests: &[Option<Arc<Guest>>], bytes: u64) {
        self.act(shared, guests, |target, effects| target.lend(bytes, effects));
        self.sinker.look_soon();
    }

    /// Notes what is lent, for the thread that looks and for `status`.
    pub(crate) fn note_lent(&self, shared: &Shared) {
        let data::lend::Memory { allowed, held, used } = self.target.memory_lent();
        shared.lend.allowed.store(allowed, Relaxed);
        shared.lend.held.store(held, Relaxed);
        shared.lend.used.store(used, Relaxed);
        shared.space.memory_users.store(self.target.users_in_memory() as u64, Relaxed);
    }
}
