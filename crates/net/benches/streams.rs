//! Rate of bulk streams between two daemons over loopback, plain and sealed in turn, and the time of
//! a small transfer: `cargo bench -p net`. Both daemons are in this process, with one lane each.
#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

#[path = "../tests/it/fake.rs"]
mod fake;

use fake::{AT_ONCE, Fake, Hand, Part, settings};
use net::bulk::{Fabric, Kind, Outcome, Range, Tcp, Transfer};
use net::security::Protection;
use net::{HostDaemons, Net, Settings};
use shm::Segment;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use wire::limits::BOUNCE_BUFFER_BYTES;
use wire::{DaemonIndex, Inode};

const FILE_BYTES: usize = 64 << 20;
/// Transfers in flight, as of a client that writes or reads ahead.
const IN_FLIGHT: usize = 8;
const ROUND: Duration = Duration::from_millis(200);
const ROUNDS: usize = 9;

struct Daemon {
    door: Arc<Tcp<Fake>>,
    file: Arc<Segment>,
    ended: mpsc::Receiver<(u32, Outcome)>,
    address: SocketAddr,
}

fn start(settings: Settings) -> Daemon {
    let (door, lanes) = Tcp::<Fake>::new(1, &settings).expect("pollers");
    let door = Arc::new(door);
    let file = Arc::new(Segment::private(FILE_BYTES).expect("memory"));
    file.copy_in(0, &vec![1; FILE_BYTES]).expect("in range");
    let (ends, ended, _) = Fake::new(Arc::clone(&file));
    for lane in lanes {
        let ends = Arc::clone(&ends);
        std::thread::spawn(move || lane.run(&ends).expect("runs"));
    }
    let (net, _) = Net::bind(settings).expect("bound");
    let address = net.local_address().expect("bound");
    let accepts = Arc::clone(&door);
    let mut hand = Hand(Arc::new(move |from, stream| accepts.accepted(from, stream)));
    std::thread::spawn(move || net.run(&mut hand).expect("runs"));
    Daemon { door, file, ended, address }
}

impl Daemon {
    /// MB/s of one round of transfers of `length` bytes, `in_flight` at a time.
    fn rate(&self, kind: Kind, length: usize, in_flight: usize) -> f64 {
        let mut next = 0;
        let mut begin = || {
            let at = next % (FILE_BYTES / length) * length;
            next += 1;
            let (inode, length) = (Inode(AT_ONCE), length as u32);
            let range = Range {
                inode,
                stripe_log2: 22,
                offset: at as u64,
                length,
                job: wire::JobWord::NONE,
            };
            let memory = Part { file: Arc::clone(&self.file), at };
            let (peer, until, token) = (DaemonIndex(1), None, 0);
            self.door.start(Transfer { peer, kind, range, memory, until, token });
        };
        let (begun, mut done) = (Instant::now(), 0);
        (0..in_flight).for_each(|_| begin());
        while begun.elapsed() < ROUND {
            let (_, outcome) = self.ended.recv().expect("an end");
            assert_eq!(outcome, Outcome::Moved(length as u32));
            done += length;
            begin();
        }
        let time = begun.elapsed();
        for _ in 0..in_flight {
            let _ = self.ended.recv();
        }
        done as f64 / time.as_secs_f64() / 1e6
    }
}

fn main() {
    let directory = tempfile::tempdir().expect("a directory");
    let ways: Vec<(&str, Daemon)> = ["trusted", "authenticated", "within a host"]
        .into_iter()
        .map(|way| {
            let directory = directory.path().join(way.replace(' ', "-"));
            std::fs::create_dir(&directory).expect("made");
            let [one, other] = [0, 1].map(|me| {
                let mut settings = settings(me, &directory);
                match way {
                    "trusted" => settings.protection = Protection::Plain,
                    "within a host" => {
                        let directory = directory.clone();
                        settings.host = Some(HostDaemons { first: 0, count: 2, directory });
                    }
                    _ => {}
                }
                start(settings)
            });
            let lines = format!("0 {}\n1 {}\n", one.address, other.address);
            std::fs::write(directory.join("peers"), lines).expect("written");
            (way, one)
        })
        .collect();
    for (name, kind, length, in_flight) in [
        ("stores of 256 KiB", Kind::Store, BOUNCE_BUFFER_BYTES, IN_FLIGHT),
        ("fetches of 256 KiB", Kind::Fetch, BOUNCE_BUFFER_BYTES, IN_FLIGHT),
        ("fetches of 4 KiB, one at a time", Kind::Fetch, 4096, 1),
    ] {
        let mut rates = vec![Vec::new(); ways.len()];
        for _ in 0..ROUNDS {
            for ((_, daemon), rates) in ways.iter().zip(&mut rates) {
                rates.push(daemon.rate(kind, length, in_flight));
            }
        }
        for ((way, _), rates) in ways.iter().zip(&mut rates) {
            rates.sort_by(f64::total_cmp);
            let (best, median) = (rates[ROUNDS - 1], rates[ROUNDS / 2]);
            println!("{name:32} {way:14} median {median:7.0} MB/s, best {best:7.0} MB/s");
        }
    }
}
