//! Drives the `data::Target` of this daemon: worker 0 owns it.
//!
//! Bytes of clients that map the arena never come here; requests for pieces do, and reads and
//! writes of those who are on other hosts.

use crate::abroad::Dismissals;
use crate::accounts::{Waiting, encoded};
use crate::below::{Asks, Wanted};
use crate::clean::Drops;
use crate::early::{Early, Verdict};
use crate::history::History;
use crate::lend::Giver;
use crate::prepare::{Preparation, Preparer};
use crate::reply::{ReplyTo, encode, encode_pieces};
use crate::room::Room;
use crate::shared::{Guest, Shared};
use crate::sink::{Copy, Sinker, Why};
use crate::thresholds::Follower;
use data::{Answer, Defined, Effect, Input, Source, Target};
use shm::arena::Arena;
use shm::finder::Finder;
use shm::piece_io;
use shm::pieces::{PieceStates, PieceTable, all_granules};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use store::SsdFile;
use wire::errno::{Errno, Result};
use wire::reply::Piece;
use wire::{Inode, Reply, Request};

/// Pauses between looks at pins that stay: first, longest. A client holds one for one copy.
const PIN_PAUSE: Duration = Duration::from_millis(2);
/// See `PIN_PAUSE`.
const PIN_PAUSE_MAX: Duration = Duration::from_millis(100);

/// The devices of a target.
pub(crate) struct Devices {
    /// Memory.
    pub(crate) arena: Arena,
    /// SSD.
    pub(crate) ssd: SsdFile,
    /// Headers of the pieces.
    pub(crate) table: PieceTable,
    /// States of the pieces.
    pub(crate) states: PieceStates,
    /// Where pieces are.
    pub(crate) finder: Finder,
    /// Pieces that clients copy.
    pub(crate) client_pins: shm::pins::Pins,
    /// Clients of earlier daemons may still use the pins of sessions below this number: they need
    /// this one only for what they do not know yet.
    pub(crate) sessions_before: u16,
    /// Pieces that threads of this daemon move bytes of.
    pub(crate) pins: Pins,
}

/// Which pieces stay where they are although they are hidden, by their slots; each so often.
///
/// Who pins looks at the piece's header afterwards, and who hid it looks at the pins afterwards:
/// the lock makes one of the two see the other.
#[derive(Default)]
pub(crate) struct Pins(Mutex<BTreeMap<u32, u32>>);

impl Pins {
    /// Keeps a piece.
    pub(crate) fn pin(&self, slot: u32) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(slot).or_insert(0) += 1;
    }

    /// Ends one `pin`.
    pub(crate) fn unpin(&self, slot: u32) {
        let mut pins = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = pins.get_mut(&slot) {
            *count -= 1;
            if *count == 0 {
                pins.remove(&slot);
            }
        }
    }

    fn all(&self) -> Vec<u32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }
}

impl Devices {
    /// Calls `each` with every piece that may be pinned by a client of an earlier daemon.
    pub(crate) fn each_pin_of_before(&self, each: &mut dyn FnMut(u32)) {
        (0..self.sessions_before).for_each(|session| self.client_pins.each(session, each));
    }

    pub(crate) fn target(&self) -> piece_io::Target<'_> {
        piece_io::Target {
            arena: &self.arena,
            ssd: self.ssd.fd(),
            table: &self.table,
            states: &self.states,
        }
    }
}

/// A request that is not answered yet.
pub(crate) struct Pending {
    pub(crate) to: ReplyTo,
    /// What a `Write` brought.
    bytes: Vec<u8>,
    /// What a `Read` collected.
    answer: Vec<u8>,
    failed: Option<Errno>,
    /// If it makes pieces: itself without its bytes, to come again.
    pub(crate) again: Option<(Inode, Request<'static>)>,
    /// It waits for room, since then.
    pub(crate) waits_since: Option<Instant>,
    last: Final,
}

/// What a request is refused for at once, that makes pieces; else it waits until it is sure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Final {
    /// Nothing.
    None,
    /// A limit of its account.
    Limit,
}

