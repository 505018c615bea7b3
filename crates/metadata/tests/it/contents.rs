//! Contents of inline files, moving them out, sizes, truncation, removal of data, extended
//! attributes and file locks; one service.

use crate::sim::{Answer, Row, World};
use metadata::{DataOp, Input};
use wire::attributes::{flag, mode};
use wire::errno::Errno;
use wire::reply::TRUNCATE_EPOCH_UNKNOWN;
use wire::request::lock::{FLOCK, READ, TEST, UNLOCK, WAIT, WRITE};
use wire::request::{set, xattr};
use wire::{Credentials, Inode, Layout, Request};

const ROOT: Inode = Inode::ROOT;
const CALLER: Credentials = Credentials::ROOT;

fn call(world: &mut World, inode: Inode, request: &Request<'_>) -> Answer {
    world.call(CALLER, inode.shard(), request)
}

fn write(world: &mut World, inode: Inode, offset: u64, bytes: &[u8]) -> Answer {
    call(world, inode, &Request::WriteInline { inode, offset, bytes })
}

fn read(world: &mut World, inode: Inode) -> Answer {
    call(world, inode, &Request::ReadInline { inode, offset: 0, length: 5000 })
}

fn resize(inode: Inode, size: u64, mask: u32) -> Request<'static> {
    let (mode, uid, gid, accessed, modified) = (0, 0, 0, 0, 0);
    Request::SetAttributes { inode, mask, mode, uid, gid, size, accessed, modified }
}

fn file(world: &mut World, name: &[u8]) -> Inode {
    world.root().file(ROOT, name).expect("made").inode
}

#[test]
fn small_contents_are_inline() {
    let mut world = World::single();
    let f = file(&mut world, b"f");
    let before = world.stat(f).expect("there");
    let after = write(&mut world, f, 2, b"abc").attributes();
    assert_eq!(after.size, 5);
    assert!(after.modified > before.modified);
    assert_eq!(read(&mut world, f), Answer::Contents(5, b"\0\0abc".to_vec()));
    assert_eq!(write(&mut world, f, u64::MAX, b"d"), Answer::Placed(5, 6));
    assert_eq!(write(&mut world, f, 4095, b"xy"), Answer::Refused(Errno::EFBIG));
    assert_eq!(world.root().truncate(f, 3).expect("truncated").size, 3);
    assert_eq!(world.root().truncate(f, 4).expect("filled").size, 4);
    assert_eq!(read(&mut world, f), Answer::Contents(4, b"\0\0a\0".to_vec()));
    world.crash(0);
    assert_eq!(read(&mut world, f), Answer::Contents(4, b"\0\0a\0".to_vec()));
    assert!(world.data_log.is_empty(), "no target is involved");
    world.root().unlink(ROOT, b"f").expect("there");
    assert!(world.data_log.is_empty());
}

#[test]
fn moving_out_waits_for_targets_and_other_requests_wait_for_it() {
    let mut world = World::single();
    world.data_is_prompt = false;
    let f = file(&mut world, b"f");
    write(&mut world, f, 0, b"abc");
    let moving = world.send(CALLER, f.shard(), &Request::MoveOut { inode: f });
    let reading = {
        let mut sent = world.prepare(
            CALLER,
            f.shard(),
            &Request::ReadInline { inode: f, offset: 0, length: 9 },
        );
        sent.header.client_id = 8;
        world.send_again(&sent)
    };
    assert_eq!((world.answer(moving), world.answer(reading)), (None, None));
    assert_eq!(world.data_log, [(f, DataOp::WriteAll { bytes: b"abc".to_vec() })]);
    world.crash(0);
    assert_eq!(world.data_log.len(), 2, "repeated after a crash");
    world.answer_data(0, Ok(()));
    let moved = world.stat(f).expect("there");
    assert!(!moved.is_inline() && moved.size == 3);
    assert_eq!(read(&mut world, f), Answer::Moved(moved));
    world.crash(0);
    assert!(world.seats[0].data.is_empty(), "done is done");
}

