//! Hosts that see each other's changes as processes of one host do: the mode `posix` of
//! docs/semantics.md. Programs on two hosts, preloaded and on a mount, work on the same files, one
//! operation at a time against a model, and all at a time with a look at what is left.
//!
//! Namespaces need root, a mount needs `/dev/fuse`. Without, the tests say so and state nothing.

mod support;

use std::time::{Duration, Instant};
use support::agent::{Agent, Mount, crc32, signal};
use support::world::{HOSTS, World};
use support::{Random, setting, wait_for};

/// Agents of two hosts, and of a third with two daemons: preloaded, and on mounts where there can be.
fn seats(world: &World, mounts: &[Mount]) -> Vec<Agent> {
    let mut seats: Vec<Agent> =
        HOSTS.iter().map(|host| Agent::preloaded(world, host, "/forebay")).collect();
    seats.extend(mounts.iter().map(Agent::on));
    seats
}

fn mounts(world: &World) -> Vec<Mount> {
    ["a", "b"].iter().filter_map(|host| Mount::new(world, host)).collect()
}

/// One operation after the other, from all sides, on files that many have open: each answer is what a
/// local file would give.
fn run_model(world: &World, seed: u64, operations: u64) {
    let mounts = mounts(world);
    let mut seats = seats(world, &mounts);
    let mut random = Random::new(seed);
    let mut model = vec![Vec::<u8>::new(); 3];
    for file in 0..3 {
        // Their shards, and so their first openers, are on different hosts.
        seats[0].ok(&format!("mkdir d{file}"));
        seats[file].ok(&format!("open x d{file}/f{file} c"));
        seats[file].ok("close x");
    }
    for number in 0..operations {
        let seat = random.below(seats.len() as u64) as usize;
        let file = random.below(3) as usize;
        let what = format!("seed {seed}, operation {number} on f{file} by {}", seats[seat].name);
        operate(&mut seats[seat], file, &mut model[file], &mut random, &what);
    }
    for (file, bytes) in model.iter().enumerate() {
        for seat in &mut seats {
            let said = seat.ok(&format!("read {file} d{file}/f{file} 0 1000000"));
            assert_eq!(said, format!("{} {}", bytes.len(), crc32(bytes)), "{}: f{file}", seat.name);
        }
    }
}

/// One operation on a file whose contents are to be `bytes`, and then are what they are afterwards.
fn operate(seat: &mut Agent, file: usize, bytes: &mut Vec<u8>, random: &mut Random, what: &str) {
    let path = format!("d{file}/f{file}");
    let limit = [200, 6000, 70_000, 300_000][random.below(4) as usize];
    let (offset, length) = (random.below(limit) as usize, 1 + random.below(limit) as usize);
    let (byte, end) = (1 + random.below(255) as u8, bytes.len());
    match random.below(16) {
        0..4 => {
            let said = seat.ok(&format!("read {file} {path} {offset} {length}"));
            let wanted = &bytes[offset.min(end)..(offset + length).min(end)];
            let wanted = format!("{} {}", wanted.len(), crc32(wanted));
            assert_eq!(said, wanted, "{what}: read {offset}+{length} of {end}");
        }
        4..7 => {
            seat.ok(&format!("write {file} {path} {offset} {length} {byte}"));
            bytes.resize(end.max(offset + length), 0);
            bytes[offset..offset + length].fill(byte);
        }
        7..9 => {
            seat.ok(&format!("append {file} {path} {length} {byte}"));
            bytes.resize(end + length, byte);
        }
        9 => {
            seat.ok(&format!("cut {file} {path} {offset}"));
            bytes.resize(offset, 0);
        }
        10 => {
            seat.ok(&format!("truncate {path} {offset}"));
            bytes.resize(offset, 0);
        }
        11 => {
            seat.ok(&format!("empty {path}"));
            bytes.clear();
        }
        12 => assert_eq!(seat.ok(&format!("stat {path}")), end.to_string(), "{what}: stat"),
        13 => {
            assert_eq!(seat.ok(&format!("fstat {file} {path}")), end.to_string(), "{what}: fstat")
        }
        14 => assert_eq!(seat.ok(&format!("end {file} {path}")), end.to_string(), "{what}: end"),
        _ => {
            seat.ok(&format!("close {file}"));
        }
    }
}

