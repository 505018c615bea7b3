//! The death of a process in the midst of the shared-memory protocols: its slots are taken over,
//! pages that it had claimed are filled by others, and its descriptor table is found. The test runs
//! itself again as the process that is killed.

use rustix::fd::AsFd;
use shm::Segment;
use shm::extents::{
    Arena, ExtentStates, ExtentTable, HAZARDS_BYTES, HEADER_BYTES, HazardPointers, PageSums,
    STATE_BYTES, Target, page_groups_bytes,
};
use shm::host::{HOST_BYTES, HostSegment};
use shm::session::{DOORBELLS_BYTES, Doorbells, SESSION_BYTES, Session};
use std::ffi::CString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use wire::limits::SLOT_COUNT;
use wire::reply::Extent;
use wire::{Errno, Inode};

const ROLE: &str = "FOREBAY_TEST_VICTIM";
const PLACE: &str = "FOREBAY_TEST_PLACE";

const ARENA_BYTES: usize = 1 << 20;
/// A short extent and a long one, whose page bits are in another segment.
const EXTENTS: [Extent; 2] = [
    Extent { start: 0, slot: 0, location: 0, length_log2: 16, tier: Extent::MEMORY },
    Extent { start: 1 << 19, slot: 1, location: 1 << 19, length_log2: 19, tier: Extent::MEMORY },
];

