//! Names stay linearizable over all hosts while hosts are cut off, heard by nobody, connected and cut off
//! in turn, killed, added or leave, and while frames are lost or late: with `--metadata-sync always` and
//! followers.

use super::followers::{FOLLOWED, wait_until_all_have_copies};
use super::history::{Deed, Ending, NAMES, Operation, Verdict, verdict};
use super::{presences, status};
use crate::support::agent::{Agent, signal};
use crate::support::world::{HOSTS, SPARE, World};
use crate::support::{Random, wait_for};
use serde_json::Value;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Programs of each host.
const PROGRAMS: usize = 2;
/// Operations of a program before a fault, during it, and while it ends.
const DEEDS: [usize; 3] = [3, 10, 4];
/// A program that has so many failed operations in a round does no more. One that failed can have
/// happened at any later time, so each of them multiplies the orders that the search looks at.
const FAILED_MAX: usize = 3;
/// No part of a round takes this long, unless something hangs: the timeout of the instance bounds each
/// operation.
const ROUND: Duration = Duration::from_secs(300);
/// How often a host that flaps is cut off at least.
const FLAPS: usize = 6;

/// One fault, of a host if it names one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// Nothing reaches the host, and nothing of it reaches others.
    CutOff(usize),
    /// It hears the others, which do not hear it.
    Mute(usize),
    /// It is cut off and connected again and again.
    Flaps(usize),
    /// Its first daemon is killed, and starts again.
    Killed(usize),
    /// The spare host is added, and services go to it.
    Joins,
    /// The spare host leaves.
    Leaves,
    /// 30 % of all frames are lost.
    Loss,
    /// All frames are late.
    Delay,
}

impl Fault {
    /// The fault of a round: each kind in turn, of any host.
    fn of_round(round: u64, random: &mut Random) -> Fault {
        let host = usize::try_from(random.uniform(HOSTS.len() as u64)).expect("a host");
        match round % 8 {
            0 => Fault::CutOff(host),
            1 => Fault::Mute(host),
            2 => Fault::Flaps(host),
            3 => Fault::Killed(host),
            4 => Fault::Joins,
            5 => Fault::Leaves,
            6 => Fault::Loss,
            _ => Fault::Delay,
        }
    }

    const fn host(self) -> Option<usize> {
        match self {
            Fault::CutOff(host) | Fault::Mute(host) | Fault::Flaps(host) | Fault::Killed(host) => {
                Some(host)
            }
            Fault::Joins | Fault::Leaves | Fault::Loss | Fault::Delay => None,
        }
    }

    /// Begins it. One that flaps does so until `is_over`. `go_on` lets each program do one more
    /// operation: while hosts are added or leave they do one for each look at the instance.
    fn begin(self, world: &World, is_over: impl Fn() -> bool, go_on: impl Fn()) {
        let switch = world.switch();
        match self {
            Fault::CutOff(host) => switch.cut_off(host),
            Fault::Mute(host) => switch.mute(host),
            Fault::Flaps(host) => {
                let half = Duration::from_millis(150);
                let mut flaps = 0;
                while flaps < FLAPS || !is_over() {
                    switch.cut_off(host);
                    std::thread::sleep(half);
                    switch.heal();
                    std::thread::sleep(half);
                    flaps += 1;
                }
            }
            Fault::Killed(host) => signal(world.pid(HOSTS[host]), "-KILL"),
            Fault::Joins => {
                world.ok("a", &["grow", "--no-wait", "--timeout", "120s", "d 10.79.0.4"]);
                wait_in_round("a service is at the new daemon", || {
                    go_on();
                    let known = status(world)["membership"].clone();
                    let last = known["members"].as_array().map_or(0, Vec::len).saturating_sub(1);
                    let owners = known["owners"].as_array().cloned().unwrap_or_default();
                    owners.contains(&Value::from(last))
                });
            }
            Fault::Leaves => {
                let mut command = world.command("a", &["shrink", "--timeout", "120s", SPARE]);
                let mut command = command.spawn().expect("the script runs");
                wait_in_round("the host has left", || {
                    if presences(world).iter().any(|it| it == "leaving") {
                        go_on();
                    }
                    let ended = command.try_wait().expect("a child");
                    assert!(ended.is_none_or(|status| status.success()), "{ended:?}");
                    ended.is_some()
                });
            }
            Fault::Loss => switch.disturb(30, 0),
            Fault::Delay => switch.disturb(0, 50),
        }
    }