/// "What was written is seen at once on every host" (docs/semantics.md).
#[test]
fn one_operation_after_the_other_is_as_on_one_host() {
    let Some(world) = World::posix() else { return };
    run_model(&world, setting("TEST_SEED", 1), setting("STEPS", 1500));
    world.end();
}

/// "The mode is a directory's" (docs/semantics.md).
#[test]
fn the_mode_is_chosen_for_each_directory_and_inherited() {
    let Some(world) = World::started(&[("FOREBAY_CONSISTENCY", "relaxed")]) else { return };
    let mut seats = ["a", "b"].map(|host| Agent::preloaded(&world, host, "/forebay"));
    seats[0].ok("mkdir old");
    seats[0].ok("mkdir shared");
    seats[0].ok("open f shared/before c");
    let layout = |words: &[&str]| {
        let said = world.ok("b", &[&["layout"], words].concat());
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        said["consistency"].as_str().expect("a mode").to_owned()
    };
    assert_eq!(layout(&["get", "--json", "/forebay/shared"]), "relaxed");
    let set = ["set", "--json", "--consistency", "posix", "/forebay/shared"];
    assert_eq!(layout(&set), "posix");
    seats[1].ok("mkdir shared/below");
    assert_eq!(layout(&["get", "--json", "/forebay/shared/below"]), "posix");
    seats[1].ok("open f shared/below/new c");
    assert_eq!(layout(&["get", "--json", "/forebay/shared/below/new"]), "posix");
    // What was there, and what is elsewhere, stays as it was.
    assert_eq!(layout(&["get", "--json", "/forebay/shared/before"]), "relaxed");
    assert_eq!(layout(&["get", "--json", "/forebay/old"]), "relaxed");
    assert_eq!(seats[0].ok("getxattr shared user.forebay.consistency"), "posix");
    let mistake = seats[0].ask("setxattr shared user.forebay.consistency strict");
    assert_eq!(mistake, "!22");
    let file = seats[0].ask("setxattr shared/before user.forebay.consistency posix");
    assert_eq!(file, "!20");
    // Both at a time: what another host wrote shows at once in one of them, and in the other when it is
    // told.
    for (path, at_once) in [("shared/below/x", "10000"), ("old/x", "0")] {
        seats[0].ok(&format!("open x {path} c"));
        seats[0].ok(&format!("write x {path} 0 10000 7"));
        assert_eq!(seats[1].ok(&format!("stat {path}")), at_once, "{path}");
        seats[0].ok(&format!("fsync x {path}"));
        assert_eq!(seats[1].ok(&format!("stat {path}")), "10000", "{path}");
        seats[0].ok("close x");
    }
    layout(&["set", "--json", "--consistency", "relaxed", "/forebay/shared"]);
    seats[1].ok("mkdir shared/later");
    assert_eq!(layout(&["get", "--json", "/forebay/shared/later"]), "relaxed");
    for (words, why) in [
        (["get", "--json", "/forebay/absent"], "no such file or directory"),
        (["get", "--json", "/etc"], "it is seen at /forebay"),
    ] {
        let output = world.on("a", &[&["layout"], &words[..]].concat());
        let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
        assert!(
            !output.status.success() && said.lines().count() == 1 && said.contains(why),
            "{said}"
        );
    }
    drop(seats);
    world.end();
}

