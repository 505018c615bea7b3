//! Uses of a file by ranks that do the same, as one record; and files of one pattern of names that are
//! used the same way, as one.
//!
//! In a pattern `{}` stands for a number, and `{05}` for one of five digits with zeros before it:
//! `/out/part{}` with the numbers 0 to 1,023. Small files of a directory are one record, too (`small`):
//! `/project/hooks/{*}` with their names. A few of a directory are in the record of one above:
//! `/project/{*}` with the name `info/exclude`.

use super::alike::{self, Member, Spread};
use super::runs::Runs;
use super::small;
use crate::profile::{FileProfile, FileUse, TierBytes, Transfers};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::iter::repeat_n;

/// Groups of one pattern, or of one file, that a use is compared with.
const COMPARED_MAX: usize = 32;
/// Bytes and number of transfers of a use that is small: what it does to such a file does not matter.
const SMALL_BYTES: u64 = 64 << 10;
const SMALL_NUMBER: u64 = 16;
/// Fewer small files of a directory go with those of the directory above.
const NAMES_MIN: usize = 4;
/// Stands for a name.
const NAME: &str = "{*}";
/// Digits of a number in a pattern: more are no counter, and do not fit.
const DIGITS_MAX: usize = 18;

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct FileGroup {
    /// A path; with `numbers` or `names` a pattern.
    path: String,
    /// Of the largest file.
    size: u64,
    is_removed: bool,
    /// Sums.
    read_tiers: TierBytes,
    uses: Vec<UseGroup>,
    /// The numbers in the pattern, for each place in it those of all files. The members of each group of
    /// uses are those of the first file, then of the second, as many of each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    numbers: Vec<Runs>,
    /// In place of numbers, the paths of the files from the directory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    names: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sizes: Option<Runs>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct UseGroup {
    /// Sums; the rank is the first.
    #[serde(flatten)]
    pub(super) sum: FileUse,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) members: Option<UseMembers>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct UseMembers {
    pub(super) count: u64,
    pub(super) ranks: Runs,
    /// Lowest and highest offsets.
    pub(super) read: [Runs; 2],
    pub(super) written: [Runs; 2],
    /// Of reads and writes.
    pub(super) seconds: Spread,
    /// Of small files: how many of the uses each file has, and the ways of each use (`small`).
    #[serde(skip_serializing_if = "Runs::is_empty")]
    pub(super) of_files: Runs,
    #[serde(skip_serializing_if = "Runs::is_empty")]
    pub(super) ways: Runs,
}

/// A path with its numbers replaced, and the numbers; `None`: it has none, or has braces of its own.
fn pattern(path: &str) -> Option<(String, Vec<u64>)> {
    if path.contains(['{', '}']) {
        return None;
    }
    let (mut pattern, mut numbers, mut rest) = (String::new(), Vec::new(), path);
    while let Some(begin) = rest.find(|one: char| one.is_ascii_digit()) {
        let (before, from) = rest.split_at(begin);
        let end = from.find(|one: char| !one.is_ascii_digit()).unwrap_or(from.len());
        let (digits, after) = from.split_at(end);
        pattern += before;
        match digits.parse().ok().filter(|_| digits.len() <= DIGITS_MAX) {
            Some(number) => {
                let is_padded = digits.len() > 1 && digits.starts_with('0');
                pattern += &if is_padded { format!("{{0{end}}}") } else { "{}".to_owned() };
                numbers.push(number);
            }
            None => pattern += digits,
        }
        rest = after;
    }
    pattern += rest;
    (!numbers.is_empty()).then_some((pattern, numbers))
}

/// The path that a pattern gives with these numbers.
fn path(pattern: &str, mut numbers: impl Iterator<Item = u64>) -> String {
    let mut parts = pattern.split('{');
    let mut path = parts.next().unwrap_or("").to_owned();
    for part in parts {
        let (width, after) = part.split_once('}').unwrap_or(("", part));
        let width = width.parse::<usize>().unwrap_or(0).min(DIGITS_MAX);
        if let Some(number) = numbers.next() {
            path += &format!("{number:0width$}");
        }
        path += after;
    }
    path
}

fn time(one: &FileUse) -> f64 {
    one.reads.seconds + one.writes.seconds
}

fn is_alike(one: &FileUse, other: &FileUse) -> bool {
    alike::numbers(one.opens, other.opens)
        && alike::numbers(one.syncs, other.syncs)
        && alike::transfers(&one.reads, &other.reads)
        && alike::transfers(&one.writes, &other.writes)
}

