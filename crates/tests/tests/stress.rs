//! Programs on all hosts at a time, on mounts by both ways of requests and preloaded, that append
//! records,
//! replace and exchange names over directories whose shards are on different hosts, look at them, and
//! count
//! under locks of all kinds. No record is lost, torn or out of its writer's order; a name is always
//! there,
//! whole, and never what it was before; no count is lost (docs/semantics.md).
//!
//! `ROUNDS` says how many things each program does, `TEST_SEED` begins another series. Namespaces need
//! root,
//! mounts `/dev/fuse`; without, the test says so and states nothing.

mod support;

use std::collections::BTreeMap;
use support::agent::{Agent, Mount};
use support::mounted::Offered;
use support::setting;
use support::world::World;

const PROGRAM: &str = include_str!("../programs/stress.py");

/// What all do it with.
const BEGIN: &str = r#"
import os
for d in ['d0', 'd1', 'd2']:
    os.mkdir(d)
    open(f'{d}/log', 'wb').close()
    for how in 'process', 'file', 'whole': open(f'{d}/{how}', 'wb').write(bytes(32))
    open(f'{d}/name', 'wb').write(b'whole 99 1 .')
    open(f'{d}/token', 'wb').write(d.encode())
"#;

/// What is left: records of each writer in each log, which are whole and in order, counts, and tokens.
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
said = json.dumps(left)
"#;

/// What a program says of what it has done, or of what is left.
fn told(said: &str, who: &str) -> serde_json::Value {
    serde_json::from_str(said).unwrap_or_else(|_| panic!("{who}: {said:?}"))
}

/// Sum of what all have counted.
fn add(sums: &mut BTreeMap<String, u64>, counts: &serde_json::Value) {
    for (key, count) in counts.as_object().expect("counts") {
        *sums.entry(key.clone()).or_default() += count.as_u64().expect("a count");
    }
}

#[test]
fn nothing_is_lost_torn_or_missing_whoever_does_it() {
    let Some(world) = World::posix() else { return };
    let (seed, rounds) = (setting("TEST_SEED", 1), setting("ROUNDS", 250));
    println!("TEST_SEED={seed} ROUNDS={rounds}");
    let ways = [("a", "classic"), ("b", if Offered::can_be() { "rings" } else { "classic" })];
    let mounts = ways.map(|(host, way)| Mount::by(&world, host, way));
    let mut maker = Agent::preloaded(&world, "a", "/forebay");
    maker.ok(&world.script("begin", BEGIN, &[]));
    let mut seats: Vec<Agent> =
        mounts.iter().flatten().flat_map(|m| [Agent::on(m), Agent::on(m)]).collect();
    seats.extend(["a", "c"].map(|host| Agent::preloaded(&world, host, "/forebay")));
    for (me, seat) in seats.iter_mut().enumerate() {
        let words = [
            ("ME", &*me.to_string()),
            ("SEED", &*seed.to_string()),
            ("ROUNDS", &*rounds.to_string()),
        ];
        seat.begin(&world.script(&format!("stress{me}"), PROGRAM, &words));
    }
    let (mut counts, mut logs, mut looks) = (BTreeMap::new(), vec![], 0);
    for seat in &mut seats {
        let done = told(&seat.hear(), &seat.name);
        add(&mut counts, &done["count"]);
        logs.push(done["log"].clone());
        looks += done["looks"].as_u64().expect("a count");
    }
    let looker = world.script("left", LEFT, &[]);
    for seat in [0, seats.len() - 1] {
        let left = told(&seats[seat].ok(&looker), &seats[seat].name);
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
    assert!(total > rounds && looks > rounds, "hardly anything was done");
    drop((seats, maker, mounts));
    world.end();
}
