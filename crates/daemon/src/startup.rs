//! From the configuration to a serving daemon, and its orderly shutdown.
//!
//! The state of an earlier daemon with the same index is recovered: the target from the extent
//! table, the shards from their logs. The socket is created last, so that a client which finds it
//! finds a daemon that is ready.

mod check;
mod failure;
pub(crate) mod found;
mod instance_lock;
pub(crate) mod memory;
mod places;
mod probe;
mod recover;
mod run_records;
pub(crate) mod settings;

pub(crate) use check::{check, damage_list, listed_in};
pub(crate) use failure::{Failure, StartResult, WithoutCopies, failed, no_thread};
pub(crate) use recover::{OwnServices, Salvages, check_epoch, replay_copy};

use crate::backing::{self, Backing, BackingReader, Tree};
use crate::host::Host;
use crate::host::activity::HostActivity;
use crate::host::activity::gather;
use crate::host::audit::Audit;
use crate::host::leases::HostLeases;
use crate::host::lock_releases::LockReleases;
use crate::host::reaper::Reaper;
use crate::host::sizes::RemoteTruncates;
use crate::host::unreported_sizes::UnreportedSizes;
use crate::members::driver::Driver;
use crate::sessions::SessionSets;
use crate::sessions::acceptor::{Acceptor, AcceptorParts};
use crate::sessions::client_ids::ClientIds;
use crate::sessions::greeting::WelcomeTemplate;
use crate::sessions::open_sessions::OpenSessions;
use crate::shard::Shard;
use crate::shared::gone_hosts::GoneHosts;
use crate::shared::inbox::Inboxes;
use crate::shared::kept_record::{KeptRecord, KeptRecords, RecordName};
use crate::shared::metrics::Metrics;
use crate::shared::network::Network;
use crate::shared::owners::{Numbers, Owners};
use crate::shared::reply::ReplyTo;
use crate::shared::slow_targets::SlowTargets;
use crate::shared::{Shared, Timing};
use crate::shares::dispatcher::Dispatcher;
use crate::shares::resolver;
use crate::shares::rule_set::RuleSet;
use crate::shares::{ReaderJobs, Shares};
use crate::startup::found::Found;
use crate::startup::instance_lock::InstanceLock;
use crate::startup::memory::{Mapped, Memory};
use crate::startup::places::Places;
use crate::startup::recover::TargetThreads;
use crate::startup::settings::Settings;

use crate::target::space::ledger::AccountLedger;
use crate::target::tiering::lending::{self, Lending};
use crate::target::{Devices, TargetLoop};
use crate::threads::bulk::{BulkTransfers, bulk_lane_count};
use crate::threads::bulk_endpoint::BulkEndpoint;
use crate::threads::peers::Peers;
use crate::threads::queued::WorkerQueue;
use crate::threads::successor::Successors;
use crate::threads::worker::{Worker, Workers};
use crate::units::{UnitThread, Units};
use ::backing::{Mounted, is_bucket};
use bucket::Bucket;
use config::audit;
use fabric::bulk::{BulkTransport, Lanes};
use gateway::{Router, Sessions};
use metadata::Holder;
use net::HostDaemons;
use net::{Counters, Net, Secret};
use placement::Map;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::Mode;
use shm::Segment;
use shm::activity::ActivitySegment;
use shm::host::HostSegment;
use shm::local_ops::{OpLog, ServedUntil};
use shm::session::{Doorbells, SESSION_COUNT_MAX};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use store::SsdFile;
use wire::{Welcome, client_id};

/// A recovered daemon that does not serve yet.
struct Daemon {
    shared: Arc<Shared>,
    net: Net<Peers>,
    lanes: Lanes<BulkEndpoint>,
    ends: BulkEndpoint,
    /// Of each worker; `None`: it gets its shard later.
    shards: Vec<Option<Shard>>,
    target: TargetLoop,
    threads: Threads,
    devices: Arc<Devices>,
    welcome_template: WelcomeTemplate,
    /// Number of this start.
    start: u64,
}

