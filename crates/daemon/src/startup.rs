//! From the command line to a daemon that serves, and its orderly end.
//!
//! What an earlier daemon of the same number left is taken up: the piece table says what the target
//! holds, the logs say what the shards hold. The socket takes its place last, so a client that
//! finds it finds a daemon that is ready.

use crate::acceptor::{Acceptor, Parts};
use crate::accounts::Books;
use crate::alone::Alone;
use crate::below::{self, Tree};
use crate::bulk::{BulkEnds, lane_count};
use crate::greeting::Offer;
use crate::inbox::Inbox;
use crate::leases::Held;
use crate::lend::{self, Blocks, Desk};
use crate::memory::Memory;
use crate::open::Open;
use crate::origins::Origins;
use crate::peers::Peers;
use crate::prepare::Orders;
use crate::reaper::Reaper;
use crate::recover;
use crate::releases::Releases;
use crate::settings::Settings;
use crate::shard::Shard;
use crate::shared::{Figures, HistoryFigures, Shared, SpaceFigures};
use crate::sink::Copies;
use crate::sizes::Sizes;
use crate::target::{Devices, TargetLoop};
use crate::untold::Untold;
use crate::worker::{Worker, Workers};
use ::below::{Mounted, is_bucket};
use bucket::Bucket;
use fabric::bulk::{Doors, Lanes};
use gateway::{Router, Sessions};
use metadata::Holder;
use net::{Net, Secret};
use placement::Map;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::Mode;
use shm::doorbell::{Doorbells, SESSION_COUNT_MAX};
use shm::posts::Posts;
use std::fmt::{self, Display};
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Release;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use store::SsdFile;
use wire::{Welcome, origin};

/// Why the daemon can not serve: what was being done, and what went wrong.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What makes a failure of an error.
pub(crate) fn failed<E: Display>(doing: impl Display) -> impl FnOnce(E) -> Failure {
    move |error| Failure(format!("can not {doing}: {error}"))
}

/// What can fail at the start.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// A daemon that has taken everything up and serves nobody yet.
struct Daemon {
    shared: Arc<Shared>,
    net: Net<Peers>,
    lanes: Lanes<BulkEnds>,
    ends: BulkEnds,
    shards: Vec<Shard>,
    target: TargetLoop,
    threads: Threads,
    devices: Arc<Devices>,
    offer: Offer,
    /// Number of this start.
    start: u64,
}

/// Serves until a signal asks to end.
pub(crate) fn run(settings: &Settings) -> Outcome<()> {
    let begun = Instant::now();
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    raise_descriptor_limit();
    let signals = take_signals()?;
    let _alone = Alone::take(settings)?;
    let daemon = take_up(settings, begun)?;
    serve(settings, daemon, signals)
}

/// A stream that becomes readable when the daemon is asked to end.
fn take_signals() -> Outcome<UnixStream> {
    let (signals, tell) = UnixStream::pair().map_err(failed("make a pipe"))?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        let tell = tell.try_clone().map_err(failed("make a pipe"))?;
        signal_hook::low_level::pipe::register(signal, tell).map_err(failed("take signals"))?;
    }
    Ok(signals)
}

