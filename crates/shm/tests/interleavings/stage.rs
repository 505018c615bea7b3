//! Buffers of a stage, and what is on its way: a buffer has one holder at a time, client or daemon,
//! though clients give up and are killed; who waits for a buffer or for the last arrival is woken.

use crate::support::{SECOND, memory};
use shm::host::{HOST_BYTES, HostSegment, VnodeIndex};
use shm::session::Session;
use shm::stage::{Pushed, SESSION_AND_STAGE_BYTES};
use shm::sync::model;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use wire::limits::STAGE_BUFFER_COUNT;
use wire::{DaemonIndex, Inode};

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
                let (inode, target) = (Inode(5), DaemonIndex(1));
                let (chunk_log2, offset, length, stamp) = (22, 0, 1, 0);
                let vnode = VnodeIndex(0);
                let pushed = Pushed { inode, vnode, target, chunk_log2, offset, length, stamp };
                buffer.push(&pushed).expect("taken");
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
