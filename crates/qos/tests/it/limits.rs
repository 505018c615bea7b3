//! Caps, minima, admission, faults and lies, in simulation.

use crate::device::{Device, SECOND, Simulation, moved, options, write};
use proptest::prelude::*;
use qos::bucket::Bucket;
use qos::cost::CostModel;
use qos::scheduler::{
    Class, Full, JOBS_MAX, Limits, LimitsError, Options, Request, Scheduler, Ticket, USERS_MAX,
    Work,
};

const PLAIN: Device = Device { latency_nanos: 0.0, bytes_per_nano: 2.0 };
const MILLISECOND: u64 = SECOND / 1000;

fn request(user: u32, job: u64, work: Work, bytes: u64) -> Request {
    Request { user, job, work, bytes, token: u64::from(user) }
}

fn scheduler(options: Options) -> Scheduler {
    Scheduler::new(options).expect("options within their bounds")
}

#[test]
fn a_cap_holds_and_the_rest_goes_to_others() {
    let mut simulation = Simulation::new(
        options(),
        PLAIN,
        vec![write(1, 1, 64 << 10, 32), write(2, 1, 1 << 20, 16)],
    );
    let limits = Limits { bytes_per_second_max: 300_000_000, ..Limits::default() };
    simulation.scheduler.set_user(0, 1, limits).expect("limits");
    let moved = moved(&mut simulation, SECOND, 5 * SECOND);
    assert!((moved[0] - 1.2e9).abs() <= 0.02 * 1.2e9, "{moved:?}");
    assert!(moved[0] + moved[1] >= 0.98 * 8e9, "{moved:?}");
}

#[test]
fn a_capped_job_alone_gets_its_rate_of_operations() {
    let mut simulation = Simulation::new(options(), PLAIN, vec![write(1, 9, 4 << 10, 32)]);
    let limits = Limits { operations_per_second_max: 1_000, ..Limits::default() };
    simulation.scheduler.set_job(0, 1, 9, limits).expect("limits");
    let moved = moved(&mut simulation, SECOND, 5 * SECOND);
    let operations = moved[0] / 4096.0;
    assert!((operations - 4_000.0).abs() <= 40.0, "{operations}");
}

#[test]
fn a_cap_that_opens_gives_no_credit_for_the_time_before() {
    let mut simulation =
        Simulation::new(options(), PLAIN, vec![write(1, 1, 1 << 20, 16), write(2, 1, 1 << 20, 16)]);
    let cap = Limits { bytes_per_second_max: 100_000_000, ..Limits::default() };
    simulation.scheduler.set_user(0, 1, cap).expect("limits");
    simulation.run(5 * SECOND);
    simulation.scheduler.set_user(5 * SECOND, 1, Limits::default()).expect("limits");
    let moved = moved(&mut simulation, 5 * SECOND + 50 * MILLISECOND, 6 * SECOND);
    assert!((moved[0] - moved[1]).abs() <= 0.04 * moved[1], "{moved:?}");
}

#[test]
fn a_minimum_is_met_before_shares() {
    let mut programs = vec![write(1, 1, 1 << 20, 16)];
    programs.extend((2..12).map(|user| write(user, 1, 1 << 20, 16)));
    let mut simulation = Simulation::new(options(), PLAIN, programs);
    // An equal share is 182 MB/s.
    let limits = Limits { bytes_per_second_min: 1_000_000_000, ..Limits::default() };
    simulation.scheduler.set_user(0, 1, limits).expect("limits");
    let moved = moved(&mut simulation, SECOND, 4 * SECOND);
    assert!((moved[0] - 3e9).abs() <= 0.05 * 3e9, "{moved:?}");
    for other in &moved[1..] {
        assert!((other - 3e8).abs() <= 0.1 * 3e8, "{moved:?}");
    }
}

#[test]
fn a_user_with_a_thousand_jobs_gets_one_share_and_bounded_memory() {
    let mut programs = vec![write(1, 1, 64 << 10, 32)];
    programs.extend((0..1_000).map(|job| write(2, job, 64 << 10, 1)));
    let mut simulation = Simulation::new(options(), PLAIN, programs);
    let moved = moved(&mut simulation, SECOND / 2, SECOND);
    let other: f64 = moved[1..].iter().sum();
    assert!((moved[0] - other).abs() <= 0.04 * other, "{} and {other}", moved[0]);
    let known = (0..1_000).filter(|&job| simulation.scheduler.job_usage(2, job).is_some()).count();
    assert!(known <= JOBS_MAX, "{known} jobs are told apart");
}