#[test]
fn contents_that_cannot_be_moved_stay() {
    let mut world = World::single();
    world.data_is_prompt = false;
    let f = file(&mut world, b"f");
    write(&mut world, f, 0, b"abc");
    let moving = world.send(CALLER, f.shard(), &Request::MoveOut { inode: f });
    world.answer_data(0, Err(Errno::ENOSPC));
    assert_eq!(world.answer(moving), Some(Answer::Refused(Errno::ENOSPC)));
    assert_eq!(
        world.data_log.last(),
        Some(&(f, DataOp::Truncate { size: 0 })),
        "written data is removed"
    );
    world.answer_data(0, Ok(()));
    assert_eq!(read(&mut world, f), Answer::Contents(3, b"abc".to_vec()));
}

#[test]
fn growing_moves_out_and_shrinking_truncates_before_the_answer() {
    let mut world = World::single();
    let f = file(&mut world, b"f");
    write(&mut world, f, 0, b"abc");
    let grown = world.root().truncate(f, 1 << 20).expect("grown");
    assert!(!grown.is_inline() && grown.size == 1 << 20);
    world.data_log.clear();
    world.data_is_prompt = false;
    let request = resize(f, 100, set::SIZE);
    let cutting = world.send(CALLER, f.shard(), &request);
    assert_eq!(world.answer(cutting), None);
    assert_eq!(world.data_log, [(f, DataOp::Truncate { size: 100 })]);
    world.crash(0);
    world.answer_data(0, Ok(()));
    assert_eq!(world.stat(f).expect("there").size, 100);
    let cutting = world.send(CALLER, f.shard(), &request);
    assert!(world.answer(cutting).is_some(), "nothing to truncate: answered at once");
}

#[test]
fn sizes_only_grow_by_extend_and_appends_do_not_overlap() {
    let mut world = World::single();
    let f = file(&mut world, b"f");
    call(&mut world, f, &Request::MoveOut { inode: f });
    assert_eq!(call(&mut world, f, &Request::Extend { inode: f, size: 10 }).attributes().size, 10);
    let shorter = call(&mut world, f, &Request::Extend { inode: f, size: 5 }).attributes();
    assert_eq!(shorter.size, 10);
    let append = Request::Append { inode: f, length: 7 };
    assert_eq!(call(&mut world, f, &append), Answer::Range(10, TRUNCATE_EPOCH_UNKNOWN));
    assert_eq!(call(&mut world, f, &append), Answer::Range(17, TRUNCATE_EPOCH_UNKNOWN));
    let append = Request::Append { inode: f, length: u64::MAX };
    assert_eq!(call(&mut world, f, &append), Answer::Refused(Errno::EFBIG));
    let inline = file(&mut world, b"g");
    write(&mut world, inline, 0, b"abc");
    let append = Request::Append { inode: inline, length: 7 };
    assert_eq!(
        call(&mut world, inline, &append),
        Answer::Range(3, TRUNCATE_EPOCH_UNKNOWN),
        "moved out first"
    );
}

/// The reported size is the unreported one at the time when the request runs.
#[test]
fn a_waiting_size_report_is_read_when_the_request_runs() {
    let mut world = World::single();
    let f = file(&mut world, b"f");
    write(&mut world, f, 0, b"some");
    let extend = Request::Extend { inode: f, size: 5000 };
    let unreported = |unreported| Row { unreported, truncate_epoch: 4 };
    world.seats[0].host_view.vnodes.insert(f, unreported(5000));
    world.data_is_prompt = false;
    let moved = world.send(CALLER, f.shard(), &Request::MoveOut { inode: f });
    let late = send_late(&mut world, f, &extend);
    assert_eq!(world.answer(late), None, "it waits for the targets");
    world.seats[0].host_view.vnodes.insert(f, unreported(700));
    world.answer_data(0, Ok(()));
    world.answer(moved).expect("on targets");
    assert_eq!(world.answer(late), Some(Answer::Done));
    assert_eq!(world.stat(f).expect("there").size, 700);
    assert_eq!(world.seats[0].host_view.vnodes[&f], unreported(0), "told");
}

