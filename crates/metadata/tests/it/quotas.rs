//! Quotas (`quota::coordinator`, `quota::grants`): three services and their targets, users that
//! create and remove files and take space, lost and duplicated messages, services that are killed.
//! At no step is more in use than the hard limit, unless root caused it; when all is quiet the
//! report equals a count of all files, and free quota can be used.

use crate::sim::simulation::QUOTAS;
use crate::sim::{Answer, NOTHING, Random, World};
use metadata::Input;
use std::collections::{BTreeMap, BTreeSet};
use wire::quota::{Account, AccountUsage, Limits};
use wire::request::set;
use wire::{Attributes, Credentials, Errno, Inode, Reader, Request, ShardIndex};

const USERS: [u32; 3] = [1001, 1002, 1003];
const DAY_NANOS: i64 = 24 * 60 * 60 * 1_000_000_000;

fn set_quota(world: &mut World, account: Account, limits: Limits) -> Answer {
    let Limits { space_soft, space_hard, inodes_soft, inodes_hard, grace } = limits;
    let account = account.0;
    let request =
        Request::SetQuota { account, space_soft, space_hard, inodes_soft, inodes_hard, grace };
    call(world, Credentials::ROOT, &request)
}

fn call(world: &mut World, caller: Credentials, request: &Request<'_>) -> Answer {
    call_shard(world, caller, ShardIndex(0), request)
}

/// Repeats a request until it is answered; time passes. (With soft limits services never come to
/// rest.)
fn call_shard(
    world: &mut World,
    caller: Credentials,
    shard: ShardIndex,
    request: &Request<'_>,
) -> Answer {
    for _ in 0..100 {
        let ticket = world.send(caller, shard, request);
        run(world, 400_000_000);
        match world.answer(ticket) {
            Some(Answer::Busy) | None => {}
            Some(answer) => return answer,
        }
    }
    panic!("no answer to {request:?}");
}

/// Lets time pass, and delivers all messages on the way.
fn run(world: &mut World, nanos: i64) {
    let end = world.now + nanos;
    loop {
        deliver(world);
        let deadlines = world.seats.iter().map(|seat| seat.service.deadline());
        let next = deadlines.enumerate().filter_map(|(at, when)| Some((when?, at))).min();
        match next {
            Some((when, at)) if when <= end => {
                world.now = world.now.max(when);
                world.step(at, Input::Tick);
            }
            _ => break,
        }
    }
    world.now = end;
}

fn deliver(world: &mut World) {
    while !world.queue.is_empty() || world.seats.iter().any(|seat| !seat.data.is_empty()) {
        if !world.queue.is_empty() {
            world.settle_for(1);
        }
        for at in 0..world.seats.len() {
            world.answer_data(at, Ok(()));
        }
    }
}

fn report(world: &mut World) -> Vec<AccountUsage> {
    let mut usages: Vec<AccountUsage> = vec![];
    loop {
        let from = usages.last().map_or(0, |usage| usage.account.0 + 1);
        let bytes = match call(world, Credentials::ROOT, &Request::Quotas { from }) {
            Answer::Bytes(bytes) => bytes,
            other => panic!("{other:?}"),
        };
        if bytes.is_empty() {
            return usages;
        }
        let mut reader = Reader::new(&bytes);
        while !reader.rest().is_empty() {
            usages.push(AccountUsage::decode(&mut reader).expect("a row"));
        }
    }
}

fn usage(world: &mut World, account: Account) -> AccountUsage {
    let usages = report(world);
    usages.into_iter().find(|usage| usage.account == account).unwrap_or(AccountUsage::of(account))
}

fn directories(world: &mut World, count: usize) -> Vec<Inode> {
    (0..count)
        .map(|number| {
            let name = format!("d{number}").into_bytes();
            let made = world.root().directory(Inode::ROOT, &name).expect("made").inode;
            world.root().chmod(made, 0o777).expect("changed");
            made
        })
        .collect()
}

