//! Buffers of a stage, and what is on its way: a buffer has one holder at a time, client or daemon,
//! though clients give up and are killed; who waits for a buffer or for the last arrival is woken.

use crate::support::{Both, SECOND, memory};
use shm::doorbell::Doorbells;
use shm::host::{HOST_BYTES, HostSegment, OfdIndex, VnodeIndex};
use shm::session::Session;
use shm::stage::ahead::Ahead;
use shm::stage::{Pushed, SESSION_AND_STAGE_BYTES};
use shm::sync::model;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use wire::limits::{SLOT_BYTES, SLOT_COUNT, STAGE_BUFFER_COUNT};
use wire::{DaemonIndex, Errno, Inode};

/// A session of whose buffers one is free.
fn one_free() -> Arc<Session> {
    let session = Session::new(memory(SESSION_AND_STAGE_BYTES)).expect("long enough");
    model::quietly(|| {
        let taken: Vec<_> = (1..STAGE_BUFFER_COUNT).map(|_| session.stage().try_take()).collect();
        taken.into_iter().for_each(std::mem::forget);
    });
    Arc::new(session)
}

/// The last one: all before it are taken.
const FREE: u8 = STAGE_BUFFER_COUNT as u8 - 1;

#[test]
fn a_buffer_has_one_holder_and_who_waits_gets_it() {
    model::explore(2000, || {
        let session = one_free();
        let holders = Arc::new(AtomicU32::new(0));
        // Lends it and gives it up, perhaps by dying; the daemon gives it back at any time after.
        let gives_up = {
            let (session, holders) = (Arc::clone(&session), Arc::clone(&holders));
            model::spawn(move || {
                let mut buffer = session.stage().take(SECOND).expect("a buffer");
                assert_eq!(holders.fetch_add(1, Ordering::Relaxed), 0, "two hold one buffer");
                buffer.lend().expect("taken");
                let daemon = {
                    let (session, holders) = (Arc::clone(&session), Arc::clone(&holders));
                    model::spawn(move || {
                        holders.fetch_sub(1, Ordering::Relaxed);
                        session.stage().give_back(FREE);
                    })
                };
                drop(buffer);
                daemon.join();
            })
        };
        let waits = {
            let (session, holders) = (Arc::clone(&session), Arc::clone(&holders));
            model::spawn(move || {
                let buffer = session.stage().take(SECOND).expect("a buffer");
                assert_eq!(holders.fetch_add(1, Ordering::Relaxed), 0, "two hold one buffer");
                holders.fetch_sub(1, Ordering::Relaxed);
                drop(buffer);
            })
        };
        gives_up.join();
        waits.join();
        let last = model::quietly(|| session.stage().try_take().map(|buffer| buffer.index()));
        assert_eq!(last, Ok(FREE), "the buffer is lost");
    });
}

/// A buffer that a thread pushed before it died is the daemon's until that is done with it, then one
/// other's.
#[test]
fn what_the_dead_pushed_has_one_holder() {
    model::explore(30_000, || {
        let session = Session::new(memory(SESSION_AND_STAGE_BYTES)).expect("long enough");
        // The first one is free: few steps are spent on others.
        model::quietly(|| {
            let first = session.stage().try_take();
            (1..STAGE_BUFFER_COUNT).for_each(|_| std::mem::forget(session.stage().try_take()));
            drop(first);
        });
        let session = Arc::new(session);
        let pushes = {
            let session = Arc::clone(&session);
            model::spawn(move || {
                let buffer = model::quietly(|| session.stage().try_free());
                // The other may have been first.
                let Ok(buffer) = buffer else { return false };
                buffer.describe(&PUSHED).and_then(|()| buffer.push()).expect("taken");
                true
            })
        };
        let other = {
            let session = Arc::clone(&session);
            model::spawn(move || session.stage().take(0).map(std::mem::forget).is_ok())
        };
        let mut mine = None;
        if pushes.join() == Some(true) && session.stage().begin_moving(0).is_some() {
            session.stage().give_back(0);
            mine = session.stage().try_free().ok();
        }
        let theirs = other.join() == Some(true);
        assert!(mine.is_none() || !theirs, "two hold one buffer");
    });
}

const PUSHED: Pushed = Pushed {
    inode: Inode(5),
    vnode: VnodeIndex(0),
    target: DaemonIndex(1),
    chunk_log2: 22,
    offset: 0,
    length: 1,
    stamp: 0,
};