/// Sends a request of another process of the same host.
fn send_late(world: &mut World, f: Inode, request: &Request<'_>) -> u64 {
    let mut sent = world.prepare(CALLER, f.shard(), request);
    sent.header.client_id = 8;
    world.send_again(&sent)
}

fn set_size(inode: Inode, size: u64, mask: u32) -> Request<'static> {
    let mask = set::SIZE | mask;
    Request::SetAttributes { inode, mask, mode: 0, uid: 0, gid: 0, size, accessed: 0, modified: 0 }
}

/// The open inode shows a truncation from before the targets truncate until they have, and earlier
/// writes are not reported afterwards. Ranges belong to a truncate epoch.
#[test]
fn a_truncation_is_counted_and_discards_the_unreported_size() {
    let mut world = World::single();
    let f = file(&mut world, b"f");
    call(&mut world, f, &Request::MoveOut { inode: f });
    let append = Request::Append { inode: f, length: 100 };
    world.seats[0].host_view.vnodes.insert(f, Row { unreported: 5000, truncate_epoch: 4 });
    assert_eq!(call(&mut world, f, &append), Answer::Range(0, 4));

    world.data_is_prompt = false;
    let cut = world.send(CALLER, f.shard(), &set_size(f, 0, set::TRUNCATES));
    assert_eq!(
        world.seats[0].host_view.vnodes[&f],
        Row { unreported: 0, truncate_epoch: 5 },
        "before the targets"
    );
    let waiting = send_late(&mut world, f, &append);
    assert_eq!(
        (world.answer(cut), world.answer(waiting)),
        (None, None),
        "they wait for the targets"
    );
    // Written by a client that does not know yet that its bytes were truncated.
    world.seats[0].host_view.vnodes.insert(f, Row { unreported: 5000, truncate_epoch: 5 });
    world.answer_data(0, Ok(()));
    assert_eq!(world.seats[0].host_view.vnodes[&f], Row { unreported: 0, truncate_epoch: 6 });
    assert_eq!(world.answer(waiting), Some(Answer::Range(0, 6)));
    assert_eq!(world.stat(f).expect("there").size, 100);

    // Unreported bytes are truncated, too, and then the file has no hole.
    world.data_is_prompt = true;
    world.seats[0].host_view.vnodes.insert(f, Row { unreported: 5000, truncate_epoch: 6 });
    let shorter = call(&mut world, f, &set_size(f, 3000, 0)).attributes();
    assert_eq!((shorter.size, shorter.is_sparse()), (3000, false));
    assert_eq!(world.seats[0].host_view.vnodes[&f], Row { unreported: 0, truncate_epoch: 8 });

    // Growing is no truncation.
    world.seats[0].host_view.vnodes.insert(f, Row { unreported: 90, truncate_epoch: 8 });
    assert_eq!(call(&mut world, f, &set_size(f, 4000, 0)).attributes().size, 4000);
    assert_eq!(world.seats[0].host_view.vnodes[&f], Row { unreported: 90, truncate_epoch: 8 });
}

#[test]
fn a_truncation_of_an_inline_file_is_counted_too() {
    let mut world = World::single();
    let f = file(&mut world, b"f");
    write(&mut world, f, 0, b"some");
    world.seats[0].host_view.vnodes.insert(f, Row { unreported: 1, truncate_epoch: 0 });
    assert_eq!(call(&mut world, f, &set_size(f, 2, 0)).attributes().size, 2);
    assert_eq!(world.seats[0].host_view.vnodes[&f], Row { unreported: 0, truncate_epoch: 2 });
    assert_eq!(call(&mut world, f, &set_size(f, 9, 0)).attributes().size, 9);
    assert_eq!(
        world.seats[0].host_view.vnodes[&f],
        Row { unreported: 0, truncate_epoch: 2 },
        "longer"
    );
}

#[test]
fn data_of_a_deleted_file_is_removed_even_after_a_crash() {
    let mut world = World::single();
    world.data_is_prompt = false;
    let f = file(&mut world, b"f");
    call(&mut world, f, &Request::MoveOut { inode: f });
    let unlink = Request::Unlink { parent: ROOT, name: b"f" };
    let deleted = world.send(CALLER, ROOT.shard(), &unlink);
    assert_eq!(world.answer(deleted), Some(Answer::Done), "not waited for");
    assert_eq!(world.removal_log, [f]);
    world.crash(0);
    assert_eq!(world.removal_log, [f, f], "repeated");
    world.answer_removals(0);
    world.crash(0);
    assert_eq!(world.removal_log, [f, f], "it is done");
}