fn make(world: &mut World, uid: u32, parent: Inode, name: &[u8]) -> Answer {
    let (mode, device, flags) = (wire::attributes::mode::REGULAR | 0o644, 0, 1);
    let layout = world.seats[0].service.attributes_of(Inode::ROOT).map(|of| of.layout);
    let layout = layout.unwrap_or_default();
    let request = Request::Create { parent, name, mode, device, flags, layout, target: b"" };
    let shard = world.shard_of_name(parent, name);
    call_shard(world, user(uid), shard, &request)
}

fn user(uid: u32) -> Credentials {
    Credentials::of(uid, 100)
}

/// A daemon that is added has a service without files, which limits what is on its target.
#[test]
fn a_service_that_is_added_learns_the_limits() {
    let mut world = World::growing(2, 3);
    let limits = Limits { space_hard: 1 << 20, ..Limits::default() };
    let account = Account::user(1001);
    assert_eq!(set_quota(&mut world, account, limits), Answer::Done);
    assert_eq!(usage(&mut world, account).limits, limits);
    assert!(world.seats[2].log.is_empty(), "nobody knew of it");
    world.grow(3);
    run(&mut world, 2_000_000_000);
    assert!(!world.seats[2].log.is_empty(), "it keeps what it was told");
    let known = world.seats[2].log.len();
    assert_eq!(usage(&mut world, account).limits, limits);
    run(&mut world, 2_000_000_000);
    assert_eq!(world.seats[2].log.len(), known, "once");
    // From now on all three have to know.
    let more = Limits { space_hard: 2 << 20, ..limits };
    assert_eq!(set_quota(&mut world, account, more), Answer::Done);
    assert!(world.seats[2].log.len() > known);
}

#[test]
fn the_hard_limit_of_inodes_is_reached_exactly() {
    let mut world = World::daemons(3);
    let places = directories(&mut world, 4);
    let account = Account::user(1001);
    let limits = Limits { inodes_hard: 10, ..Limits::default() };
    assert_eq!(set_quota(&mut world, account, limits), Answer::Done);
    let mut made = vec![];
    for number in 0..40 {
        let name = format!("f{number}").into_bytes();
        let parent = places[number % places.len()];
        match world.user(1001, 100).file(parent, &name) {
            Ok(_) => made.push((parent, name)),
            Err(errno) => assert_eq!(errno, Errno::EDQUOT),
        }
    }
    assert_eq!(made.len(), 10);
    assert_eq!(usage(&mut world, account).inodes, 10);
    // Other users are not limited, nor is root.
    world.user(1002, 100).file(places[0], b"another").expect("made");
    // A removed file frees quota at once, on any service.
    let (parent, name) = made.pop().expect("a file");
    world.user(1001, 100).unlink(parent, &name).expect("removed");
    for &place in places.iter().rev() {
        let again = world.user(1001, 100).directory(place, b"again");
        assert_eq!(again.map(drop), if place == places[3] { Ok(()) } else { Err(Errno::EDQUOT) });
    }
    // Root gives files to the user: that is counted, and the user can create none.
    let other = world.root().file(places[0], b"root").expect("made").inode;
    world.root().set(other, set::UID, Attributes { uid: 1001, ..NOTHING }).expect("changed");
    assert_eq!(usage(&mut world, account).inodes, 11);
    assert_eq!(world.user(1001, 100).file(places[1], b"more"), Err(Errno::EDQUOT));
    // Removing the limits takes effect.
    assert_eq!(set_quota(&mut world, account, Limits::default()), Answer::Done);
    world.user(1001, 100).file(places[1], b"more").expect("made");
}