#[test]
fn a_user_that_claims_another_users_job_gets_its_own_share() {
    // User 2 says that it is job 1 of user 1, whose weight is high.
    let programs = vec![write(1, 1, 64 << 10, 32), write(2, 1, 64 << 10, 32)];
    let mut simulation = Simulation::new(options(), PLAIN, programs);
    let limits = Limits { weight: 10_000, ..Limits::default() };
    simulation.scheduler.set_job(0, 1, 1, limits).expect("limits");
    let moved = moved(&mut simulation, SECOND / 2, SECOND);
    assert!((moved[0] - moved[1]).abs() <= 0.04 * moved[1], "{moved:?}");
}

/// Two users run jobs under rules by tags. One gives all of its requests the tag of the other's rule,
/// which has a hundred times the weight, and spreads them over many jobs that it invents.
#[test]
fn a_tag_that_lies_divides_its_own_users_share() {
    let lies = (0..8).map(|job| write(2, job, 64 << 10, 8));
    let programs = [write(1, 100, 64 << 10, 32), write(2, 200, 64 << 10, 32)].into_iter();
    let mut simulation = Simulation::new(options(), PLAIN, programs.chain(lies).collect());
    let heavy = Limits { weight: 10_000, ..Limits::default() };
    simulation.scheduler.set_job(0, 1, 100, heavy).expect("limits");
    (0..8).for_each(|job| simulation.scheduler.set_job(0, 2, job, heavy).expect("limits"));
    let moved = moved(&mut simulation, SECOND / 2, SECOND);
    let (honest, own) = (moved[0], moved[1..].iter().sum::<f64>());
    assert!((honest - own).abs() <= 0.04 * honest, "the other user loses nothing: {moved:?}");
    assert!(moved[1] < 0.05 * own, "the liar's own job pays: {moved:?}");
}

#[test]
fn stuck_requests_delay_no_other_class_and_are_forgiven() {
    // All places that data may have are taken by requests that do not end.
    let mut held = scheduler(options());
    let mut stuck = Vec::new();
    for _ in 0..64 {
        held.push(0, request(1, 1, Work::Write, 4 << 10)).expect("room");
    }
    while let Some(started) = held.pop(0) {
        stuck.push(started.ticket);
    }
    assert_eq!(stuck.len(), 14, "a place each is kept for metadata and urgent work");
    for (work, user) in [(Work::Metadata, 2), (Work::Urgent, 3)] {
        for round in 1..100 {
            held.push(round, request(user, 1, work, 0)).expect("room");
            let started = held.pop(round).expect("a place for it");
            assert_eq!(started.request.token, u64::from(user));
            assert!(held.complete(round, started.ticket));
        }
    }
    let end = 10 * SECOND;
    for ticket in stuck {
        assert!(held.complete(end, ticket));
        assert!(!held.complete(end, ticket), "once");
    }
}

#[test]
fn a_stuck_large_request_holds_nobody_back_for_long() {
    let sizes = Options { large_in_flight_max: 1, ..options() };
    let mut simulation =
        Simulation::new(sizes, PLAIN, vec![write(1, 1, 1 << 20, 4), write(2, 1, 4 << 10, 8)]);
    simulation.run(SECOND);
    simulation.sticks = Some(0);
    simulation.run(SECOND + 50 * MILLISECOND);
    assert_eq!(simulation.stuck.len(), 1);
    let alone = moved(&mut simulation, SECOND + 50 * MILLISECOND, 3 * SECOND);
    assert!(alone[1] >= 0.98 * 1.95 * 2e9, "the small ones have the device: {alone:?}");
    simulation.release_stuck();
    let after = moved(&mut simulation, 3 * SECOND + 100 * MILLISECOND, 4 * SECOND);
    assert!((after[0] - after[1]).abs() <= 0.05 * after[1], "and then their share: {after:?}");
}

#[test]
fn queues_are_bounded_by_user_and_in_all() {
    let sizes = Options { requests_max: 100, requests_user_max: 60, ..options() };
    let mut full = scheduler(sizes);
    let mut last = None;
    for _ in 0..60 {
        last = Some(full.push(0, request(1, 1, Work::Read, 1)).expect("room"));
    }
    assert_eq!(full.push(0, request(1, 2, Work::Metadata, 1)), Err(Full::User));
    for _ in 0..40 {
        full.push(0, request(2, 1, Work::Read, 1)).expect("room");
    }
    assert_eq!(full.push(0, request(3, 1, Work::Read, 1)), Err(Full::Instance));
    assert_eq!(full.withdraw(0, last.expect("a ticket")), Some(1));
    assert_eq!(full.withdraw(0, last.expect("a ticket")), None);
    full.push(0, request(3, 1, Work::Read, 1)).expect("room again");
}

