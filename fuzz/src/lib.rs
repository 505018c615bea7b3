//! Common code of the fuzz targets: seeds, and initial messages.
#![forbid(unsafe_code)]

use wire::attributes::mode;
use wire::backing::{BackingLocation, Stamp, Version};
use wire::{Attributes, Errno, Inode, Layout, Reply, Request, Writer};

/// Writes initial inputs into the directory that the variable `FUZZ_SEEDS` names, if it is set. To
/// be called before the corpus is read.
pub fn write_seeds(seeds: impl IntoIterator<Item = Vec<u8>>) {
    let Some(directory) = std::env::var_os("FUZZ_SEEDS") else { return };
    for (number, seed) in seeds.into_iter().enumerate() {
        let path = std::path::Path::new(&directory).join(format!("seed-{number:03}"));
        std::fs::write(&path, seed).expect("the directory of seeds can be written");
    }
}

/// The bytes that `put` writes.
pub fn encoded(put: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut bytes = vec![0; 8192];
    let mut writer = Writer::new(&mut bytes);
    put(&mut writer);
    let length = writer.finish().expect("a seed is short");
    bytes.truncate(length);
    bytes
}

/// A typical layout of a file.
pub fn layout() -> Layout {
    Layout { stripe_log2: 22, ..Layout::default() }
}

/// Typical attributes of a file.
pub fn attributes() -> Attributes {
    let (inode, mode) = (Inode(2), mode::REGULAR | 0o644);
    Attributes { inode, mode, links: 1, size: 3, layout: layout(), ..Attributes::default() }
}

/// A request of every kind, such that most of them find something to do when they come in a row.
pub fn requests() -> Vec<Request<'static>> {
    let (root, file, name): (_, _, &[u8]) = (Inode::ROOT, Inode(2), b"a");
    let mut all = requests_to_targets(file);
    all.extend(creations(root, name));
    all.extend([
        Request::CreateNameless { parent: root, mode: mode::REGULAR, layout: layout() },
        Request::Lookup { parent: root, name },
        Request::Walk { directory: root, from: 0, names: b"a/b//c" },
        Request::Walk { directory: root, from: 1, names: b"d/a" },
        Request::GetAttributes { inode: file },
        Request::SetAttributes {
            inode: file,
            mask: 8 | 1,
            mode: 0o600,
            uid: 1,
            gid: 1,
            size: 2,
            accessed: 1,
            modified: 1,
        },
        Request::WriteInline { inode: file, offset: 1, bytes: b"xyz" },
        Request::ReadInline { inode: file, offset: 0, length: 9 },
        Request::SetXattr { inode: file, name: b"user.a", value: b"v", flags: 0 },
        Request::GetXattr { inode: file, name: b"user.a" },
        Request::ListXattr { inode: file },
        Request::RemoveXattr { inode: file, name: b"user.a" },
        Request::Lock {
            inode: file,
            owner: 1,
            party: 1,
            pid: 1,
            kind: 2,
            flags: 0,
            start: 0,
            end: 9,
        },
        Request::Lock {
            inode: file,
            owner: 2,
            party: 2,
            pid: 2,
            kind: 1,
            flags: 1,
            start: 5,
            end: 9,
        },
        Request::CancelLock { inode: file, client_id: 1, sequence: 7 },
        Request::Release { inode: file, owner: 1 },
        Request::Link { inode: file, parent: root, name: b"b" },
        Request::Rename { parent: root, name, new_parent: root, new_name: b"c", flags: 0 },
        Request::ReadDirectory { directory: root, after: 0, last: u64::MAX, bytes: 400 },
        Request::ReadLink { inode: Inode(4) },
        Request::Open { inode: file, open_sequence: 3, uses: 1 },
        Request::MoveOut { inode: file },
        Request::LookupForMount { inode: root, name: b"b" },
        Request::LookupForMount { inode: file, name: b"" },
        Request::Unwatch { inode: file },
        Request::Notices { done: 1 },
        Request::SetQuota {
            account: 1,
            space_soft: 1,
            space_hard: 1 << 20,
            inodes_soft: 1,
            inodes_hard: 9,
            grace: 60,
        },
        Request::Quotas { from: 0 },
        Request::Owners { inodes: &[7, 0, 0, 0, 0, 0, 0, 0] },
        Request::SyncState { inode: file },
        Request::Writing { inode: file, location: location(root, name) },
        Request::DirtyInodes { after: Inode::NONE },
        Request::DirtyNames { parent: Inode::NONE, name: b"" },
        Request::Wrote { inode: file, location: location(root, name) },
        Request::NameWritten { parent: root, name, from: Inode::NONE, to: file },
        Request::AwaitDirty { seen: 1 },
        Request::Writing { inode: file, location: location(root, b"c") },
        Request::NotWritten { inode: file },
        Request::Gone { inode: file },
        Request::Extend { inode: file, size: 99 },
        Request::Append { inode: file, length: 9 },
        Request::Unlink { parent: root, name: b"b" },
        Request::Unlink { parent: root, name: b"c" },
        Request::Close { inode: file, open_sequence: 4 },
        Request::Reap { inode: file },
        Request::RemoveDirectory { parent: root, name: b"d" },
    ]);
    all
}

