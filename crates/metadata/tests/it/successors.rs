//! A service goes on at another daemon, from a copy of its log, after the host of its owner died: with
//! everything that is in the copy, for the hosts that live.

use crate::sim::{Answer, HostState, NOTHING, Sent, World};
use metadata::{Config, Input, Service, SnapshotCursor};
use wire::attributes::mode;
use wire::errno::Errno;
use wire::reply::lookup_flag;
use wire::request::lock::{READ, UNLOCK, WAIT, WRITE};
use wire::request::set;
use wire::watch::VALID_NANOS;
use wire::{Attributes, Credentials, DaemonIndex, Inode, Layout, Request, ShardIndex};

const ROOT: Inode = Inode::ROOT;
/// Programs of no host are this one's: those of its own host come to it as those of others do.
const NO_HOST: u16 = u16::MAX;
/// The host of the first owner.
const DEAD: u16 = 0;

impl World {
    /// Service `at` goes on at `successor`, in `epoch`, without its last `lost` records.
    pub(crate) fn succeed(&mut self, at: usize, successor: DaemonIndex, epoch: u64, lost: usize) {
        self.succeed_after((at, Some(DEAD)), successor, epoch, lost);
    }

    /// The same; `None`: its first owner's host has reported what its memory knew.
    pub(crate) fn succeed_after(
        &mut self,
        (at, host): (usize, Option<u16>),
        successor: DaemonIndex,
        epoch: u64,
        lost: usize,
    ) {
        let seat = &mut self.seats[at];
        seat.log.truncate(seat.log.len() - lost);
        seat.config =
            Config { daemon: successor, host: NO_HOST, host_daemons: 0, ..seat.config.clone() };
        let mut service = Service::new(seat.config.clone());
        for record in &seat.log {
            service.replay(record).expect("a record of our own");
        }
        service.take_over(epoch, host);
        seat.service = service;
        seat.host_view = HostState::default();
        (seat.data, seat.removals) = (Vec::new(), Vec::new());
        seat.known = Default::default();
        self.queue.clear();
        self.step(at, Input::Tick);
    }

    /// Service 0 is back at its first owner, whose host lives: its memory is as it was.
    pub(crate) fn come_back(&mut self, epoch: u64, memory: HostState) {
        let seat = &mut self.seats[0];
        let (daemon, host) = (DaemonIndex(0), DEAD);
        seat.config = Config { daemon, host, host_daemons: 1, ..seat.config.clone() };
        let mut service = Service::new(seat.config.clone());
        for record in &seat.log {
            service.replay(record).expect("a record of our own");
        }
        service.come_back(epoch);
        service.meet_host(epoch, &memory);
        (seat.service, seat.host_view) = (service, memory);
        (seat.data, seat.removals) = (Vec::new(), Vec::new());
        seat.known = Default::default();
        self.queue.clear();
        self.step(0, Input::Tick);
    }

    /// It is known that the first owner's host is gone.
    fn is_gone(&mut self, at: usize) {
        self.step(at, Input::HostGone { host: DEAD });
        self.step(at, Input::OpensKnown);
    }

    /// The daemon of service `at` finds files without a name that nobody of its host has open.
    fn reap_orphans(&mut self, at: usize) {
        for inode in self.seats[at].service.orphans().collect::<Vec<_>>() {
            call(self, NO_HOST, inode, &Request::Reap { inode });
        }
    }
}

/// The state of a service, as records.
fn states(service: &Service) -> Vec<u8> {
    let (mut cursor, mut records) = (SnapshotCursor::default(), Vec::new());
    while service.snapshot_slice(&mut cursor, 1 << 20, &mut records) {}
    records
}

pub(crate) fn create(world: &mut World, host: u16, name: &[u8]) -> Sent {
    let (mode, layout) = (mode::REGULAR | 0o600, Layout::default());
    let (device, flags, target) = (0, 0, &[][..]);
    let request = Request::Create { parent: ROOT, name, mode, device, flags, layout, target };
    let mut sent = world.prepare(Credentials::ROOT, ROOT.shard(), &request);
    sent.header.host = host;
    sent
}

