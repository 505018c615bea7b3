//! Attachments: this process's connections to the daemons of its host, and what it maps of them.
//!
//! What lives here: the handshake, the mappings, taking up a daemon again that came back. What
//! does not: requests (`request`). The daemon that is attached first is the *home*; through it go
//! the requests for daemons of other hosts. The others of this host are attached at first need.
//!
//! An attachment is never taken down, because another thread may be copying through it: a daemon
//! that came back gets a further one. Descriptors that stay open (the socket, by whose end the
//! daemon learns of ours, and the SSD file) are moved out of the way of the application's.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use core::time::Duration;
use placement::Map;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno as OsErrno, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use shm::arena::Arena;
use shm::doorbell::Doorbells;
use shm::finder::Finder;
use shm::host::HostSegment;
use shm::index::Index;
use shm::leases::Leases;
use shm::once::Once;
use shm::piece_io::Target;
use shm::pieces::{PieceStates, PieceTable};
use shm::pins::{Pins, SessionPins};
use shm::posts::Posts;
use shm::segment::errno;
use shm::session::Session;
use shm::{Access, Segment, wait};
use wire::codec::{Reader, Writer};
use wire::errno::{Errno, Result};
use wire::limits::{PATH_BYTES_MAX, PROTOCOL_VERSION, SHARD_COUNT, WORKER_COUNT_MAX};
use wire::reply::Piece;
use wire::welcome::{ACCEPTED, HELLO_BYTES, MAGIC, REFUSAL, WELCOME_BYTES_MAX};
use wire::{DaemonIndex, Inode, ShardIndex, Welcome};

use crate::Client;

/// Most daemons of a host that are attached directly; the others are reached through the home.
pub(crate) const LOCAL_MAX: usize = 64;
/// Attachments of a process's life: each daemon once, and again whenever it came back.
const ATTACHMENTS_MAX: usize = 256;
/// `sun_path` of a Unix socket with its NUL.
const SOCKET_PATH_BYTES: usize = 108;
/// How long the first attachment waits for a daemon whose socket is there but refuses: it is
/// starting again.
const FIRST_WAIT_MICROS: u64 = 10_000_000;
/// Longest wait for a word of the handshake.
const HANDSHAKE_SECONDS: u64 = 5;
/// Our descriptors go here or above. High enough to be out of the way, low enough that the
/// kernel's table of descriptors, which every fork copies, stays below 64 KiB.
const DESCRIPTOR_FIRST: u64 = 4000;

/// Where the instance is, from the application's side.
pub(crate) struct Settings {
    rundir: [u8; SOCKET_PATH_BYTES],
    rundir_length: usize,
    prefix: [u8; PATH_BYTES_MAX],
    prefix_length: usize,
    home: u16,
}

impl Settings {
    /// Takes the paths over.
    ///
    /// # Errors
    /// `ENAMETOOLONG` if one does not fit.
    fn new(rundir: &CStr, prefix: &[u8], home: u16) -> Result<Settings> {
        let rundir = rundir.to_bytes();
        let mut settings = Settings {
            rundir: [0; SOCKET_PATH_BYTES],
            rundir_length: rundir.len(),
            prefix: [0; PATH_BYTES_MAX],
            prefix_length: prefix.len(),
            home,
        };
        let to = settings.rundir.get_mut(..rundir.len()).ok_or(Errno::ENAMETOOLONG)?;
        to.copy_from_slice(rundir);
        let to = settings.prefix.get_mut(..prefix.len()).ok_or(Errno::ENAMETOOLONG)?;
        to.copy_from_slice(prefix);
        Ok(settings)
    }

    fn prefix(&self) -> &[u8] {
        self.prefix.get(..self.prefix_length).unwrap_or(&[])
    }

    /// `RUNDIR/d<daemon>.sock` with its NUL.
    fn socket_path(&self, daemon: u16) -> Result<[u8; SOCKET_PATH_BYTES]> {
        let mut path = [0; SOCKET_PATH_BYTES];
        let mut writer = Writer::new(&mut path);
        writer.raw(self.rundir.get(..self.rundir_length).unwrap_or(&[]));
        writer.raw(b"/d");
        let mut divisor = 10_000;
        let mut begun = false;
        while divisor > 0 {
            let digit = daemon / divisor % 10;
            begun |= digit != 0 || divisor == 1;
            if begun {
                writer.u8(b'0'.wrapping_add(digit as u8));
            }
            divisor /= 10;
        }
        writer.raw(b".sock\0");
        writer.finish().map_err(|_| Errno::ENAMETOOLONG)?;
        Ok(path)
    }
}

