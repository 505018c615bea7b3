//! Taking up what an earlier daemon left: the target from the piece table, the shards from their
//! logs. For a first start there is nothing to take up, and the same code makes everything new.

use crate::abroad::first_number;
use crate::early::Early;
use crate::history::History;
use crate::lend::{self, Blocks, giver};
use crate::memory::{Mapped, TargetMemory};
use crate::prepare::{Orders, preparer};
use crate::settings::Settings;
use crate::shard::Shard;
use crate::sink::{Copies, sinker};
use crate::startup::{Failure, Outcome, failed};
use crate::target::{Devices, Pins, TargetLoop};
use crate::thresholds::Follower;
use data::{Backing, Effect, Space, Target};
use metadata::Service;
use placement::Map;
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, SeekFrom};
use shm::arena::Arena;
use shm::finder::Finder;
use shm::index::{Index, Shape};
use shm::leases::{LEASES_BYTES, Leases};
use shm::pieces::{HEADER_BYTES, PieceStates, PieceTable};
use shm::segment::errno;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use store::journal::STEP_BYTES;
use store::{Journal, Options, SsdFile, Sync};
use wire::limits::WORKER_COUNT_MAX;
use wire::reply::Piece;
use wire::{DaemonIndex, Inode};

/// Permission bits of the root directory.
const ROOT_MODE: u32 = 0o755;
/// Most bytes of the arena that are made ready before anybody needs them: a sixteenth of it, and no
/// more than this.
const MEMORY_AHEAD_BYTES_MAX: u64 = 256 << 20;
/// Bytes of memory for entries and inodes beyond which creating fails: as much as the arena, and at
/// least this.
const METADATA_BYTES_MIN: u64 = 1 << 30;

fn told(error: impl std::fmt::Display) -> Failure {
    Failure(error.to_string())
}

/// The file of the SSD tier.
pub(crate) fn open_ssd(settings: &Settings) -> Outcome<SsdFile> {
    SsdFile::open(&settings.data.join("ssd"), settings.ssd).map_err(told)
}

/// The target, its devices, and the sides of the threads that make them hold space and that copy pieces.
/// Earlier daemons had sessions with numbers below `sessions_before`.
pub(crate) fn target(
    settings: &Settings,
    memory: TargetMemory,
    ssd: SsdFile,
    sessions_before: u16,
) -> Outcome<(TargetLoop, Arc<Devices>, Orders, Copies, Blocks)> {
    let TargetMemory { arena, table, states, stretches, finder, pins, piece_count } = memory;
    let is_new = table.is_new;
    let space =
        |length, fresh_from, ahead| Space { length, backing: Backing::OnDemand, fresh_from, ahead };
    let ahead = (settings.memory / 16).min(MEMORY_AHEAD_BYTES_MAX);
    let arena_fresh = if arena.is_new { 0 } else { u64::MAX };
    let sizes = data::Settings {
        memory: space(settings.memory, arena_fresh, ahead),
        ssd: space(settings.ssd, if is_new { 0 } else { ssd.data_end() }, 0),
        slot_count: piece_count,
        quota_bytes: u64::MAX,
        sinking: settings.sinking(),
    };
    let orders_ssd = ssd.fd().try_clone_to_owned().map_err(failed("copy a descriptor"))?;
    let (giver, blocks) = giver(&arena.fd).map_err(failed("copy a descriptor"))?;
    let of_arena = arena.fd.try_clone().map_err(failed("copy a descriptor"))?;
    let (preparer, orders) = preparer(arena.fd, orders_ssd);
    let table_fd = table.fd;
    let devices = Arc::new(Devices {
        arena: Arena::new(arena.segment),
        ssd,
        table: PieceTable::new(table.segment),
        states: PieceStates::new(states.segment, stretches.segment),
        finder: Finder::new(finder.segment).map_err(failed("use the finder"))?,
        client_pins: shm::pins::Pins::new(pins.segment).map_err(failed("use the pins"))?,
        sessions_before,
        pins: Pins::default(),
    });
    let (mut found, mut dismissed) = (Vec::new(), Vec::new());
    let mut target = if is_new {
        Target::new(sizes)
    } else {
        let mut target = recover_target(sizes, &devices, &table_fd, &mut found, &mut dismissed)?;
        give_back_free(&mut target, &of_arena);
        target
    };
    let early = Early::new(settings.shm.clone(), &found);
    target.set_member(settings.index, settings.count);
    let own = settings.local_first..settings.local_first + settings.local_count;
    let others = (0..settings.count).filter(|index| !own.contains(index)).map(DaemonIndex);
    target.set_keepers(others, first_number());
    if settings.backing.is_some() {
        target.set_backing(!is_new);
    }
    target.set_move_rate(settings.move_rate);
    target.set_wish_rate(settings.backing_rate.div_ceil(settings.count.into()));
    let (sinker, copies) = sinker(&settings.data.join("ssd"));
    let history = open_history(settings, &mut target);
    let follower = Follower::new(settings.thresholds());
    let sinker = (sinker, follower);
    let mut target = TargetLoop::new(target, Arc::clone(&devices), preparer, sinker, giver, early);
    target.history = history;
    dismissed.into_iter().for_each(|(slot, place)| target.begin_dismissal(slot, place));
    Ok((target, devices, orders, copies, blocks))
}

