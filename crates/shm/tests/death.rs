//! What a killed process leaves behind in shared memory: its slots are taken over, granules that
//! it had claimed are filled by others, and its descriptor table is found. The test runs itself
//! again as the process that is killed.

use rustix::fd::AsFd;
use shm::Segment;
use shm::arena::Arena;
use shm::doorbell::{DOORBELLS_BYTES, Doorbells};
use shm::host::{HOST_BYTES, HostSegment};
use shm::piece_io::Target;
use shm::pieces::{HEADER_BYTES, PieceStates, PieceTable, STATE_BYTES, stretches_bytes};
use shm::pins::{PINS_BYTES, Pins};
use shm::session::{SESSION_BYTES, Session};
use std::ffi::CString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use wire::limits::SLOT_COUNT;
use wire::reply::Piece;
use wire::{Errno, Inode};

const ROLE: &str = "FOREBAY_TEST_VICTIM";
const PLACE: &str = "FOREBAY_TEST_PLACE";

const ARENA_BYTES: usize = 1 << 20;
/// A short piece and a long one, whose granules are noted elsewhere.
const PIECES: [Piece; 2] = [
    Piece { start: 0, slot: 0, place: 0, length_log2: 16, tier: Piece::MEMORY },
    Piece { start: 1 << 19, slot: 1, place: 1 << 19, length_log2: 19, tier: Piece::MEMORY },
];

/// A directory in shared memory that goes with the test.
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

/// Runs this test program as `role` until it says that it is where it should be killed.
fn victim(role: &str, place: &Path) -> Child {
    let program = std::env::current_exe().expect("our own program");
    let mut child = Command::new(program)
        .args(["--exact", "the_victim", "--nocapture"])
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

/// The states of `PIECES`.
fn states(place: &Path) -> PieceStates {
    let stretches = segment(place, "stretches", stretches_bytes(ARENA_BYTES as u64) as usize);
    PieceStates::new(segment(place, "states", 2 * STATE_BYTES), stretches)
}

/// Not a test by itself: what a victim does.
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
        let mut row = session.claim_row().expect("a row");
        let mut slot = slots.pop().expect("the last");
        slot.write(|_| Ok::<usize, Errno>(1)).expect("fits");
        slot.submit_for(&mut row, 0, &bells, 0).expect("worker 0");
        core::mem::forget(row);
    }
    let pins = Pins::new(segment(place, "pins", PINS_BYTES)).expect("long enough");
    let _pin = pins.of_session(0, 1000).pin(0).expect("a row");
    if role == "granules" {
        for piece in &PIECES {
            let granules = states.granules(piece, 0).expect("a slot");
            granules.claimed.fetch_or(0b10, Ordering::SeqCst);
        }
    }
    if role == "descriptors" {
        let vnode = host.vnode_open(Inode(5)).expect("room");
        let file = host.file_allocate(Inode(5), vnode, 0).expect("room");
        let table = host.process_register(std::process::id(), 77).expect("room");
        host.process_set(table, 3, Some((file, false))).expect("room");
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
    let pins = Pins::new(segment(&place.0, "pins", PINS_BYTES)).expect("long enough");
    assert!(pins.is_pinned(0, 0));
    assert_eq!(session.claim(1000).err(), Some(Errno::ETIMEDOUT), "the owner lives");
    kill(child);
    let slots: Vec<_> =
        (0..SLOT_COUNT).map(|_| session.claim(1_000_000).expect("a dead one's slot")).collect();
    assert_eq!(slots.len(), SLOT_COUNT);
    assert!(!pins.is_pinned(0, 0), "the dead pin nothing");
}

#[test]
fn nobody_waits_for_what_the_dead_asked() {
    let place = Place::new("requests");
    let session = Session::new(segment(&place.0, "session", SESSION_BYTES)).expect("long enough");
    let child = victim("requests", &place.0);
    assert!(session.is_awaited(1) && session.has_waiting());
    kill(child);
    assert!(!session.is_awaited(1) && session.has_waiting());
    let mut unawaited = Vec::new();
    session.unawaited(&mut |slot| unawaited.push(slot));
    assert_eq!(unawaited, [1, SLOT_COUNT], "a slot and a row");
    session.reply(1, b"late");
    assert!(session.has_waiting());
    session.reply(SLOT_COUNT, b"late");
    assert!(!session.has_waiting());
}

#[test]
fn granules_claimed_by_the_dead_are_filled_by_others() {
    let place = Place::new("granules");
    let arena = Arena::new(segment(&place.0, "arena", ARENA_BYTES));
    let table = PieceTable::new(segment(&place.0, "table", 2 * HEADER_BYTES));
    let states = states(&place.0);
    let ssd = Segment::nameless(c"ssd", 4096).expect("nameless memory").1;
    let target = Target { arena: &arena, ssd: ssd.as_fd(), table: &table, states: &states };
    arena.copy_in(0, &vec![0xee; ARENA_BYTES]).expect("fits");
    for piece in &PIECES {
        states.reset(piece, 0).expect("a slot");
        table.publish(Inode(5), piece).expect("a slot");
    }
    kill(victim("granules", &place.0));
    let pins = Pins::new(segment(&place.0, "pins", PINS_BYTES)).expect("long enough");
    for piece in &PIECES {
        let done = target.write_pinned(&pins.of_daemon(), piece, 4096 + 10, b"alive");
        assert_eq!(done, Ok(()));
        let mut read = [1; 3 * 4096];
        target.read_pinned(piece, 0, &mut read).expect("read");
        let mut wanted = [0; 3 * 4096];
        wanted[4096 + 10..4096 + 15].copy_from_slice(b"alive");
        assert!(read == wanted);
    }
}

#[test]
fn what_the_dead_had_open_is_found() {
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