/// One daemon of this host, as far as this process reaches it.
pub(crate) struct Attachment {
    /// What the daemon said.
    pub(crate) welcome: Welcome,
    /// The instance map as it was then.
    pub(crate) map: Map,
    /// The slots.
    pub(crate) session: Session,
    /// The bells.
    pub(crate) bells: Doorbells,
    /// Operations that this process completes by itself.
    pub(crate) posts: Posts,
    /// What may be believed of directories of other hosts; none if our clock is not the daemon's.
    leases: Option<Leases>,
    /// Entries and attributes, one for each worker.
    indexes: [Option<Index>; WORKER_COUNT_MAX],
    arena: Arena,
    table: PieceTable,
    states: PieceStates,
    finder: Finder,
    pins: Pins,
    memory: OwnedFd,
    ssd: OwnedFd,
    socket: OwnedFd,
}

impl Attachment {
    /// The target, for copies.
    #[inline]
    pub(crate) fn target(&self) -> Target<'_> {
        Target {
            arena: &self.arena,
            ssd: self.ssd.as_fd(),
            table: &self.table,
            states: &self.states,
        }
    }

    /// What keeps pieces where they are while they are copied.
    #[inline]
    pub(crate) const fn pins(&self) -> SessionPins<'_> {
        self.pins.of_session(self.welcome.session, self.welcome.timeout_micros)
    }

    /// The piece of a file that begins at `start`, if it is known without a message.
    pub(crate) fn find_piece(&self, inode: Inode, start: u64) -> Option<Piece> {
        self.finder.find(&self.table, inode, start)
    }

    /// What holds the bytes of a tier, for the kernel to map.
    pub(crate) fn tier(&self, tier: u8) -> BorrowedFd<'_> {
        if tier == Piece::MEMORY { self.memory.as_fd() } else { self.ssd.as_fd() }
    }

    fn descriptors(&self) -> [i32; 3] {
        [self.socket.as_raw_fd(), self.ssd.as_raw_fd(), self.memory.as_raw_fd()]
    }

    /// What may be believed of directories of other hosts.
    pub(crate) const fn leases(&self) -> Option<&Leases> {
        self.leases.as_ref()
    }

    /// The index of a worker.
    pub(crate) fn index(&self, worker: usize) -> Option<&Index> {
        self.indexes.get(worker)?.as_ref()
    }

    /// Number of worker threads, at least one.
    pub(crate) fn workers(&self) -> usize {
        usize::from(self.welcome.workers).max(1)
    }

    /// True while the daemon holds its end of the socket.
    pub(crate) fn is_there(&self) -> bool {
        is_held(self.socket.as_fd())
    }
}

/// True unless the other end of a socket is known to be closed.
fn is_held(socket: BorrowedFd<'_>) -> bool {
    let mut asked = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    let gone = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR | PollFlags::NVAL;
    match rustix::event::poll(&mut asked, Some(&none)) {
        Ok(_) => asked.iter().all(|asked| !asked.revents().intersects(gone)),
        Err(OsErrno::INTR) => true,
        // Who may have no descriptors may not poll, either. He may look whether something came:
        // nothing does after the welcome, but the end.
        Err(_) => {
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            let looked = rustix::net::recv(socket, &mut [0_u8; 1], flags).map(|(count, _)| count);
            !matches!(looked, Ok(0) | Err(OsErrno::CONNRESET | OsErrno::BADF | OsErrno::NOTSOCK))
        }
    }
}