/// A request that makes pieces, without its bytes, and its file.
const fn repeatable(request: &Request<'_>) -> Option<(Inode, Request<'static>)> {
    match *request {
        Request::MapPieces { inode, chunk_log2, allocate: allocate @ 1, offset, length, ahead } => {
            let again = Request::MapPieces { inode, chunk_log2, allocate, offset, length, ahead };
            Some((inode, again))
        }
        Request::Write { inode, chunk_log2, offset, cuts, .. } => {
            Some((inode, Request::Write { inode, chunk_log2, offset, cuts, bytes: &[] }))
        }
        _ => None,
    }
}

/// The target and what it works with.
pub(crate) struct TargetLoop {
    pub(crate) target: Target,
    pub(crate) waiting: Waiting,
    pub(crate) room: Room,
    pub(crate) devices: Arc<Devices>,
    pub(crate) sinker: Sinker,
    pub(crate) follower: Follower,
    giver: Giver,
    preparer: Preparer,
    pub(crate) pending: BTreeMap<u64, Pending>,
    next_ticket: u64,
    effects: Vec<Effect>,
    tick_pause: Duration,
    tick_at: Option<Instant>,
    early: Early,
    pub(crate) asks: Asks,
    pub(crate) drops: Drops,
    pub(crate) dismissals: Dismissals,
    /// If what is read is to be noted.
    pub(crate) history: Option<History>,
}

impl TargetLoop {
    /// Takes over a target.
    pub(crate) fn new(
        target: Target,
        devices: Arc<Devices>,
        preparer: Preparer,
        (sinker, follower): (Sinker, Follower),
        giver: Giver,
        early: Early,
    ) -> TargetLoop {
        TargetLoop {
            target,
            waiting: Waiting::default(),
            room: Room::default(),
            devices,
            sinker,
            follower,
            giver,
            preparer,
            pending: BTreeMap::new(),
            next_ticket: 0,
            effects: Vec::new(),
            tick_pause: PIN_PAUSE,
            tick_at: None,
            early,
            asks: Asks::default(),
            drops: Drops::default(),
            dismissals: Dismissals::default(),
            history: None,
        }
    }

    /// A request for the target.
    pub(crate) fn request(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
        request: &Request<'_>,
        to: ReplyTo,
    ) {
        self.look_at_early(shared, guests, request);
        if let Request::Remove { inodes } = *request {
            self.forget_told(inodes);
        }
        if !self.target.accounts().is_on() {
            return self.carry_out_now(shared, guests, request, to, Final::None);
        }
        self.read_books(shared);
        if let Some(to) = self.put_aside(shared, request, to) {
            self.carry_out_now(shared, guests, request, to, Final::None);
        }
    }

