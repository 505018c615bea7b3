//! Placement by performance: the makespan of Sunway's Tables 2 and 3 beside the best possible one and
//! round robin, and faults of targets. `--nocapture` prints the tables.

use proptest::prelude::*;
use qos::pool::{Pool, PoolError, TARGETS_MAX};

/// MB/s of the targets of Table 2; 2,600 in all.
const TABLE_2: [u64; 8] = [500, 300, 500, 200, 300, 100, 500, 200];
/// Numbers of files of Table 3.
const FILES: [u64; 6] = [100, 200, 400, 600, 800, 1000];

fn pool(performance: &[u64]) -> Pool {
    let targets: Vec<(u32, u64)> = (0..).zip(performance.iter().copied()).collect();
    Pool::new(&targets).expect("a pool")
}

/// Seconds until the last of these numbers of files of 1,000 MB is written.
fn makespan(counts: &[u64], performance: &[u64]) -> f64 {
    let times =
        counts.iter().zip(performance).map(|(&count, &perf)| count as f64 * 1000.0 / perf as f64);
    times.fold(0.0, f64::max)
}

/// The shortest makespan of so many whole files: the earliest time at which the targets have ended so
/// many, found among the times at which one of them ends a file.
fn best_makespan(files: u64, performance: &[u64]) -> f64 {
    let ended = |time: f64| -> u64 {
        performance.iter().map(|&perf| (time * perf as f64 / 1000.0 + 1e-9) as u64).sum()
    };
    let ends = performance
        .iter()
        .flat_map(|&perf| (1..=files).map(move |n| n as f64 * 1000.0 / perf as f64));
    ends.filter(|&time| ended(time) >= files).fold(f64::INFINITY, f64::min)
}

fn placed(files: u64, performance: &[u64]) -> Vec<u64> {
    let mut pool = pool(performance);
    for _ in 0..files {
        pool.choose().expect("a target");
    }
    (0..).zip(performance).map(|(target, _)| pool.open_count(target).expect("a target")).collect()
}

#[test]
fn files_end_as_early_as_they_can_on_targets_of_different_speed() {
    println!("files  MB/s by performance  of the best  MB/s round robin");
    for files in FILES {
        let counts = placed(files, &TABLE_2);
        let own = makespan(&counts, &TABLE_2);
        let best = best_makespan(files, &TABLE_2);
        let in_turn: Vec<u64> =
            (0..8).map(|index| files / 8 + u64::from(index < files % 8)).collect();
        let round_robin = makespan(&in_turn, &TABLE_2);
        let rate = |time: f64| files as f64 * 1000.0 / time;
        println!("{files:5} {:20.0} {:12.3} {:17.0}", rate(own), best / own, rate(round_robin));
        assert!(best / own >= 0.98, "{files} files: {own} s, best {best} s");
        // In proportion: the shortest makespan may give a fast target more than the next whole file.
        for (count, perf) in counts.iter().zip(TABLE_2) {
            let exact = files as f64 * perf as f64 / 2600.0;
            assert!((*count as f64 - exact).abs() < 2.0, "{count} files where {exact} are due");
        }
        // The slowest target holds up everything: 100 * 8 MB/s.
        assert!(best / round_robin < 0.34, "round robin: {round_robin} s");
    }
}

#[test]
fn a_target_that_stops_gets_nothing_and_comes_back() {
    let mut pool = pool(&TABLE_2);
    for _ in 0..100 {
        pool.choose();
    }
    let before = pool.open_count(0);
    pool.set_up(0, false);
    for _ in 0..100 {
        assert_ne!(pool.choose(), Some(0));
    }
    assert_eq!(pool.open_count(0), before);
    pool.set_up(0, true);
    assert_eq!(pool.choose(), Some(0), "it is the least loaded");
    for target in 0..8 {
        pool.set_up(target, false);
    }
    assert_eq!(pool.choose(), None);
}

