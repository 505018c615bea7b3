//! Hosts that write to one daemon over its link, each with a scheduler and a window of its own: jobs get
//! their shares of the link by their weights, whatever their hosts and the number of their writers.

use qos::division::{LEASE_NANOS, PERIOD_NANOS};
use qos::incoming::{FACTOR_MAX, Incoming, JobUse};
use qos::scheduler::{Limits, Options, Request, Scheduler, Ticket, Work};
use qos::window::Window;
use std::collections::{BTreeMap, VecDeque};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const TICK: u64 = 100 * MICROSECOND;
const REQUEST_BYTES: u64 = 256 << 10;
/// Requests of a block.
const BLOCK: usize = 4;
const SMALL_PLACES: u32 = 8;

/// A job: writers that send a block, wait for its end, and do something else for a while.
#[derive(Clone, Copy)]
struct JobSpec {
    user: u32,
    job: u64,
    weight: u32,
    writers: usize,
    pause: u64,
}

const fn job(user: u32, job: u64, writers: usize) -> JobSpec {
    JobSpec { user, job, weight: 100, writers, pause: 2 * MILLISECOND }
}

/// A writer of a job: requests under way, and when it sends the next block.
struct Writer {
    spec: JobSpec,
    under_way: usize,
    sends_at: Option<u64>,
}

/// A request of a host on the link.
struct Moving {
    host: usize,
    writer: usize,
    ticket: Ticket,
    started_at: u64,
}

struct Host {
    scheduler: Scheduler,
    window: Window,
    large: u32,
    writers: Vec<Writer>,
    /// Of the period: bytes that started, and ticks with requests, by user and job.
    uses: BTreeMap<(u32, u64), (u64, u64)>,
}

impl Host {
    fn new(specs: &[JobSpec]) -> Host {
        let options = Options {
            depth: 32,
            large_bytes: 32 << 10,
            large_in_flight_max: 24,
            requests_max: 1 << 16,
            requests_user_max: 1 << 16,
            metadata_percent: 50,
        };
        let mut scheduler = Scheduler::new(options).expect("the sizes");
        let mut writers = Vec::new();
        for &spec in specs {
            let limits = Limits { weight: spec.weight, ..Limits::default() };
            scheduler.set_job(0, spec.user, spec.job, limits).expect("a weight");
            let writer = || Writer { spec, under_way: 0, sends_at: Some(0) };
            writers.extend(std::iter::repeat_with(writer).take(spec.writers));
        }
        let (window, uses) = (Window::default(), BTreeMap::new());
        Host { scheduler, window, large: 0, writers, uses }
    }

    fn send_blocks(&mut self, now: u64) {
        for (token, writer) in (0..).zip(&mut self.writers) {
            if writer.sends_at.take_if(|at| *at <= now).is_none() {
                continue;
            }
            writer.under_way = BLOCK;
            let JobSpec { user, job, .. } = writer.spec;
            for _ in 0..BLOCK {
                let request = Request { user, job, work: Work::Write, bytes: REQUEST_BYTES, token };
                assert!(self.scheduler.push(now, request).is_ok());
            }
        }
    }

    fn start_requests(&mut self, now: u64, host: usize, link: &mut VecDeque<Moving>) {
        loop {
            let places = self.window.places(now, self.large);
            self.scheduler.set_depth(places + SMALL_PLACES, places).expect("within bounds");
            let Some(started) = self.scheduler.pop(now) else { break };
            let Request { user, job, token, .. } = started.request;
            self.uses.entry((user, job)).or_default().0 += REQUEST_BYTES;
            self.large += 1;
            let (writer, ticket) = (token as usize, started.ticket);
            link.push_back(Moving { host, writer, ticket, started_at: now });
        }
        for writer in self.writers.iter().filter(|writer| writer.under_way > 0) {
            let key = (writer.spec.user, writer.spec.job);
            self.uses.entry(key).or_default().1 += 1;
        }
    }

    fn end(&mut self, now: u64, moved: &Moving) {
        self.window.places(now, self.large);
        self.large -= 1;
        self.window.note_end(now - moved.started_at);
        assert!(self.scheduler.complete(now, moved.ticket));
        let writer = &mut self.writers[moved.writer];
        writer.under_way -= 1;
        if writer.under_way == 0 {
            writer.sends_at = Some(now + writer.spec.pause);
        }
    }

