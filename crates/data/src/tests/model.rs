//! Random requests against a plain map from file to bytes, with devices in memory, clients that
//! keep hazard pointers and write as long as they may, devices that refuse, extents that are
//! demoted and promoted page by page, memory that is wanted back, requests that wait, and kills,
//! also in the middle of each step of a move. `crashes` kills at every step in turn.

use crate::effect::{Answer, Effect, Input, Source, Validity};
use crate::space::tier::{Backing, Space};
use crate::target::{Settings, Target};
use crate::tests::pinned::Marks;
use crate::tiering::demote::DemotionSettings;
use acts::{ModelAct, act};
use copies::Copying;
use crashes::{Asking, Observed};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use waiting::{IMPATIENT, Waiting};
use wire::quota::Account;
use wire::reply::Extent;
use wire::request::stripe_log2_of;
use wire::{Errno, Inode, Request};

mod acts;
mod copies;
mod crashes;
mod kills;
mod lent;
mod migration;
mod owners;
mod preallocation;
mod recovery;
mod spill;
mod waiting;

const TIER_BYTES: u64 = 512 << 10;
const FILE_BYTES: u64 = 384 << 10;
const PAGE: u64 = 4096;
const STRIPE_LOG2: u8 = 17;

/// Contents of each file.
type ModelFiles = BTreeMap<u64, Vec<u8>>;

/// The daemon and its devices.
#[derive(Clone)]
struct ModelWorld {
    target: Target,
    settings: Settings,
    devices: [Vec<u8>; 2],
    /// Pages that a device holds: provisioned, and not given back.
    held: [BTreeSet<u64>; 2],
    /// Blocks being given back.
    give_backs: Vec<(u64, u8)>,
    table: BTreeMap<u32, (Inode, Extent)>,
    /// Hidden slots.
    hidden: BTreeSet<u32>,
    copies: Vec<Copying>,
    spill_hosts: spill::SpillHosts,
    millis: u32,
    /// The daemon is killed after this many more steps: effects, and pages of copies.
    kill_at: Option<usize>,
    /// It may be killed in a request, too, which its client then repeats to the next daemon.
    asks_again: bool,
    /// Contents of every file before the act in which the daemon is killed, and what that act may
    /// change.
    asking: Option<Asking>,
    seen: Observed,
    /// Valid pages of a slot.
    valid: BTreeMap<u32, BTreeSet<u64>>,
    /// Extents under the hazard pointers of stopped clients, which write into them.
    protected: BTreeMap<u32, Extent>,
    /// Extents that transfers to other hosts read.
    reading: BTreeMap<u32, Extent>,
    /// Slots whose entries are marked as preallocated.
    preallocation: BTreeSet<u32>,
    marks: Marks,
    refusing: bool,
    waiting: Waiting,
    /// A block could not be given back: the target waits before it tries again.
    has_refused: bool,
    /// Owners as they were reported, with the time, and the next time.
    owners: BTreeMap<Inode, (u32, i64)>,
    time: i64,
}

/// Limit of user 1, in bytes.
const ALLOWED: u64 = 200 << 10;

struct Outcome {
    answer: Answer,
    bytes: Vec<u8>,
}

impl ModelWorld {
    fn new(refusing: bool) -> ModelWorld {
        let space =
            Space { length: TIER_BYTES, backing: Backing::OnDemand, zeroed_from: 0, ahead: 0 };
        let settings = Settings {
            memory: Space { ahead: 96 << 10, ..space },
            ssd: space,
            slot_count: 40,
            quota_bytes: 900 << 10,
            demotion: DemotionSettings {
                demote_low_watermark_bytes: TIER_BYTES * 3 / 4,
                demote_min_watermark_bytes: TIER_BYTES / 4,
                idle_millis: 30,
            },
        };
        ModelWorld {
            target: Target::new(settings),
            settings,
            devices: [vec![0; TIER_BYTES as usize], vec![0; TIER_BYTES as usize]],
            held: [BTreeSet::new(), BTreeSet::new()],
            give_backs: Vec::new(),
            table: BTreeMap::new(),
            hidden: BTreeSet::new(),
            copies: Vec::new(),
            spill_hosts: spill::SpillHosts::default(),
            millis: u32::MAX - 100,
            kill_at: None,
            asks_again: false,
            asking: None,
            seen: Observed::default(),
            valid: BTreeMap::new(),
            protected: BTreeMap::new(),
            reading: BTreeMap::new(),
            preallocation: BTreeSet::new(),
            marks: Marks::default(),
            refusing,
            waiting: Waiting::default(),
            has_refused: false,
            owners: BTreeMap::new(),
            time: 0,
        }
    }

