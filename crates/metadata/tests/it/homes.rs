//! The host of a service's first owner while another daemon goes on with the service, and when it is
//! back: its programs have files open, write to them, and cache pages of which the service elsewhere
//! knows nothing, and its memory knows nothing of what happens elsewhere.

use crate::sim::shared::FileRow;
use crate::sim::{Answer, HostState, NOTHING, Row, Sent, World, config};
use crate::successors::{answered, call, create};
use metadata::{Config, DataOp, HostMessage, Input};
use wire::attributes::flag;
use wire::codec::Field as _;
use wire::reply::opened;
use wire::request::{open, set};
use wire::watch::{Notice, what};
use wire::{Attributes, Credentials, DaemonIndex, Inode, Reader, Reply, Request, ShardIndex};

/// The host of the first owner of service 0.
const HOME: u16 = 0;

/// Three daemons, and a file of service 0, whose contents are on targets: 1000 bytes, written by host 1.
fn world(flags: u8) -> (World, Inode) {
    let configs = (0..3).map(|daemon| Config {
        root_flags: flags,
        inline_bytes: 0,
        silence_nanos: 2_000_000_000,
        ..config(daemon, 3, 0, 1)
    });
    let mut world = World::of(configs.collect());
    let made = create(&mut world, 1, b"file");
    let file = answered(&mut world, &made).attributes();
    assert_eq!((world.owner(file.inode.shard()), file.is_posix()), (0, flags & flag::POSIX != 0));
    let inode = file.inode;
    call(&mut world, 1, inode, &Request::Extend { inode, size: 1000 });
    (world, inode)
}

/// The memory of the first owner's host, which has a file open.
fn memory_of_home(world: &mut World, file: Inode) -> HostState {
    let seat = &mut world.seats[0];
    seat.host_view.vnodes.insert(file, Row { unreported: 0, truncate_epoch: 0 });
    seat.host_view.open.insert(file);
    std::mem::take(&mut seat.host_view)
}

fn truncate(world: &mut World, host: u16, inode: Inode) -> Sent {
    let (mask, Attributes { mode, uid, gid, size, .. }) = (set::SIZE, NOTHING);
    let (accessed, modified) = (0, 0);
    let request = Request::SetAttributes { inode, mask, mode, uid, gid, size, accessed, modified };
    let mut sent = world.prepare(Credentials::ROOT, inode.shard(), &request);
    sent.header.host = host;
    sent
}

fn opens(
    world: &mut World,
    host: u16,
    inode: Inode,
    (open_sequence, uses): (u64, u8),
) -> (u64, u8) {
    let request = Request::Open { inode, open_sequence, uses };
    match call(world, host, inode, &request) {
        Some(Answer::Opened(_, writers, others)) => (writers, others),
        other => panic!("{other:?}"),
    }
}

/// The daemon of the first owner's host answers what the service said. Returns that.
fn answer_home(world: &mut World) -> Vec<HostMessage> {
    let mut all = vec![];
    for (to, bytes) in std::mem::take(&mut world.host_messages) {
        assert_eq!(to, DaemonIndex(HOME), "no other host has a file open");
        let message = HostMessage::decode(&bytes).expect("a message");
        let answer = match message {
            HostMessage::Glimpse { token, inode, .. } => {
                HostMessage::glimpsed(HOME, token, inode, 0)
            }
            HostMessage::BeginTruncate { token, inode, .. } => {
                HostMessage::truncate_begun(HOME, token, inode)
            }
            HostMessage::EndTruncate { token, inode, .. } => {
                HostMessage::truncate_ended(HOME, token, inode)
            }
            HostMessage::SizeReported { .. } => continue,
        };
        all.push(message);
        world.step(0, Input::Peer { message: &answer });
    }
    all
}

/// Time passes, and targets answer, until a request is answered; it is sent again where it is told to.
fn await_in_silence(world: &mut World, sent: &Sent) -> Answer {
    let mut ticket = world.send_again(sent);
    for _ in 0..10_000 {
        world.answer_data(0, Ok(()));
        match world.answer(ticket) {
            Some(Answer::Busy) => ticket = world.send_again(sent),
            Some(answer) => return answer,
            None => {
                world.host_messages.clear();
                let due = world.seats[0].service.deadline().expect("it waits for time");
                world.now = world.now.max(due);
                world.step(0, Input::Tick);
            }
        }
    }
    panic!("it is not answered");
}

fn is_truncated(world: &World, file: Inode) -> bool {
    let is_it = |(inode, op): &(Inode, DataOp)| {
        *inode == file && matches!(op, DataOp::Truncate { size: 0 })
    };
    world.data_log.iter().any(is_it)
}

