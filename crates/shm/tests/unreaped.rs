//! A parent that kills its child, and goes on before it waits for it: what the child held is free.
//!
//! A program of its own, because the child must hold things in its first thread, which exists until
//! the process is waited for. Tests run in others, which do not.

use shm::Segment;
use shm::host::{HOST_BYTES, HostSegment, OfdIndex};
use shm::session::{SESSION_BYTES, Session};
use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use wire::limits::SLOT_COUNT;
use wire::{Errno, Inode};

/// Set in the child: the directory of the segments, and the open file to lock.
const PLACE: &str = "FOREBAY_TEST_PLACE";
const FILE: &str = "FOREBAY_TEST_FILE";

fn segment(place: &Path, name: &str, length: usize) -> Segment {
    let path = CString::new(place.join(name).into_os_string().into_encoded_bytes());
    Segment::create(&path.expect("no NUL"), length).expect("a segment").0
}

fn segments(place: &Path) -> (Session, HostSegment) {
    let session = Session::new(segment(place, "session", SESSION_BYTES)).expect("long enough");
    (session, HostSegment::new(segment(place, "host", HOST_BYTES)).expect("long enough"))
}

/// Takes all slots and the lock on the offset of a file, and waits to be killed.
fn hold(place: &Path, file: OfdIndex) {
    let (session, host) = segments(place);
    let _slots: Vec<_> = (0..SLOT_COUNT).map(|_| session.claim(1000).expect("a slot")).collect();
    let _guard = host.file(file).expect("a row").lock_offset();
    writeln!(std::io::stdout(), "ready").expect("a parent");
    loop {
        std::thread::park();
    }
}

fn main() {
    if let (Ok(place), Ok(file)) = (std::env::var(PLACE), std::env::var(FILE)) {
        return hold(Path::new(&place), OfdIndex(file.parse().expect("a number")));
    }
    let place = PathBuf::from(format!("/dev/shm/forebay-test-unreaped-{}", std::process::id()));
    std::fs::create_dir(&place).expect("a new directory");
    let tried = std::panic::catch_unwind(|| kill_and_go_on(&place));
    let _ = std::fs::remove_dir_all(&place);
    if tried.is_err() {
        std::process::exit(1);
    }
}

fn kill_and_go_on(place: &Path) {
    let (session, host) = segments(place);
    let vnode = host.vnode_open(Inode(5)).expect("space");
    let file = host.file_allocate(Inode(5), vnode, 0).expect("space");
    let mut child = Command::new(std::env::current_exe().expect("our own program"))
        .env(PLACE, place)
        .env(FILE, file.0.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "ready");
    assert_eq!(session.claim(1000).err(), Some(Errno::ETIMEDOUT), "the owner lives");
    child.kill().expect("killed");
    let claimed = session.claim(10_000_000).map(drop);
    if claimed.is_err() {
        // The lock would be waited for without a bound.
        child.wait().expect("reaped");
    }
    assert_eq!(claimed, Ok(()));
    drop(host.file(file).expect("a row").lock_offset());
    child.wait().expect("reaped");
}