    fn device(&mut self, extent: &Extent, from: u64, to: u64) -> &mut [u8] {
        assert_ne!(extent.tier, Extent::SPILLED, "used where it is not");
        let end = extent.location + to;
        let mut pages = (extent.location + from) / PAGE..end.div_ceil(PAGE);
        let held = &self.held[usize::from(extent.tier)];
        assert!(pages.all(|page| held.contains(&page)), "used while it is not held");
        &mut self.devices[usize::from(extent.tier)][(extent.location + from) as usize..end as usize]
    }

    fn is_valid(&self, extent: &Extent, page: u64) -> bool {
        self.valid.get(&extent.slot).is_some_and(|pages| pages.contains(&page))
    }

    /// Each extent that the daemon or a client uses is published.
    fn check_shown(&self, extent: &Extent) {
        assert_eq!(self.table.get(&extent.slot).map(|row| row.1), Some(*extent), "not published");
        assert!(!self.hidden.contains(&extent.slot), "used while it is hidden");
    }

    fn write(&mut self, extent: &Extent, within: u64, bytes: &[u8]) {
        self.check_shown(extent);
        let end = within + bytes.len() as u64;
        for page in within / PAGE..end.div_ceil(PAGE) {
            if !self.is_valid(extent, page) {
                self.device(extent, page * PAGE, (page + 1) * PAGE).fill(0);
                self.valid.entry(extent.slot).or_default().insert(page);
            }
        }
        self.device(extent, within, end).copy_from_slice(bytes);
    }

    fn zero(&mut self, extent: &Extent, within: u64, length: u64) {
        self.check_shown(extent);
        for page in within / PAGE..(within + length).div_ceil(PAGE) {
            let (from, to) = (within.max(page * PAGE), (within + length).min((page + 1) * PAGE));
            if to - from == PAGE {
                self.valid.entry(extent.slot).or_default().remove(&page);
            } else if self.is_valid(extent, page) {
                self.device(extent, from, to).fill(0);
            }
        }
    }

    fn read(&mut self, extent: &Extent, within: u64, length: u64) -> Vec<u8> {
        self.check_readable(extent);
        let mut bytes = vec![0; length as usize];
        let end = within + length;
        for page in within / PAGE..end.div_ceil(PAGE) {
            if self.is_valid(extent, page) {
                let (from, to) = (within.max(page * PAGE), end.min((page + 1) * PAGE));
                let location = (from - within) as usize..(to - within) as usize;
                bytes[location].copy_from_slice(self.device(extent, from, to));
            }
        }
        bytes
    }

    /// Gives one input, performs the effects, and answers queries meanwhile.
    fn step(&mut self, input: Input<'_>, body: &[u8]) -> Option<Outcome> {
        let mut out = Vec::new();
        self.target.step(input, &mut out);
        self.perform(out, body)
    }

    fn perform(&mut self, out: Vec<Effect>, body: &[u8]) -> Option<Outcome> {
        let mut effects = VecDeque::from(out);
        let mut outcome: Option<Outcome> = None;
        let (mut bytes, mut counted) = (Vec::new(), 0);
        while let Some(effect) = effects.pop_front() {
            if !self.progresses() {
                break;
            }
            let mut out = Vec::new();
            match effect {
                Effect::Zero { extent, within, length, .. } => self.zero(&extent, within, length),
                Effect::Read { from, length, .. } => match from {
                    Source::Hole => bytes.resize(bytes.len() + length as usize, 0),
                    Source::Extent { extent, within } => {
                        bytes.extend(self.read(&extent, within, length.into()));
                    }
                },
                Effect::Write { extent, within, from, length, .. } => {
                    self.write(&extent, within, &body[from as usize..(from + length) as usize]);
                }
                Effect::CountPages { extents, .. } => {
                    counted = extents.iter().map(Extent::length).sum();
                }
                Effect::Flush { .. } => {}
                Effect::LocateBacking { .. } | Effect::Fill { .. } => {
                    unreachable!("no file is backed")
                }
                Effect::Reply { ticket, answer } if ticket != IMPATIENT => {
                    self.note_answer(ticket, &answer);
                }
                Effect::Reply { answer, .. } => {
                    self.note_answer(IMPATIENT, &answer);
                    assert!(outcome.is_none(), "answered twice");
                    let answer = match answer {
                        Answer::Number(number) => Answer::Number(number + counted),
                        answer => answer,
                    };
                    outcome = Some(Outcome { answer, bytes: std::mem::take(&mut bytes) });
                }
                Effect::ReadSpilled { ticket, extent, within, length } => {
                    assert_eq!(ticket, IMPATIENT, "only that request reads");
                    outcome = Some(self.read_spilled(&extent, within, length));
                }
                Effect::Wait { .. } | Effect::RequestSpace { .. } => {
                    self.perform_on_waiting(&effect, &mut out);
                }
                effect => self.perform_on_table(effect, &mut out),
            }
            effects.extend(out);
        }
        self.note_away();
        outcome
    }

