//! Bounce buffers and writes on their way: a buffer has one holder at a time, client or daemon,
//! though clients give up and are killed; a waiter for a buffer or for the last arrival is woken.

use crate::support::{Both, SECOND, memory};
use shm::bounce::{
    Pushed, Readahead, SESSION_WITH_BUFFERS_BYTES, SessionPushes, recount_lost_pushes,
};
use shm::host::{HOST_BYTES, HostSegment, OfdIndex, PushEpoch, VnodeIndex};
use shm::session::{Doorbells, Session};
use shm::sync::model;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use wire::limits::{BOUNCE_BUFFER_COUNT, SLOT_BYTES, SLOT_COUNT};
use wire::{DaemonIndex, Errno, Inode};

/// A session with one free buffer.
fn one_free() -> Arc<Session> {
    let session = Session::new(memory(SESSION_WITH_BUFFERS_BYTES)).expect("long enough");
    model::uninterrupted(|| {
        let taken: Vec<_> =
            (1..BOUNCE_BUFFER_COUNT).map(|_| session.bounce_buffers().try_take()).collect();
        taken.into_iter().for_each(std::mem::forget);
    });
    Arc::new(session)
}

/// As `one_free`, with the first one free: few steps are spent on others.
fn one_first() -> Arc<Session> {
    let session = Session::new(memory(SESSION_WITH_BUFFERS_BYTES)).expect("long enough");
    model::uninterrupted(|| {
        let first = session.bounce_buffers().try_take();
        (1..BOUNCE_BUFFER_COUNT)
            .for_each(|_| std::mem::forget(session.bounce_buffers().try_take()));
        drop(first);
    });
    Arc::new(session)
}

/// The last one: all before it are taken.
const FREE: u8 = BOUNCE_BUFFER_COUNT as u8 - 1;

#[test]
fn a_buffer_has_one_holder_and_a_waiter_gets_it() {
    model::explore(2000, || {
        let session = one_free();
        let holders = Arc::new(AtomicU32::new(0));
        // Lends it and gives it up, perhaps by dying; the daemon gives it back at any time after.
        let gives_up = {
            let (session, holders) = (Arc::clone(&session), Arc::clone(&holders));
            model::spawn(move || {
                let mut buffer = session.bounce_buffers().take(SECOND, || true).expect("a buffer");
                assert_eq!(holders.fetch_add(1, Ordering::Relaxed), 0, "two hold one buffer");
                buffer.lend().expect("taken");
                let daemon = {
                    let (session, holders) = (Arc::clone(&session), Arc::clone(&holders));
                    model::spawn(move || {
                        holders.fetch_sub(1, Ordering::Relaxed);
                        session.bounce_buffers().give_back(FREE);
                    })
                };
                drop(buffer);
                daemon.join();
            })
        };
        let waits = {
            let (session, holders) = (Arc::clone(&session), Arc::clone(&holders));
            model::spawn(move || {
                let buffer = session.bounce_buffers().take(SECOND, || true).expect("a buffer");
                assert_eq!(holders.fetch_add(1, Ordering::Relaxed), 0, "two hold one buffer");
                holders.fetch_sub(1, Ordering::Relaxed);
                drop(buffer);
            })
        };
        gives_up.join();
        waits.join();
        let last = model::uninterrupted(|| {
            session.bounce_buffers().try_take().map(|buffer| buffer.index())
        });
        assert_eq!(last, Ok(FREE), "the buffer is lost");
    });
}

