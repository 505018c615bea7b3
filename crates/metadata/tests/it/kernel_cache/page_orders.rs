//! Pages in kernel caches behind mounts of several hosts: single orders of steps that chance seldom
//! brings (`pages`).

use crate::sim::shared::FileRow;
use crate::sim::{Answer, Sent, World};
use metadata::Input;
use wire::codec::Field as _;
use wire::reply::opened;
use wire::request::open;
use wire::watch::Notice;
use wire::{Credentials, Inode, Reader, Request, ShardIndex};

/// Opens a file on a host; returns the counter of writers, and the use by others.
fn open_on(world: &mut World, host: u16, inode: Inode, open_sequence: u64, uses: u8) -> (u64, u8) {
    let request = Request::Open { inode, open_sequence, uses };
    let mut sent = world.prepare(Credentials::ROOT, inode.shard(), &request);
    sent.header.host = host;
    let ticket = world.send_again(&sent);
    world.settle();
    match world.answer(ticket) {
        Some(Answer::Opened(_, writers, others)) => (writers, others),
        other => panic!("{other:?}"),
    }
}

/// Orders that chance seldom brings, each by itself.
#[test]
fn hosts_learn_of_each_other_before_their_opens_are_answered() {
    let mut world = World::daemons(3);
    let file = world.root().file(Inode::ROOT, b"f").expect("made").inode;
    assert_eq!(world.owner(file.shard()), 0);
    let (reader, writer) = (1, 2);
    let close = |world: &mut World, host, open_sequence| {
        let request = Request::Close { inode: file, open_sequence };
        let mut sent = world.prepare(Credentials::ROOT, file.shard(), &request);
        sent.header.host = host;
        world.send_again(&sent);
    };
    // A host that closed the file sees by the counter that it was written since.
    assert_eq!(open_on(&mut world, reader, file, 1, open::PAGES), (0, opened::MAY_CACHE));
    close(&mut world, reader, 1);
    assert_eq!(open_on(&mut world, writer, file, 2, open::WRITES), (0, 0));
    assert_eq!(open_on(&mut world, reader, file, 3, open::PAGES), (1, opened::OTHERS_WRITE));
    close(&mut world, writer, 2);
    assert_eq!(open_on(&mut world, reader, file, 4, open::PAGES), (1, opened::MAY_CACHE));
    // A new writer learns of hosts that cache pages, and vice versa.
    let row = |world: &World, host: u16| {
        world.seats[usize::from(host)].host_view.pages.borrow().rows[&file].others
    };
    for host in [reader, writer] {
        let shared = &world.seats[usize::from(host)].host_view.pages;
        shared.borrow_mut().rows.insert(file, FileRow::default());
    }
    assert_eq!(open_on(&mut world, writer, file, 5, open::WRITES), (1, opened::OTHERS_CACHE));
    assert_eq!(row(&world, reader), opened::OTHERS_WRITE);
    close(&mut world, reader, 4);
    // A mapping is made beside a writer.
    assert_eq!(row(&world, writer), 0);
    assert_eq!(open_on(&mut world, reader, file, 6, open::MAPS), (2, opened::OTHERS_WRITE));
    assert_eq!(row(&world, writer), opened::OTHERS_CACHE);
}

/// A host that does not answer in time may carry out a notice before the writes that came later: it is
/// notified again.
#[test]
fn a_host_that_was_silent_is_notified_of_later_writes() {
    let mut world = World::daemons(3);
    let file = world.root().file(Inode::ROOT, b"f").expect("made").inode;
    assert_eq!(world.owner(file.shard()), 0);
    let (reader, writer) = (1, 2);
    open_on(&mut world, reader, file, 1, open::PAGES);
    open_on(&mut world, writer, file, 2, open::WRITES);
    // Lets 100 ms pass; returns the messages to the reader's host, which do not arrive.
    let pass = |world: &mut World| {
        world.now += 100_000_000;
        for at in [0, 2] {
            world.step(at, Input::Tick);
        }
        let (to_reader, others): (Vec<_>, Vec<_>) =
            core::mem::take(&mut world.queue).into_iter().partition(|message| message.0 == 1);
        for (to, bytes) in others {
            world.step(to, Input::Peer { message: &bytes });
        }
        to_reader.into_iter().map(|message| message.1).collect::<Vec<_>>()
    };
    let write = |world: &mut World| {
        let request = Request::Unwatch { inode: file };
        let mut sent = world.prepare(Credentials::ROOT, file.shard(), &request);
        sent.header.host = writer;
        sent
    };
    let first = write(&mut world);
    let mut notices = Vec::new();
    let is_answered = (0..100).any(|_| {
        let ticket = world.send_again(&first);
        notices.extend(pass(&mut world));
        matches!(world.answer(ticket), Some(Answer::Number(_)))
    });
    assert!(is_answered, "a silent host is not waited for");
    let notice = notices.first().expect("it was notified").clone();
    let second = write(&mut world);
    let ticket = world.send_again(&second);
    assert!(pass(&mut world).iter().all(|again| *again == notice), "the same one");
    assert!(matches!(world.answer(ticket), Some(Answer::Number(_))), "not waited for again");
    // Now the first notice arrives, and its answer.
    world.step(1, Input::Peer { message: &notice });
    let later = (0..3).flat_map(|_| pass(&mut world)).any(|new| new != notice);
    assert!(later, "pages that were filled since are not dropped");
}

