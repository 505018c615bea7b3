//! Recovers the state of an earlier daemon: the target from the extent table, the shards from their
//! logs. On a first start there is none, and the same code creates everything.

use crate::backing::BackingLocations;
use crate::members::copies::{FollowedLog, TakenLog};
use crate::members::engine::ServiceLog;
use crate::shard::Shard;
use crate::shard::log::ShardLog;
use crate::shared::log_progress::LogProgress;
use crate::shared::owners::EarlierOwner;
use crate::startup::failure::{Failure, StartResult, WithoutCopies, failed, no_thread};
use crate::startup::found::Found;
use crate::startup::memory::{Mapped, TargetMemory};
use crate::startup::settings::Settings;
use crate::target::devices::used_slots;
use crate::target::driver::{RateShare, TargetTimers};
use crate::target::effects::Performers;
use crate::target::pending::PendingRequests;
use crate::target::profile::ProfileRecorder;
use crate::target::space::accounts::AccountWaits;
use crate::target::space::admission::SpaceWait;
use crate::target::space::preallocate::Preallocation;
use crate::target::space::prepare::{ProvisionedFiles, Provisioner, provision_channel};
use crate::target::space::slots::SlotMemory;
use crate::target::tiering::demotion::{Copier, HiddenExtents, copy_channel};
use crate::target::tiering::lending::{self, BlockReleaser, block_release_channel};
use crate::target::tiering::spill::{SpillReleases, first_number};
use crate::target::tiering::watermarks::WatermarkTuner;
use crate::target::{Devices, TargetLoop, TransferHazards};
use crate::threads::scrub::Scrubber;
use config::control::from_hex;
use config::process::{Salvage, ServiceRepair};
use data::{Backing, Effect, Space, Target};
use metadata::{LoggedState, Service};
use placement::{Map, ServiceName};
use rustix::fd::OwnedFd;
use rustix::fs::FallocateFlags;
use shm::extents::{Arena, ExtentHints, ExtentStates, ExtentTable, HazardPointers, PageSums};
use shm::index::{Index, LEASES_BYTES, Leases, Shape};
use shm::segment::errno;
use shm::{Access, Segment};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use store::journal::STEP_BYTES;
use store::medium::RealFiles;
use store::{Damage, Expected, Identity, Journal, Options, Replay, SsdFile, Sync};
use wire::limits::WORKER_COUNT_MAX;
use wire::reply::Extent;
use wire::{DaemonIndex, Inode};

/// Permission bits of the root directory.
const ROOT_MODE: u32 = 0o755;
/// Maximum bytes of the arena that are provisioned before they are needed: a sixteenth of it, up to
/// this.
const MEMORY_AHEAD_BYTES_MAX: u64 = 256 << 20;
/// Minimum memory limit for entries and inodes, beyond which creates fail; otherwise it equals the
/// arena.
const METADATA_BYTES_MIN: u64 = 1 << 30;

fn failure(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}

/// An error of a file that can be salvaged.
fn damaged(error: store::Error) -> Failure {
    Failure::of_file(WithoutCopies::Salvage)(error)
}

/// Opens the file of the SSD tier. Also returns which part of it is lost.
pub(crate) fn open_ssd(settings: &Settings, found: &Found) -> StartResult<(SsdFile, Range<u64>)> {
    let (path, length) = (settings.data.join("ssd"), settings.ssd);
    let whole = |file| (file, length..length);
    match (&settings.salvage, found.expected()) {
        (Some(_), Expected::Existing) => {
            let salvaged = SsdFile::salvage(&path, length, found.identity()).map_err(failure);
            salvaged.map(|(file, end)| (file, end..length))
        }
        (_, expected) => {
            let opened = SsdFile::open(&path, length, found.identity(), expected);
            opened.map(whole).map_err(damaged)
        }
    }
}

fn space(length: u64, zeroed_from: u64, ahead: u64) -> Space {
    Space { length, backing: Backing::OnDemand, zeroed_from, ahead }
}