/// Sends a request of a host, and waits for its answer.
pub(crate) fn call(
    world: &mut World,
    host: u16,
    inode: Inode,
    request: &Request<'_>,
) -> Option<Answer> {
    let mut sent = world.prepare(Credentials::ROOT, inode.shard(), request);
    sent.header.host = host;
    let ticket = world.send_again(&sent);
    world.settle();
    world.answer(ticket)
}

pub(crate) fn answered(world: &mut World, sent: &Sent) -> Answer {
    let ticket = world.send_again(sent);
    world.settle();
    world.answer(ticket).expect("answered")
}

#[test]
fn a_request_that_is_repeated_at_the_successor_is_carried_out_once() {
    let mut world = World::daemons(3);
    let one = create(&mut world, 1, b"one");
    let made = answered(&mut world, &one);
    world.succeed(0, DaemonIndex(2), 2, 0);
    assert_eq!(answered(&mut world, &one), made, "its answer is in the log");
    let found = world.root().look(ROOT, b"one").expect("there");
    assert_eq!(found.inode, made.attributes().inode);
    // The successor dies, too.
    world.succeed(0, DaemonIndex(1), 3, 0);
    assert_eq!(answered(&mut world, &one), made);
}

/// Its answer was lost, and others removed what it made, before it was repeated: it was made all the
/// same.
#[test]
fn a_repeated_request_that_made_a_file_succeeds_although_it_was_removed_since() {
    for kind in [mode::SYMLINK, mode::DIRECTORY, mode::FIFO, mode::REGULAR] {
        let mut world = World::daemons(3);
        let target = if kind == mode::SYMLINK { &b"target"[..] } else { b"" };
        let (mode, layout, device, flags) = (kind | 0o700, Layout::default(), 0, 0);
        let name = b"one";
        let request = Request::Create { parent: ROOT, name, mode, device, flags, layout, target };
        let mut sent = world.prepare(Credentials::ROOT, ROOT.shard(), &request);
        sent.header.client_id = 77;
        let made = answered(&mut world, &sent).attributes();
        let is_directory = kind == mode::DIRECTORY;
        let mut root = world.root();
        let removed = if is_directory { root.rmdir(ROOT, name) } else { root.unlink(ROOT, name) };
        removed.expect("removed");
        world.settle();
        assert_eq!(world.stat(made.inode), Err(Errno::ESTALE));
        let again = answered(&mut world, &sent).attributes();
        assert_eq!(again.mode & mode::TYPE, kind);
        // An open file must exist, so it is made anew; nothing else is.
        let is_new = kind == mode::REGULAR;
        assert_eq!(again.inode != made.inode, is_new, "{kind:o}");
        assert_eq!(world.root().look(ROOT, name).is_ok(), is_new, "{kind:o}");
    }
}

#[test]
fn numbers_of_files_that_were_lost_are_not_given_again() {
    let mut world = World::daemons(3);
    let kept = create(&mut world, 1, b"kept");
    let kept = answered(&mut world, &kept).attributes().inode;
    let before = world.seats[0].log.len();
    let late = create(&mut world, 1, b"late");
    let lost = answered(&mut world, &late).attributes().inode;
    let records = world.seats[0].log.len() - before;
    assert!(records > 0 && lost != kept);
    for epoch in 2..5 {
        world.succeed(0, DaemonIndex(2), epoch, if epoch == 2 { records } else { 0 });
        // A host that holds the lost file's number gets no other file for it.
        assert_eq!(world.stat(lost), Err(Errno::ESTALE));
        let name = format!("new{epoch}");
        let new = create(&mut world, 1, name.as_bytes());
        let new = answered(&mut world, &new);
        assert!(new.attributes().inode.sequence() > lost.sequence(), "epoch {epoch}");
        assert!(world.root().look(ROOT, b"kept").is_ok());
    }
    // The request of the lost file comes again, and is carried out.
    let again = answered(&mut world, &late).attributes().inode;
    assert!(again != lost && again != kept);
}