/// Serves until a signal asks the daemon to end.
pub(crate) fn run(settings: &Settings) -> StartResult<()> {
    let begun = Instant::now();
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    raise_descriptor_limit();
    let signals = take_signals()?;
    let lock = InstanceLock::take(settings)?;
    let daemon =
        recover_daemon(settings, begun).map_err(|failure| failure.with_way_out(settings))?;
    serve(settings, daemon, signals, lock)
}

/// A stream that becomes readable when a signal asks the daemon to end.
fn take_signals() -> StartResult<UnixStream> {
    let (signals, writer) = UnixStream::pair().map_err(failed("create a pipe"))?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        let writer = writer.try_clone().map_err(failed("create a pipe"))?;
        signal_hook::low_level::pipe::register(signal, writer)
            .map_err(failed("install signal handlers"))?;
    }
    Ok(signals)
}

fn net_settings(settings: &Settings, start: u64, secret: Secret) -> StartResult<net::Settings> {
    Ok(net::Settings {
        me: settings.me(),
        daemon_count: settings.count,
        start,
        secret,
        listen: settings.listen,
        peers: settings.peers.clone(),
        protection: settings.protection(),
        host: Some(HostDaemons {
            first: settings.local_first,
            count: settings.local_count,
            directory: settings.run.clone(),
        }),
        counters: Arc::default(),
    })
}

fn timing(settings: &Settings, begun: Instant) -> Timing {
    Timing {
        begun,
        timeout: Duration::from_micros(settings.instance.timeout),
        enospc_timeout_millis: settings.enospc_timeout_millis(),
    }
}

/// The audit log. A start that salvages is noted by the daemon: no process asks it for that.
fn open_audit(settings: &Settings) -> Audit {
    let audit = Audit::new(settings.run.join(audit::log_of(settings.index)));
    if settings.salvage.is_some() {
        let owner = rustix::process::geteuid().as_raw();
        audit.note("salvage", (owner, std::process::id()), "");
    }
    audit
}

fn recover_daemon(settings: &Settings, begun: Instant) -> StartResult<Daemon> {
    let secret = read_secret(&settings.run.join("secret"))?;
    let found = Found::open(settings, secret.instance_number())?;
    let memory = Memory::open(settings)?;
    let (known_files, start) = (memory.known_files()?, found.number());
    let peers = net_settings(settings, start, secret)?;
    let counters = Arc::clone(&peers.counters);
    let bulk = BulkTransport::new(bulk_lane_count(), &peers, &settings.transport);
    let (bulk, lanes) = bulk.map_err(failed("poll"))?;
    let (net, sender) =
        Net::<Peers>::bind(peers).map_err(failed(format!("listen on {}", settings.listen)))?;
    let ssd = recover::open_ssd(settings, &found)?;
    let map = map_at_start(settings)?;
    let welcome_template = welcome_template(settings, &memory, &ssd.0)?;
    let client_ids = open_client_ids(settings, (start, begun), &memory.host);
    let (backing, backing_orders) = open_backing(settings)?.unzip();
    let progress = Arc::new(memory.log_progress.segment);
    let records = KeptRecords::of(&settings.data, found.identity(), &progress);
    let (rules, rule_record) = load_rules(settings, &records)?;
    let (driver, members) = Driver::new(settings, &found, (memory.copies, &records))?.unzip();
    let (units, mut unit_thread) = open_units(settings, &found, (memory.units, &driver))?.unzip();
    let activity = Arc::new(memory.activity);
    let of_host = (memory.host, memory.op_log, Arc::clone(&activity));
    let host = open_host(settings, &map, of_host, &memory.leases)?;
    let (workers, timing) = (settings.workers(), timing(settings, begun));
    let router = router(settings, &map);
    let shared = Arc::new(Shared {
        inboxes: inboxes(settings, memory.bells.segment)?,
        bulk: BulkTransfers::new(bulk, &router, timing.timeout),
        net: network(settings, router, (sender, counters)),
        host,
        sessions: SessionSets { client_ids, open: OpenSessions::new() },
        ledger: AccountLedger::default(),
        lending: Lending::new(settings).map_err(failed("create an eventfd"))?,
        backing,
        members,
        units,
        shares: Shares::new(rules, activity, reader_jobs(settings)),
        audit: open_audit(settings),
        timing,
        stopping: AtomicBool::default(),
        is_memory_gone: AtomicBool::default(),
        metrics: Metrics::new(workers),
        slow_targets: SlowTargets::default(),
        gone_hosts: GoneHosts::new(numbers(settings), settings.hosts.clone()),
    });
    let before = (start, sessions_before(&shared), shared.lending.first_allowance());
    let (target, devices, of_target) = recover::target(settings, memory.target, ssd, before)?;
    if let Some(thread) = &mut unit_thread {
        thread.compare(&target.target);
    }
    let (shards, own) = recover_services(settings, &map, &found, (memory.indexes, progress))?;
    found.complete(known_files)?;
    let ends = BulkEndpoint::new(Arc::clone(&shared), Arc::clone(&devices));
    let successors = Successors::new(recover::service_config(settings, &map, 0), own);
    let threads = (backing_orders, (driver, unit_thread));
    let threads = Threads::new(settings, (of_target, rule_record), threads, successors);
    Ok(Daemon {
        shared,
        net,
        lanes,
        ends,
        shards,
        target,
        threads,
        devices,
        welcome_template,
        start,
    })
}

