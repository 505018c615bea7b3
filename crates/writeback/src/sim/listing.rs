//! The listing by which instance and backing store are compared: each name with all that must be
//! equal.

use backing::{FileMetadata, Node};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use wire::attributes::mode;

/// The line for a name.
pub(in crate::sim) fn shown(
    (mode, modified): (u32, i64),
    (contents, target): (&[u8], &str),
    extended: &str,
    hardlinks: &[String],
) -> String {
    let mode = if mode & mode::TYPE == mode::SYMLINK { mode::SYMLINK } else { mode };
    format!("{mode:o} {modified} {contents:?} {target:?} {extended} {hardlinks:?}")
}

/// Lists a tree of the backing store.
pub(in crate::sim) fn listing_of(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = Vec::new();
    let mut left = vec![PathBuf::new()];
    while let Some(path) = left.pop() {
        for entry in std::fs::read_dir(root.join(&path)).expect("listed").flatten() {
            let path = path.join(entry.file_name());
            let meta = root.join(&path).symlink_metadata().expect("stat");
            if meta.is_dir() {
                left.push(path.clone());
            }
            // A partial file that a killed daemon did not report is left out.
            if backing::inode_of_partial(&entry.file_name()).is_none() {
                found.push((path, meta));
            }
        }
    }
    let mut listing = BTreeMap::new();
    for (path, meta) in &found {
        let whole = root.join(path);
        // A removed hard link may stay under an aside name as long as the file exists, if the
        // daemon was killed.
        let is_named = |path: &Path| !path.to_string_lossy().contains(".forebay-aside-");
        let hardlinks = found.iter().filter(|(_, other)| other.ino() == meta.ino());
        let hardlinks = hardlinks.filter(|(path, _)| is_named(path));
        let mut hardlinks: Vec<_> = hardlinks.map(|(path, _)| path.display().to_string()).collect();
        hardlinks.sort();
        if !is_named(path) && !hardlinks.is_empty() {
            continue;
        }
        let contents =
            if meta.is_file() { std::fs::read(&whole).expect("read") } else { Vec::new() };
        let target = std::fs::read_link(&whole).unwrap_or_default();
        let modified = meta.mtime() * 1_000_000_000 + meta.mtime_nsec();
        let extended = if meta.is_symlink() { Vec::new() } else { extended(&whole) };
        let said = shown(
            (meta.mode(), modified),
            (&contents, &target.to_string_lossy()),
            &format!("{extended:?}"),
            &hardlinks,
        );
        listing.insert(path.clone(), said);
    }
    listing
}

fn extended(path: &Path) -> Vec<(String, Vec<u8>)> {
    let meta = path.metadata().expect("stat");
    if !meta.is_file() && !meta.is_dir() {
        return Vec::new();
    }
    let file = std::fs::File::open(path).expect("open");
    let metadata = FileMetadata::of(&file, &Node::of(&file).expect("stat")).expect("attributes");
    let mut all: Vec<(String, Vec<u8>)> = metadata
        .extended
        .into_iter()
        .map(|(name, value)| (String::from_utf8_lossy(name.as_bytes()).into_owned(), value))
        .collect();
    all.sort();
    all
}