/// Puts `next` into a group with a first member like it, or makes one of its own.
fn put<T>(groups: &mut Vec<Vec<T>>, next: T, is_alike: impl Fn(&T, &T) -> bool) {
    let mut recent = groups.iter_mut().rev().take(COMPARED_MAX);
    match recent.find(|group| group.first().is_some_and(|first| is_alike(first, &next))) {
        Some(group) => group.push(next),
        None => groups.push(vec![next]),
    }
}

pub(super) fn use_group(uses: &[&FileUse]) -> UseGroup {
    let mut all = uses.iter().copied();
    let mut sum = all.next().copied().unwrap_or_default();
    for one in all {
        sum.opens = sum.opens.saturating_add(one.opens);
        sum.syncs = sum.syncs.saturating_add(one.syncs);
        sum.metadata_seconds += one.metadata_seconds;
        sum.reads.add(&one.reads);
        sum.writes.add(&one.writes);
    }
    let offsets = |of: fn(&FileUse) -> &Transfers| {
        let lowest = Runs::of(uses.iter().map(|one| of(one).lowest));
        [lowest, Runs::of(uses.iter().map(|one| of(one).highest))]
    };
    let members = (uses.len() > 1).then(|| UseMembers {
        count: uses.len() as u64,
        ranks: Runs::of(uses.iter().map(|one| u64::from(one.rank))),
        read: offsets(|one| &one.reads),
        written: offsets(|one| &one.writes),
        seconds: Spread::of(uses.iter().map(|one| time(one))),
        of_files: Runs::default(),
        ways: Runs::default(),
    });
    UseGroup { sum, members }
}

/// The uses of a group.
fn uses(group: UseGroup) -> Vec<FileUse> {
    let UseGroup { sum, members } = group;
    let Some(all) = members else { return vec![sum] };
    if !all.ways.is_empty() {
        return small::uses(&sum, &all);
    }
    let ranks: Vec<u64> = all.ranks.each().collect();
    let offsets = |of: &[Runs; 2]| -> Vec<(u64, u64)> { of[0].each().zip(of[1].each()).collect() };
    let (read, written) = (offsets(&all.read), offsets(&all.written));
    let one = |(place, rank): (usize, &u64)| {
        let member = Member::new(place as u64, ranks.len() as u64, (time(&sum), &all.seconds));
        let transfers = |sum: &Transfers, offsets: &[(u64, u64)]| {
            let (lowest, highest) =
                offsets.get(place).copied().unwrap_or((sum.lowest, sum.highest));
            Transfers { lowest, highest, ..member.transfers(sum) }
        };
        FileUse {
            rank: u32::try_from(*rank).unwrap_or(u32::MAX),
            opens: member.number(sum.opens),
            reads: transfers(&sum.reads, &read),
            writes: transfers(&sum.writes, &written),
            metadata_seconds: member.seconds(sum.metadata_seconds),
            syncs: member.number(sum.syncs),
        }
    };
    ranks.iter().enumerate().map(one).collect()
}

/// A file whose uses are in groups.
struct GroupedFile<'a> {
    file: &'a FileProfile,
    groups: Vec<Vec<&'a FileUse>>,
    /// The numbers in its path.
    numbers: Vec<u64>,
}

