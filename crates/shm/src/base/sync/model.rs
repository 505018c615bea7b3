//! The same primitives under a scheduler that tries orders of steps, one thread running at a time.
//!
//! Every operation on a shared word is one step, a copy is two. Before each the scheduler may let
//! another thread run, or the thread may be killed: from then on nothing that it does has an
//! effect, so its destructors do nothing, as in a process that was killed.
//!
//! Orders weaker than sequential consistency are NOT covered: each step is seen by all threads at
//! once, whatever ordering it names. The argument that an ordering is strong enough is beside its
//! use.
//!
//! The clock advances only a microsecond at each reading (or more: `advance_clock_by`). A sleep ends by a
//! wake-up alone, so that a lost one shows as a deadlock, unless the test allows time-outs.

use super::Woken;
use core::num::NonZeroU32;
use core::sync::atomic::Ordering;
use core::time::Duration;
use shuttle::rand::Rng;
use std::boxed::Box;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{self, AssertUnwindSafe};
use std::vec::Vec;

pub(crate) const PAUSES: u32 = 1;
pub(crate) const YIELDS: u32 = 1;
/// A table that grows with its fourth record.
pub(crate) const BUCKETS_MIN: u32 = 2;
/// Turns of other threads before a sleep ends late by time-out.
const LATE_YIELDS: u32 = 12;

/// State of the model besides the words themselves. One thread of the system runs all threads of an
/// exploration, so it is theirs alone.
#[derive(Default)]
struct ModelState {
    exploring: bool,
    quiet: bool,
    time_outs: bool,
    /// A sleep that is not woken for some turns of other threads times out.
    late_time_outs: bool,
    /// Readers give up early.
    limits_retries: bool,
    clock: u64,
    /// Microseconds that a reading of the clock adds to it.
    clock_step: u64,
    /// Steps that a thread has left before it is killed.
    doomed: BTreeMap<u32, u32>,
    /// Steps that a thread has left before it stops.
    stopping: BTreeMap<u32, u32>,
    /// Stopped threads, and whether stopping is over.
    stopped: Vec<shuttle::thread::Thread>,
    going_on: bool,
    /// Killed threads, and those that ended.
    gone: BTreeSet<u32>,
    asleep: Vec<Sleeper>,
}

/// A sleeping thread, and the word that it sleeps on.
struct Sleeper {
    at: usize,
    thread_id: u32,
    marks: u32,
    thread: shuttle::thread::Thread,
}

std::thread_local! {
    static STATE: RefCell<ModelState> = RefCell::default();
}

fn state<R>(with: impl FnOnce(&mut ModelState) -> R) -> R {
    STATE.with(|state| with(&mut state.borrow_mut()))
}

/// Payload that unwinds a killed thread.
struct Killed;

// ---- for tests ----

/// Runs `test` in many orders of its threads' steps: half of them random, half by the few changes
/// of priority that most faults need. `INTERLEAVINGS` multiplies their number, `SEED` picks others.
pub fn explore(runs: usize, test: impl Fn() + Send + Sync + 'static) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let times = number("INTERLEAVINGS").unwrap_or(1);
    let runs = (runs * times as usize).div_ceil(2);
    let seed = number("SEED").unwrap_or(1);
    let mut config = config();
    // A busy machine tries fewer, so that the tests end.
    config.max_time = Some(Duration::from_secs(2 * times));
    let test = std::sync::Arc::new(test);
    let body = move || in_fresh_state(&*test);
    let random = shuttle::scheduler::RandomScheduler::new_from_seed(seed, runs);
    shuttle::Runner::new(random, config.clone()).run(body.clone());
    let changes = shuttle::scheduler::PctScheduler::new_from_seed(seed, 3, runs);
    shuttle::Runner::new(changes, config).run(body);
}

/// Runs a test of one thread, which has one order of steps.
pub fn once(test: impl Fn() + Send + Sync + 'static) {
    let only = shuttle::scheduler::RandomScheduler::new_from_seed(1, 1);
    shuttle::Runner::new(only, config()).run(move || in_fresh_state(&test));
}

fn config() -> shuttle::Config {
    let mut config = shuttle::Config::new();
    config.stack_size = 256 << 10;
    config.silence_warnings = true;
    config
}

