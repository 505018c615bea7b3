//! One attachment: the handshake with a daemon of this host, and the mappings that it grants.
//!
//! In this module: connecting, receiving the welcome with its descriptors, mapping them, and the
//! liveness test of the daemon. Elsewhere: which daemon is attached and when, and the replacement
//! of an attachment (`attach`).

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::time::Duration;
use placement::Map;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno as OsErrno;
use rustix::io::IoSliceMut;
use rustix::net::sockopt;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use shm::activity::ActivitySegment;
use shm::extents::{
    Arena, ExtentHints, ExtentStates, ExtentTable, HazardPointers, MemoryTarget, PageSums,
    SessionHazards, Target,
};
use shm::host::HostSegment;
use shm::index::{Index, Leases};
use shm::local_ops::OpLog;
use shm::segment::errno;
use shm::session::{Doorbells, Session};
use shm::{Access, Segment, wait};
use wire::codec::{Reader, Writer};
use wire::errno::{Errno, Result};
use wire::limits::{PROTOCOL_VERSION, WORKER_COUNT_MAX};
use wire::reply::Extent;
use wire::welcome::{ACCEPTED, HELLO_BYTES, MAGIC, REFUSAL, WELCOME_BYTES_MAX};
use wire::{Inode, Welcome};

/// Lowest number for descriptors of ours. High enough to stay clear of the application's, low
/// enough that the kernel's descriptor table, which every fork copies, stays below 64 KiB.
const DESCRIPTOR_FIRST: u64 = 4000;

/// Connection to one daemon of this host and everything mapped from it.
pub(crate) struct Attachment {
    /// The daemon's welcome message.
    pub(crate) welcome: Welcome,
    /// The instance map at the time of the handshake.
    pub(crate) map: Map,
    /// Request slots of the session.
    pub(crate) session: Session,
    /// Doorbells of the daemon's workers.
    pub(crate) bells: Doorbells,
    /// Log of local operations, which this process completes in shared memory.
    pub(crate) op_log: OpLog,
    /// Leases on directories of other hosts; `None` if this process's clock differs from the
    /// daemon's.
    leases: Option<Leases>,
    /// Index of entries and attributes, one per worker.
    indexes: [Option<Index>; WORKER_COUNT_MAX],
    arena: Arena,
    table: ExtentTable,
    states: ExtentStates,
    extent_hints: ExtentHints,
    hazards: HazardPointers,
    /// Device and number of the host segment's file.
    pub(super) host_file: (u64, u64),
    memory: OwnedFd,
    ssd: OwnedFd,
    socket: OwnedFd,
}

impl Attachment {
    /// The target of this daemon, for copying.
    #[inline]
    pub(crate) fn target(&self) -> Target<'_> {
        Target {
            arena: &self.arena,
            ssd: self.ssd.as_fd(),
            table: &self.table,
            states: &self.states,
        }
    }

    /// As `target`, for copies in memory.
    #[inline(always)]
    pub(crate) const fn memory_target(&self) -> MemoryTarget<'_> {
        MemoryTarget { arena: &self.arena, table: &self.table, states: &self.states }
    }

    /// Hazard pointers of this session: they keep extents in place while they are copied.
    #[inline]
    pub(crate) const fn hazards(&self) -> SessionHazards<'_> {
        self.hazards.of_session(self.welcome.session, self.welcome.timeout_micros)
    }

    /// The extent of a file that begins at `start`, if the hint table knows it.
    pub(crate) fn find_extent(&self, inode: Inode, start: u64) -> Option<Extent> {
        self.extent_hints.find(&self.table, inode, start)
    }

    /// The file that holds the bytes of a tier, for mapping.
    pub(crate) fn tier(&self, tier: u8) -> BorrowedFd<'_> {
        if tier == Extent::MEMORY { self.memory.as_fd() } else { self.ssd.as_fd() }
    }

    /// Descriptors that this process needs.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = i32> {
        let always = [self.socket.as_fd(), self.ssd.as_fd(), self.memory.as_fd()];
        let tables = [self.arena.descriptor(), self.hazards.descriptor(), self.table.descriptor()];
        let states = self.states.descriptors().into_iter();
        let some = states.chain(tables).chain([self.extent_hints.descriptor()]);
        let indexes = self.indexes.iter().flatten().map(Index::descriptor);
        let some = some.chain(indexes).flatten();
        always.into_iter().chain(some).map(|file| file.as_raw_fd())
    }

    /// Sees nothing of the daemon's memory any more. Its descriptors stay open.
    pub(super) fn detach(&self) {
        self.session.detach();
        self.bells.detach();
        self.op_log.detach();
        self.leases.iter().for_each(Leases::detach);
        self.indexes.iter().flatten().for_each(Index::detach);
        self.arena.detach();
        self.table.detach();
        self.states.detach();
        self.extent_hints.detach();
        self.hazards.detach();
    }

    /// Leases on directories of other hosts.
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

    /// Has the tables of the daemon count no longer as memory of this process.
    pub(super) fn unmap_tables(&self) {
        self.indexes.iter().flatten().for_each(Index::unmap_pages);
        self.table.unmap_pages();
        self.states.unmap_pages();
        self.extent_hints.unmap_pages();
    }

    /// True while the daemon holds its end of the socket open.
    pub(crate) fn is_alive(&self) -> bool {
        is_open(self.socket.as_fd())
    }
}