    /// Performs effects that are no part of an answer.
    fn perform_on_table(&mut self, effect: Effect, out: &mut Vec<Effect>) {
        match effect {
            Effect::Publish { inode, extent, valid } => self.publish(inode, extent, valid),
            Effect::Keep { inode, extent } => {
                assert_eq!(self.table.get(&extent.slot), Some(&(inode, extent)));
                assert!(self.preallocation.remove(&extent.slot), "it was not early");
            }
            Effect::Hide { slot } => {
                assert!(self.table.contains_key(&slot) && self.hidden.insert(slot));
                Marks::check_hidden(&self.target, &self.table[&slot]);
                assert!(!self.preallocation.contains(&slot), "a preallocated extent moves");
            }
            Effect::Show { slot } => {
                assert!(self.hidden.remove(&slot), "it was not hidden");
                self.spoil_copies(slot);
            }
            Effect::Copy { ticket, from, to, .. } => self.begin_copy(ticket, from, to),
            Effect::Unpublish { slot } => {
                let (_, extent) = self.table.remove(&slot).expect("an entry");
                self.hidden.remove(&slot);
                self.note_spilled(&extent, false);
            }
            Effect::CheckHazards { round } => {
                let (protected, reading) = self.protected_slots();
                let hazards = Input::Hazards { round, protected: &protected, reading: &reading };
                self.target.step(hazards, out);
            }
            Effect::Provision { tier, location, length, .. } => {
                let refuses = self.refusing && tier == Extent::SSD;
                let outcome = if refuses { Err(Errno::ENOSPC) } else { Ok(()) };
                if outcome.is_ok() {
                    self.held[usize::from(tier)]
                        .extend(location / PAGE..(location + length) / PAGE);
                }
                self.target.step(Input::Provisioned { outcome }, out);
            }
            Effect::Mark { slot, is_pinned } => self.marks.set(slot, is_pinned),
            Effect::GiveBack { location, length_log2 } => self.give_back(location, length_log2),
            other => self.perform_spill(other),
        }
    }

    fn publish(&mut self, inode: Inode, extent: Extent, valid: Validity) {
        self.note_allocated(inode, extent, valid);
        let pages = match valid {
            Validity::All | Validity::Backing | Validity::Fetched => {
                (0..extent.length() / PAGE).collect()
            }
            Validity::Nothing | Validity::Preallocated => BTreeSet::new(),
            Validity::As(from) => {
                assert!(self.hidden.contains(&from.slot), "clients may still write to it");
                self.valid.get(&from.slot).cloned().unwrap_or_default()
            }
        };
        self.valid.insert(extent.slot, pages);
        self.marks.set(extent.slot, self.target.is_pinned(inode));
        self.preallocation.remove(&extent.slot);
        if valid == Validity::Preallocated {
            self.preallocation.insert(extent.slot);
        }
        let is_protected =
            [&self.protected, &self.reading].iter().any(|all| all.contains_key(&extent.slot));
        assert!(!is_protected, "a protected slot was reused");
        assert!(self.table.insert(extent.slot, (inode, extent)).is_none());
        self.note_spilled(&extent, true);
        let shown = self.table.iter().filter(|(slot, _)| !self.hidden.contains(slot));
        let same = |row: &(Inode, Extent)| row.0 == inode && row.1.start == extent.start;
        let count = usize::from(extent.tier != Extent::SPILLED);
        assert_eq!(shown.filter(|(_, row)| same(row)).count(), count, "a range is shown twice");
    }