fn take_up(settings: &Settings, begun: Instant) -> Outcome<Daemon> {
    let memory = Memory::open(settings)?;
    let start = Start::open(settings, memory.is_new())?;
    let peers = net::Settings {
        me: settings.index,
        daemon_count: settings.count,
        start: start.number,
        secret: read_secret(&settings.run.join("secret"))?,
        listen: settings.listen,
        peers: settings.peers.clone(),
    };
    let (bulk, lanes) =
        Doors::new(lane_count(), &peers, &settings.transport).map_err(failed("poll"))?;
    let (net, sender) =
        Net::<Peers>::bind(peers).map_err(failed(format!("listen on {}", settings.listen)))?;

    let ssd = recover::open_ssd(settings)?;
    let map = Map::initial(settings.count).ok_or_else(|| Failure("no such instance".into()))?;
    let offer = offer(settings, &map, &memory, &ssd)?;
    let workers = settings.workers;
    let origins = Origins::new(origin::first(settings.index, start.number), &memory.host);
    let (below, below_orders) = open_backing(settings)?.map(below::below).unzip();
    let shared = Arc::new(Shared {
        router: Router { map: map.clone(), me: settings.index, workers },
        host_number: settings.local_first,
        host_count: settings.local_count,
        bells: Doorbells::new(memory.bells.segment).map_err(failed("use the doorbells"))?,
        inboxes: (0..workers).map(|_| Inbox::default()).collect(),
        net: sender,
        bulk,
        host: memory.host,
        net_watches: AtomicBool::new(false),
        posts: Posts::new(memory.posts.segment).map_err(failed("use the posts"))?,
        leases: Held::new(
            Holder::new(settings.index, map.clone(), workers),
            recover::leases(&memory.leases, settings.count)?,
        ),
        sizes: Sizes::default(),
        untold: settings.has_drafts().then(Untold::default),
        origins,
        open: Open::new(),
        releases: Releases::default(),
        books: Books::default(),
        lend: Desk::new(settings).map_err(failed("make an event"))?,
        below,
        timeout: Duration::from_micros(settings.timeout_micros),
        patience_millis: settings.patience_millis(),
        stopping: AtomicBool::new(false),
        begun,
        figures: (0..workers).map(|_| Figures::default()).collect(),
        history: HistoryFigures::default(),
        space: SpaceFigures::default(),
    });
    if settings.index.0 == settings.local_first {
        // Only this one of the host's daemons counts them, and none of its are under way.
        shared.host.forget_flights();
    }
    let before = u16::try_from(shared.posts.sessions_most()).unwrap_or(u16::MAX);
    let (target, devices, orders, copies, blocks) =
        recover::target(settings, memory.target, ssd, before)?;
    let shards = recover::shards(settings, &map, memory.indexes)?;
    start.note()?;
    let ends = BulkEnds::new(Arc::clone(&shared), Arc::clone(&devices));
    let threads = Threads { orders, copies, blocks, below: below_orders };
    let start = start.number;
    Ok(Daemon { shared, net, lanes, ends, shards, target, threads, devices, offer, start })
}

fn serve(settings: &Settings, daemon: Daemon, signals: UnixStream) -> Outcome<()> {
    let Daemon { shared, net, lanes, ends, shards, target, threads, devices, offer, start } =
        daemon;
    let address = net.local_address().map_err(failed("ask for the own address"))?;
    let mut target = Some(target);
    let cells = shards.into_iter().enumerate().map(|(number, shard)| {
        // `placement::map::WORKER_OF_TARGET` is the first.
        let mut worker = Worker::new(number, shard, target.take());
        // Whoever asks as soon as we are ready must see what was taken up.
        worker.publish(&shared);
        worker
    });
    let cells = Arc::new(Workers::new(cells.collect()));
    let mut peers = Peers::new(Arc::clone(&shared), Arc::clone(&cells));
    let net = spawn("net", move || {
        if let Err(error) = net.run(&mut peers) {
            tracing::error!(%error, "no connections to other daemons any more");
        }
    })?;
    let ends = Arc::new(ends);
    let mut bulk = Vec::new();
    if let Some(mover) = lanes.mover {
        let ends = Arc::clone(&ends);
        bulk.push(spawn("fabric", move || {
            if let Err(error) = mover.run(&ends) {
                tracing::error!(%error, "no bytes by libfabric any more");
            }
        })?);
    }
    for (number, lane) in lanes.tcp.into_iter().enumerate() {
        let ends = Arc::clone(&ends);
        bulk.push(spawn(&format!("bulk-{number}"), move || {
            if let Err(error) = lane.run(&ends) {
                tracing::error!(%error, "no bytes from and to other daemons any more");
            }
        })?);
    }
    threads.start(&shared, &devices)?;
    let mut workers = Vec::new();
    for number in 0..cells.count() {
        let (shared, cells) = (Arc::clone(&shared), Arc::clone(&cells));
        workers.push(spawn(&format!("worker-{number}"), move || cells.run(number, &shared))?);
    }

    let index = settings.index;
    let socket = settings.run.join(format!("d{}.sock", index.0));
    let is_home = index.0 == settings.local_first;
    let parts = Parts {
        offer,
        listener: listen(&socket)?,
        signals,
        sessions: Sessions::new(index, start, SESSION_COUNT_MAX),
        owner: settings.owner,
        reaper: is_home.then(Reaper::default),
    };
    let acceptor = Acceptor::new(Arc::clone(&shared), parts).map_err(failed("poll"))?;
    tracing::info!(index = index.0, %address, start, took = ?shared.begun.elapsed(), "ready");
    tell_ready(settings, &address.to_string())?;
    let outcome = acceptor.run().map_err(failed("poll"));

    tracing::info!(index = index.0, "ending");
    let _ = fs::remove_file(&socket);
    end(&shared, workers, bulk, net);
    outcome
}