    /// Now, whatever waits.
    pub(crate) fn carry_out_now(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
        request: &Request<'_>,
        to: ReplyTo,
        last: Final,
    ) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let again = repeatable(request);
        let bytes = match request {
            Request::Write { bytes, .. } => bytes.to_vec(),
            _ => Vec::new(),
        };
        let pending =
            Pending { to, bytes, answer: Vec::new(), failed: None, again, waits_since: None, last };
        self.pending.insert(ticket, pending);
        if let Request::BeginSaving { inode, .. } = *request {
            let states = &self.devices.states;
            self.target.note_changed(inode, &|slot| states.is_clean(slot));
        }
        self.step(shared, guests, Input::Request { ticket, request });
    }

    /// A device was asked to hold space, and answered.
    pub(crate) fn preallocated(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
        outcome: Result<()>,
    ) {
        self.step(shared, guests, Input::Preallocated { outcome });
    }

    /// Makes the first memory ready.
    pub(crate) fn begin(&mut self, shared: &Shared, guests: &[Option<Arc<Guest>>]) {
        self.step(shared, guests, Input::Tick);
    }

    /// What is written to an early piece is its file's, also for who asks about the file.
    fn look_at_early(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
        request: &Request<'_>,
    ) {
        let inode = match *request {
            Request::MapPieces { inode, .. }
            | Request::Read { inode, .. }
            | Request::Usage { inode }
            | Request::BeginSaving { inode, .. }
            | Request::SeekData { inode, .. } => inode,
            _ => return,
        };
        self.early.asked(shared, request);
        let is_written = |piece: &Piece| !self.devices.states.is_hole(piece);
        let written = self.target.early_of(inode).filter(is_written);
        let pieces: Vec<_> = written.map(|piece| (inode, piece.start)).collect();
        if !pieces.is_empty() {
            self.step(shared, guests, Input::Wanted { pieces: &pieces });
        }
    }

    /// Makes pieces for files to come. True if more may be wanted soon.
    pub(crate) fn make_early(&mut self, shared: &Shared, guests: &[Option<Arc<Guest>>]) -> bool {
        if !self.early.is_busy() {
            return false;
        }
        let (make, verdict) = self.early.next(shared, &self.target, &self.devices);
        self.carry_out(shared, guests, &verdict);
        if !make.is_empty() {
            self.step(shared, guests, Input::MakeEarly { inodes: &make });
        }
        true
    }

    fn carry_out(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
        Verdict { wanted, unwanted }: &Verdict,
    ) {
        if !wanted.is_empty() {
            self.step(shared, guests, Input::Wanted { pieces: wanted });
        }
        if !unwanted.is_empty() {
            self.step(shared, guests, Input::Unwanted { pieces: unwanted });
        }
    }

    /// Takes early pieces back that nobody uses, if it is time. Microseconds until it is.
    fn take_early_back(&mut self, shared: &Shared, guests: &[Option<Arc<Guest>>]) -> Option<u64> {
        if self.early.look_at(&self.target)? <= Instant::now() {
            let pinned = self.pinned(shared);
            let verdict = self.early.look(shared, &self.target, &self.devices, &pinned);
            self.carry_out(shared, guests, &verdict);
        }
        self.early.look_at(&self.target).map(micros_until)
    }

    /// Does what is due. Returns how long nothing will be due, in microseconds.
    pub(crate) fn keep_time(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
    ) -> Option<u64> {
        let early = self.take_early_back(shared, guests);
        let leaving = self.look_at_leaving(shared, guests);
        let waiting = self.keep_waiting(shared);
        let room = self.keep_room(shared, guests);
        let dropping = self.keep_dropping(shared, guests);
        let following = self.keep_thresholds(shared);
        let sinking = self.keep_sinking(shared, guests);
        let rising = self.keep_rising(shared, guests);
        let ahead = self.keep_ahead(shared, guests);
        let asks = self.keep_asks(shared, guests);
        let told = self.keep_dismissals(shared);
        // What was given back above counts, too: there may be nothing more to do for long.
        self.note_lent(shared);
        let all = [
            early, leaving, waiting, room, dropping, following, sinking, rising, ahead, asks, told,
        ];
        all.into_iter().flatten().min()
    }

    fn look_at_leaving(&mut self, shared: &Shared, guests: &[Option<Arc<Guest>>]) -> Option<u64> {
        if self.target.leaving_count() == 0 {
            self.tick_at = None;
            self.tick_pause = PIN_PAUSE;
            return None;
        }
        let now = Instant::now();
        let tick_at = *self.tick_at.get_or_insert(now + self.tick_pause);
        if tick_at <= now {
            self.tick_pause = (self.tick_pause * 2).min(PIN_PAUSE_MAX);
            self.tick_at = Some(now + self.tick_pause);
            self.step(shared, guests, Input::Tick);
        }
        self.tick_at.map(micros_until)
    }

    /// Slots that somebody pins.
    fn pinned(&self, shared: &Shared) -> Vec<u32> {
        let mut pinned = self.devices.pins.all();
        let mut each = |slot| pinned.push(slot);
        self.devices.each_pin_of_before(&mut each);
        shared.open.each(self.devices.sessions_before, &mut |session| {
            self.devices.client_pins.each(session, &mut each);
        });
        pinned
    }

    fn look(&mut self, shared: &Shared, guests: &[Option<Arc<Guest>>], round: u64) {
        let mut pinned = self.pinned(shared);
        self.sinker.add_staying(shared, &self.devices, &mut pinned);
        self.step(shared, guests, Input::Pins { round, pinned: &pinned });
    }

    pub(crate) fn step(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
        input: Input<'_>,
    ) {
        self.act(shared, guests, |target, effects| target.step(input, effects));
    }

    /// Has the target do something, and performs what comes out.
    pub(crate) fn act(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
        with: impl FnOnce(&mut Target, &mut Vec<Effect>),
    ) {
        let counts = self.target.accounts().is_on();
        if counts {
            self.read_books(shared);
        }
        let mut effects = std::mem::take(&mut self.effects);
        self.target.pass_time(shared.begun.elapsed().as_millis() as u32);
        with(&mut self.target, &mut effects);
        if counts {
            self.keep_books(shared);
        }
        let (mut looks, mut saved) = (Vec::new(), Vec::new());
        for effect in effects.drain(..) {
            if let Effect::EndSaving { inode, piece } = effect {
                self.asks.ask_anew(inode);
                let is_saved = self.devices.states.end_saving(piece.slot);
                saved.extend((is_saved == Ok(true)).then_some((inode, piece)));
                continue;
            }
            if let Some(round) = self.perform(shared, effect) {
                looks.push(round);
            }
        }
        self.effects = effects;
        if !saved.is_empty() {
            self.step(shared, guests, Input::Saved { pieces: &saved });
        }
        for round in looks {
            self.look(shared, guests, round);
        }
        self.send_impatient_away(shared, guests);
        self.note_uses(shared);
        let waiting = self.target.writers_waiting() as u64;
        shared.space.writers_waiting.store(waiting, Relaxed);
    }

    /// Sets the granules of a piece, then shows it.
    fn show(&mut self, inode: Inode, piece: &Piece, defined: Defined) {
        let (states, table) = (&self.devices.states, &self.devices.table);
        let shown = match defined {
            Defined::All => states.reset(piece, all_granules(piece.length_log2)),
            Defined::Below => states
                .reset(piece, all_granules(piece.length_log2))
                .and_then(|()| states.set_clean(piece.slot)),
            Defined::Nothing | Defined::Early => states.reset(piece, 0),
            Defined::As(from) => states.reset_as(&from, piece),
        };
        let shown = shown
            .and_then(|()| states.set_early(piece.slot, defined == Defined::Early))
            .and_then(|()| states.set_resident(piece.slot, self.target.is_resident(inode)))
            .and_then(|()| table.publish(inode, piece));
        assert_eq!(shown, Ok(()), "a slot beyond the piece table");
        self.devices.finder.note(inode, piece);
        if defined == Defined::Early {
            self.early.made(inode, piece);
        }
    }

    /// Performs one effect. A look at the pins is returned instead: it is an input of its own.
    fn perform(&mut self, shared: &Shared, effect: Effect) -> Option<u64> {
        match effect {
            Effect::CheckPins { round } => return Some(round),
            Effect::Copy { ticket, from, to } if [from.tier, to.tier].contains(&Piece::ABROAD) => {
                self.travel(shared, Copy { ticket, from, to });
            }
            Effect::Copy { ticket, from, to } => {
                self.sinker.copy(shared, Copy { ticket, from, to });
            }
            Effect::Dismiss { slot, place } => self.begin_dismissal(slot, place),
            Effect::ReadAbroad { ticket, piece, within, length } => {
                self.read_abroad(shared, ticket, &piece, (within, length));
            }
            Effect::Preallocate { tier, place, length, haste } => {
                let order = Preparation { tier, place, length, haste };
                self.preparer.prepare(shared, order);
            }
            Effect::GiveBack { place, length_log2 } => {
                self.giver.give_back(shared, (place, length_log2));
            }
            Effect::Below { inode } => self.ask_below(shared, inode),
            Effect::AskSaved { inode, number } => {
                let header = shared.own_header(inode.shard());
                let to = ReplyTo::IsSaved { inode, number };
                shared.hand_in(&header, &Request::IsSaved { inode }, to);
            }
            Effect::Fill { ticket, inode, piece, length, haste } => {
                self.fetch(shared, (ticket, inode), Wanted::Fill { piece, length, haste });
            }
            Effect::ReadBelow { ticket, inode, offset, length, below } => {
                self.fetch(shared, (ticket, inode), Wanted::Read { offset, length, below });
            }
            Effect::Zero { ticket, piece, within, length } => {
                self.attempt(ticket, |devices, _| {
                    devices.target().zero_pinned(&piece, within, length)
                });
            }
            Effect::Read { ticket, from, length } => {
                self.attempt(ticket, |devices, pending| read(devices, pending, from, length));
            }
            Effect::Write { ticket, piece, within, from, length } => {
                self.attempt(ticket, |devices, pending| {
                    let from = from as usize;
                    let bytes =
                        pending.bytes.get(from..).and_then(|bytes| bytes.get(..length as usize));
                    let bytes = bytes.ok_or(Errno::EIO)?;
                    let pins = devices.client_pins.of_daemon();
                    devices.target().write_pinned(&pins, &piece, within, bytes)
                });
            }
            Effect::Flush { ticket } => self.attempt(ticket, |devices, _| devices.ssd.sync()),
            Effect::Wait { ticket } => self.begin_wait(ticket),
            Effect::AskForRoom { round } => self.ask_for_room(shared, round),
            Effect::Reply { ticket, answer } => self.reply(shared, ticket, answer),
            effect => self.perform_on_rows(effect),
        }
        None
    }

    /// Effects on rows of the piece table, all in order.
    fn perform_on_rows(&mut self, effect: Effect) {
        match effect {
            Effect::Publish { inode, piece, .. } if piece.tier == Piece::ABROAD => {
                let (states, table) = (&self.devices.states, &self.devices.table);
                let noted = states
                    .set_resident(piece.slot, self.target.is_resident(inode))
                    .and_then(|()| table.publish_hidden(inode, &piece));
                assert_eq!(noted, Ok(()), "a slot beyond the piece table");
            }
            Effect::Publish { inode, piece, defined } => self.show(inode, &piece, defined),
            Effect::Keep { piece, .. } => {
                let noted = self.devices.states.set_early(piece.slot, false);
                let shown = noted.and_then(|()| self.devices.table.show(piece.slot));
                assert_eq!(shown, Ok(()), "a slot beyond the piece table");
            }
            Effect::Mark { slot, is_resident } => {
                let noted = self.devices.states.set_resident(slot, is_resident);
                assert_eq!(noted, Ok(()), "a slot beyond the piece table");
            }
            Effect::BeginSaving { slot } => {
                let begun = self.devices.states.begin_saving(slot);
                assert!(begun.is_ok(), "a slot beyond the piece table");
            }
            Effect::StopSaving { slot } => {
                let stopped = self.devices.states.stop_saving(slot);
                assert_eq!(stopped, Ok(()), "a slot beyond the piece table");
            }
            Effect::Hide { slot } => self.sinker.hide(&self.devices, slot, Why::Moves),
            Effect::HideToDrop { slot } => self.sinker.hide(&self.devices, slot, Why::IsDropped),
            Effect::Show { slot } => {
                let shown = self.devices.table.show(slot);
                assert_eq!(shown, Ok(()), "a slot beyond the piece table");
            }
            Effect::Unpublish { slot } => {
                let table = &self.devices.table;
                let before = table.get(slot).or_else(|| table.hidden(slot));
                let hidden = self.devices.table.unpublish(slot);
                assert_eq!(hidden, Ok(()), "a slot beyond the piece table");
                if let Some((inode, piece)) = before {
                    self.devices.finder.forget(inode, &piece);
                }
            }
            Effect::Intend { inode, piece } => {
                let noted = self.devices.table.publish_gone(inode, &piece);
                assert_eq!(noted, Ok(()), "a slot beyond the piece table");
            }
            Effect::Forget { slot } => {
                let emptied = self.devices.table.clear(slot);
                assert_eq!(emptied, Ok(()), "a slot beyond the piece table");
            }
            other => tracing::error!(?other, "an effect that nobody performs"),
        }
    }

    fn attempt(&mut self, ticket: u64, act: impl FnOnce(&Devices, &mut Pending) -> Result<()>) {
        let Some(pending) = self.pending.get_mut(&ticket) else { return };
        if pending.failed.is_none() {
            pending.failed = act(&self.devices, pending).err();
        }
    }

    /// Bytes came from below that answer a request, or not.
    pub(crate) fn answer_read(&mut self, shared: &Shared, ticket: u64, outcome: Result<Vec<u8>>) {
        let Some(pending) = self.pending.remove(&ticket) else { return };
        match outcome {
            Ok(bytes) => {
                let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                answer_with(shared, pending.to, Answer::Bytes { length }, &bytes);
            }
            Err(errno) => shared.refuse(pending.to, errno),
        }
    }

    fn reply(&mut self, shared: &Shared, ticket: u64, answer: Answer) {
        let Some(pending) = self.pending.remove(&ticket) else { return };
        let Pending { to, bytes: brought, answer: bytes, failed, again, waits_since, last } =
            pending;
        if let Some(since) = waits_since {
            self.note_wait(shared, since);
        }
        if let Some(errno) = failed {
            return shared.refuse(to, errno);
        }
        let again = again.map(|(inode, request)| match request {
            Request::Write { inode, chunk_log2, offset, cuts, .. } => {
                (inode, Request::Write { inode, chunk_log2, offset, cuts, bytes: &brought })
            }
            request => (inode, request),
        });
        match (answer, again) {
            (Answer::Beyond { account, wanted }, Some((inode, request)))
                if last != Final::Limit =>
            {
                self.want_more(shared, (inode, encoded(&request)), (account, wanted), to);
            }
            (answer, _) => answer_with(shared, to, answer, &bytes),
        }
    }

    /// Notes what `status` shows.
    pub(crate) fn publish(&mut self, shared: &Shared, guests: &[Option<Arc<Guest>>]) {
        self.request(shared, guests, &Request::Space {}, ReplyTo::Nobody);
    }
}