/// All attachments of the process.
pub(crate) struct Attachments {
    pool: [Once<Attachment>; ATTACHMENTS_MAX],
    used: AtomicU32,
    /// Place in the pool plus one of the home's attachment; zero: none now.
    home: AtomicU32,
    /// The same for each daemon of the host.
    local: [AtomicU32; LOCAL_MAX],
    /// Process (upper half) and thread that attaches right now.
    attaching: AtomicU64,
    /// Lowest descriptor of ours, so that the question whether one is costs one comparison.
    lowest: AtomicU32,
    /// Counts the changes of what stands in `home` and `local`.
    state: AtomicU32,
    /// Who serves each shard: upper half the state in which that was found, then the worker and
    /// the place in the pool plus one, 16 bits each. The way there by the map is a fifth of a stat.
    services: [AtomicU64; SHARD_COUNT as usize],
}

impl Attachments {
    pub(crate) const fn new() -> Attachments {
        Attachments {
            pool: [const { Once::new() }; ATTACHMENTS_MAX],
            used: AtomicU32::new(0),
            home: AtomicU32::new(0),
            local: [const { AtomicU32::new(0) }; LOCAL_MAX],
            attaching: AtomicU64::new(0),
            lowest: AtomicU32::new(u32::MAX),
            state: AtomicU32::new(0),
            services: [const { AtomicU64::new(0) }; SHARD_COUNT as usize],
        }
    }

    #[inline]
    fn in_place(&self, place: &AtomicU32) -> Option<&Attachment> {
        self.numbered(place.load(Acquire))
    }

    /// An attachment by its number in this process.
    #[inline]
    pub(crate) fn numbered(&self, number: u32) -> Option<&Attachment> {
        self.pool.get((number as usize).checked_sub(1)?)?.get()
    }

    /// Counts the changes of who serves what.
    #[inline]
    pub(crate) fn state(&self) -> u32 {
        self.state.load(Acquire)
    }

    fn changed(&self) {
        self.state.fetch_add(1, AcqRel);
    }

    /// Who serves a shard, if it was found in this state, as `served_by` takes it.
    #[inline]
    pub(crate) fn known(&self, shard: ShardIndex, state: u32) -> Option<u32> {
        let word = self.services.get(usize::from(shard.0))?.load(Relaxed);
        ((word >> 32) as u32 == state).then_some(word as u32)
    }

    /// A daemon and a worker of it by their number in this process.
    #[inline]
    pub(crate) fn served_by(&self, name: u32) -> Option<(&Attachment, usize)> {
        Some((self.numbered(name & 0xffff)?, (name >> 16) as usize))
    }

    /// The index of `served_by`.
    #[inline]
    pub(crate) fn index_of(&self, name: u32) -> Option<&Index> {
        let (by, worker) = self.served_by(name)?;
        by.index(worker)
    }