/// A host with a mount that caches pages of a file, and a writer of it on another host.
struct StoppedMount {
    world: World,
    file: Inode,
}

impl StoppedMount {
    const HOST: u16 = 1;
    const MOUNT: u8 = 1;
    const WRITER: u16 = 2;

    fn new() -> StoppedMount {
        let mut world = World::daemons(3);
        let file = world.root().file(Inode::ROOT, b"f").expect("made").inode;
        assert_eq!(world.owner(file.shard()), 0);
        open_on(&mut world, Self::HOST, file, 1, open::PAGES);
        open_on(&mut world, Self::WRITER, file, 2, open::WRITES);
        let view = &mut world.seats[usize::from(Self::HOST)].host_view;
        view.watched.borrow_mut().mounts.insert(Self::MOUNT);
        let row = FileRow { cachers: 1 << Self::MOUNT, had_pages: true, ..FileRow::default() };
        view.pages.borrow_mut().rows.insert(file, row);
        StoppedMount { world, file }
    }

    fn is_behind(&self) -> bool {
        let view = &self.world.seats[usize::from(Self::HOST)].host_view;
        !view.pages.borrow().behind.is_empty()
    }

    fn write(&mut self) -> Sent {
        let request = Request::Unwatch { inode: self.file };
        let mut sent = self.world.prepare(Credentials::ROOT, self.file.shard(), &request);
        sent.header.host = Self::WRITER;
        sent
    }

    /// The answer to a request for notices, with the last notice that was carried out.
    fn notices(&mut self, done: u64) -> u64 {
        let of_host = (0..wire::limits::SHARD_COUNT).map(ShardIndex);
        let owner = usize::from(Self::HOST);
        let shard = of_host.into_iter().find(|it| self.world.owner(*it) == owner);
        let request = Request::Notices { done };
        let mut sent = self.world.prepare(Credentials::ROOT, shard.expect("a shard"), &request);
        (sent.header.host, sent.header.mount) = (Self::HOST, Self::MOUNT);
        self.world.send_again(&sent)
    }

    /// A write is answered although the mount carries nothing out.
    fn write_without_mount(&mut self) {
        let write = self.write();
        let mut was_told = false;
        let is_answered = (0..100).any(|_| {
            let ticket = self.world.send_again(&write);
            self.world.now += 100_000_000;
            for at in 0..3 {
                self.world.step(at, Input::Tick);
            }
            self.world.settle_for(usize::MAX);
            let is_answered = matches!(self.world.answer(ticket), Some(Answer::Number(_)));
            assert!(!is_answered || was_told, "the writer goes on, and the mount does not know");
            was_told |= self.is_behind();
            is_answered
        });
        assert!(is_answered && self.is_behind(), "a mount is not waited for");
    }

    /// The files of the notices in an answer, and the number of the last notice.
    fn taken(&mut self, listening: u64) -> (Vec<Inode>, u64) {
        let answer = self.world.answer(listening);
        let Some(Answer::Bytes(bytes)) = answer else { panic!("no notices: {answer:?}") };
        let (mut reader, mut files, mut last) = (Reader::new(&bytes), Vec::new(), 0);
        while !reader.rest().is_empty() {
            let notice = Notice::take(&mut reader).expect("a notice");
            files.push(notice.inode);
            last = notice.number;
        }
        (files, last)
    }
}

/// A mount that does not drop pages in time knows that it is behind before anybody goes on without it,
/// and until it has carried out all that was queued for it meanwhile.
#[test]
fn a_mount_that_stands_still_is_told_before_others_go_on() {
    let mut all = StoppedMount::new();
    let listening = all.notices(0);
    all.write_without_mount();
    let second = all.write();
    let ticket = all.world.send_again(&second);
    all.world.settle();
    let is_answered = matches!(all.world.answer(ticket), Some(Answer::Number(_)));
    assert!(is_answered, "not waited for long");
    // It continues.
    let (_, taken) = all.taken(listening);
    let listening = all.notices(taken);
    assert!(all.is_behind(), "a later notice is queued");
    let (_, taken) = all.taken(listening);
    all.notices(taken);
    assert!(!all.is_behind(), "all is done");
}

/// The service is restarted while notices for a mount that stands still are queued there.
#[test]
fn a_mount_that_stands_still_drops_its_pages_after_a_restart_of_its_service() {
    let mut all = StoppedMount::new();
    all.write_without_mount();
    // The host has answered, so nobody repeats the notice.
    for _ in 0..20 {
        all.world.now += 100_000_000;
        (0..3).for_each(|at| all.world.step(at, Input::Tick));
        all.world.settle_for(usize::MAX);
    }
    all.world.crash(usize::from(StoppedMount::HOST));
    all.world.settle();
    assert!(all.is_behind(), "its kernel has old pages");
    let listening = all.notices(0);
    assert!(all.is_behind(), "it has carried out nothing");
    let (files, taken) = all.taken(listening);
    assert_eq!(files, [all.file]);
    all.notices(taken);
    assert!(!all.is_behind(), "all is done");
}
