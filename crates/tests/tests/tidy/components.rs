//! How far the files of a crate depend on each other in circles: files are nodes, calls of methods and
//! functions that another file defines are edges, and a strongly connected component is a set of files
//! that cannot be understood one at a time. `--nocapture` prints the largest component of each crate.

use super::scan::code;
use super::{assert_none, members, sources};
use std::collections::{BTreeMap, BTreeSet};

/// Largest component that a crate may have, in files.
const FILES_MAX: [(&str, usize); 5] =
    [("metadata", 3), ("data", 8), ("daemon", 4), ("client", 2), ("mount", 2)];

/// Names of the standard library's methods: a call of one of them is taken for the library's, also
/// where a file of the crate defines a method of the same name.
const COMMON: &[&str] = &[
    "all",
    "any",
    "as_ref",
    "chain",
    "clear",
    "clone",
    "cmp",
    "copied",
    "contains",
    "count",
    "default",
    "drain",
    "end",
    "entry",
    "eq",
    "extend",
    "filter",
    "find",
    "first",
    "flush",
    "fold",
    "from",
    "get",
    "get_mut",
    "insert",
    "into",
    "is_empty",
    "is_some",
    "iter",
    "keys",
    "last",
    "len",
    "map",
    "max",
    "min",
    "new",
    "next",
    "peek",
    "pop",
    "position",
    "push",
    "range",
    "read",
    "remove",
    "replace",
    "retain",
    "rev",
    "set",
    "skip",
    "split",
    "start",
    "swap",
    "take",
    "then",
    "unwrap_or",
    "values",
    "write",
    "zip",
];

/// Names of the functions that a text defines.
fn defined(code: &str) -> BTreeSet<&str> {
    let parts = code.split("fn ").skip(1);
    parts.filter_map(|part| part.split(|one: char| !is_word(one)).next()).collect()
}

fn is_word(letter: char) -> bool {
    letter == '_' || letter.is_ascii_alphanumeric()
}

/// Names that a text calls: words before a parenthesis or a turbofish, definitions excluded.
fn called(code: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    let mut start = None;
    for (at, letter) in code.char_indices() {
        match (is_word(letter), start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                let is_call = code[at..].starts_with('(') || code[at..].starts_with("::<");
                if is_call && !code[..from].ends_with("fn ") {
                    found.insert(&code[from..at]);
                }
                start = None;
            }
            _ => {}
        }
    }
    found
}

/// Tarjan's algorithm, by repeated reachability: crates have some dozen files.
fn components(edges: &BTreeMap<usize, BTreeSet<usize>>, count: usize) -> Vec<Vec<usize>> {
    let reached: Vec<BTreeSet<usize>> = (0..count)
        .map(|start| {
            let mut seen = BTreeSet::from([start]);
            let mut rest = vec![start];
            while let Some(next) = rest.pop() {
                for &to in edges.get(&next).into_iter().flatten() {
                    if seen.insert(to) {
                        rest.push(to);
                    }
                }
            }
            seen
        })
        .collect();
    let mut found: Vec<Vec<usize>> = Vec::new();
    let mut placed = BTreeSet::new();
    for one in 0..count {
        if !placed.contains(&one) {
            let both = (0..count)
                .filter(|&two| reached[one].contains(&two) && reached[two].contains(&one));
            let component: Vec<usize> = both.collect();
            placed.extend(component.iter().copied());
            found.push(component);
        }
    }
    found
}

#[test]
fn files_depend_on_each_other_in_small_circles() {
    let sources = sources();
    let mut faults = Vec::new();
    for member in members() {
        let files: Vec<_> =
            sources.iter().filter(|one| one.member == member && one.is_production()).collect();
        let texts: Vec<String> = files
            .iter()
            // Unit tests stand at the end of a file and call whatever they like.
            .map(|file| code(file.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("")))
            .collect();
        let mut homes: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
        for (index, text) in texts.iter().enumerate() {
            for name in defined(text) {
                homes.entry(name).or_default().insert(index);
            }
        }
        let mut edges: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for (index, text) in texts.iter().enumerate() {
            for name in called(text) {
                // A name that several files define says nothing about which one is meant.
                match homes.get(name) {
                    _ if COMMON.contains(&name) => {}
                    Some(home) if home.len() == 1 && !home.contains(&index) => {
                        edges.entry(index).or_default().extend(home);
                    }
                    _ => {}
                }
            }
        }
        let all = components(&edges, files.len());
        let largest = all.iter().max_by_key(|one| one.len()).cloned().unwrap_or_default();
        println!("{member}: {} files, largest component {}", files.len(), largest.len());
        let limit = FILES_MAX.iter().find(|(name, _)| *name == member);
        if let Some((_, most)) = limit.filter(|(_, most)| largest.len() > *most) {
            let names: Vec<String> = largest.iter().map(|&one| files[one].name()).collect();
            faults.push(format!("{member}: more than {most} in a circle: {}", names.join(" ")));
        }
    }
    assert_none(&faults);
}