fn in_fresh_state(test: &dyn Fn()) {
    let fresh =
        ModelState { exploring: true, clock: 1 << 30, clock_step: 1, ..ModelState::default() };
    drop(STATE.with(|state| state.replace(fresh)));
    test();
    drop(STATE.with(RefCell::take));
}

/// A thread of an exploration.
pub struct Thread<R>(shuttle::thread::JoinHandle<Option<R>>);

impl<R> Thread<R> {
    /// Result of the thread; `None` if it was killed.
    ///
    /// # Panics
    /// If the thread panicked.
    #[expect(clippy::expect_used, reason = "only tests have this module")]
    pub fn join(self) -> Option<R> {
        self.0.join().expect("no panic")
    }
}

/// Starts a thread. When it ends, no thread has its number.
pub fn spawn<R: Send + 'static>(run: impl FnOnce() -> R + Send + 'static) -> Thread<R> {
    Thread(shuttle::thread::spawn(move || {
        let outcome = panic::catch_unwind(AssertUnwindSafe(run));
        let me = thread_id();
        state(|state| state.gone.insert(me));
        match outcome {
            Ok(value) => Some(value),
            Err(cause) if cause.is::<Killed>() => None,
            Err(cause) => panic::resume_unwind(cause),
        }
    }))
}

/// The calling thread will be killed after fewer than `steps` steps, if it takes that many.
pub fn kill_after(steps: u32) {
    let left = shuttle::rand::thread_rng().gen_range(0..steps);
    let me = thread_id();
    state(|state| state.doomed.insert(me, left));
}

/// The calling thread will stop after fewer than `steps` steps, if it takes that many, until
/// `resume_all`.
pub fn stop_after(steps: u32) {
    let left = shuttle::rand::thread_rng().gen_range(0..steps);
    let me = thread_id();
    state(|state| state.stopping.insert(me, left));
}

/// Resumes stopped threads; from now on none stops.
pub fn resume_all() {
    let stopped = state(|state| {
        state.going_on = true;
        core::mem::take(&mut state.stopped)
    });
    stopped.iter().for_each(shuttle::thread::Thread::unpark);
}

/// Runs `with` without interruption by other threads: to set up, and to check the outcome.
pub fn uninterrupted<R>(with: impl FnOnce() -> R) -> R {
    state(|state| state.quiet = true);
    let outcome = with();
    state(|state| state.quiet = false);
    outcome
}

/// From now on each reading of the clock adds `micros`.
pub fn advance_clock_by(micros: u64) {
    state(|state| state.clock_step = micros);
}

/// From now on readers give up soon when a writer is in the way, as if it had lost its processor
/// for longer than any reader spins.
pub fn limit_retries() {
    state(|state| state.limits_retries = true);
}

pub(crate) fn read_attempts() -> u32 {
    if state(|state| state.limits_retries) { 2 } else { 64 }
}

/// From now on a sleep may end by time-out.
pub fn allow_time_outs() {
    state(|state| state.time_outs = true);
}

/// From now on a sleep ends by time-out if no wake-up ends it, as in tests in which threads are killed.
pub fn allow_late_time_outs() {
    state(|state| state.late_time_outs = true);
}

// ---- for the protocols ----

/// A point between two steps. False if the calling thread is dead: it must change nothing.
pub(crate) fn point() -> bool {
    if !state(|state| state.exploring && !state.quiet) || plainly_unwinding() {
        return true;
    }
    let me = thread_id();
    if state(|state| state.gone.contains(&me)) {
        return false;
    }
    // Of all blocking calls, this one only lets the scheduler choose.
    shuttle::thread::sleep(Duration::ZERO);
    let dies = state(|state| match state.doomed.get_mut(&me) {
        Some(0) => state.gone.insert(me),
        Some(left) => {
            *left -= 1;
            false
        }
        None => false,
    });
    if dies {
        panic::resume_unwind(Box::new(Killed));
    }
    stop_here(me);
    true
}

fn stop_here(me: u32) {
    let stops = state(|state| match state.stopping.get_mut(&me) {
        Some(0) => {
            state.stopping.remove(&me);
            let stops = !state.going_on;
            if stops {
                state.stopped.push(shuttle::thread::current());
            }
            stops
        }
        Some(left) => {
            *left -= 1;
            false
        }
        None => false,
    });
    while stops && !state(|state| state.going_on) {
        shuttle::thread::park();
    }
}