/// A directory in shared memory that is removed with the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = PathBuf::from(format!("/dev/shm/forebay-test-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a new directory");
        Place(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn segment(place: &Path, name: &str, length: usize) -> Segment {
    let path = CString::new(place.join(name).into_os_string().into_encoded_bytes());
    Segment::create(&path.expect("no NUL"), length).expect("a segment").0
}

/// Runs this test program as `role` until it reports that it is where it should be killed.
fn victim(role: &str, place: &Path) -> Child {
    let program = std::env::current_exe().expect("our own program");
    let mut child = Command::new(program)
        .args(["--exact", "death::the_victim", "--nocapture"])
        .env(ROLE, role)
        .env(PLACE, place)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a victim");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let ready = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("victim ready")));
    assert!(ready.is_some(), "{role} ended early");
    child
}

fn kill(mut child: Child) {
    child.kill().expect("killed");
    child.wait().expect("reaped");
}

/// The states of `EXTENTS`.
fn states(place: &Path) -> ExtentStates {
    let page_groups = segment(place, "page_groups", page_groups_bytes(ARENA_BYTES as u64) as usize);
    let sums = PageSums::new(segment(place, "page_sums", 4096));
    ExtentStates::new(segment(place, "states", 2 * STATE_BYTES), page_groups, sums)
}

/// Not a test by itself: the code of a victim.
#[test]
fn the_victim() {
    let (Ok(role), Ok(place)) = (std::env::var(ROLE), std::env::var(PLACE)) else { return };
    let place = Path::new(&place);
    let session = Session::new(segment(place, "session", SESSION_BYTES)).expect("long enough");
    let host = HostSegment::new(segment(place, "host", HOST_BYTES)).expect("long enough");
    let states = states(place);
    let mut slots: Vec<_> = (0..SLOT_COUNT).map(|_| session.claim(1000).expect("a slot")).collect();
    if role == "requests" {
        let bells = Doorbells::new(segment(place, "bells", DOORBELLS_BYTES)).expect("long enough");
        slots[1].write(|_| Ok::<usize, Errno>(1)).expect("fits");
        slots[1].submit(0, &bells, 0).expect("worker 0");
        let mut entry = session.claim_reply_slot().expect("a row");
        let mut slot = slots.pop().expect("the last");
        slot.write(|_| Ok::<usize, Errno>(1)).expect("fits");
        slot.submit_for(&mut entry, 0, &bells, 0).expect("worker 0");
        core::mem::forget(entry);
    }
    let hazards =
        HazardPointers::new(segment(place, "hazards", HAZARDS_BYTES)).expect("long enough");
    let _guard = hazards.of_session(0, 1000).protect(0).expect("a row");
    if role == "granules" {
        for extent in &EXTENTS {
            let page_bits = states.page_bits(extent, 0).expect("a slot");
            page_bits.claimed.fetch_or(0b10, Ordering::SeqCst);
        }
    }
    if role == "descriptors" {
        let vnode = host.vnode_open(Inode(5)).expect("space");
        let file = host.file_allocate(Inode(5), vnode, 0).expect("space");
        let table = host.process_register(std::process::id(), 77).expect("space");
        host.process_set(table, 3, Some((file, false))).expect("space");
    }
    println!("victim ready");
    loop {
        std::thread::park();
    }
}

#[test]
fn slots_of_the_dead_are_taken_over() {
    let place = Place::new("slots");
    let session = Session::new(segment(&place.0, "session", SESSION_BYTES)).expect("long enough");
    let child = victim("slots", &place.0);
    let hazards =
        HazardPointers::new(segment(&place.0, "hazards", HAZARDS_BYTES)).expect("long enough");
    assert!(hazards.is_protected(0, 0));
    assert_eq!(session.claim(1000).err(), Some(Errno::ETIMEDOUT), "the owner lives");
    kill(child);
    let slots: Vec<_> =
        (0..SLOT_COUNT).map(|_| session.claim(1_000_000).expect("a dead one's slot")).collect();
    assert_eq!(slots.len(), SLOT_COUNT);
    assert!(!hazards.is_protected(0, 0), "dead threads protect nothing");
}

#[test]
fn requests_of_dead_threads_have_no_waiter() {
    let place = Place::new("requests");
    let session = Session::new(segment(&place.0, "session", SESSION_BYTES)).expect("long enough");
    let child = victim("requests", &place.0);
    assert!(session.is_awaited(1) && session.has_waiting());
    kill(child);
    assert!(!session.is_awaited(1) && session.has_waiting());
    let mut each_unawaited = Vec::new();
    session.each_unawaited(&mut |slot| each_unawaited.push(slot));
    assert_eq!(each_unawaited, [1, SLOT_COUNT], "a slot and a reply slot");
    session.reply(1, b"late");
    assert!(session.has_waiting());
    session.reply(SLOT_COUNT, b"late");
    assert!(!session.has_waiting());
}

#[test]
fn pages_claimed_by_dead_threads_are_filled_by_others() {
    let place = Place::new("granules");
    let arena = Arena::new(segment(&place.0, "arena", ARENA_BYTES));
    let table = ExtentTable::new(segment(&place.0, "table", 2 * HEADER_BYTES));
    let states = states(&place.0);
    let ssd = Segment::nameless(c"ssd", 4096).expect("nameless memory").1;
    let target = Target { arena: &arena, ssd: ssd.as_fd(), table: &table, states: &states };
    arena.copy_in(0, &vec![0xee; ARENA_BYTES]).expect("fits");
    for extent in &EXTENTS {
        states.reset(extent, 0).expect("a slot");
        table.publish(Inode(5), extent).expect("a slot");
    }
    kill(victim("granules", &place.0));
    let hazards =
        HazardPointers::new(segment(&place.0, "hazards", HAZARDS_BYTES)).expect("long enough");
    for extent in &EXTENTS {
        let done = target.write_stable(&hazards.of_daemon(), extent, 4096 + 10, b"alive");
        assert_eq!(done, Ok(()));
        let mut read = [1; 3 * 4096];
        target.read_stable(extent, 0, &mut read).expect("read");
        let mut expected = [0; 3 * 4096];
        expected[4096 + 10..4096 + 15].copy_from_slice(b"alive");
        assert!(read == expected);
    }
}

#[test]
fn files_held_open_by_dead_processes_are_found() {
    let place = Place::new("descriptors");
    let host = HostSegment::new(segment(&place.0, "host", HOST_BYTES)).expect("long enough");
    let child = victim("descriptors", &place.0);
    let pid = child.id();
    kill(child);
    let mut found = None;
    host.process_list(&mut |tenant| {
        if (tenant.pid, tenant.started) == (pid, 77) {
            found = Some(tenant);
        }
    });
    let mut files = Vec::new();
    let table = found.expect("the table of the dead");
    let (process, generation) = (table.process, table.generation);
    host.process_release(process, generation, &mut |file| files.push(file)).expect("live");
    assert_eq!(files.len(), 1);
    assert!(host.file_release(files[0]).expect("has a reference"));
    let vnode = host.vnode_find(Inode(5)).expect("open");
    assert!(host.vnode_close(Inode(5), vnode).expect("open").last);
    host.file_free(files[0]).expect("a row");
}

/// A successor that dies leaves its number, which the kernel gives to another thread: to one that has
/// nothing to do with the extent, or to the very one that waits for the page.
#[test]
fn a_number_left_by_a_dead_successor_is_nobodys() {
    let place = Place::new("successor");
    let arena = Arena::new(segment(&place.0, "arena", ARENA_BYTES));
    let table = ExtentTable::new(segment(&place.0, "table", 2 * HEADER_BYTES));
    let states = states(&place.0);
    let ssd = Segment::nameless(c"ssd", 4096).expect("nameless memory").1;
    let target = Target { arena: &arena, ssd: ssd.as_fd(), table: &table, states: &states };
    let hazards =
        HazardPointers::new(segment(&place.0, "hazards", HAZARDS_BYTES)).expect("long enough");
    let mut unrelated = Command::new("cat").stdin(Stdio::piped()).spawn().expect("a process");
    for extent in &EXTENTS {
        states.reset(extent, 0).expect("a slot");
        let claim = |page: u32| {
            states
                .page_bits(extent, 0)
                .expect("a slot")
                .claimed
                .fetch_or(1 << page, Ordering::SeqCst);
        };
        for (page, left) in [(1, shm::wait::thread_id()), (2, unrelated.id())] {
            claim(page);
            let successor = states.successor(extent.slot).expect("a slot");
            successor.store(left, Ordering::SeqCst);
            let within = u64::from(page) * 4096;
            let done = target.write_stable(&hazards.of_daemon(), extent, within + 10, b"alive");
            assert_eq!(done, Ok(()), "left={left}");
            assert_eq!(successor.load(Ordering::SeqCst), 0);
            let mut read = [1; 20];
            target.read_stable(extent, within, &mut read).expect("read");
            assert_eq!(&read, b"\0\0\0\0\0\0\0\0\0\0alive\0\0\0\0\0");
        }
    }
    unrelated.kill().expect("killed");
    unrelated.wait().expect("reaped");
}