#[test]
fn a_soft_limit_holds_after_its_grace_period() {
    let mut world = World::daemons(2);
    let place = directories(&mut world, 1)[0];
    let account = Account::user(1001);
    let limits = Limits { inodes_soft: 2, inodes_hard: 5, grace: 86_400, ..Limits::default() };
    assert_eq!(set_quota(&mut world, account, limits), Answer::Done);
    let is_made = |answer| matches!(answer, Answer::Created(_));
    for name in [b"a", b"b", b"c"] {
        assert!(is_made(make(&mut world, 1001, place, name)));
    }
    run(&mut world, 2_000_000_000);
    let since = usage(&mut world, account).inodes_since;
    assert!(since != 0 && since <= world.now.cast_unsigned());
    run(&mut world, DAY_NANOS / 2);
    assert!(is_made(make(&mut world, 1001, place, b"d")));
    // A restart does not reset the grace period.
    world.crash(0);
    run(&mut world, DAY_NANOS / 2 + 2_000_000_000);
    assert_eq!(make(&mut world, 1001, place, b"e"), Answer::Refused(Errno::EDQUOT));
    for name in [b"a", b"b", b"c"] {
        let shard = world.shard_of_name(place, name);
        let request = Request::Unlink { parent: place, name };
        assert_eq!(call_shard(&mut world, user(1001), shard, &request), Answer::Done);
    }
    run(&mut world, 2_000_000_000);
    assert_eq!(usage(&mut world, account).inodes_since, 0);
    assert!(is_made(make(&mut world, 1001, place, b"a")));
}

#[test]
fn projects_are_inherited_and_not_left_by_renames() {
    let mut world = World::daemons(2);
    let places = directories(&mut world, 2);
    let project = Account::project(7).expect("a project");
    let of_seven = Attributes { size: 7, ..NOTHING };
    world.root().set(places[0], set::PROJECT, of_seven).expect("set");
    assert_eq!(world.user(1001, 1).set(places[0], set::PROJECT, of_seven), Err(Errno::EPERM));
    let inside = world.user(1001, 100).directory(places[0], b"inside").expect("made");
    assert_eq!(inside.project, 7);
    let file = world.user(1001, 100).file(inside.inode, b"file").expect("made");
    assert_eq!(usage(&mut world, project).inodes, 3);
    world.user(1001, 100).file(places[1], b"outside").expect("made");
    let mut as_user = world.user(1001, 100);
    let (from, to) = ((places[1], b"outside".as_slice()), (inside.inode, b"x".as_slice()));
    assert_eq!(as_user.rename(from, to, 0), Err(Errno::EXDEV));
    let outside = as_user.look(places[1], b"outside").expect("there").inode;
    assert_eq!(as_user.link(outside, inside.inode, b"x"), Err(Errno::EXDEV));
    // Moved out of it, a file still counts for it, as on XFS.
    as_user.rename((inside.inode, b"file"), (places[1], b"file"), 0).expect("renamed");
    assert_eq!(world.stat(file.inode).expect("there").project, 7);
    assert_eq!(usage(&mut world, project).inodes, 3);
    let limits = Limits { inodes_hard: 3, ..Limits::default() };
    assert_eq!(set_quota(&mut world, project, limits), Answer::Done);
    assert_eq!(world.user(1002, 100).file(places[0], b"y"), Err(Errno::EDQUOT));
    world.root().file(places[0], b"y").expect("root is not limited");
    assert_eq!(usage(&mut world, project).inodes, 4);
}

#[test]
fn limits_are_set_by_the_owner_of_the_instance() {
    let mut world = World::single();
    let request = |account: Account, soft, hard| Request::SetQuota {
        account: account.0,
        space_soft: soft,
        space_hard: hard,
        inodes_soft: 0,
        inodes_hard: 0,
        grace: 0,
    };
    let mut ask =
        |caller, account, soft, hard| call(&mut world, caller, &request(account, soft, hard));
    let one = Account::user(1001);
    assert_eq!(ask(user(1001), one, 0, 1), Answer::Refused(Errno::EPERM));
    assert_eq!(ask(Credentials::ROOT, Account::user(0), 0, 1), Answer::Refused(Errno::EINVAL));
    assert_eq!(ask(Credentials::ROOT, one, 2, 1), Answer::Refused(Errno::EINVAL));
    assert_eq!(ask(Credentials::ROOT, one, 1, 2), Answer::Done);
    let limits = usage(&mut world, one).limits;
    assert_eq!((limits.space_soft, limits.space_hard), (1, 2));
}