/// A size that was not reported before a kill is unknown when the targets are asked afterwards.
#[test]
fn growth_beyond_the_first_stripe_survives_a_crash() {
    let mut world = World::single();
    let layout = Layout { stripe_log2: 16, flags: flag::SHORT | 0x80, ..Layout::default() };
    for is_long in [false, true] {
        let (parent, name, mode) = (ROOT, b"f", mode::REGULAR | 0o600);
        let create =
            Request::Create { parent, name, mode, device: 0, flags: 0, layout, target: b"" };
        let made = world.call(CALLER, ROOT.shard(), &create).attributes();
        assert_eq!(made.layout.flags, flag::SHORT, "no flag but those that one may choose");
        let inode = made.inode;
        world.root().truncate(inode, 1 << 20).expect("longer");
        let is_short =
            |world: &mut World| world.stat(inode).expect("there").layout.flags & flag::SHORT != 0;
        assert!(is_short(&mut world), "a size alone is no space");
        if is_long {
            let mask = set::LONG | set::BY_DESCRIPTOR;
            world.root().set(inode, mask, crate::sim::NOTHING).expect("reported");
        }
        world.crash(0);
        assert_eq!(is_short(&mut world), !is_long);
        world.root().unlink(ROOT, name).expect("there");
        let reported = world.removal_layouts.last().expect("reported").flags & flag::SHORT;
        assert_eq!(reported == 0, is_long);
    }
}

#[test]
fn a_file_deleted_while_it_moves_out_is_removed_afterwards() {
    let mut world = World::single();
    world.data_is_prompt = false;
    let f = file(&mut world, b"f");
    write(&mut world, f, 0, b"abc");
    world.send(CALLER, f.shard(), &Request::MoveOut { inode: f });
    let deleted = world.send(CALLER, ROOT.shard(), &Request::Unlink { parent: ROOT, name: b"f" });
    assert_eq!(world.answer(deleted), Some(Answer::Done));
    world.answer_data(0, Ok(()));
    assert_eq!(world.stat(f), Err(Errno::ESTALE));
    assert_eq!(world.removal_log, [f]);
}

#[test]
fn writing_by_others_clears_set_id_bits() {
    let mut world = World::single();
    let f = world.root().make(ROOT, b"f", mode::REGULAR | 0o6777).expect("made").inode;
    let request = Request::WriteInline { inode: f, offset: 0, bytes: b"x" };
    let after = world.call(Credentials::of(5, 5), f.shard(), &request).attributes();
    assert_eq!(after.mode & 0o7777, 0o777);
}

fn set(world: &mut World, inode: Inode, name: &[u8], flags: u32) -> Answer {
    call(world, inode, &Request::SetXattr { inode, name, value: b"v", flags })
}

#[test]
fn extended_attributes() {
    let mut world = World::single();
    let f = file(&mut world, b"f");
    assert_eq!(set(&mut world, f, b"user.a", xattr::REPLACE), Answer::Refused(Errno::ENODATA));
    assert_eq!(set(&mut world, f, b"user.a", xattr::CREATE), Answer::Done);
    assert_eq!(set(&mut world, f, b"user.a", xattr::CREATE), Answer::Refused(Errno::EEXIST));
    assert_eq!(set(&mut world, f, b"trusted.t", 0), Answer::Done);
    assert_eq!(set(&mut world, f, b"user.", 0), Answer::Refused(Errno::EINVAL));
    assert_eq!(set(&mut world, f, b"odd", 0), Answer::Refused(Errno::EOPNOTSUPP));
    let link = world.root().make(ROOT, b"l", mode::SYMLINK | 0o777).expect("made").inode;
    assert_eq!(set(&mut world, link, b"user.a", 0), Answer::Refused(Errno::EPERM));
    world.crash(0);
    let get = Request::GetXattr { inode: f, name: b"user.a" };
    assert_eq!(call(&mut world, f, &get), Answer::Bytes(b"v".to_vec()));
    let list = Request::ListXattr { inode: f };
    assert_eq!(call(&mut world, f, &list), Answer::Bytes(b"trusted.t\0user.a\0".to_vec()));
    let user = world.call(Credentials::of(5, 5), f.shard(), &list);
    assert_eq!(user, Answer::Bytes(b"user.a\0".to_vec()));
    let remove = Request::RemoveXattr { inode: f, name: b"user.a" };
    assert_eq!(call(&mut world, f, &remove), Answer::Done);
    assert_eq!(call(&mut world, f, &remove), Answer::Refused(Errno::ENODATA));
    let value = [0; 9000];
    let big = Request::SetXattr { inode: f, name: b"user.b", value: &value, flags: 0 };
    assert_eq!(call(&mut world, f, &big), Answer::Refused(Errno::E2BIG));
}