#[test]
fn a_truncation_at_a_successor_reaches_programs_of_the_first_owners_host_before_its_targets() {
    let (mut world, file) = world(flag::POSIX);
    let memory = memory_of_home(&mut world, file);
    world.succeed(0, DaemonIndex(2), 2, 0);
    world.data_is_prompt = false;
    let sent = truncate(&mut world, 1, file);
    let ticket = world.send_again(&sent);
    assert!(!is_truncated(&world, file), "it has not counted it");
    let told = answer_home(&mut world);
    assert!(matches!(told[..], [HostMessage::BeginTruncate { size: 0, .. }]), "{told:?}");
    assert!(is_truncated(&world, file) && world.answer(ticket).is_none());
    world.answer_data(0, Ok(()));
    assert_eq!(world.answer(ticket).expect("answered").attributes().size, 0);
    let told = answer_home(&mut world);
    assert!(matches!(told[..], [HostMessage::EndTruncate { size: 0, .. }]), "{told:?}");
    // A truncation that it counted is not counted again when the service is back.
    let shared = memory.pages.clone();
    world.come_back(3, memory);
    assert_eq!(shared.borrow().settled.get(&file), Some(&(0, false)));
    // Other hosts have what is made here, and only what they said.
    world.succeed(0, DaemonIndex(2), 4, 0);
    let new = create(&mut world, 1, b"new");
    let new = answered(&mut world, &new).attributes().inode;
    opens(&mut world, 1, new, (1, open::WRITES));
    let sent = truncate(&mut world, 2, new);
    world.send_again(&sent);
    assert!(world.host_messages.iter().all(|(to, _)| *to == DaemonIndex(1)), "not {HOME}");
}

#[test]
fn a_host_that_was_silent_at_a_truncation_counts_it_when_it_answers_or_has_the_service_again() {
    for answers in [false, true] {
        let (mut world, file) = world(flag::POSIX);
        let memory = memory_of_home(&mut world, file);
        world.succeed(0, DaemonIndex(2), 2, 0);
        let sent = truncate(&mut world, 1, file);
        assert_eq!(await_in_silence(&mut world, &sent).attributes().size, 0);
        if answers {
            for _ in 0..2 {
                world.now += 1_000_000_000;
                world.step(0, Input::Tick);
                answer_home(&mut world);
            }
        }
        // The successor dies, too.
        world.succeed(0, DaemonIndex(1), 3, 0);
        let shared = memory.pages.clone();
        world.come_back(4, memory);
        assert_eq!(shared.borrow().settled.get(&file), Some(&(0, !answers)));
        assert_eq!(world.seats[0].service.hosts_of(file).count(), 0, "its own memory has it open");
    }
}

#[test]
fn a_file_that_is_open_at_home_has_the_size_of_the_log_when_the_service_is_back() {
    let (mut world, file) = world(0);
    let mut memory = memory_of_home(&mut world, file);
    world.succeed(0, DaemonIndex(2), 2, 0);
    let sent = truncate(&mut world, 1, file);
    assert_eq!(answered(&mut world, &sent).attributes().size, 0);
    assert!(world.host_messages.is_empty(), "hosts agree on the order themselves");
    // Its programs made one more, and nobody else had that change.
    let lost = Inode(file.0 + (1 << 20));
    assert_eq!(world.owner(lost.shard()), world.owner(file.shard()));
    memory.vnodes.insert(lost, Row { unreported: 0, truncate_epoch: 0 });
    let shared = memory.pages.clone();
    world.come_back(3, memory);
    assert!(shared.borrow().lost.iter().eq([&lost]));
    // Bytes that its programs wrote and did not report stay.
    assert_eq!(shared.borrow().settled.get(&file), Some(&(0, false)));
}

#[test]
fn no_successor_has_a_number_of_writers_that_another_owner_had() {
    let (mut world, file) = world(0);
    let mut all = vec![];
    let mut sequence = 0;
    // A mount of host 2 opens the file, host 1 writes to it, and the mount opens it again.
    let mut look = |world: &mut World| {
        for (host, uses) in [(2, 0), (1, open::WRITES), (2, 0)] {
            sequence += 1;
            let (writers, _) = opens(world, host, file, (sequence, uses));
            if host == 2 {
                assert!(!all.contains(&writers), "{writers:#x} of {all:x?}");
                all.push(writers);
            }
        }
    };
    look(&mut world);
    let memory = memory_of_home(&mut world, file);
    for (epoch, successor) in [(2, 2), (3, 1)] {
        world.succeed(0, DaemonIndex(successor), epoch, 0);
        look(&mut world);
    }
    world.come_back(4, memory);
    look(&mut world);
}