/// Threads that do for workers what takes long. Nobody waits for their end.
struct Threads {
    orders: Orders,
    copies: Copies,
    blocks: Blocks,
    /// If there is a backing directory.
    below: Option<below::Orders>,
}

impl Threads {
    fn start(self, shared: &Arc<Shared>, devices: &Arc<Devices>) -> Outcome<()> {
        let Threads { orders, copies, blocks, below } = self;
        let prepare = Arc::clone(shared);
        spawn("prepare", move || orders.run(&prepare))?;
        let (sink, of_sink) = (Arc::clone(shared), Arc::clone(devices));
        spawn("sink", move || copies.run(&sink, &of_sink))?;
        let (lend, give_back) = (Arc::clone(shared), Arc::clone(shared));
        spawn("lend", move || lend::watch(&lend))?;
        spawn("give-back", move || blocks.run(&give_back))?;
        let Some(orders) = below.map(Arc::new) else { return Ok(()) };
        for number in 0..orders.width() {
            let (shared, devices) = (Arc::clone(shared), Arc::clone(devices));
            let orders = Arc::clone(&orders);
            spawn(&format!("below-{number}"), move || orders.run(&shared, &devices))?;
        }
        Ok(())
    }
}

/// Lets the workers finish what they have, then the connections.
fn end(
    shared: &Shared,
    workers: Vec<JoinHandle<()>>,
    bulk: Vec<JoinHandle<()>>,
    net: JoinHandle<()>,
) {
    shared.stopping.store(true, Release);
    if let Some(below) = &shared.below {
        below.stop();
    }
    for worker in 0..workers.len() {
        let _ = shared.bells.kick(worker);
    }
    for worker in workers {
        let _ = worker.join();
    }
    shared.bulk.stop();
    for lane in bulk {
        let _ = lane.join();
    }
    shared.net.stop();
    let _ = net.join();
}

/// What the tree that the root shows is made of.
fn open_backing(settings: &Settings) -> Outcome<Option<Tree>> {
    let Some(place) = &settings.backing else { return Ok(None) };
    let (what, opened) = match is_bucket(place) {
        true => ("bucket", Bucket::open(place).map(|it| Box::new(it) as Box<dyn ::below::Tree>)),
        false => ("backing directory", Mounted::open(place.as_ref()).map(|it| Box::new(it) as _)),
    };
    Ok(Some(Tree::new(opened.map_err(failed(format!("use the {what} {place}")))?)))
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Outcome<JoinHandle<()>> {
    let thread = thread::Builder::new().name(name.to_owned());
    thread.spawn(run).map_err(failed(format!("start the thread {name}")))
}

/// Each session holds a descriptor.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn read_secret(path: &Path) -> Outcome<Secret> {
    let doing = || format!("read the secret {}", path.display());
    let stat = fs::symlink_metadata(path).map_err(failed(doing()))?;
    let me = rustix::process::geteuid().as_raw();
    if !stat.is_file() || stat.mode() & 0o077 != 0 || (stat.uid() != me && stat.uid() != 0) {
        return Err(Failure(format!("{}: it must be a file of mode 0600 of ours", doing())));
    }
    let text = fs::read_to_string(path).map_err(failed(doing()))?;
    Secret::parse(&text).ok_or_else(|| Failure(format!("{}: not 64 hex digits", doing())))
}

