//! Starts and stops against kills, power failures, and files that are missing, empty, old, cut, or of
//! another instance.
//!
//! The model: a command writes the records of the instance, and starts a daemon, which appends records to
//! its log and acknowledges each one; whatever happens between two starts, the later one has all of them,
//! or fails and names a file. It never has fewer in silence. A power failure keeps any of the blocks and
//! names that were not flushed, and loses what is in memory.

use crate::error::Kind;
use crate::fault::FaultyFiles;
use crate::identity::{Expected, Identity};
use crate::journal::{Damage, Journal, Options, Progress, Replay, Sync};
use crate::log_file::Gap;
use crate::medium::Files as _;
use crate::starts::{Before, DISK_RECORD, Plan, Start, StartRecord};
use crate::whole::{self, Survives};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use testkit::{Random, is_long, rounds, seed};

const ME: Identity = Identity::of_daemon(0x1234, 3);
/// As a command starts a daemon that was ready.
const KNOWN: (Identity, Before) = (ME, Before::Ready { lost_starts: 0 });
const MEMORY_RECORD: &str = "d3.starts";
/// Records of the command, in the order in which it writes them: the number of the instance; that there
/// is one, and later that its daemons have started; the daemons of this host.
const SECRET: &str = "secret";
const INSTANCE: &str = "instance.json";
const HOST: &str = "host.json";
const BEGUN: &[u8] = b"begun";
const STARTED: &[u8] = b"started";
const READY: &[u8] = b"ready";

/// The host of a daemon: its run directory and its disk, and its memory, which the death of the node
/// clears.
#[derive(Clone)]
struct Node {
    run: FaultyFiles,
    disk: FaultyFiles,
    memory: FaultyFiles,
    /// Progress of the log, according to the memory.
    progress: Progress,
}

/// A daemon that is ready.
struct Ready {
    journal: Journal<FaultyFiles>,
    /// Contents of its records.
    records: Vec<Vec<u8>>,
    is_first: bool,
    /// Number of the instance.
    instance: u64,
}

impl Node {
    fn new() -> Node {
        let [run, disk, memory] = [(); 3].map(|()| FaultyFiles::new());
        Node { run, disk, memory, progress: Progress::default() }
    }

    /// Starts an instance and its daemon as `forebay start` does. A new instance has the number `fresh`.
    fn start(&mut self, fresh: u64) -> crate::Result<Ready> {
        let has_started = self.run.contents(INSTANCE).is_some_and(|record| record == STARTED);
        let missing = |name| {
            Err(crate::Error::new("continue the instance", &self.run.path(name), Kind::Missing))
        };
        let secret = self.run.contents(SECRET).filter(|_| self.run.contents(INSTANCE).is_some());
        let instance = match secret.and_then(|bytes| Some(u64::from_le_bytes(*bytes.as_array()?))) {
            Some(number) => number,
            None if has_started => return missing(SECRET),
            None => fresh,
        };
        let is_known = self.run.contents(HOST).is_some();
        if has_started && !is_known {
            return missing(HOST);
        }
        self.record(SECRET, &instance.to_le_bytes())?;
        self.record(INSTANCE, if has_started { STARTED } else { BEGUN })?;
        let lost_starts = 0;
        let before = match is_known {
            true => Before::Ready { lost_starts },
            false => Before::Nothing { lost_starts },
        };
        let identity = Identity { instance, part: ME.part };
        let ready = self.start_daemon((identity, before), Damage::Refuse)?;
        self.record(HOST, READY)?;
        self.record(INSTANCE, STARTED)?;
        Ok(ready)
    }

    /// Writes a record as commands do.
    fn record(&mut self, name: &str, contents: &[u8]) -> crate::Result<()> {
        let new = format!("{name}.4711.tmp");
        let replaced = whole::replace(&mut self.run, &new, name, contents, Survives::Node);
        replaced.map_err(|errno| {
            crate::Error::new("write a record", &self.run.path(name), Kind::Device(errno))
        })
    }