/// True while a failed test unwinds: no other thread should run meanwhile.
fn plainly_unwinding() -> bool {
    std::thread::panicking() && {
        let me = thread_id();
        !state(|state| state.gone.contains(&me))
    }
}

/// Lets other threads run.
pub(crate) fn sched_yield() {
    if point() && state(|state| state.exploring && !state.quiet) {
        shuttle::thread::yield_now();
    }
}

/// As `sched_yield`.
pub fn spin_loop() {
    sched_yield();
}

/// A step of its own: nothing is reordered here.
pub fn fence(_: Ordering) {
    point();
}

/// Does nothing: threads of an exploration have numbers of their own.
pub const fn trust_libc() {}

/// The number of the calling thread, never zero.
#[must_use]
pub fn thread_id() -> u32 {
    if !state(|state| state.exploring) {
        return rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
    }
    usize::from(shuttle::thread::current().id()) as u32 + 1
}

/// True if the thread was killed or ended.
#[must_use]
pub fn is_dead(thread: u32) -> bool {
    thread == 0 || state(|state| state.gone.contains(&thread))
}

/// As `is_dead`.
#[must_use]
pub fn is_absent(thread: u32) -> bool {
    is_dead(thread)
}

/// Each thread is on a processor of its own.
#[must_use]
pub fn processor() -> u32 {
    if state(|state| state.exploring) { thread_id() } else { 0 }
}

/// The model's clock.
#[must_use]
pub fn now_micros() -> u64 {
    state(|state| {
        state.clock += state.clock_step;
        state.clock
    })
}

/// The same clock.
#[must_use]
pub fn steady_nanos() -> i64 {
    now_micros().cast_signed() * 1000
}

/// The same clock.
#[must_use]
pub fn now_nanos() -> u64 {
    now_micros() * 1000
}

/// The same clock.
#[must_use]
pub(crate) fn real_nanos() -> u64 {
    now_micros() * 1000
}

/// Sleeps for `micros`.
pub(crate) fn nap(micros: u64) {
    sched_yield();
    state(|state| state.clock += micros);
}

/// Sleeps while `word` is `expected`.
pub fn sleep(word: &AtomicU32, expected: u32, micros: u64) -> Woken {
    sleep_marked(word, expected, micros, NonZeroU32::MAX)
}

/// As `sleep`; wakes up for `wake_marked` with one of these marks, too, and for no other.
pub(crate) fn sleep_marked(
    word: &AtomicU32,
    expected: u32,
    micros: u64,
    marks: NonZeroU32,
) -> Woken {
    if !point() || word.0.load(Ordering::SeqCst) != expected {
        return Woken::Changed;
    }
    if state(|state| state.time_outs) && shuttle::rand::thread_rng().gen_bool(0.5) {
        sched_yield();
        state(|state| state.clock += micros);
        return Woken::TimedOut;
    }
    let (me, at) = (thread_id(), core::ptr::from_ref(word) as usize);
    let is_asleep = || state(|state| state.asleep.iter().any(|one| one.thread_id == me));
    let thread = shuttle::thread::current();
    state(|state| state.asleep.push(Sleeper { at, thread_id: me, marks: marks.get(), thread }));
    if state(|state| state.late_time_outs) {
        for _ in 0..LATE_YIELDS {
            if is_asleep() && state(|state| state.exploring && !state.quiet) {
                shuttle::thread::yield_now();
            }
        }
        if is_asleep() {
            state(|state| {
                state.asleep.retain(|one| one.thread_id != me);
                state.clock += micros;
            });
            return Woken::TimedOut;
        }
    }
    while is_asleep() {
        shuttle::thread::park();
    }
    Woken::Changed
}

/// Wakes up to `count` sleepers on `word`.
pub fn wake(word: &AtomicU32, count: u32) {
    wake_some(word, count, u32::MAX);
}

/// Wakes all sleepers on `word` with one of these marks, and all without marks. Returns their number.
pub(crate) fn wake_marked(word: &AtomicU32, marks: NonZeroU32) -> usize {
    wake_some(word, u32::MAX, marks.get())
}

