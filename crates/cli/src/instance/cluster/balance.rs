//! The balance of the loads of metadata services: shown, turned on and off, and one look asked for
//! (`forebay balance`). The daemon that leads does it (`cluster::exchange`); here it is asked, and
//! watched until the services are where they are to be.
//!
//! Invariants
//! 1. A look is asked for where nothing else moves, so what is on its way afterwards is its doing.
//! 2. A command that is killed leaves an instance that can be asked again: what it asked for is done.

use super::replace::{LOOK_TIME, PAUSE, await_states, look, membership, recorded, without_leader};
use super::{call_without_result, micros, on_each};
use crate::commands::plural;
use crate::failure::{Failure, Result, USAGE};
use crate::instance::inspect::{self, DaemonReport, DaemonState};
use crate::instance::{host, survivors};
use crate::process::progress::Progress;
use crate::state::directories::{self, InstanceLock};
use crate::state::records::{self, HostEntry, HostRecord, InstanceRecord};
use config::InstanceConfig;
use config::control::{BalanceStatus, MembershipStatus};
use serde_json::json;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};
use wire::welcome::{BALANCE_NOW, BALANCE_OFF, BALANCE_ON};

/// The request of the command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Steering {
    /// Services move whenever that is a gain.
    On,
    /// They do not.
    Off,
    /// One look at the loads.
    Now,
}

impl Steering {
    const fn word(self) -> u32 {
        match self {
            Steering::On => BALANCE_ON,
            Steering::Off => BALANCE_OFF,
            Steering::Now => BALANCE_NOW,
        }
    }
}

/// State of a metadata service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ServicePlace {
    /// Nobody has it: the daemons with its log are down.
    Lost,
    /// It goes to this daemon for good.
    Going(u16),
    /// It is at a follower of its home, and goes back.
    Away,
    /// It moved lately, and stays for some seconds.
    Rests,
    /// A look would have it exchange its place with that of this service.
    Would(u32),
    /// The first service of its daemon, which keeps the accounts of the target there.
    Stays,
    /// None of these.
    Home,
}

/// A metadata service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ServiceRow {
    /// Its number.
    pub(crate) service: u32,
    /// The daemon that serves it.
    pub(crate) owner: Option<u16>,
    /// The daemon that owned it first.
    pub(crate) first: u16,
    /// The daemon to which it returns.
    pub(crate) home: u16,
    /// Operations per second; `None`: its owner has not said yet.
    pub(crate) load: Option<u64>,
    /// Where it is.
    pub(crate) place: ServicePlace,
}

/// The balance of an instance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Balance {
    /// Services move whenever that is a gain.
    pub(crate) is_on: bool,
    /// Services on their way to daemons that have fewer, or that will be.
    pub(crate) to_move: u64,
    /// All services.
    pub(crate) services: Vec<ServiceRow>,
    /// Pairs of services that a look would exchange, the one with the higher load first.
    pub(crate) plan: Vec<(u32, u32)>,
}

/// A service that moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moved {
    /// Its number.
    pub(crate) service: u32,
    /// Its home before.
    pub(crate) from: u16,
    /// Its home now.
    pub(crate) to: u16,
}

impl Balance {
    /// As the leader says it, in an instance that began with so many daemons.
    fn of(known: &MembershipStatus, status: &BalanceStatus, began: u16) -> Balance {
        let (moved, going): (BTreeMap<u32, u16>, BTreeMap<u32, u16>) =
            (status.moved.iter().copied().collect(), status.going.iter().copied().collect());
        let resting: BTreeSet<u32> = status.resting.iter().copied().collect();
        let mut partners = BTreeMap::new();
        for &(hot, cool) in &status.plan {
            partners.extend([(hot, cool), (cool, hot)]);
        }
        let row = |(service, &owner): (u32, &Option<u16>)| {
            let first = (service % u32::from(began.max(1))) as u16;
            let home = moved.get(&service).copied().unwrap_or(first);
            let is_first = service < u32::from(began) && !moved.contains_key(&service);
            let place = match owner {
                None => ServicePlace::Lost,
                Some(owner) if owner != home => ServicePlace::Away,
                _ if is_first => ServicePlace::Stays,
                _ => match (going.get(&service), partners.get(&service)) {
                    (Some(&next), _) => ServicePlace::Going(next),
                    (None, Some(&partner)) => ServicePlace::Would(partner),
                    _ if resting.contains(&service) => ServicePlace::Rests,
                    _ => ServicePlace::Home,
                },
            };
            let load = status.loads.get(service as usize).copied().flatten();
            ServiceRow { service, owner, first, home, load, place }
        };
        let services = (0..).zip(&known.owners).map(row).collect();
        let BalanceStatus { is_on, to_move, .. } = *status;
        Balance { is_on, to_move, services, plan: status.plan.clone() }
    }

