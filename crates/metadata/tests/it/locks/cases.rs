//! Single cases that chance would bring too seldom, or whose timing matters.

use crate::sim::{Answer, World};
use metadata::Input;
use wire::errno::Errno;
use wire::request::lock::{BEHIND, FLOCK, READ, UNLOCK, WAIT, WRITE};
use wire::{Credentials, Inode, Request};

const MILLISECOND: i64 = 1_000_000;

struct Case {
    world: World,
    files: Vec<Inode>,
}

impl Case {
    /// A file for each of `services` services.
    fn new(services: u16) -> Case {
        let mut world = World::daemons(services);
        let mut files = vec![Inode::NONE; usize::from(services)];
        for letter in b'a'..=b'z' {
            let directory = world.root().directory(Inode::ROOT, &[letter]).expect("made").inode;
            let file = world.root().file(directory, b"f").expect("made").inode;
            let owner = world.owner(file.shard());
            files[owner] = file;
        }
        assert!(files.iter().all(|file| !file.is_none()), "a service has no file");
        world.settle();
        Case { world, files }
    }

    /// An owner requests all bytes of a file, as its thread `thread`.
    fn ask(&mut self, (owner, thread): (u64, u64), file: usize, kind: u8, flags: u8) -> u64 {
        let inode = self.files[file];
        let (party, pid) = (owner + 1, owner as u32);
        let (start, end) = (0, u64::MAX);
        let request = Request::Lock { inode, owner, party, pid, kind, flags, start, end };
        let mut sent = self.world.prepare(Credentials::ROOT, inode.shard(), &request);
        sent.header.client_id = 1000 + owner * 10 + thread;
        self.world.send_again(&sent)
    }

    /// Time passes, and all messages arrive.
    fn pass(&mut self, nanos: i64) {
        let until = self.world.now + nanos;
        while self.world.now < until {
            self.world.now += MILLISECOND;
            for at in 0..self.world.seats.len() {
                let deadline = self.world.seats[at].service.deadline();
                if deadline.is_some_and(|deadline| deadline <= self.world.now) {
                    self.world.step(at, Input::Tick);
                }
            }
            while !self.world.queue.is_empty() {
                self.world.settle_for(1);
            }
        }
    }

    fn answer(&self, ticket: u64) -> Option<Answer> {
        self.world.answer(ticket)
    }
}

const DONE: Option<Answer> = Some(Answer::Done);
const DEADLOCK: Option<Answer> = Some(Answer::Refused(Errno::EDEADLK));

/// "One of the processes that wait for each other's `fcntl` locks gets EDEADLK"
/// (docs/semantics/sharing.md).
#[test]
fn of_a_cycle_over_many_services_only_the_youngest_is_refused_soon() {
    for services in [2, 3, 7] {
        let mut case = Case::new(services);
        let count = u64::from(services);
        for owner in 0..count {
            let taken = case.ask((owner, 0), owner as usize, WRITE, WAIT);
            assert_eq!(case.answer(taken), DONE);
        }
        let mut waits = vec![];
        for owner in 0..count {
            case.pass(MILLISECOND);
            let next = (owner + 1) % count;
            waits.push(case.ask((owner, 0), next as usize, WRITE, WAIT));
        }
        // It waits for a member of the cycle, but is not part of it.
        let outside = case.ask((count, 0), 0, READ, WAIT);
        case.pass(110 * MILLISECOND);
        let last = waits.pop().expect("somebody");
        assert_eq!(case.answer(last), DEADLOCK, "{services} services");
        case.pass(2000 * MILLISECOND);
        assert!(waits.iter().all(|wait| case.answer(*wait).is_none()), "one is enough");
        // It releases its lock, and so does each process that gets its lock then.
        for owner in (0..count).rev() {
            case.ask((owner, 0), owner as usize, UNLOCK, 0);
            case.ask((owner, 0), ((owner + 1) % count) as usize, UNLOCK, 0);
            if let Some(wait) = waits.pop() {
                assert_eq!(case.answer(wait), DONE);
            }
        }
        assert_eq!(case.answer(outside), DONE);
    }
}