/// Appends records until the emptier is done, and then so many: path, number of the appender, count.
/// A record says whose it is, its number and its length.
const APPENDER: &str = r#"
import os, random
path, me, count = PATH, ME, COUNT
r = random.Random(me)
fd = os.open(path, os.O_WRONLY | os.O_APPEND)
n, left = -1, count
while left > 0:
    n += 1
    if os.path.exists(path + '.done'): left -= 1
    length = r.choice([60, 100, 1000, 5000, 13000, 40000])
    head = b'[%02d %06d %06d ' % (me, n, length)
    record = head + b'%d' % (me % 10) * (length - len(head) - 1) + b']'
    assert len(record) == length and os.write(fd, record) == length
os.close(fd)
said = 'ok'
"#;

/// Empties a file so many times, when something was appended since, and says that it is done: path,
/// count. Or until another one is done.
const EMPTIER: &str = r#"
import os, time
def done(): return os.path.exists(PATH + '.done')
for n in range(COUNT):
    while os.stat(PATH).st_size == 0 and not done(): time.sleep(0.0005)
    if done(): break
    if n % 2: os.truncate(PATH, 0)
    else: os.close(os.open(PATH, os.O_WRONLY | os.O_TRUNC))
os.close(os.open(PATH + '.done', os.O_WRONLY | os.O_CREAT))
said = 'ok'
"#;

/// Looks at what `APPENDER`s left: whole records alone, each appender's in order and none twice. Says how
/// many of each there are; an emptier may have been the last.
const RECORDS: &str = r#"
data, at, last, counts, seen = open(PATH, 'rb').read(), 0, {}, {}, []
while at < len(data):
    head = data[at:at + 18].split()
    assert len(head) == 3 and head[0][:1] == b'[', f'{at}: {data[at:at + 40]} {seen}'
    me, n, length = int(head[0][1:]), int(head[1]), int(head[2])
    rest = data[at + 18:at + length]
    assert rest == b'%d' % (me % 10) * (length - 19) + b']', f'{at}: torn: {me} {n} {seen}'
    seen = (seen + [(at, me, n, length)])[-9:]
    assert n > last.get(me, -1), f'{at}: {me} {n} after {last[me]}'
    last[me], counts[me] = n, counts.get(me, 0) + 1
    at += length
said = ' '.join(f'{me}:{counts[me]}' for me in sorted(counts)) or 'none'
"#;

/// All hosts append to a file, `count` records each once one of two others has emptied it `empties`
/// times. What is left is looked at from two hosts.
fn appended(
    world: &World,
    (seats, others): (&mut [Agent], &mut [Agent; 2]),
    path: &str,
    (empties, count): (u32, u32),
) -> String {
    let quoted = format!("'{path}'");
    others[0].ok(&format!("open x {path} c"));
    if empties == 0 {
        others[0].ok(&format!("open x {path}.done c"));
    }
    others[0].ok("close x");
    for (me, seat) in seats.iter_mut().enumerate() {
        let (me, count) = (me.to_string(), count.to_string());
        let words = [("PATH", quoted.as_str()), ("ME", &me), ("COUNT", &count)];
        let file = world.script(&format!("appender{me}"), APPENDER, &words);
        seat.begin(&file);
    }
    if empties > 0 {
        let words = [("PATH", quoted.as_str()), ("COUNT", &empties.to_string())];
        let file = world.script("emptier", EMPTIER, &words);
        others.iter_mut().for_each(|other| other.begin(&file));
        others.iter_mut().for_each(|other| assert_eq!(other.hear(), "ok", "{}", other.name));
    }
    for seat in seats.iter_mut() {
        assert_eq!(seat.hear(), "ok", "{}", seat.name);
    }
    let file = world.script("records", RECORDS, &[("PATH", &quoted)]);
    let said = seats.first_mut().expect("a seat").ok(&file);
    let elsewhere = others[0].ok(&file);
    assert_eq!(said, elsewhere, "two hosts see the same");
    said
}