    fn end_period(&mut self) -> Vec<JobUse> {
        let weight = |key: (u32, u64)| {
            let writer = self.writers.iter().find(|one| (one.spec.user, one.spec.job) == key);
            writer.map_or(100, |writer| writer.spec.weight)
        };
        let uses = self.uses.iter().map(|(&key, &(bytes, ticks))| JobUse {
            user: (key.0, 100),
            job: (key.1, weight(key)),
            waits: ticks * TICK * 100 >= PERIOD_NANOS * 75,
            bytes_per_second: bytes * (SECOND / PERIOD_NANOS),
        });
        let uses = uses.collect();
        self.uses.clear();
        uses
    }
}

/// Hosts, and the link that they share.
struct World {
    hosts: Vec<Host>,
    link: VecDeque<Moving>,
    moves_until: u64,
    request_nanos: u64,
    incoming: Incoming,
    now: u64,
    /// Requests that moved, by user and job.
    moved: BTreeMap<(u32, u64), u64>,
}

impl World {
    fn new(bytes_per_second: u64, hosts: &[&[JobSpec]]) -> World {
        World {
            hosts: hosts.iter().map(|specs| Host::new(specs)).collect(),
            link: VecDeque::new(),
            moves_until: 0,
            request_nanos: REQUEST_BYTES * SECOND / bytes_per_second,
            incoming: Incoming::default(),
            now: 0,
            moved: BTreeMap::new(),
        }
    }

    fn run(&mut self, seconds: u64, with_factors: bool) {
        self.moved.clear();
        let end = self.now + seconds * SECOND;
        while self.now < end {
            self.now += TICK;
            self.move_bytes();
            for (at, host) in self.hosts.iter_mut().enumerate() {
                host.send_blocks(self.now);
                host.start_requests(self.now, at, &mut self.link);
            }
            if self.now.is_multiple_of(PERIOD_NANOS) && with_factors {
                self.end_period();
            }
        }
    }

    fn move_bytes(&mut self) {
        while self.moves_until + self.request_nanos <= self.now
            && let Some(moved) = self.link.pop_front()
        {
            self.moves_until = self.moves_until.max(moved.started_at) + self.request_nanos;
            let host = &mut self.hosts[moved.host];
            let spec = host.writers[moved.writer].spec;
            *self.moved.entry((spec.user, spec.job)).or_default() += 1;
            host.end(self.now, &moved);
        }
    }

    fn end_period(&mut self) {
        for (at, host) in self.hosts.iter_mut().enumerate() {
            let uses = host.end_period();
            if !uses.is_empty() {
                self.incoming.report(self.now, at as u32, uses);
            }
        }
        for (host, factor) in self.incoming.divide(self.now) {
            assert!((1.0..=FACTOR_MAX).contains(&factor), "{factor}");
            self.hosts[host as usize].window.set_factor(self.now, factor);
        }
    }

    /// The part of all that moved that a job had, and the part of the link that was used.
    fn part(&self, key: (u32, u64)) -> f64 {
        let all: u64 = self.moved.values().sum();
        self.moved.get(&key).copied().unwrap_or(0) as f64 / all as f64
    }

    fn used(&self, seconds: u64) -> f64 {
        let all: u64 = self.moved.values().sum();
        (all * self.request_nanos) as f64 / (seconds * SECOND) as f64
    }
}

/// Rates of a link: two requests take 13, 5 and 1 ms.
const RATES: [u64; 3] = [40_000_000, 100_000_000, 500_000_000];

#[test]
fn jobs_of_two_hosts_have_half_of_a_link_each() {
    // One that writes a block at a time has its share where its requests fill the least window; eight do
    // on any of these links.
    for (rate, writers) in [(RATES[0], 1), (RATES[1], 1), (RATES[1], 8), (RATES[2], 8)] {
        let mut parts = [0.0; 2];
        for (with_factors, part) in [(false, 0), (true, 1)] {
            let mut world = World::new(rate, &[&[job(1, 1, writers)], &[job(1, 2, 20)]]);
            world.run(2, with_factors);
            world.run(10, with_factors);
            parts[part] = world.part((1, 1));
            assert!(world.used(10) > 0.99, "{}", world.used(10));
        }
        let [without, with] = parts;
        println!(
            "{} MB/s, {writers} and 20 writers: {with:.3}, without {without:.3}",
            rate / 1_000_000
        );
        assert!((0.48..0.52).contains(&with), "{parts:?}");
    }
}

#[test]
fn jobs_of_several_hosts_share_a_link_by_their_weights() {
    let weighed = JobSpec { weight: 300, ..job(1, 1, 8) };
    for rate in RATES {
        let mut world = World::new(rate, &[&[weighed], &[job(1, 2, 20)]]);
        world.run(4, true);
        world.run(10, true);
        let part = world.part((1, 1));
        println!("{} MB/s, weights 300 and 100: {part:.3} and {:.3}", rate / 1_000_000, 1.0 - part);
        assert!((0.72..0.78).contains(&part), "{part}");
    }
}