#[test]
fn open_files_of_living_hosts_stay_and_those_of_the_dead_host_end_when_it_is_known_to_be_gone() {
    let mut world = World::daemons(3);
    let mut file = |name: &[u8]| world.root().file(ROOT, name).expect("made").inode;
    let (both, dead_only, named) = (file(b"both"), file(b"dead"), file(b"named"));
    // Host 2 is that of the successor.
    for (inode, host, open_sequence) in [(both, 1, 1), (both, 2, 1)] {
        let open = Request::Open { inode, open_sequence, uses: 0 };
        call(&mut world, host, inode, &open).expect("answered");
    }
    // Files that programs of the owner's own host have open are known to the memory of that host alone.
    world.seats[0].host_view.open.extend([dead_only, named]);
    for name in [&b"both"[..], b"dead"] {
        world.root().unlink(ROOT, name).expect("there");
    }
    world.succeed(0, DaemonIndex(2), 2, 0);
    // Files from before may be open there, later ones are not.
    let later = create(&mut world, 1, b"later");
    let later = answered(&mut world, &later).attributes().inode;
    for name in [&b"named"[..], b"later"] {
        world.root().unlink(ROOT, name).expect("there");
    }
    world.reap_orphans(0);
    for (inode, expected) in [(dead_only, Ok(0)), (named, Ok(0)), (later, Err(Errno::ESTALE))] {
        assert_eq!(world.stat(inode).map(|it| it.links), expected, "it may be open at host {DEAD}");
    }
    // The next successor knows no more.
    world.succeed(0, DaemonIndex(1), 3, 0);
    world.reap_orphans(0);
    assert!(world.stat(dead_only).is_ok() && world.stat(named).is_ok());
    world.is_gone(0);
    for inode in [dead_only, named] {
        assert_eq!(world.stat(inode), Err(Errno::ESTALE), "nobody has it open");
    }
    assert_eq!(world.stat(both).expect("an orphan").links, 0);
    for (host, is_last) in [(2, false), (1, true)] {
        let close = Request::Close { inode: both, open_sequence: 2 };
        call(&mut world, host, both, &close).expect("answered");
        assert_eq!(world.stat(both).is_err(), is_last, "closed at host {host}");
    }
}

#[test]
fn a_service_that_is_back_knows_what_its_host_has_open_and_gives_no_number_twice() {
    let mut world = World::daemons(3);
    let mut file = |name: &[u8]| world.root().file(ROOT, name).expect("made").inode;
    let (open, closed, other) = (file(b"open"), file(b"closed"), file(b"other"));
    world.seats[0].host_view.open.extend([open, closed]);
    let memory = std::mem::take(&mut world.seats[0].host_view);
    let before = world.seats[0].log.len();
    let late = create(&mut world, 1, b"late");
    let lost = answered(&mut world, &late).attributes().inode;
    let records = world.seats[0].log.len() - before;
    world.succeed(0, DaemonIndex(2), 2, records);
    let of_successor = create(&mut world, 1, b"meanwhile");
    let of_successor = answered(&mut world, &of_successor).attributes().inode;
    let opened = Request::Open { inode: other, open_sequence: 1, uses: 0 };
    call(&mut world, 2, other, &opened).expect("answered");
    for name in [&b"open"[..], b"closed", b"other"] {
        world.root().unlink(ROOT, name).expect("there");
    }
    world.come_back(3, memory);
    world.seats[0].host_view.open.remove(&closed);
    for inode in world.seats[0].service.orphans().collect::<Vec<_>>() {
        call(&mut world, DEAD, inode, &Request::Reap { inode });
    }
    let links = |world: &mut World, inode| world.stat(inode).map(|it| it.links);
    assert_eq!(links(&mut world, open), Ok(0), "a program of its host has it open");
    assert_eq!(links(&mut world, other), Ok(0), "one of another host has");
    assert_eq!(links(&mut world, closed), Err(Errno::ESTALE));
    assert_eq!(world.root().look(ROOT, b"meanwhile").expect("there").inode, of_successor);
    let new = create(&mut world, 1, b"new");
    let new = answered(&mut world, &new).attributes().inode;
    let in_order = lost.sequence() < of_successor.sequence()
        && of_successor.sequence() + (1 << 31) < new.sequence();
    assert!(in_order, "{lost:?} {of_successor:?} {new:?}");
    // A copy of its log has the numbers, too.
    let mut copy = Service::new(world.seats[0].config.clone());
    for record in &world.seats[0].log {
        copy.replay(record).expect("a record of our own");
    }
    assert_eq!(states(&copy), states(&world.seats[0].service));
}