/// Sends a lock request from client `owner`; returns its ticket.
fn lock(
    world: &mut World,
    inode: Inode,
    owner: u64,
    kind: u8,
    flags: u8,
    range: (u64, u64),
) -> u64 {
    let (start, end) = range;
    let pid = owner as u32;
    let request = Request::Lock { inode, owner, party: owner, pid, kind, flags, start, end };
    let mut sent = world.prepare(CALLER, inode.shard(), &request);
    sent.header.client_id = 1000 + owner;
    world.send_again(&sent)
}

#[test]
fn locks_conflict_wait_in_order_and_survive_a_crash() {
    let mut world = World::single();
    let f = file(&mut world, b"f");
    let all = (0, u64::MAX);
    let one = lock(&mut world, f, 1, WRITE, 0, (0, 9));
    assert_eq!(world.answer(one), Some(Answer::Done));
    let two = lock(&mut world, f, 2, READ, 0, (5, 5));
    assert_eq!(world.answer(two), Some(Answer::Refused(Errno::EAGAIN)));
    let test = lock(&mut world, f, 2, READ, TEST, all);
    assert_eq!(world.answer(test), Some(Answer::Held(WRITE, 1, 0, 9)));
    let flock = lock(&mut world, f, 2, WRITE, FLOCK, all);
    assert_eq!(world.answer(flock), Some(Answer::Done), "another space");
    world.crash(0);
    let two = lock(&mut world, f, 2, READ, WAIT, all);
    let three = lock(&mut world, f, 3, READ, WAIT, all);
    assert_eq!((world.answer(two), world.answer(three)), (None, None));
    lock(&mut world, f, 1, UNLOCK, 0, all);
    assert_eq!(world.answer(two), Some(Answer::Done));
    assert_eq!(world.answer(three), Some(Answer::Done));
    let four = lock(&mut world, f, 4, WRITE, WAIT, all);
    let (client_id, sequence) = (1004, world.sequence);
    call(&mut world, f, &Request::Release { inode: Inode::NONE, owner: 2 });
    assert_eq!(world.answer(four), None);
    call(&mut world, f, &Request::CancelLock { inode: f, client_id, sequence });
    assert_eq!(world.answer(four), Some(Answer::Refused(Errno::EINTR)));
}

#[test]
fn a_deadlock_of_waiters_is_refused() {
    let mut world = World::single();
    let (f, g) = (file(&mut world, b"f"), file(&mut world, b"g"));
    let all = (0, u64::MAX);
    lock(&mut world, f, 1, WRITE, 0, all);
    lock(&mut world, g, 2, WRITE, 0, all);
    let waiting = lock(&mut world, g, 1, WRITE, WAIT, all);
    assert_eq!(world.answer(waiting), None);
    let cycle = lock(&mut world, f, 2, WRITE, WAIT, all);
    assert_eq!(world.answer(cycle), Some(Answer::Refused(Errno::EDEADLK)));
    world.step(0, Input::HostGone { host: 0 });
    let free = lock(&mut world, f, 3, WRITE, 0, all);
    assert_eq!(world.answer(free), Some(Answer::Done));
}
