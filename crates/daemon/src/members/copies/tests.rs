//! Copies against a directory and against a device that is full: what is stored, found again, and given
//! up.

use super::*;
use cluster::shipping::put_record;
use store::fault::FaultyFiles;
use wire::DaemonIndex;

const SERVICE: ServiceIndex = ServiceIndex(4);
const NUMBERS: Numbers = Numbers::new(DaemonIndex(0), 3, 3);

fn batch(list: &[&[u8]]) -> Vec<u8> {
    let mut batch = Vec::new();
    list.iter().for_each(|record| put_record(&mut batch, record));
    batch
}

fn segment(directory: &Path) -> Segment {
    let path = std::ffi::CString::new(directory.join("entries").to_str().expect("text"));
    let path = path.expect("no zero");
    Segment::create(&path, 8 * ENTRY_BYTES).expect("mapped").0
}

fn copies(directory: &Path) -> Copies {
    Copies::new(directory.to_owned(), (7, NUMBERS), segment(directory))
}

fn contents(copies: &Copies) -> Vec<Vec<u8>> {
    let options = copies.options(SERVICE, Expected::Existing, Progress::default());
    let files = RealFiles::<store::medium::MappedFile>::new(&copies.directory(SERVICE));
    let mut replay = Replay::inspect(files, options).expect("a journal");
    let mut all = Vec::new();
    while let Some(record) = replay.next().expect("whole") {
        all.push(record.to_vec());
    }
    all
}

#[test]
fn a_copy_is_found_again_at_its_position() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    let mut first = copies(path);
    assert!(first.open(8).is_empty());
    for step in [
        // Of an owner that this daemon followed before it had a copy.
        StandbyStep::Records(batch(&[b"early"])),
        StandbyStep::Begin,
        StandbyStep::Slice(batch(&[b"a"])),
        StandbyStep::Records(batch(&[b"b", b"c"])),
        StandbyStep::Slice(batch(&[b"d"])),
    ] {
        first.store(SERVICE, &step).expect("stored");
        first.note(SERVICE, None);
    }
    drop(first);
    assert!(copies(path).open(8).is_empty(), "half a snapshot is no copy");

    let mut second = copies(path);
    for step in [
        StandbyStep::Begin,
        StandbyStep::Slice(batch(&[b"a"])),
        StandbyStep::Complete,
        StandbyStep::Records(batch(&[b"b", b"c"])),
    ] {
        second.store(SERVICE, &step).expect("stored");
    }
    second.note(SERVICE, Some(Position { epoch: 5, records: 12, is_exact: true }));
    assert_eq!(second.directory(SERVICE), path.join("copy-d1w1"), "service 4 of 3 daemons");
    // Killed before the position was noted: the journal has more than it says.
    second.store(SERVICE, &StandbyStep::Records(batch(&[b"late"]))).expect("stored");
    drop(second);
    let mut third = copies(path);
    let position = Position { epoch: 5, records: 12, is_exact: false };
    assert_eq!(third.open(8), [(SERVICE, position)]);
    third.store(SERVICE, &StandbyStep::Records(batch(&[b"late", b"e"]))).expect("stored");
    assert_eq!(contents(&third), [&b"a"[..], b"b", b"c", b"late", b"late", b"e"]);
    // A snapshot for a follower that is in sync: the copy stays a state of the log meanwhile.
    third.store(SERVICE, &StandbyStep::Begin).expect("stored");
    third.store(SERVICE, &StandbyStep::Records(batch(&[b"f"]))).expect("stored");
    third.note(SERVICE, Some(Position { epoch: 5, records: 15, is_exact: false }));
    drop(third);
    let mut fourth = copies(path);
    assert_eq!(fourth.open(8).len(), 1);
    assert_eq!(contents(&fourth).last().map(Vec::as_slice), Some(&b"f"[..]));
    fourth.forget(SERVICE);
    drop(fourth);
    assert!(copies(path).open(8).is_empty());
}

#[test]
fn a_journal_that_is_older_than_its_entry_or_another_s_is_not_used() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    let mut first = copies(path);
    for step in [StandbyStep::Begin, StandbyStep::Complete] {
        first.store(SERVICE, &step).expect("stored");
    }
    let position = Position { epoch: 2, records: 1, is_exact: true };
    first.note(SERVICE, Some(position));
    let mut entry = first.entry(SERVICE).expect("noted");
    entry.progress.sequence += 1;
    first.put(SERVICE, &entry);
    drop(first);
    let mut second = copies(path);
    assert!(second.open(8).is_empty(), "a record is missing");
    assert_eq!(second.entry(SERVICE), None);
    for step in [StandbyStep::Begin, StandbyStep::Complete] {
        second.store(SERVICE, &step).expect("it begins anew");
    }
    second.note(SERVICE, Some(position));
    drop(second);
    let mut other = Copies::new(path.to_owned(), (8, NUMBERS), segment(path));
    assert!(other.open(8).is_empty(), "it is of another instance");
}