#[test]
fn a_host_that_lives_reports_what_it_has_open() {
    let mut world = World::daemons(3);
    let mut file = |name: &[u8]| world.root().file(ROOT, name).expect("made").inode;
    let (open, closed) = (file(b"open"), file(b"closed"));
    world.seats[0].host_view.open.extend([open, closed]);
    for name in [&b"open"[..], b"closed"] {
        world.root().unlink(ROOT, name).expect("there");
    }
    world.succeed(0, DaemonIndex(2), 2, 0);
    // Its daemon has returned. To the service, programs of that host are those of any other host now.
    let opened = Request::Open { inode: open, open_sequence: 1, uses: 0 };
    call(&mut world, DEAD, open, &opened).expect("answered");
    world.step(0, Input::OpensKnown);
    assert_eq!(world.stat(closed), Err(Errno::ESTALE));
    // That is in the log, for the next successor.
    world.succeed(0, DaemonIndex(1), 3, 0);
    world.step(0, Input::OpensKnown);
    assert_eq!(world.stat(open).expect("open").links, 0);
    call(&mut world, DEAD, open, &Request::Close { inode: open, open_sequence: 2 });
    assert_eq!(world.stat(open), Err(Errno::ESTALE));
}

#[test]
fn locks_of_living_hosts_stay_and_those_of_the_dead_host_end_when_it_is_known_to_be_gone() {
    let mut world = World::daemons(3);
    let file = world.root().file(ROOT, b"locked").expect("made").inode;
    let lock = |world: &mut World, host: u16, kind: u8, flags: u8, (start, end): (u64, u64)| {
        let (owner, pid) = (u64::from(host) + 1, 1);
        let request =
            Request::Lock { inode: file, owner, party: owner, pid, kind, flags, start, end };
        let mut sent = world.prepare(Credentials::ROOT, file.shard(), &request);
        (sent.header.host, sent.header.client_id) = (host, 1000 + owner);
        world.send_again(&sent)
    };
    for (host, range) in [(DEAD, (0, 9)), (1, (10, 19))] {
        let taken = lock(&mut world, host, WRITE, 0, range);
        assert_eq!(world.answer(taken), Some(Answer::Done));
    }
    world.succeed(0, DaemonIndex(2), 2, 0);
    let of_dead = lock(&mut world, 2, WRITE, 0, (0, 9));
    assert_eq!(world.answer(of_dead), Some(Answer::Refused(Errno::EAGAIN)), "its host may live");
    world.is_gone(0);
    let of_dead = lock(&mut world, 2, WRITE, 0, (0, 9));
    assert_eq!(world.answer(of_dead), Some(Answer::Done));
    let of_living = lock(&mut world, 2, READ, 0, (10, 10));
    assert_eq!(world.answer(of_living), Some(Answer::Refused(Errno::EAGAIN)));
    let waits = lock(&mut world, 2, READ, WAIT, (10, 10));
    assert_eq!(world.answer(waits), None);
    lock(&mut world, 1, UNLOCK, 0, (10, 19));
    assert_eq!(world.answer(waits), Some(Answer::Done), "it gets the lock when it is free");
}

/// Delivers messages and lets time pass until a request is answered.
pub(crate) fn await_answer(world: &mut World, ticket: u64) {
    for _ in 0..10_000 {
        if world.answer(ticket).is_some() {
            return;
        }
        if world.queue.is_empty() {
            let seats = world.seats.iter().enumerate();
            let due = seats.filter_map(|(at, seat)| Some((seat.service.deadline()?, at)));
            let (when, at) = due.min().expect("something waits for time");
            world.now = world.now.max(when);
            world.step(at, Input::Tick);
        } else {
            world.settle_for(1);
        }
    }
    panic!("it is not answered");
}