/// `fresh`: offsets from which memory and SSD are zeros.
fn sizes(settings: &Settings, fresh: (u64, u64), slot_count: u32) -> data::Settings {
    let ahead = (settings.memory / 16).min(MEMORY_AHEAD_BYTES_MAX);
    data::Settings {
        memory: space(settings.memory, fresh.0, ahead),
        ssd: space(settings.ssd, fresh.1, 0),
        slot_count,
        quota_bytes: u64::MAX,
        demotion: settings.demotion(),
    }
}

/// State of the threads of a target: those that provision space, copy extents, release blocks, and
/// check the SSD.
pub(crate) struct TargetThreads {
    pub(crate) provisioner: Provisioner,
    pub(crate) copies: Copier,
    pub(crate) blocks: BlockReleaser,
    pub(crate) scrubber: Scrubber,
}

/// Recovers the target and its devices, in this start of the daemon. Earlier daemons had sessions with
/// indexes below `sessions_before`. The memory that it may hold at first is `allowance`.
pub(crate) fn target(
    settings: &Settings,
    memory: TargetMemory,
    (ssd, lost): (SsdFile, Range<u64>),
    (start, sessions_before, allowance): (u64, u16, u64),
) -> StartResult<(TargetLoop, Arc<Devices>, TargetThreads)> {
    let TargetMemory { arena, table, states, page_groups, page_sums, .. } = memory;
    let (extent_hints, hazards) = (memory.extent_hints, memory.hazards);
    let extent_count = memory.extent_count;
    let is_new = table.is_new;
    let arena_fresh = if arena.is_new { 0 } else { u64::MAX };
    let ssd_fresh = if is_new { 0 } else { ssd.data_end() };
    let sizes = sizes(settings, (arena_fresh, ssd_fresh), extent_count);
    let orders_ssd = ssd.fd().try_clone_to_owned().map_err(failed("copy a descriptor"))?;
    let (release_queue, blocks) =
        block_release_channel(&arena.fd).map_err(failed("copy a descriptor"))?;
    let of_arena = arena.fd.try_clone().map_err(failed("copy a descriptor"))?;
    let (tables, fds) = ([page_groups.fd, page_sums.fd], [arena.fd, orders_ssd]);
    let (provision_queue, orders) = provision_channel(ProvisionedFiles::new(fds, tables));
    let table_fd = table.fd;
    let scrubber = Scrubber::new(&table_fd, settings)?;
    let sums = known_sums(page_sums.segment, lost);
    let devices = Arc::new(Devices {
        arena: Arena::new(arena.segment),
        ssd,
        table: ExtentTable::new(table.segment),
        states: ExtentStates::new(states.segment, page_groups.segment, sums),
        extent_hints: ExtentHints::new(extent_hints.segment)
            .map_err(failed("open the extent hints"))?,
        client_hazards: HazardPointers::reserved(hazards.segment)
            .map_err(failed("open the hazard pointers"))?,
        sessions_before,
        hazards: TransferHazards::default(),
        redirects: AtomicBool::default(),
    });
    let (mut found, mut spill_releases) = (Vec::new(), Vec::new());
    let mut target = if is_new {
        Target::new(sizes)
    } else {
        let mut target =
            recover_target(sizes, &devices, &table_fd, &mut found, &mut spill_releases)?;
        give_back_free(&mut target, &of_arena);
        target
    };
    set_instance(settings, &mut target, (start, !is_new), allowance);
    let (copy_queue, copies) =
        copy_channel(&settings.data.join("ssd")).map_err(failed("order the copies of extents"))?;
    let profile = open_profile(settings, &mut target);
    let mut releases = SpillReleases::default();
    spill_releases.iter().for_each(|&(slot, place)| releases.begin_release(slot, place));
    let performers = Performers {
        devices: Arc::clone(&devices),
        slot_memory: SlotMemory::first(&devices, &mut target),
        pending: PendingRequests::default(),
        account_waits: AccountWaits::default(),
        space_wait: SpaceWait::default(),
        hidden: HiddenExtents::default(),
        copies: copy_queue,
        provisions: provision_queue,
        block_releases: release_queue,
        preallocation: Preallocation::new(settings.shm.clone(), &found),
        locations: BackingLocations::default(),
        spill_releases: releases,
    };
    let timers = TargetTimers::new(WatermarkTuner::new(settings.watermarks()));
    let prefetch_share = prefetch_share(settings, &mut target);
    let target = TargetLoop::new(target, performers, timers, prefetch_share, profile);
    Ok((target, devices, TargetThreads { provisioner: orders, copies, blocks, scrubber }))
}

