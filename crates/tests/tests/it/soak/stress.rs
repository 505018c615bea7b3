//! Concurrent programs on all hosts, on mounts by both request transports and preloaded: they
//! append records, replace and exchange names over directories whose shards are on different hosts,
//! look them up, and count under locks of all kinds. No record is lost, torn or out of its writer's
//! order; a name is always there, whole, and never stale; no increment is lost
//! (docs/semantics/sharing.md).
//!
//! `TEST_SCALE` multiplies the number of operations of each program, `TEST_SEED` begins another
//! series. Network namespaces need root, mounts `/dev/fuse`; without them the test is skipped.

use crate::support::agent::{Agent, Mount};
use crate::support::mounted::UringEnabled;
use crate::support::world::World;
use std::collections::BTreeMap;

const PROGRAM: &str = include_str!("../../../programs/stress.py");

/// Creates the files that all programs use.
const BEGIN: &str = r#"
import os
for d in ['d0', 'd1', 'd2']:
    os.mkdir(d)
    open(f'{d}/log', 'wb').close()
    for how in 'process', 'file', 'whole': open(f'{d}/{how}', 'wb').write(bytes(32))
    open(f'{d}/name', 'wb').write(b'whole 99 1 .')
    open(f'{d}/token', 'wb').write(d.encode())
"#;

/// Checks the result: the records of each writer in each log, whole and in order, counts, and
/// tokens.
const LEFT: &str = r#"
import json, os, struct
left = {'log': {}, 'count': {}, 'tokens': []}
for d in ['d0', 'd1', 'd2']:
    data, at, counts = open(f'{d}/log', 'rb').read(), 0, {}
    while at < len(data):
        head = data[at:at + 18].split()
        assert len(head) == 3 and head[0][:1] == b'[', f'{d}: {at} of {len(data)}: {data[at:at + 40]}'
        me, n, length = int(head[0][1:]), int(head[1]), int(head[2])
        rest = data[at + 18:at + length]
        whole = b'%d' % (me % 10) * (length - 19) + b']'
        assert rest == whole, f'{d}: {at} of {len(data)}: torn: {me} {n}'
        assert n == counts.get(me, 0), f'{d}: {at}: {me} {n} after {counts.get(me, 0)}'
        counts[me] = n + 1
        at += length
    left['log'][d] = counts
    for how in 'process', 'file', 'whole':
        for one, value in enumerate(struct.unpack('4q', open(f'{d}/{how}', 'rb').read())):
            left['count'][f'{d}/{how} {one}'] = value
    left['tokens'].append(open(f'{d}/token').read())
    made = [name for name in os.listdir(d) if name.startswith('made')]
    assert not made, f'{d}: {made}'
left['tokens'].sort()
result = json.dumps(left)
"#;

/// Parses the report of a program about its operations, or about the result.
fn reported(printed: &str, caller: &str) -> serde_json::Value {
    serde_json::from_str(printed).unwrap_or_else(|_| panic!("{caller}: {printed:?}"))
}

/// Adds the counts of one program to the sums.
fn add(sums: &mut BTreeMap<String, u64>, counts: &serde_json::Value) {
    for (key, count) in counts.as_object().expect("counts") {
        *sums.entry(key.clone()).or_default() += count.as_u64().expect("a count");
    }
}

#[test]
fn concurrent_programs_lose_tear_and_miss_nothing() {
    let Some(world) = World::posix() else { return };
    let (seed, rounds) = (testkit::seed(1), testkit::rounds(500));
    println!("TEST_SEED={seed} rounds={rounds}");
    let transports =
        [("a", "classic"), ("b", if UringEnabled::is_available() { "rings" } else { "classic" })];
    let mounts = transports.map(|(host, transport)| Mount::by(&world, host, transport));
    let mut maker = Agent::preloaded(&world, "a", "/forebay");
    maker.ok(&world.script("begin", BEGIN, &[]));
    let mut agents: Vec<Agent> =
        mounts.iter().flatten().flat_map(|m| [Agent::on(m), Agent::on(m)]).collect();
    agents.extend(["a", "c"].map(|host| Agent::preloaded(&world, host, "/forebay")));
    for (me, agent) in agents.iter_mut().enumerate() {
        let words = [
            ("ME", &*me.to_string()),
            ("SEED", &*seed.to_string()),
            ("ROUNDS", &*rounds.to_string()),
        ];
        agent.begin(&world.script(&format!("stress{me}"), PROGRAM, &words));
    }
    let (mut counts, mut logs, mut looks) = (BTreeMap::new(), vec![], 0);
    for agent in &mut agents {
        let done = reported(&agent.reply(), &agent.name);
        add(&mut counts, &done["count"]);
        logs.push(done["log"].clone());
        looks += done["looks"].as_u64().expect("a count");
    }
    let looker = world.script("left", LEFT, &[]);
    for agent in [0, agents.len() - 1] {
        let left = reported(&agents[agent].ok(&looker), &agents[agent].name);
        let mut found = BTreeMap::new();
        add(&mut found, &left["count"]);
        found.retain(|_, count| *count > 0);
        assert_eq!(found, counts, "seed {seed}: counts");
        assert_eq!(left["tokens"], serde_json::json!(["d0", "d1", "d2"]), "seed {seed}");
        for (me, log) in logs.iter().enumerate() {
            for (directory, count) in log.as_object().expect("counts") {
                let there = left["log"][directory][me.to_string()].as_u64().unwrap_or(0);
                assert_eq!(
                    Some(there),
                    count.as_u64(),
                    "seed {seed}: records of {me} in {directory}"
                );
            }
        }
    }
    let total: u64 = counts.values().sum();
    println!("{total} counts, {looks} looks");
    assert!(total > rounds && looks > rounds, "too little was done");
    drop((agents, maker, mounts));
    world.end();
}
