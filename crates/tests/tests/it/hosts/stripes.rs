//! Stripe count and stripe size of directories: a file is on exactly as many targets as its
//! directory says, however it grew and from whichever host it is written, and its removal frees the
//! space on each.
//!
//! Network namespaces need root, a mount needs `/dev/fuse`. Without them the tests check less.

use crate::support::agent::{Agent, Mount, crc32};
use crate::support::world::World;
use crate::support::{Instance, Random, profile, text, wait_for};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::Command;

const DAEMONS: usize = 4;

fn local(name: &str, more: &[&str]) -> Instance {
    let count = DAEMONS.to_string();
    let options = ["--local", &count, "--memory", "64MiB", "--ssd", "0"];
    Instance::start(name, &[&options, more].concat())
}

/// `forebay layout WORDS`.
fn command(instance: &Instance, words: &[&str]) -> Command {
    let dir = instance.dir.path();
    let mut command = Command::new(profile().join("forebay"));
    command.arg("layout").args(words).env("FOREBAY_NAME", &instance.name);
    command.env("XDG_RUNTIME_DIR", dir).env("FOREBAY_DIR", dir);
    command
}

/// The JSON that `forebay layout` prints.
fn layout(instance: &Instance, words: &[&str]) -> Value {
    let output = command(instance, words).output().expect("forebay runs");
    let printed = text(&output.stderr);
    assert!(output.status.success(), "{words:?}: {printed}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The one line by which `forebay layout` refuses.
fn refused(instance: &Instance, words: &[&str]) -> String {
    let output = command(instance, words).output().expect("forebay runs");
    let printed = text(&output.stderr);
    assert!(!output.status.success(), "{words:?} was not refused");
    assert_eq!(printed.lines().count(), 1, "{words:?}: {printed}");
    printed
}

fn shell(instance: &Instance, script: &str, words: &[&str]) -> String {
    let output = instance.program(&[&["sh", "-ec", script, "sh"], words].concat()).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{script} {words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Bytes in use, by daemon, of the daemons whose state the status contains.
fn used(status: &Value) -> BTreeMap<u64, u64> {
    let daemons = status["daemons"].as_array().expect("a list");
    let used = daemons.iter().filter_map(|daemon| {
        let of = |tier: &str| {
            let number = |what: &str| daemon["state"][format!("{tier}_{what}")].as_u64();
            Some(number("total")? - number("free")?)
        };
        Some((daemon["index"].as_u64()?, of("memory")? + of("ssd")?))
    });
    used.collect()
}

fn targets(of: &Value) -> Vec<u64> {
    let targets = of["targets"].as_array().expect("targets");
    targets.iter().map(|target| target.as_u64().expect("a number")).collect()
}

/// Ways to get a file of 2 MB with something in each 64 KiB, each run with its path.
const WAYS: [(&str, &str); 5] = [
    ("write", "head -c 2000000 /dev/urandom >$1"),
    ("append", "for i in 1 2 3 4 5; do head -c 400000 /dev/urandom >>$1; done"),
    ("behind a hole", "head -c 2000000 /dev/urandom | dd of=$1 bs=10000 seek=40 status=none"),
    ("fallocate", "fallocate -l 2000000 $1"),
    (
        "cut and longer again",
        "head -c 9000 /dev/urandom >$1; : >$1; head -c 2000000 /dev/zero >>$1",
    ),
];

/// "Files are on as many targets as their directory says" (docs/semantics/staging-and-prefetch.md),
/// and the removal of a file frees its space on each.
#[test]
fn a_file_is_on_as_many_targets_as_its_directory_says() {
    let instance = local("count", &[]);
    shell(&instance, "for n in 1 2 3 4 all; do mkdir /forebay/$n; done", &[]);
    for (count, is_on) in [("1", 1), ("2", 2), ("3", 3), ("4", 4), ("all", 4)] {
        let directory = format!("/forebay/{count}");
        let set = ["set", "--stripe-count", count, "--stripe-size", "64KiB", "--json", &directory];
        let printed = layout(&instance, &set);
        let shown = count.parse::<u64>().map_or_else(|_| json!(count), Value::from);
        assert_eq!((&printed["stripe_count"], &printed["stripe_size"]), (&shown, &json!(65_536)));
        for (way, script) in WAYS {
            let file = format!("{directory}/f");
            shell(&instance, script, &[&file]);
            let requested = targets(&layout(&instance, &["get", "--json", &file]));
            assert_eq!(requested.len(), is_on, "{count}, {way}");
            let what = format!("{count}, {way}: space on {requested:?} alone");
            wait_for(&what, || {
                let used = used(&instance.status()).into_iter().filter(|(_, used)| *used > 0);
                used.map(|(at, _)| at).eq(requested.iter().copied())
            });
            shell(&instance, "rm $1", &[&file]);
            wait_for(&format!("{count}, {way}: all space to be freed"), || {
                let used = used(&instance.status());
                used.len() == DAEMONS && used.values().all(|used| *used == 0)
            });
        }
    }
}

/// "The layout belongs to a directory and is inherited" (docs/semantics/staging-and-prefetch.md).
#[test]
fn stripes_are_inherited_and_preserved() {
    let instance = local("down", &["--stripe-size", "1MiB"]);
    let script = "mkdir -p d/old e; head -c 3000000 /dev/zero | tee d/before >e/there";
    shell(&instance, &format!("cd /forebay; {script}"), &[]);
    let get = |path: &str| {
        let printed = layout(&instance, &["get", "--json", path]);
        (printed["stripe_count"].clone(), printed["stripe_size"].clone())
    };
    let (plain, set) = ((json!("all"), json!(1 << 20)), (json!(2), json!(256 << 10)));
    assert_eq!(get("/forebay/d"), plain);
    layout(&instance, &["set", "--json", "--stripe-count", "2", "/forebay/d"]);
    assert_eq!(get("/forebay/d"), (json!(2), json!(1 << 20)), "one at a time");
    layout(&instance, &["set", "--json", "--stripe-size", "256KiB", "/forebay/d"]);
    let script = "mkdir -p d/new/inside; head -c 3000000 /dev/zero | tee d/new/inside/f >d/f";
    shell(&instance, &format!("cd /forebay; {script}; mv d/f e/moved; mv e/there d/moved"), &[]);
    for path in ["d", "d/new", "d/new/inside", "d/new/inside/f", "e/moved"] {
        assert_eq!(get(&format!("/forebay/{path}")), set, "{path}");
    }
    for path in ["d/before", "d/old", "e", "d/moved"] {
        assert_eq!(get(&format!("/forebay/{path}")), plain, "{path}");
    }
    assert_eq!(targets(&layout(&instance, &["get", "--json", "/forebay/e/moved"])).len(), 2);
    shell(
        &instance,
        "cmp /forebay/e/moved /forebay/d/moved; cat /forebay/d/before >/dev/null",
        &[],
    );
    let all =
        ["set", "--json", "--stripe-count", "all", "--consistency", "posix", "/forebay/d/new"];
    let printed = layout(&instance, &all);
    assert_eq!(
        (&printed["stripe_count"], &printed["consistency"]),
        (&json!("all"), &json!("posix"))
    );
    let output = command(&instance, &["get", "/forebay/e/moved"]).output();
    let printed = text(&output.expect("forebay runs").stdout);
    for expected in ["stripe-count 2\n", "stripe-size 256KiB\n", "targets "] {
        assert!(printed.contains(expected), "{printed}");
    }
}

#[test]
fn impossible_layouts_are_refused_in_one_line() {
    let instance = local("wrong", &[]);
    shell(&instance, "mkdir /forebay/d; echo x >/forebay/f", &[]);
    for (option, value, why) in [
        ("--stripe-count", "5", "there are 4 targets"),
        ("--stripe-count", "0", "give a number of targets (at least 1), all or local"),
        ("--stripe-count", "some", "give a number of targets (at least 1), all or local"),
        ("--stripe-size", "3MiB", "give a power of two from 64KiB to 64MiB"),
        ("--stripe-size", "4KiB", "give a power of two from 64KiB to 64MiB"),
        ("--stripe-size", "1GiB", "give a power of two from 64KiB to 64MiB"),
    ] {
        let printed = refused(&instance, &["set", option, value, "/forebay/d"]);
        assert!(printed.contains(why), "{option} {value}: {printed}");
    }
    let both = ["set", "--consistency", "posix", "--stripe-count", "5", "/forebay/d"];
    refused(&instance, &both);
    let printed = layout(&instance, &["get", "--json", "/forebay/d"]);
    assert_eq!(
        (&printed["consistency"], &printed["stripe_count"]),
        (&json!("relaxed"), &json!("all"))
    );
    let printed = refused(&instance, &["set", "--stripe-count", "2", "/forebay/f"]);
    assert!(printed.to_lowercase().contains("not a directory"), "{printed}");
    // The same by extended attributes.
    let script = "
import os
def set(path, name, value):
    try: os.setxattr('/forebay/' + path, 'user.forebay.stripe_' + name, value)
    except OSError as error: return error.errno
for path, name, value in [('d', 'count', b'5'), ('d', 'count', b'0'), ('d', 'size', b'1000'),
                          ('d', 'size', b'1MiB'), ('f', 'count', b'2'), ('d', 'count', b'3'),
                          ('d', 'size', b'131072')]:
    print(set(path, name, value), end=' ')
get = lambda name: os.getxattr('/forebay/d', 'user.forebay.stripe_' + name).decode()
print(get('count'), get('size'))";
    let output = instance.program(&["python3", "-c", script]).output().expect("python3 runs");
    let printed = text(&output.stdout);
    assert_eq!(printed, "22 22 22 22 20 None None 3 131072\n", "{}", text(&output.stderr));
}

/// Striped files that are written, read, truncated and punched, preloaded and on mounts of several
/// hosts, one operation at a time against a model.
#[test]
fn striped_files_of_several_hosts_match_a_local_model() {
    let Some(world) = World::posix() else { return };
    let mounts: Vec<Mount> =
        ["a", "b"].iter().filter_map(|host| Mount::new(&world, host)).collect();
    let mut agents: Vec<Agent> =
        ["a", "b", "c"].iter().map(|host| Agent::preloaded(&world, host, "/forebay")).collect();
    agents.extend(mounts.iter().map(Agent::on));
    let of_all = || {
        let hosts = ["a", "b", "c"].map(|host| {
            let status = world.ok(host, &["status", "--json"]);
            used(&serde_json::from_str(&status).expect("JSON"))
        });
        BTreeMap::from_iter(hosts.into_iter().flatten())
    };
    let before = of_all();
    assert_eq!(before.len(), DAEMONS);
    agents[0].ok("mkdir d");
    let set = ["layout", "set", "--stripe-count", "2", "--stripe-size", "256KiB", "/forebay/d"];
    world.ok("b", &set);
    for agent in &mut agents {
        assert_eq!(agent.ok("getxattr d user.forebay.stripe_count"), "2", "{}", agent.name);
    }
    let seed = testkit::seed(1);
    let mut random = Random::new(seed);
    let mut model = vec![Vec::<u8>::new(); agents.len()];
    for (file, agent) in agents.iter_mut().enumerate() {
        agent.ok(&format!("open {file} d/f{file} c"));
        agent.ok(&format!("write {file} d/f{file} 0 3000000 {}", file + 1));
        model[file].resize(3_000_000, file as u8 + 1);
    }
    for number in 0..testkit::rounds(100) {
        let agent = &mut agents[random.uniform(model.len() as u64) as usize];
        let file = random.uniform(model.len() as u64) as usize;
        let what = format!("seed {seed}, operation {number} on f{file} by {}", agent.name);
        operate(agent, file, &mut model[file], &mut random, &what);
    }
    for file in 0..model.len() {
        let path = format!("/forebay/d/f{file}");
        agents[0].ok(&format!("write {file} d/f{file} 0 3000000 9"));
        let printed = world.ok("a", &["layout", "get", "--json", &path]);
        let on = targets(&serde_json::from_str(&printed).expect("JSON"));
        // Two targets, and never both on the host that has two daemons.
        assert!(on.len() == 2 && on != [2, 3], "{path}: {on:?}");
    }
    // Programs that created files there before use the new layout at once.
    for count in ["3", "all"] {
        world.ok("c", &["layout", "set", "--stripe-count", count, "/forebay/d"]);
        for (number, agent) in agents.iter_mut().enumerate() {
            let made = format!("d/{count}-{number}");
            agent.ok(&format!("open new {made} c"));
            assert_eq!(
                agent.ok(&format!("getxattr {made} user.forebay.stripe_count")),
                count,
                "{}",
                agent.name
            );
            agent.ok("close new");
        }
    }
    for (file, agent) in (0..model.len()).zip(agents.iter_mut().rev()) {
        agent.ok(&format!("unlink d/f{file}"));
    }
    drop(agents);
    wait_for("all space to be freed", || of_all() == before);
    drop(mounts);
    world.end();
}

/// One operation on a file whose contents must equal `bytes`, which is updated.
fn operate(agent: &mut Agent, file: usize, bytes: &mut Vec<u8>, random: &mut Random, what: &str) {
    let path = format!("d/f{file}");
    let limit = [10_000, 300_000, 4_000_000][random.uniform(3) as usize];
    let (offset, length) = (random.uniform(limit) as usize, 1 + random.uniform(limit) as usize);
    let (byte, end) = (1 + random.uniform(255) as u8, bytes.len());
    match random.uniform(8) {
        0..3 => {
            let printed = agent.ok(&format!("read {file} {path} {offset} {length}"));
            let expected = &bytes[offset.min(end)..(offset + length).min(end)];
            assert_eq!(printed, format!("{} {}", expected.len(), crc32(expected)), "{what}");
        }
        3..5 => {
            agent.ok(&format!("write {file} {path} {offset} {length} {byte}"));
            bytes.resize(end.max(offset + length), 0);
            bytes[offset..offset + length].fill(byte);
        }
        5 => {
            agent.ok(&format!("punch {file} {path} {offset} {length}"));
            bytes[offset.min(end)..(offset + length).min(end)].fill(0);
        }
        6 => {
            agent.ok(&format!("ftruncate {file} {path} {offset}"));
            bytes.resize(offset, 0);
        }
        _ => {
            let printed = agent.ok(&format!("stat {path}"));
            assert_eq!(printed, end.to_string(), "{what}");
        }
    }
}