/// Checksums of the pages of the SSD, but for those that are `lost`.
fn known_sums(segment: Segment, lost: Range<u64>) -> PageSums {
    let sums = PageSums::new(segment);
    if !lost.is_empty() {
        tracing::warn!(from = lost.start, to = lost.end, "a part of the SSD file is lost");
        sums.distrust(lost);
    }
    sums
}

/// Tells the target its place in the instance, its rates, and the memory that it may hold for now.
fn set_instance(
    settings: &Settings,
    target: &mut Target,
    (start, after_another): (u64, bool),
    allowance: u64,
) {
    target.begin_lent(allowance);
    target.set_member(settings.me(), settings.began);
    let own = settings.local_first..settings.local_first + settings.local_count;
    // Copies do not leave their daemon.
    let others = if settings.has_copies() { 0..0 } else { 0..settings.count };
    let others = others.filter(|index| !own.contains(index)).map(DaemonIndex);
    target.set_spill_hosts(others, first_number(start));
    if settings.instance.backing.is_some() {
        target.set_backing(after_another);
    }
    if settings.has_copies() {
        target.set_copies();
        if settings.lost_starts > 0 {
            target.set_in_place_of_lost();
        }
    }
    target.set_tiering_rate(settings.instance.tiering_rate);
}

/// Sets the part of the rate that this daemon has of fills for prefetch requests.
fn prefetch_share(settings: &Settings, target: &mut Target) -> RateShare {
    let mut share = RateShare::new(settings.instance.backing_rate);
    if let Some(rate) = share.among(settings.count) {
        target.set_prefetch_rate(rate);
    }
    share
}

/// Without an access profile the job still runs, so failures are only logged.
fn open_profile(settings: &Settings, target: &mut Target) -> Option<ProfileRecorder> {
    let path = settings.run.join(format!("d{}.profile", settings.index));
    let opened = settings.instance.profile.is_some().then(|| ProfileRecorder::open(&path))?;
    target.record_accesses();
    let failed =
        |error: &std::io::Error| tracing::warn!(%error, "cannot record the access profile");
    opened.inspect_err(failed).ok()
}

/// If an earlier daemon released memory, it is not known which free blocks are still backed by
/// memory; so all are released.
fn give_back_free(target: &mut Target, arena: &OwnedFd) {
    let held = rustix::fs::fstat(arena).map_or(0, |stat| stat.st_blocks.cast_unsigned() * 512);
    if held < target.memory_lent().held {
        target
            .forget_free_memory(&mut |place, length| lending::punch(arena, place, length).is_ok());
    }
}