    /// Ends the instance as `forebay stop` does: removes everything, in this order.
    fn stop(&mut self) -> wire::errno::Result<()> {
        for files in [&mut self.disk, &mut self.memory] {
            files.names()?.iter().try_for_each(|name| files.remove(name))?;
        }
        self.run.remove(HOST)?;
        self.run.names()?.iter().try_for_each(|name| self.run.remove(name))
    }

    /// Whether each record that is there is one that was written, all of it.
    fn has_whole_records(&self) -> bool {
        let is_one = |name, whole: &[&[u8]]| {
            self.run.contents(name).is_none_or(|found| whole.contains(&found.as_slice()))
        };
        let secret = self.run.contents(SECRET);
        let starts = StartRecord::read(&mut self.disk.clone(), DISK_RECORD, ME);
        secret.is_none_or(|found| found.len() == 8 && found != [0; 8])
            && is_one(INSTANCE, &[BEGUN, STARTED])
            && is_one(HOST, &[READY])
            && !matches!(starts, Err(crate::Error { kind: Kind::Corrupt { .. }, .. }))
    }

    fn is_dead(&self) -> bool {
        [&self.run, &self.disk, &self.memory].into_iter().any(FaultyFiles::is_dead)
    }

    /// Records that the log lacks, as `forebay check` finds them.
    fn inspect(&self) -> Vec<Gap> {
        let options = Options {
            identity: ME.of_worker(0),
            expected: Expected::Existing,
            progress: self.progress,
            damage: Damage::Skip,
            sync: Sync::Never,
            step_bytes: 64 << 10,
        };
        let mut replay = Replay::inspect(self.disk.clone(), options).expect("readable");
        while replay.next().expect("readable").is_some() {}
        replay.gaps()
    }

    /// Starts a daemon as `forebayd` does.
    fn start_daemon(
        &mut self,
        (identity, before): (Identity, Before),
        damage: Damage,
    ) -> crate::Result<Ready> {
        let clear = |disk: &mut FaultyFiles, memory: &mut FaultyFiles| {
            for files in [disk, memory] {
                for name in files.names().expect("names") {
                    let removed = if name == DISK_RECORD { Ok(()) } else { files.remove(&name) };
                    removed.map_err(|errno| {
                        crate::Error::new("clear", &files.path(&name), Kind::Device(errno))
                    })?;
                }
            }
            Ok(())
        };
        let (disk, memory) = (self.disk.clone(), self.memory.clone());
        let start = Start::open(disk, memory, MEMORY_RECORD, (identity, before), clear)?;
        let is_first = matches!(start.plan(), Plan::First { .. });
        if is_first {
            self.progress = Progress::default();
        }
        let options = Options {
            identity: identity.of_worker(0),
            expected: start.plan().expected(),
            progress: self.progress,
            damage,
            sync: Sync::Never,
            step_bytes: 64 << 10,
        };
        let mut replay = Replay::open(self.disk.clone(), options)?;
        let mut records = Vec::new();
        while let Some(record) = replay.next()? {
            records.push(record.to_vec());
        }
        let mut journal = replay.into_journal()?;
        self.progress = journal.progress();
        if damage == Damage::Skip {
            journal.begin_rewrite()?;
            records.iter().try_for_each(|record| journal.append_snapshot(record))?;
            journal.finish_rewrite()?;
            self.progress = journal.progress();
        }
        start.complete(Vec::new())?;
        Ok(Ready { journal, records, is_first, instance: identity.instance })
    }

