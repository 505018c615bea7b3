//! Local operations: a client completes an operation unless something conflicts with it, and the
//! worker, other clients and readers see it before or after, never half.

use crate::support::{memory, spawn};
use shm::host::{HOST_BYTES, HostSegment};
use shm::local_ops::{OP_LOG_BYTES, OpLog, Tentative};
use shm::sync::{AtomicU32, model};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use wire::Inode;

const KEY: u64 = 0x1234_5678_9abc_def0;
const NOBODY: u32 = 0;
const WORKER: u32 = 9;

/// The operation log of a daemon, and one name as the index shows it: its creator.
struct World {
    op_log: OpLog,
    name: AtomicU32,
}

fn world() -> Arc<World> {
    let op_log = OpLog::new(memory(OP_LOG_BYTES)).expect("long enough");
    model::uninterrupted(|| op_log.open_gate(0, &[]));
    Arc::new(World { op_log, name: AtomicU32::new(NOBODY) })
}

impl World {
    /// A client creates the name by a local operation. True if it did.
    fn create(&self, session: u16) -> bool {
        let Some(mut pending_op) = self.op_log.claim(session, 0) else { return false };
        pending_op
            .write(|bytes| {
                bytes[0] = session as u8 + 1;
                Ok::<_, wire::Errno>(1)
            })
            .expect("it fits");
        let may = pending_op.announce(KEY).expect("claimed")
            && self.op_log.is_open(0)
            && self.name.load(SeqCst) == NOBODY;
        may && pending_op.commit()
    }

    /// The worker applies committed operations; returns how many found the name taken.
    fn apply(&self, tentative: Tentative) -> usize {
        let mut ids = Vec::new();
        self.op_log.collect(0, tentative, &mut |id| ids.push(id));
        let mut spoilt = 0;
        for id in ids {
            let mut bytes = [0; 448];
            assert_eq!(self.op_log.read(id, &mut bytes), Some(1), "a committed operation is whole");
            let before = self.name.swap(u32::from(bytes[0]), SeqCst);
            spoilt += usize::from(before != NOBODY);
            self.op_log.finish(id);
        }
        self.op_log.settle(0);
        spoilt
    }

    /// The worker creates the name by itself, as for a request. True if it was free.
    fn create_by_request(&self) -> bool {
        self.op_log.close_gate(0);
        assert_eq!(self.apply(Tentative::Refuse), 0, "a name was made twice");
        let is_free = self.name.load(SeqCst) == NOBODY;
        if is_free {
            self.name.store(WORKER, SeqCst);
        }
        self.op_log.open_gate(0, &[]);
        is_free
    }

    /// The view of a reader without a message: `None` if it has to send one.
    fn look(&self) -> Option<u32> {
        let is_pending = self.op_log.is_pending(0, KEY);
        (!is_pending).then(|| self.name.load(SeqCst))
    }

    /// No operation is left: all committed ones are applied, all slots are available.
    fn check_end(&self, sessions: u16) {
        self.op_log.sweep(0);
        self.op_log.close_gate(0);
        assert_eq!(self.apply(Tentative::Refuse), 0, "a name was made twice");
        self.op_log.sweep(0);
        self.op_log.settle(0);
        assert!(!self.op_log.has_any(0), "announced for ever");
        assert!(!self.op_log.is_pending(0, KEY), "a tag stays for ever");
        for session in 0..sessions {
            let pending_ops: Vec<_> =
                (0..64).map_while(|_| self.op_log.claim(session, 0)).collect();
            assert_eq!(pending_ops.len(), 64, "a slot is lost");
        }
    }
}

#[test]
fn a_name_is_created_once() {
    model::explore(3000, || {
        let world = world();
        let clients = [0, 1].map(|session| spawn(&world, move |world| world.create(session)));
        let mut made = usize::from(world.create_by_request());
        made += clients.into_iter().filter_map(model::Thread::join).filter(|&made| made).count();
        model::uninterrupted(|| world.check_end(2));
        let is_there = world.name.load(SeqCst) != NOBODY;
        assert!(made <= 1 && (made == 1) == is_there, "{made} made it");
    });
}