    fn homes(&self) -> Vec<u16> {
        self.services.iter().map(|row| row.home).collect()
    }
}

/// Why the loads of this instance are not balanced, of which this many hosts are known.
fn check(name: &str, config: &InstanceConfig, hosts: usize) -> Result<()> {
    let refuse = |why: &str| {
        let text = format!("instance {name} has nothing to balance: {why}");
        Err(Failure::with_code(USAGE, text))
    };
    if hosts < 2 {
        return refuse("it runs on one host alone: start one on two or more, with --hosts");
    }
    if config.followers == 0 {
        return refuse(
            "its metadata services have no followers, and stay where they are: start one with \
             --followers 1 or more",
        );
    }
    Ok(())
}

/// Why the balance is not known, where the leader says nothing of it.
fn unknown(name: &str, is_any_alive: bool) -> Failure {
    match is_any_alive {
        true => without_leader(),
        false => {
            let why = "start them again ('forebay start')";
            Failure::at("no daemon is alive", format!("instance {name}"), why)
        }
    }
}

/// The balance of the instance `name`, with its daemons. Waits for a daemon that leads.
///
/// # Errors
/// There is no such instance, it has nothing to balance, or no daemon leads in time.
pub(crate) fn balance(name: &str, timeout: Duration) -> Result<(Balance, Vec<DaemonReport>)> {
    let until = Instant::now() + timeout;
    loop {
        let found = inspect::inspect(name, timeout)?;
        let hosts: BTreeSet<&str> = found.daemons.iter().map(|one| one.host.as_str()).collect();
        check(name, &found.config, hosts.len())?;
        let known = inspect::membership(&found.daemons).filter(|known| known.leads);
        if let Some((known, status)) = known.and_then(|it| Some((it, it.balance.as_ref()?))) {
            let balance = Balance::of(known, status, began(known, &found.config));
            return Ok((balance, found.daemons));
        }
        let is_any_alive = found.daemons.iter().any(|one| one.is_alive() != Some(false));
        if !is_any_alive || Instant::now() >= until {
            return Err(unknown(name, is_any_alive));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Daemons with which the instance began: each has as many services as workers.
fn began(known: &MembershipStatus, config: &InstanceConfig) -> u16 {
    let workers = usize::try_from(config.workers).unwrap_or(usize::MAX).max(1);
    u16::try_from(known.owners.len() / workers).unwrap_or(u16::MAX)
}

/// Turns the balance of the instance `name` on or off, or has it look once. Returns what moved.
///
/// # Errors
/// There is no such instance, it has nothing to balance, no daemon leads, or it is not done in time.
pub(crate) fn steer(name: &str, steering: Steering, timeout: Duration) -> Result<Vec<Moved>> {
    let run = directories::run(name)?;
    survivors::await_record(name)?;
    recorded(name, &run)?;
    let _lock = InstanceLock::take(name, timeout)?;
    // Another command may have changed it meanwhile.
    let instance = recorded(name, &run)?;
    check(name, &instance.config, instance.hosts.len())?;
    let states = look(&instance, &run, Instant::now() + LOOK_TIME)?;
    let is_dead = |states: &Vec<DaemonState>| states.iter().all(|state| !state.is_alive);
    if states.iter().all(|states| states.as_ref().is_ok_and(is_dead)) {
        return Err(unknown(name, false));
    }
    let of = Asked { instance: &instance, run: &run, timeout };
    match steering {
        Steering::Now => of.look_once(),
        steering => of.turn(steering).map(|()| Vec::new()),
    }
}

/// An instance that is asked for something.
struct Asked<'a> {
    instance: &'a InstanceRecord,
    run: &'a Path,
    timeout: Duration,
}

impl Asked<'_> {
    /// Looks at what the leader says until `why_not_yet` has no objection any more.
    fn await_balance(
        &self,
        why_not_yet: impl Fn(&MembershipStatus, &BalanceStatus) -> Result<Option<Failure>>,
    ) -> Result<()> {
        await_states(self.instance, self.run, self.timeout, |states| {
            let known = membership(states).and_then(|known| Some((known, known.balance.as_ref()?)));
            let Some((known, status)) = known else { return Ok(Some(without_leader())) };
            why_not_yet(known, status)
        })
    }

    /// Says it to all daemons that answer: the membership takes it once.
    fn say(&self, steering: Steering) -> Result<()> {
        let here: Option<HostRecord> = records::load(self.run, host::RECORD)?;
        let (name, word) = (&self.instance.name, steering.word());
        on_each(self.instance, "connecting", |entry: &HostEntry, _| {
            let said = if here.as_ref().is_some_and(|host| host.first == entry.first) {
                inspect::steer_balance(name, word, LOOK_TIME)
            } else {
                let timeout_us = micros(LOOK_TIME);
                let request = json!({ "name": name, "word": word, "timeout_us": timeout_us });
                call_without_result(self.instance, entry, "daemon-balance", &request.to_string())
            };
            // One that is dead takes no part.
            let _ = said;
            Ok(())
        })
        .map(drop)
    }

    fn turn(&self, steering: Steering) -> Result<()> {
        let is_on = steering == Steering::On;
        self.await_balance(|_, status| {
            if status.is_on == is_on {
                return Ok(None);
            }
            self.say(steering)?;
            Ok(Some(Failure::at("not done in time", "balance", "give the command again")))
        })
    }

    /// The balance before, once nothing moves.
    fn await_rest(&self) -> Result<(u64, Balance)> {
        let before = RefCell::new(None);
        self.await_balance(|known, status| {
            let why = why_no_rest(known, status);
            if why.is_none() {
                let balance = Balance::of(known, status, began(known, &self.instance.config));
                *before.borrow_mut() = Some((status.number, balance));
            }
            Ok(why)
        })?;
        before.into_inner().ok_or_else(without_leader)
    }

    fn look_once(&self) -> Result<Vec<Moved>> {
        let (number, before) = self.await_rest()?;
        self.await_balance(|_, status| {
            let late = Failure::at("not done in time", "balance", "give the command again");
            if is_answered(number, status) {
                return Ok(None);
            }
            if !status.is_asked {
                self.say(Steering::Now)?;
            }
            Ok(Some(late))
        })?;
        let moved = RefCell::new(Vec::new());
        self.await_balance(|known, status| {
            let after = Balance::of(known, status, began(known, &self.instance.config));
            *moved.borrow_mut() = moves(&before.homes(), &after.homes());
            let going = status.going.len() as u64;
            Ok((going > 0).then(|| {
                let services = plural(going, "metadata service");
                let why =
                    format!("{services} go on to other daemons: 'forebay balance' shows them");
                Failure::at("not ended", "the exchange", why)
            }))
        })?;
        Ok(moved.into_inner())
    }
}

/// Whether a look was done after the word of this number: asked for with the next one, done with that
/// after it.
const fn is_answered(number: u64, status: &BalanceStatus) -> bool {
    status.number >= number + 2 && !status.is_asked
}

/// Why a look would find nothing that it may move; `None`: it would.
fn why_no_rest(known: &MembershipStatus, status: &BalanceStatus) -> Option<Failure> {
    let absent = known.members.iter().position(|one| !matches!(&*one.presence, "up" | "left"));
    if let Some(daemon) = absent {
        let presence = known.members.get(daemon).map_or("", |one| one.presence.as_str());
        let why = format!("it is {presence}, and services move for an even load when all are up");
        return Some(Failure::at("busy", format!("daemon {daemon}"), why));
    }
    (status.to_move > 0 || status.is_asked).then(|| {
        let services = plural(status.to_move.max(1), "metadata service");
        let why = format!("{services} go to other daemons: try again when they are there");
        Failure::at("busy", "the instance changes", why)
    })
}

/// Services whose homes differ.
fn moves(before: &[u16], after: &[u16]) -> Vec<Moved> {
    let pairs = (0..).zip(before.iter().zip(after));
    let moved = pairs.filter(|(_, (from, to))| from != to);
    moved.map(|(service, (&from, &to))| Moved { service, from, to }).collect()
}

/// How far the services of an instance that has grown are.
#[derive(Default)]
struct Growth {
    /// Those that have to move yet, and most of these that were seen.
    left: u64,
    most: u64,
}

impl Growth {
    /// True if fewer are left than before.
    fn note(&mut self, left: u64) -> bool {
        let is_less = left < self.left || self.most == 0;
        (self.left, self.most) = (left, self.most.max(left));
        is_less
    }

    fn line(&self, elapsed: Duration) -> String {
        let Growth { left, most } = *self;
        let done = most.saturating_sub(left);
        let rest = match done {
            0 => String::new(),
            done => format!(", about {} s", elapsed.as_secs().saturating_mul(left) / done),
        };
        format!("{done} of {most} metadata services have moved{rest} ")
    }
}

/// Waits until the daemons of an instance that has grown have their part of its metadata services, as
/// long as one of these moves within `timeout`.
///
/// # Errors
/// None moves for so long, or no daemon leads.
pub(super) fn await_even(name: &str, run: &Path, timeout: Duration) -> Result<()> {
    let begun = Instant::now();
    let (mut progress, mut growth) = (Progress::new("waiting for the others"), Growth::default());
    let (mut changed, mut is_known) = (begun, false);
    loop {
        // Another command may change the instance meanwhile.
        let instance = recorded(name, run)?;
        let states = look(&instance, run, Instant::now() + LOOK_TIME)?;
        let known = membership(&states);
        if let Some(known) = known {
            // Without homes no service moves.
            let left = known.balance.as_ref().map_or(0, |balance| balance.to_move);
            if left == 0 {
                return Ok(());
            }
            if growth.note(left) {
                changed = Instant::now();
            }
            progress.show(growth.line(begun.elapsed()));
        }
        is_known |= known.is_some();
        if changed.elapsed() >= timeout {
            return Err(if is_known { unmoved(&growth) } else { without_leader() });
        }
        std::thread::sleep(PAUSE);
    }
}

fn unmoved(growth: &Growth) -> Failure {
    let Growth { left, most } = *growth;
    let why = format!(
        "the daemons take part, but {left} of {most} metadata services have not moved to them, and none \
         did for as long as --timeout: they go on, and 'forebay balance' shows which"
    );
    Failure::at("not ended", "the services of new daemons", why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::control::MemberStatus;
    use config::{Key, Settings, Sources};

    fn config(followers: &str) -> InstanceConfig {
        let options = [(Key::Domains, "auto"), (Key::Followers, followers), (Key::Workers, "2")];
        let options = options.map(|(key, text)| (key, text.to_owned())).into();
        let settings = Settings::resolve(&Sources { options, ..Sources::default() });
        InstanceConfig::new(&settings.expect("allowed")).expect("complete")
    }

    fn known(words: &[&str], owners: Vec<Option<u16>>) -> MembershipStatus {
        let member =
            |word: &&str| MemberStatus { presence: (*word).to_owned(), ..MemberStatus::default() };
        let members = words.iter().map(member).collect();
        MembershipStatus { leads: true, members, owners, ..MembershipStatus::default() }
    }

    #[test]
    fn each_service_has_one_state() {
        // Two daemons with three workers each; service 2 has moved to daemon 1 and 5 to daemon 0.
        let owners = [Some(0), Some(1), Some(1), None, Some(1), Some(0)];
        let status = BalanceStatus {
            is_on: true,
            loads: vec![Some(9), None],
            moved: vec![(2, 1), (5, 0)],
            going: vec![(5, 1)],
            resting: vec![2, 5],
            plan: vec![(2, 5)],
            ..BalanceStatus::default()
        };
        let balance = Balance::of(&known(&["up"; 2], owners.to_vec()), &status, 2);
        let places: Vec<ServicePlace> = balance.services.iter().map(|row| row.place).collect();
        use ServicePlace::{Away, Going, Lost, Stays, Would};
        assert_eq!(places, [Stays, Stays, Would(5), Lost, Away, Going(1)]);
        let homes: Vec<(u16, u16)> =
            balance.services.iter().map(|row| (row.first, row.home)).collect();
        assert_eq!(homes, [(0, 0), (1, 1), (0, 1), (1, 1), (0, 0), (1, 0)]);
        let loads: Vec<Option<u64>> = balance.services.iter().map(|row| row.load).collect();
        assert_eq!(loads, [Some(9), None, None, None, None, None]);
        // One that is where it should be rests, or does not.
        let status = BalanceStatus { plan: Vec::new(), going: Vec::new(), ..status };
        let balance = Balance::of(&known(&["up"; 2], owners.to_vec()), &status, 2);
        assert_eq!(balance.services[2].place, ServicePlace::Rests);
        let status = BalanceStatus { resting: Vec::new(), ..status };
        let balance = Balance::of(&known(&["up"; 2], owners.to_vec()), &status, 2);
        assert_eq!(balance.services[2].place, ServicePlace::Home);
    }

    #[test]
    fn an_instance_has_services_that_can_move() {
        assert!(check("x", &config("1"), 2).is_ok());
        for (followers, hosts, why) in [("1", 1, "--hosts"), ("0", 2, "--followers 1")] {
            let failure = check("x", &config(followers), hosts).expect_err(why);
            assert!(failure.text().contains(why), "{}", failure.text());
            assert_eq!((failure.code(), failure.text().lines().count()), (USAGE, 1));
        }
        assert!(unknown("x", false).text().contains("no daemon is alive"));
        assert!(unknown("x", true).text().contains("no majority"));
        assert_eq!(began(&known(&[], vec![None; 6]), &config("1")), 3);
    }

    #[test]
    fn a_look_waits_for_rest_and_for_its_answer() {
        let still = BalanceStatus { number: 3, ..BalanceStatus::default() };
        let up = known(&["up", "left", "up"], Vec::new());
        assert!(why_no_rest(&up, &still).is_none());
        let moving = BalanceStatus { to_move: 2, ..still.clone() };
        let asked = BalanceStatus { is_asked: true, ..still.clone() };
        for (words, status, why) in [
            (["up", "down", "up"], &still, "daemon 1"),
            (["up", "up", "leaving"], &still, "it is leaving"),
            (["up"; 3], &moving, "2 metadata services"),
            (["up"; 3], &asked, "the instance changes"),
        ] {
            let failure = why_no_rest(&known(&words, Vec::new()), status).expect(why);
            assert!(failure.text().contains(why), "{}", failure.text());
            assert_eq!(failure.text().lines().count(), 1);
        }
        let is_answered = |number, is_asked| {
            is_answered(3, &BalanceStatus { number, is_asked, ..BalanceStatus::default() })
        };
        assert!(!is_answered(3, false) && !is_answered(4, true) && !is_answered(5, true));
        // At 4 another word was first.
        assert!(!is_answered(4, false) && is_answered(5, false));
        let moved = Moved { service: 1, from: 0, to: 2 };
        assert_eq!(moves(&[0, 0, 1], &[0, 2, 1]), [moved]);
    }

    #[test]
    fn services_that_move_are_counted() {
        let mut growth = Growth::default();
        assert!(growth.note(4) && !growth.note(4) && growth.note(3));
        assert_eq!(
            growth.line(Duration::from_secs(2)),
            "1 of 4 metadata services have moved, about 6 s "
        );
        // More of them, as another daemon came, are no progress.
        assert!(!growth.note(6));
        assert_eq!(growth.line(Duration::from_secs(9)), "0 of 6 metadata services have moved ");
        let text = unmoved(&growth).text().to_owned();
        assert!(text.contains("6 of 6") && text.lines().count() == 1, "{text}");
    }
}