    /// Appends records until the disk dies; returns those that were acknowledged.
    fn serve(&mut self, mut ready: Ready, count: u64, random: &mut Random) -> Vec<Vec<u8>> {
        for _ in 0..count {
            let record = vec![random.next() as u8; 1 + random.uniform(700) as usize];
            // Sometimes the log is rewritten, with all records as its snapshot.
            if random.uniform(9) == 0 && ready.journal.begin_rewrite().is_ok() {
                let records = ready.records.iter();
                let copied = records.map(|record| ready.journal.append_snapshot(record));
                if copied.collect::<crate::Result<()>>().is_ok() {
                    let _ = ready.journal.finish_rewrite();
                    // As `forebayd` does, before the next record.
                    self.progress = ready.journal.progress();
                }
            }
            if ready.journal.append(&record).is_err() {
                break;
            }
            self.progress = ready.journal.progress();
            ready.records.push(record);
        }
        ready.records
    }

    fn after_kill(&self) -> Node {
        let Node { run, disk, memory, progress } = self;
        let [run, disk, memory] = [run, disk, memory].map(FaultyFiles::after_kill);
        Node { run, disk, memory, progress: *progress }
    }

    /// The node died. Sometimes its run directory or its disk is in memory, too.
    fn after_crash(&self, random: &mut Random) -> Node {
        let mut left = |files: &FaultyFiles, kept: u64| {
            if random.uniform(8) >= kept {
                return FaultyFiles::new();
            }
            let chance = random.uniform(5);
            files.after_crash(|| random.uniform(4) < chance)
        };
        let (run, disk) = (left(&self.run, 6), left(&self.disk, 7));
        Node { run, disk, memory: FaultyFiles::new(), progress: Progress::default() }
    }
}

/// One history of starts, stops, kills and power failures.
fn campaign(seed: u64) {
    let mut random = Random::new(seed);
    let mut node = Node::new();
    // Number of the instance whose daemon was ready last, and its records; the last one may have been
    // appended and not acknowledged.
    let mut acknowledged: Option<(u64, Vec<Vec<u8>>)> = None;
    let (mut has_crashed, mut is_lost, mut was_stopped) = (false, false, false);
    for life in 0..6 {
        if random.uniform(3) > 0 {
            node.disk.die_after(1 + random.uniform(40));
        }
        if random.uniform(6) == 0 {
            node.memory.die_after(1 + random.uniform(12));
        }
        if random.uniform(6) == 0 {
            node.run.die_after(1 + random.uniform(20));
        }
        let is_known = node.run.contents(HOST).is_some();
        match node.start(seed << 8 | life | 1 << 60) {
            Ok(ready) => {
                let what = format!("seed {seed}, life {life}: first {}", ready.is_first);
                assert!(!(ready.is_first && is_known), "{what}: its data is gone in silence");
                let (instance, is_first, found) = (ready.instance, ready.is_first, &ready.records);
                match &acknowledged {
                    Some((before, records)) if *before == instance && !is_first => {
                        assert!(!is_lost, "{what}: the memory is gone, and nothing is said");
                        assert!(found.starts_with(records), "{what}: records are lost in silence");
                        assert!(found.len() <= records.len() + 1, "{what}: from nowhere");
                    }
                    // Nothing of the earlier instance is left that could be continued.
                    Some(_) => assert!(was_stopped || has_crashed, "{what}: it was forgotten"),
                    None => assert!(found.is_empty(), "{what}: records came from nowhere"),
                }
                (is_lost, was_stopped) = (false, false);
                let count = random.uniform(30);
                acknowledged = Some((instance, node.serve(ready, count, &mut random)));
                if random.uniform(8) == 0 {
                    was_stopped = true;
                    let _ = node.stop();
                }
            }
            Err(error) => {
                let what = format!("seed {seed}, life {life}: {error}");
                assert!(node.is_dead() || has_crashed || was_stopped, "{what}");
                assert!(error.path.components().count() > 1, "{what}: no file is named");
            }
        }
        if random.uniform(4) == 0 {
            node = node.after_crash(&mut random);
            assert!(node.has_whole_records(), "seed {seed}, life {life}: a part of a record");
            has_crashed = true;
            is_lost |= acknowledged.is_some();
        } else {
            node = node.after_kill();
        }
    }
}