impl<'a> GroupedFile<'a> {
    fn new(file: &'a FileProfile) -> GroupedFile<'a> {
        let mut groups: Vec<Vec<&FileUse>> = Vec::new();
        for one in &file.uses {
            put(&mut groups, one, |one, other| is_alike(one, other));
        }
        GroupedFile { file, groups, numbers: Vec::new() }
    }

    /// True if the groups of both have as many members, and are alike.
    fn is_like(&self, other: &Self) -> bool {
        let mut both = self.groups.iter().zip(&other.groups);
        let is_pair = |(one, other): (&Vec<&FileUse>, &Vec<&FileUse>)| {
            let first = one.first().zip(other.first());
            one.len() == other.len() && first.is_some_and(|(one, other)| is_alike(one, other))
        };
        self.groups.len() == other.groups.len() && both.all(is_pair)
    }

    fn is_small(&self) -> bool {
        let is_small = |of: &Transfers| of.bytes <= SMALL_BYTES && of.number <= SMALL_NUMBER;
        let mut uses = self.groups.iter().flatten();
        let is_short = |one: &FileUse| alike::is_noise(time(one));
        uses.all(|one| is_small(&one.reads) && is_small(&one.writes) && is_short(one))
            && !self.groups.is_empty()
    }
}

/// One record of files of a pattern.
fn record(pattern: &str, files: &[GroupedFile<'_>]) -> FileGroup {
    let (mut read_tiers, mut size) = (TierBytes::default(), 0);
    for GroupedFile { file, .. } in files {
        read_tiers.add(file.read_tiers);
        size = size.max(file.size);
    }
    let groups = files.first().map_or(0, |first| first.groups.len());
    let uses = |group: usize| -> Vec<&FileUse> {
        files.iter().filter_map(|file| file.groups.get(group)).flatten().copied().collect()
    };
    FileGroup {
        path: pattern.to_owned(),
        size,
        is_removed: files.first().is_some_and(|first| first.file.is_removed),
        read_tiers,
        uses: (0..groups).map(|group| use_group(&uses(group))).collect(),
        sizes: (files.len() > 1).then(|| Runs::of(files.iter().map(|one| one.file.size))),
        ..FileGroup::default()
    }
}

/// One record of files whose paths differ by numbers.
fn numbered(pattern: &str, files: &[GroupedFile<'_>]) -> FileGroup {
    let places = files.first().map_or(0, |first| first.numbers.len());
    let column =
        |place: usize| Runs::of(files.iter().filter_map(|file| file.numbers.get(place)).copied());
    FileGroup { numbers: (0..places).map(column).collect(), ..record(pattern, files) }
}

/// The first rank of a file, and its numbers: in this order they are short.
fn order(file: &GroupedFile<'_>) -> (u32, Vec<u64>) {
    let first = file.file.uses.first().map_or(0, |one| one.rank);
    (first, file.numbers.clone())
}

fn grouped(files: &[FileProfile]) -> Vec<FileGroup> {
    let mut by_pattern: BTreeMap<(String, bool), Vec<GroupedFile<'_>>> = BTreeMap::new();
    let mut alone = Vec::new();
    for file in files {
        let mut one = GroupedFile::new(file);
        match pattern(&file.path) {
            Some((pattern, numbers)) => {
                one.numbers = numbers;
                by_pattern.entry((pattern, file.is_removed)).or_default().push(one);
            }
            None => alone.push(one),
        }
    }
    let mut records = Vec::new();
    for ((pattern, _), mut files) in by_pattern {
        files.sort_by_cached_key(order);
        let mut alike: Vec<Vec<GroupedFile<'_>>> = Vec::new();
        for next in files {
            put(&mut alike, next, GroupedFile::is_like);
        }
        for mut files in alike {
            match files.len() {
                1 => alone.append(&mut files),
                _ => records.push(numbered(&pattern, &files)),
            }
        }
    }
    records.extend(named(alone));
    records
}

/// Small files that may become one record, by their directory, deepest directories first.
type SmallFiles<'a> = BTreeMap<(Reverse<usize>, &'a str, bool), Vec<GroupedFile<'a>>>;

fn put_in_directory<'a>(to: &mut SmallFiles<'a>, directory: &'a str, next: GroupedFile<'a>) {
    let depth = Reverse(directory.matches('/').count());
    to.entry((depth, directory, next.file.is_removed)).or_default().push(next);
}

/// Records of files that are like no other by numbers: small ones of a directory are one. Where they are
/// few, they go with those of the directory above: a tree of directories with a file each is one record.
fn named(files: Vec<GroupedFile<'_>>) -> Vec<FileGroup> {
    let mut records = Vec::new();
    let mut small = SmallFiles::new();
    for next in files {
        let path = &next.file.path;
        let may_be_named = path.starts_with('/') && !path.contains(['{', '}']);
        match path.rsplit_once('/').filter(|_| may_be_named && next.is_small()) {
            Some((directory, _)) => put_in_directory(&mut small, directory, next),
            None => records.push(record(path, &[next])),
        }
    }
    while let Some(((_, directory, _), files)) = small.pop_first() {
        match directory.rsplit_once('/') {
            Some((above, _)) if files.len() < NAMES_MIN => {
                files.into_iter().for_each(|one| put_in_directory(&mut small, above, one));
            }
            _ => records.push(below(&files)),
        }
    }
    records
}

/// One record of small files, with their paths from the deepest directory that they share.
fn below(files: &[GroupedFile<'_>]) -> FileGroup {
    let [first, _, ..] = files else {
        return record(files.first().map_or("", |one| &one.file.path), files);
    };
    let mut directory = first.file.path.as_str();
    // All paths are absolute, so all are below the root.
    while files.iter().any(|one| name_below(directory, &one.file.path).is_none()) {
        directory = directory.rsplit_once('/').map_or("", |(above, _)| above);
    }
    let name = |one: &GroupedFile<'_>| name_below(directory, &one.file.path).map(str::to_owned);
    let names = files.iter().filter_map(name).collect();
    let uses = small::group(&files.iter().map(|one| one.file).collect::<Vec<_>>());
    FileGroup { names, uses: vec![uses], ..record(&format!("{directory}/{NAME}"), files) }
}

/// The rest of a path below a directory.
fn name_below<'a>(directory: &str, path: &'a str) -> Option<&'a str> {
    path.strip_prefix(directory)?.strip_prefix('/')
}

