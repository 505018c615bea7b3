//! What both sides are compared by: each name with all that is to be the same.

use below::{Dress, Node};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use wire::attributes::mode;

/// What is said of a name.
pub(in crate::sim) fn shown(
    (mode, modified): (u32, i64),
    (contents, target): (&[u8], &str),
    extended: &str,
    twins: &[String],
) -> String {
    let mode = if mode & mode::TYPE == mode::SYMLINK { mode::SYMLINK } else { mode };
    format!("{mode:o} {modified} {contents:?} {target:?} {extended} {twins:?}")
}

/// Each name of a tree below.
pub(in crate::sim) fn listing_below(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = Vec::new();
    let mut left = vec![PathBuf::new()];
    while let Some(path) = left.pop() {
        for entry in std::fs::read_dir(root.join(&path)).expect("listed").flatten() {
            let path = path.join(entry.file_name());
            let meta = root.join(&path).symlink_metadata().expect("stat");
            if meta.is_dir() {
                left.push(path.clone());
            }
            // A writer that died in between told nobody of its draft.
            if below::inode_of_kept(&entry.file_name()).is_none() {
                found.push((path, meta));
            }
        }
    }
    let mut listing = BTreeMap::new();
    for (path, meta) in &found {
        let whole = root.join(path);
        // A name that a link lost while its writer died may be left aside as long as the file lives.
        let is_named = |path: &Path| !path.to_string_lossy().contains(".forebay-aside-");
        let twins = found.iter().filter(|(_, other)| other.ino() == meta.ino());
        let twins = twins.filter(|(path, _)| is_named(path));
        let mut twins: Vec<_> = twins.map(|(path, _)| path.display().to_string()).collect();
        twins.sort();
        if !is_named(path) && !twins.is_empty() {
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
            &twins,
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
    let dress = Dress::of(&file, &Node::of(&file).expect("stat")).expect("attributes");
    let mut all: Vec<(String, Vec<u8>)> = dress
        .extended
        .into_iter()
        .map(|(name, value)| (String::from_utf8_lossy(name.as_bytes()).into_owned(), value))
        .collect();
    all.sort();
    all
}