/// A buffer that a thread pushed before it died is the daemon's until the daemon is done with it,
/// then another thread's.
#[test]
fn a_buffer_pushed_by_a_dead_thread_has_one_holder() {
    model::explore(30_000, || {
        let session = one_first();
        let pushes = {
            let session = Arc::clone(&session);
            model::spawn(move || {
                let buffer = model::uninterrupted(|| session.bounce_buffers().try_free());
                // The other may have been first.
                let Ok(buffer) = buffer else { return false };
                buffer.describe(&PUSHED).and_then(|()| buffer.push(EPOCH)).expect("taken");
                true
            })
        };
        let other = {
            let session = Arc::clone(&session);
            model::spawn(move || {
                session.bounce_buffers().take(0, || true).map(std::mem::forget).is_ok()
            })
        };
        let mut mine = None;
        if pushes.join() == Some(true) && session.bounce_buffers().begin_moving(0).is_some() {
            session.bounce_buffers().give_back(0);
            mine = session.bounce_buffers().try_free().ok();
        }
        let theirs = other.join() == Some(true);
        assert!(mine.is_none() || !theirs, "two hold one buffer");
    });
}

/// That of an open inode of a new segment.
const EPOCH: PushEpoch = PushEpoch(1);

const PUSHED: Pushed = Pushed {
    inode: Inode(5),
    vnode: VnodeIndex(0),
    target: DaemonIndex(1),
    stripe_log2: 22,
    offset: 0,
    length: 1,
    stamp: 0,
};

/// Takes the free buffer, and pushes a write whose byte tells its offset.
fn push_offset(session: &Session, offset: u8) {
    let taken = model::uninterrupted(|| session.bounce_buffers().try_free());
    let mut buffer = taken.expect("a buffer");
    buffer.fill(&[offset]).expect("fits");
    buffer.describe(&Pushed { offset: offset.into(), ..PUSHED }).expect("taken");
    buffer.push(EPOCH).expect("taken");
}

/// Two threads resubmit what was pushed to a dead daemon; one of them pushes again through the same
/// buffer meanwhile.
#[test]
fn a_buffer_that_is_taken_back_holds_what_its_description_says() {
    model::explore(10_000, || {
        let session = one_free();
        model::uninterrupted(|| push_offset(&session, 1));
        let takes = |then_pushes: bool| {
            let session = Arc::clone(&session);
            model::spawn(move || {
                let buffers = session.bounce_buffers();
                let Some((buffer, lost)) = buffers.take_pushed(usize::from(FREE)) else {
                    return;
                };
                let mut byte = [0];
                buffer.copy_out(&mut byte).expect("it holds it");
                assert_eq!(
                    u64::from(byte[0]),
                    lost.pushed.offset,
                    "the description of another write"
                );
                drop(buffer);
                if then_pushes {
                    push_offset(&session, 2);
                }
            })
        };
        let (one, other) = (takes(true), takes(false));
        one.join();
        other.join();
    });
}

/// Its thread ended before the daemon died: that is no reason to take it from the thread that
/// resubmits it.
#[test]
fn a_buffer_that_is_taken_back_is_not_taken_over() {
    model::explore(10_000, || {
        let session = one_free();
        let pushes = {
            let session = Arc::clone(&session);
            model::spawn(move || push_offset(&session, 1))
        };
        pushes.join();
        let takes_over = {
            let session = Arc::clone(&session);
            model::spawn(move || {
                session.bounce_buffers().take(0, || true).map(std::mem::forget).is_ok()
            })
        };
        let back = session.bounce_buffers().take_pushed(usize::from(FREE));
        assert_eq!(takes_over.join(), Some(false), "two hold one buffer");
        drop(back.expect("nobody else resubmits it"));
    });
}

/// As before, but it is pushed again in between, by a thread that ends.
#[test]
fn a_buffer_that_was_taken_back_before_has_one_holder() {
    model::explore(30_000, || {
        let session = one_first();
        model::uninterrupted(|| push_offset(&session, 1));
        let again = {
            let session = Arc::clone(&session);
            // Each at one moment between two steps of the main thread.
            let pushes_again = move || {
                let taken = session.bounce_buffers().take_pushed(0).map(drop);
                if taken.is_some() {
                    push_offset(&session, 2);
                }
            };
            model::spawn(move || model::uninterrupted(pushes_again))
        };
        let takes_over = {
            let session = Arc::clone(&session);
            model::spawn(move || {
                again.join();
                let takes =
                    || session.bounce_buffers().take(0, || true).map(std::mem::forget).is_ok();
                model::uninterrupted(takes)
            })
        };
        let mine = session.bounce_buffers().take_pushed(0);
        let theirs = takes_over.join() == Some(true);
        assert!(mine.is_none() || !theirs, "two hold one buffer");
    });
}