/// The file of each use of a group, of `count` files.
fn owners(group: &UseGroup, count: usize) -> Vec<usize> {
    let Some(all) = &group.members else { return vec![0] };
    let number = all.ranks.each().count();
    let each = number.div_ceil(count.max(1)).max(1);
    if all.of_files.is_empty() {
        return (0..number).map(|place| place / each).collect();
    }
    let of_file = |(file, uses): (usize, u64)| repeat_n(file, usize::try_from(uses).unwrap_or(0));
    all.of_files.each().enumerate().flat_map(of_file).take(number).collect()
}

fn files(group: FileGroup) -> Vec<FileProfile> {
    let FileGroup { path: text, size, is_removed, read_tiers, uses: groups, numbers, names, sizes } =
        group;
    let count = match numbers.first() {
        None if names.is_empty() => {
            let uses = groups.into_iter().flat_map(uses).collect();
            return vec![FileProfile { path: text, size, is_removed, read_tiers, uses }];
        }
        None => names.len(),
        Some(first) => first.each().count(),
    };
    let mut of_files = vec![Vec::new(); count];
    for group in groups {
        let owners = owners(&group, count);
        for (owner, one) in owners.into_iter().zip(uses(group)) {
            if let Some(of_file) = of_files.get_mut(owner) {
                of_file.push(one);
            }
        }
    }
    let is_read = |uses: &[FileUse]| uses.iter().any(|one| one.reads.number > 0);
    let readers = of_files.iter().filter(|uses| is_read(uses)).count() as u64;
    let mut reader = 0_u64;
    let mut columns: Vec<_> = numbers.iter().map(Runs::each).collect();
    let sizes: Vec<u64> = sizes.map(|runs| runs.each().collect()).unwrap_or_default();
    let mut file = |(place, uses): (usize, Vec<FileUse>)| {
        let all = (0.0, &Spread::default());
        // Bytes of a tier are of files that were read, if any was.
        let read_tiers = if readers == 0 {
            read_tiers.map(|bytes| Member::new(place as u64, count as u64, all).number(bytes))
        } else if is_read(&uses) {
            reader += 1;
            read_tiers.map(|bytes| Member::new(reader - 1, readers, all).number(bytes))
        } else {
            TierBytes::default()
        };
        let path = match names.get(place) {
            Some(name) => text.replace(NAME, name),
            None => path(&text, columns.iter_mut().filter_map(Iterator::next)),
        };
        let size = sizes.get(place).copied().unwrap_or(size);
        FileProfile { path, size, is_removed, read_tiers, uses }
    };
    of_files.into_iter().enumerate().map(&mut file).collect()
}

pub(crate) fn serialize<S: Serializer>(all: &[FileProfile], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(grouped(all))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<FileProfile>, D::Error> {
    Ok(Vec::<FileGroup>::deserialize(from)?.into_iter().flat_map(files).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_comes_back_from_its_pattern() {
        for text in ["/a/part00012.h5", "/0/00/1a-22", "/d7/f8", "/9999999999999999999999/1"] {
            let (pattern, numbers) = pattern(text).expect("numbers");
            assert_eq!(path(&pattern, numbers.into_iter()), text, "{pattern}");
        }
        assert_eq!(pattern("/out/part07").map(|(text, _)| text).as_deref(), Some("/out/part{02}"));
        assert_eq!(pattern("/none").or(pattern("/{1}")), None);
    }
}