#[test]
fn lost_reports_of_waits_are_repeated() {
    let mut case = Case::new(3);
    for owner in 1..3 {
        case.ask((owner, 0), owner as usize, WRITE, 0);
    }
    case.ask((1, 0), 2, WRITE, WAIT);
    let last = case.ask((2, 0), 1, WRITE, WAIT);
    for _ in 0..4 {
        case.world.now += 100 * MILLISECOND;
        for at in 0..3 {
            case.world.step(at, Input::Tick);
        }
        assert!(!case.world.queue.is_empty(), "no report");
        case.world.queue.clear();
    }
    assert_eq!(case.answer(last), None);
    case.pass(110 * MILLISECOND);
    assert_eq!(case.answer(last), DEADLOCK);
}

#[test]
fn a_cycle_that_has_dissolved_is_not_refused() {
    let mut case = Case::new(2);
    for owner in 0..2 {
        case.ask((owner, 0), owner as usize, WRITE, 0);
    }
    let first = case.ask((0, 0), 1, WRITE, WAIT);
    let second = case.ask((1, 0), 0, WRITE, WAIT);
    // The waits are reported, and then another thread of the second releases the lock that the
    // first waits for.
    case.world.now += 100 * MILLISECOND;
    for at in 0..2 {
        case.world.step(at, Input::Tick);
    }
    case.ask((1, 1), 1, UNLOCK, 0);
    assert_eq!(case.answer(first), DONE);
    case.pass(500 * MILLISECOND);
    assert_eq!(case.answer(second), None);
    case.ask((0, 0), 0, UNLOCK, 0);
    assert_eq!(case.answer(second), DONE);
}

#[test]
fn a_stream_of_readers_lets_a_writer_in() {
    for flags in [0, FLOCK] {
        let mut case = Case::new(1);
        let mut readers = vec![case.ask((10, 0), 0, READ, flags | WAIT)];
        let mut holding = std::collections::VecDeque::from([10]);
        let writer = case.ask((9, 0), 0, WRITE, flags | WAIT);
        // Each holds it for 400 ms, and another arrives every 100 ms.
        for number in 11..40 {
            case.pass(100 * MILLISECOND);
            readers.push(case.ask((number, 0), 0, READ, flags | WAIT));
            if case.answer(*readers.last().expect("one")) == DONE {
                holding.push_back(number);
            }
            if number >= 14
                && let Some(reader) = holding.pop_front()
            {
                case.ask((reader, 0), 0, UNLOCK, flags);
            }
            if case.answer(writer) == DONE {
                break;
            }
        }
        assert_eq!(case.answer(writer), DONE, "it waits for ever");
        case.ask((9, 0), 0, UNLOCK, flags);
        assert!(readers.iter().all(|reader| case.answer(*reader) == DONE), "their turn");
    }
}

#[test]
fn a_reader_that_an_earlier_waiter_depends_on_overtakes_the_writer() {
    let mut case = Case::new(1);
    case.ask((1, 0), 0, READ, FLOCK);
    let writer = case.ask((2, 0), 0, WRITE, FLOCK | WAIT);
    // The first program runs another one, and waits for its end.
    let inner = case.ask((3, 0), 0, READ, FLOCK | WAIT);
    case.pass(900 * MILLISECOND);
    assert_eq!(case.answer(inner), None, "it came later");
    case.pass(110 * MILLISECOND);
    assert_eq!(case.answer(inner), DONE, "nothing that is held is in its way");
    // Requests that do not wait, and owners that already block the waiter, are not delayed.
    let at_once = case.ask((4, 0), 0, READ, FLOCK);
    assert_eq!(case.answer(at_once), DONE);
    let again = case.ask((1, 0), 0, READ, FLOCK | WAIT);
    assert_eq!(case.answer(again), DONE);
    for owner in [1, 3, 4] {
        assert_eq!(case.answer(writer), None);
        case.ask((owner, 0), 0, UNLOCK, FLOCK);
    }
    assert_eq!(case.answer(writer), DONE);
}

#[test]
fn of_two_flock_readers_that_wait_to_write_one_succeeds() {
    let mut case = Case::new(1);
    for owner in [1, 2] {
        case.ask((owner, 0), 0, READ, FLOCK);
    }
    let first = case.ask((1, 0), 0, WRITE, FLOCK | WAIT);
    assert_eq!(case.answer(first), None);
    let second = case.ask((2, 0), 0, WRITE, FLOCK | WAIT);
    // The first released its lock when it began to wait.
    assert_eq!((case.answer(first), case.answer(second)), (None, DONE));
    case.ask((2, 0), 0, UNLOCK, FLOCK);
    assert_eq!(case.answer(first), DONE);
}