fn wake_some(word: &AtomicU32, count: u32, marks: u32) -> usize {
    if !point() {
        return 0;
    }
    let at = core::ptr::from_ref(word) as usize;
    for woken in 0..count {
        let sleeper = state(|state| {
            let is_it = |one: &Sleeper| one.at == at && one.marks & marks != 0;
            let place = state.asleep.iter().position(is_it)?;
            Some(state.asleep.remove(place))
        });
        let Some(sleeper) = sleeper else { return woken as usize };
        sleeper.thread.unpark();
    }
    count as usize
}

/// As `core::ptr::copy_nonoverlapping`, in two steps.
///
/// # Safety
/// As there.
pub unsafe fn copy_nonoverlapping(from: *const u8, to: *mut u8, length: usize) {
    in_halves(length, |start, length| {
        let (from, to) = (from.wrapping_add(start), to.wrapping_add(start));
        // SAFETY: a part of what the caller vouches for.
        unsafe { core::ptr::copy_nonoverlapping(from, to, length) };
    });
}

/// As `stream::copy_past_cache`, in two steps.
///
/// # Safety
/// As there.
pub unsafe fn copy_past_cache(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller vouches for the same.
    unsafe { copy_nonoverlapping(from, to, length) };
}

/// Two steps over `length` bytes: start and length of each.
fn in_halves(length: usize, step: impl Fn(usize, usize)) {
    let half = length / 2;
    for (start, length) in [(0, half), (half, length - half)] {
        if length != 0 && point() {
            step(start, length);
        }
    }
}

/// As `core::ptr::write_bytes`, in two steps.
///
/// # Safety
/// As there.
pub unsafe fn write_bytes(to: *mut u8, value: u8, length: usize) {
    in_halves(length, |start, length| {
        // SAFETY: a part of what the caller vouches for.
        unsafe { core::ptr::write_bytes(to.wrapping_add(start), value, length) };
    });
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        /// An atomic word with a scheduling point before each operation.
        #[repr(transparent)]
        #[derive(Debug, Default)]
        pub struct $name(core::sync::atomic::$name);

        #[expect(missing_docs, reason = "as in the standard library")]
        impl $name {
            #[must_use]
            pub const fn new(value: $value) -> Self {
                Self(core::sync::atomic::$name::new(value))
            }

            /// # Safety
            /// As for the word of `core`.
            pub const unsafe fn from_ptr<'a>(at: *mut $value) -> &'a Self {
                // SAFETY: the same layout; the rest is the caller's promise.
                unsafe { &*at.cast::<Self>() }
            }

            fn change(&self, to: impl FnOnce($value) -> $value) -> $value {
                let alive = point();
                let before = self.0.load(Ordering::SeqCst);
                if alive {
                    self.0.store(to(before), Ordering::SeqCst);
                }
                before
            }

            pub fn load(&self, _: Ordering) -> $value {
                point();
                self.0.load(Ordering::SeqCst)
            }

            pub fn store(&self, value: $value, _: Ordering) {
                self.change(|_| value);
            }

            pub fn swap(&self, value: $value, _: Ordering) -> $value {
                self.change(|_| value)
            }

            pub fn fetch_add(&self, value: $value, _: Ordering) -> $value {
                self.change(|before| before.wrapping_add(value))
            }

            pub fn fetch_sub(&self, value: $value, _: Ordering) -> $value {
                self.change(|before| before.wrapping_sub(value))
            }

            pub fn fetch_or(&self, value: $value, _: Ordering) -> $value {
                self.change(|before| before | value)
            }

            pub fn fetch_max(&self, value: $value, _: Ordering) -> $value {
                self.change(|before| before.max(value))
            }

            pub fn fetch_and(&self, value: $value, _: Ordering) -> $value {
                self.change(|before| before & value)
            }

            pub fn compare_exchange(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.fetch_update(success, failure, |before| (before == from).then_some(to))
            }

            pub fn compare_exchange_weak(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(from, to, success, failure)
            }

            pub fn fetch_update(
                &self,
                _: Ordering,
                _: Ordering,
                to: impl FnOnce($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let alive = point();
                let before = self.0.load(Ordering::SeqCst);
                let Some(value) = to(before).filter(|_| alive) else { return Err(before) };
                self.0.store(value, Ordering::SeqCst);
                Ok(before)
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
