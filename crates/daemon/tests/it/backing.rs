//! Backing files that are replaced and moved while they are read: by the writeback daemon, which
//! reports that before or a little later, and by others.

use crate::support::{Client, Instance, To, bytes_of};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wire::backing::{BackingLocation, Stamp, SyncState, Version, listed};
use wire::errno::{Errno, Result};
use wire::{Attributes, DaemonIndex, Inode, Request};

const STRIPE_LOG2: u8 = 22;
const STRIPE: u64 = 1 << STRIPE_LOG2;
/// Stripes of a file. Each is fetched from the backing store when it is first read. They are
/// numbered from the end, because reading forward from the beginning would start readahead.
const STRIPES: u64 = 6;
/// How long a file that is missing at its reported location is looked for.
const LOOKED_FOR: Duration = Duration::from_secs(2);
/// Delay of a late report: the reader has found the file missing by then.
const LATE: Duration = Duration::from_millis(300);

/// A backing directory with a file in it, and an instance over it.
struct World {
    backing: tempfile::TempDir,
    instance: Instance,
    client: Client,
    x: Attributes,
    directory: Inode,
}

/// Contents of the file: each stripe has a different byte.
fn bytes() -> Vec<u8> {
    (0..STRIPES).rev().flat_map(|stripe| vec![stripe as u8 + 1; STRIPE as usize]).collect()
}

fn read(client: &Client, inode: Inode, stripe: u64) -> Result<u8> {
    let (stripe_log2, offset) = (STRIPE_LOG2, (STRIPES - 1 - stripe) * STRIPE + 77);
    let request = Request::Read { inode, stripe_log2, offset, length: 1 };
    let bytes = client.call(To::Target(DaemonIndex(0)), &request)?;
    let bytes = bytes_of(&bytes);
    Ok(bytes[0])
}

fn version(path: &Path) -> Version {
    let found = fs::metadata(path).expect("there");
    let modified = found.mtime() * 1_000_000_000 + found.mtime_nsec();
    Version { number: found.ino(), modified, size: found.len() }
}

impl World {
    fn new() -> World {
        let backing = tempfile::tempdir().expect("a directory");
        fs::create_dir(backing.path().join("d")).expect("made");
        fs::write(backing.path().join("d/x"), bytes()).expect("written");
        let path = Some(backing.path().to_owned());
        let instance = Instance::start_over(1, 1, 1, path);
        let client = Client::attach(&instance.socket(0)).expect("attached");
        let root = client.root();
        let directory = client.lookup(&root, b"d").expect("backed");
        let inside = client.attributes(directory).expect("there");
        let inode = client.lookup(&inside, b"x").expect("backed");
        let x = client.attributes(inode).expect("there");
        World { backing, instance, client, x, directory }
    }

    /// Kills and restarts the daemon, which then has no file open.
    fn again(mut self) -> World {
        self.instance.kill(0);
        self.instance.spawn(0);
        self.client = Client::attach(&self.instance.socket(0)).expect("attached");
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.backing.path().join(name)
    }

    /// Another file with these bytes, under a temporary name.
    fn copy(&self, bytes: &[u8]) -> PathBuf {
        let path = self.path("temporary");
        fs::write(&path, bytes).expect("written");
        path
    }

    fn location(&self, name: &'static str, version: Version) -> BackingLocation<'static> {
        let (name, stamp) = (name.as_bytes(), Stamp::of(&self.x));
        BackingLocation { parent: self.directory, name, version, counts: version.size, stamp }
    }

    fn tell(&self, inode: Inode, request: &Request<'_>) {
        self.client.call(To::Shard(inode.shard()), request).map(drop).expect("reported");
    }

    fn writeback(&self, location: BackingLocation<'_>) {
        self.tell(self.x.inode, &Request::Writing { inode: self.x.inode, location });
    }

    fn wrote(&self, location: BackingLocation<'_>) {
        self.tell(self.x.inode, &Request::Wrote { inode: self.x.inode, location });
    }

    fn read(&self, stripe: u64) -> Result<u8> {
        read(&self.client, self.x.inode, stripe)
    }

    /// Reads a stripe by another client and measures the time; calls `meanwhile` during the read.
    fn read_while(&self, stripe: u64, meanwhile: impl FnOnce()) -> (Result<u8>, Duration) {
        let (socket, inode) = (self.instance.socket(0), self.x.inode);
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let client = Client::attach(&socket).expect("attached");
                let began = Instant::now();
                (read(&client, inode, stripe), began.elapsed())
            });
            meanwhile();
            reader.join().expect("no panic")
        })
    }
}