#[test]
fn two_threads_of_one_session_have_two_slots() {
    model::explore(2000, || {
        let world = world();
        let clients = [0, 0].map(|session| spawn(&world, move |world| world.create(session)));
        assert_eq!(world.apply(Tentative::Leave), 0);
        let made = clients.into_iter().filter_map(model::Thread::join).filter(|&made| made).count();
        model::uninterrupted(|| world.check_end(1));
        assert!(made <= 1 && (made == 1) == (world.name.load(SeqCst) != NOBODY), "{made} made it");
    });
}

/// Without a worker's step in between, one of two gets the name or both ask; a single one gets it.
#[test]
fn a_single_client_is_never_refused() {
    model::explore(500, || {
        let world = world();
        let client = spawn(&world, move |world| world.create(3));
        assert_eq!(world.apply(Tentative::Leave), 0);
        assert_eq!(client.join(), Some(true));
        model::uninterrupted(|| world.check_end(4));
    });
}

/// A committed operation is visible to everybody from then on.
#[test]
fn a_committed_operation_is_seen() {
    model::explore(3000, || {
        let world = world();
        let client = spawn(&world, move |world| {
            if world.create(0) {
                let found = world.look();
                assert_ne!(found, Some(NOBODY), "it made the name and does not find it");
            }
        });
        let reader = spawn(&world, move |world| {
            let first = world.look();
            let second = world.look();
            let vanished = first.is_some_and(|by| by != NOBODY) && second == Some(NOBODY);
            assert!(!vanished, "a name came and went");
        });
        assert_eq!(world.apply(Tentative::Leave), 0);
        client.join();
        reader.join();
        model::uninterrupted(|| world.check_end(1));
    });
}

/// A client that is killed anywhere created the name or did not; no trace of it stays.
#[test]
fn a_killed_client_leaves_nothing() {
    model::explore(3000, || {
        let world = world();
        let victim = spawn(&world, move |world| {
            model::kill_after(45);
            world.create(0)
        });
        let other = spawn(&world, move |world| world.create(0));
        let by_request = world.create_by_request();
        let other = other.join().expect("not killed");
        let victim = victim.join();
        model::uninterrupted(|| world.check_end(1));
        let made = usize::from(by_request) + usize::from(other);
        let made = made + usize::from(victim == Some(true));
        let is_there = world.name.load(SeqCst) != NOBODY;
        assert!(made <= 1, "{made} made it");
        assert!(made == 0 || is_there, "it was made and is not there");
        assert!(made == 1 || !is_there || victim.is_none(), "nobody made it and it is there");
    });
}

/// A client removes a file by a local operation, and another opens it: the remover finds it open
/// and withdraws, or the opener sees the operation and asks.
#[test]
fn a_file_is_not_removed_while_it_is_opened() {
    model::explore(3000, || {
        let world = world();
        let host = Arc::new(HostSegment::new(memory(HOST_BYTES)).expect("long enough"));
        let opener = {
            let (world, host) = (Arc::clone(&world), Arc::clone(&host));
            model::spawn(move || {
                let vnode = host.vnode_open(Inode(5)).expect("space");
                let is_open = !world.op_log.is_pending(0, KEY);
                if !is_open {
                    host.vnode_close(Inode(5), vnode).expect("open");
                }
                is_open
            })
        };
        let mut pending_op = world.op_log.claim(0, 0).expect("a slot");
        pending_op.write(|_| Ok::<_, wire::Errno>(1)).expect("it fits");
        let may = pending_op.announce(KEY).expect("claimed") && host.vnode_find(Inode(5)).is_none();
        let removed = may && pending_op.commit();
        let is_open = opener.join().expect("not killed");
        assert!(!(removed && is_open), "removed by a local operation while it is open");
    });
}