/// Recovers the target. Preallocated extents without data are added to `preallocation`, and spilled
/// extents to be released to `spill_releases`.
fn recover_target(
    sizes: data::Settings,
    devices: &Devices,
    fd: &OwnedFd,
    preallocation: &mut Vec<(Inode, Extent)>,
    spill_releases: &mut Vec<(u32, u64)>,
) -> StartResult<Target> {
    let Devices { table, states, .. } = devices;
    let slots = used_slots(fd, table.count()).map_err(failed("read the extent table"))?;
    let slots: Vec<u32> = slots.into_iter().flatten().collect();
    let shown: Vec<_> = slots.iter().filter_map(|&slot| table.get(slot)).collect();
    // The earlier daemon may have been reclaiming a preallocated extent or moving one.
    let hidden: Vec<_> = slots.iter().filter_map(|&slot| table.hidden(slot)).collect();
    let mut effects = Vec::new();
    let is_preallocated =
        |extent: &Extent| states.is_preallocated(extent.slot) && states.is_hole(extent);
    preallocation.extend(shown.iter().chain(&hidden).filter(|(_, extent)| is_preallocated(extent)));
    let (mut target, dropped) = Target::recover(sizes, shown, hidden, &mut effects);
    target.restore_preallocated(preallocation.iter().copied());
    preallocation
        .retain(|&(inode, extent)| target.preallocated(inode, extent.start) == Some(extent));
    let is_pinned = |(_, extent): &(Inode, Extent)| states.is_pinned(extent.slot);
    let pinned_files: BTreeSet<Inode> =
        target.extents().filter(is_pinned).map(|(inode, _)| inode).collect();
    target.restore_pinned(pinned_files.into_iter(), &mut effects);
    let is_here = |extent: &Extent| extent.tier != Extent::SPILLED;
    let is_clean = |(_, extent): &(Inode, Extent)| is_here(extent) && states.is_clean(extent.slot);
    let clean: Vec<_> = target.extents().filter(is_clean).collect();
    target.restore_clean(clean.into_iter());
    let gone = slots.iter().filter_map(|&slot| table.gone(slot)).filter(|extent| !is_here(extent));
    target.restore_released_spill(gone.map(|extent| (extent.slot, extent.location)), &mut effects);
    for one in dropped {
        tracing::error!("{one}");
    }
    for effect in effects {
        match effect {
            Effect::Unpublish { slot } => table.unpublish(slot),
            Effect::Show { slot } => table.show(slot),
            Effect::ReleaseSpilled { slot, location: place } => {
                spill_releases.push((slot, place));
                Ok(())
            }
            _ => Ok(()),
        }
        .map_err(failed("update the extent table"))?;
    }
    // A client with a hazard pointer on such an extent may be copying; one that sets it from now on
    // finds that the extent is gone.
    let mut protected = Vec::new();
    devices.each_previous_hazard(&mut |slot| protected.extend(table.gone(slot)));
    target.restore_leaving(protected);
    Ok(target)
}

/// The shards of all workers, replayed in parallel.
pub(crate) fn shards(
    settings: &Settings,
    map: &Map,
    indexes: Vec<Mapped>,
    found: &Found,
    progress: &Arc<Segment>,
) -> StartResult<Vec<Shard>> {
    thread::scope(|scope| {
        let replays: Vec<_> = indexes
            .into_iter()
            .enumerate()
            .map(|(worker, index)| {
                let thread = thread::Builder::new().name(format!("replay {worker}"));
                let replay = thread.spawn_scoped(scope, move || {
                    let of = (worker, found.expected());
                    let log = first_log(settings, of, found.identity(), progress)?;
                    let log = LogPlace { salvage: settings.salvage.as_ref(), ..log };
                    recover_shard(settings, map, index, log)
                });
                replay.map_err(no_thread("replay"))
            })
            .collect();
        let broken = |_| Failure::new("replay thread panicked");
        replays.into_iter().map(|replay| replay?.join().map_err(broken)?).collect()
    })
}

fn recover_shard(
    settings: &Settings,
    map: &Map,
    index: Mapped,
    log: LogPlace<'_>,
) -> StartResult<Shard> {
    let worker = log.number;
    let mut service = Service::new(service_config(settings, map, worker));
    store::directory::create(&log.directory).map_err(failure)?;
    let log = replay(&mut service, log)?;
    if !index.is_new {
        empty_index(&index).map_err(failed("empty the index"))?;
    }
    let index = Index::create(index.segment, Shape::DEFAULT).map_err(failed("create the index"))?;
    Ok(Shard::new(worker, service, index, log))
}

/// The services of the workers where services move: a worker gets its service when it is known that this
/// daemon owns it, and with which log it goes on.
pub(crate) struct OwnServices {
    settings: Settings,
    map: Map,
    indexes: Vec<Mapped>,
    identity: Identity,
    /// How far the logs have come.
    progress: Arc<Segment>,
    salvages: Arc<Salvages>,
}

/// The salvage of this start, if it is one. A log is repaired once: it may be read several times, where
/// services move.
#[derive(Default)]
pub(crate) struct Salvages {
    salvage: Option<Salvage>,
    repaired: Mutex<BTreeSet<(u16, u8)>>,
}

impl Salvages {
    /// Nothing is repaired yet.
    pub(crate) fn new(salvage: Option<Salvage>) -> Salvages {
        Salvages { salvage, repaired: Mutex::default() }
    }