#[test]
fn a_copy_becomes_the_log_of_its_successor_also_after_a_start_and_a_copy_again() {
    let temporary = tempfile::tempdir().expect("a directory");
    let path = temporary.path();
    let mut first = copies(path);
    assert!(first.take_over(SERVICE, 6).is_none(), "it has no copy");
    for step in [StandbyStep::Begin, StandbyStep::Slice(batch(&[b"half"]))] {
        first.store(SERVICE, &step).expect("stored");
        first.note(SERVICE, None);
    }
    assert!(first.take_over(SERVICE, 6).is_none(), "it is no state of a log");
    for step in [
        StandbyStep::Begin,
        StandbyStep::Slice(batch(&[b"a"])),
        StandbyStep::Complete,
        StandbyStep::Records(batch(&[b"b"])),
        // Another snapshot has begun when the owner dies.
        StandbyStep::Begin,
        StandbyStep::Slice(batch(&[b"a"])),
        StandbyStep::Records(batch(&[b"c"])),
    ] {
        first.store(SERVICE, &step).expect("stored");
    }
    first.note(SERVICE, Some(Position { epoch: 5, records: 12, is_exact: true }));
    let mut expected = vec![b"a".to_vec(), b"b".to_vec(), b"c".to_vec()];
    for round in 0..3 {
        let log = first.take_over(SERVICE, 6).expect("it has the copy");
        assert_eq!(log.directory, path.join("copy-d1w1"));
        let mut replay = Journal::open(&log.directory, log.options).expect("a log");
        let mut found = Vec::new();
        while let Some(record) = replay.next().expect("whole") {
            found.push(record.to_vec());
        }
        assert_eq!(found, expected, "round {round}");
        let mut journal = replay.into_journal().expect("a journal");
        // The service goes on with it, and notes its progress.
        journal.reserve(1024, For::Any).expect("space");
        journal.append(b"more").expect("appended");
        log.progress.store(journal.progress()).expect("a word");
        expected.push(b"more".to_vec());
        drop(journal);
        assert!(first.keep_only(|_| false).is_empty(), "it is none of the copies");
        // The daemon starts again: it is no copy that it follows with.
        first = copies(path);
        assert!(first.open(9).is_empty() && first.lengths() == (0, 0));
        assert_eq!(first.entry(SERVICE), None);
    }
    let progress = first.take_over(SERVICE, 6).expect("a log").options.progress;
    assert_eq!(progress.sequence, expected.len() as u64, "nothing of it may be missing");
    // Another daemon owns the service.
    let directory = first.directory(SERVICE);
    let is_later = |service, epoch| service == SERVICE && epoch < 7;
    assert!(first.give_up_owned(is_later, |_| true) && directory.exists(), "a thread still has it");
    let is_earlier = |_, epoch| epoch < 6;
    assert!(!first.give_up_owned(is_earlier, |_| false) && directory.exists());
    assert!(!first.give_up_owned(is_later, |_| false) && !directory.exists());
    assert!(first.take_over(SERVICE, 6).is_none());
    // It is followed with a new copy.
    for step in [StandbyStep::Begin, StandbyStep::Slice(batch(&[b"new"])), StandbyStep::Complete] {
        first.store(SERVICE, &step).expect("stored");
    }
    first.note(SERVICE, Some(Position { epoch: 8, records: 1, is_exact: true }));
    drop(first);
    assert_eq!(contents(&copies(path)), [b"new"]);
    assert_eq!(copies(path).open(9).len(), 1);
}