#[test]
fn a_pushed_buffer_is_moved_once_and_its_waiter_is_woken() {
    model::explore(2000, || {
        let session = one_free();
        let host = Arc::new(HostSegment::new(memory(HOST_BYTES)).expect("fresh"));
        let index = model::uninterrupted(|| host.vnode_open(Inode(5)).expect("space"));
        let arrived = Arc::new(AtomicU32::new(0));
        {
            let vnode = host.vnode(index).expect("open");
            model::uninterrupted(|| assert_eq!(vnode.begin_push(1), Some(EPOCH)));
        }
        let client = {
            let session = Arc::clone(&session);
            model::spawn(move || {
                let buffer = session.bounce_buffers().take(SECOND, || true).expect("a buffer");
                buffer.describe(&PUSHED).and_then(|()| buffer.push(EPOCH)).expect("taken");
            })
        };
        client.join();
        // The worker that was told, and the thread that saw the end of the session.
        let movers = [(); 2].map(|()| {
            let (session, host, arrived) =
                (Arc::clone(&session), Arc::clone(&host), Arc::clone(&arrived));
            model::spawn(move || {
                if session.bounce_buffers().begin_moving(FREE).is_some() {
                    arrived.fetch_add(1, Ordering::Relaxed);
                    host.vnode(index).expect("open").end_push(EPOCH, Ok(()));
                    session.bounce_buffers().give_back(FREE);
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
                drop(session.bounce_buffers().take(SECOND, || true).expect("a buffer"));
            })
        };
        for mover in movers {
            let _ = mover.join();
        }
        waits.join();
        assert_eq!(arrived.load(Ordering::Relaxed), 1, "moved twice");
    });
}

/// Marks the last buffer for readahead and submits the request, like a client that is killed
/// between any two steps.
fn submit_readahead_and_die(session: &Session, bells: &Doorbells) {
    let (buffer, slot) =
        model::uninterrupted(|| (session.bounce_buffers().try_free(), session.claim(SECOND)));
    let (Ok(buffer), Ok(mut slot)) = (buffer, slot) else { return };
    model::kill_after(20);
    let _ = slot.write(|to| {
        to[0] = buffer.index();
        Ok::<usize, Errno>(1)
    });
    buffer.submit_readahead(&AHEAD).expect("taken");
    slot.submit_detached(0, bells, 0).expect("worker 0");
}

const AHEAD: Readahead = Readahead {
    file: OfdIndex(3),
    generation: 4,
    inode: Inode(5),
    changes: 0,
    offset: 0,
    length: 100,
    stamp: 0,
};

/// A client that marks a buffer and is killed leaves it to others, whether the daemon knows of it
/// or not; the daemon never fills a buffer that has another owner by then.
#[test]
fn a_readahead_buffer_of_a_dead_reader_is_freed() {
    model::explore(3000, || {
        let (session, bells) = (one_free(), Arc::new(Both::new()));
        let victim = {
            let (session, bells) = (Arc::clone(&session), Arc::clone(&bells));
            model::spawn(move || submit_readahead_and_die(&session, &bells.bells))
        };
        let daemon = {
            let session = Arc::clone(&session);
            model::spawn(move || {
                // The daemon may see the request while others search for buffers of dead threads.
                for _ in 0..3 {
                    answer_readahead(&session);
                }
            })
        };
        let others = [(); 2].map(|()| {
            let session = Arc::clone(&session);
            model::spawn(move || {
                let buffers = session.bounce_buffers();
                buffers.free_unsubmitted();
                let Ok(mut buffer) = buffers.try_take() else { return };
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
        model::uninterrupted(|| {
            answer_readahead(&session);
            let slots: Vec<_> = std::iter::from_fn(|| session.claim(0).ok()).collect();
            // It died with the request half submitted if a slot is lost, too.
            if slots.len() == SLOT_COUNT {
                session.bounce_buffers().take(0, || true).expect("the buffer is back");
            }
        });
    });
}

/// The daemon: fills the buffers that requests name, if they are still marked.
fn answer_readahead(session: &Session) {
    let pending = session.take_pending(0);
    let mut message = [0; SLOT_BYTES];
    for slot in (0..SLOT_COUNT).filter(|slot| pending & (1 << slot) != 0) {
        if session.request(slot, &mut message).is_some() {
            let at = session.bounce_buffers().offset_of(message[0], 8).expect("a buffer");
            session.bounce_buffers().segment().copy_in(at, &[0xda; 8]).expect("fits");
            assert!(
                session.bounce_buffers().complete_readahead(message[0], Some(8)),
                "it was another's by then"
            );
            session.reply(slot, b"");
        }
    }
}

/// Counts a write of one session and hands it over, as a client does that may be killed.
fn push_one(session: &Session, host: &HostSegment, index: VnodeIndex) {
    let vnode = host.vnode(index).expect("open");
    loop {
        let taken = model::uninterrupted(|| session.bounce_buffers().try_free());
        let buffer = taken.expect("a buffer");
        buffer.describe(&Pushed { vnode: index, ..PUSHED }).expect("taken");
        buffer.begin_counting().expect("taken");
        if let Some(epoch) = vnode.begin_push(1) {
            return buffer.push(epoch).expect("taken");
        }
        buffer.end_counting().expect("taken");
        drop(buffer);
        while !vnode.wait_pushed(SECOND) {}
    }
}

/// One client is killed at any step of a push, another lives: recounting leaves exactly what is on
/// its way.
#[test]
fn a_write_that_was_counted_and_not_handed_over_is_recounted() {
    model::explore(3000, || {
        let (dead, lives) = (one_free(), one_free());
        let host = Arc::new(HostSegment::new(memory(HOST_BYTES)).expect("fresh"));
        let index = model::uninterrupted(|| host.vnode_open(PUSHED.inode).expect("space"));
        let spawn = |session: &Arc<Session>, steps: Option<u32>| {
            let (session, host) = (Arc::clone(session), Arc::clone(&host));
            model::spawn(move || {
                if let Some(steps) = steps {
                    model::kill_after(steps);
                }
                push_one(&session, &host, index);
            })
        };
        let (victim, other) = (spawn(&dead, Some(16)), spawn(&lives, None));
        let mover = {
            let (lives, host) = (Arc::clone(&lives), Arc::clone(&host));
            model::spawn(move || {
                if lives.bounce_buffers().begin_moving(FREE).is_some() {
                    let vnode = host.vnode(index).expect("open");
                    assert!(vnode.has_pending(), "a write on its way is not counted");
                    lives.bounce_buffers().begin_ending(FREE);
                    vnode.end_push(EPOCH, Ok(()));
                    lives.bounce_buffers().give_back(FREE);
                }
            })
        };
        victim.join();
        let recount = || {
            let sessions = [(&dead, true), (&lives, false)].map(|(session, is_closed)| {
                SessionPushes { buffers: session.bounce_buffers(), is_closed }
            });
            recount_lost_pushes(&host, 1, &sessions)
        };
        let _ = recount();
        other.join();
        mover.join();
        assert!(recount(), "no living thread counts");
        // The writes that both had handed over arrive.
        let vnode = host.vnode(index).expect("open");
        for session in [&dead, &lives] {
            if session.bounce_buffers().begin_moving(FREE).is_some() {
                assert!(vnode.has_pending(), "a write on its way is not counted");
                session.bounce_buffers().begin_ending(FREE);
                vnode.end_push(EPOCH, Ok(()));
                session.bounce_buffers().give_back(FREE);
            }
        }
        assert!(!vnode.has_pending(), "a count is left");
        assert!(dead.bounce_buffers().try_take().is_ok() || !dead.bounce_buffers().has_pushes());
    });
}