#[test]
fn users_that_went_make_room_for_others() {
    let mut many = scheduler(options());
    for user in 0..2 * USERS_MAX as u32 {
        many.push(0, request(user, 1, Work::Read, 1)).expect("room");
        let started = many.pop(0).expect("a place");
        assert!(many.complete(0, started.ticket));
    }
    for user in 0..USERS_MAX as u32 {
        many.push(0, request(user, 1, Work::Read, 1)).expect("room");
    }
    assert_eq!(many.push(0, request(u32::MAX, 1, Work::Read, 1)), Err(Full::Instance));
}

#[test]
fn impossible_limits_and_sizes_are_refused_by_name() {
    let mut plain = scheduler(options());
    let limits = Limits { weight: 0, ..Limits::default() };
    assert_eq!(plain.set_user(0, 1, limits), Err(LimitsError::Weight(0)));
    let limits = Limits { bytes_per_second_min: 9, bytes_per_second_max: 8, ..Limits::default() };
    let error = plain.set_job(0, 1, 1, limits).expect_err("impossible").to_string();
    assert!(error.contains("min=9 max=8"), "{error}");
    for (sizes, option) in [
        (Options { depth: 3, ..options() }, "depth"),
        (Options { large_in_flight_max: 14, ..options() }, "large_in_flight_max"),
        (Options { requests_max: 15, ..options() }, "requests_max"),
        (Options { requests_user_max: 0, ..options() }, "requests_user_max"),
        (Options { metadata_percent: 9, ..options() }, "metadata_percent"),
        (Options { metadata_percent: 91, ..options() }, "metadata_percent"),
    ] {
        let error = Scheduler::new(sizes).map(|_| ()).expect_err("out of bounds");
        assert_eq!(error.option, option);
    }
    for job in 0..JOBS_MAX as u64 {
        let limits = Limits { weight: 7, ..Limits::default() };
        plain.set_job(0, 1, job, limits).expect("room");
    }
    assert_eq!(
        plain.set_job(0, 1, 999, Limits { weight: 7, ..Limits::default() }),
        Err(LimitsError::TooMany)
    );
}

#[test]
fn costs_are_learned_and_outliers_change_little() {
    let mut cost = CostModel::new(1_000.0, 0.1);
    let sizes = [4_096, 65_536, 1_048_576, 16_384];
    let real = |bytes: u64| 20_000 + bytes / 2;
    for round in 0..2_000 {
        let bytes = sizes[round % 4];
        cost.observe(bytes, real(bytes));
    }
    for bytes in sizes {
        let (estimate, real) = (cost.estimate(bytes) as f64, real(bytes) as f64);
        assert!((estimate - real).abs() <= 0.02 * real, "{bytes}: {estimate}, really {real}");
    }
    let before = cost.estimate(65_536) as f64;
    cost.observe(65_536, 10 * SECOND);
    let after = cost.estimate(65_536) as f64;
    assert!(after <= 1.1 * before, "{before}, after one of ten seconds {after}");
}

#[test]
fn a_device_of_one_size_is_learned_and_followed() {
    let mut cost = CostModel::new(50_000.0, 1.0);
    for nanos in [400_000, 4_000_000] {
        for _ in 0..4_000 {
            cost.observe(1 << 20, nanos);
        }
        let estimate = cost.estimate(1 << 20) as f64;
        assert!((estimate - nanos as f64).abs() <= 0.02 * nanos as f64, "{estimate} for {nanos}");
    }
}

#[test]
fn extreme_rates_and_times_do_no_harm() {
    for rate in [1, u64::MAX] {
        let mut bucket = Bucket::new(0, rate);
        bucket.take(0, u64::MAX);
        assert!(bucket.opens_at(0) >= SECOND / 2);
        assert!(bucket.opens_at(u64::MAX) >= u64::MAX - SECOND || rate == 1);
        bucket.set_rate(u64::MAX, 5);
        bucket.take(u64::MAX, u64::MAX);
        assert!(!bucket.is_open(u64::MAX));
    }
}

/// Requests that wait: ticket, user, job and class, number.
type Waiting = Vec<(Ticket, (u32, u64, Class), u64)>;

/// Starts all that may start: each waited, and is the first of its job and class.
fn start_all(any: &mut Scheduler, now: u64, waiting: &mut Waiting, flying: &mut Vec<Ticket>) {
    while let Some(started) = any.pop(now) {
        let is_it = |&(ticket, _, token): &(Ticket, (u32, u64, Class), u64)| {
            ticket == started.ticket && token == started.request.token
        };
        let at = waiting.iter().position(is_it).expect("it waited");
        let (_, key, token) = waiting.remove(at);
        let is_earlier = |&(_, other, earlier): &(Ticket, (u32, u64, Class), u64)| {
            other == key && earlier < token
        };
        assert!(!waiting.iter().any(is_earlier), "out of order");
        flying.push(started.ticket);
    }
}