    /// Notes who serves a shard, as it was found after `state` was read; the number for `served_by`.
    pub(crate) fn know(
        &self,
        shard: ShardIndex,
        state: u32,
        by: &Attachment,
        worker: usize,
    ) -> Option<u32> {
        let number = self
            .pool
            .iter()
            .position(|cell| cell.get().is_some_and(|attachment| core::ptr::eq(attachment, by)))?;
        let name = (worker as u32) << 16 | (number as u32).saturating_add(1);
        self.services
            .get(usize::from(shard.0))?
            .store(u64::from(state) << 32 | u64::from(name), Relaxed);
        Some(name)
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = &Attachment> {
        let used = (self.used.load(Acquire) as usize).min(ATTACHMENTS_MAX);
        self.pool.iter().take(used).filter_map(Once::get)
    }

    /// Keeps an attachment; its place plus one.
    fn keep(&self, attachment: Attachment) -> Result<u32> {
        for fd in attachment.descriptors() {
            self.lowest.fetch_min(fd.unsigned_abs(), AcqRel);
        }
        let place = self.used.fetch_add(1, AcqRel);
        let Some(cell) = self.pool.get(place as usize) else {
            self.used.fetch_sub(1, AcqRel);
            return Err(Errno::ENFILE);
        };
        cell.set(attachment).map_err(|_| Errno::EIO)?;
        Ok(place.saturating_add(1))
    }

    /// Takes the right to attach. False if another thread did it meanwhile.
    fn begin(&self, done: impl Fn() -> bool) -> Result<bool> {
        let process = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
        let me = u64::from(process) << 32 | u64::from(wait::thread_id());
        let deadline = wait::now_micros().saturating_add(FIRST_WAIT_MICROS);
        loop {
            if done() {
                return Ok(false);
            }
            match self.attaching.compare_exchange(0, me, AcqRel, Acquire) {
                Ok(_) => return Ok(true),
                // A signal handler on top of its own thread's attempt can not wait for it.
                Err(holder) if holder == me => return Err(Errno::EIO),
                Err(holder) if is_not_ours(holder, me) => {
                    let taken = self.attaching.compare_exchange(holder, me, AcqRel, Acquire);
                    if taken.is_ok() {
                        return Ok(true);
                    }
                }
                Err(_) => {}
            }
            if wait::now_micros() >= deadline {
                return Err(Errno::EIO);
            }
            crate::request::sleep_micros(50);
        }
    }

    fn end(&self) {
        self.attaching.store(0, Release);
    }
}

/// True if the holder is dead, or is a thread of the process that this one was forked from.
fn is_not_ours(holder: u64, me: u64) -> bool {
    holder >> 32 != me >> 32 || wait::is_dead(holder as u32)
}

impl Client {
    /// Attaches the process to the instance whose sockets lie in `rundir` and whose files appear
    /// below `prefix` (absolute, no slash at its end). `home` is the first daemon to try.
    ///
    /// # Errors
    /// `ECONNREFUSED` or `ENOENT` if no daemon answers, `EPROTO` for another version, `EOPNOTSUPP` in
    /// another namespace of process numbers than the daemon's, `ENAMETOOLONG`,
    /// or what a daemon refuses with.
    pub fn attach(&self, rundir: &CStr, prefix: &[u8], home: u16) -> Result<()> {
        wait::trust_libc();
        if self.settings.get().is_none() {
            // Another thread that was first had the same environment: its settings are ours.
            let _ = self.settings.set(Settings::new(rundir, prefix, home)?);
        }
        let deadline = wait::now_micros().saturating_add(FIRST_WAIT_MICROS);
        loop {
            match self.reach_home() {
                Ok(_) => return Ok(()),
                Err(Errno::ECONNREFUSED) if wait::now_micros() < deadline => {
                    crate::request::sleep_micros(10_000);
                }
                Err(refused) => return Err(refused),
            }
        }
    }

    /// True once `attach` succeeded.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.host.get().is_some()
    }

    /// The directory below which the instance's files appear; empty before `attach`.
    #[must_use]
    pub fn prefix(&self) -> &[u8] {
        self.settings.get().map_or(&[], Settings::prefix)
    }

    /// True for a descriptor that this crate needs: the application must not close it.
    #[must_use]
    pub fn is_own_descriptor(&self, fd: i32) -> bool {
        let Ok(number) = u32::try_from(fd) else { return false };
        number >= self.attachments.lowest.load(Acquire)
            && self.attachments.each().any(|attachment| attachment.descriptors().contains(&fd))
    }

    /// The home daemon; attaches to it if it is not attached now.
    pub(crate) fn reach_home(&self) -> Result<&Attachment> {
        if let Some(home) = self.attachments.in_place(&self.attachments.home) {
            return Ok(home);
        }
        let settings = self.settings.get().ok_or(Errno::EIO)?;
        let attachments = &self.attachments;
        let is_done = || attachments.in_place(&attachments.home).is_some();
        if attachments.begin(is_done)? {
            let found = self.attach_home(settings);
            attachments.end();
            found?;
        }
        attachments.in_place(&attachments.home).ok_or(Errno::EIO)
    }

    /// The home daemon, waited for if it is gone.
    ///
    /// # Errors
    /// `EIO` if it does not come back in time.
    #[inline]
    pub(crate) fn home(&self) -> Result<&Attachment> {
        match self.home_now() {
            Some(home) => Ok(home),
            None => self.await_home(),
        }
    }

    #[cold]
    fn await_home(&self) -> Result<&Attachment> {
        let mut patience = self.patience_for_lost();
        loop {
            match self.reach_home() {
                Ok(home) => return Ok(home),
                Err(_) => self.back_off(&mut patience)?,
            }
        }
    }

    /// The home daemon if it is attached now.
    #[inline]
    pub(crate) fn home_now(&self) -> Option<&Attachment> {
        self.attachments.in_place(&self.attachments.home)
    }