/// Those of the workers, and in an instance with followers those of services that may be taken over.
fn inboxes(settings: &Settings, bells: Segment) -> StartResult<Inboxes> {
    let bells = Doorbells::new(bells).map_err(failed("use the doorbells"))?;
    let services = if settings.instance.followers > 0 { numbers(settings).services() } else { 0 };
    Ok(Inboxes::new(bells, settings.workers(), services))
}

fn numbers(settings: &Settings) -> Numbers {
    Numbers::new(settings.me(), settings.began, settings.workers())
}

fn router(settings: &Settings, map: &Map) -> Router {
    let router = Router::new(map.clone(), settings.me(), settings.workers());
    if settings.may_grow() { router.that_grows() } else { router }
}

fn network(
    settings: &Settings,
    router: Router,
    (sender, counters): (net::Sender<ReplyTo>, Arc<Counters>),
) -> Network {
    let has_followers = settings.instance.followers > 0;
    let host = settings.local_first..settings.local_first + settings.local_count;
    let owners = has_followers.then(|| Owners::new(numbers(settings)));
    let moving = |it: Owners| it.with_services_that_move(host.clone());
    Network {
        owners: if settings.has_moving_services() { owners.map(moving) } else { owners },
        router,
        host_number: settings.local_first,
        host_count: settings.local_count,
        sender,
        counters,
        is_awake: AtomicBool::new(false),
    }
}

/// The services of the workers; where services move, what they begin with later. Those of a daemon that
/// was added have no shards, and stay.
fn recover_services(
    settings: &Settings,
    map: &Map,
    found: &Found,
    (indexes, progress): (Vec<Mapped>, Arc<Segment>),
) -> StartResult<(Vec<Option<Shard>>, Option<OwnServices>)> {
    let was_added = numbers(settings).was_added();
    if settings.has_moving_services() && !was_added {
        let own = OwnServices::new(settings, map, indexes, found, &progress)?;
        return Ok(((0..settings.workers()).map(|_| None).collect(), Some(own)));
    }
    let shards = recover::shards(settings, map, indexes, found, &progress)?;
    let alone = |shard: Shard| if was_added { shard.alone() } else { shard };
    Ok((shards.into_iter().map(|shard| Some(alone(shard))).collect(), None))
}

/// Units of file data and their thread, in an instance with copies of files.
fn open_units(
    settings: &Settings,
    found: &Found,
    (progress, driver): (Option<Mapped>, &Option<Driver>),
) -> StartResult<Option<(Units, UnitThread)>> {
    let table = driver.as_ref().and_then(Driver::units);
    let (Some(progress), Some(table)) = (progress, table) else {
        return Ok(None);
    };
    let thread = UnitThread::new(settings, found, progress, table)?;
    let start = (settings.me(), found.number());
    Ok(Some((Units::new(table, settings.copies, start), thread)))
}

