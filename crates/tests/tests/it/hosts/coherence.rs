//! Hosts see each other's changes like processes of one host: the mode `posix` of
//! docs/semantics/sharing.md. Programs on two hosts, preloaded and on a mount, work on the same
//! files: one operation at a time against a model, and concurrently with a check of the result.
//!
//! Network namespaces need root, a mount needs `/dev/fuse`. Without them the tests are skipped.

use crate::support::agent::{Agent, Mount, crc32, signal};
use crate::support::world::{HOSTS, World};
use crate::support::{Random, in_time, wait_for};

/// Agents of two hosts, and of a third with two daemons: preloaded, and on mounts where possible.
fn agents(world: &World, mounts: &[Mount]) -> Vec<Agent> {
    let mut agents: Vec<Agent> =
        HOSTS.iter().map(|host| Agent::preloaded(world, host, "/forebay")).collect();
    agents.extend(mounts.iter().map(Agent::on));
    agents
}

fn mounts(world: &World) -> Vec<Mount> {
    ["a", "b"].iter().filter_map(|host| Mount::new(world, host)).collect()
}

/// Sequential operations of all agents on files that many have open: each answer is that of a local
/// file.
fn run_model(world: &World, seed: u64, operations: u64) {
    let mounts = mounts(world);
    let mut agents = agents(world, &mounts);
    let mut random = Random::new(seed);
    let mut model = vec![Vec::<u8>::new(); 3];
    for file in 0..3 {
        // Their shards, and so the hosts that open them first, differ.
        agents[0].ok(&format!("mkdir d{file}"));
        agents[file].ok(&format!("open x d{file}/f{file} c"));
        agents[file].ok("close x");
    }
    for number in 0..operations {
        let agent = random.uniform(agents.len() as u64) as usize;
        let file = random.uniform(3) as usize;
        let what = format!("seed {seed}, operation {number} on f{file} by {}", agents[agent].name);
        operate(&mut agents[agent], file, &mut model[file], &mut random, &what);
    }
    for (file, bytes) in model.iter().enumerate() {
        for agent in &mut agents {
            let printed = agent.ok(&format!("read {file} d{file}/f{file} 0 1000000"));
            assert_eq!(
                printed,
                format!("{} {}", bytes.len(), crc32(bytes)),
                "{}: f{file}",
                agent.name
            );
        }
    }
}

/// One operation on a file whose contents must equal `bytes`, which is updated.
fn operate(agent: &mut Agent, file: usize, bytes: &mut Vec<u8>, random: &mut Random, what: &str) {
    let path = format!("d{file}/f{file}");
    let limit = [200, 6000, 70_000, 300_000][random.uniform(4) as usize];
    let (offset, length) = (random.uniform(limit) as usize, 1 + random.uniform(limit) as usize);
    let (byte, end) = (1 + random.uniform(255) as u8, bytes.len());
    match random.uniform(16) {
        0..4 => {
            let printed = agent.ok(&format!("read {file} {path} {offset} {length}"));
            let expected = &bytes[offset.min(end)..(offset + length).min(end)];
            let expected = format!("{} {}", expected.len(), crc32(expected));
            assert_eq!(printed, expected, "{what}: read {offset}+{length} of {end}");
        }
        4..7 => {
            agent.ok(&format!("write {file} {path} {offset} {length} {byte}"));
            bytes.resize(end.max(offset + length), 0);
            bytes[offset..offset + length].fill(byte);
        }
        7..9 => {
            agent.ok(&format!("append {file} {path} {length} {byte}"));
            bytes.resize(end + length, byte);
        }
        9 => {
            agent.ok(&format!("ftruncate {file} {path} {offset}"));
            bytes.resize(offset, 0);
        }
        10 => {
            agent.ok(&format!("truncate {path} {offset}"));
            bytes.resize(offset, 0);
        }
        11 => {
            agent.ok(&format!("empty {path}"));
            bytes.clear();
        }
        12 => assert_eq!(agent.ok(&format!("stat {path}")), end.to_string(), "{what}: stat"),
        13 => {
            assert_eq!(agent.ok(&format!("fstat {file} {path}")), end.to_string(), "{what}: fstat")
        }
        14 => assert_eq!(agent.ok(&format!("end {file} {path}")), end.to_string(), "{what}: end"),
        _ => {
            agent.ok(&format!("close {file}"));
        }
    }
}

/// "Writes are seen at once on every host" (docs/semantics/sharing.md).
#[test]
fn sequential_operations_of_all_hosts_match_one_host() {
    let Some(world) = World::posix() else { return };
    run_model(&world, testkit::seed(1), testkit::rounds(750));
    world.end();
}