#[test]
fn a_change_waits_for_mounts_of_the_dead_daemons_host_until_it_is_known_to_be_gone() {
    for is_gone in [false, true] {
        let mut world = World::daemons(3);
        // A file of another service, which a mount of the host remembers.
        let directory = (0..4).find_map(|number| {
            let made = world.root().directory(ROOT, format!("d{number}").as_bytes());
            let made = made.expect("made");
            (world.owner(ShardIndex(made.layout.place)) == 1).then_some(made.inode)
        });
        let file = world.root().file(directory.expect("in turn"), b"file").expect("made").inode;
        assert_eq!(world.owner(file.shard()), 1);
        world.settle();
        world.succeed(0, DaemonIndex(2), 2, 0);
        if is_gone {
            world.is_gone(0);
        }
        let look = Request::LookupForMount { inode: file, name: b"" };
        let mut sent = world.prepare(Credentials::ROOT, file.shard(), &look);
        (sent.header.host, sent.header.mount) = (DEAD, 1);
        let looked = world.now;
        let seen = answered(&mut world, &sent);
        let Answer::LookupForMount(may, _) = seen else { panic!("{seen:?}") };
        assert_ne!(may & lookup_flag::ATTRIBUTES_STAY, 0, "the mount may remember it");
        let change = Attributes { mode: 0o600, ..NOTHING };
        let (mask, Attributes { mode, uid, gid, size, .. }) = (set::MODE, change);
        let (inode, accessed, modified) = (file, 0, 0);
        let request =
            Request::SetAttributes { inode, mask, mode, uid, gid, size, accessed, modified };
        let ticket = world.send(Credentials::ROOT, file.shard(), &request);
        await_answer(&mut world, ticket);
        let nanos = world.now - looked;
        // A mount that is gone with its host remembers nothing.
        assert_eq!(nanos >= VALID_NANOS, !is_gone, "after {nanos} ns");
    }
}

#[test]
fn a_successor_waits_for_what_kernels_remember_from_before() {
    for has_mount in [false, true] {
        let mut world = World::daemons(3);
        let file = world.root().file(ROOT, b"seen").expect("made").inode;
        if has_mount {
            let look = Request::LookupForMount { inode: file, name: b"" };
            let mut sent = world.prepare(Credentials::ROOT, file.shard(), &look);
            (sent.header.host, sent.header.mount) = (1, 1);
            let Answer::LookupForMount(may, _) = answered(&mut world, &sent) else {
                panic!("it looks");
            };
            assert_ne!(may & lookup_flag::ATTRIBUTES_STAY, 0, "the mount may remember it");
        }
        world.succeed(0, DaemonIndex(2), 2, 0);
        // Nothing of the mount is known here, but that there was one.
        let begun = world.now;
        let change = Attributes { mode: 0o600, ..NOTHING };
        let (mask, Attributes { mode, uid, gid, size, .. }) = (set::MODE, change);
        let (inode, accessed, modified) = (file, 0, 0);
        let request =
            Request::SetAttributes { inode, mask, mode, uid, gid, size, accessed, modified };
        let ticket = world.send(Credentials::ROOT, file.shard(), &request);
        await_answer(&mut world, ticket);
        let nanos = world.now - begun;
        assert_eq!(nanos >= VALID_NANOS, has_mount, "after {nanos} ns");
        // A change later waits no more.
        let begun = world.now;
        let ticket = world.send(Credentials::ROOT, file.shard(), &request);
        await_answer(&mut world, ticket);
        assert!(world.now - begun < VALID_NANOS);
    }
}

#[test]
fn a_transaction_that_was_begun_ends_at_the_successor() {
    for delivered in 0..12 {
        let mut world = World::daemons(3);
        let wide = world.root().wide(ROOT, b"wide").expect("made").inode;
        let names: Vec<String> = (0..8).map(|number| format!("name{number}")).collect();
        for name in &names {
            world.root().file(wide, name.as_bytes()).expect("made");
        }
        let (from, to) = (names[0].as_bytes(), b"renamed");
        let (parent, new_parent, flags) = (wide, wide, 0);
        let request = Request::Rename { parent, name: from, new_parent, new_name: to, flags };
        let shard = world.shard_of(wide, from);
        let sent = world.prepare(Credentials::ROOT, shard, &request);
        let ticket = world.send_again(&sent);
        world.settle_for(delivered);
        // Messages on their way are lost with the connections.
        world.succeed(0, DaemonIndex(1), 2, 0);
        world.settle();
        let done = world.answer(ticket).unwrap_or_else(|| answered(&mut world, &sent));
        let is_there = |world: &mut World, name: &[u8]| world.root().look(wide, name).is_ok();
        let both = (is_there(&mut world, from), is_there(&mut world, to));
        assert_eq!(both, (false, true), "after {delivered} messages: {done:?}");
    }
}