fn map_at_start(settings: &Settings) -> StartResult<Map> {
    let first = Map::initial(settings.began);
    // One that was added learns from the others which of those before it came. One that starts again may
    // have files on all of them.
    let is_new = settings.index >= settings.began && !settings.has_started;
    let count = if is_new { settings.began } else { settings.count };
    let now = first.and_then(|first| first.grown_to(count));
    now.ok_or_else(|| Failure::new("invalid number of daemons"))
}

/// Sessions of earlier daemons had lower indexes.
fn sessions_before(shared: &Shared) -> u16 {
    u16::try_from(shared.host.op_log.sessions_most()).unwrap_or(u16::MAX)
}

fn open_client_ids(
    settings: &Settings,
    (start, begun): (u64, Instant),
    host: &HostSegment,
) -> ClientIds {
    host.note_start(settings.me(), start);
    let first = client_id::first(settings.me(), start);
    let earlier_end = begun + 2 * Duration::from_micros(settings.instance.timeout);
    ClientIds::new(first, host, earlier_end)
}

fn load_rules(
    settings: &Settings,
    records: &KeptRecords<'_>,
) -> StartResult<(RuleSet, KeptRecord)> {
    let (is_given_up, (record, found)) = match settings.salvage {
        Some(_) => records.salvage(RecordName::Rules)?,
        None => (false, records.open(RecordName::Rules)?),
    };
    if is_given_up {
        let path = record.path().display();
        tracing::warn!(%path, "the rules were damaged: 'forebay qos set' gives them anew");
    }
    let Some(found) = found else { return Ok((RuleSet::default(), record)) };
    let rules = RuleSet::from_record(&found);
    let rules = rules.map_err(failed(format!("read the rules in {}", record.path().display())))?;
    Ok((rules, record))
}

fn open_host(
    settings: &Settings,
    map: &Map,
    (segment, op_log, activity): (HostSegment, Mapped, Arc<ActivitySegment>),
    leases: &Mapped,
) -> StartResult<Host> {
    let holder = Holder::new(settings.me(), map.clone(), settings.workers());
    let is_home = settings.index == settings.local_first;
    if is_home {
        // Only this daemon of the host counts transfers, and it has none in flight.
        segment.reset_transfers();
    }
    let liveness = Arc::default();
    let op_log = OpLog::new(op_log.segment).map_err(failed("open the operation log"))?;
    // Where services move they are served once this daemon has the lease.
    let until =
        if settings.has_moving_services() { ServedUntil::NEVER } else { ServedUntil::ALWAYS };
    (0..settings.workers()).for_each(|worker| op_log.served(worker).set(until));
    Ok(Host {
        segment,
        op_log,
        leases: HostLeases::new(holder, recover::leases(leases, settings.began)?),
        truncates: RemoteTruncates::new(Duration::from_micros(settings.instance.timeout)),
        unreported: settings.has_partials().then(UnreportedSizes::default),
        lock_releases: LockReleases::default(),
        activity: is_home.then(|| HostActivity::new(activity, Arc::clone(&liveness))),
        liveness,
    })
}

/// The workers, of which the first one gets the target: `placement::map::WORKER_OF_TARGET`.
fn workers(
    settings: &Settings,
    shards: Vec<Option<Shard>>,
    target: TargetLoop,
) -> StartResult<Vec<Worker>> {
    let mut target = Some(target);
    let worker = |(number, shard)| {
        let queue = WorkerQueue::new(settings.instance.metadata_share);
        let queue = queue.map_err(failed("divide the time of workers"))?;
        Ok(Worker::new(number, shard, target.take(), queue))
    };
    shards.into_iter().enumerate().map(worker).collect()
}

