//! Paths of files for answers, as those of a job: services are asked for names by inode numbers, and
//! whether the backing store has what was written.
//!
//! No inode knows its names, so the services look at all their entries, a part of them for each
//! request. The work is bounded: at most `NAMES_ASKED_MAX` files are named, those with the most
//! bytes and with the most transfers, for at most `TIME`. The others stay without a path.

use crate::shared::Shared;
use config::activity::{FileProfile, JobProfile};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};
use wire::attributes::mode;
use wire::backing::listed;
use wire::codec::{Field as _, Reader};
use wire::errno::Errno;
use wire::names::{FoundName, NAMES_ASKED_MAX, NamePlace};
use wire::{Inode, Reply, Request, ShardIndex};

/// Longest search; a million entries take about a tenth of a second.
const TIME: Duration = Duration::from_secs(2);
/// Directories whose names are kept: some 10 MiB.
const DIRECTORIES_MAX: usize = 1 << 16;
/// Longest path, in bytes; of longer ones the end is shown.
const PATH_BYTES_MAX: usize = 1024;
/// Directories above one another that are named.
const DEPTH_MAX: usize = 512;

/// Names that were found, by inode number: the directory and the name there.
#[derive(Default)]
pub(crate) struct Names {
    found: BTreeMap<u64, (u64, Vec<u8>)>,
    /// Some names were not found for lack of time or room.
    is_partial: bool,
}

/// Adds paths to the files of a job.
pub(crate) fn name_files(shared: &Shared, profile: &mut JobProfile) {
    let asked = most_used(&profile.files);
    let directories: BTreeSet<u64> = profile.directories.iter().map(|one| one.inode).collect();
    let until = Instant::now() + TIME;
    let all: BTreeSet<u64> = asked.union(&directories).copied().take(NAMES_ASKED_MAX).collect();
    if all.is_empty() {
        return;
    }
    let mut names = Names::default();
    names.look_for(shared, &shared.net.services(), &all, until);
    for directory in &mut profile.directories {
        directory.path = names.path_of(directory.inode);
    }
    if shared.backing.is_some() {
        note_dirty(shared, &mut profile.files, until);
    }
    let mut removed: BTreeMap<u64, bool> = BTreeMap::new();
    for file in profile.files.iter_mut().filter(|file| asked.contains(&file.inode)) {
        file.path = names.path_of(file.inode);
        if file.path.is_none() && !names.is_partial {
            // A name that moved meanwhile may have been missed.
            let is_removed = removed
                .entry(file.inode)
                .or_insert_with(|| is_removed(shared, Inode(file.inode), until));
            file.is_removed = *is_removed;
            file.path = names.path_of(file.directory).filter(|_| file.is_removed);
        }
    }
}

/// Inode numbers of the files with the most bytes, and of those with the most transfers.
fn most_used(files: &[FileProfile]) -> BTreeSet<u64> {
    let mut sums: BTreeMap<u64, [u64; 2]> = BTreeMap::new();
    for file in files {
        let sum = sums.entry(file.inode).or_default();
        for one in [&file.reads, &file.writes] {
            sum[0] = sum[0].saturating_add(one.bytes);
            sum[1] = sum[1].saturating_add(one.number);
        }
    }
    let mut most = BTreeSet::new();
    let by: [fn(&[u64; 2]) -> u64; 2] = [|sum| sum[0], |sum| sum[1]];
    for of in by {
        let mut all: Vec<_> = sums.iter().map(|(inode, sum)| (of(sum), *inode)).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        most.extend(all.iter().take(NAMES_ASKED_MAX / 2).map(|(_, inode)| *inode));
    }
    most
}

/// True if an inode has no name any more.
fn is_removed(shared: &Shared, inode: Inode, until: Instant) -> bool {
    let request = Request::GetAttributes { inode };
    let answer = shared.ask_in_time(inode.shard(), &request, until);
    match answer.as_deref().map(|bytes| Reply::decode(&mut Reader::new(bytes))) {
        Some(Ok(Reply::Attributes { attributes })) => attributes.links == 0,
        Some(Ok(Reply::Refused { errno })) => errno == Errno::ESTALE,
        _ => false,
    }
}

/// Says of files that were written whether the backing store has them as they are, as long as there is
/// time.
fn note_dirty(shared: &Shared, files: &mut [FileProfile], until: Instant) {
    let mut known: BTreeMap<u64, bool> = BTreeMap::new();
    for file in files.iter_mut().filter(|file| !file.writes.is_none()) {
        let inode = Inode(file.inode);
        let is_dirty = || {
            let answer = shared.ask_in_time(inode.shard(), &Request::IsClean { inode }, until);
            let reply = answer.as_deref().map(|bytes| Reply::decode(&mut Reader::new(bytes)));
            reply == Some(Ok(Reply::Number { value: 0 }))
        };
        file.is_dirty = *known.entry(file.inode).or_insert_with(is_dirty);
    }
}

impl Names {
    /// Adds the names of these inodes, `NAMES_ASKED_MAX` at most, and of directories, as far as these
    /// services have them.
    pub(crate) fn look_for(
        &mut self,
        shared: &Shared,
        services: &BTreeSet<ShardIndex>,
        asked: &BTreeSet<u64>,
        until: Instant,
    ) {
        let numbers: Vec<u8> = asked.iter().flat_map(|inode| inode.to_le_bytes()).collect();
        for &shard in services {
            let mut place = NamePlace::FIRST;
            while place != NamePlace::END {
                let answer = shared.ask_in_time(shard, &place.request(&numbers), until);
                match answer.and_then(|answer| self.take(&answer)) {
                    Some(next) => place = next,
                    None => {
                        self.is_partial = true;
                        break;
                    }
                }
            }
        }
    }