/// "The mode belongs to a directory" (docs/semantics/sharing.md).
#[test]
fn the_consistency_mode_belongs_to_a_directory_and_is_inherited() {
    let Some(world) = World::started(&[("FOREBAY_CONSISTENCY", "relaxed")]) else { return };
    let mut agents = ["a", "b"].map(|host| Agent::preloaded(&world, host, "/forebay"));
    agents[0].ok("mkdir old");
    agents[0].ok("mkdir shared");
    agents[0].ok("open f shared/before c");
    let layout = |words: &[&str]| {
        let printed = world.ok("b", &[&["layout"], words].concat());
        let printed: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
        printed["consistency"].as_str().expect("a mode").to_owned()
    };
    assert_eq!(layout(&["get", "--json", "/forebay/shared"]), "relaxed");
    let set = ["set", "--json", "--consistency", "posix", "/forebay/shared"];
    assert_eq!(layout(&set), "posix");
    agents[1].ok("mkdir shared/inside");
    assert_eq!(layout(&["get", "--json", "/forebay/shared/inside"]), "posix");
    agents[1].ok("open f shared/inside/new c");
    assert_eq!(layout(&["get", "--json", "/forebay/shared/inside/new"]), "posix");
    // Existing entries and other directories keep their mode.
    assert_eq!(layout(&["get", "--json", "/forebay/shared/before"]), "relaxed");
    assert_eq!(layout(&["get", "--json", "/forebay/old"]), "relaxed");
    assert_eq!(agents[0].ok("getxattr shared user.forebay.consistency"), "posix");
    let mistake = agents[0].ask("setxattr shared user.forebay.consistency strict");
    assert_eq!(mistake, "!22");
    let file = agents[0].ask("setxattr shared/before user.forebay.consistency posix");
    assert_eq!(file, "!20");
    // Both modes at a time: a write of another host is seen at once in one directory, and in the
    // other after its notification.
    for (path, at_once) in [("shared/inside/x", "10000"), ("old/x", "0")] {
        agents[0].ok(&format!("open x {path} c"));
        agents[0].ok(&format!("write x {path} 0 10000 7"));
        assert_eq!(agents[1].ok(&format!("stat {path}")), at_once, "{path}");
        agents[0].ok(&format!("fsync x {path}"));
        assert_eq!(agents[1].ok(&format!("stat {path}")), "10000", "{path}");
        agents[0].ok("close x");
    }
    layout(&["set", "--json", "--consistency", "relaxed", "/forebay/shared"]);
    agents[1].ok("mkdir shared/later");
    assert_eq!(layout(&["get", "--json", "/forebay/shared/later"]), "relaxed");
    for (words, why) in [
        (["get", "--json", "/forebay/absent"], "no such file or directory"),
        (["get", "--json", "/etc"], "it is visible at /forebay"),
    ] {
        let output = world.on("a", &[&["layout"], &words[..]].concat());
        let printed = String::from_utf8_lossy(&output.stderr).to_lowercase();
        assert!(
            !output.status.success() && printed.lines().count() == 1 && printed.contains(why),
            "{printed}"
        );
    }
    drop(agents);
    world.end();
}

/// Appends records until the truncating program is done, and then `count` more: path, number of the
/// appender, count. A record contains its appender, its number and its length.
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
result = 'ok'
"#;

/// Truncates a file to 0 `count` times, each time after something was appended, and then reports
/// that it is done: path, count. Ends early when another truncating program is done.
const EMPTIER: &str = r#"
import os, time
def done(): return os.path.exists(PATH + '.done')
for n in range(COUNT):
    while os.stat(PATH).st_size == 0 and not done(): time.sleep(0.0005)
    if done(): break
    if n % 2: os.truncate(PATH, 0)
    else: os.close(os.open(PATH, os.O_WRONLY | os.O_TRUNC))
os.close(os.open(PATH + '.done', os.O_WRONLY | os.O_CREAT))
result = 'ok'
"#;

/// Checks the result of the `APPENDER`s: only whole records, those of each appender in order and
/// none twice. Prints the number of records of each appender; the last operation may have been a
/// truncation.
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
result = ' '.join(f'{me}:{counts[me]}' for me in sorted(counts)) or 'none'
"#;