#[test]
fn of_two_flock_readers_that_try_to_write_the_second_succeeds() {
    let mut case = Case::new(1);
    for owner in [1, 2] {
        case.ask((owner, 0), 0, READ, FLOCK);
    }
    let first = case.ask((1, 0), 0, WRITE, FLOCK);
    assert_eq!(case.answer(first), Some(Answer::Refused(Errno::EAGAIN)));
    // The first loses its old lock, as on a local file system.
    let second = case.ask((2, 0), 0, WRITE, FLOCK);
    assert_eq!(case.answer(second), DONE);
}

#[test]
fn a_repeated_unlock_releases_no_later_lock() {
    let mut case = Case::new(1);
    let inode = case.files[0];
    case.ask((1, 0), 0, WRITE, 0);
    let (kind, flags, start, end) = (UNLOCK, 0, 0, u64::MAX);
    let (owner, party, pid) = (1, 1, 1);
    let request = Request::Lock { inode, owner, party, pid, kind, flags, start, end };
    let mut sent = case.world.prepare(Credentials::ROOT, inode.shard(), &request);
    sent.header.client_id = 77;
    case.world.send_again(&sent);
    // Its answer is lost with the service; another thread of the process takes the lock anew.
    case.world.crash(0);
    let anew = case.ask((1, 1), 0, WRITE, 0);
    assert_eq!(case.answer(anew), DONE);
    let repeated = case.world.send_again(&sent);
    assert_eq!(case.answer(repeated), DONE);
    let other = case.ask((2, 0), 0, READ, 0);
    assert_eq!(case.answer(other), Some(Answer::Refused(Errno::EAGAIN)));
}

/// Too many readers to be noted with each waiter.
const MANY: u64 = 200;

#[test]
fn reports_of_a_wide_conflict_are_bounded_and_a_cycle_in_it_is_found() {
    let mut case = Case::new(2);
    let collector = case.world.owner(wire::ShardIndex(0));
    let (wide, other) = (1 - collector, collector);
    for reader in 0..MANY {
        case.ask((reader, 0), wide, READ, 0);
    }
    let writers = MANY..2 * MANY;
    let waits: Vec<u64> = writers.map(|one| case.ask((one, 0), wide, WRITE, WAIT)).collect();
    // The first writer and the last reader wait for each other.
    case.ask((MANY, 1), other, WRITE, 0);
    let last = case.ask((MANY - 1, 1), other, READ, WAIT);
    case.world.now += 100 * MILLISECOND;
    case.world.step(wide, Input::Tick);
    let reported: usize = case.world.queue.iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(0 < reported && reported < 64 * 48 * MANY as usize, "{reported} bytes");
    for reader in 0..MANY - 1 {
        case.ask((reader, 0), wide, UNLOCK, 0);
    }
    case.pass(300 * MILLISECOND);
    assert_eq!(case.answer(last), DEADLOCK);
    assert!(waits.iter().all(|&wait| case.answer(wait).is_none()), "one is enough");
}

/// A client that would wait first asks without waiting, and overtakes no waiter.
#[test]
fn a_nonwaiting_request_behind_waiters_gets_nothing_before_them() {
    let mut case = Case::new(1);
    let taken = case.ask((1, 0), 0, READ, BEHIND);
    assert_eq!(case.answer(taken), DONE);
    let writer = case.ask((2, 0), 0, WRITE, WAIT);
    assert_eq!(case.answer(writer), None);
    let behind = case.ask((3, 0), 0, READ, BEHIND);
    assert_eq!(case.answer(behind), Some(Answer::Refused(Errno::EAGAIN)));
    let past = case.ask((4, 0), 0, READ, 0);
    assert_eq!(case.answer(past), DONE);
    for reader in [1, 4] {
        let given = case.ask((reader, 1), 0, UNLOCK, BEHIND);
        assert_eq!(case.answer(given), DONE);
    }
    assert_eq!(case.answer(writer), DONE);
}