    /// Attaches to the wanted home, or the first daemon after it that answers.
    fn attach_home(&self, settings: &Settings) -> Result<()> {
        let mut answer = Errno::ENOENT;
        for further in 0..LOCAL_MAX as u16 {
            match self.attach_one(settings, settings.home.wrapping_add(further)) {
                Ok(place) => {
                    self.attachments.home.store(place, Release);
                    self.attachments.changed();
                    return Ok(());
                }
                // Nobody was ever there: the numbers of a host are consecutive.
                Err(Errno::ENOENT) if further > 0 => break,
                Err(Errno::ENOENT) => {}
                Err(refused) => answer = refused,
            }
        }
        Err(answer)
    }

    /// The attachment of daemon `daemon` if it is on this host (attaching now if need be), `None`
    /// if it is reached through the home.
    pub(crate) fn local(&self, daemon: DaemonIndex) -> Result<Option<&Attachment>> {
        let home = self.reach_home()?;
        let Some(place) = self.local_place(home, daemon) else { return Ok(None) };
        if let Some(attachment) = self.attachments.in_place(place) {
            return Ok(Some(attachment));
        }
        let settings = self.settings.get().ok_or(Errno::EIO)?;
        let attachments = &self.attachments;
        if attachments.begin(|| attachments.in_place(place).is_some())? {
            let attached = self.attach_one(settings, daemon.0);
            attachments.end();
            attached?;
        }
        attachments.in_place(place).map(Some).ok_or(Errno::EIO)
    }

    /// As `local`, but only what is attached already.
    pub(crate) fn local_now(&self, daemon: DaemonIndex) -> Option<&Attachment> {
        let home = self.attachments.in_place(&self.attachments.home)?;
        self.attachments.in_place(self.local_place(home, daemon)?)
    }

    /// The number in this process of `local_now`; 0: there is none.
    pub(crate) fn local_number(&self, daemon: DaemonIndex) -> u32 {
        let place = self.home_now().and_then(|home| self.local_place(home, daemon));
        place.map_or(0, |place| place.load(Acquire))
    }

    /// True if `daemon` is on this host.
    pub(crate) fn is_local(&self, daemon: DaemonIndex) -> Result<bool> {
        let welcome = &self.home()?.welcome;
        let place = daemon.0.checked_sub(welcome.local_first);
        Ok(place.is_some_and(|place| place < welcome.local_count))
    }

    fn local_place(&self, home: &Attachment, daemon: DaemonIndex) -> Option<&AtomicU32> {
        let place = daemon.0.checked_sub(home.welcome.local_first)?;
        if place >= home.welcome.local_count {
            return None;
        }
        self.attachments.local.get(usize::from(place))
    }

    /// True if all daemons of the instance are on this host.
    #[must_use]
    pub fn has_one_host(&self) -> bool {
        self.home_now().is_some_and(|home| home.welcome.local_count == home.map.daemon_count())
    }

    /// The daemon of `attachment` is gone: the next request attaches anew.
    pub(crate) fn lose(&self, attachment: &Attachment) {
        for place in self.attachments.local.iter().chain([&self.attachments.home]) {
            let number = place.load(Acquire);
            let kept = self.attachments.in_place(place);
            if kept.is_some_and(|kept| core::ptr::eq(kept, attachment)) {
                let _ = place.compare_exchange(number, 0, AcqRel, Relaxed);
            }
        }
        self.attachments.changed();
    }

    /// Attaches to one daemon and notes it; its place in the pool plus one.
    fn attach_one(&self, settings: &Settings, daemon: u16) -> Result<u32> {
        let path = settings.socket_path(daemon)?;
        let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::ENAMETOOLONG)?;
        let (attachment, host) = connect(path)?;
        let local = daemon.checked_sub(attachment.welcome.local_first).map(usize::from);
        if self.host.get().is_none() {
            let _ = self.host.set(host);
        }
        self.timeout_micros.store(attachment.welcome.timeout_micros.max(1), Relaxed);
        self.writes_behind.store(attachment.welcome.write_behind != 0, Relaxed);
        self.reads_ahead.store(attachment.welcome.read_ahead != 0, Relaxed);
        self.is_gone.store(false, Relaxed);
        let place = self.attachments.keep(attachment)?;
        if let Some(local) = local.and_then(|local| self.attachments.local.get(local)) {
            local.store(place, Release);
        }
        self.attachments.changed();
        Ok(place)
    }
}

