//! A kernel compares the owner of a file that it learned with a name for as long as it remembers the
//! name. So a mount is told of a change of owner also where a notice of another change has ended its
//! watch of the attributes; and once.

use crate::sim::{Answer, World};
use wire::codec::Field as _;
use wire::hash::entry_key;
use wire::reply::lookup_flag;
use wire::request::set;
use wire::watch::{MARGIN_NANOS, Notice, VALID_NANOS, Watch, what};
use wire::{Credentials, Inode, Reader, Reply, Request, ShardIndex};

const ROOT: Inode = Inode::ROOT;

/// Mount 1 of the host of a service, which is its only one.
struct Mount {
    at: usize,
    /// The ticket of its request for notices.
    poll: u64,
    last: u64,
}

impl Mount {
    fn new(world: &mut World, at: usize) -> Mount {
        let mut watched = world.seats[at].host_view.watched.borrow_mut();
        watched.mounts.insert(1);
        // It remembers a name all the time.
        let name = Watch::of_key(entry_key(ROOT, b"name"));
        watched.holder_messages.insert((1, name), (1, i64::MAX));
        drop(watched);
        let mut mount = Mount { at, poll: 0, last: 0 };
        mount.acknowledge(world);
        mount
    }

    /// Its kernel learns the attributes of a file: the stamp grows.
    fn watch(&self, world: &World, inode: Inode, stamp: u64) {
        let watched = &world.seats[self.at].host_view.watched;
        let key = (1, Watch::Attributes(inode));
        watched.borrow_mut().holder_messages.insert(key, (stamp, i64::MAX));
    }

    /// Takes its notices, which end its watches.
    fn take(&mut self, world: &mut World) -> Vec<u8> {
        let Some(bytes) = world.replies.get(&self.poll).cloned() else { return vec![] };
        let Ok(Reply::Bytes { bytes }) = Reply::decode(&mut Reader::new(&bytes)) else {
            panic!("notices")
        };
        let (mut reader, mut all) = (Reader::new(bytes), vec![]);
        while !reader.rest().is_empty() {
            let notice = Notice::take(&mut reader).expect("a notice");
            all.push(notice.what);
            self.last = notice.number;
            let watched = &world.seats[self.at].host_view.watched;
            watched.borrow_mut().holder_messages.remove(&(1, notice.watch()));
        }
        all
    }

    fn acknowledge(&mut self, world: &mut World) {
        let of_service = |shard: &ShardIndex| world.owner(*shard) == self.at;
        let shard = (0..1024).map(ShardIndex).find(of_service).expect("a shard");
        let notices = Request::Notices { done: self.last };
        let mut sent = world.prepare(Credentials::ROOT, shard, &notices);
        (sent.header.mount, sent.header.client_id) = (1, u64::MAX);
        self.poll = world.send_again(&sent);
    }

    /// Takes what it is told, and carries it out.
    fn carry_out(&mut self, world: &mut World) -> Vec<u8> {
        let all = self.take(world);
        self.acknowledge(world);
        all
    }
}

/// A program gives a file another mode or owner. Returns the ticket.
fn change(world: &mut World, inode: Inode, mask: u32, value: u32) -> u64 {
    let (mode, uid, gid, size) = (0o600 | (value % 8), value, 0, 0);
    let (accessed, modified) = (0, 0);
    let request = Request::SetAttributes { inode, mask, mode, uid, gid, size, accessed, modified };
    world.send(Credentials::ROOT, inode.shard(), &request)
}

#[test]
fn a_mount_whose_watch_has_ended_is_told_of_a_new_owner_once() {
    let mut world = World::single();
    let file = world.root().file(ROOT, b"file").expect("made").inode;
    let mut mount = Mount::new(&mut world, 0);
    for round in 0..3 {
        mount.watch(&world, file, 10 + u64::from(round));
        let mode = change(&mut world, file, set::MODE, round);
        assert_eq!(mount.carry_out(&mut world), [what::ATTRIBUTES]);
        assert!(world.answer(mode).is_some());
        let owner = change(&mut world, file, set::UID, 100 + round);
        assert_eq!(world.answer(owner), None, "its kernel has the owner from before");
        assert_eq!(mount.take(&mut world), [what::OWNER]);
        assert_eq!(world.answer(owner), None, "it has not carried it out");
        mount.acknowledge(&mut world);
        assert_eq!(world.answer(owner).expect("answered").attributes().uid, 100 + round);
        // Since then it has not looked.
        let again = change(&mut world, file, set::UID, 200 + round);
        assert!(world.answer(again).is_some());
        let mode = change(&mut world, file, set::MODE, round + 1);
        assert!(world.answer(mode).is_some());
    }
    // By then no kernel remembers the name.
    mount.watch(&world, file, 20);
    change(&mut world, file, set::MODE, 5);
    assert_eq!(mount.carry_out(&mut world), [what::ATTRIBUTES]);
    world.now += VALID_NANOS + MARGIN_NANOS + 1;
    let owner = change(&mut world, file, set::UID, 300);
    assert!(world.answer(owner).is_some());
    assert_eq!(mount.take(&mut world), []);
}

#[test]
fn a_mount_is_told_of_a_new_owner_where_too_many_notices_were_sent_to_know_which() {
    const NOTICES: u32 = 4200;
    let mut world = World::single();
    let mut mount = Mount::new(&mut world, 0);
    let mut files = vec![];
    for number in 0..NOTICES {
        let file = world.root().file(ROOT, format!("f{number}").as_bytes()).expect("made").inode;
        mount.watch(&world, file, 10);
        change(&mut world, file, set::MODE, number);
        assert_eq!(mount.carry_out(&mut world), [what::ATTRIBUTES]);
        files.push(file);
    }
    let owner = change(&mut world, files[0], set::UID, 7);
    assert_eq!(world.answer(owner), None);
    assert_eq!(mount.carry_out(&mut world), [what::OWNER]);
    assert!(world.answer(owner).is_some());
}

#[test]
fn a_mount_of_another_host_whose_watch_has_ended_is_told_of_a_new_owner_once() {
    let mut world = World::daemons(3);
    let file = world.root().file(ROOT, b"file").expect("made").inode;
    assert_eq!(world.owner(file.shard()), 0);
    let mut mount = Mount::new(&mut world, 2);
    let deliver = |world: &mut World| {
        let count = world.queue.len();
        world.settle_for(count);
    };
    let look = Request::LookupForMount { inode: file, name: b"" };
    let mut sent = world.prepare(Credentials::ROOT, file.shard(), &look);
    (sent.header.host, sent.header.mount) = (2, 1);
    let ticket = world.send_again(&sent);
    let Some(Answer::LookupForMount(may, _)) = world.answer(ticket) else { panic!("it looks") };
    assert_ne!(may & lookup_flag::ATTRIBUTES_STAY, 0, "the mount may remember it");
    for (mask, expected) in [(set::MODE, what::ATTRIBUTES), (set::UID, what::OWNER)] {
        let changed = change(&mut world, file, mask, 7);
        assert_eq!(world.answer(changed), None);
        deliver(&mut world);
        assert_eq!(mount.carry_out(&mut world), [expected]);
        deliver(&mut world);
        assert!(world.answer(changed).is_some());
    }
    let again = change(&mut world, file, set::UID, 8);
    assert!(world.answer(again).is_some());
}
