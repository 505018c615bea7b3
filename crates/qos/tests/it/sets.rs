//! Turns by sets: which job writes, in which order, and how long phases take beside fair shares, in a
//! fluid simulation of a store.

use qos::sets::Sets;

const SECOND: u64 = 1_000_000_000;

#[test]
fn one_job_of_a_set_writes_and_sets_share_by_their_periods() {
    let mut sets = Sets::new();
    // Two jobs with phases each 10 s, two each 100 s.
    for (jobs, period) in [([1, 2], 10), ([11, 12], 100)] {
        for at in (0..1000).step_by(period) {
            for job in jobs {
                sets.begin(at as u64 * SECOND, job);
                sets.end(job);
            }
        }
    }
    assert_eq!(sets.shares(), []);
    let now = 1000 * SECOND;
    for job in [2, 12, 1, 11] {
        sets.begin(now, job);
    }
    let shares = sets.shares();
    assert_eq!(shares.iter().map(|&(job, _)| job).collect::<Vec<_>>(), [2, 12]);
    assert!((shares[0].1 - 10.0 / 11.0).abs() < 1e-9, "{shares:?}");
    sets.end(2);
    assert_eq!(sets.shares()[0].0, 1, "the next of the set");
    sets.end(1);
    assert_eq!(sets.shares(), [(12, 1.0)], "what others do not use is used");
}

#[test]
fn items_are_written_job_by_job_and_in_proportion_between_sets() {
    let mut sets = Sets::new();
    for round in 0..3 {
        for (job, period) in [(1, 10), (2, 10), (3, 100)] {
            sets.end(job);
            sets.begin(round * period * SECOND, job);
        }
    }
    const MIB: u64 = 1 << 20;
    let items: Vec<(u64, u64)> =
        [3, 2, 1, 9].iter().flat_map(|&job| (0..20).map(move |_| (job, MIB))).collect();
    let order = sets.order(&items);
    let mut all = order.clone();
    all.sort_unstable();
    assert_eq!(all, (0..items.len()).collect::<Vec<_>>(), "each once");
    let jobs: Vec<u64> = order.iter().map(|&place| items[place].0).collect();
    let last = |job| jobs.iter().rposition(|&one| one == job).expect("its items");
    let first = |job| jobs.iter().position(|&one| one == job).expect("its items");
    assert!(last(1) < first(2), "the set's second job waits for its first: {jobs:?}");
    // Ten of the frequent set for each of the rare one.
    let rare = jobs[..=last(2)].iter().filter(|&&job| job == 3).count();
    assert!((4..=5).contains(&rare), "{rare}: {jobs:?}");
    assert_eq!(first(9), 60, "a job without a phase is last");
    let own: Vec<usize> = order.iter().copied().filter(|&place| items[place].0 == 1).collect();
    assert!(own.is_sorted());
}

/// Random numbers that repeat: the high bits of a linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// A job that computes, then writes.
struct Job {
    compute: f64,
    bytes: f64,
    left: f64,
    until: f64,
    begun: f64,
}

/// The mean of the times of phases, each divided by that of the phase alone, on a store of one byte per
/// second; by shares of the policy for jobs that write.
fn slowdown(seed: u64, by_sets: bool) -> f64 {
    let mut random = Random(seed);
    let mut jobs: Vec<Job> = (0..24)
        .map(|_| {
            let period = 10f64.powi(1 + random.below(3) as i32);
            let bytes = period * 0.04 * (0.5 + random.below(1000) as f64 / 1000.0);
            let compute = period - bytes;
            let until = compute * random.below(1000) as f64 / 1000.0;
            Job { compute, bytes, left: 0.0, until, begun: 0.0 }
        })
        .collect();
    let (mut sets, mut now) = (Sets::new(), 0.0);
    let (mut sum, mut count) = (0.0, 0.0);
    while now < 20_000.0 {
        let writing: Vec<u64> = sets.waiting().collect();
        let shares = match by_sets {
            true => sets.shares(),
            false => writing.iter().map(|&job| (job, 1.0 / writing.len() as f64)).collect(),
        };
        let ends = shares.iter().map(|&(job, share)| now + jobs[job as usize].left / share);
        let begins = jobs.iter().filter(|job| job.left == 0.0).map(|job| job.until);
        let next = ends.chain(begins).fold(f64::INFINITY, f64::min);
        for &(job, share) in &shares {
            let one = &mut jobs[job as usize];
            one.left -= share * (next - now);
            if one.left < 1e-9 {
                (one.left, one.until) = (0.0, next + one.compute);
                sum += (next - one.begun) / one.bytes;
                count += 1.0;
                sets.end(job);
            }
        }
        now = next;
        for (key, job) in jobs.iter_mut().enumerate() {
            if job.left == 0.0 && job.until <= now {
                (job.left, job.begun) = (job.bytes, now);
                sets.begin((now * 1e9) as u64, key as u64);
            }
        }
    }
    sum / count
}

#[test]
fn phases_end_earlier_than_with_fair_shares() {
    let (mut fair, mut sets) = (0.0, 0.0);
    let rounds = 8;
    for seed in 0..rounds {
        fair += slowdown(seed, false);
        sets += slowdown(seed, true);
    }
    let (fair, sets) = (fair / rounds as f64, sets / rounds as f64);
    println!("mean slowdown of phases: {fair:.2} with fair shares, {sets:.2} by sets");
    assert!(sets < 0.85 * fair, "{sets} and {fair}");
}