/// All hosts append to a file, `count` records each after one of two others has truncated it
/// `empties` times. Two hosts check the result.
fn appended(
    world: &World,
    (agents, others): (&mut [Agent], &mut [Agent; 2]),
    path: &str,
    (empties, count): (u32, u32),
) -> String {
    let quoted = format!("'{path}'");
    others[0].ok(&format!("open x {path} c"));
    if empties == 0 {
        others[0].ok(&format!("open x {path}.done c"));
    }
    others[0].ok("close x");
    for (me, agent) in agents.iter_mut().enumerate() {
        let (me, count) = (me.to_string(), count.to_string());
        let words = [("PATH", quoted.as_str()), ("ME", &me), ("COUNT", &count)];
        let file = world.script(&format!("appender{me}"), APPENDER, &words);
        agent.begin(&file);
    }
    if empties > 0 {
        let words = [("PATH", quoted.as_str()), ("COUNT", &empties.to_string())];
        let file = world.script("emptier", EMPTIER, &words);
        others.iter_mut().for_each(|other| other.begin(&file));
        others.iter_mut().for_each(|other| assert_eq!(other.reply(), "ok", "{}", other.name));
    }
    for agent in agents.iter_mut() {
        assert_eq!(agent.reply(), "ok", "{}", agent.name);
    }
    let file = world.script("records", RECORDS, &[("PATH", &quoted)]);
    let printed = agents.first_mut().expect("an agent").ok(&file);
    let elsewhere = others[0].ok(&file);
    assert_eq!(printed, elsewhere, "two hosts see the same");
    printed
}

#[test]
fn appends_of_all_hosts_lose_nothing() {
    let Some(world) = World::posix() else { return };
    let mounts = mounts(&world);
    let mut agents = agents(&world, &mounts);
    let mut others = ["b", "c"].map(|host| Agent::preloaded(&world, host, "/forebay"));
    for directory in ["d0", "d1", "d2"] {
        others[0].ok(&format!("mkdir {directory}"));
        let path = format!("{directory}/log");
        let printed = appended(&world, (&mut agents, &mut others), &path, (0, 150));
        let whole = printed.split(' ').all(|one| one.ends_with(":150"));
        assert!(whole && printed.split(' ').count() >= 3, "{printed}");
    }
    drop((agents, others));
    drop(mounts);
    world.end();
}

/// "A truncation by another host happens before a write or an append, or after it"
/// (docs/semantics/sharing.md). Only the effect of the last truncation of a file can be seen, so
/// there are many files.
#[test]
fn a_truncation_by_another_host_is_before_an_append_or_after_it() {
    let Some(world) = World::posix() else { return };
    let mounts = mounts(&world);
    let mut agents = agents(&world, &mounts);
    let mut others = ["b", "c"].map(|host| Agent::preloaded(&world, host, "/forebay"));
    let rounds = testkit::rounds(12);
    for directory in ["d0", "d1", "d2"] {
        others[0].ok(&format!("mkdir {directory}"));
        for round in 0..rounds {
            let path = format!("{directory}/log{round}");
            let printed = appended(&world, (&mut agents, &mut others), &path, (10, 4));
            println!("{path}: {printed}");
        }
    }
    drop((agents, others));
    drop(mounts);
    world.end();
}

/// "A host that is gone delays others by the instance's timeout at most"
/// (docs/semantics/sharing.md).
#[test]
fn a_dead_host_delays_others_only_briefly_and_its_writes_return_with_it() {
    let Some(world) = World::posix() else { return };
    let [mut local, mut remote] = ["a", "b"].map(|host| Agent::preloaded(&world, host, "/forebay"));
    // The root's entries are on the first host, and so is the shard of a file in it.
    local.ok("open f f c");
    remote.ok("write f f 0 3000 1");
    assert_eq!(local.ok("stat f"), "3000");
    remote.ok("write f f 0 7000 2");
    signal(world.pid("b"), "-KILL");
    assert_eq!(local.ok("stat f"), "3000", "a known operation has an answer");
    // Later calls do not wait for the dead host again, neither queries of the size nor truncations.
    in_time("calls that would take 100 timeouts of 2 s if each waited", || {
        for _ in 0..100 {
            local.ok("stat f");
        }
    });
    world.start();
    wait_for("the write to be seen", || local.ok("stat f") == "7000");
    remote.ok("write f f 0 9000 3");
    assert_eq!(local.ok("fstat f f"), "9000", "it is requested again");
    // A daemon that is stopped in the middle of a truncation.
    let pid = world.pid("b");
    signal(pid, "-STOP");
    in_time("a truncation", || local.ok("ftruncate f f 100"));
    assert_eq!(local.ok("stat f"), "100");
    signal(pid, "-CONT");
    wait_for("the truncation to show", || remote.ok("read f f 0 10000").starts_with("100 "));
    remote.ok("write f f 0 200 4");
    assert_eq!(local.ok("stat f"), "200");
    // The daemon of the file's own shard.
    remote.ok("write f f 0 4000 5");
    signal(world.pid("a"), "-KILL");
    world.start();
    assert_eq!(local.ok("stat f"), "4000");
    remote.ok("ftruncate f f 10");
    assert_eq!(local.ok("read f f 0 10000"), format!("10 {}", crc32(&[5; 10])));
    drop((local, remote));
    world.end();
}