/// Runs one history per seed; as many threads as there are processors share them.
fn campaigns(count: u64, campaign: fn(u64)) {
    let (first, next) = (seed(1), AtomicU64::new(0));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(number) = Some(next.fetch_add(1, Relaxed)).filter(|it| *it < count) {
                    campaign(first + number);
                }
            });
        }
    });
}

/// "The next start has everything that was acknowledged, or fails and names the file"
/// (docs/semantics/durability.md).
#[test]
fn kills_and_power_failures_lose_nothing_in_silence() {
    // With the salvages below and `ssd_tests`, 100,000 in `make soak`.
    campaigns(rounds(if is_long() { 10_000 } else { 1000 }), campaign);
}

/// Flips a byte of the newest log, cuts it, fills a part with zeros, or removes it. False if it has
/// nothing to damage.
fn damage(node: &Node, random: &mut Random) -> bool {
    let names = node.disk.names().expect("names").into_iter();
    let Some(log) = names.filter(|it| it.starts_with("log-") && !it.ends_with(".new")).max() else {
        return false;
    };
    let bytes = node.disk.contents(&log).expect("there");
    let Some(end) = bytes.iter().rposition(|byte| *byte != 0) else { return false };
    let at = random.uniform(end as u64 + 1) as usize;
    match random.uniform(8) {
        0 => node.disk.put(&log, None),
        1 | 2 => node.disk.corrupt(&log, |bytes| bytes.truncate(at)),
        3 => node.disk.corrupt(&log, |bytes| {
            let end = bytes.len().min(at + 600);
            bytes[at..end].fill(0);
        }),
        _ => node.disk.corrupt(&log, |bytes| bytes[at] ^= 1 << (end % 8)),
    }
    true
}

/// One history of starts, kills and damage: a start notices it, and a salvage keeps, in their order, all
/// records that are whole, and says which it lacks.
fn damage_campaign(seed: u64) {
    let mut random = Random::new(seed);
    let mut node = Node::new();
    let mut acknowledged: Vec<Vec<u8>> = Vec::new();
    for life in 0..6 {
        let what = format!("seed {seed}, life {life}");
        let is_damaged = life > 0 && random.uniform(2) == 0 && damage(&node, &mut random);
        let mut salvaged = node.after_kill();
        let mut gaps = Vec::new();
        let started = node.start(ME.instance);
        let ready = match started {
            Ok(ready) => {
                // One byte behind the last record is no damage.
                assert!(ready.records.starts_with(&acknowledged), "{what}: lost in silence");
                ready
            }
            Err(error) => {
                assert!(is_damaged, "{what}: {error}");
                gaps = salvaged.inspect();
                if random.uniform(4) == 0 {
                    // The salvage is killed, and another one begins.
                    salvaged.disk.die_after(1 + random.uniform(20));
                    let _ = salvaged.start_daemon(KNOWN, Damage::Skip);
                    let other = salvaged.after_kill();
                    salvaged = Node { progress: salvaged.progress, ..other };
                }
                let ready = salvaged.start_daemon(KNOWN, Damage::Skip);
                let ready = ready.unwrap_or_else(|error| panic!("{what}: no salvage: {error}"));
                node = salvaged;
                ready
            }
        };
        let mut left = acknowledged.iter();
        let is_kept = |record: &Vec<u8>| left.any(|other| other == record);
        let kept = ready.records.iter().filter(|record| acknowledged.contains(record));
        let kept: Vec<_> = kept.collect();
        assert!(kept.iter().copied().all(is_kept), "{what}: another order");
        let lost = acknowledged.len().saturating_sub(kept.len());
        assert!(lost == 0 || !gaps.is_empty(), "{what}: {lost} in silence");
        let count = random.uniform(30);
        if random.uniform(3) == 0 {
            node.disk.die_after(1 + random.uniform(60));
        }
        acknowledged = node.serve(ready, count, &mut random);
        node = node.after_kill();
    }
}

/// "A damaged log costs the changes that its damaged records describe" (docs/semantics/durability.md).
#[test]
fn a_salvage_keeps_every_whole_record_and_lists_the_others() {
    campaigns(rounds(if is_long() { 6000 } else { 500 }), damage_campaign);
}