    fn repaired(&self) -> MutexGuard<'_, BTreeSet<(u16, u8)>> {
        self.repaired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing is to be repaired of a service, or it is.
    fn is_done(&self, ServiceName { first, worker }: ServiceName) -> bool {
        self.salvage.is_none() || self.repaired().contains(&(first.0, worker))
    }

    /// Replays a log, with the salvage if it is not repaired yet.
    fn replay(&self, service: &mut Service, log: LogPlace<'_>) -> StartResult<ShardLog> {
        let name = (log.name.first.0, log.name.worker);
        let salvage = self.salvage.as_ref().filter(|_| !self.repaired().contains(&name));
        let replayed = replay(service, LogPlace { salvage, ..log })?;
        self.repaired().insert(name);
        Ok(replayed)
    }
}

impl OwnServices {
    /// In a first start the logs are made, so that a later one finds them.
    pub(crate) fn new(
        settings: &Settings,
        map: &Map,
        indexes: Vec<Mapped>,
        found: &Found,
        progress: &Arc<Segment>,
    ) -> StartResult<OwnServices> {
        let (settings, map, progress) = (settings.clone(), map.clone(), Arc::clone(progress));
        let salvages = Arc::new(Salvages::new(settings.salvage.clone()));
        let identity = found.identity();
        let own = OwnServices { settings, map, indexes, identity, progress, salvages };
        if found.expected() == Expected::New {
            for worker in 0..own.indexes.len() {
                let mut service = Service::new(service_config(&own.settings, &own.map, worker));
                own.first_log(worker, &mut service, Expected::New)?.close_log();
            }
        }
        Ok(own)
    }

    /// The salvage of this start.
    pub(crate) fn salvages(&self) -> Arc<Salvages> {
        Arc::clone(&self.salvages)
    }

    /// The log with which the service of a worker began, replayed.
    fn first_log(
        &self,
        worker: usize,
        service: &mut Service,
        expected: Expected,
    ) -> StartResult<ShardLog> {
        let OwnServices { settings, identity, progress, salvages, .. } = self;
        let log = first_log(settings, (worker, expected), *identity, progress)?;
        salvages.replay(service, log)
    }

    /// The service of a worker in this epoch of its owners, as its log has it, with an index that knows
    /// nothing yet.
    pub(crate) fn recover(
        &self,
        worker: usize,
        log: &ServiceLog,
        epoch: u64,
    ) -> StartResult<Shard> {
        let config = service_config(&self.settings, &self.map, worker);
        let (service, log, earlier) = match log {
            ServiceLog::Copy(log) => {
                check_epoch(epoch)?;
                let (mut service, journal) = replay_copy(config, worker, log, &self.salvages)?;
                // Also where this daemon was the owner before: perhaps it ended before it logged that.
                service.come_back(epoch);
                (service, journal, log.earlier)
            }
            ServiceLog::OfWorker => {
                let mut service = Service::new(config);
                let log = self.first_log(worker, &mut service, Expected::Existing)?;
                (service, log, EarlierOwner::This)
            }
        };
        let index = self.indexes.get(worker).ok_or_else(|| failure("there is no such worker"))?;
        // Clients may read it, and find that the service is not served.
        empty_index(index).map_err(failed("empty the index"))?;
        let length = index.segment.len();
        let mapped = Segment::map(&index.fd, length, Access::ReadWrite);
        let index = mapped.and_then(|segment| Index::create(segment, Shape::DEFAULT));
        let index = index.map_err(failed("create the index"))?;
        Ok(Shard::new(worker, service, index, log).in_epoch(epoch, earlier))
    }
}

/// Numbers that lost records gave out can be skipped in so many epochs only.
pub(crate) fn check_epoch(epoch: u64) -> StartResult<()> {
    if epoch <= metadata::EPOCH_MAX {
        return Ok(());
    }
    Err(Failure::new(format!("the service had {epoch} owners, and can go on from no other copy")))
}