fn serve(
    settings: &Settings,
    daemon: Daemon,
    signals: UnixStream,
    lock: InstanceLock,
) -> StartResult<()> {
    let Daemon {
        shared,
        net,
        lanes,
        ends,
        shards,
        target,
        threads,
        devices,
        welcome_template,
        start,
    } = daemon;
    let address = net.local_address().map_err(failed("get the listening address"))?;
    let cells = workers(settings, shards, target)?;
    // A status query right after readiness must show the recovered state.
    let cells = cells.into_iter().map(|mut worker| {
        worker.publish(&shared);
        worker
    });
    let cells = Arc::new(Workers::new(cells.collect()));
    let mut peers = Peers::new(Arc::clone(&shared), Arc::clone(&cells));
    let net = spawn_thread("net", move || {
        if let Err(error) = net.run(&mut peers) {
            tracing::error!(%error, "network thread failed, no connections to other daemons");
        }
    })?;
    let bulk = start_bulk(lanes, ends)?;
    let successors = Arc::clone(&threads.successors);
    let units = threads.start(&shared, &devices, &cells)?;
    let mut workers = Vec::new();
    for number in 0..cells.count() {
        let (shared, cells) = (Arc::clone(&shared), Arc::clone(&cells));
        workers
            .push(spawn_thread(&format!("worker-{number}"), move || cells.run(number, &shared))?);
    }

    let index = settings.me();
    let socket = settings.run.join(format!("d{}.sock", index.0));
    let is_home = index.0 == settings.local_first;
    let listener = places::listen(&socket)?;
    let mut places = Places::new(settings, socket.clone(), lock);
    let parts = AcceptorParts {
        workers: cells,
        welcome_template,
        listener,
        look_at_places: Box::new(move || places.look()),
        signals,
        sessions: Sessions::new(index, start, SESSION_COUNT_MAX),
        owner: settings.owner,
        reaper: is_home.then(Reaper::default),
        devices,
    };
    let acceptor = Acceptor::new(Arc::clone(&shared), parts).map_err(failed("poll"))?;
    tracing::info!(index = index.0, %address, start, took = ?shared.timing.begun.elapsed(), "ready");
    report_ready(settings, &address.to_string())?;
    let outcome = acceptor.run().map_err(failed("poll"));

    tracing::info!(index = index.0, "stopping");
    let _ = fs::remove_file(&socket);
    end(&shared, (workers, &successors), (units, bulk), net);
    outcome
}

/// Starts the threads that transfer bytes between daemons.
fn start_bulk(lanes: Lanes<BulkEndpoint>, ends: BulkEndpoint) -> StartResult<Vec<JoinHandle<()>>> {
    let ends = Arc::new(ends);
    let mut bulk = Vec::new();
    if let Some(mover) = lanes.mover {
        let ends = Arc::clone(&ends);
        bulk.push(spawn_thread("fabric", move || {
            if let Err(error) = mover.run(&ends) {
                tracing::error!(%error, "libfabric thread failed, no transfers by libfabric");
            }
        })?);
    }
    for (number, lane) in lanes.tcp.into_iter().enumerate() {
        let ends = Arc::clone(&ends);
        bulk.push(spawn_thread(&format!("bulk-{number}"), move || {
            if let Err(error) = lane.run(&ends) {
                tracing::error!(%error, "bulk thread failed, no transfers with other daemons");
            }
        })?);
    }
    Ok(bulk)
}

/// Threads for slow work of the workers. Shutdown does not wait for them.
struct Threads {
    of_target: TargetThreads,
    /// The rules of shares.
    rules: KeptRecord,
    /// If there is a backing store.
    backing: Option<BackingReader>,
    /// If the instance has failure domains.
    driver: Option<Driver>,
    /// If files have copies.
    units: Option<UnitThread>,
    successors: Arc<Successors>,
    /// Directory of the SSD file.
    data: PathBuf,
}

impl Threads {
    fn new(
        settings: &Settings,
        (of_target, rules): (TargetThreads, KeptRecord),
        (backing, (driver, units)): (Option<BackingReader>, (Option<Driver>, Option<UnitThread>)),
        successors: Successors,
    ) -> Threads {
        let (data, successors) = (settings.data.clone(), Arc::new(successors));
        Threads { of_target, rules, backing, driver, units, successors, data }
    }