#[test]
fn the_service_of_a_worker_goes_on_from_a_copy_once_another_daemon_owned_it() {
    let temporary = tempfile::tempdir().expect("a directory");
    let path = temporary.path();
    let own = NUMBERS.of_worker(2).expect("it is one of the first daemons");
    let (first_log, directory) = (path.join("log2"), path.join("copy-d0w2"));
    store::directory::create(&first_log).expect("made");
    std::fs::write(first_log.join("log"), b"records").expect("written");
    let mut all = copies(path);
    assert!(all.take_over(own, 1).is_none(), "it goes on with its first log");
    // Another daemon owns it, which perhaps cannot replay what it has: until then the log stays.
    let is_elsewhere = |service, epoch| service == own && epoch < 2;
    assert!(!all.give_up_owned(is_elsewhere, |_| false) && first_log.exists());
    for step in [StandbyStep::Begin, StandbyStep::Slice(batch(&[b"half"]))] {
        all.store(own, &step).expect("stored");
        all.note(own, None);
    }
    drop(all);
    let mut all = copies(path);
    assert!(all.open(9).is_empty() && first_log.exists());
    assert!(all.take_over(own, 2).is_none(), "half a snapshot is no log");
    for step in [StandbyStep::Begin, StandbyStep::Slice(batch(&[b"a"])), StandbyStep::Complete] {
        assert!(first_log.exists());
        all.store(own, &step).expect("stored");
    }
    assert!(!first_log.exists(), "before anyone counts on the copy");
    all.note(own, Some(Position { epoch: 2, records: 1, is_exact: true }));
    let log = all.take_over(own, 3).expect("a copy");
    assert_eq!((&log.directory, log.earlier), (&directory, EarlierOwner::Another));
    drop(all);
    // It is killed before it began: names that clients changed before are lost as before.
    let mut killed = copies(path);
    assert_eq!(killed.open(9).len(), 1);
    assert_eq!(killed.take_over(own, 3).expect("a copy").earlier, EarlierOwner::Another);
    killed.begins(own);
    drop(killed);
    // A daemon that starts again goes on with it, also where the host did and the memory is lost.
    let mut again = copies(path);
    assert!(again.open(9).is_empty());
    let log = again.take_over(own, 4).expect("its log");
    assert_eq!((&log.directory, log.earlier), (&directory, EarlierOwner::This));
    std::fs::remove_file(path.join("entries")).expect("removed");
    let mut lost = copies(path);
    let log = lost.take_over(own, 5).expect("its log");
    assert_eq!((&log.directory, log.earlier), (&directory, EarlierOwner::This));
    let mut replay = Journal::open(&log.directory, log.options).expect("a log");
    assert_eq!(replay.next().expect("whole"), Some(&b"a"[..]));
    drop(replay);
    // Another daemon owns it again.
    assert!(!lost.give_up_owned(|service, epoch| service == own && epoch < 6, |_| false));
    assert!(!directory.exists() && lost.take_over(own, 6).is_none());
}

#[test]
fn a_log_becomes_a_copy_when_its_service_is_handed_over() {
    let temporary = tempfile::tempdir().expect("a directory");
    let path = temporary.path();
    let mut all = copies(path);
    for step in [StandbyStep::Begin, StandbyStep::Slice(batch(&[b"a"])), StandbyStep::Complete] {
        all.store(SERVICE, &step).expect("stored");
    }
    all.note(SERVICE, Some(Position { epoch: 1, records: 1, is_exact: true }));
    let log = all.take_over(SERVICE, 2).expect("a copy");
    let mut journal = Journal::open(&log.directory, log.options)
        .and_then(Replay::into_journal)
        .expect("a journal");
    journal.append(b"served").expect("appended");
    log.progress.store(journal.progress()).expect("a word");
    let beginning = Position { epoch: 3, records: 0, is_exact: true };
    all.keep(SERVICE, journal, beginning);
    let is_later = |service, epoch| service == SERVICE && epoch < 3;
    assert!(!all.give_up_owned(is_later, |_| false), "it is none of its logs");
    assert_eq!(all.lengths().0, 1);
    // The next owner sends what comes after.
    all.store(SERVICE, &StandbyStep::Records(batch(&[b"followed"]))).expect("stored");
    all.note(SERVICE, Some(Position { records: 1, ..beginning }));
    drop(all);
    let mut again = copies(path);
    let position = Position { records: 1, is_exact: false, ..beginning };
    assert_eq!(again.open(9), [(SERVICE, position)]);
    assert_eq!(contents(&again), [&b"a"[..], b"served", b"followed"]);
    // And back: it goes on with all of it.
    let log = again.take_over(SERVICE, 4).expect("a copy");
    assert_eq!(log.earlier, EarlierOwner::Another);
    again.give_up(SERVICE);
    assert!(again.take_over(SERVICE, 5).is_none() && !again.directory(SERVICE).exists());
    again.give_up(SERVICE);
}

#[test]
fn a_full_device_ends_a_copy_and_not_the_daemon() {
    let files = FaultyFiles::new();
    let identity = Identity::of_daemon(7, 1).of_worker(1);
    let options = Options {
        identity,
        expected: Expected::New,
        progress: Progress::default(),
        damage: Damage::Refuse,
        sync: Sync::Never,
        step_bytes: 4096,
    };
    let replay = Replay::open(files.clone(), options).expect("empty");
    let mut copy = CopiedLog::open(replay, 0).expect("begun");
    copy.store(&StandbyStep::Begin).expect("space");
    copy.store(&StandbyStep::Slice(batch(&[b"a"]))).expect("space");
    copy.store(&StandbyStep::Complete).expect("space");
    files.limit(3 << 20);
    let record = vec![1; 64 << 10];
    let full = (0..1000)
        .find_map(|_| copy.store(&StandbyStep::Records(batch(&[&record]))).err())
        .expect("it gets full");
    assert_eq!(full.errno(), wire::Errno::ENOSPC);
}