/// A random history of a few users.
struct Life {
    world: World,
    random: Random,
    places: Vec<Inode>,
    hard: BTreeMap<u32, (u64, u64)>,
    /// Pending requests: user, parent, name.
    pending: BTreeMap<u64, (u32, Inode, Vec<u8>)>,
    files: Vec<(u32, Inode, Vec<u8>, Inode)>,
    seen: BTreeSet<Inode>,
    made: usize,
}

impl Life {
    fn new(seed: u64) -> Life {
        let mut world = World::daemons(3);
        let places = directories(&mut world, 5);
        let hard = [(1001, (12, 300)), (1002, (5, 40))].into();
        Life {
            world,
            random: Random(seed),
            places,
            hard,
            pending: BTreeMap::new(),
            files: vec![],
            seen: BTreeSet::new(),
            made: 0,
        }
    }

    fn create(&mut self) {
        let uid = USERS[self.random.uniform(USERS.len())];
        let parent = self.places[self.random.uniform(self.places.len())];
        self.made += 1;
        let name = format!("n{}", self.made).into_bytes();
        let mode = wire::attributes::mode::REGULAR | 0o644;
        let layout = self.world.seats[0].service.attributes_of(Inode::ROOT).map(|of| of.layout);
        let request = Request::Create {
            parent,
            name: &name,
            mode,
            device: 0,
            flags: 1,
            layout: layout.unwrap_or_default(),
            target: b"",
        };
        let shard = self.world.shard_of_name(parent, &name);
        let ticket = self.world.send(user(uid), shard, &request);
        self.pending.insert(ticket, (uid, parent, name));
    }

    fn take_answers(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        for (ticket, (uid, parent, name)) in pending {
            match self.world.answer(ticket) {
                Some(Answer::Created(made)) => {
                    self.seen.insert(made.inode);
                    self.files.push((uid, parent, name, made.inode));
                }
                Some(Answer::Refused(errno)) => {
                    assert_eq!(errno, Errno::EDQUOT);
                    assert!(self.hard.contains_key(&uid), "{uid} is not limited");
                }
                Some(_) => {}
                None => drop(self.pending.insert(ticket, (uid, parent, name))),
            }
        }
    }

    fn remove(&mut self) {
        if self.files.is_empty() {
            return;
        }
        let (uid, parent, name, _) = self.files.swap_remove(self.random.uniform(self.files.len()));
        let shard = self.world.shard_of_name(parent, &name);
        self.world.send(user(uid), shard, &Request::Unlink { parent, name: &name });
    }

    /// A target takes or frees space.
    fn space(&mut self) {
        let at = self.random.uniform(self.world.seats.len());
        let uid = USERS[self.random.uniform(USERS.len())];
        let account = Account::user(uid);
        let bytes = 1 + self.random.uniform(30) as u64;
        let holdings = &mut self.world.seats[at].host_view.holdings;
        let used = holdings.used.entry(account.0).or_default();
        if self.random.chance(40) {
            *used = used.saturating_sub(bytes);
            return;
        }
        match holdings.allowed.get(&account.0).copied() {
            Some(allowed) if *used + bytes > allowed => {
                self.world.step(at, Input::DrawSpace { account, more: bytes });
            }
            _ if self.hard.contains_key(&uid) && !holdings.allowed.contains_key(&account.0) => {}
            _ => *used += bytes,
        }
    }

    fn crash(&mut self) {
        let at = self.random.uniform(self.world.seats.len());
        self.world.seats[at].host_view.holdings.allowed.clear();
        self.world.crash(at);
        // Its pending requests get no answer.
        let world = &self.world;
        let pending = std::mem::take(&mut self.pending);
        let is_left =
            |parent: Inode, name: &[u8]| world.owner(world.shard_of_name(parent, name)) != at;
        self.pending = pending.into_iter().filter(|(_, (_, p, n))| is_left(*p, n)).collect();
    }