/// True unless the peer of a socket is known to have closed it.
fn is_open(socket: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    let gone = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR | PollFlags::NVAL;
    match rustix::event::poll(&mut polled, Some(&none)) {
        Ok(_) => polled.iter().all(|polled| !polled.revents().intersects(gone)),
        Err(OsErrno::INTR) => true,
        // `poll` fails in a process whose descriptor limit is 0. Peeking works there: after the
        // welcome the daemon sends nothing, so the only event is the end of the stream.
        Err(_) => {
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            let peeked = rustix::net::recv(socket, &mut [0_u8; 1], flags).map(|(count, _)| count);
            !matches!(peeked, Ok(0) | Err(OsErrno::CONNRESET | OsErrno::BADF | OsErrno::NOTSOCK))
        }
    }
}

/// The descriptors of a welcome, in the order of the message.
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

    /// A descriptor of the message. One that is missing did not fit below the limit of this process.
    fn get(&self, place: usize) -> Result<BorrowedFd<'_>> {
        self.fds.get(place).and_then(Option::as_ref).map(AsFd::as_fd).ok_or(Errno::EMFILE)
    }

    /// A descriptor that stays open, at a number that no application relies on.
    fn keep(&self, place: usize) -> Result<OwnedFd> {
        rustix::io::fcntl_dupfd_cloexec(self.get(place)?, descriptor_first()).map_err(errno)
    }

    fn map(&self, place: usize, access: Access) -> Result<Segment> {
        let fd = self.get(place)?;
        let bytes = rustix::fs::fstat(fd).map_err(errno)?.st_size;
        let bytes = usize::try_from(bytes).map_err(|_| Errno::EPROTO)?;
        Segment::map(fd, bytes, access)
    }
}

/// Performs the handshake on the socket at `path` and maps what the daemon hands over. A guest maps
/// of the tables what it needs, and little of the arena stays mapped. `EIO` if the daemon does not
/// answer within `handshake_timeout`.
pub(super) fn connect(
    path: &CStr,
    is_guest: bool,
    handshake_timeout: Duration,
) -> Result<(Attachment, HostSegment, ActivitySegment)> {
    let flags = SocketFlags::CLOEXEC;
    let family = AddressFamily::UNIX;
    let socket =
        rustix::net::socket_with(family, SocketType::STREAM, flags, None).map_err(errno)?;
    let address = SocketAddrUnix::new(path).map_err(errno)?;
    // The second bounds the wait for a place among the connections that are not accepted yet.
    for direction in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        sockopt::set_socket_timeout(&socket, direction, Some(handshake_timeout)).map_err(errno)?;
    }
    rustix::net::connect(&socket, &address).map_err(handshake_errno)?;
    let socket = to_high_number(socket)?;

    let mut hello = [0; HELLO_BYTES];
    let mut writer = Writer::new(&mut hello);
    writer.raw(&MAGIC);
    writer.u32(PROTOCOL_VERSION);
    rustix::net::send(&socket, &hello, SendFlags::NOSIGNAL).map_err(handshake_errno)?;

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
    // Slots, hazard pointers, locks and open files are owned by thread and process ids, and are
    // reclaimed from owners that seem dead; in another PID namespace every owner would.
    if welcome.pid != rustix::process::getpid().as_raw_nonzero().get().unsigned_abs() {
        return Err(Errno::EOPNOTSUPP);
    }
    let map = Map::decode(&mut reader).map_err(|_| Errno::EPROTO)?;
    map_all(welcome, map, socket, &descriptors, is_guest)
}

/// The errno of a step of the handshake. `EIO`: the daemon did not answer in time. `ECONNREFUSED`: no
/// daemon listens, or it ended meanwhile; the next one is waited for.
fn handshake_errno(refused: OsErrno) -> Errno {
    match refused {
        OsErrno::AGAIN => Errno::EIO,
        OsErrno::CONNRESET | OsErrno::PIPE => Errno::ECONNREFUSED,
        other => errno(other),
    }
}

