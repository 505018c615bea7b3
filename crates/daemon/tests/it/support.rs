//! An instance of real daemons in a temporary directory, and a client that uses the protocol of the
//! client library.

use config::control::{DaemonStatus, LostFiles};
use config::{DaemonConfig, InstanceConfig, Key, ProcessConfig as _, Sources};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::IoSliceMut;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use shm::activity::ActivitySegment;
use shm::extents::{
    Arena, ExtentStates, ExtentTable, HazardPointers, PageSums, SessionHazards, Target,
};
use shm::host::HostSegment;
use shm::index::Index;
use shm::local_ops::OpLog;
use shm::session::{Doorbells, Interruptible, Session};
use shm::{Access, Segment};
use std::cell::Cell;
use std::io::{BufRead, BufReader, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use wire::codec::{Field, Reader, Writer};
use wire::errno::{Errno, Result};
use wire::hash::NameHash;
use wire::limits::PROTOCOL_VERSION;
use wire::reply::Extent;
use wire::welcome::{
    ACCEPTED, ADD_MAGIC, LOST_MAGIC, MAGIC, REFUSAL, STATUS_MAGIC, WELCOME_BYTES_MAX,
};
use wire::{
    Attributes, Credentials, DaemonIndex, Header, Inode, Layout, Reply, Request, ShardIndex,
    Welcome,
};

/// Longest wait in a test.
pub(crate) const WAIT: Duration = Duration::from_secs(120);

/// Daemons in a temporary directory.
pub(crate) struct Instance {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) count: u16,
    /// Daemons with which it began.
    began: u16,
    /// Daemons per host: 1 makes every other daemon a remote one.
    pub(crate) local_count: u16,
    pub(crate) workers: usize,
    pub(crate) daemons: Vec<Option<Child>>,
    addresses: Vec<String>,
    backing: Option<PathBuf>,
    /// More options.
    options: Vec<(Key, &'static str)>,
    /// Failure domains of the daemons; none: they do not watch each other.
    domains: Vec<u32>,
    /// Services go on at followers of daemons that are dead.
    services_move: bool,
    /// Copies of file data.
    copies: u8,
    /// Starts of each daemon, and of those the ones before everything that it kept was removed.
    starts: Vec<u64>,
    lost_starts: Vec<u64>,
}

impl Instance {
    /// Starts `count` daemons, all on this host.
    pub(crate) fn start(count: u16) -> Instance {
        Instance::start_as(count, count, 1)
    }

    /// Starts `count` daemons, `local_count` per host, with `workers` workers each.
    pub(crate) fn start_as(count: u16, local_count: u16, workers: usize) -> Instance {
        Instance::start_over(count, local_count, workers, None)
    }

    /// As `start_as`, with an optional backing directory.
    pub(crate) fn start_over(
        count: u16,
        local_count: u16,
        workers: usize,
        backing: Option<PathBuf>,
    ) -> Instance {
        Instance::start_with((count, local_count, workers), backing, &[], Vec::new())
    }

    /// Starts `count` daemons, each on a host and in a failure domain of its own, with these options.
    pub(crate) fn start_apart(count: u16, options: &[(Key, &'static str)]) -> Instance {
        Instance::start_with((count, 1, 1), None, options, (0..count.into()).collect())
    }

    /// As `start_apart`; services go on at followers of daemons that are dead.
    pub(crate) fn start_moving(count: u16, options: &[(Key, &'static str)]) -> Instance {
        let domains = (0..count.into()).collect();
        let mut instance = Instance::prepare((count, 1, 1), None, options, domains);
        instance.services_move = true;
        instance.start_all()
    }

    /// As `start_apart`, with so many copies of file data.
    pub(crate) fn start_with_copies(
        count: u16,
        copies: u8,
        options: &[(Key, &'static str)],
    ) -> Instance {
        let domains = (0..count.into()).collect();
        let mut instance = Instance::prepare((count, 1, 1), None, options, domains);
        instance.copies = copies;
        instance.start_all()
    }

    fn start_with(
        numbers: (u16, u16, usize),
        backing: Option<PathBuf>,
        options: &[(Key, &'static str)],
        domains: Vec<u32>,
    ) -> Instance {
        Instance::prepare(numbers, backing, options, domains).start_all()
    }

    fn start_all(mut self) -> Instance {
        self.write_secret(&"5a".repeat(32));
        for index in 0..self.count {
            self.spawn(index);
        }
        self.tell_peers();
        self
    }

    fn prepare(
        (count, local_count, workers): (u16, u16, usize),
        backing: Option<PathBuf>,
        options: &[(Key, &'static str)],
        domains: Vec<u32>,
    ) -> Instance {
        let directory = tempfile::tempdir().expect("a directory");
        for name in ["run", "data"] {
            std::fs::create_dir(directory.path().join(name)).expect("made");
        }
        let daemons = (0..count).map(|_| None).collect();
        let addresses = vec![String::new(); usize::from(count)];
        let options = options.to_vec();
        Instance {
            directory,
            count,
            began: count,
            local_count,
            workers,
            daemons,
            addresses,
            backing,
            options,
            domains,
            services_move: false,
            copies: 1,
            starts: vec![0; usize::from(count)],
            lost_starts: vec![0; usize::from(count)],
        }
    }

    pub(crate) fn write_secret(&self, text: &str) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.run().join("secret");
        std::fs::write(&path, text).expect("written");
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, mode).expect("set");
    }

    pub(crate) fn run(&self) -> PathBuf {
        self.directory.path().join("run")
    }

    pub(crate) fn socket(&self, index: u16) -> PathBuf {
        self.run().join(format!("d{index}.sock"))
    }

    /// The command that starts daemon `index`.
    pub(crate) fn command(&self, index: u16) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebayd"));
        let first = index / self.local_count * self.local_count;
        let root = self.directory.path();
        let path = |name: String| root.join(name);
        let options =
            [(Key::Workers, self.workers.to_string()), (Key::DemoteLowWatermark, "0".to_owned())];
        let backing = self.backing.as_ref().map(|path| (Key::Backing, path.display().to_string()));
        let more = self.options.iter().map(|&(key, text)| (key, text.to_owned()));
        let options = options.into_iter().chain(backing).chain(more).collect();
        let sources = Sources { options, ..Sources::default() };
        let settings = config::Settings::resolve(&sources).expect("allowed");
        let hosts = (0..self.count).map(|index| index / self.local_count * self.local_count);
        let config = DaemonConfig {
            index,
            count: self.count,
            began: self.began,
            local_first: first,
            local_count: self.local_count.min(self.count - first),
            run: path("run".into()),
            shm: path(format!("shm{first}")),
            data: path(format!("data/d{index}")),
            peers: path("run/peers".into()),
            domains: self.domains.clone(),
            hosts: if self.services_move { hosts.collect() } else { Vec::new() },
            copies: self.copies,
            memory: 64 << 20,
            memory_min: None,
            ssd: 64 << 20,
            listen: "127.0.0.1:0".parse().expect("an address"),
            owner: rustix::process::geteuid().as_raw(),
            has_started: false,
            lost_starts: self.lost_starts[usize::from(index)],
            salvage: None,
            instance: InstanceConfig::new(&settings).expect("complete"),
        };
        let file = self.run().join(format!("d{index}.config"));
        std::fs::write(&file, config.to_json().expect("text")).expect("written");
        command.arg("--config").arg(file).args(["--ready-fd", "1"]);
        command.stdout(Stdio::piped()).stdin(Stdio::null());
        command
    }

    /// Starts daemon `index` and waits until it is ready.
    pub(crate) fn spawn(&mut self, index: u16) {
        let mut child = self.command(index).spawn().expect("started");
        self.starts[usize::from(index)] += 1;
        let mut line = String::new();
        let output = child.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("read");
        let address = line.split("\"tcp\":\"").nth(1).and_then(|rest| rest.split('"').next());
        let address = address.unwrap_or_else(|| panic!("not ready: {line:?}"));
        self.addresses[usize::from(index)] = address.to_owned();
        self.daemons[usize::from(index)] = Some(child);
    }

    /// Has the membership of instances with failure domains add a daemon, on a host and in a domain of
    /// its own. It is not started.
    pub(crate) fn grow(&mut self) -> u16 {
        let index = self.count;
        self.count += 1;
        self.daemons.push(None);
        self.addresses.push(String::new());
        self.domains.push(index.into());
        self.starts.push(0);
        self.lost_starts.push(0);
        let [low, high] = index.to_le_bytes();
        let mut add = hello(ADD_MAGIC);
        add[12..].copy_from_slice(&[low, high, low, high]);
        let asked = (0..index).find(|&it| self.daemons[usize::from(it)].is_some());
        let asked = asked.expect("one that runs");
        wait_until("the daemon is added", || {
            let status: DaemonStatus =
                serde_json::from_str(&self.ask(asked, &add)).expect("a status");
            status.membership.is_some_and(|it| it.members.len() == usize::from(self.count))
        });
        index
    }

    /// Writes the peers file.
    pub(crate) fn tell_peers(&self) {
        let lines = self.addresses.iter().enumerate().map(|(i, one)| format!("{i} {one}\n"));
        std::fs::write(self.run().join("peers"), lines.collect::<String>()).expect("written");
    }

    /// Kills daemon `index`.
    pub(crate) fn kill(&mut self, index: u16) {
        let mut child = self.daemons[usize::from(index)].take().expect("it runs");
        child.kill().expect("killed");
        child.wait().expect("ended");
    }

    /// Removes everything that daemon `index`, the only one of its host, kept.
    pub(crate) fn forget(&mut self, index: u16) {
        self.lost_starts[usize::from(index)] = self.starts[usize::from(index)];
        for name in [format!("shm{index}"), format!("data/d{index}")] {
            std::fs::remove_dir_all(self.directory.path().join(name)).expect("removed");
        }
    }

    /// Asks daemon `index` to end; true if it exits successfully.
    pub(crate) fn terminate(&mut self, index: u16) -> bool {
        let mut child = self.daemons[usize::from(index)].take().expect("it runs");
        let pid = Pid::from_child(&child);
        rustix::process::kill_process(pid, Signal::TERM).expect("sent");
        child.wait().expect("ended").success()
    }

    /// Sends a signal to daemon `index`. After a `STOP` all of its threads stand still.
    pub(crate) fn signal(&self, index: u16, signal: Signal) {
        let child = self.daemons[usize::from(index)].as_ref().expect("it runs");
        let pid = Pid::from_child(child);
        rustix::process::kill_process(pid, signal).expect("sent");
        if signal == Signal::STOP {
            rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).expect("a child");
        }
    }

    /// The JSON line of `status`.
    pub(crate) fn status(&self, index: u16) -> String {
        self.ask(index, &hello(STATUS_MAGIC))
    }

    /// The files that lost bytes with all their copies, as a daemon lists them.
    pub(crate) fn lost_files(&self, index: u16) -> LostFiles {
        serde_json::from_str(&self.ask(index, &hello(LOST_MAGIC))).expect("a list")
    }

    fn ask(&self, index: u16, hello: &[u8]) -> String {
        let mut stream = UnixStream::connect(self.socket(index)).expect("connected");
        stream.write_all(hello).expect("sent");
        let mut line = String::new();
        stream.read_to_string(&mut line).expect("answered");
        line
    }

    /// A number in `status`.
    pub(crate) fn status_of(&self, index: u16, name: &str) -> u64 {
        let line = self.status(index);
        let rest = line.split(&format!("\"{name}\":")).nth(1).expect("a field");
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().expect("a number")
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        for child in self.daemons.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A hello with this magic.
pub(crate) fn hello(magic: [u8; 8]) -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut writer = Writer::new(&mut bytes);
    writer.raw(&magic);
    writer.u32(PROTOCOL_VERSION);
    bytes
}

/// Waits until `holds`.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < WAIT, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A client of one daemon.
pub(crate) struct Client {
    pub(crate) welcome: Welcome,
    pub(crate) map: placement::Map,
    pub(crate) session: Session,
    pub(crate) bells: Doorbells,
    pub(crate) host: HostSegment,
    pub(crate) arena: Arena,
    pub(crate) table: ExtentTable,
    pub(crate) states: ExtentStates,
    pub(crate) ssd: OwnedFd,
    pub(crate) hazards: HazardPointers,
    pub(crate) op_log: OpLog,
    pub(crate) indexes: Vec<Index>,
    pub(crate) stream: UnixStream,
    pub(crate) table_fd: OwnedFd,
    /// Identity of an earlier request, with which the next one is sent.
    pub(crate) repeat: Cell<Option<(u64, u64)>>,
    pub(crate) last: Cell<(u64, u64)>,
}

fn receive(stream: &UnixStream) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = [0; WELCOME_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received =
        rustix::net::recvmsg(stream, &mut slices, &mut control, flags).expect("received");
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(found) = message {
            fds.extend(found);
        }
    }
    if received.bytes == 0 {
        return Err(Errno::ECONNREFUSED);
    }
    Ok((bytes[..received.bytes].to_vec(), fds))
}

impl Client {
    /// Attaches to the daemon behind `socket`.
    pub(crate) fn attach(socket: &Path) -> Result<Client> {
        let mut stream = UnixStream::connect(socket).map_err(|_| Errno::ECONNREFUSED)?;
        stream.write_all(&hello(MAGIC)).expect("sent");
        let (bytes, fds) = receive(&stream)?;
        let mut reader = Reader::new(&bytes);
        match reader.u8().expect("a byte") {
            ACCEPTED => {}
            REFUSAL => return Err(Errno(reader.u16().expect("an errno"))),
            other => panic!("welcome begins with {other}"),
        }
        let welcome = Welcome::decode(&mut reader).expect("a welcome");
        let map = placement::Map::decode(&mut reader).expect("a map");
        reader.end().expect("nothing more");
        let mut fds = fds.into_iter();
        let mut next = || fds.next().expect("a descriptor");
        let map_all = |fd: &OwnedFd, access| {
            let length = rustix::fs::fstat(fd).expect("a file").st_size as usize;
            Segment::map(fd, length, access).expect("mapped")
        };
        let write = Access::ReadWrite;
        let session = Session::new(map_all(&next(), write))?;
        let bells = Doorbells::new(map_all(&next(), write))?;
        let host = HostSegment::new(map_all(&next(), write))?;
        let arena = Arena::new(map_all(&next(), write));
        let table_fd = next();
        let table = ExtentTable::new(map_all(&table_fd, Access::ReadOnly));
        let states = map_all(&next(), write);
        let ssd = next();
        let op_log = OpLog::new(map_all(&next(), write))?;
        let (_extent_hints, _leases) = (next(), next());
        let hazards = HazardPointers::new(map_all(&next(), write))?;
        let states = ExtentStates::new(
            states,
            map_all(&next(), write),
            PageSums::new(map_all(&next(), write)),
        );
        let _activity = ActivitySegment::new(map_all(&next(), write))?;
        let indexes = (0..welcome.workers)
            .map(|_| Index::open(map_all(&next(), Access::ReadOnly)))
            .collect::<Result<_>>()?;
        let (repeat, last) = (Cell::new(None), Cell::new((0, 0)));
        Ok(Client {
            welcome,
            map,
            session,
            bells,
            host,
            arena,
            table,
            states,
            ssd,
            hazards,
            op_log,
            indexes,
            stream,
            table_fd,
            repeat,
            last,
        })
    }

    /// The target's memory, for copies.
    pub(crate) fn target(&self) -> Target<'_> {
        let (arena, table, states) = (&self.arena, &self.table, &self.states);
        Target { arena, ssd: self.ssd.as_fd(), table, states }
    }

    /// The hazard pointers of this session.
    pub(crate) fn hazards(&self) -> SessionHazards<'_> {
        self.hazards.of_session(self.welcome.session, 1_000_000)
    }

    /// Sends bytes as a request to `worker`, returns the reply.
    pub(crate) fn send(&self, worker: usize, bytes: &[u8]) -> Result<Vec<u8>> {
        let mut slot = self.session.claim(1_000_000)?;
        slot.write(|buffer| {
            buffer[..bytes.len()].copy_from_slice(bytes);
            Ok::<usize, Errno>(bytes.len())
        })?;
        slot.submit(worker, &self.bells, self.welcome.session)?;
        slot.wait(WAIT.as_micros() as u64, Interruptible::No, || true)?;
        slot.read(<[u8]>::to_vec)
    }

    /// Sends one request with a new identity, or that of `repeat`.
    fn try_call(&self, to: To, request: &Request<'_>) -> Result<Vec<u8>> {
        let (shard, owner) = match to {
            To::Shard(shard) => (shard.0, self.map.owner(shard)),
            To::Target(daemon) => (Header::TARGET, daemon),
        };
        let workers = usize::from(self.welcome.workers);
        let worker = match to {
            To::Shard(shard) => placement::map::worker_of_shard(shard, workers),
            To::Target(_) => 0,
        };
        let mut slot = self.session.claim(1_000_000)?;
        let fresh = (self.welcome.client_id + slot.index() as u64, slot.next_sequence()?);
        let (client_id, sequence) = self.repeat.get().unwrap_or(fresh);
        self.last.set((client_id, sequence));
        let header = Header {
            shard,
            daemon: owner.0,
            epoch: self.map.epoch(),
            client_id,
            sequence,
            host: self.welcome.host,
            mount: 0,
            job: wire::JobWord::NONE,
            caller: Credentials::ROOT,
        };
        slot.write(|buffer| {
            let mut writer = Writer::new(buffer);
            header.encode(&mut writer);
            request.encode(&mut writer);
            writer.finish().map_err(|_| Errno::E2BIG)
        })?;
        slot.submit(worker, &self.bells, self.welcome.session)?;
        slot.wait(WAIT.as_micros() as u64, Interruptible::No, || true)?;
        slot.read(<[u8]>::to_vec)
    }

    /// Sends a request from a thread that ends before the reply, as if it were killed; without `rings`
    /// before it has told the worker.
    pub(crate) fn ask_and_die(&self, shard: ShardIndex, request: &Request<'_>, rings: bool) {
        let (session, bells, welcome) = (&self.session, &self.bells, &self.welcome);
        let (daemon, epoch) = (self.map.owner(shard).0, self.map.epoch());
        let worker = placement::map::worker_of_shard(shard, usize::from(welcome.workers));
        let ask = move || {
            let mut slot = session.claim(1_000_000).expect("a slot");
            let client_id = welcome.client_id + slot.index() as u64;
            let (sequence, host) = (slot.next_sequence().expect("claimed"), welcome.host);
            let (shard, caller, job) = (shard.0, Credentials::ROOT, wire::JobWord::NONE);
            let header =
                Header { shard, daemon, epoch, client_id, sequence, host, mount: 0, job, caller };
            let written = slot.write(|buffer| {
                let mut writer = Writer::new(buffer);
                header.encode(&mut writer);
                request.encode(&mut writer);
                writer.finish().map_err(|_| Errno::E2BIG)
            });
            written.expect("fits");
            // The worker takes the slots of the sessions that rang.
            let session = if rings { welcome.session } else { welcome.session + 1 };
            slot.submit(worker, bells, session).expect("a worker");
            std::mem::forget(slot);
        };
        std::thread::scope(|scope| scope.spawn(ask).join()).expect("no panic");
    }

    /// Sends a request until the reply is not `Busy`.
    pub(crate) fn call(&self, to: To, request: &Request<'_>) -> Result<Vec<u8>> {
        let begun = Instant::now();
        let before = self.repeat.get();
        loop {
            let bytes = self.try_call(to, request)?;
            let Reply::Busy { retry_micros } = decode(&bytes) else {
                self.repeat.set(before);
                return match decode(&bytes) {
                    Reply::Refused { errno } => Err(errno),
                    _ => Ok(bytes),
                };
            };
            assert!(begun.elapsed() < WAIT, "busy for too long");
            self.repeat.set(Some(self.last.get()));
            std::thread::sleep(Duration::from_micros(u64::from(retry_micros)));
        }
    }

    /// Attributes of the root.
    pub(crate) fn root(&self) -> Attributes {
        self.attributes(Inode::ROOT).expect("a root")
    }

    pub(crate) fn attributes(&self, inode: Inode) -> Result<Attributes> {
        let bytes = self.call(To::Shard(inode.shard()), &Request::GetAttributes { inode })?;
        attributes_in(&bytes).ok_or(Errno::EIO)
    }

    /// Creates a file of this mode (type bits included).
    pub(crate) fn create(&self, parent: &Attributes, name: &[u8], mode: u32) -> Result<Attributes> {
        let layout = Layout { place: 0, flags: 0, ..parent.layout };
        let request = Request::Create {
            parent: parent.inode,
            name,
            mode,
            device: 0,
            flags: wire::request::create::EXCLUSIVE,
            layout,
            target: &[],
        };
        let bytes = self.call(To::Shard(shard_of(parent, name)), &request)?;
        attributes_in(&bytes).ok_or(Errno::EIO)
    }

    /// The inode of a name.
    pub(crate) fn lookup(&self, parent: &Attributes, name: &[u8]) -> Result<Inode> {
        let request = Request::Lookup { parent: parent.inode, name };
        let bytes = self.call(To::Shard(shard_of(parent, name)), &request)?;
        match decode(&bytes) {
            Reply::Attributes { attributes } => Ok(attributes.inode),
            Reply::Entry { inode, .. } => Ok(inode),
            other => panic!("lookup answered by {other:?}"),
        }
    }

    pub(crate) fn unlink(&self, parent: &Attributes, name: &[u8]) -> Result<()> {
        let request = Request::Unlink { parent: parent.inode, name };
        self.call(To::Shard(shard_of(parent, name)), &request).map(drop)
    }

    /// The extents of a range at a target.
    pub(crate) fn extents(&self, daemon: u16, request: &Request<'_>) -> Result<Vec<Extent>> {
        let bytes = self.call(To::Target(DaemonIndex(daemon)), request)?;
        let (Reply::Extents { extents } | Reply::ExtentsAfterWait { extents, .. }) = decode(&bytes)
        else {
            panic!("no extents")
        };
        let mut reader = Reader::new(extents);
        let mut found = Vec::new();
        while !reader.rest().is_empty() {
            found.push(Extent::take(&mut reader).expect("an extent"));
        }
        Ok(found)
    }

    /// Writes through shared memory into the extents of this daemon's target.
    pub(crate) fn write_mapped(&self, inode: Inode, stripe_log2: u8, offset: u64, bytes: &[u8]) {
        let length = bytes.len() as u64;
        let request =
            Request::MapExtents { inode, stripe_log2, allocate: 1, offset, length, preallocate: 0 };
        let extents = self.extents(self.welcome.daemon, &request).expect("space");
        for extent in extents {
            let from = offset.max(extent.start);
            let to = (offset + length).min(extent.start + extent.length());
            let part = &bytes[(from - offset) as usize..(to - offset) as usize];
            let within = from - extent.start;
            let copied = self.target().write(&self.hazards(), inode, &extent, within, part);
            assert_eq!(copied, Ok(Ok(())));
        }
    }

    /// Reads by messages from the target of any daemon.
    pub(crate) fn read(
        &self,
        daemon: u16,
        inode: Inode,
        stripe_log2: u8,
        offset: u64,
        length: u32,
    ) -> Vec<u8> {
        let request = Request::Read { inode, stripe_log2, offset, length };
        let bytes = self.call(To::Target(DaemonIndex(daemon)), &request).expect("read");
        let bytes = bytes_of(&bytes);
        bytes.to_vec()
    }
}

/// Destination of a request.
#[derive(Clone, Copy)]
pub(crate) enum To {
    Shard(ShardIndex),
    Target(DaemonIndex),
}

/// The shard of a name.
pub(crate) fn shard_of(parent: &Attributes, name: &[u8]) -> ShardIndex {
    placement::locate::entry_shard(parent, NameHash::of(parent.inode, name))
}

/// The bytes of a file in a reply.
pub(crate) fn bytes_of(reply: &[u8]) -> &[u8] {
    let (Reply::Bytes { bytes } | Reply::FetchedBytes { bytes, .. }) = decode(reply) else {
        panic!("no bytes")
    };
    bytes
}

pub(crate) fn decode(bytes: &[u8]) -> Reply<'_> {
    Reply::decode(&mut Reader::new(bytes)).expect("a reply")
}

pub(crate) fn attributes_in(bytes: &[u8]) -> Option<Attributes> {
    match decode(bytes) {
        Reply::Attributes { attributes } | Reply::Created { attributes } => Some(attributes),
        _ => None,
    }
}
