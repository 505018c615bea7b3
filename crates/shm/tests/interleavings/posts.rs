//! Posts: a client completes an operation unless something stands against it, and the worker, other
//! clients and readers see it before or after, never half.

use crate::support::{memory, spawn};
use shm::host::{HOST_BYTES, HostSegment};
use shm::posts::{POSTS_BYTES, Posts, Tentative};
use shm::sync::{AtomicU32, model};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use wire::Inode;

const KEY: u64 = 0x1234_5678_9abc_def0;
const NOBODY: u32 = 0;
const WORKER: u32 = 9;

/// The posts of a daemon, and one name as the index shows it: who made it.
struct World {
    posts: Posts,
    name: AtomicU32,
}

fn world() -> Arc<World> {
    let posts = Posts::new(memory(POSTS_BYTES)).expect("long enough");
    model::quietly(|| posts.open_gate(0, &[]));
    Arc::new(World { posts, name: AtomicU32::new(NOBODY) })
}

impl World {
    /// A client makes the name by a post. True if it did.
    fn make(&self, session: u16) -> bool {
        let Some(mut draft) = self.posts.claim(session, 0) else { return false };
        draft
            .write(|bytes| {
                bytes[0] = session as u8 + 1;
                Ok::<_, wire::Errno>(1)
            })
            .expect("it fits");
        let may = draft.announce(KEY).expect("claimed")
            && self.posts.is_open(0)
            && self.name.load(SeqCst) == NOBODY;
        may && draft.commit()
    }

    /// The worker applies what was posted; how many found the name taken.
    fn apply(&self, tentative: Tentative) -> usize {
        let mut ids = Vec::new();
        self.posts.collect(0, tentative, &mut |id| ids.push(id));
        let mut spoilt = 0;
        for id in ids {
            let mut bytes = [0; 448];
            assert_eq!(self.posts.read(id, &mut bytes), Some(1), "a committed post is whole");
            let before = self.name.swap(u32::from(bytes[0]), SeqCst);
            spoilt += usize::from(before != NOBODY);
            self.posts.finish(id);
        }
        self.posts.settle(0);
        spoilt
    }

    /// The worker makes the name by itself, as a request asked. True if it was free.
    fn make_by_request(&self) -> bool {
        self.posts.close_gate(0);
        assert_eq!(self.apply(Tentative::Refuse), 0, "a name was made twice");
        let is_free = self.name.load(SeqCst) == NOBODY;
        if is_free {
            self.name.store(WORKER, SeqCst);
        }
        self.posts.open_gate(0, &[]);
        is_free
    }

    /// What a reader without a message finds: `None` if he has to ask.
    fn look(&self) -> Option<u32> {
        let is_pending = self.posts.is_pending(0, KEY);
        (!is_pending).then(|| self.name.load(SeqCst))
    }

    /// Nothing is left of any post: all that was committed is applied, all slots can be had.
    fn check_end(&self, sessions: u16) {
        self.posts.sweep(0);
        self.posts.close_gate(0);
        assert_eq!(self.apply(Tentative::Refuse), 0, "a name was made twice");
        self.posts.sweep(0);
        self.posts.settle(0);
        assert!(!self.posts.has_any(0), "announced for ever");
        assert!(!self.posts.is_pending(0, KEY), "a tag stays for ever");
        for session in 0..sessions {
            let drafts: Vec<_> = (0..64).map_while(|_| self.posts.claim(session, 0)).collect();
            assert_eq!(drafts.len(), 64, "a slot is lost");
        }
    }
}

#[test]
fn a_name_is_made_once() {
    model::explore(3000, || {
        let world = world();
        let clients = [0, 1].map(|session| spawn(&world, move |world| world.make(session)));
        let mut made = usize::from(world.make_by_request());
        made += clients.into_iter().filter_map(model::Thread::join).filter(|&made| made).count();
        model::quietly(|| world.check_end(2));
        let is_there = world.name.load(SeqCst) != NOBODY;
        assert!(made <= 1 && (made == 1) == is_there, "{made} made it");
    });
}

#[test]
fn two_threads_of_one_session_have_two_slots() {
    model::explore(2000, || {
        let world = world();
        let clients = [0, 0].map(|session| spawn(&world, move |world| world.make(session)));
        assert_eq!(world.apply(Tentative::Leave), 0);
        let made = clients.into_iter().filter_map(model::Thread::join).filter(|&made| made).count();
        model::quietly(|| world.check_end(1));
        assert!(made <= 1 && (made == 1) == (world.name.load(SeqCst) != NOBODY), "{made} made it");
    });
}

/// Without a worker's step in between, one of two gets the name or both ask; a single one gets it.
#[test]
fn nothing_stands_against_a_single_client() {
    model::explore(500, || {
        let world = world();
        let client = spawn(&world, move |world| world.make(3));
        assert_eq!(world.apply(Tentative::Leave), 0);
        assert_eq!(client.join(), Some(true));
        model::quietly(|| world.check_end(4));
    });
}