#[test]
fn appends_of_all_hosts_lose_nothing() {
    let Some(world) = World::posix() else { return };
    let mounts = mounts(&world);
    let mut seats = seats(&world, &mounts);
    let mut others = ["b", "c"].map(|host| Agent::preloaded(&world, host, "/forebay"));
    for directory in ["d0", "d1", "d2"] {
        others[0].ok(&format!("mkdir {directory}"));
        let path = format!("{directory}/log");
        let said = appended(&world, (&mut seats, &mut others), &path, (0, 150));
        let whole = said.split(' ').all(|one| one.ends_with(":150"));
        assert!(whole && said.split(' ').count() >= 3, "{said}");
    }
    drop((seats, others));
    drop(mounts);
    world.end();
}

/// "A truncation by another host is before a write or an append, or after it" (docs/semantics.md). Only
/// what comes of the last truncation of a file is seen, so there are many files.
#[test]
fn a_truncation_by_another_host_is_before_an_append_or_after_it() {
    let Some(world) = World::posix() else { return };
    let mounts = mounts(&world);
    let mut seats = seats(&world, &mounts);
    let mut others = ["b", "c"].map(|host| Agent::preloaded(&world, host, "/forebay"));
    let rounds = setting("ROUNDS", 12);
    for directory in ["d0", "d1", "d2"] {
        others[0].ok(&format!("mkdir {directory}"));
        for round in 0..rounds {
            let path = format!("{directory}/log{round}");
            let said = appended(&world, (&mut seats, &mut others), &path, (10, 4));
            println!("{path}: {said}");
        }
    }
    drop((seats, others));
    drop(mounts);
    world.end();
}

/// "A host that is gone holds up others for as long as the instance's timeout at most"
/// (docs/semantics.md).
#[test]
fn a_host_that_is_gone_is_not_waited_for_for_long_and_what_it_wrote_comes_with_it() {
    let Some(world) = World::posix() else { return };
    let [mut near, mut far] = ["a", "b"].map(|host| Agent::preloaded(&world, host, "/forebay"));
    // The root's entries are on the first host, and so is the shard of a file in it.
    near.ok("open f f c");
    far.ok("write f f 0 3000 1");
    assert_eq!(near.ok("stat f"), "3000");
    far.ok("write f f 0 7000 2");
    signal(world.pid("b"), "-KILL");
    let begun = Instant::now();
    assert_eq!(near.ok("stat f"), "3000", "what is known is answered");
    assert!(begun.elapsed() < Duration::from_secs(4), "longer than the timeout");
    // It is not waited for again, neither by who asks for the size nor by who cuts.
    for _ in 0..20 {
        near.ok("stat f");
    }
    assert!(begun.elapsed() < Duration::from_secs(8), "it is waited for each time");
    world.start();
    wait_for("what was written to show", || near.ok("stat f") == "7000");
    far.ok("write f f 0 9000 3");
    assert_eq!(near.ok("fstat f f"), "9000", "it is asked again");
    // A daemon that is stopped, in the middle of a cut.
    let pid = world.pid("b");
    signal(pid, "-STOP");
    let begun = Instant::now();
    near.ok("cut f f 100");
    assert!(begun.elapsed() < Duration::from_secs(4), "longer than the timeout");
    assert_eq!(near.ok("stat f"), "100");
    signal(pid, "-CONT");
    wait_for("the cut to show", || far.ok("read f f 0 10000").starts_with("100 "));
    far.ok("write f f 0 200 4");
    assert_eq!(near.ok("stat f"), "200");
    // The shard's own daemon.
    far.ok("write f f 0 4000 5");
    signal(world.pid("a"), "-KILL");
    world.start();
    assert_eq!(near.ok("stat f"), "4000");
    far.ok("cut f f 10");
    assert_eq!(near.ok("read f f 0 10000"), format!("10 {}", crc32(&[5; 10])));
    drop((near, far));
    world.end();
}
