//! Files of the backing directory that are replaced and moved while they are read: by a writer who says
//! so, before or a little later, and by somebody else.

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::{Client, Instance, To, decode};
use wire::below::{Lies, Stamp, Standing, Version, listed};
use wire::errno::{Errno, Result};
use wire::{Attributes, DaemonIndex, Inode, Reply, Request};

const CHUNK_LOG2: u8 = 22;
const CHUNK: u64 = 1 << CHUNK_LOG2;
/// Chunks of a file: each is asked for below when it is read first. They count from the end: to who reads
/// on from the beginning, more is brought than he asked for.
const CHUNKS: u64 = 6;
/// How long a file is looked for that is not where it was said to be.
const LOOKED_FOR: Duration = Duration::from_secs(2);
/// So much later it is told what was done below: the reader has missed it by then.
const LATE: Duration = Duration::from_millis(300);

/// A backing directory with a file in it, and an instance over it.
struct World {
    below: tempfile::TempDir,
    instance: Instance,
    client: Client,
    x: Attributes,
    directory: Inode,
}

/// Bytes of the file: each chunk has its own.
fn bytes() -> Vec<u8> {
    (0..CHUNKS).rev().flat_map(|chunk| vec![chunk as u8 + 1; CHUNK as usize]).collect()
}

fn read(client: &Client, inode: Inode, chunk: u64) -> Result<u8> {
    let (chunk_log2, offset) = (CHUNK_LOG2, (CHUNKS - 1 - chunk) * CHUNK + 77);
    let request = Request::Read { inode, chunk_log2, offset, length: 1 };
    let bytes = client.call(To::Target(DaemonIndex(0)), &request)?;
    let Reply::Bytes { bytes } = decode(&bytes) else { panic!("no bytes") };
    Ok(bytes[0])
}

fn version(path: &Path) -> Version {
    let found = fs::metadata(path).expect("there");
    let modified = found.mtime() * 1_000_000_000 + found.mtime_nsec();
    Version { number: found.ino(), modified, size: found.len() }
}

impl World {
    fn new() -> World {
        let below = tempfile::tempdir().expect("a directory");
        fs::create_dir(below.path().join("d")).expect("made");
        fs::write(below.path().join("d/x"), bytes()).expect("written");
        let backing = Some(below.path().to_owned());
        let instance = Instance::start_over(1, 1, 1, backing);
        let client = Client::attach(&instance.socket(0)).expect("attached");
        let root = client.root();
        let directory = client.lookup(&root, b"d").expect("it lies below");
        let inside = client.attributes(directory).expect("there");
        let inode = client.lookup(&inside, b"x").expect("it lies below");
        let x = client.attributes(inode).expect("there");
        World { below, instance, client, x, directory }
    }

    /// The daemon is killed, and another one has nothing open.
    fn again(mut self) -> World {
        self.instance.kill(0);
        self.instance.spawn(0);
        self.client = Client::attach(&self.instance.socket(0)).expect("attached");
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.below.path().join(name)
    }

    /// Another file with these bytes, not yet in its place.
    fn copy(&self, bytes: &[u8]) -> PathBuf {
        let path = self.path("temporary");
        fs::write(&path, bytes).expect("written");
        path
    }