/// What a client was told is done, everybody sees from then on.
#[test]
fn what_is_done_is_seen() {
    model::explore(3000, || {
        let world = world();
        let client = spawn(&world, move |world| {
            if world.make(0) {
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
        model::quietly(|| world.check_end(1));
    });
}

/// A client that is killed anywhere made the name or did not; nothing of it stays.
#[test]
fn who_is_killed_leaves_nothing() {
    model::explore(3000, || {
        let world = world();
        let victim = spawn(&world, move |world| {
            model::doom(45);
            world.make(0)
        });
        let other = spawn(&world, move |world| world.make(0));
        let by_request = world.make_by_request();
        let other = other.join().expect("not killed");
        let victim = victim.join();
        model::quietly(|| world.check_end(1));
        let made = usize::from(by_request) + usize::from(other);
        let made = made + usize::from(victim == Some(true));
        let is_there = world.name.load(SeqCst) != NOBODY;
        assert!(made <= 1, "{made} made it");
        assert!(made == 0 || is_there, "it was made and is not there");
        assert!(made == 1 || !is_there || victim.is_none(), "nobody made it and it is there");
    });
}

/// Who removes a file by a post, and who opens it: the opener finds it open and stays away from a
/// post, or sees the post and asks.
#[test]
fn a_file_is_not_removed_under_who_opens_it() {
    model::explore(3000, || {
        let world = world();
        let host = Arc::new(HostSegment::new(memory(HOST_BYTES)).expect("long enough"));
        let opener = {
            let (world, host) = (Arc::clone(&world), Arc::clone(&host));
            model::spawn(move || {
                let vnode = host.vnode_open(Inode(5)).expect("room");
                let is_open = !world.posts.is_pending(0, KEY);
                if !is_open {
                    host.vnode_close(Inode(5), vnode).expect("open");
                }
                is_open
            })
        };
        let mut draft = world.posts.claim(0, 0).expect("a slot");
        draft.write(|_| Ok::<_, wire::Errno>(1)).expect("it fits");
        let may = draft.announce(KEY).expect("claimed") && host.vnode_find(Inode(5)).is_none();
        let removed = may && draft.commit();
        let is_open = opener.join().expect("not killed");
        assert!(!(removed && is_open), "removed by a post while it is open");
    });
}

/// A client announces a post to one worker, changes its mind, and posts to another: in the same slot, by
/// the time the first comes to look. A worker takes what is for it, and all of it.
#[test]
fn a_worker_takes_what_is_for_it() {
    model::explore(3000, || {
        let world = world();
        let client = spawn(&world, move |world| {
            let draft = world.posts.claim(0, 0).expect("a slot");
            assert_eq!(draft.announce(KEY), Ok(true));
            drop(draft);
            let draft = world.posts.claim(0, 1).expect("a slot");
            assert_eq!(draft.announce(KEY), Ok(true));
            assert!(draft.commit(), "refused by a worker whom nobody asked");
        });
        let take = |worker| {
            let mut ids = Vec::new();
            world.posts.collect(worker, Tentative::Refuse, &mut |id| ids.push(id));
            ids
        };
        world.posts.close_gate(0);
        for _ in 0..3 {
            assert_eq!(take(0), [], "it was posted to the other worker");
        }
        client.join();
        model::quietly(|| {
            assert_eq!(take(0), [], "it was posted to the other worker");
            let ids = take(1);
            assert_eq!(ids.len(), 1, "what was posted is gone");
            ids.into_iter().for_each(|id| world.posts.finish(id));
            world.posts.settle(1);
            world.check_end(1);
        });
    });
}

/// A post that is complete when its client is killed is found, though nothing else leads there.
#[test]
fn what_the_dead_committed_is_found() {
    model::explore(1000, || {
        let world = world();
        let victim = spawn(&world, move |world| {
            model::doom(25);
            let mut draft = world.posts.claim(0, 0).expect("a slot");
            draft.write(|_| Ok::<_, wire::Errno>(1)).expect("it fits");
            draft.commit_at_once().expect("claimed");
        });
        world.apply(Tentative::Leave);
        victim.join();
        model::quietly(|| world.check_end(1));
    });
}

/// A worker that is killed while it takes announcements back leaves no post to nobody.
#[test]
fn the_next_daemon_finds_what_was_posted() {
    model::explore(2000, || {
        let world = world();
        model::quietly(|| {
            world.posts.note_session(0);
            let draft = world.posts.claim(0, 0).expect("a slot");
            draft.announce(KEY).expect("claimed");
        });
        let worker = spawn(&world, move |world| {
            model::doom(20);
            world.posts.settle(0);
        });
        let client = spawn(&world, move |world| world.make(0));
        worker.join();
        assert_eq!(client.join(), Some(true));
        model::quietly(|| {
            world.posts.recover(0);
            assert_eq!(world.apply(Tentative::Leave), 0);
            assert_ne!(world.name.load(SeqCst), NOBODY, "what was done is lost");
            world.check_end(1);
        });
    });
}

/// The slot of one who committed and died is free once the worker is done with it, and not before: who
/// takes it over has it for himself.
#[test]
fn the_slot_of_a_dead_has_one_owner() {
    model::explore(15_000, || {
        let world = world();
        let client = spawn(&world, move |world| {
            let draft = model::quietly(|| {
                let draft = world.posts.claim(0, 0).expect("a slot");
                assert_eq!(draft.announce(KEY), Ok(true));
                // The others are taken, so that the dead are looked for.
                (1..64).for_each(|_| std::mem::forget(world.posts.claim(0, 0)));
                draft
            });
            assert!(draft.commit());
        });
        let worker = spawn(&world, move |world| {
            world.posts.collect(0, Tentative::Leave, &mut |id| world.posts.finish(id));
        });
        let draft = world.posts.claim(0, 0);
        client.join();
        worker.join();
        model::quietly(|| {
            if let Some(draft) = draft {
                let id = draft.id();
                let others: Vec<_> = (0..64).map_while(|_| world.posts.claim(0, 0)).collect();
                assert!(others.iter().all(|other| other.id() != id), "two have one slot");
            }
            world.posts.collect(0, Tentative::Leave, &mut |id| world.posts.finish(id));
            world.check_end(1);
        });
    });
}