#[test]
fn a_target_that_is_slow_gets_fewer_files_and_more_when_it_is_fast_again() {
    let mut pool = pool(&[400, 400]);
    for _ in 0..64 {
        pool.observe(0, 100);
    }
    assert_eq!(pool.bytes_per_second(0), Some(100));
    for _ in 0..100 {
        pool.choose();
    }
    assert_eq!((pool.open_count(0), pool.open_count(1)), (Some(20), Some(80)));
    for _ in 0..200 {
        pool.observe(0, 0);
    }
    assert_eq!(pool.bytes_per_second(0), Some(25), "a sixteenth");
    pool.set_slow(0);
    pool.set_well(0);
    assert_eq!(pool.bytes_per_second(0), Some(400), "well, whatever its clients ask for");
    for _ in 0..200 {
        pool.observe(0, 0);
    }
    for _ in 0..200 {
        pool.observe(0, u64::MAX);
    }
    assert_eq!(pool.bytes_per_second(0), Some(400), "never above max_perf");
}

#[test]
fn one_slow_interval_changes_a_target_by_an_eighth() {
    let mut pool = pool(&[800]);
    pool.observe(0, 1);
    assert_eq!(pool.bytes_per_second(0), Some(800 - 94));
}

#[test]
fn bad_pools_are_refused_by_name() {
    let fails = |targets: &[(u32, u64)]| Pool::new(targets).map(|_| ()).expect_err("no pool");
    assert_eq!(fails(&[]), PoolError::Empty);
    assert_eq!(fails(&[(3, 5), (4, 0)]), PoolError::NoPerformance(4));
    assert_eq!(fails(&[(3, 5), (3, 6)]), PoolError::Repeated(3));
    let many: Vec<(u32, u64)> = (0..).map(|target| (target, 1)).take(TARGETS_MAX + 1).collect();
    assert_eq!(fails(&many), PoolError::TooManyTargets);
    assert!(PoolError::Repeated(3).to_string().contains("target 3 is in the pool twice"));
}

#[test]
fn closes_of_files_that_are_not_open_change_nothing() {
    let mut pool = pool(&[10, 20]);
    pool.close(0);
    pool.close(77);
    pool.recount(77, 5);
    pool.observe(77, 5);
    assert_eq!((pool.open_count(0), pool.open_count(77)), (Some(0), None));
    assert_eq!(pool.choose(), Some(1));
    pool.recount(1, 4);
    assert_eq!(pool.choose(), Some(0));
}

proptest! {
    /// Any targets, any number of files: no distribution of whole files ends earlier.
    #[test]
    fn no_distribution_ends_earlier(
        performance in prop::collection::vec(1_u64..1000, 1..12),
        files in 1_u64..300,
    ) {
        let own = makespan(&placed(files, &performance), &performance);
        let best = best_makespan(files, &performance);
        prop_assert!(own <= best * (1.0 + 1e-9), "{own} s, best {best} s");
    }

    /// Extreme numbers neither overflow nor choose a target that is down.
    #[test]
    fn extreme_numbers_do_no_harm(
        performance in prop::collection::vec(1_u64..=u64::MAX, 1..6),
        counts in prop::collection::vec(any::<u64>(), 6),
        down in 0_u32..6,
    ) {
        let mut pool = pool(&performance);
        for (target, count) in (0..).zip(counts) {
            pool.recount(target, count);
        }
        pool.set_up(down, false);
        for _ in 0..20 {
            let chosen = pool.choose();
            prop_assert!(chosen != Some(down));
            prop_assert!(chosen.is_some() || (performance.len() == 1 && down == 0));
        }
    }
}

/// The speed that was measured at the start decides until more is seen; it is no limit, and a slow
/// disk is not taken for a sixteenth of what any target may do.
#[test]
fn measured_performance_is_where_corrections_begin() {
    const MAX: u64 = 4 << 30;
    let mut pool = Pool::new(&[(1, MAX), (2, MAX)]).expect("a pool");
    pool.set_measured(1, 3_000);
    pool.set_measured(2, 1_000);
    pool.set_measured(9, 1);
    let mut chosen: Vec<u32> = (0..8).map(|_| pool.choose().expect("a target")).collect();
    chosen.sort_unstable();
    assert_eq!(chosen, [1, 1, 1, 1, 1, 1, 2, 2]);
    // Faster than measured: it counts as what is seen.
    (0..200).for_each(|_| pool.observe(2, 9_000));
    assert_eq!(pool.bytes_per_second(2), Some(9_000));
    (0..200).for_each(|_| pool.observe(1, 1));
    assert_eq!(pool.bytes_per_second(1), Some(3_000 / 16));
    [1, 2, 9].into_iter().for_each(|target| pool.set_well(target));
    assert_eq!([1, 2].map(|target| pool.bytes_per_second(target)), [Some(3_000), Some(9_000)]);
}
