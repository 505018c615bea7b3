//! A cap over several daemons: demand that moves, reports and grants that are lost, late and out of
//! order, daemons that stop.

use crate::device::{Device, Program, Simulation, options};
use proptest::prelude::*;
use qos::division::{Division, Grant, LEASE_NANOS, PERIOD_NANOS, Part, Report, floor_of};
use qos::scheduler::{Limits, Work};

const CAP: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;

/// Random numbers that follow from a seed (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Messages on their way: when they arrive.
#[derive(Default)]
struct Network {
    reports: Vec<(u64, Report)>,
    grants: Vec<(u64, Grant)>,
    lost_percent: u64,
    delay_max: u64,
}

struct Cluster {
    division: Division,
    parts: Vec<Part>,
    network: Network,
    random: Random,
    now: u64,
    /// Tokens that were used.
    used: Vec<f64>,
    /// Highest sum of rates at a time.
    rate_max: u64,
}

impl Cluster {
    fn new(daemons: u32, lost_percent: u64, delay_max: u64, seed: u64) -> Cluster {
        Cluster {
            division: Division::new(0, CAP, daemons),
            parts: (0..daemons).map(|daemon| Part::new(0, daemon, CAP, daemons)).collect(),
            network: Network { lost_percent, delay_max, ..Network::default() },
            random: Random(seed | 1),
            now: 0,
            used: vec![0.0; daemons as usize],
            rate_max: 0,
        }
    }

    fn arrival(&mut self) -> Option<u64> {
        let is_lost = self.random.next(100) < self.network.lost_percent;
        (!is_lost).then(|| self.now + self.random.next(self.network.delay_max.max(1)))
    }

    /// Runs a time with these demands; a daemon without one is stopped.
    fn run(&mut self, millis: u64, demands: &[Option<u64>]) {
        for _ in 0..millis {
            let now = self.now;
            for (index, demand) in demands.iter().enumerate() {
                // Daemons report at different moments of the period.
                let phase = (now + index as u64 * 17 * MILLISECOND) % PERIOD_NANOS;
                if let (Some(demand), 0) = (demand, phase) {
                    let report = self.parts[index].report(now, *demand);
                    if let Some(at) = self.arrival() {
                        self.network.reports.push((at, report));
                    }
                }
            }
            for (_, report) in self.network.reports.extract_if(.., |(at, _)| *at <= now) {
                self.division.report(now, report);
            }
            if now.is_multiple_of(20 * MILLISECOND) {
                let mut grants = Vec::new();
                self.division.divide(now, &mut grants);
                for grant in grants {
                    if let Some(at) = self.arrival() {
                        self.network.grants.push((at, grant));
                    }
                }
            }
            for (_, grant) in self.network.grants.extract_if(.., |(at, _)| *at <= now) {
                self.parts[grant.daemon as usize].take_grant(now, grant);
            }
            let rates: Vec<u64> = self.parts.iter().map(|part| part.per_second(now)).collect();
            self.rate_max = self.rate_max.max(rates.iter().sum());
            for ((used, rate), demand) in self.used.iter_mut().zip(rates).zip(demands) {
                *used += rate.min(demand.unwrap_or(0)) as f64 / 1000.0;
            }
            self.now += MILLISECOND;
        }
    }

    /// Rate of use by daemon in a time.
    fn rates(&mut self, millis: u64, demands: &[Option<u64>]) -> Vec<f64> {
        let before = self.used.clone();
        self.run(millis, demands);
        let passed = millis as f64 / 1000.0;
        self.used.iter().zip(before).map(|(used, before)| (used - before) / passed).collect()
    }
}

#[test]
fn a_rate_is_met_over_four_targets_however_demand_is_spread() {
    let cap = CAP as f64;
    for demands in [
        [Some(2 * CAP); 4],
        [Some(2 * CAP), Some(0), Some(0), Some(0)],
        [Some(CAP / 2), Some(CAP / 4), Some(CAP / 4), Some(CAP / 10)],
        [Some(CAP / 10), Some(2 * CAP), Some(CAP / 10), Some(2 * CAP)],
    ] {
        let mut cluster = Cluster::new(4, 0, 5 * MILLISECOND, 1);
        cluster.run(1_000, &demands);
        let sum: f64 = cluster.rates(2_000, &demands).iter().sum();
        println!("{demands:?}: {:.3} of the cap", sum / cap);
        assert!(sum >= 0.95 * cap && sum <= cap, "{sum} with {demands:?}");
        assert!(cluster.rate_max <= CAP, "{}", cluster.rate_max);
    }
}