/// A backing location of a file.
pub fn location(parent: Inode, name: &'static [u8]) -> BackingLocation<'static> {
    let (version, stamp) = (Version { number: 5, modified: 6, size: 3 }, Stamp::of(&attributes()));
    BackingLocation { parent, name, version, counts: 3, stamp }
}

/// A file, a directory and a symbolic link.
fn creations(parent: Inode, name: &'static [u8]) -> [Request<'static>; 3] {
    [
        Request::Create {
            parent,
            name,
            mode: mode::REGULAR | 0o644,
            device: 0,
            flags: 2,
            layout: layout(),
            target: b"",
        },
        Request::Create {
            parent,
            name: b"d",
            mode: mode::DIRECTORY | 0o755,
            device: 0,
            flags: 1,
            layout: Layout { spread: 1, ..layout() },
            target: b"",
        },
        Request::Create {
            parent,
            name: b"l",
            mode: mode::SYMLINK | 0o777,
            device: 0,
            flags: 0,
            layout: layout(),
            target: b"a",
        },
    ]
}

fn requests_to_targets(inode: Inode) -> Vec<Request<'static>> {
    let (stripe_log2, offset) = (22, 4096);
    vec![
        Request::MapExtents { inode, stripe_log2, allocate: 1, offset, length: 9, preallocate: 9 },
        Request::Read { inode, stripe_log2, offset, length: 9 },
        Request::Write { inode, stripe_log2, offset, truncate_epoch: 2, bytes: b"bytes" },
        Request::Truncate { inode, stripe_log2, size: 1 },
        Request::Punch { inode, stripe_log2, offset, length: 9 },
        Request::Remove { inodes: &[2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0] },
        Request::Usage { inode, end: 9 },
        Request::Prefetch {
            inode,
            what: 1,
            layout: 22 << 16,
            size: 9,
            list: 3,
            index: 4,
            group: 2,
        },
        Request::SeekData { inode, stripe_log2, offset },
        Request::Space {},
        Request::Flush { inode },
    ]
}

/// A reply of every kind.
pub fn replies() -> Vec<Reply<'static>> {
    let attributes = attributes();
    vec![
        Reply::Done {},
        Reply::Refused { errno: Errno::ENOENT },
        Reply::Stale { epoch: 2 },
        Reply::Busy { retry_micros: 9 },
        Reply::Attributes { attributes },
        Reply::Entry { inode: Inode(2), mode: mode::REGULAR },
        Reply::Created { attributes },
        Reply::Bytes { bytes: b"bytes" },
        Reply::Contents { size: 5, bytes: b"bytes" },
        Reply::Moved { attributes },
        Reply::Placed { offset: 1, size: 2 },
        Reply::Range { offset: 1, truncate_epoch: 2 },
        Reply::Entries { more: 1, next: 9, entries: b"entries" },
        Reply::Extents { extents: &[0; 22] },
        Reply::Number { value: 1 },
        Reply::Held { kind: 1, pid: 2, start: 3, end: 4 },
        Reply::Space { memory_total: 1, memory_free: 1, ssd_total: 1, ssd_free: 1, files: 1 },
    ]
}