    /// Starts them all. Returns the thread `units`, which ends before the workers.
    fn start(
        self,
        shared: &Arc<Shared>,
        devices: &Arc<Devices>,
        workers: &Arc<Workers>,
    ) -> StartResult<Option<JoinHandle<()>>> {
        let Threads { of_target, rules, backing, driver, units, successors, data } = self;
        let TargetThreads { provisioner, copies, blocks, scrubber } = of_target;
        let (scrub, of_scrubber) = (Arc::clone(shared), Arc::clone(devices));
        if devices.ssd.length() > 0 {
            spawn_thread("scrub", move || scrubber.run(&scrub, &of_scrubber))?;
        }
        let (measure, has_ssd) = (Arc::clone(shared), devices.ssd.length() > 0);
        spawn_thread("measure", move || {
            let speed = probe::bytes_per_second(&data, has_ssd);
            measure.metrics.daemon.target_speed.store(speed, Relaxed);
        })?;
        let prepare = Arc::clone(shared);
        spawn_thread("prepare", move || provisioner.run(&prepare.inboxes, &prepare.lending))?;
        let dispatcher = Dispatcher::new(Arc::clone(shared), rules);
        spawn_thread("shares", move || dispatcher.run())?;
        if let Some(driver) = driver {
            start_members(driver, shared, (successors, Arc::clone(workers)))?;
        }
        let units = units.map(|units| {
            let shared = Arc::clone(shared);
            spawn_thread("units", move || units.run(&shared))
        });
        let units = units.transpose()?;
        let resolver = Arc::clone(shared);
        spawn_thread("places", move || resolver::run(&resolver))?;
        let (demote, of_demoter) = (Arc::clone(shared), Arc::clone(devices));
        spawn_thread("demote", move || {
            let Shared { inboxes, metrics, lending, .. } = &*demote;
            copies.run((inboxes, metrics), lending, &of_demoter);
        })?;
        let (lending, give_back) = (Arc::clone(shared), Arc::clone(shared));
        spawn_thread("lend", move || {
            let Shared { lending, inboxes, metrics, net, timing, .. } = &*lending;
            lending::measure_memory(lending, (inboxes, metrics), net.host_count, timing.begun);
        })?;
        if shared.host.activity.is_some() {
            let shared = Arc::clone(shared);
            spawn_thread("activity", move || gather::run(&shared))?;
        }
        spawn_thread("give-back", move || blocks.run(&give_back.inboxes, &give_back.metrics))?;
        let Some(reader) = backing.map(Arc::new) else { return Ok(units) };
        for number in 0..reader.thread_count() {
            let (shared, devices) = (Arc::clone(shared), Arc::clone(devices));
            let reader = Arc::clone(&reader);
            spawn_thread(&format!("backing-{number}"), move || reader.run(&shared, &devices))?;
        }
        Ok(units)
    }
}

fn start_members(
    driver: Driver,
    shared: &Arc<Shared>,
    (successors, workers): (Arc<Successors>, Arc<Workers>),
) -> StartResult<JoinHandle<()>> {
    let (shared, of_successors) = (Arc::clone(shared), Arc::clone(shared));
    let take_over = Box::new(move |it| successors.begin(&of_successors, &workers, it));
    spawn_thread("members", move || driver.run(&shared, take_over))
}

/// Lets the workers finish their work, then closes the connections.
fn end(
    shared: &Shared,
    (workers, successors): (Vec<JoinHandle<()>>, &Successors),
    (units, bulk): (Option<JoinHandle<()>>, Vec<JoinHandle<()>>),
    net: JoinHandle<()>,
) {
    if let Some(units) = &shared.units {
        units.inbox.end();
    }
    if let Some(thread) = units {
        // It waits for the target, which is a worker's.
        let _ = thread.join();
    }
    shared.stopping.store(true, Release);
    if let Some(backing) = &shared.backing {
        backing.stop();
    }
    for worker in 0..workers.len() {
        let _ = shared.inboxes.bells.wake(worker);
    }
    for worker in workers {
        let _ = worker.join();
    }
    shared.inboxes.give_up_all();
    successors.await_ends();
    shared.bulk.transport.stop();
    for lane in bulk {
        let _ = lane.join();
    }
    shared.net.sender.stop();
    let _ = net.join();
}