/// A node whose daemon was started twice and has records; and the same before its last ones.
fn nodes() -> (Node, Node, usize) {
    let mut random = Random::new(7);
    let mut node = Node::new();
    let ready = node.start(ME.instance).expect("started");
    node.serve(ready, 20, &mut random);
    let old = node.after_kill();
    let mut node = node.after_kill();
    let ready = node.start(ME.instance).expect("started");
    let records = node.serve(ready, 5, &mut random);
    // Two starts later, so that the records of starts are older than those that may be found.
    for _ in 0..2 {
        node = node.after_kill();
        node.start(ME.instance).expect("started");
    }
    (node.after_kill(), old, records.len())
}

/// The name of the newest log file.
fn log_of(files: &FaultyFiles) -> String {
    let names = files.names().expect("names").into_iter();
    names.filter(|name| name.starts_with("log-")).max().expect("a log")
}

/// A start with one file changed by `with`, given its contents, fails and names the file.
fn refused(node: &Node, name: &str, bytes: Option<Vec<u8>>, what: &str) -> Kind {
    let mut changed = node.after_kill();
    let files = if name == MEMORY_RECORD { &changed.memory } else { &changed.disk };
    files.put(name, bytes);
    let outcome = changed.start(ME.instance).map(|ready| ready.records.len());
    let error = outcome.expect_err(&format!("{name} {what}: nothing is noticed"));
    assert!(error.to_string().contains(name), "{what}: {error} does not name {name}");
    error.kind
}

#[test]
fn a_file_that_is_missing_empty_old_or_of_another_instance_is_named() {
    let (node, old, _) = nodes();
    let log = log_of(&node.disk);
    let mut other = Node::new();
    let ready = other.start(9).expect("started");
    other.serve(ready, 3, &mut Random::new(3));
    for (name, files, old, other) in [
        (DISK_RECORD, &node.disk, &old.disk, &other.disk),
        (MEMORY_RECORD, &node.memory, &old.memory, &other.memory),
        (log.as_str(), &node.disk, &old.disk, &other.disk),
    ] {
        let missing = refused(&node, name, None, "missing");
        let is_known = matches!(missing, Kind::Missing | Kind::MemoryGone | Kind::Old { .. });
        assert!(is_known, "{name}: {missing:?}");
        let empty = refused(&node, name, Some(Vec::new()), "empty");
        assert_eq!(empty, Kind::Corrupt { offset: 0, sequence: 0 }, "{name}");
        let bytes = if name == log { old.contents(&log_of(old)) } else { old.contents(name) };
        let found = refused(&node, name, bytes, "old");
        assert!(matches!(found, Kind::Old { .. } | Kind::Corrupt { .. }), "{name}: {found:?}");
        let bytes = if name == log {
            // Of the same generation, as a copy by hand would be.
            other.contents("log-00000001").map(|bytes| with_generation(&bytes, &log))
        } else {
            other.contents(name)
        };
        assert_eq!(refused(&node, name, bytes, "foreign"), Kind::Foreign, "{name}");
        let whole = files.contents(name).expect("there");
        let end = whole.iter().rposition(|byte| *byte != 0).expect("contents");
        let step = if is_long() { 1 } else { 17 };
        for length in (0..=end).step_by(step) {
            let cut = refused(&node, name, whole.get(..length).map(<[u8]>::to_vec), "cut");
            assert!(matches!(cut, Kind::Corrupt { .. } | Kind::Old { .. }), "{name}: {cut:?}");
        }
    }
}

/// A log of another identity with the generation that the name says.
fn with_generation(bytes: &[u8], name: &str) -> Vec<u8> {
    let generation = name.trim_start_matches("log-").parse().expect("a number");
    let identity = crate::record::decode_head(bytes).expect("a head").identity;
    let head = crate::record::encode_head(&crate::record::Head { generation, identity });
    [&head[..], &bytes[crate::record::HEAD_BYTES..]].concat()
}