#[test]
fn a_successor_lets_no_kernel_cache_pages_that_programs_of_the_first_owners_host_may_write() {
    let (mut world, old) = world(0);
    memory_of_home(&mut world, old);
    world.succeed(0, DaemonIndex(2), 2, 0);
    let new = create(&mut world, 1, b"new");
    let new = answered(&mut world, &new).attributes().inode;
    let pages = (9, open::PAGES);
    let may_cache = |others: u8| others & opened::MAY_CACHE != 0;
    let (_, others) = opens(&mut world, 2, old, pages);
    assert!(!may_cache(others) && others & opened::OTHERS_WRITE != 0);
    assert!(may_cache(opens(&mut world, 2, new, pages).1), "programs there do not know it");
    world.step(0, Input::HostGone { host: HOME });
    world.step(0, Input::OpensKnown);
    assert!(may_cache(opens(&mut world, 2, old, (11, open::PAGES)).1));
}

#[test]
fn the_memory_of_the_first_owners_host_takes_up_what_happened_elsewhere() {
    let (mut world, file) = world(0);
    let memory = memory_of_home(&mut world, file);
    let shared = memory.pages.clone();
    shared.borrow_mut().rows.insert(file, FileRow::default());
    let before = shared.borrow().writers_ever(file);
    memory.watched.borrow_mut().mounts.extend([1, 2]);
    world.succeed(0, DaemonIndex(2), 2, 0);
    opens(&mut world, 1, file, (1, open::WRITES));
    opens(&mut world, 2, file, (1, 0));
    world.come_back(3, memory);
    let state = |shared: &crate::sim::shared::Shared| {
        (shared.others[&file], shared.rows[&file].others, shared.agreed.get(&0).copied())
    };
    assert_eq!(state(&shared.borrow()), ((1, 0), opened::OTHERS_WRITE, Some(3)));
    assert!(shared.borrow().writers_ever(file) > before, "pages from before are not current");
    let behind = shared.borrow().behind.clone();
    assert_eq!(behind.into_iter().collect::<Vec<_>>(), [(1, 0), (2, 0)], "they may have old pages");
    // A start of the same daemon finds a memory that agrees with its log, and a new memory does not.
    let counted = shared.borrow().writers_ever(file);
    shared.borrow_mut().behind.clear();
    let memory = std::mem::take(&mut world.seats[0].host_view);
    world.come_back(4, memory);
    assert_eq!(state(&shared.borrow()), ((1, 0), opened::OTHERS_WRITE, Some(4)));
    assert!(shared.borrow().behind.is_empty() && shared.borrow().writers_ever(file) == counted);
    let fresh = HostState::default();
    let shared = fresh.pages.clone();
    world.come_back(5, fresh);
    assert_eq!(shared.borrow().others[&file], (1, 0));
    assert!(shared.borrow().writers_ever(file) > counted);
}

/// The notices that a mount of host 1 gets from its service.
fn notices(world: &mut World) -> Vec<(u8, Inode)> {
    let shard = (0..1024).map(ShardIndex).find(|&shard| world.owner(shard) == 1).expect("a shard");
    let mut sent = world.prepare(Credentials::ROOT, shard, &Request::Notices { done: 0 });
    sent.header.mount = 1;
    let ticket = world.send_again(&sent);
    let Some(bytes) = world.replies.get(&ticket) else { return vec![] };
    let Ok(Reply::Bytes { bytes }) = Reply::decode(&mut Reader::new(bytes)) else {
        panic!("notices")
    };
    let (mut reader, mut all) = (Reader::new(bytes), vec![]);
    while !reader.rest().is_empty() {
        let notice = Notice::take(&mut reader).expect("a notice");
        all.push((notice.what, notice.inode));
    }
    all
}

#[test]
fn kernels_that_cached_pages_beside_writers_at_home_drop_them_when_the_service_is_back() {
    let (mut world, file) = world(0);
    let memory = memory_of_home(&mut world, file);
    let shared = memory.pages.clone();
    world.succeed(0, DaemonIndex(2), 2, 0);
    // A mapping of a mount of host 1 reads pages, and a program at home writes to the file.
    opens(&mut world, 1, file, (1, open::MAPS));
    let host = &world.seats[1].host_view;
    host.watched.borrow_mut().mounts.insert(1);
    host.pages.borrow_mut().rows.insert(file, FileRow { cachers: 1 << 1, ..FileRow::default() });
    world.come_back(3, memory);
    assert_eq!(shared.borrow().agreed.get(&0), None, "the next start says it again");
    let messages = world.queue.len();
    world.settle_for(messages);
    assert_eq!(notices(&mut world), [(what::BYTES, file)]);
}

const OPEN_SEQUENCE: u64 = 50;

/// Programs of the first owner's host have a file of service 0 open, and it is about to leave that host.
fn leave(world: &mut World, file: Inode, row: FileRow) {
    let view = &mut world.seats[0].host_view;
    view.vnodes.insert(file, Row { unreported: 0, truncate_epoch: 0 });
    view.open.insert(file);
    view.pages.borrow_mut().rows.insert(file, row);
    let (files, open_sequence) = ([file], OPEN_SEQUENCE);
    world.step(0, Input::Leave { files: &files, open_sequence });
}