    fn used(&self, uid: u32) -> (u64, u64) {
        let account = Account::user(uid);
        let inodes = self.world.seats.iter().map(|seat| seat.service.usage_of(account).0);
        let space = self.world.seats.iter().map(|seat| {
            let held = seat.host_view.holdings.used.get(&account.0).copied().unwrap_or(0);
            held + seat.service.usage_of(account).1
        });
        (inodes.sum(), space.sum())
    }

    fn check(&self) {
        for (&uid, &(inodes, space)) in &self.hard {
            let used = self.used(uid);
            assert!(used.0 <= inodes && used.1 <= space, "{uid} uses {used:?}");
        }
    }

    fn step(&mut self) {
        match self.random.uniform(100) {
            0..25 => self.create(),
            25..35 => self.remove(),
            35..60 => self.space(),
            60..61 => self.crash(),
            61..90 => self.message(),
            _ => {
                self.world.now += self.random.uniform(8_000_000) as i64;
                self.world.do_what_is_due();
            }
        }
        self.take_answers();
        self.check();
    }

    /// A message arrives, is lost, or is duplicated.
    fn message(&mut self) {
        for _ in 0..1 + self.random.uniform(6) {
            if self.world.queue.is_empty() {
                return;
            }
            let place = self.random.uniform(self.world.queue.len().min(4));
            let (to, bytes) = match self.random.uniform(20) {
                0 => self.world.queue[place].clone(),
                _ => self.world.queue.remove(place),
            };
            if !self.random.chance(8) {
                self.world.step(to, Input::Peer { message: &bytes });
            }
            for at in 0..self.world.seats.len() {
                self.world.answer_data(at, Ok(()));
            }
        }
    }

    /// When all is quiet, the report equals the usage, and free quota can be used.
    fn rest(&mut self) {
        run(&mut self.world, 10_000_000_000);
        self.take_answers();
        self.check();
        let usages = report(&mut self.world);
        for uid in USERS {
            let account = Account::user(uid);
            let own = usages.iter().find(|usage| usage.account == account);
            let reported = own.map_or((0, 0), |usage| (usage.inodes, usage.space));
            assert_eq!(reported, self.used(uid), "{uid}");
            let world = &self.world;
            let attributes = |&inode: &Inode| {
                world.seats.iter().find_map(|seat| seat.service.attributes_of(inode))
            };
            let walked = self.seen.iter().filter_map(attributes).filter(|of| of.uid == uid).count();
            assert_eq!(reported.0, walked as u64, "{uid}");
        }
        for (uid, (inodes, _)) in self.hard.clone() {
            let left = inodes - self.used(uid).0;
            for _ in 0..left {
                self.made += 1;
                let name = format!("n{}", self.made).into_bytes();
                let parent = self.places[self.random.uniform(self.places.len())];
                let made = self.world.user(uid, 100).file(parent, &name).expect("below the limit");
                self.seen.insert(made.inode);
                self.files.push((uid, parent, name, made.inode));
            }
            let parent = self.places[0];
            let over = self.world.user(uid, 100).file(parent, b"over");
            assert_eq!(over, Err(Errno::EDQUOT));
        }
    }
}

#[test]
fn limits_hold_with_lost_messages_and_killed_services() {
    QUOTAS.run(|seed| {
        let mut life = Life::new(seed);
        for (uid, (inodes_hard, space_hard)) in life.hard.clone() {
            let limits = Limits { inodes_hard, space_hard, ..Limits::default() };
            let done = set_quota(&mut life.world, Account::user(uid), limits);
            assert_eq!(done, Answer::Done);
        }
        for part in 0..3 {
            for _ in 0..1000 {
                life.step();
            }
            println!("part {part}: {} files", life.files.len());
            life.rest();
        }
        life.world.steps
    });
}