#[test]
fn what_was_pushed_is_moved_once_and_who_waits_for_it_is_woken() {
    model::explore(2000, || {
        let session = one_free();
        let host = Arc::new(HostSegment::new(memory(HOST_BYTES)).expect("fresh"));
        let index = model::quietly(|| host.vnode_open(Inode(5)).expect("room"));
        let arrived = Arc::new(AtomicU32::new(0));
        {
            let vnode = host.vnode(index).expect("open");
            model::quietly(|| assert!(vnode.begin_push(1)));
        }
        let client = {
            let session = Arc::clone(&session);
            model::spawn(move || {
                let buffer = session.stage().take(SECOND).expect("a buffer");
                buffer.describe(&PUSHED).and_then(|()| buffer.push()).expect("taken");
            })
        };
        client.join();
        // The worker that was told, and the thread that saw the end of the session.
        let movers = [(); 2].map(|()| {
            let (session, host, arrived) =
                (Arc::clone(&session), Arc::clone(&host), Arc::clone(&arrived));
            model::spawn(move || {
                if session.stage().begin_moving(FREE).is_some() {
                    arrived.fetch_add(1, Ordering::Relaxed);
                    session.stage().give_back(FREE);
                    host.vnode(index).expect("open").end_push(Ok(()));
                }
            })
        });
        let waits = {
            let (session, host, arrived) =
                (Arc::clone(&session), Arc::clone(&host), Arc::clone(&arrived));
            model::spawn(move || {
                let vnode = host.vnode(index).expect("open");
                while !vnode.wait_pushed(SECOND) {}
                assert_eq!(arrived.load(Ordering::Relaxed), 1, "woken before it arrived");
                drop(session.stage().take(SECOND).expect("a buffer"));
            })
        };
        for mover in movers {
            let _ = mover.join();
        }
        waits.join();
        assert_eq!(arrived.load(Ordering::Relaxed), 1, "moved twice");
    });
}

/// Marks the last buffer as fetched ahead and hands the request in, as a client does that is killed
/// between any two steps.
fn ask_ahead_and_die(session: &Session, bells: &Doorbells) {
    let (buffer, slot) = model::quietly(|| (session.stage().try_free(), session.claim(SECOND)));
    let (Ok(buffer), Ok(mut slot)) = (buffer, slot) else { return };
    model::doom(20);
    let _ = slot.write(|to| {
        to[0] = buffer.index();
        Ok::<usize, Errno>(1)
    });
    buffer.fetch_ahead(&AHEAD).expect("taken");
    slot.submit_detached(0, bells, 0).expect("worker 0");
}

const AHEAD: Ahead = Ahead {
    file: OfdIndex(3),
    generation: 4,
    inode: Inode(5),
    changes: 0,
    offset: 0,
    length: 100,
    stamp: 0,
};

/// Who marks a buffer and is killed leaves it to others, whether the daemon knows of it or not; the
/// daemon never fills a buffer that is somebody else's by then.
#[test]
fn a_buffer_that_a_dead_reader_marked_comes_free() {
    model::explore(3000, || {
        let (session, bells) = (one_free(), Arc::new(Both::new()));
        let victim = {
            let (session, bells) = (Arc::clone(&session), Arc::clone(&bells));
            model::spawn(move || ask_ahead_and_die(&session, &bells.bells))
        };
        let daemon = {
            let session = Arc::clone(&session);
            model::spawn(move || {
                // It may come to the request while others look for what the dead left.
                for _ in 0..3 {
                    answer_ahead(&session);
                }
            })
        };
        let others = [(); 2].map(|()| {
            let session = Arc::clone(&session);
            model::spawn(move || {
                let stage = session.stage();
                stage.free_unasked();
                let Ok(mut buffer) = stage.try_take() else { return };
                let byte = shm::wait::thread_id() as u8;
                buffer.fill(&[byte; 8]).expect("fits");
                let mut bytes = [0; 8];
                buffer.copy_out(&mut bytes).expect("it holds them");
                assert_eq!(bytes, [byte; 8], "somebody else wrote into it");
            })
        });
        victim.join();
        daemon.join();
        for other in others {
            other.join();
        }
        model::quietly(|| {
            answer_ahead(&session);
            let slots: Vec<_> = std::iter::from_fn(|| session.claim(1).ok()).collect();
            // It has died with the request half handed in if a slot is lost, too.
            if slots.len() == SLOT_COUNT {
                session.stage().take(1).expect("the buffer is back");
            }
        });
    });
}

/// The daemon: fills the buffers that requests name, if they are still marked.
fn answer_ahead(session: &Session) {
    let pending = session.take_pending(0);
    let mut message = [0; SLOT_BYTES];
    for slot in (0..SLOT_COUNT).filter(|slot| pending & (1 << slot) != 0) {
        if session.request(slot, &mut message).is_some() {
            let at = session.stage().place(message[0], 8).expect("a buffer");
            session.stage().segment().copy_in(at, &[0xda; 8]).expect("fits");
            assert!(session.stage().fetched(message[0], Some(8)), "it was another's by then");
            session.reply(slot, b"");
        }
    }
}