/// The descriptors of a welcome, in its order.
struct Descriptors {
    fds: [Option<OwnedFd>; Welcome::DESCRIPTORS_MAX],
    count: usize,
}

impl Descriptors {
    const fn new() -> Descriptors {
        Descriptors { fds: [const { None }; Welcome::DESCRIPTORS_MAX], count: 0 }
    }

    fn push(&mut self, fd: OwnedFd) {
        if let Some(place) = self.fds.get_mut(self.count) {
            *place = Some(fd);
            self.count = self.count.saturating_add(1);
        }
    }

    fn get(&self, place: usize) -> Result<BorrowedFd<'_>> {
        self.fds.get(place).and_then(Option::as_ref).map(AsFd::as_fd).ok_or(Errno::EPROTO)
    }

    fn map(&self, place: usize, access: Access) -> Result<Segment> {
        let fd = self.get(place)?;
        let bytes = rustix::fs::fstat(fd).map_err(errno)?.st_size;
        let bytes = usize::try_from(bytes).map_err(|_| Errno::EPROTO)?;
        Segment::map(fd, bytes, access)
    }
}

/// Says hello on the socket at `path`, and maps what the daemon hands over.
fn connect(path: &CStr) -> Result<(Attachment, HostSegment)> {
    let flags = SocketFlags::CLOEXEC;
    let family = AddressFamily::UNIX;
    let socket =
        rustix::net::socket_with(family, SocketType::STREAM, flags, None).map_err(errno)?;
    let address = SocketAddrUnix::new(path).map_err(errno)?;
    let limit = Some(Duration::from_secs(HANDSHAKE_SECONDS));
    let timeout = rustix::net::sockopt::Timeout::Recv;
    rustix::net::sockopt::set_socket_timeout(&socket, timeout, limit).map_err(errno)?;
    rustix::net::connect(&socket, &address).map_err(errno)?;
    let socket = out_of_the_way(socket)?;

    let mut hello = [0; HELLO_BYTES];
    let mut writer = Writer::new(&mut hello);
    writer.raw(&MAGIC);
    writer.u32(PROTOCOL_VERSION);
    rustix::net::send(&socket, &hello, SendFlags::NOSIGNAL).map_err(errno)?;

    let mut bytes = [0; WELCOME_BYTES_MAX];
    let mut descriptors = Descriptors::new();
    let length = receive(socket.as_fd(), &mut bytes, &mut descriptors)?;
    let mut reader = Reader::new(bytes.get(..length).unwrap_or(&[]));
    match reader.u8() {
        Ok(ACCEPTED) => {}
        Ok(REFUSAL) => return Err(Errno(reader.u16().unwrap_or(Errno::EPROTO.0))),
        _ => return Err(Errno::EPROTO),
    }
    let welcome = Welcome::decode(&mut reader).map_err(|_| Errno::EPROTO)?;
    // Slots, pins, locks and open files are held by numbers of threads and processes, and are taken
    // from who seems to be dead.
    if welcome.pid != rustix::process::getpid().as_raw_nonzero().get().unsigned_abs() {
        return Err(Errno::EOPNOTSUPP);
    }
    let map = Map::decode(&mut reader).map_err(|_| Errno::EPROTO)?;
    map_all(welcome, map, socket, &descriptors)
}

/// Takes the welcome off the socket, with its descriptors.
fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8; WELCOME_BYTES_MAX],
    descriptors: &mut Descriptors,
) -> Result<usize> {
    const SPACE: usize = rustix::cmsg_space!(ScmRights(Welcome::DESCRIPTORS_MAX));
    let mut space = [const { MaybeUninit::<u8>::uninit() }; SPACE];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut slices = [IoSliceMut::new(bytes)];
        match rustix::net::recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(OsErrno::INTR) => {}
            other => break other.map_err(errno)?,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            fds.for_each(|fd| descriptors.push(fd));
        }
    }
    if received.bytes == 0 { Err(Errno::ECONNREFUSED) } else { Ok(received.bytes) }
}