    /// Looks for extents to move, as the daemon does when time has passed.
    fn look(&mut self, up: bool, millis: u32, used: u64) {
        self.millis = self.millis.wrapping_add(millis);
        let mut out = Vec::new();
        let mut was_used = |slot: u32| used >> (slot % 64) & 1 != 0;
        if up {
            // Otherwise hardly anything would be free beyond the watermark.
            self.target.set_demotion(DemotionSettings {
                demote_low_watermark_bytes: 1,
                ..DemotionSettings::NEVER
            });
            self.target.promote(self.millis, &mut was_used, &mut out);
        } else {
            self.target.set_demotion(self.settings.demotion);
            self.target.demote(self.millis, &mut was_used, &mut out);
        }
        self.perform(out, &[]);
        self.tick_writers();
        if millis.is_multiple_of(3) {
            self.let_go();
        }
    }

    fn call(&mut self, request: &Request<'_>) -> Outcome {
        let body = if let Request::Write { bytes, .. } = request { bytes } else { &[][..] };
        let ticket = IMPATIENT;
        self.begin_to_ask(request);
        self.ask_at_once(request);
        let outcome = self.ask_until_answered(&|world| {
            world.look_at_preallocated(false);
            let outcome =
                world.step(Input::Request { ticket, request, job: wire::JobWord::NONE }, body);
            let outcome = outcome.or_else(|| world.fetch_back(body));
            outcome.or_else(|| world.step(Input::Withdraw { ticket }, body))
        });
        match (request, &outcome.answer) {
            (&Request::Read { inode, offset, length, .. }, Answer::Busy { .. })
                if self.target.spilled_bytes().spilled_out > 0 =>
            {
                self.read_by_extents(inode, offset, length)
            }
            _ => outcome,
        }
    }

    /// Stopped clients write on under their hazard pointers: this must do no harm.
    fn scribble(&mut self) {
        for extent in self.protected.clone().values() {
            let is_theirs = self.table.get(&extent.slot).is_some_and(|row| row.1 == *extent);
            if !is_theirs {
                self.device(extent, 0, extent.length()).fill(0xee);
            }
        }
    }

    fn manage(&mut self, act: &ModelAct) {
        match *act {
            ModelAct::Protect { slot } => {
                if let Some(row) = self.table.get(&slot).filter(|_| !self.hidden.contains(&slot)) {
                    self.protected.insert(slot, row.1);
                }
            }
            ModelAct::Unprotect => {
                self.protected.clear();
                self.reading.clear();
            }
            ModelAct::Count => self.count(),
            ModelAct::Slow => self.be_slow(),
            ModelAct::Silence { millis, kill_at } => {
                self.until_killed(kill_at, |world| world.be_silent(millis));
            }
            ModelAct::Want { file, offset, length } => self.want(file, offset, length),
            ModelAct::SpaceReported { comes } => self.space_reported(comes),
            ModelAct::Own { file, uid, pinned } => self.set_owner(file, uid, pinned),
            ModelAct::Look { up, millis, used, kill_at } => {
                self.until_killed(kill_at, |world| world.look(up, millis, used));
            }
            ModelAct::CopyGoesOn { which, pages } => self.copy_pages(which, pages),
            ModelAct::CopyEnds { which, fails, kill_at } => {
                self.until_killed(kill_at, |world| world.end_copy(which, fails));
            }
            ModelAct::Lend { bytes, kill_at } => {
                self.until_killed(kill_at, |world| world.lend(bytes));
            }
            ModelAct::GiveBackEnds { which, fails } => self.end_give_back(which, fails),
            _ => self.look_at_preallocated(true),
        }
    }

    /// A refusal has a valid reason: a limit stops only a user that has reached it.
    fn check_refusal(&self, inode: Inode, answer: &Answer) {
        match *answer {
            // The device's last operation failed.
            Answer::Refused(Errno::EIO) => assert!(self.seen.failed > 0),
            Answer::Refused(Errno::ENOSPC | Errno::EDQUOT) => {
                assert_eq!(self.target.moves_count(), 0, "there will be space in a moment");
            }
            // It would have to wait.
            Answer::Busy { .. } => {}
            Answer::OverLimit { account, requested } => {
                let used = self.target.account_usage().used().get(&account).copied().unwrap_or(0);
                assert!(account == Account::user(1) && used + requested > ALLOWED);
                assert_eq!(self.owners.get(&inode).map(|owner| owner.0), Some(1));
            }
            ref other => panic!("{other:?}"),
        }
    }
}

fn grow(file: &mut Vec<u8>, end: u64) {
    if file.len() < end as usize {
        file.resize(end as usize, 0);
    }
}