/// The job goes on without it if it can not be had.
fn open_history(settings: &Settings, target: &mut Target) -> Option<History> {
    let path = settings.run.join(format!("d{}.history", settings.index.0));
    let opened = (settings.history != 0).then(|| History::open(&path))?;
    target.record_uses();
    let failed = |error: &std::io::Error| tracing::warn!(%error, "what is read is not noted");
    opened.inspect_err(failed).ok()
}

/// If an earlier daemon gave memory back, nobody knows which of what is free is still held: it is given
/// back, too.
fn give_back_free(target: &mut Target, arena: &OwnedFd) {
    let held = rustix::fs::fstat(arena).map_or(0, |stat| stat.st_blocks.cast_unsigned() * 512);
    if held < target.memory_lent().held {
        target.forget_free_memory(&mut |place, length| lend::punch(arena, place, length).is_ok());
    }
}

/// The target as an earlier daemon left it. Early pieces that nobody wrote to go to `early`.
fn recover_target(
    sizes: data::Settings,
    devices: &Devices,
    fd: &OwnedFd,
    early: &mut Vec<(Inode, Piece)>,
    dismissed: &mut Vec<(u32, u64)>,
) -> Outcome<Target> {
    let Devices { table, states, .. } = devices;
    let slots = used_slots(fd, table.count()).map_err(failed("read the piece table"))?;
    let slots: Vec<u32> = slots.into_iter().flatten().collect();
    let shown: Vec<_> = slots.iter().filter_map(|&slot| table.get(slot)).collect();
    // The earlier daemon may have been about to take an early piece back, or to move one.
    let hidden: Vec<_> = slots.iter().filter_map(|&slot| table.hidden(slot)).collect();
    let mut effects = Vec::new();
    let is_early = |piece: &Piece| states.is_early(piece.slot) && states.is_hole(piece);
    early.extend(shown.iter().chain(&hidden).filter(|(_, piece)| is_early(piece)));
    let (mut target, dropped) = Target::recover(sizes, shown, hidden, &mut effects);
    target.restore_early(early.iter().copied());
    early.retain(|&(inode, piece)| target.early(inode, piece.start) == Some(piece));
    let is_resident = |(_, piece): &(Inode, Piece)| states.is_resident(piece.slot);
    let residents: BTreeSet<Inode> =
        target.pieces().filter(is_resident).map(|(inode, _)| inode).collect();
    target.restore_residents(residents.into_iter(), &mut effects);
    let is_here = |piece: &Piece| piece.tier != Piece::ABROAD;
    let is_clean = |(_, piece): &(Inode, Piece)| is_here(piece) && states.is_clean(piece.slot);
    let clean: Vec<_> = target.pieces().filter(is_clean).collect();
    target.restore_clean(clean.into_iter());
    let gone = slots.iter().filter_map(|&slot| table.gone(slot)).filter(|piece| !is_here(piece));
    target.restore_dismissed(gone.map(|piece| (piece.slot, piece.place)), &mut effects);
    for one in dropped {
        tracing::error!("{one}");
    }
    for effect in effects {
        match effect {
            Effect::Unpublish { slot } => table.unpublish(slot),
            Effect::Show { slot } => table.show(slot),
            Effect::Dismiss { slot, place } => {
                dismissed.push((slot, place));
                Ok(())
            }
            _ => Ok(()),
        }
        .map_err(failed("change a row of the piece table"))?;
    }
    // Who pins such a piece may be copying; who pins it from here on finds that it is gone.
    let mut pinned = Vec::new();
    devices.each_pin_of_before(&mut |slot| pinned.extend(table.gone(slot)));
    target.restore_leaving(pinned);
    Ok(target)
}