/// Four targets with a scheduler each, a job with a cap of 1 GB/s on all of them, and another user.
/// Reports are exchanged every period, and one in four is lost.
#[test]
fn schedulers_of_four_targets_hold_the_cap_of_a_job_together() {
    let device = Device { latency_nanos: 0.0, bytes_per_nano: 2.0 };
    let programs = vec![
        Program::new(1, 7, Work::Write, 256 << 10, 16),
        Program::new(2, 1, Work::Write, 1 << 20, 16),
    ];
    let target = |_| Simulation::new(options(), device, programs.clone());
    let mut targets: Vec<Simulation> = (0..4).map(target).collect();
    let mut division = Division::new(0, CAP, 4);
    let mut parts: Vec<Part> = (0..4).map(|daemon| Part::new(0, daemon, CAP, 4)).collect();
    let (mut random, mut grants) = (Random(5), Vec::new());
    let done = |targets: &[Simulation], program: usize| -> f64 {
        targets.iter().map(|target| target.programs[program].bytes_done()).sum()
    };
    let mut before = [0.0; 2];
    for period in 1..=40 {
        let now = period * PERIOD_NANOS;
        // In the first two seconds the job uses all targets, then two of them.
        if period == 20 {
            targets.iter_mut().take(2).for_each(|target| target.programs[0].ends = now);
        }
        for (index, (target, part)) in targets.iter_mut().zip(&mut parts).enumerate() {
            let limits =
                Limits { bytes_per_second_max: part.per_second(target.now), ..Limits::default() };
            target.scheduler.set_job(target.now, 1, 7, limits).expect("limits");
            target.run(now);
            let demand = if target.programs[0].ends > now { 2 * CAP } else { 0 };
            let report = part.report(now, demand);
            if random.next(4) > 0 {
                division.report(now, report);
            }
            assert_eq!(report.daemon as usize, index);
        }
        division.divide(now, &mut grants);
        for grant in grants.drain(..) {
            parts[grant.daemon as usize].take_grant(now, grant);
        }
        if period == 10 || period == 30 {
            before = [done(&targets, 0), done(&targets, 1)];
        }
        if period == 20 || period == 40 {
            let rates = [done(&targets, 0) - before[0], done(&targets, 1) - before[1]];
            let cap = CAP as f64;
            println!("a job with a cap of 1 GB/s over four targets: {:.3} of it", rates[0] / cap);
            assert!((rates[0] - cap).abs() <= 0.05 * cap, "period {period}: {rates:?}");
            assert!(rates[0] + rates[1] >= 0.98 * 8e9, "the rest is the other user's: {rates:?}");
        }
    }
}

#[test]
fn less_demand_than_the_cap_is_met_entirely() {
    let mut cluster = Cluster::new(4, 0, 5 * MILLISECOND, 1);
    let demands = [Some(CAP / 5), Some(CAP / 2), Some(0), Some(CAP / 10)];
    cluster.run(1_000, &demands);
    let sum: f64 = cluster.rates(1_000, &demands).iter().sum();
    assert!(sum >= 0.999 * 0.8 * CAP as f64, "{sum}");
}

#[test]
fn demand_that_moves_is_followed_and_never_beyond_the_cap() {
    let mut cluster = Cluster::new(4, 0, 5 * MILLISECOND, 1);
    let mut demands = [Some(0); 4];
    cluster.run(1_000, &demands);
    for round in 0..12 {
        demands.fill(Some(0));
        demands[round % 4] = Some(2 * CAP);
        cluster.run(400, &demands);
        let sum: f64 = cluster.rates(600, &demands).iter().sum();
        assert!(sum >= 0.95 * CAP as f64, "round {round}: {sum}");
    }
    assert!(cluster.rate_max <= CAP, "{}", cluster.rate_max);
}

#[test]
fn lost_and_late_messages_cost_rate_and_never_exceed_the_cap() {
    for seed in 1..20 {
        let mut cluster = Cluster::new(4, 20, 150 * MILLISECOND, seed);
        let demands = [Some(2 * CAP); 4];
        cluster.run(2_000, &demands);
        let sum: f64 = cluster.rates(4_000, &demands).iter().sum();
        assert!(sum >= 0.9 * CAP as f64, "seed {seed}: {sum}");
        assert!(cluster.rate_max <= CAP, "seed {seed}: {}", cluster.rate_max);
    }
}

#[test]
fn the_part_of_a_daemon_that_stops_goes_to_the_others() {
    let mut cluster = Cluster::new(4, 0, 5 * MILLISECOND, 1);
    let mut demands = [Some(2 * CAP); 4];
    cluster.run(1_000, &demands);
    demands[2] = None;
    cluster.run(1_000, &demands);
    let sum: f64 = cluster.rates(1_000, &demands).iter().sum();
    assert!(sum >= 0.95 * CAP as f64, "{sum}");
    demands[2] = Some(2 * CAP);
    cluster.run(1_000, &demands);
    let rates = cluster.rates(1_000, &demands);
    assert!(rates[2] >= 0.95 * CAP as f64 / 4.0, "it gets its part again: {rates:?}");
    assert!(cluster.rate_max <= CAP, "{}", cluster.rate_max);
}