/// Sends an answer; `bytes` are what was read.
fn answer_with(shared: &Shared, to: ReplyTo, answer: Answer, bytes: &[u8]) {
    match answer {
        Answer::Done => shared.answer_with(to, &Reply::Done {}),
        Answer::Refused(errno) => shared.refuse(to, errno),
        Answer::Beyond { .. } => shared.refuse(to, Errno::EDQUOT),
        Answer::Busy { retry_micros } => shared.busy(to, retry_micros),
        Answer::Bytes { .. } => {
            shared.answer(to, &encode(&Reply::Bytes { bytes }, bytes.len()));
        }
        Answer::Pieces(pieces) => shared.answer(to, &encode_pieces(&pieces)),
        Answer::Number(value) => shared.answer_with(to, &Reply::Number { value }),
        Answer::Space { memory_total, memory_free, ssd_total, ssd_free } => {
            let files = shared.files();
            note_space(shared, [memory_total, memory_free, ssd_total, ssd_free]);
            let space = Reply::Space { memory_total, memory_free, ssd_total, ssd_free, files };
            shared.answer_with(to, &space);
        }
    }
}

pub(crate) fn micros_until(at: Instant) -> u64 {
    let left = at.saturating_duration_since(Instant::now()).max(Duration::from_micros(100));
    u64::try_from(left.as_micros()).unwrap_or(u64::MAX)
}

fn read(devices: &Devices, pending: &mut Pending, from: Source, length: u32) -> Result<()> {
    let start = pending.answer.len();
    pending.answer.resize(start + length as usize, 0);
    match from {
        Source::Hole => Ok(()),
        Source::Piece { piece, within } => {
            let to = pending.answer.get_mut(start..).unwrap_or_default();
            devices.target().read_pinned(&piece, within, to)
        }
    }
}

fn note_space(shared: &Shared, [memory_total, memory_free, ssd_total, ssd_free]: [u64; 4]) {
    shared.space.memory_total.store(memory_total, Relaxed);
    shared.space.memory_free.store(memory_free, Relaxed);
    shared.space.ssd_total.store(ssd_total, Relaxed);
    shared.space.ssd_free.store(ssd_free, Relaxed);
}
