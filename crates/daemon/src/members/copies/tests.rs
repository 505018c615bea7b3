//! Copies against a directory and against a device that is full: what is stored, found again, and given
//! up.

use super::*;
use cluster::shipping::put_record;
use store::fault::FaultyFiles;

const SERVICE: ServiceIndex = ServiceIndex(4);

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
    Copies::new(directory.to_owned(), (7, 3), segment(directory))
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
    let mut other = Copies::new(path.to_owned(), (8, 3), segment(path));
    assert!(other.open(8).is_empty(), "it is of another instance");
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