/// Removes the name of the file, at another host.
fn unlink(world: &mut World) {
    let request = Request::Unlink { parent: Inode::ROOT, name: b"file" };
    assert_eq!(call(world, 1, Inode::ROOT, &request), Some(Answer::Done));
}

fn exists(world: &mut World, inode: Inode) -> bool {
    matches!(call(world, 1, inode, &Request::GetAttributes { inode }), Some(Answer::Attributes(_)))
}

#[test]
fn a_service_that_leaves_a_host_has_its_open_files_in_the_log_and_learns_of_their_closes() {
    let (mut world, inode) = world(0);
    leave(&mut world, inode, FileRow::default());
    world.succeed_after((0, None), DaemonIndex(2), 2, 0);
    assert_eq!(world.seats[0].service.hosts_of(inode).collect::<Vec<_>>(), [HOME]);
    unlink(&mut world);
    assert!(exists(&mut world, inode), "a program there has it open");
    let close = |open_sequence| Request::Close { inode, open_sequence };
    // One from before was late.
    call(&mut world, HOME, inode, &close(OPEN_SEQUENCE - 1));
    assert!(exists(&mut world, inode));
    call(&mut world, HOME, inode, &close(OPEN_SEQUENCE + 1));
    assert!(!exists(&mut world, inode));
    // One that nobody has open goes with its name, whichever daemon is the next owner.
    let other = create(&mut world, 1, b"file");
    let other = answered(&mut world, &other).attributes().inode;
    world.succeed_after((0, None), DaemonIndex(1), 3, 0);
    unlink(&mut world);
    assert!(!exists(&mut world, other));
}

#[test]
fn a_host_that_a_service_left_is_told_of_truncations_and_asked_for_sizes_of_open_files() {
    let (mut world, file) = world(flag::POSIX);
    let (writer, had_pages) = (1, true);
    leave(&mut world, file, FileRow { writer, had_pages, ..FileRow::default() });
    world.succeed_after((0, None), DaemonIndex(2), 2, 0);
    // Of a truncation that it counted before it perhaps does not know the end.
    let told = answer_home(&mut world);
    assert!(matches!(told[..], [HostMessage::EndTruncate { size: 1000, .. }]), "{told:?}");
    world.data_is_prompt = false;
    let sent = truncate(&mut world, 1, file);
    world.send_again(&sent);
    assert!(!is_truncated(&world, file), "it has not counted it");
    let told = answer_home(&mut world);
    assert!(matches!(told[..], [HostMessage::BeginTruncate { size: 0, .. }]), "{told:?}");
    assert!(is_truncated(&world, file));
    world.answer_data(0, Ok(()));
    answer_home(&mut world);
    let (_, others) = opens(&mut world, 1, file, (1, 0));
    assert_eq!(others, opened::OTHERS_WRITE | opened::OTHERS_CACHE, "as of any other host");
}

#[test]
fn a_service_that_stays_after_all_has_the_open_files_of_its_host_in_memory_alone() {
    let (mut world, inode) = world(0);
    leave(&mut world, inode, FileRow::default());
    assert_eq!(world.seats[0].service.hosts_of(inode).collect::<Vec<_>>(), [HOME]);
    world.step(0, Input::Stay);
    assert_eq!(world.seats[0].service.hosts_of(inode).count(), 0);
    unlink(&mut world);
    assert!(exists(&mut world, inode), "a program has it open");
    world.seats[0].host_view.open.remove(&inode);
    call(&mut world, HOME, inode, &Request::Reap { inode });
    assert!(!exists(&mut world, inode));
}

/// Programs do not wait for the end of a truncation of which the next owner tells nobody.
#[test]
fn a_truncation_under_way_holds_up_no_program_of_a_host_that_the_service_left() {
    let (mut world, file) = world(0);
    let view = &mut world.seats[0].host_view;
    view.vnodes.insert(file, Row { unreported: 7, truncate_epoch: 0 });
    world.data_is_prompt = false;
    let sent = truncate(&mut world, 1, file);
    world.send_again(&sent);
    let before = world.seats[0].host_view.vnodes[&file];
    assert_eq!(before.truncate_epoch % 2, 1, "it has begun");
    world.step(0, Input::Leave { files: &[file], open_sequence: OPEN_SEQUENCE });
    assert_eq!(world.seats[0].host_view.vnodes[&file].truncate_epoch, before.truncate_epoch + 1);
    world.step(0, Input::Stay);
    assert_eq!(world.seats[0].host_view.vnodes[&file].truncate_epoch, before.truncate_epoch + 2);
}