/// Jobs share the backing store, if there is one.
fn reader_jobs(settings: &Settings) -> ReaderJobs {
    match settings.instance.backing {
        Some(_) => ReaderJobs::Named,
        None => ReaderJobs::Unnamed,
    }
}

/// Opens the backing store, if one is set.
fn open_backing(settings: &Settings) -> StartResult<Option<(Backing, BackingReader)>> {
    let Some(place) = &settings.instance.backing else { return Ok(None) };
    let (what, opened) = match is_bucket(place) {
        true => ("bucket", Bucket::open(place).map(|it| Box::new(it) as Box<dyn ::backing::Tree>)),
        false => ("backing directory", Mounted::open(place.as_ref()).map(|it| Box::new(it) as _)),
    };
    let doing = || format!("use the {what} {place}");
    let tree = Tree::new(opened.map_err(failed(doing()))?);
    Ok(Some(backing::channel(tree).map_err(failed(doing()))?))
}

fn spawn_thread(name: &str, run: impl FnOnce() + Send + 'static) -> StartResult<JoinHandle<()>> {
    let thread = thread::Builder::new().name(name.to_owned());
    thread.spawn(run).map_err(no_thread(name))
}

/// Each session needs a descriptor.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn read_secret(path: &Path) -> StartResult<Secret> {
    let doing = || format!("read the secret {}", path.display());
    let stat = fs::symlink_metadata(path).map_err(failed(doing()))?;
    let me = rustix::process::geteuid().as_raw();
    if !stat.is_file() || stat.mode() & 0o077 != 0 || (stat.uid() != me && stat.uid() != 0) {
        return Err(Failure::new(format!(
            "{}: must be a regular file of mode 0600 owned by this user or root",
            doing()
        )));
    }
    let text = fs::read_to_string(path).map_err(failed(doing()))?;
    Secret::parse(&text).ok_or_else(|| Failure::new(format!("{}: not 64 hex digits", doing())))
}

fn report_ready(settings: &Settings, address: &str) -> StartResult<()> {
    let pid = std::process::id();
    let line = format!("{{\"ready\":true,\"tcp\":\"{address}\",\"pid\":{pid}}}\n");
    background::report_ready(settings.ready_fd, &line).map_err(failed("report readiness"))
}

/// The part of the welcome that is the same for all clients, with the descriptors in their order.
fn welcome_template(
    settings: &Settings,
    memory: &Memory,
    ssd: &SsdFile,
) -> StartResult<WelcomeTemplate> {
    let target = &memory.target;
    let mut descriptors = vec![
        clone(&memory.bells.fd)?,
        clone(&memory.host_fd)?,
        clone(&target.arena.fd)?,
        target.table.read_only_fd()?,
        clone(&target.states.fd)?,
        clone(&ssd.fd())?,
        clone(&memory.op_log.fd)?,
        target.extent_hints.read_only_fd()?,
        memory.leases.read_only_fd()?,
        clone(&target.hazards.fd)?,
        clone(&target.page_groups.fd)?,
        clone(&target.page_sums.fd)?,
        clone(&memory.activity_fd)?,
    ];
    for index in &memory.indexes {
        descriptors.push(index.read_only_fd()?);
    }
    let welcome = Welcome {
        daemon: settings.index,
        host: settings.local_first,
        local_first: settings.local_first,
        local_count: settings.local_count,
        workers: u16::try_from(settings.workers()).unwrap_or(1),
        session: 0,
        pid: 0,
        client_id: 0,
        arena_bytes: settings.memory,
        extent_count: target.extent_count,
        stripe_log2: settings.stripe_log2(),
        inline_bytes: u32::try_from(settings.instance.inline).unwrap_or(0),
        timeout_micros: settings.instance.timeout,
        write_behind: settings.is_write_behind().into(),
        readahead: settings.has_readahead().into(),
        has_followers: settings.syncs_in_batches().into(),
        copies: settings.copies,
        steady_nanos: 0,
    };
    Ok(WelcomeTemplate { welcome, descriptors })
}

fn clone(fd: &impl AsFd) -> StartResult<OwnedFd> {
    fd.as_fd().try_clone_to_owned().map_err(failed("copy a descriptor"))
}