/// A flipped byte anywhere in a record of starts is found.
#[test]
fn a_damaged_record_of_starts_is_named() {
    let (node, ..) = nodes();
    for (name, files) in [(DISK_RECORD, &node.disk), (MEMORY_RECORD, &node.memory)] {
        let whole = files.contents(name).expect("there");
        for at in (0..whole.len()).filter(|at| *at < 300 || is_long()) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            let found = refused(&node, name, Some(bytes), "damaged");
            assert_eq!(found, Kind::Corrupt { offset: 0, sequence: 0 }, "{name} at {at}");
        }
    }
}

/// Without other faults the daemon starts again, with everything.
#[test]
fn an_untouched_node_starts_with_everything() {
    let (mut node, _, count) = nodes();
    let ready = node.start(ME.instance).expect("started");
    assert_eq!((ready.records.len(), ready.is_first), (count, false));
    assert_eq!(ready.journal.progress(), node.progress);
    assert_eq!(Progress::from_word(node.progress.to_word()), node.progress);
}

/// A daemon in the place of one that lost everything has a higher number, from its first start on, if
/// that is cut short, too; and so have its later starts.
#[test]
fn a_start_in_the_place_of_a_lost_daemon_has_a_higher_number() {
    let number = |node: &Node| {
        let record = StartRecord::read(&mut node.disk.clone(), DISK_RECORD, ME).expect("readable");
        record.expect("there").number
    };
    let before = (ME, Before::Nothing { lost_starts: 7 });
    for changes in 1..40 {
        let mut node = Node::new();
        node.disk.die_after(changes);
        let is_ready = node.start_daemon(before, Damage::Refuse).is_ok();
        let mut node = node.after_kill();
        let again = node.start_daemon(before, Damage::Refuse).expect("started");
        let expected = if again.is_first { 8 } else { 9 };
        assert_eq!(number(&node), expected, "{changes}");
        drop(again);
        assert!(!node.start_daemon(KNOWN, Damage::Refuse).expect("started").is_first);
        assert_eq!(number(&node), expected + 1, "{changes}");
        if is_ready {
            assert!(changes > 5, "{changes}");
            return;
        }
    }
    panic!("no start was complete");
}

/// The files of the lost daemon are no beginning of one in its place.
#[test]
fn a_start_in_the_place_of_a_lost_daemon_refuses_what_that_one_had() {
    let mut node = Node::new();
    for _ in 0..3 {
        drop(node.start(ME.instance).expect("started"));
        node = node.after_kill();
    }
    for lost_starts in [3, 7] {
        for before in [Before::Nothing { lost_starts }, Before::Ready { lost_starts }] {
            let mut node = node.clone();
            let refused = node.start_daemon((ME, before), Damage::Refuse).map(drop);
            let kind = refused.expect_err("it is the old one").kind;
            assert_eq!(kind, Kind::Old { found: 3, expected: lost_starts + 1 });
        }
    }
    let before = Before::Ready { lost_starts: 2 };
    assert!(!node.start_daemon((ME, before), Damage::Refuse).expect("started").is_first);
}

/// A first start that was not completed begins anew, also with another instance's number.
#[test]
fn a_first_start_that_was_killed_begins_anew() {
    for changes in 1..40 {
        let mut node = Node::new();
        node.disk.die_after(changes);
        let is_ready = node.start(9).is_ok();
        let mut node = Node { run: FaultyFiles::new(), ..node.after_kill() };
        if is_ready {
            assert!(changes > 5, "{changes}");
            return;
        }
        let again = node.start(ME.instance);
        // It may have been complete but for the last step; then it is another instance's.
        let kind = again.map(|ready| ready.is_first).map_err(|error| error.kind);
        assert!(matches!(kind, Ok(true) | Err(Kind::Foreign)), "{changes}: {kind:?}");
    }
    panic!("no start was complete");
}