fn remove(world: &mut ModelWorld, files: &mut ModelFiles, gone: &[u64]) {
    let inodes: Vec<u8> = gone.iter().flat_map(|file| file.to_le_bytes()).collect();
    let outcome = world.call(&Request::Remove { inodes: &inodes });
    assert_eq!(outcome.answer, Answer::Done);
    for file in gone {
        files.remove(file);
        world.owners.remove(&Inode(*file));
        let usage = world.call(&Request::Usage { inode: Inode(*file), end: u64::MAX });
        assert_eq!(usage.answer, Answer::Number(0), "file {file} is gone");
    }
}

/// Writes as a client does that finds a preallocated extent.
fn write_preallocated(
    world: &mut ModelWorld,
    files: &mut ModelFiles,
    (file, last): (u64, bool),
    length: u64,
    with: u8,
) {
    let preallocation: Vec<Extent> = world.target.preallocated_of(Inode(file)).collect();
    let extent = if last { preallocation.last() } else { preallocation.first() };
    if let Some(&extent) = extent {
        world.write(&extent, 0, &vec![with; length as usize]);
        let model = files.entry(file).or_default();
        grow(model, extent.start + length);
        model[extent.start as usize..][..length as usize].fill(with);
    }
}

/// Checks the extents of an answer: in order, those requested and those ahead; requested ones are
/// not preallocated.
fn check_answer(world: &ModelWorld, request: &Request<'_>, extents: &[Extent]) {
    let &Request::MapExtents { inode, stripe_log2, offset, length, preallocate: ahead, .. } =
        request
    else {
        panic!("{request:?} requests no extents")
    };
    let stripe_log2 = stripe_log2_of(stripe_log2);
    let spans = || placement::extent::over(offset, length + ahead, stripe_log2);
    assert!(extents.len() <= spans().count(), "more than requested");
    assert!(spans().zip(extents).all(|(span, extent)| span.start == extent.start));
    let mut own = extents.iter().filter(|extent| extent.start < offset + length);
    assert!(own.all(|extent| world.target.preallocated(inode, extent.start).is_none()));
}

fn map(world: &mut ModelWorld, inode: Inode, (offset, length): (u64, u64), ahead: u64) {
    let request = Request::MapExtents {
        inode,
        stripe_log2: owners::stripe_of(inode.0),
        allocate: 1,
        offset,
        length,
        preallocate: ahead,
    };
    match world.call(&request).answer {
        Answer::Extents(extents) => check_answer(world, &request, &extents),
        other => world.check_refusal(inode, &other),
    }
}

