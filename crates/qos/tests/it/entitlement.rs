//! Shares to which jobs are entitled: examples, any set of jobs, and the scheduler beside a plain queue.

use proptest::prelude::*;
use qos::entitlement::{Contender, ShareRecord, WINDOW_PERIODS, entitled};
use qos::scheduler::{Options, Request, Scheduler, Work};
use std::collections::VecDeque;

fn job(user: u32, weight: u32, waits: bool, served: u64) -> Contender {
    Contender { user: (user, 100), weight, waits, served }
}

#[test]
fn users_share_equally_then_their_jobs_and_what_one_leaves_is_divided() {
    // One job that waits beside two of another user.
    let jobs = [job(1, 100, true, 10), job(2, 100, true, 50), job(2, 100, true, 60)];
    assert_eq!(entitled(&jobs), [60, 30, 30]);
    // By weight.
    let jobs = [job(1, 300, true, 0), job(1, 100, true, 80)];
    assert_eq!(entitled(&jobs), [60, 20]);
    // The first asks for no more than it got.
    let jobs = [job(1, 100, false, 10), job(2, 100, true, 90), job(3, 100, true, 20)];
    assert_eq!(entitled(&jobs), [10, 55, 55]);
    // One that waits for nothing may have got more than its part.
    let jobs = [job(1, 100, false, 90), job(2, 100, true, 10)];
    assert_eq!(entitled(&jobs), [50, 50]);
    // Of one user one job waits: it gets what the other leaves.
    let jobs = [job(1, 100, false, 5), job(1, 100, true, 15), job(2, 100, true, 60)];
    assert_eq!(entitled(&jobs), [5, 35, 40]);
    // One that asks for nothing takes nothing.
    assert_eq!(entitled(&[job(1, 100, false, 0), job(2, 100, true, 60)]), [0, 60]);
    assert_eq!(entitled(&[]), [0; 0]);
    assert_eq!(entitled(&[job(1, 100, true, 0)]), [0]);
}

#[test]
fn a_window_says_something_only_if_the_job_waited_in_it() {
    let mut record = ShareRecord::default();
    let mut window = |times: &dyn Fn(u32) -> Option<(u64, u64)>| {
        let sums = (0..WINDOW_PERIODS).filter_map(|period| record.note(times(period))).last();
        assert_eq!(
            sums.is_some(),
            record.percent().is_some(),
            "sums are of windows that say something"
        );
        (record.percent(), record.is_short())
    };
    assert_eq!(window(&|_| Some((79, 100))), (Some(79), true));
    assert_eq!(window(&|_| Some((80, 100))), (Some(80), false));
    assert_eq!(window(&|_| None), (None, false));
    assert_eq!(window(&|period| (period == 0).then_some((0, 100))), (None, false));
    assert_eq!(window(&|period| (period % 4 == 0).then_some((10, 100))), (Some(10), true));
    assert_eq!(window(&|_| Some((0, 0))), (None, false));
    assert_eq!(
        window(&|_| Some((u64::MAX, 1))),
        (Some(u64::MAX), false),
        "sums end at the largest number"
    );
}

proptest! {
    #[test]
    fn no_more_is_divided_than_was_served_and_one_that_waits_loses_nothing_to_idle_ones(
        jobs in proptest::collection::vec(
            (0_u32..5, 1_u32..10_000, any::<bool>(), 0_u64..1 << 40), 0..20),
    ) {
        let jobs = jobs.into_iter();
        let jobs: Vec<_> =
            jobs.map(|(user, weight, waits, served)| job(user, weight, waits, served)).collect();
        let parts = entitled(&jobs);
        let total: u64 = jobs.iter().map(|one| one.served).sum();
        prop_assert!(parts.iter().sum::<u64>() <= total);
        for (one, &part) in jobs.iter().zip(&parts) {
            prop_assert!(one.waits || part <= one.served);
        }
        // All is divided while somebody waits, but for the rests of divisions.
        if jobs.iter().any(|one| one.waits) {
            prop_assert!(parts.iter().sum::<u64>() + 2 * jobs.len() as u64 >= total);
        }
    }
}

/// Requests of 256 KiB in flight at the device.
const DEPTH: usize = 4;

/// Percentages of their shares that a job with `few` and one of another user with `many` requests get,
/// if the next request is chosen by `scheduler`, or in order of arrival.
fn percentages(mut scheduler: Option<Scheduler>, [few, many]: [usize; 2]) -> [Option<u64>; 2] {
    let request = |user: u32, token: u64| Request {
        user,
        job: 1,
        work: Work::Write,
        bytes: 256 << 10,
        token,
    };
    let mut queue = VecDeque::new();
    let mut device = VecDeque::new();
    let mut waiting = [0_i64; 2];
    let mut records = [ShareRecord::default(); 2];
    let mut now = 0;
    let start: Vec<u32> = std::iter::repeat_n(2, many).chain(std::iter::repeat_n(1, few)).collect();
    let mut arrivals: VecDeque<u32> = start.into();
    for _ in 0..WINDOW_PERIODS {
        let mut served = [0_u64; 2];
        for _ in 0..100 {
            for user in arrivals.drain(..) {
                waiting[user as usize - 1] += 1;
                match &mut scheduler {
                    Some(scheduler) => drop(scheduler.push(now, request(user, 0)).expect("space")),
                    None => queue.push_back(user),
                }
            }
            while device.len() < DEPTH {
                let (user, ticket) = match &mut scheduler {
                    Some(scheduler) => {
                        let Some(started) = scheduler.pop(now) else { break };
                        (started.request.user, Some(started.ticket))
                    }
                    None => match queue.pop_front() {
                        Some(user) => (user, None),
                        None => break,
                    },
                };
                waiting[user as usize - 1] -= 1;
                served[user as usize - 1] += 1000;
                device.push_back((user, ticket));
            }
            now += 1_000_000;
            let (user, ticket) = device.pop_front().expect("a request");
            if let (Some(scheduler), Some(ticket)) = (&mut scheduler, ticket) {
                scheduler.complete(now, ticket);
            }
            arrivals.push_back(user);
        }
        let jobs = [1, 2]
            .map(|user| job(user, 100, waiting[user as usize - 1] > 0, served[user as usize - 1]));
        for ((record, part), one) in records.iter_mut().zip(entitled(&jobs)).zip(&jobs) {
            record.note(one.waits.then_some((one.served, part)));
        }
    }
    records.map(|record| record.percent())
}

#[test]
fn the_scheduler_gives_each_its_share_and_a_plain_queue_is_found_out() {
    let options = Options {
        depth: DEPTH as u32 + 8,
        large_bytes: 32 << 10,
        large_in_flight_max: DEPTH as u32,
        requests_max: 1 << 10,
        requests_user_max: 1 << 10,
        metadata_percent: 50,
    };
    let scheduler = || Some(Scheduler::new(options).expect("options"));
    for sizes in [[8, 8], [8, 100]] {
        for percent in percentages(scheduler(), sizes) {
            assert!((95..=105).contains(&percent.expect("it waits")), "{sizes:?}: {percent:?}");
        }
    }
    let [few, many] = percentages(None, [8, 100]);
    assert!(few.expect("it waits") < 20, "{few:?}");
    assert!(many.expect("it waits") > 180, "{many:?}");
}