#[test]
fn a_host_with_two_jobs_has_two_shares_and_a_job_of_two_hosts_one() {
    let mut world = World::new(RATES[0], &[&[job(1, 1, 8)], &[job(1, 2, 8), job(1, 3, 8)]]);
    world.run(4, true);
    world.run(10, true);
    for number in 1..4 {
        let part = world.part((1, number));
        assert!((0.30..0.37).contains(&part), "{number}: {part}");
    }
    let mut world = World::new(RATES[0], &[&[job(1, 1, 8)], &[job(1, 1, 8)], &[job(1, 2, 8)]]);
    world.run(4, true);
    world.run(10, true);
    assert!((0.46..0.54).contains(&world.part((1, 1))), "{}", world.part((1, 1)));
}

#[test]
fn users_share_a_link_before_their_jobs_do() {
    let many = [job(2, 2, 4), job(2, 3, 4), job(2, 4, 4)];
    let mut world = World::new(RATES[0], &[&[job(1, 1, 4)], &many]);
    world.run(4, true);
    world.run(10, true);
    assert!((0.46..0.54).contains(&world.part((1, 1))), "{}", world.part((1, 1)));
}

#[test]
fn what_a_job_does_not_use_goes_to_others() {
    // It sends a block each 200 ms: a fifth of what the link passes in its half.
    let seldom = JobSpec { pause: 200 * MILLISECOND, ..job(1, 1, 1) };
    let mut world = World::new(RATES[0], &[&[seldom], &[job(1, 2, 20)]]);
    world.run(2, true);
    world.run(10, true);
    assert!(world.used(10) > 0.99, "{}", world.used(10));
    assert!(!world.hosts[0].window.is_raised(world.now), "it asks for no more");
}

#[test]
fn factors_end_with_the_other_host() {
    let weighed = JobSpec { weight: 300, ..job(1, 1, 8) };
    let mut world = World::new(RATES[0], &[&[weighed], &[job(1, 2, 20)]]);
    world.run(4, true);
    assert!(world.hosts[0].window.is_raised(world.now));
    world.hosts[1].writers.iter_mut().for_each(|writer| writer.spec.pause = u64::MAX / 2);
    world.run(3, true);
    assert!(!world.hosts[0].window.is_raised(world.now));
    assert!(world.incoming.divide(world.now).is_empty());
}

#[test]
fn a_host_whose_reports_are_lost_counts_for_a_lease() {
    let one =
        |job| vec![JobUse { user: (1, 100), job: (job, 100), waits: true, bytes_per_second: job }];
    let mut incoming = Incoming::default();
    incoming.report(0, 7, one(1));
    assert!(incoming.divide(0).is_empty(), "one host alone");
    incoming.report(0, 9, one(3));
    let factors: BTreeMap<u32, f64> = incoming.divide(0).into_iter().collect();
    assert!(factors[&7] > 1.0 && factors[&9] == 1.0, "{factors:?}");
    incoming.report(LEASE_NANOS, 7, one(1));
    assert!(incoming.divide(LEASE_NANOS).is_empty());
    assert!(!incoming.is_empty());
    assert!(incoming.divide(2 * LEASE_NANOS).is_empty() && incoming.is_empty());
}

#[test]
fn a_wrong_report_has_a_bounded_effect() {
    let one = |job, bytes_per_second| {
        vec![JobUse { user: (1, 100), job: (job, 0), waits: true, bytes_per_second }; 5000]
    };
    let mut incoming = Incoming::default();
    for number in 1..=20 {
        incoming.report(number, 7, one(1, u64::MAX));
        incoming.report(number, 9, one(2, 0));
        for (host, factor) in incoming.divide(number) {
            assert!((1.0..=FACTOR_MAX).contains(&factor), "{host}: {factor}");
        }
    }
}

#[test]
fn a_factor_ends_by_itself_and_its_fraction_is_a_part_of_the_time() {
    let mut window = Window::default();
    (0..100).for_each(|_| window.note_end(SECOND));
    assert_eq!(window.places(0, 2), 2);
    window.set_factor(0, 1.25);
    let mut used = 2;
    let mut places = 0;
    for millisecond in 1..=400 {
        used = window.places(millisecond * MILLISECOND, used);
        places += used;
    }
    assert!((980..=1020).contains(&places), "{places} in 400 ms");
    assert_eq!(window.places(LEASE_NANOS, 2), 2);
    assert!(!window.is_raised(LEASE_NANOS));
}