    fn lies(&self, name: &'static str, version: Version) -> Lies<'static> {
        let (name, stamp) = (name.as_bytes(), Stamp::of(&self.x));
        Lies { parent: self.directory, name, version, counts: version.size, stamp }
    }

    fn tell(&self, inode: Inode, request: &Request<'_>) {
        self.client.call(To::Shard(inode.shard()), request).map(drop).expect("told");
    }

    fn saving(&self, lies: Lies<'_>) {
        self.tell(self.x.inode, &Request::Saving { inode: self.x.inode, lies });
    }

    fn wrote(&self, lies: Lies<'_>) {
        self.tell(self.x.inode, &Request::Wrote { inode: self.x.inode, lies });
    }

    fn read(&self, chunk: u64) -> Result<u8> {
        read(&self.client, self.x.inode, chunk)
    }

    /// Reads a chunk by another client, and says how long it took; meanwhile does something else.
    fn read_while(&self, chunk: u64, meanwhile: impl FnOnce()) -> (Result<u8>, Duration) {
        let (socket, inode) = (self.instance.socket(0), self.x.inode);
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let client = Client::attach(&socket).expect("attached");
                let began = Instant::now();
                (read(&client, inode, chunk), began.elapsed())
            });
            meanwhile();
            reader.join().expect("no panic")
        })
    }
}

/// A file is read on while it is saved anew, as what it was or as what it is.
#[test]
fn a_file_is_read_on_while_it_is_saved_anew() {
    let world = World::new();
    let read = |chunk| {
        let (byte, took) = world.read_while(chunk, || {});
        assert!(took < LOOKED_FOR, "it was looked for in vain");
        byte
    };
    assert_eq!(read(0), Ok(1));
    let copy = world.copy(&bytes());
    let lies = world.lies("x", version(&copy));
    world.saving(lies);
    assert_eq!(read(1), Ok(2), "the old one is there");
    fs::rename(&copy, world.path("d/x")).expect("landed");
    assert_eq!(read(2), Ok(3), "the new one is");
    let world = world.again();
    assert_eq!(world.read(3), Ok(4));
    world.wrote(lies);
    let world = world.again();
    assert_eq!(world.read(4), Ok(5));
}

#[test]
fn a_file_that_was_saved_anew_or_moved_is_found_when_that_is_told() {
    let world = World::new();
    assert_eq!(world.read(0), Ok(1));
    let copy = world.copy(&bytes());
    let lies = world.lies("x", version(&copy));
    fs::rename(&copy, world.path("d/x")).expect("landed");
    // What is open is as it was, so nobody misses anything before the daemon opens it again.
    let world = world.again();
    let (byte, _) = world.read_while(1, || {
        std::thread::sleep(LATE);
        world.saving(lies);
        world.wrote(lies);
    });
    assert_eq!(byte, Ok(2));
    // Its directory is renamed.
    let directory = world.directory;
    let bytes =
        world.client.call(To::Shard(directory.shard()), &Request::Standing { inode: directory });
    let bytes = bytes.expect("it lies below");
    let Reply::Bytes { bytes } = decode(&bytes) else { panic!("no bytes") };
    let now = listed::<Standing<'_>>(bytes).next().expect("one").now.expect("below");
    let to = Lies { name: b"moved", ..now };
    fs::rename(world.path("d"), world.path("moved")).expect("renamed");
    let world = world.again();
    let (byte, _) = world.read_while(2, || {
        std::thread::sleep(LATE);
        world.tell(directory, &Request::Saving { inode: directory, lies: to });
        world.tell(directory, &Request::Wrote { inode: directory, lies: to });
    });
    assert_eq!(byte, Ok(3));
    assert_eq!(world.read(3), Ok(4));
}

#[test]
fn a_file_of_somebody_elses_is_not_taken_for_it() {
    let world = World::new();
    assert_eq!(world.read(0), Ok(1));
    // As long, and as old, with other bytes.
    let other = world.copy(&vec![99; bytes().len()]);
    let modified = fs::metadata(world.path("d/x")).expect("there").modified().expect("a time");
    let file = fs::File::options().write(true).open(&other).expect("open");
    file.set_modified(modified).expect("set");
    // A writer who is about to save his own: he is not the one who does.
    let mine = world.path("mine");
    fs::write(&mine, bytes()).expect("written");
    world.saving(world.lies("x", version(&mine)));
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
    // His own lands after all.
    fs::rename(&mine, world.path("d/x")).expect("landed");
    assert_eq!(world.read(3), Ok(4));
}