/// The service of this number from a log that was a copy, which is replayed where its state is not known.
pub(crate) fn replay_copy(
    config: metadata::Config,
    number: usize,
    log: &TakenLog,
    salvages: &Salvages,
) -> StartResult<(Service, ShardLog)> {
    let name = ServiceName { first: config.first, worker: config.worker as u8 };
    let followed = log.followed.take().filter(|_| salvages.is_done(name));
    // One that is damaged is closed, and named by the replay.
    if let Some(followed) = followed.filter(|it| is_whole(log, &it.state)) {
        let FollowedLog { journal, state } = *followed;
        let log = ShardLog::new(number, journal, log.progress.clone());
        let log = log.map_err(failed("note the progress of the log"))?;
        return Ok((Service::with(config, state), log));
    }
    let mut service = Service::new(config);
    let TakenLog { directory, options, progress, .. } = log;
    let (directory, options, progress) = (directory.clone(), *options, progress.clone());
    let log = LogPlace { number, name, directory, options, progress, salvage: None };
    let log = salvages.replay(&mut service, log)?;
    Ok((service, log))
}

/// Reads a log that was followed, without its records being applied: a later start has to find it whole.
fn is_whole(log: &TakenLog, state: &LoggedState) -> bool {
    let files = <RealFiles>::new(&log.directory);
    let Ok(mut replay) = Replay::inspect(files, log.options) else { return false };
    let mut replayed = cfg!(debug_assertions).then(LoggedState::default);
    loop {
        match (replay.next(), &mut replayed) {
            (Ok(Some(record)), Some(replayed)) => {
                replayed.replay(record).expect("a record that was applied");
            }
            (Ok(Some(_)), None) => {}
            (Ok(None), replayed) => {
                let is_as = |it: &LoggedState| it.outline() == state.outline();
                assert!(replayed.as_ref().is_none_or(is_as), "another state");
                return true;
            }
            (Err(_), _) => return false,
        }
    }
}

/// Settings of a worker's service.
pub(crate) fn service_config(settings: &Settings, map: &Map, worker: usize) -> metadata::Config {
    metadata::Config {
        first: settings.me(),
        daemon: settings.me(),
        host: settings.local_first,
        host_daemons: settings.local_count,
        worker,
        workers: settings.workers(),
        map: map.clone(),
        stripe_log2: settings.stripe_log2(),
        inline_bytes: usize::try_from(settings.instance.inline).unwrap_or(0),
        spread: settings.spread(),
        widen_entries: settings.instance.spread_entries,
        widen_nanos: metadata::config::WIDEN_NANOS,
        placement: settings.placement(),
        root_flags: settings.root_flags(),
        backing: settings.instance.backing.is_some(),
        partials: settings.has_partials(),
        copies: settings.copies,
        revalidate_nanos: match &settings.instance.backing {
            Some(place) if !backing::is_bucket(place) => settings.revalidate_nanos(),
            _ => i64::MAX,
        },
        // Half the timeout, so that a client that waits for a dead peer gets an answer within its
        // own timeout.
        silence_nanos: i64::try_from(settings.instance.timeout.saturating_mul(500))
            .unwrap_or(i64::MAX),
        metadata_bytes_max: settings.memory.max(METADATA_BYTES_MIN) / settings.instance.workers,
        root_uid: settings.owner,
        root_gid: rustix::process::getegid().as_raw(),
        root_mode: ROOT_MODE,
    }
}

/// Leases on directories of other hosts, all expired.
pub(crate) fn leases(memory: &Mapped, daemons: u16) -> StartResult<Leases> {
    let services = if memory.is_new { 0 } else { usize::from(daemons) * WORKER_COUNT_MAX };
    let punch = |first: usize| punch(&memory.fd, first, LEASES_BYTES);
    Leases::create(&memory.fd, services, |first| punch(first).map_err(errno))
        .map_err(failed("create the lease table"))
}

/// A log to be replayed.
struct LogPlace<'a> {
    /// Number of its service here.
    number: usize,
    name: ServiceName,
    directory: PathBuf,
    options: Options,
    /// How far it has come.
    progress: LogProgress,
    salvage: Option<&'a Salvage>,
}

