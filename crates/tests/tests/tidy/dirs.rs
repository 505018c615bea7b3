//! A directory of sources holds few files.

use super::{assert_none, root, sources};
use std::collections::BTreeMap;

/// A reader sees this many names at a glance.
const FILES_MAX: usize = 15;

#[test]
fn directories_are_small() {
    let mut counts = BTreeMap::new();
    for source in sources() {
        let dir = source.path.parent().expect("a file lies in a folder").to_owned();
        *counts.entry(dir).or_insert(0_usize) += 1;
    }
    println!("largest folder: {} source files", counts.values().max().copied().unwrap_or(0));
    let large = counts.iter().filter(|(_, files)| **files > FILES_MAX);
    let name =
        |dir: &std::path::Path| dir.strip_prefix(root()).unwrap_or(dir).display().to_string();
    let faults: Vec<String> = large
        .map(|(dir, files)| format!("{}: {files} files, at most {FILES_MAX}", name(dir)))
        .collect();
    assert_none(&faults);
}