/// Ranges of rows that were ever written. Looking at the others would give them memory.
fn used_slots(fd: &OwnedFd, count: u32) -> rustix::io::Result<Vec<std::ops::Range<u32>>> {
    let row = |offset: u64| u32::try_from(offset / HEADER_BYTES as u64).unwrap_or(count).min(count);
    let mut ranges = Vec::new();
    let mut from = 0;
    loop {
        let start = match rustix::fs::seek(fd, SeekFrom::Data(from)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => return Ok(ranges),
            Err(error) => return Err(error),
        };
        let end = rustix::fs::seek(fd, SeekFrom::Hole(start))?;
        ranges.push(row(start)..row(end + HEADER_BYTES as u64 - 1));
        from = end.max(start + 1);
    }
}

/// The shards of all workers, replayed side by side.
pub(crate) fn shards(settings: &Settings, map: &Map, indexes: Vec<Mapped>) -> Outcome<Vec<Shard>> {
    thread::scope(|scope| {
        let replays: Vec<_> = indexes
            .into_iter()
            .enumerate()
            .map(|(worker, index)| scope.spawn(move || shard(settings, map, worker, index)))
            .collect();
        let broken = |_| Failure("a replay broke off".into());
        replays.into_iter().map(|replay| replay.join().map_err(broken)?).collect()
    })
}

fn shard(settings: &Settings, map: &Map, worker: usize, index: Mapped) -> Outcome<Shard> {
    let mut service = Service::new(metadata::Config {
        daemon: settings.index,
        host: settings.local_first,
        host_daemons: settings.local_count,
        worker,
        workers: settings.workers,
        map: map.clone(),
        chunk_log2: settings.chunk_log2,
        inline_bytes: settings.inline,
        spread: settings.spread,
        placement: settings.placement,
        root_flags: settings.flags,
        backing: settings.backing.is_some(),
        drafts: settings.has_drafts(),
        look_nanos: match &settings.backing {
            Some(place) if !below::is_bucket(place) => settings.check_nanos(),
            _ => i64::MAX,
        },
        // Half of it, so that who waits for somebody who is gone is answered in his own time.
        silence_nanos: i64::try_from(settings.timeout_micros.saturating_mul(500))
            .unwrap_or(i64::MAX),
        metadata_bytes_max: settings.memory.max(METADATA_BYTES_MIN) / settings.workers as u64,
        root_uid: settings.owner,
        root_gid: rustix::process::getegid().as_raw(),
        root_mode: ROOT_MODE,
    });
    let directory = settings.data.join(format!("log{worker}"));
    let journal = replay(&directory, &mut service)?;
    if !index.is_new {
        empty(&index).map_err(failed("empty the index"))?;
    }
    let index = Index::create(index.segment, Shape::DEFAULT).map_err(failed("make the index"))?;
    Ok(Shard::new(worker, service, index, journal))
}

/// What clients may believe of other hosts' directories: nothing any more.
pub(crate) fn leases(memory: &Mapped, daemons: u16) -> Outcome<Leases> {
    let services = if memory.is_new { 0 } else { usize::from(daemons) * WORKER_COUNT_MAX };
    let punch = |first: usize| punch(&memory.fd, first, LEASES_BYTES);
    Leases::create(&memory.fd, services, |first| punch(first).map_err(errno))
        .map_err(failed("make room for leases"))
}

fn replay(directory: &Path, service: &mut Service) -> Outcome<Journal> {
    store::directory::create(directory).map_err(told)?;
    let options = Options { sync: Sync::Never, step_bytes: STEP_BYTES };
    let mut replay = Journal::open(directory, options).map_err(told)?;
    let mut records = 0u64;
    while let Some(record) = replay.next().map_err(told)? {
        let wrong = format!("take up record {records} of the log in {}", directory.display());
        service.replay(record).map_err(failed(wrong))?;
        records += 1;
    }
    if records > 0 {
        tracing::info!(log = %directory.display(), records, "log replayed");
    }
    replay.into_journal().map_err(told)
}

/// Clients of the earlier daemon still map the index, so it is emptied in place: its pages become
/// zeros, which every reader takes for buckets that hold nothing.
fn empty(index: &Mapped) -> rustix::io::Result<()> {
    Index::empty(&index.segment, |first| punch(&index.fd, first, Shape::DEFAULT.bytes()))
}

/// Makes zeros of a file from `first` to `end`.
fn punch(fd: &OwnedFd, first: usize, end: usize) -> rustix::io::Result<()> {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(fd, how, first as u64, (end - first) as u64)
}