/// A client announces an operation to one worker, withdraws it, and commits one for another in the
/// same slot, before the first worker looks. A worker takes the operations that are for it, and all
/// of them.
#[test]
fn a_worker_takes_what_is_for_it() {
    model::explore(3000, || {
        let world = world();
        let client = spawn(&world, move |world| {
            let pending_op = world.op_log.claim(0, 0).expect("a slot");
            assert_eq!(pending_op.announce(KEY), Ok(true));
            drop(pending_op);
            let pending_op = world.op_log.claim(0, 1).expect("a slot");
            assert_eq!(pending_op.announce(KEY), Ok(true));
            assert!(pending_op.commit(), "refused by another worker");
        });
        let take = |worker| {
            let mut ids = Vec::new();
            world.op_log.collect(worker, Tentative::Refuse, &mut |id| ids.push(id));
            ids
        };
        world.op_log.close_gate(0);
        for _ in 0..3 {
            assert_eq!(take(0), [], "it is for the other worker");
        }
        client.join();
        model::uninterrupted(|| {
            assert_eq!(take(0), [], "it is for the other worker");
            let ids = take(1);
            assert_eq!(ids.len(), 1, "the committed operation is gone");
            ids.into_iter().for_each(|id| world.op_log.finish(id));
            world.op_log.settle(1);
            world.check_end(1);
        });
    });
}

/// An operation that is complete when its client is killed is found, though nothing else leads to
/// it.
#[test]
fn operations_committed_by_dead_threads_are_found() {
    model::explore(1000, || {
        let world = world();
        let victim = spawn(&world, move |world| {
            model::kill_after(25);
            let mut pending_op = world.op_log.claim(0, 0).expect("a slot");
            pending_op.write(|_| Ok::<_, wire::Errno>(1)).expect("it fits");
            pending_op.commit_at_once().expect("claimed");
        });
        world.apply(Tentative::Leave);
        victim.join();
        model::uninterrupted(|| world.check_end(1));
    });
}

/// A worker that is killed while it removes announcements leaves no operation behind.
#[test]
fn the_next_daemon_finds_committed_operations() {
    model::explore(2000, || {
        let world = world();
        model::uninterrupted(|| {
            world.op_log.note_session(0).expect("memory");
            let pending_op = world.op_log.claim(0, 0).expect("a slot");
            pending_op.announce(KEY).expect("claimed");
        });
        let worker = spawn(&world, move |world| {
            model::kill_after(20);
            world.op_log.settle(0);
        });
        let client = spawn(&world, move |world| world.create(0));
        worker.join();
        assert_eq!(client.join(), Some(true));
        model::uninterrupted(|| {
            world.op_log.recover(0);
            assert_eq!(world.apply(Tentative::Leave), 0);
            assert_ne!(world.name.load(SeqCst), NOBODY, "a committed operation is lost");
            world.check_end(1);
        });
    });
}

/// The slot of a thread that committed and died is free once the worker is done with it, and not
/// before: a thread that takes it over owns it alone.
#[test]
fn the_slot_of_a_dead_thread_has_one_owner() {
    model::explore(15_000, || {
        let world = world();
        let client = spawn(&world, move |world| {
            let pending_op = model::uninterrupted(|| {
                let pending_op = world.op_log.claim(0, 0).expect("a slot");
                assert_eq!(pending_op.announce(KEY), Ok(true));
                // The others are taken, so that slots of dead threads are searched.
                (1..64).for_each(|_| std::mem::forget(world.op_log.claim(0, 0)));
                pending_op
            });
            assert!(pending_op.commit());
        });
        let worker = spawn(&world, move |world| {
            world.op_log.collect(0, Tentative::Leave, &mut |id| world.op_log.finish(id));
        });
        let pending_op = world.op_log.claim(0, 0);
        client.join();
        worker.join();
        model::uninterrupted(|| {
            if let Some(pending_op) = pending_op {
                let id = pending_op.id();
                let others: Vec<_> = (0..64).map_while(|_| world.op_log.claim(0, 0)).collect();
                assert!(others.iter().all(|other| other.id() != id), "two have one slot");
            }
            world.op_log.collect(0, Tentative::Leave, &mut |id| world.op_log.finish(id));
            world.check_end(1);
        });
    });
}
