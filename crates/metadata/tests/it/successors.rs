//! A service goes on at another daemon, from a copy of its log, after the host of its owner died: with
//! everything that is in the copy, for the hosts that live.

use crate::sim::{Answer, HostState, Sent, World};
use metadata::{Config, Input, Service};
use wire::attributes::mode;
use wire::errno::Errno;
use wire::request::lock::{READ, UNLOCK, WAIT, WRITE};
use wire::{Credentials, DaemonIndex, Inode, Layout, Request};

const ROOT: Inode = Inode::ROOT;
/// Programs of no host are this one's: those of its own host come to it as those of others do.
const NO_HOST: u16 = u16::MAX;
/// The host of the first owner.
const DEAD: u16 = 0;

impl World {
    /// Service `at` goes on at `successor`, in `epoch`, without its last `lost` records.
    fn succeed(&mut self, at: usize, successor: DaemonIndex, epoch: u64, lost: usize) {
        let seat = &mut self.seats[at];
        seat.log.truncate(seat.log.len() - lost);
        seat.config =
            Config { daemon: successor, host: NO_HOST, host_daemons: 0, ..seat.config.clone() };
        let mut service = Service::new(seat.config.clone());
        for record in &seat.log {
            service.replay(record).expect("a record of our own");
        }
        service.skip_numbers(epoch);
        seat.service = service;
        seat.host_view = HostState::default();
        (seat.data, seat.removals) = (Vec::new(), Vec::new());
        seat.known = Default::default();
        self.queue.clear();
        self.step(at, Input::Tick);
        self.step(at, Input::HostGone { host: DEAD });
    }
}

fn create(world: &mut World, host: u16, name: &[u8]) -> Sent {
    let (mode, layout) = (mode::REGULAR | 0o600, Layout::default());
    let (device, flags, target) = (0, 0, &[][..]);
    let request = Request::Create { parent: ROOT, name, mode, device, flags, layout, target };
    let mut sent = world.prepare(Credentials::ROOT, ROOT.shard(), &request);
    sent.header.host = host;
    sent
}

/// Sends a request of a host, and waits for its answer.
fn call(world: &mut World, host: u16, inode: Inode, request: &Request<'_>) -> Option<Answer> {
    let mut sent = world.prepare(Credentials::ROOT, inode.shard(), request);
    sent.header.host = host;
    let ticket = world.send_again(&sent);
    world.settle();
    world.answer(ticket)
}

fn answered(world: &mut World, sent: &Sent) -> Answer {
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
fn open_files_of_living_hosts_stay_and_those_of_the_dead_host_end() {
    let mut world = World::daemons(3);
    let mut file = |name: &[u8]| world.root().file(ROOT, name).expect("made").inode;
    let (both, dead_only) = (file(b"both"), file(b"dead"));
    // Host 2 is that of the successor.
    for (inode, host, open_sequence) in [(both, 1, 1), (both, 2, 1), (dead_only, DEAD, 1)] {
        let open = Request::Open { inode, open_sequence, uses: 0 };
        call(&mut world, host, inode, &open).expect("answered");
    }
    // Programs of the owner's own host are in its memory alone, which is gone.
    world.seats[0].host_view.open.insert(dead_only);
    for name in [&b"both"[..], b"dead"] {
        world.root().unlink(ROOT, name).expect("there");
    }
    world.succeed(0, DaemonIndex(2), 2, 0);
    for inode in world.seats[0].service.orphans().collect::<Vec<_>>() {
        call(&mut world, NO_HOST, inode, &Request::Reap { inode });
    }
    assert_eq!(world.stat(dead_only), Err(Errno::ESTALE), "nobody has it open");
    assert_eq!(world.stat(both).expect("an orphan").links, 0);
    for (host, is_last) in [(2, false), (1, true)] {
        let close = Request::Close { inode: both, open_sequence: 2 };
        call(&mut world, host, both, &close).expect("answered");
        assert_eq!(world.stat(both).is_err(), is_last, "closed at host {host}");
    }
}

#[test]
fn locks_of_living_hosts_stay_and_those_of_the_dead_host_end() {
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
    assert_eq!(world.answer(of_dead), Some(Answer::Done));
    let of_living = lock(&mut world, 2, READ, 0, (10, 10));
    assert_eq!(world.answer(of_living), Some(Answer::Refused(Errno::EAGAIN)));
    let waits = lock(&mut world, 2, READ, WAIT, (10, 10));
    assert_eq!(world.answer(waits), None);
    lock(&mut world, 1, UNLOCK, 0, (10, 19));
    assert_eq!(world.answer(waits), Some(Answer::Done), "it gets the lock when it is free");
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