fn map_all(
    welcome: Welcome,
    map: Map,
    socket: OwnedFd,
    descriptors: &Descriptors,
) -> Result<(Attachment, HostSegment)> {
    let mut indexes = [const { None }; WORKER_COUNT_MAX];
    for (worker, index) in indexes.iter_mut().take(usize::from(welcome.workers)).enumerate() {
        let segment = descriptors.map(Welcome::DESCRIPTORS + worker, Access::ReadOnly)?;
        *index = Some(Index::open(segment)?);
    }
    let memory = rustix::io::fcntl_dupfd_cloexec(descriptors.get(3)?, descriptor_first());
    let ssd = rustix::io::fcntl_dupfd_cloexec(descriptors.get(6)?, descriptor_first());
    // In another time namespace it may be behind: then what is over would be believed.
    let is_same_clock = wait::steady_nanos() >= welcome.steady_nanos.cast_signed();
    let leases = Leases::open(descriptors.get(9)?)?;
    let attachment = Attachment {
        welcome,
        map,
        leases: is_same_clock.then_some(leases),
        session: Session::new(descriptors.map(0, Access::ReadWrite)?)?,
        bells: Doorbells::new(descriptors.map(1, Access::ReadWrite)?)?,
        posts: Posts::new(descriptors.map(7, Access::ReadWrite)?)?,
        indexes,
        arena: Arena::new(descriptors.map(3, Access::ReadWrite)?),
        table: PieceTable::new(descriptors.map(4, Access::ReadOnly)?),
        states: PieceStates::new(
            descriptors.map(5, Access::ReadWrite)?,
            descriptors.map(11, Access::ReadWrite)?,
        ),
        finder: Finder::new(descriptors.map(8, Access::ReadOnly)?)?,
        pins: Pins::new(descriptors.map(10, Access::ReadWrite)?)?,
        memory: memory.map_err(errno)?,
        ssd: ssd.map_err(errno)?,
        socket,
    };
    attachment.pins.note_session(attachment.welcome.session);
    let host = HostSegment::new(descriptors.map(2, Access::ReadWrite)?)?;
    Ok((attachment, host))
}

/// First number for a descriptor of ours.
fn descriptor_first() -> i32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.unwrap_or(u64::MAX);
    let first = (limit / 4).saturating_mul(3).min(DESCRIPTOR_FIRST);
    i32::try_from(first).unwrap_or(0)
}

/// Moves a descriptor to a number that no application counts on.
fn out_of_the_way(fd: OwnedFd) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(&fd, descriptor_first()).map_err(errno)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::socketpair;
    use rustix::process::{Resource, Rlimit, setrlimit};
    use std::format;
    use std::process::Command;
    use std::string::String;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a pair")
    }

    #[test]
    fn a_socket_path_holds_the_daemon_number() {
        let settings = Settings::new(c"/run/x", b"/fb", 0).expect("short paths");
        let path = settings.socket_path(0).expect("fits");
        assert_eq!(CStr::from_bytes_until_nul(&path), Ok(c"/run/x/d0.sock"));
        let path = settings.socket_path(1070).expect("fits");
        assert_eq!(CStr::from_bytes_until_nul(&path), Ok(c"/run/x/d1070.sock"));
        assert_eq!(settings.prefix(), b"/fb");
    }

    #[test]
    fn a_daemon_is_there_until_it_closes_also_for_who_may_have_no_descriptors() {
        const IN_CHILD: &str = "ATTACH_TEST_WITHOUT_DESCRIPTORS";
        if std::env::var_os(IN_CHILD).is_some() {
            let (ours, daemons) = pair();
            let (other, gone) = pair();
            drop(gone);
            assert!(is_held(ours.as_fd()) && !is_held(other.as_fd()));
            let none = Rlimit { current: Some(0), maximum: Some(0) };
            setrlimit(Resource::Nofile, none).expect("a limit");
            assert!(is_held(ours.as_fd()) && !is_held(other.as_fd()), "without descriptors");
            drop(daemons);
            assert!(!is_held(ours.as_fd()));
            return;
        }
        // The limit is the whole process's, and other tests run in this one.
        let name = "a_daemon_is_there_until_it_closes_also_for_who_may_have_no_descriptors";
        let output = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", &format!("attach::tests::{name}")])
            .env(IN_CHILD, "1")
            .output()
            .expect("a process");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}
