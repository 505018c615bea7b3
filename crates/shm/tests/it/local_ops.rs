//! The operation log between a daemon, which maps all of it, and clients, which map their own part.

use rustix::fd::AsFd as _;
use shm::Segment;
use shm::local_ops::{LocalOpId, OP_LOG_BYTES, OpLog, ServedUntil, Tentative};
use shm::session::SESSION_COUNT_MAX;
use shm::wait::steady_nanos;
use wire::id::LOCAL_OP_SEQUENCE_FIRST;
use wire::limits::WORKER_COUNT_MAX;
use wire::{Errno, ShardIndex};

#[test]
fn a_client_that_maps_its_own_operations_is_served_as_one_that_maps_all() {
    const WORKER: usize = 3;
    let (segment, file) = Segment::nameless(c"test", OP_LOG_BYTES).expect("nameless memory");
    let daemon = OpLog::new(segment).expect("long enough");
    daemon.open_gate(WORKER, &[]);
    let last = SESSION_COUNT_MAX as u16 - 1;
    for session in [0, 1, 700, last] {
        daemon.note_session(session).expect("memory");
        let client = OpLog::of_session(file.as_fd(), session).expect("a mapping");
        assert!(client.is_open(WORKER) && !client.has_any(WORKER), "the gates are mapped");
        let key = u64::from(session) << 40 | 1 << 30;
        let mut pending = client.claim(session, WORKER).expect("a slot");
        let write = |bytes: &mut [u8]| {
            bytes[..2].copy_from_slice(&session.to_le_bytes());
            Ok::<_, Errno>(2)
        };
        pending.write(write).expect("it fits");
        assert_eq!(pending.announce(key), Ok(true));
        assert!(daemon.is_pending(WORKER, key) && client.is_pending(WORKER, key));
        assert!(pending.commit());
        assert_eq!(client.waiting(session, WORKER), 1);

        let mut found: Vec<LocalOpId> = Vec::new();
        daemon.collect(WORKER, Tentative::Leave, &mut |id| found.push(id));
        assert_eq!(found.iter().map(|id| id.session).collect::<Vec<_>>(), [session]);
        let mut bytes = [0; wire::local_op::LOCAL_OP_BYTES_MAX];
        assert_eq!(daemon.read(found[0], &mut bytes), Some(2));
        assert_eq!(bytes[..2], session.to_le_bytes());

        // Of others a client knows that they announced something, and no more.
        let other = OpLog::of_session(file.as_fd(), 5).expect("a mapping");
        assert!(other.has_any_of_others(5, WORKER) && !client.has_any_of_others(session, WORKER));
        assert!(other.claim(session, WORKER).is_none(), "the slots of another session");
        assert_eq!(other.waiting(session, WORKER), 0);

        daemon.finish(found[0]);
        daemon.settle(WORKER);
        assert!(!client.has_any(WORKER) && !other.has_any_of_others(5, WORKER));
        assert!(!client.is_pending(WORKER, key));
    }
    assert_eq!(OpLog::of_session(file.as_fd(), last + 1).err(), Some(Errno::EINVAL));
    let (_, short) = Segment::nameless(c"test", OP_LOG_BYTES - 4096).expect("nameless memory");
    assert_eq!(OpLog::of_session(short.as_fd(), last).err(), Some(Errno::EINVAL));
}

#[test]
fn a_client_learns_until_when_a_service_is_served() {
    const WORKER: usize = WORKER_COUNT_MAX - 1;
    let (segment, file) = Segment::nameless(c"test", OP_LOG_BYTES).expect("nameless memory");
    let daemon = OpLog::new(segment).expect("long enough");
    daemon.note_session(9).expect("memory");
    let client = OpLog::of_session(file.as_fd(), 9).expect("a mapping");
    let until = |worker| client.served(worker).until();
    assert_eq!(until(WORKER), ServedUntil::ALWAYS, "services stay, unless a daemon says otherwise");
    assert!(until(WORKER).holds());
    let second = 1_000_000_000;
    daemon.served(WORKER).set(ServedUntil::at(steady_nanos() + 3600 * second));
    let taken = until(WORKER);
    assert!(taken.holds() && taken != ServedUntil::ALWAYS);
    // A word that was taken before stays a promise: no other daemon serves until then.
    daemon.served(WORKER).set(ServedUntil::NEVER);
    assert!(taken.holds() && !until(WORKER).holds());
    for past in [steady_nanos(), 1, 0, i64::MIN] {
        daemon.served(WORKER).set(ServedUntil::at(past));
        assert!(!until(WORKER).holds() && until(WORKER) != ServedUntil::ALWAYS, "{past}");
    }
    assert_eq!(until(0), ServedUntil::ALWAYS);
    daemon.served(WORKER).set(ServedUntil::ELSEWHERE);
    assert!(until(WORKER) == ServedUntil::ELSEWHERE && !until(WORKER).holds());
    assert_eq!(ServedUntil::at(2), ServedUntil::NEVER, "no time is taken for it");
    assert!(!until(WORKER_COUNT_MAX).holds(), "there is no such worker");
}

#[test]
fn numbers_that_are_granted_anew_end_the_rest_of_an_earlier_grant() {
    let (segment, _) = Segment::nameless(c"test", OP_LOG_BYTES).expect("nameless memory");
    let op_log = OpLog::new(segment).expect("long enough");
    let (shard, first) = (ShardIndex(3), LOCAL_OP_SEQUENCE_FIRST + 10);
    op_log.grant_numbers(shard, first, first + 4);
    assert_eq!(op_log.take_number(shard), Some(first));
    op_log.grant_numbers(shard, first + 4, first + 8);
    assert_eq!(op_log.take_number(shard), Some(first + 1), "the rest of an earlier grant");
    op_log.renew_numbers(shard, first + 100, first + 102);
    assert_eq!(op_log.numbers_left(shard), 2);
    let taken = [(); 3].map(|()| op_log.take_number(shard));
    assert_eq!(taken, [Some(first + 100), Some(first + 101), None]);
    // A daemon that starts again does not know how far clients have come.
    op_log.renew_numbers(shard, first + 200, first + 204);
    assert_eq!(op_log.take_number(shard), Some(first + 200));
    op_log.renew_numbers(shard, first + 150, first + 160);
    assert_eq!(op_log.take_number(shard), Some(first + 201), "no number comes twice");
    assert_eq!(op_log.take_number(ShardIndex(4)), None, "of another shard");
}