/// Receives the welcome and its descriptors.
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
            other => break other.map_err(handshake_errno)?,
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
    is_guest: bool,
) -> Result<(Attachment, HostSegment, ActivitySegment)> {
    let mut indexes = [const { None }; WORKER_COUNT_MAX];
    for (worker, index) in indexes.iter_mut().take(usize::from(welcome.workers)).enumerate() {
        let place = Welcome::DESCRIPTORS + worker;
        *index = Some(match is_guest {
            true => Index::open_in_parts(descriptors.keep(place)?)?,
            false => Index::open(descriptors.map(place, Access::ReadOnly)?)?,
        });
    }
    let session = welcome.session;
    let (op_log, hazards) = match is_guest {
        true => {
            let op_log = OpLog::of_session(descriptors.get(7)?, session)?;
            (op_log, HazardPointers::of_client(descriptors.keep(10)?, session)?)
        }
        false => {
            let op_log = OpLog::new(descriptors.map(7, Access::ReadWrite)?)?;
            (op_log, HazardPointers::new(descriptors.map(10, Access::ReadWrite)?)?)
        }
    };
    let (table, states, extent_hints) = extent_tables(descriptors, is_guest)?;
    let (memory, ssd) = (descriptors.keep(3), descriptors.keep(6));
    // In another time namespace the clock may be behind; expired leases would then be trusted.
    let is_same_clock = wait::steady_nanos() >= welcome.steady_nanos.cast_signed();
    let leases = Leases::open(descriptors.get(9)?)?;
    let host_file = rustix::fs::fstat(descriptors.get(2)?).map_err(errno)?;
    let attachment = Attachment {
        welcome,
        map,
        leases: is_same_clock.then_some(leases),
        session: Session::new(descriptors.map(0, Access::ReadWrite)?)?,
        bells: Doorbells::new(descriptors.map(1, Access::ReadWrite)?)?,
        op_log,
        indexes,
        arena: arena(descriptors, is_guest)?,
        table,
        states,
        extent_hints,
        hazards,
        host_file: (host_file.st_dev, host_file.st_ino),
        memory: memory?,
        ssd: ssd?,
        socket,
    };
    attachment.hazards.note_session(attachment.welcome.session)?;
    let host = HostSegment::new(descriptors.map(2, Access::ReadWrite)?)?;
    let activity = ActivitySegment::new(descriptors.map(13, Access::ReadWrite)?)?;
    Ok((attachment, host, activity))
}

/// The tables of the daemon's extents. A guest maps parts of them, as they come into use.
fn extent_tables(
    descriptors: &Descriptors,
    is_guest: bool,
) -> Result<(ExtentTable, ExtentStates, ExtentHints)> {
    let [table, states, hints, page_groups, sums] = [4, 5, 8, 11, 12];
    if is_guest {
        let keep = |place| descriptors.keep(place);
        let sums = PageSums::open_in_parts(keep(sums)?)?;
        let states = ExtentStates::open_in_parts(keep(states)?, keep(page_groups)?, sums)?;
        let hints = ExtentHints::open_in_parts(keep(hints)?)?;
        return Ok((ExtentTable::open_in_parts(keep(table)?)?, states, hints));
    }
    let to_write = |place| descriptors.map(place, Access::ReadWrite);
    let sums = PageSums::new(to_write(sums)?);
    let states = ExtentStates::new(to_write(states)?, to_write(page_groups)?, sums);
    let hints = ExtentHints::new(descriptors.map(hints, Access::ReadOnly)?)?;
    Ok((ExtentTable::new(descriptors.map(table, Access::ReadOnly)?), states, hints))
}

/// The arena, which is as long as the daemon's memory. A guest maps few parts of it at a time; one
/// whose address space is limited needs that for itself, and maps none.
fn arena(descriptors: &Descriptors, is_guest: bool) -> Result<Arena> {
    const PLACE: usize = 3;
    if !is_guest {
        return Ok(Arena::new(descriptors.map(PLACE, Access::ReadWrite)?));
    }
    let file = descriptors.keep(PLACE)?;
    let bytes = rustix::fs::fstat(&file).map_err(errno)?.st_size;
    let bytes = u64::try_from(bytes).map_err(|_| Errno::EPROTO)?;
    let space = rustix::process::getrlimit(rustix::process::Resource::As);
    Ok(match space.current {
        None => Arena::in_windows(file, bytes),
        Some(_) => Arena::unmapped(file, bytes),
    })
}

/// First number for a descriptor of ours.
fn descriptor_first() -> i32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.unwrap_or(u64::MAX);
    let first = (limit / 4).saturating_mul(3).min(DESCRIPTOR_FIRST);
    i32::try_from(first).unwrap_or(0)
}

/// Moves a descriptor to a number that no application relies on.
fn to_high_number(fd: OwnedFd) -> Result<OwnedFd> {
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
    fn a_daemon_is_alive_until_it_closes_even_without_free_descriptors() {
        const IN_CHILD: &str = "ATTACH_TEST_WITHOUT_DESCRIPTORS";
        if std::env::var_os(IN_CHILD).is_some() {
            let (ours, daemons) = pair();
            let (other, gone) = pair();
            drop(gone);
            assert!(is_open(ours.as_fd()) && !is_open(other.as_fd()));
            let none = Rlimit { current: Some(0), maximum: Some(0) };
            setrlimit(Resource::Nofile, none).expect("a limit");
            assert!(is_open(ours.as_fd()) && !is_open(other.as_fd()), "without descriptors");
            drop(daemons);
            assert!(!is_open(ours.as_fd()));
            return;
        }
        // The limit applies to the whole process, and other tests run in this one, so a child is
        // used.
        let name = "a_daemon_is_alive_until_it_closes_even_without_free_descriptors";
        let output = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", &format!("transport::attachment::tests::{name}")])
            .env(IN_CHILD, "1")
            .output()
            .expect("a process");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}