fn perform(world: &mut ModelWorld, files: &mut ModelFiles, act: &ModelAct) {
    let stripe_log2 = STRIPE_LOG2;
    match *act {
        ModelAct::Write { file, offset, length, with } => {
            let bytes: Vec<u8> = (0..length).map(|at| with.wrapping_add(at as u8)).collect();
            let (inode, truncate_epoch, stripe_log2) =
                (Inode(file), u64::MAX, owners::stripe_of(file));
            let write =
                Request::Write { inode, stripe_log2, offset, truncate_epoch, bytes: &bytes };
            let outcome = world.call(&write);
            match outcome.answer {
                Answer::Done => {
                    let model = files.entry(file).or_default();
                    grow(model, offset + length);
                    model[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
                other => world.check_refusal(inode, &other),
            }
        }
        ModelAct::Read { file, offset, length } => {
            let length32 = length as u32;
            let request =
                Request::Read { inode: Inode(file), stripe_log2, offset, length: length32 };
            let outcome = world.call(&request);
            assert_eq!(outcome.answer, Answer::Bytes { length: length32 });
            let model = files.entry(file).or_default();
            grow(model, offset + length);
            assert_eq!(outcome.bytes, &model[offset as usize..][..length as usize]);
        }
        ModelAct::Map { file, offset, length, ahead } => {
            map(world, Inode(file), (offset, length), ahead);
        }
        ModelAct::Truncate { file, size } => {
            let request = Request::Truncate { inode: Inode(file), stripe_log2, size };
            if world.is_cut_refused(&request) {
                return;
            }
            files.entry(file).or_default().truncate(size as usize);
        }
        ModelAct::Punch { file, offset, length } => {
            let request = Request::Punch { inode: Inode(file), stripe_log2, offset, length };
            if world.is_cut_refused(&request) {
                return;
            }
            let model = files.entry(file).or_default();
            grow(model, offset + length);
            model[offset as usize..][..length as usize].fill(0);
        }
        ModelAct::Remove { files: ref gone } => remove(world, files, gone),
        ModelAct::ReadFromAfar { file, offset, takes_long } => {
            world.read_from_afar(files, (file, offset), takes_long);
        }
        ModelAct::Tick => assert!(world.step(Input::Tick, &[]).is_none()),
        ModelAct::Kill => world.kill(None),
        ModelAct::Preallocate { file } => {
            assert!(world.step(Input::Preallocate { inodes: &[Inode(file)] }, &[]).is_none());
        }
        ModelAct::WritePreallocated { file, last, length, with } => {
            write_preallocated(world, files, (file, last), length, with);
        }
        _ => world.manage(act),
    }
}

fn check(world: &mut ModelWorld, files: &ModelFiles) {
    for (&file, model) in files {
        let request = Request::Read {
            inode: Inode(file),
            stripe_log2: STRIPE_LOG2,
            offset: 0,
            length: model.len() as u32,
        };
        assert!(world.call(&request).bytes == *model, "file {file} differs");
    }
    let used: u64 = world.target.extents().map(|(_, extent)| extent.length()).sum();
    // A preallocated extent is a hole that no request named.
    let used = used - world.target.preallocated_bytes();
    let mut usage = 0;
    for file in 0..5 {
        if let Answer::Number(bytes) =
            world.call(&Request::Usage { inode: Inode(file), end: u64::MAX }).answer
        {
            usage += bytes;
        }
    }
    assert_eq!(usage, used);
    world.target.check_preallocation();
}

/// Checks the space that users see: extents of files count, preallocated ones do not.
fn check_space(world: &mut ModelWorld) {
    let answer = world.call(&Request::Space {}).answer;
    let Answer::Space { memory_total, memory_free, ssd_total, ssd_free } = answer else {
        panic!("no space is reported")
    };
    let taken = world.bytes_here() - world.target.preallocated_bytes();
    let leaving = memory_total + ssd_total - memory_free - ssd_free - taken;
    assert_eq!(leaving > 0, world.target.leaving_count() > 0);
}

/// Performs one act, and checks that all invariants hold after it.
fn go_on(world: &mut ModelWorld, files: &mut ModelFiles, act: &ModelAct) {
    world.until_killed(None, |world| perform(world, files, act));
    // Checking is no step of the daemon's.
    let kill_at = world.kill_at.take();
    world.scribble();
    check_space(world);
    world.target.check_accounts();
    world.target.check_moves();
    world.check_waiting();
    world.target.check_records();
    world.target.check_spill();
    world.target.check_records();
    world.target.check_fairness();
    world.kill_at = kill_at;
}

/// Checks every file's contents, that all waiting requests end, and that all space is freed.
fn finish(world: &mut ModelWorld, files: &mut ModelFiles) {
    check(world, files);
    while !world.copies.is_empty() {
        world.end_copy(0, false);
    }
    check(world, files);
    perform(world, files, &ModelAct::Remove { files: (1..5).collect() });
    perform(world, files, &ModelAct::Unprotect);
    perform(world, files, &ModelAct::Tick);
    assert_eq!(world.target.writers_waiting(), 0);
    world.check_answered();
    assert_eq!(world.target.leaving_count(), 0);
    world.check_nothing_spilled();
    world.lend(0);
    while !world.give_backs.is_empty() {
        world.end_give_back(0, false);
    }
    let gone = world.target.memory_lent();
    assert!(gone.held == 0 || world.has_refused, "{gone:?} is left");
    world.lend(TIER_BYTES);
    assert_eq!(world.target.pool.memory().bytes_free(), TIER_BYTES);
    assert_eq!(world.target.pool.ssd().bytes_free(), TIER_BYTES);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever happens, files read as the plain map says, and in the end all space is free.
    #[test]
    fn a_target_behaves_as_a_map(
        acts in proptest::collection::vec(act(), 1..60),
        refusing in proptest::bool::weighted(0.2),
        defers in proptest::bool::weighted(0.3),
        has_spill_hosts in proptest::bool::weighted(0.4),
    ) {
        let mut world = ModelWorld::new(refusing);
        if has_spill_hosts {
            world.set_spill_hosts();
        }
        world.waiting.defers = defers;
        let mut files = BTreeMap::new();
        for act in &acts {
            go_on(&mut world, &mut files, act);
        }
        finish(&mut world, &mut files);
    }
}