#[test]
fn without_a_coordinator_each_has_its_floor() {
    let mut cluster = Cluster::new(4, 0, 5 * MILLISECOND, 1);
    let demands = [Some(2 * CAP); 4];
    cluster.run(1_000, &demands);
    cluster.network.lost_percent = 100;
    cluster.run(LEASE_NANOS / MILLISECOND + 1, &demands);
    for part in &cluster.parts {
        assert_eq!(part.per_second(cluster.now), floor_of(CAP, 4));
    }
}

#[test]
fn restarts_of_a_daemon_and_of_the_coordinator_are_survived() {
    let mut cluster = Cluster::new(4, 0, 5 * MILLISECOND, 1);
    let demands = [Some(2 * CAP); 4];
    cluster.run(1_000, &demands);
    cluster.parts[1] = Part::new(cluster.now, 1, CAP, 4);
    cluster.run(1_000, &demands);
    assert!(cluster.parts[1].per_second(cluster.now) >= 95 * (CAP / 400));
    cluster.division = Division::new(cluster.now, CAP, 4);
    cluster.run(1_000, &demands);
    let sum: f64 = cluster.rates(1_000, &demands).iter().sum();
    assert!(sum >= 0.95 * CAP as f64, "{sum}");
    assert!(cluster.rate_max <= CAP, "{}", cluster.rate_max);
}

#[test]
fn daemons_that_are_added_get_their_part() {
    let mut cluster = Cluster::new(2, 0, 5 * MILLISECOND, 1);
    let demands = [Some(2 * CAP); 4];
    cluster.run(1_000, &demands[..2]);
    let now = cluster.now;
    cluster.parts.extend((2..4).map(|daemon| Part::new(now, daemon, CAP, 4)));
    cluster.used.resize(4, 0.0);
    cluster.run(300, &demands);
    assert_eq!(cluster.parts[2].per_second(cluster.now), floor_of(CAP, 4), "nobody knows it");
    // The coordinator hears of it, and then the others.
    cluster.division.grow(4);
    cluster.run(500, &demands);
    cluster.parts.iter_mut().for_each(|part| part.grow(CAP, 4));
    cluster.run(500, &demands);
    let part = CAP as f64 / 4.0;
    for rate in cluster.rates(1_000, &demands) {
        assert!(rate >= 0.95 * part && rate <= 1.05 * part, "{rate}");
    }
    // Floors of two, and of four, at the same time.
    assert!(cluster.rate_max <= CAP + 2 * floor_of(CAP, 4), "{}", cluster.rate_max);
    cluster.network.lost_percent = 100;
    cluster.run(LEASE_NANOS / MILLISECOND + 1, &demands);
    for part in &cluster.parts {
        assert_eq!(part.per_second(cluster.now), floor_of(CAP, 4));
    }
}

#[test]
fn reports_and_grants_that_make_no_sense_change_nothing() {
    let mut division = Division::new(0, CAP, 2);
    let mut grants = Vec::new();
    division.report(0, Report { daemon: 9, number: 1, demand: 5, grant: 0 });
    division.divide(LEASE_NANOS, &mut grants);
    assert_eq!(grants, []);
    // It confirms a grant that was never given.
    division.report(0, Report { daemon: 0, number: 1, demand: u64::MAX, grant: u64::MAX });
    division.divide(LEASE_NANOS, &mut grants);
    assert_eq!(grants.len(), 1);
    let mut part = Part::new(0, 0, CAP, 2);
    let floor = part.per_second(0);
    part.take_grant(0, grants[0]);
    assert_eq!(part.per_second(0), floor, "it sent no report");
    assert_eq!(floor_of(0, 0), 1);
}

proptest! {
    /// Any loss, delay and demand: what may be used never exceeds the cap.
    #[test]
    fn the_cap_holds_at_any_time(
        seed in any::<u64>(),
        lost in 0_u64..90,
        delay in 1_u64..600,
        phases in prop::collection::vec(prop::array::uniform4(prop::option::of(0_u64..3 * CAP)), 1..8),
    ) {
        let mut cluster = Cluster::new(4, lost, delay * MILLISECOND, seed);
        for demands in phases {
            cluster.run(300, &demands);
        }
        prop_assert!(cluster.rate_max <= CAP, "{}", cluster.rate_max);
    }
}