    /// Takes the names of an answer; returns the place to go on from.
    fn take(&mut self, answer: &[u8]) -> Option<NamePlace> {
        let Ok(Reply::Bytes { bytes }) = Reply::decode(&mut Reader::new(answer)) else {
            return None;
        };
        let mut reader = Reader::new(bytes);
        let next = NamePlace::take(&mut reader).ok()?;
        for FoundName { parent, inode, mode, name } in listed::<FoundName<'_>>(reader.rest()) {
            if mode == mode::DIRECTORY && self.found.len() >= DIRECTORIES_MAX {
                self.is_partial = true;
                continue;
            }
            // Of several names of a file the first counts.
            self.found.entry(inode.0).or_insert_with(|| (parent.0, name.to_vec()));
        }
        Some(next)
    }

    /// The path of an inode inside the instance. Control characters are escaped.
    pub(crate) fn path_of(&self, inode: u64) -> Option<String> {
        if Inode(inode) == Inode::ROOT {
            return Some("/".to_owned());
        }
        let (mut parts, mut here) = (Vec::new(), inode);
        while Inode(here) != Inode::ROOT {
            if parts.len() == DEPTH_MAX {
                return None;
            }
            let (parent, name) = self.found.get(&here)?;
            parts.push(escaped(name));
            here = *parent;
        }
        let mut path = String::new();
        for part in parts.iter().rev() {
            path.push('/');
            path.push_str(part);
        }
        Some(shortened(path))
    }
}

/// The end of a path that is too long.
fn shortened(path: String) -> String {
    let Some(first) = path.len().checked_sub(PATH_BYTES_MAX) else { return path };
    let at = (first..path.len()).find(|at| path.is_char_boundary(*at)).unwrap_or(0);
    format!("...{}", path.get(at..).unwrap_or_default())
}

/// A name as `ls -b` shows it: control characters, and bytes that are no text, as octal numbers.
fn escaped(name: &[u8]) -> String {
    let mut text = String::new();
    let octal = |text: &mut String, bytes: &[u8]| {
        // A string takes any text.
        for byte in bytes {
            let _ = write!(text, "\\{byte:03o}");
        }
    };
    let mut rest = name;
    while !rest.is_empty() {
        let (valid, invalid) = match str::from_utf8(rest) {
            Ok(valid) => (valid, 0),
            Err(error) => {
                let valid = rest.get(..error.valid_up_to()).unwrap_or_default();
                let invalid = error.error_len().unwrap_or(rest.len() - valid.len());
                (str::from_utf8(valid).unwrap_or_default(), invalid)
            }
        };
        for letter in valid.chars() {
            match letter {
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                '\\' => text.push_str("\\\\"),
                _ if letter.is_control() => {
                    octal(&mut text, letter.encode_utf8(&mut [0; 4]).as_bytes());
                }
                _ => text.push(letter),
            }
        }
        let end = valid.len() + invalid;
        octal(&mut text, rest.get(valid.len()..end).unwrap_or_default());
        rest = rest.get(end..).unwrap_or_default();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::activity::Transfers;

    #[test]
    fn names_are_escaped_and_long_paths_shortened() {
        assert_eq!(escaped("gr\u{f6}\u{df}e 1".as_bytes()), "gr\u{f6}\u{df}e 1");
        assert_eq!(escaped(b"a\nb\tc\\d\x1b[2J\xff"), "a\\nb\\tc\\\\d\\033[2J\\377");
        let long = shortened("\u{e4}".repeat(1000));
        assert!(long.starts_with("...\u{e4}") && long.len() <= PATH_BYTES_MAX + 3);
        assert_eq!(shortened("/a".to_owned()), "/a");
    }

    #[test]
    fn a_path_needs_all_its_directories_and_no_circle_ends_in_one() {
        let name = |parent: Inode, name: &[u8]| (parent.0, name.to_vec());
        let mut names = Names::default();
        names.found.insert(20, name(Inode::ROOT, b"d"));
        names.found.insert(21, name(Inode(20), b"f"));
        names.found.insert(30, name(Inode(31), b"x"));
        names.found.insert(31, name(Inode(30), b"y"));
        names.found.insert(40, name(Inode(99), b"z"));
        assert_eq!(names.path_of(21).as_deref(), Some("/d/f"));
        assert_eq!(names.path_of(Inode::ROOT.0).as_deref(), Some("/"));
        assert_eq!([30, 40, 50].map(|inode| names.path_of(inode)), [None, None, None]);
    }

    #[test]
    fn of_many_files_those_with_most_bytes_and_most_transfers_are_named() {
        let file = |inode: u64, number: u64, bytes: u64| FileProfile {
            inode,
            reads: Transfers { number, bytes, ..Transfers::default() },
            ..FileProfile::default()
        };
        let mut files: Vec<_> = (1..=1_000_000_u64).map(|inode| file(inode, 1, 1)).collect();
        files.push(file(2_000_000, 1, 1 << 30));
        files.push(file(3_000_000, 1 << 20, 0));
        let most = most_used(&files);
        assert!(most.len() <= NAMES_ASKED_MAX);
        assert!(most.contains(&2_000_000) && most.contains(&3_000_000));
    }
}