/// The socket takes its place by a rename, so that it is never there without a listener.
fn listen(path: &Path) -> Outcome<UnixListener> {
    let new = path.with_extension("new");
    let doing = || format!("listen on {}", path.display());
    let _ = fs::remove_file(&new);
    let listener = UnixListener::bind(&new).map_err(failed(doing()))?;
    fs::rename(&new, path).map_err(failed(doing()))?;
    Ok(listener)
}

fn tell_ready(settings: &Settings, address: &str) -> Outcome<()> {
    let pid = std::process::id();
    let line = format!("{{\"ready\":true,\"tcp\":\"{address}\",\"pid\":{pid}}}\n");
    let fd = settings.ready_fd;
    let told = fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/self/fd/{fd}"))
        .and_then(|mut file| file.write_all(line.as_bytes()));
    told.map_err(failed(format!("tell readiness on descriptor {fd}")))?;
    // The end of a pipe on standard output shall reach who reads it.
    if fd == 1
        && let Ok(null) = fs::OpenOptions::new().write(true).open("/dev/null")
    {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
    Ok(())
}

/// How often this daemon was started, in a file beside its logs.
struct Start {
    path: PathBuf,
    number: u64,
}

impl Start {
    /// Reads the number. A daemon that was started before must find its memory.
    fn open(settings: &Settings, is_memory_new: bool) -> Outcome<Start> {
        store::directory::create(&settings.data).map_err(|error| Failure(error.to_string()))?;
        let path = settings.data.join("starts");
        let before = match fs::read_to_string(&path) {
            Ok(text) => text.trim().parse().unwrap_or(0),
            Err(_) => 0,
        };
        if before > 0 && is_memory_new {
            return Err(Failure(format!(
                "the log in {} is of an instance whose memory in {} is gone: start a new instance",
                settings.data.display(),
                settings.shm.display()
            )));
        }
        Ok(Start { path, number: before + 1 })
    }

    /// Notes that this start has taken everything up.
    fn note(&self) -> Outcome<()> {
        let new = self.path.with_extension("new");
        let noted = fs::write(&new, format!("{}\n", self.number))
            .and_then(|()| fs::rename(&new, &self.path));
        noted.map_err(failed(format!("write {}", self.path.display())))
    }
}

/// What every client gets: the welcome, the map, and the descriptors in their order.
fn offer(settings: &Settings, map: &Map, memory: &Memory, ssd: &SsdFile) -> Outcome<Offer> {
    let target = &memory.target;
    let mut descriptors = vec![
        clone(&memory.bells.fd)?,
        clone(&memory.host_fd)?,
        clone(&target.arena.fd)?,
        target.table.read_only()?,
        clone(&target.states.fd)?,
        clone(&ssd.fd())?,
        clone(&memory.posts.fd)?,
        target.finder.read_only()?,
        memory.leases.read_only()?,
        clone(&target.pins.fd)?,
        clone(&target.stretches.fd)?,
    ];
    for index in &memory.indexes {
        descriptors.push(index.read_only()?);
    }
    let welcome = Welcome {
        daemon: settings.index.0,
        host: settings.local_first,
        local_first: settings.local_first,
        local_count: settings.local_count,
        workers: u16::try_from(settings.workers).unwrap_or(1),
        session: 0,
        pid: 0,
        origin: 0,
        arena_bytes: settings.memory,
        piece_count: target.piece_count,
        chunk_log2: settings.chunk_log2,
        inline_bytes: u32::try_from(settings.inline).unwrap_or(0),
        timeout_micros: settings.timeout_micros,
        write_behind: settings.write_behind,
        read_ahead: settings.read_ahead,
        steady_nanos: 0,
    };
    Ok(Offer { welcome, map: map.clone(), descriptors })
}

fn clone(fd: &impl AsFd) -> Outcome<OwnedFd> {
    fd.as_fd().try_clone_to_owned().map_err(failed("copy a descriptor"))
}