    fn end(self, world: &World) {
        if let Fault::Killed(_) = self {
            world.start();
        }
        world.switch().heal();
    }
}

/// As `wait_for`, for a part of a round.
fn wait_in_round(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < ROUND, "timeout: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// All daemons that have not left take part, and all services have copies.
fn wait_until_whole(world: &World) {
    wait_for("all daemons take part", || {
        let status = status(world);
        let leads = |one: &Value| one["state"]["membership"]["leads"] == true;
        let is_led = status["daemons"].as_array().expect("daemons").iter().any(leads);
        let of = |word: &str| status["membership"][word].as_array().cloned().unwrap_or_default();
        let is_there = |one: &Value| one["presence"] == "up" || one["presence"] == "left";
        is_led && of("members").iter().all(is_there) && of("owners").iter().all(Value::is_u64)
    });
    wait_until_all_have_copies(world);
}

/// The names of a round: in two directories, which have different services as a rule.
struct Paths([String; NAMES]);

impl Paths {
    fn of_round(round: u64) -> Paths {
        let path = |name: usize| format!("/forebay/{}{round}/{name}", ["r", "s"][name % 2]);
        Paths(std::array::from_fn(path))
    }

    /// Does an operation. Links have their number as target.
    fn act(&self, agent: &mut Agent, operation: Operation) -> Deed {
        let name = |name: usize| &self.0[name];
        let command = match operation {
            Operation::Make { name: of, link } => format!("symlink {link} {}", name(of)),
            Operation::Look { name: of } => format!("readlink {}", name(of)),
            Operation::Remove { name: of } => format!("unlink {}", name(of)),
            Operation::Move { from, to } => format!("rename {} {}", name(from), name(to)),
            Operation::Link { from, to } => format!("link {} {}", name(from), name(to)),
        };
        let began = Instant::now();
        let answer = agent.ask(&command);
        let ending = match answer.as_str() {
            "ok" => Ending::Done,
            "!2" => Ending::Absent,
            "!17" => Ending::Exists,
            "!5" => Ending::Failed,
            found => Ending::Found(found.parse().unwrap_or_else(|_| panic!("{command}: {answer}"))),
        };
        Deed { operation, began, ended: Instant::now(), ending }
    }
}

fn any_operation(random: &mut Random, links: &AtomicU32) -> Operation {
    let mut any = || usize::try_from(random.uniform(NAMES as u64)).expect("a name");
    let (one, other) = (any(), any());
    match random.uniform(8) {
        0..3 => Operation::Make { name: one, link: links.fetch_add(1, Ordering::Relaxed) },
        3 | 4 => Operation::Look { name: one },
        5 => Operation::Remove { name: one },
        6 => Operation::Move { from: one, to: other },
        _ => Operation::Link { from: one, to: other },
    }
}

/// How far a round is, for its programs.
struct Stage {
    paths: Paths,
    part: AtomicUsize,
    /// Operations that each program may do during the fault.
    pace: AtomicUsize,
    /// Links that were made.
    links: AtomicU32,
}

impl Stage {
    fn of_round(number: u64, fault: Fault) -> Stage {
        let is_paced = matches!(fault, Fault::Joins | Fault::Leaves);
        let pace = AtomicUsize::new(if is_paced { 0 } else { DEEDS[1] });
        let (part, links) = (AtomicUsize::new(0), AtomicU32::new(0));
        Stage { paths: Paths::of_round(number), part, pace, links }
    }

    /// The operations of a program; `done` has the number of parts that it did.
    fn run(&self, agent: &mut Agent, mut random: Random, done: &AtomicUsize) -> Vec<Deed> {
        let mut deeds = Vec::new();
        for (index, count) in DEEDS.into_iter().enumerate() {
            wait_in_round("the next part of a round", || {
                self.part.load(Ordering::Acquire) >= index
            });
            for number in 0..count {
                wait_in_round("the next operation", || {
                    index != 1 || number < self.pace.load(Ordering::Acquire)
                });
                let failed = deeds.iter().filter(|it: &&Deed| it.has_failed());
                if failed.count() < FAILED_MAX {
                    deeds.push(self.paths.act(agent, any_operation(&mut random, &self.links)));
                }
            }
            done.store(index + 1, Ordering::Release);
        }
        deeds
    }
}

/// One round. The programs do a part of their operations before, a part during, and a part while the
/// fault ends; it ends when the programs of other hosts have done the second part.
fn round(
    world: &World,
    agents: &mut [Agent],
    number: u64,
    random: &mut Random,
) -> (Fault, Vec<Vec<Deed>>) {
    let fault = Fault::of_round(number, random);
    let stage = Stage::of_round(number, fault);
    for name in ["r", "s"] {
        agents[0].ok(&format!("mkdir /forebay/{name}{number}"));
    }
    let done: Vec<AtomicUsize> = agents.iter().map(|_| AtomicUsize::new(0)).collect();
    let have_done = |parts: usize, is_all: bool| {
        let is_counted = |program: &usize| is_all || Some(program / PROGRAMS) != fault.host();
        let mut counted = (0..done.len()).filter(is_counted);
        counted.all(|program| done[program].load(Ordering::Acquire) >= parts)
    };
    let mut deeds = std::thread::scope(|scope| {
        let programs: Vec<_> = agents
            .iter_mut()
            .zip(&done)
            .map(|(agent, done)| {
                let (random, stage) = (Random::new(random.next()), &stage);
                scope.spawn(move || stage.run(agent, random, done))
            })
            .collect();
        wait_in_round("all programs have begun", || have_done(1, true));
        stage.part.store(1, Ordering::Release);
        let go_on = || {
            stage.pace.fetch_add(1, Ordering::Release);
        };
        fault.begin(world, || have_done(2, false), go_on);
        stage.pace.store(DEEDS[1], Ordering::Release);
        wait_in_round("programs of other hosts go on", || have_done(2, false));
        stage.part.store(2, Ordering::Release);
        fault.end(world);
        programs.into_iter().map(|program| program.join().expect("it ends")).collect::<Vec<_>>()
    });
    wait_until_whole(world);
    for (agent, deeds) in agents.iter_mut().zip(&mut deeds).step_by(PROGRAMS) {
        deeds.extend((0..NAMES).map(|name| stage.paths.act(agent, Operation::Look { name })));
        let mut last = deeds.iter().rev().take(NAMES);
        assert!(!last.any(Deed::has_failed), "without a fault: {deeds:?}");
    }
    (fault, deeds)
}

#[test]
fn names_are_linearizable_while_hosts_and_the_network_fail() {
    let mut settings = FOLLOWED.to_vec();
    settings.extend([
        ("FOREBAY_METADATA_SYNC", "always"),
        ("FOREBAY_CONSISTENCY", "posix"),
        // Or no host may leave.
        ("FOREBAY_REPLICAS", "2"),
    ]);
    let Some(world) = World::switched(&settings) else { return };
    wait_until_whole(&world);
    let agents = HOSTS.into_iter().flat_map(|host| [host; PROGRAMS]);
    let mut agents: Vec<_> =
        agents.map(|host| Agent::preloaded(&world, host, "/forebay")).collect();
    let seed = testkit::seed(1);
    let mut random = Random::new(seed);
    // Under loss, connections stand still for minutes: in long runs alone.
    let rounds = if testkit::is_long() { testkit::rounds(8) } else { 6 };
    for number in 0..rounds {
        let (fault, deeds) = round(&world, &mut agents, number, &mut random);
        let found = verdict(&deeds);
        let what = format!("TEST_SEED={seed}, round {number}, {fault:?}");
        assert!(found == Verdict::Explained, "{what}: {found:?}: {deeds:#?}");
    }
    drop(agents);
    world.end();
}