/// The log with which the service of a worker began.
fn first_log(
    settings: &Settings,
    (worker, expected): (usize, Expected),
    identity: Identity,
    progress: &Arc<Segment>,
) -> StartResult<LogPlace<'static>> {
    let progress = LogProgress::new(Arc::clone(progress), worker * size_of::<u64>());
    let options = Options {
        identity: identity.of_worker(u16::try_from(worker).unwrap_or(u16::MAX)),
        expected,
        progress: progress.load().map_err(failed("read the progress"))?,
        damage: Damage::Refuse,
        sync: Sync::Never,
        step_bytes: STEP_BYTES,
    };
    let name = ServiceName { first: settings.me(), worker: worker as u8 };
    let directory = settings.data.join(format!("log{worker}"));
    Ok(LogPlace { number: worker, name, directory, options, progress, salvage: None })
}

fn replay(service: &mut Service, log: LogPlace<'_>) -> StartResult<ShardLog> {
    let LogPlace { number, name, directory, options, progress, salvage } = log;
    let damage = if salvage.is_some() { Damage::Skip } else { options.damage };
    let options = Options { damage, ..options };
    if options.expected == Expected::New || salvage.is_some() {
        store::directory::create(&directory).map_err(failure)?;
    }
    let mut replay = Journal::open(&directory, options).map_err(damaged)?;
    let (mut records, mut is_damaged) = (0u64, false);
    while let Some(record) = replay.next().map_err(damaged)? {
        let applied = service.replay(record);
        records += 1;
        is_damaged |= applied.is_err();
        if applied.is_err() && salvage.is_none() {
            let log = directory.display();
            let why = "it is no record of this version";
            let text = format!("cannot take up record {records} of the log in {log}: {why}");
            return Err(Failure::damaged(text, WithoutCopies::Salvage));
        }
    }
    let log = directory.display();
    if records > 0 {
        tracing::info!(%log, records, "log replayed");
    }
    for gap in replay.gaps() {
        tracing::warn!(%log, offset = gap.offset, first = gap.first, last = gap.last, "records are lost");
    }
    let torn_bytes = replay.torn_bytes();
    if torn_bytes > 0 {
        tracing::warn!(%log, records, torn_bytes, "log ended in a torn record, not acknowledged");
    }
    is_damaged |= torn_bytes > 0 || !replay.gaps().is_empty();
    if let (Some(salvage), true, path) = (salvage, is_damaged, replay.path())
        && path.exists()
    {
        keep_aside(&path, salvage.round)?;
    }
    let journal = replay.into_journal().map_err(failure)?;
    let log = ShardLog::new(number, journal, progress);
    let mut log = log.map_err(failed("note the progress of the log"))?;
    if let Some(salvage) = salvage {
        let ServiceName { first, worker } = name;
        let is_of = |it: &&ServiceRepair| (it.first, it.worker) == (first.0, worker);
        let taken = salvage.repairs.iter().find(is_of).map(|repair| {
            from_hex(&repair.record).is_some_and(|record| service.replay(&record).is_ok())
        });
        if taken == Some(false) {
            return Err(Failure::new(format!(
                "the salvage's changes for worker {worker} of daemon {} are no record",
                first.0
            )));
        }
        service.skip_numbers(salvage.round);
        // The next start must not find the gaps again.
        log.rewrite_now(service).map_err(failure)?;
    }
    Ok(log)
}

/// Copies a damaged log beside itself, where only people look for it.
fn keep_aside(path: &Path, round: u64) -> StartResult<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!("damaged-{round}-{name}"));
    tracing::warn!(log = %path.display(), copy = %aside.display(), "damaged log, copied");
    let copied = std::fs::copy(path, &aside);
    copied.map(drop).map_err(failed(format!("copy {} to {}", path.display(), aside.display())))
}

/// Clients of the earlier daemon still map the index, so it is emptied in place: its pages become
/// zeros, which every reader takes for empty buckets.
fn empty_index(index: &Mapped) -> rustix::io::Result<()> {
    Index::empty(&index.segment, |first| punch(&index.fd, first, Shape::DEFAULT.bytes()))
}

/// Zeroes a file from `first` to `end`.
fn punch(fd: &OwnedFd, first: usize, end: usize) -> rustix::io::Result<()> {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(fd, how, first as u64, (end - first) as u64)
}