proptest! {
    /// Any samples: the coefficients stay in their bounds, and no request is free.
    #[test]
    fn costs_stay_in_bounds(samples in prop::collection::vec((any::<u64>(), any::<u64>()), 1..100)) {
        let mut cost = CostModel::new(f64::NAN, f64::INFINITY);
        for (bytes, nanos) in samples {
            cost.observe(bytes, nanos);
            let (fixed, byte) = cost.coefficients();
            prop_assert!((100.0..=1e8).contains(&fixed) && (0.001..=1000.0).contains(&byte));
            prop_assert!(cost.estimate(0) >= 100);
        }
    }

    /// Requests of any sizes that start as soon as they may: no more than the rate and a burst.
    #[test]
    fn a_bucket_holds_its_rate(
        rate in 1_u64..1 << 40,
        parts in prop::collection::vec((1_u64..1 << 26, 0_u64..1 << 30), 1..40),
    ) {
        let (mut bucket, mut now, mut sum) = (Bucket::new(5, rate), 5_u64, 0_u128);
        for (tokens, pause) in parts {
            now = bucket.opens_at(now);
            prop_assert!(bucket.is_open(now));
            let may = u128::from(rate) * u128::from(now + SECOND / 10) / u128::from(SECOND) + 1;
            prop_assert!(sum <= may, "{sum} of {may}");
            bucket.take(now, tokens);
            sum += u128::from(tokens);
            now += pause;
        }
    }

    /// Any order of calls: each admitted request starts once or is withdrawn, each job's in order, and
    /// counts come back to zero.
    #[test]
    fn each_request_starts_once_and_in_order(
        steps in prop::collection::vec(
            (0_u8..6, 0_u32..4, 0_u64..3, 0_usize..4, 0_u64..1 << 20), 1..300),
    ) {
        let sizes = Options {
            depth: 6,
            large_in_flight_max: 2,
            requests_max: 40,
            requests_user_max: 20,
            ..options()
        };
        let mut any = scheduler(sizes);
        let capped =
            Limits { bytes_per_second_max: 1 << 24, in_flight_max: 2, ..Limits::default() };
        any.set_user(0, 1, capped).expect("limits");
        let light = Limits { bytes_per_second_min: 1 << 20, weight: 3, ..Limits::default() };
        any.set_job(0, 2, 1, light).expect("limits");
        let works = [Work::Urgent, Work::Metadata, Work::Read, Work::Write];
        let (mut waiting, mut flying) = (Vec::new(), Vec::new());
        let (mut now, mut number) = (0, 0_u64);
        for (step, user, job, work, bytes) in steps {
            now += bytes;
            match step {
                0..=2 => {
                    number += 1;
                    let request = Request { user, job, work: works[work], bytes, token: number };
                    if let Ok(ticket) = any.push(now, request) {
                        waiting.push((ticket, (user, job, works[work].class()), number));
                    }
                }
                3 => start_all(&mut any, now, &mut waiting, &mut flying),
                4 => if let Some(ticket) = flying.pop() {
                    prop_assert!(any.complete(now, ticket));
                    prop_assert!(!any.complete(now, ticket));
                },
                _ => if !waiting.is_empty() {
                    let (ticket, _, token) = waiting.remove(work % waiting.len());
                    prop_assert_eq!(any.withdraw(now, ticket), Some(token));
                },
            }
            let counts = (any.queued() as usize, any.in_flight() as usize);
            prop_assert_eq!(counts, (waiting.len(), flying.len()));
        }
        for _ in 0..1_000 {
            start_all(&mut any, now, &mut waiting, &mut flying);
            for ticket in flying.drain(..) {
                prop_assert!(any.complete(now, ticket));
            }
            now = any.deadline().unwrap_or(now + 1);
        }
        prop_assert_eq!((any.queued(), any.in_flight(), waiting.len()), (0, 0, 0));
    }
}

#[test]
fn work_without_bytes_does_not_wait_for_a_debt_of_bytes() {
    let mut scheduler = scheduler(options());
    let limits = Limits { bytes_per_second_max: 1000, ..Limits::default() };
    scheduler.set_job(0, 1, 9, limits).expect("limits");
    scheduler.push(0, request(1, 9, Work::Write, 1 << 20)).expect("admitted");
    assert!(scheduler.pop(0).is_some(), "the first one takes the bucket into debt");
    scheduler.push(0, request(1, 9, Work::Write, 1)).expect("admitted");
    scheduler.push(0, request(1, 9, Work::Metadata, 0)).expect("admitted");
    assert!(scheduler.pop(1).is_some(), "metadata");
    assert!(scheduler.pop(1).is_none() && scheduler.deadline() > Some(1000 * SECOND));
}
