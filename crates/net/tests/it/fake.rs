//! Fake ends of transfers, for the tests of TCP here and of libfabric in `fabric`: one memory
//! stands for all files, and the inode number decides the result of a transfer.

use net::bulk::{Answer, BulkHandler, Fabric, Kind, Memory, Outcome, Range, Visit};
use net::handshake::PeerIdentity;
use net::security::Protection;
use net::{Channel, Secret, Settings};
use shm::Segment;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use wire::{DaemonIndex, Errno};

/// Behaviour of the files with these inode numbers when a transfer arrives.
pub(crate) const AT_ONCE: u64 = 1;
pub(crate) const LATER: u64 = 2;
pub(crate) const FULL: u64 = 3;
pub(crate) const HOLE: u64 = 4;
pub(crate) const BUSY: u64 = 5;
pub(crate) const SILENT: u64 = 6;
pub(crate) const MOVED: u64 = 8;
/// Where a peer says that it is.
pub(crate) const PLACE: u64 = 3 << 48 | 7;

/// An offset in the bytes of all files.
pub(crate) struct Part {
    pub(crate) file: Arc<Segment>,
    pub(crate) at: usize,
}

impl Memory for Part {
    fn region(&self) -> (&Segment, usize) {
        (&self.file, self.at)
    }
}

/// One daemon's end of transfers.
pub(crate) struct Fake {
    /// The bytes of all files.
    pub(crate) file: Arc<Segment>,
    /// Where late decisions are sent.
    pub(crate) door: OnceLock<Arc<dyn Fabric<Fake>>>,
    /// `SILENT` files answer, too.
    pub(crate) silent_answer: AtomicBool,
    ended: Mutex<mpsc::Sender<(u32, Outcome)>>,
    visits: Mutex<mpsc::Sender<bool>>,
}

impl Fake {
    /// Also returns the transfers that end, and for each visit whether it came through libfabric.
    pub(crate) fn new(
        file: Arc<Segment>,
    ) -> (Arc<Fake>, mpsc::Receiver<(u32, Outcome)>, mpsc::Receiver<bool>) {
        let (tell_ended, ended) = mpsc::channel();
        let (tell_visit, visits) = mpsc::channel();
        let fake = Arc::new(Fake {
            file,
            door: OnceLock::new(),
            silent_answer: AtomicBool::new(false),
            ended: Mutex::new(tell_ended),
            visits: Mutex::new(tell_visit),
        });
        (fake, ended, visits)
    }

    fn part(&self, range: &Range) -> Answer<Part> {
        Answer::Memory(Part { file: Arc::clone(&self.file), at: range.offset as usize })
    }
}

impl BulkHandler for Fake {
    type Token = u32;
    type Memory = Part;
    type Decision = ();

    fn visit(&self, _: DaemonIndex, _: Kind, range: &Range, visit: Visit) -> Option<Answer<Part>> {
        let _ = self.visits.lock().expect("unbroken").send(visit.number_elsewhere().is_some());
        match range.inode.0 {
            AT_ONCE => Some(self.part(range)),
            SILENT if self.silent_answer.load(Ordering::SeqCst) => Some(self.part(range)),
            HOLE => Some(Answer::Hole),
            FULL => Some(Answer::Refused(Errno::ENOSPC)),
            BUSY => Some(Answer::Busy(77)),
            MOVED => Some(Answer::Elsewhere(PLACE)),
            LATER => {
                let door = Arc::clone(self.door.get().expect("set before anything is started"));
                std::thread::spawn(move || door.answer(visit, ()));
                None
            }
            _ => None,
        }
    }

    fn decided(&self, _: Kind, range: &Range, (): ()) -> Answer<Part> {
        self.part(range)
    }

    fn stored(&self, _: &Range, _: Part) -> Result<(), Errno> {
        Ok(())
    }

    fn ended(&self, token: u32, _: Part, outcome: Outcome) {
        let _ = self.ended.lock().expect("unbroken").send((token, outcome));
    }
}

/// Hands streams over; there are no messages.
pub(crate) struct Hand(pub(crate) Arc<dyn Fn(PeerIdentity, Channel) + Send + Sync>);

impl net::Handler for Hand {
    type Token = ();
    fn request(&mut self, _: DaemonIndex, _: net::ReplyHandle, _: &[u8]) {}
    fn reply(&mut self, (): (), _: Result<&[u8], net::Lost>) {}
    fn message(&mut self, _: DaemonIndex, _: &[u8]) {}
    fn bulk(&mut self, from: PeerIdentity, stream: Channel) {
        (self.0)(from, stream);
    }
    fn up(&mut self, _: PeerIdentity) {}
    fn down(&mut self, _: DaemonIndex) {}
}

/// Settings of one of three daemons, which find each other through a file in `directory`.
pub(crate) fn settings(me: u16, directory: &Path) -> Settings {
    Settings {
        me: DaemonIndex(me),
        daemon_count: 3,
        start: u64::from(me),
        secret: Secret::new([9; 32]),
        listen: "127.0.0.1:0".parse().expect("an address"),
        peers: directory.join("peers"),
        protection: Protection::Sealed,
        host: None,
        counters: Arc::default(),
    }
}