/// "A file stays readable while it is written back again" (docs/semantics/backing.md), with its old
/// contents or its new ones.
#[test]
fn a_file_stays_readable_while_it_is_written_back_again() {
    let world = World::new();
    let read = |stripe| {
        let (byte, took) = world.read_while(stripe, || {});
        assert!(took < LOOKED_FOR, "the file was not found");
        byte
    };
    assert_eq!(read(0), Ok(1));
    let copy = world.copy(&bytes());
    let location = world.location("x", version(&copy));
    world.writeback(location);
    assert_eq!(read(1), Ok(2), "the old version");
    fs::rename(&copy, world.path("d/x")).expect("renamed");
    assert_eq!(read(2), Ok(3), "the new version");
    let world = world.again();
    assert_eq!(world.read(3), Ok(4));
    world.wrote(location);
    let world = world.again();
    assert_eq!(world.read(4), Ok(5));
}

#[test]
fn a_file_written_back_again_or_moved_is_found_after_the_report() {
    let world = World::new();
    assert_eq!(world.read(0), Ok(1));
    let copy = world.copy(&bytes());
    let location = world.location("x", version(&copy));
    fs::rename(&copy, world.path("d/x")).expect("renamed");
    // Open files stay readable, so the change has no effect until the daemon opens the file again.
    let world = world.again();
    let (byte, _) = world.read_while(1, || {
        std::thread::sleep(LATE);
        world.writeback(location);
        world.wrote(location);
    });
    assert_eq!(byte, Ok(2));
    // Its directory is renamed.
    let directory = world.directory;
    let bytes =
        world.client.call(To::Shard(directory.shard()), &Request::SyncState { inode: directory });
    let bytes = bytes.expect("backed");
    let bytes = bytes_of(&bytes);
    let now = listed::<SyncState<'_>>(bytes).next().expect("one").now.expect("backed");
    let to = BackingLocation { name: b"moved", ..now };
    fs::rename(world.path("d"), world.path("moved")).expect("renamed");
    let world = world.again();
    let (byte, _) = world.read_while(2, || {
        std::thread::sleep(LATE);
        world.tell(directory, &Request::Writing { inode: directory, location: to });
        world.tell(directory, &Request::Wrote { inode: directory, location: to });
    });
    assert_eq!(byte, Ok(3));
    assert_eq!(world.read(3), Ok(4));
}

#[test]
fn a_file_of_another_writer_is_not_accepted() {
    let world = World::new();
    assert_eq!(world.read(0), Ok(1));
    // The same size and time, with other bytes.
    let other = world.copy(&vec![99; bytes().len()]);
    let modified = fs::metadata(world.path("d/x")).expect("there").modified().expect("a time");
    let file = fs::File::options().write(true).open(&other).expect("open");
    file.set_modified(modified).expect("set");
    // The writeback daemon announces its own file, which is not the one that appears.
    let mine = world.path("mine");
    fs::write(&mine, bytes()).expect("written");
    world.writeback(world.location("x", version(&mine)));
    fs::rename(&other, world.path("d/x")).expect("replaced");
    let world = world.again();
    let (byte, took) = world.read_while(1, || {});
    assert_eq!(byte, Err(Errno::EIO));
    assert!(took >= LOOKED_FOR && took < 3 * LOOKED_FOR, "{took:?}");
    assert_eq!(world.read(0), Ok(1), "what was read stays");
    fs::remove_file(world.path("d/x")).expect("removed");
    let (byte, took) = world.read_while(2, || {});
    assert_eq!(byte, Err(Errno::EIO));
    assert!(took >= LOOKED_FOR && took < 3 * LOOKED_FOR, "{took:?}");
    // Its own file appears after all.
    fs::rename(&mine, world.path("d/x")).expect("renamed");
    assert_eq!(world.read(3), Ok(4));
}
