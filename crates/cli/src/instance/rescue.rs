//! A damaged instance: what its files hold on all hosts, what that means together
//! (`metadata::rescue`), and the changes that its daemons take up when they start without what is lost.
//!
//! The daemons' program reads their files: `forebayd --check`. Nothing is changed before `send_repairs`.

use crate::failure::{Failure, Result};
use crate::instance::cluster;
use crate::instance::host::{self, component};
use crate::instance::writeback;
use crate::process;
use crate::process::progress::Progress;
use crate::state::directories;
use crate::state::records::{self, HostRecord, InstanceRecord};
use config::control::{DAMAGED_PAGE_BYTES, DaemonCheck, LogCheck, LostBytes, from_hex, to_hex};
use config::process::{CheckExtent, ServiceRepair};
use metadata::rescue::{Finding, Held, Instance, Loss, Repair, Rescue};
use placement::Map;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};
use wire::{DaemonIndex, Inode};

/// The list of what the salvages of an instance lost, in the run directory of the starting host.
const LOST: &str = "lost.json";
/// Digits of a repair that are sent at a time, far below the longest request.
const PART_DIGITS: usize = 32 * 1024;

/// A loss of a file, as commands print it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LostFile {
    /// The kind of loss: a word of `word_of`.
    pub(crate) what: String,
    /// Its path from the root of the instance; empty: nobody knows.
    pub(crate) path: String,
    /// Its inode number.
    pub(crate) inode: u64,
    /// Its size, if that is known.
    pub(crate) size: Option<u64>,
    /// With `bytes`: offset and length of each lost range.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ranges: Vec<(u64, u64)>,
    /// There are more ranges.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) has_more: bool,
}

impl LostFile {
    fn of(finding: Finding) -> LostFile {
        LostFile {
            what: word_of(finding.loss).to_owned(),
            path: String::from_utf8_lossy(&finding.path).into_owned(),
            inode: finding.inode.0,
            size: finding.size,
            ranges: finding.ranges.iter().map(|it| (it.start, it.end - it.start)).collect(),
            has_more: false,
        }
    }

    /// A file that lost bytes with all their copies.
    pub(crate) fn without_copies(bytes: LostBytes) -> LostFile {
        let LostBytes { inode, path, size, is_gone, ranges, has_more } = bytes;
        let what = if is_gone { "copies" } else { "down" }.to_owned();
        LostFile { what, path: path.unwrap_or_default(), inode, size: Some(size), ranges, has_more }
    }
}

/// Damage of a file of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Damage {
    /// The daemon.
    pub(crate) daemon: u16,
    /// Path of the file on its host, and what is wrong with it.
    pub(crate) text: String,
}

/// Damage of an instance, and the losses that follow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Files of daemons that are damaged.
    pub(crate) damage: Vec<Damage>,
    /// Files of the instance that are lost, or of which something is.
    pub(crate) lost: Vec<LostFile>,
    /// Damaged bytes that the backing store has: they are read from there again.
    pub(crate) bytes_in_backing: u64,
    /// Damaged bytes of copies that another copy has: they are repaired from there.
    #[serde(default)]
    pub(crate) bytes_in_copies: u64,
}

impl Report {
    /// True if nothing is wrong.
    pub(crate) fn is_whole(&self) -> bool {
        let is_repaired = self.bytes_in_backing + self.bytes_in_copies > 0;
        self.damage.is_empty() && self.lost.is_empty() && !is_repaired
    }
}

/// The outcome of a check of all daemons.
pub(crate) struct Checked {
    pub(crate) report: Report,
    /// Number of the salvage that may follow.
    pub(crate) round: u64,
    /// The changes for it, each with the daemon that has the log of the service.
    pub(crate) repairs: Vec<(u16, Repair)>,
}

/// The word for a loss.
const fn word_of(loss: Loss) -> &'static str {
    match loss {
        Loss::File => "file",
        Loss::Data => "data",
        Loss::DirectoryAttributes => "attributes",
        Loss::Name => "name",
        Loss::SecondName => "second-name",
        Loss::Links => "links",
        Loss::BeyondEnd => "size",
        Loss::Holes => "holes",
        Loss::Bytes => "bytes",
    }
}

/// The words of `word_of` with their meaning, for people.
pub(crate) const WORDS: [(&str, &str); 11] = [
    ("file", "the file is lost, and its name goes"),
    ("data", "a file is lost with its names: its data goes"),
    (
        "attributes",
        "owner and mode of the directory are lost: it is the instance owner's, mode 0700",
    ),
    ("name", "the name is lost: the file is in lost+found, by its inode number"),
    ("second-name", "the directory had two names, and this one goes"),
    ("links", "some names of the file are lost, or come back"),
    ("size", "the file has data beyond its end: its last size may be lost"),
    ("holes", "less data than the size says: the rest reads as zeros, or the file was removed"),
    ("bytes", "these bytes of the file cannot be read"),
    ("copies", "all copies of these bytes are gone, holes included: reading them is EIO"),
    ("down", "all daemons with copies of these bytes are down: they return with one of them"),
];

/// Checks the files of all daemons of an instance and compares them.
///
/// # Errors
/// A host cannot be reached, or the files of a daemon cannot be read.
pub(crate) fn check(
    instance: &InstanceRecord,
    extent: CheckExtent,
    daemons: Daemons,
) -> Result<Checked> {
    let checks = cluster::check_on_each(instance, extent, daemons)?;
    let mut found = compare(instance, &checks)?;
    if daemons == Daemons::Run && !(found.report.lost.is_empty() && found.repairs.is_empty()) {
        // The logs of running daemons are read at different moments: what is under way in one of them
        // is over when they are read again.
        let checks = cluster::check_on_each(instance, CheckExtent::Logs, daemons)?;
        let again = compare(instance, &checks)?;
        let is_there = |file: &LostFile| file.what == "bytes" || again.report.lost.contains(file);
        found.report.lost.retain(is_there);
        if again.repairs.is_empty() {
            found.repairs.clear();
        }
    }
    Ok(found)
}

/// Files of which bytes are damaged in all copies that can be reached, as far as somebody has met the
/// damage. Hosts that do not answer are left out.
pub(crate) fn damaged_copies(instance: &InstanceRecord) -> Result<Vec<LostFile>> {
    let checks = cluster::check_where_possible(instance, CheckExtent::Logs)?;
    let mut found = compare(instance, &checks)?.report.lost;
    // Without the logs of all services nothing else is known.
    found.retain(|file| file.what == word_of(Loss::Bytes));
    Ok(found)
}

/// Treatment of running daemons before their files are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Daemons {
    /// They go on.
    Run,
    /// They end. Their data stays.
    End,
}

/// Compares the files of all daemons.
fn compare(instance: &InstanceRecord, checks: &[DaemonCheck]) -> Result<Checked> {
    let invalid = |what: &str| Failure::at("unexpected reply", what, "is the version the same?");
    let map = Map::initial(instance.began()).and_then(|first| first.grown_to(instance.count()));
    let map = map.ok_or_else(|| invalid("the number of daemons"))?;
    let [spread, placement, stripe_log2, flags] =
        checks.first().map(|check| check.layout).unwrap_or_default();
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // Each salvage is a start of all daemons.
    let round = checks.iter().map(|check| check.starts).max().unwrap_or(0) + 1;
    let mut rescue = Rescue::new(Instance {
        map,
        workers: usize::try_from(instance.config.workers).unwrap_or(1),
        backing: instance.config.backing.is_some(),
        spread,
        placement,
        stripe_log2,
        flags,
        uid: instance.uid,
        gid: rustix::process::getegid().as_raw(),
        round,
        now: i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
    });
    let logs = logs_of(checks);
    let damage = checks.iter().flat_map(|check| damage_of(check, &logs)).collect();
    let mut report = Report { damage, ..Report::default() };
    for (&(first, worker), (_, log)) in &logs {
        let outline = from_hex(&log.outline);
        let added = outline.is_some_and(|it| {
            let (first, worker) = (DaemonIndex(first), usize::from(worker));
            rescue.add_service(first, worker, &it, !log.is_whole()).is_ok()
        });
        if !added {
            return Err(invalid(&log.file));
        }
    }
    let has_copies = instance.config.replicas > 1;
    add_contents(&mut rescue, checks, has_copies, &mut report);
    let plan = rescue.plan();
    report.lost = plan.findings.into_iter().map(LostFile::of).collect();
    let at = |repair: &Repair| {
        let name = (repair.daemon.0, u8::try_from(repair.worker).unwrap_or(u8::MAX));
        logs.get(&name).map_or(repair.daemon.0, |it| it.0)
    };
    let repairs = plan.repairs.into_iter().map(|repair| (at(&repair), repair)).collect();
    Ok(Checked { report, round, repairs })
}

/// Adds what the targets hold, and what of it is damaged.
fn add_contents(
    rescue: &mut Rescue,
    checks: &[DaemonCheck],
    has_copies: bool,
    report: &mut Report,
) {
    let spilled = checks.iter().flat_map(|check| &check.spilled);
    let spilled: BTreeMap<u64, (u64, u64)> =
        spilled.map(|&(there, inode, start)| (there, (inode, start))).collect();
    // The file and the offset in it of what a target holds.
    let home = |inode: u64, offset: u64| match spilled.get(&inode) {
        Some(&(file, start)) => (Inode(file), start.saturating_add(offset)),
        None => (Inode(inode), offset),
    };
    for check in checks {
        check.used.iter().for_each(|inode| rescue.add_used(Inode(*inode)));
        for &(inode, bytes, end) in &check.held {
            let (inode, end) = home(inode, end);
            rescue.add_held(inode, Held { bytes, end });
        }
        for damaged in &check.damaged {
            match (damaged.is_in_backing, damaged.unit) {
                (true, _) => report.bytes_in_backing += damaged.length,
                (false, Some(_)) => {}
                // Of a file with copies it is of no copy: it is removed when the daemon starts.
                (false, None) if has_copies && !Inode(damaged.inode).is_single() => {}
                (false, None) => {
                    let (inode, offset) = home(damaged.inode, damaged.offset);
                    let end = offset.saturating_add(damaged.length);
                    rescue.add_damaged(inode, offset..end);
                }
            }
        }
    }
    for (inode, range) in damaged_everywhere(checks, &mut report.bytes_in_copies) {
        rescue.add_damaged(inode, range);
    }
}

/// Damaged bytes of files with copies: those that are damaged at each daemon with a copy of their unit,
/// or that no copy had when somebody asked. The others are added to `in_copies`.
fn damaged_everywhere(checks: &[DaemonCheck], in_copies: &mut u64) -> Vec<(Inode, Range<u64>)> {
    let pages_of = |offset: u64, length: u64| {
        let end = offset.saturating_add(length).div_ceil(DAMAGED_PAGE_BYTES);
        offset / DAMAGED_PAGE_BYTES..end
    };
    let spoiled = checks.iter().flat_map(|check| &check.spoiled);
    let mut lost: BTreeSet<(u64, u64)> = spoiled
        .flat_map(|&(inode, offset, length)| pages_of(offset, length).map(move |it| (inode, it)))
        .collect();
    let mut damaged: BTreeMap<(u32, u64, u64), usize> = BTreeMap::new();
    for one in checks.iter().flat_map(|check| &check.damaged).filter(|it| !it.is_in_backing) {
        let Some(unit) = one.unit else { continue };
        for page in pages_of(one.offset, one.length) {
            *damaged.entry((unit, one.inode, page)).or_default() += 1;
        }
    }
    for ((unit, inode, page), count) in damaged {
        let copies = checks.iter().filter(|check| check.units.contains(&unit)).count();
        if count >= copies {
            lost.insert((inode, page));
        } else if !lost.contains(&(inode, page)) {
            *in_copies += DAMAGED_PAGE_BYTES * count as u64;
        }
    }
    let mut found: Vec<(Inode, Range<u64>)> = Vec::new();
    for (inode, page) in lost {
        let start = page.saturating_mul(DAMAGED_PAGE_BYTES);
        let end = start.saturating_add(DAMAGED_PAGE_BYTES);
        match found.last_mut() {
            Some((last, range)) if *last == Inode(inode) && range.end == start => range.end = end,
            _ => found.push((Inode(inode), start..end)),
        }
    }
    found
}

/// The first owner of a service, and its worker.
type ServiceKey = (u16, u8);

/// The log that counts of each service, and the daemon that has it.
fn logs_of(checks: &[DaemonCheck]) -> BTreeMap<ServiceKey, (u16, &LogCheck)> {
    let mut found: BTreeMap<ServiceKey, (u16, &LogCheck)> = BTreeMap::new();
    for (daemon, log) in checks.iter().flat_map(|it| it.logs.iter().map(|log| (it.index, log))) {
        let rank = |log: &LogCheck| (log.epoch, log.is_owners);
        let known = found.entry((log.first, log.worker)).or_insert((daemon, log));
        if rank(log) > rank(known.1) {
            *known = (daemon, log);
        }
    }
    found
}

/// Damage of the files of a daemon; of its logs those count that are in `logs`.
fn damage_of(check: &DaemonCheck, logs: &BTreeMap<ServiceKey, (u16, &LogCheck)>) -> Vec<Damage> {
    let mut found = Vec::new();
    let own = logs.values().filter(|(daemon, _)| *daemon == check.index).map(|it| it.1);
    let own = own.chain(&check.units_log);
    for LogCheck { file, records, gaps, unreadable, .. } in own {
        found.extend(gaps.iter().map(|gap| match (gap.first, gap.last) {
            (0, _) => format!("{file}: its head is damaged"),
            (1, None) if *records == 0 => format!("{file}: it is missing"),
            (_, None) => {
                format!("{file}: it is an older copy: what followed record {records} is lost")
            }
            (first, Some(last)) => {
                let records = match last.saturating_sub(first) {
                    0 => format!("record {first} is lost"),
                    _ => format!("records {first} to {last} are lost"),
                };
                format!("{file}: {records}, at offset {}", gap.offset)
            }
        }));
        let strange = |number: &u64| format!("{file}: record {number} is of no known version");
        found.extend(unreadable.iter().map(strange));
    }
    found.extend(check.records.iter().chain(&check.ssd).cloned());
    found.into_iter().map(|text| Damage { daemon: check.index, text }).collect()
}

/// Checks the files of the daemons of this host.
///
/// # Errors
/// There are no such daemons here, or their files cannot be read.
pub(crate) fn check_here(
    name: &str,
    first: u16,
    extent: CheckExtent,
    daemons: Daemons,
    timeout: Duration,
) -> Result<Vec<DaemonCheck>> {
    let run = directories::run(name)?;
    let host: Option<HostRecord> = records::load(&run, host::RECORD)?;
    let Some(host) = host.filter(|host| host.first == first) else {
        return Err(Failure::no_instance(name));
    };
    if daemons == Daemons::End {
        let mut quiet = Progress::new("");
        writeback::end(&run, timeout, &mut quiet)?;
        let processes: Vec<_> = host.daemons.iter().map(|daemon| daemon.process.clone()).collect();
        process::end(&processes, timeout, &mut quiet)?;
        // Of an earlier salvage that was cut short.
        for daemon in &host.daemons {
            forget_stored(&run, daemon.index);
        }
    }
    let program = component("forebayd")?;
    host.daemons.iter().map(|daemon| check_daemon(&program, &run, daemon.index, extent)).collect()
}

fn check_daemon(
    program: &Path,
    run: &Path,
    index: u16,
    extent: CheckExtent,
) -> Result<DaemonCheck> {
    let config = run.join(format!("d{index}.config"));
    let failed = |why: String| Failure::at("cannot check", format!("daemon {index}"), why);
    let output = Command::new(program)
        .arg("--config")
        .arg(&config)
        .args(["--check", extent.word()])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Failure::at("cannot run", program.display(), error))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}

/// Begin of the names of the files with changes for a daemon, in the run directory.
fn repairs_of(daemon: u16) -> String {
    format!("d{daemon}.repair-")
}

/// The file with the changes of a service.
fn repair_of(run: &Path, daemon: u16, (first, worker): ServiceKey) -> PathBuf {
    run.join(format!("{}d{first}w{worker}", repairs_of(daemon)))
}

/// The service of such a file.
fn service_of(name: &str, daemon: u16) -> Option<ServiceKey> {
    let (first, worker) =
        name.strip_prefix(&repairs_of(daemon))?.strip_prefix('d')?.split_once('w')?;
    Some((first.parse().ok()?, worker.parse().ok()?))
}

/// The files with changes for a daemon.
fn repairs_in(run: &Path, daemon: u16) -> std::io::Result<Vec<(ServiceKey, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(run)? {
        let entry = entry?;
        let service = entry.file_name().to_str().and_then(|name| service_of(name, daemon));
        found.extend(service.map(|service| (service, entry.path())));
    }
    found.sort();
    Ok(found)
}

/// A part of the changes of a service.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RepairPart {
    /// Name of the instance.
    pub(crate) name: String,
    /// The daemon that has its log.
    pub(crate) daemon: u16,
    /// The service: the daemon that owned it first.
    pub(crate) first: u16,
    /// Its worker.
    pub(crate) worker: u8,
    /// Number of digits before this part.
    pub(crate) offset: usize,
    /// Hexadecimal digits.
    pub(crate) digits: String,
}

/// The parts of all changes.
pub(crate) fn parts(name: &str, repairs: &[(u16, Repair)]) -> Vec<RepairPart> {
    let mut all = Vec::new();
    for &(daemon, Repair { daemon: DaemonIndex(first), worker, ref record }) in repairs {
        let worker = u8::try_from(worker).unwrap_or(u8::MAX);
        for (number, part) in record.chunks(PART_DIGITS / 2).enumerate() {
            let (name, offset, digits) = (name.to_owned(), number * PART_DIGITS, to_hex(part));
            all.push(RepairPart { name, daemon, first, worker, offset, digits });
        }
    }
    all
}

/// Stores a part on this host.
///
/// # Errors
/// It cannot be written.
pub(crate) fn take_part(part: &RepairPart) -> Result<()> {
    let run = directories::run(&part.name)?;
    directories::check_private(&run)?;
    let path = repair_of(&run, part.daemon, (part.first, part.worker));
    let failed = |error: std::io::Error| Failure::at("cannot write", path.display(), error);
    let mut options = std::fs::OpenOptions::new();
    let begins = part.offset == 0;
    let file = options.create(true).append(!begins).write(true).truncate(begins).open(&path);
    let mut file = file.map_err(failed)?;
    if file.metadata().map_err(failed)?.len() != part.offset as u64 {
        let why = "a part is missing: start again";
        return Err(Failure::at("cannot write", path.display(), why));
    }
    file.write_all(part.digits.as_bytes()).map_err(failed)
}

/// The changes that were stored for a daemon.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn stored(run: &Path, daemon: u16) -> Result<Vec<ServiceRepair>> {
    let failed =
        |path: &Path, error: std::io::Error| Failure::at("cannot read", path.display(), error);
    let found = repairs_in(run, daemon).map_err(|error| failed(run, error))?;
    let repair = |((first, worker), path): (ServiceKey, PathBuf)| {
        let record = std::fs::read_to_string(&path).map_err(|error| failed(&path, error))?;
        Ok(ServiceRepair { first, worker, record })
    };
    found.into_iter().map(repair).collect()
}

/// Removes what `take_part` stored for a daemon.
pub(crate) fn forget_stored(run: &Path, daemon: u16) {
    for (_, path) in repairs_in(run, daemon).unwrap_or_default() {
        let _ = std::fs::remove_file(path);
    }
}

/// The losses of earlier salvages.
///
/// # Errors
/// The list cannot be read.
pub(crate) fn lost_before(name: &str) -> Result<Vec<Report>> {
    let path = directories::run(name)?.join(LOST);
    match std::fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text)
            .map_err(|error| Failure::at("unreadable list", path.display(), error)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Failure::at("cannot read", path.display(), error)),
    }
}

/// Adds the losses of a salvage to the list.
///
/// # Errors
/// It cannot be written.
pub(crate) fn add_lost(name: &str, report: &Report) -> Result<()> {
    let mut all = lost_before(name)?;
    all.push(report.clone());
    let path = directories::run(name)?.join(LOST);
    let text = serde_json::to_string_pretty(&all)
        .map_err(|error| Failure::at("cannot write", path.display(), error))?;
    directories::write_whole(&path, &(text + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::control::DamagedRange;

    #[test]
    fn changes_are_sent_in_parts_that_give_them_back() {
        let record: Vec<u8> = (0..100_000u32).map(|number| number as u8).collect();
        let repair = Repair { daemon: DaemonIndex(2), worker: 1, record: record.clone() };
        let parts = parts("a", &[(3, repair)]);
        assert!(parts.len() > 1 && parts.iter().all(|it| it.digits.len() <= PART_DIGITS));
        let mut digits = String::new();
        for part in parts {
            let of = (part.daemon, part.first, part.worker);
            assert_eq!((of, part.offset), ((3, 2, 1), digits.len()));
            digits += &part.digits;
        }
        assert_eq!(from_hex(&digits), Some(record));
    }

    #[test]
    fn changes_are_found_by_the_daemon_that_has_the_log() {
        let run = tempfile::tempdir().expect("a directory");
        for (daemon, of, record) in [(3, (2, 1), "aa"), (3, (12, 0), "bb"), (31, (2, 1), "cc")] {
            std::fs::write(repair_of(run.path(), daemon, of), record).expect("written");
        }
        let found = |daemon| {
            let list = stored(run.path(), daemon).expect("read").into_iter();
            list.map(|it| (it.first, it.worker, it.record)).collect::<Vec<_>>()
        };
        assert_eq!(found(3), [(2, 1, "aa".to_owned()), (12, 0, "bb".to_owned())]);
        forget_stored(run.path(), 3);
        assert_eq!((found(3).len(), found(31).len(), found(1).len()), (0, 1, 0));
    }

    #[test]
    fn of_several_logs_of_a_service_that_of_the_last_owner_counts() {
        let log = |first, epoch, is_owners, gaps: usize| LogCheck {
            first,
            epoch,
            is_owners,
            gaps: vec![config::control::LogGap { offset: 0, first: 1, last: Some(1) }; gaps],
            ..LogCheck::default()
        };
        let check = |index, logs: &[LogCheck]| DaemonCheck {
            index,
            logs: logs.to_vec(),
            ..DaemonCheck::default()
        };
        let checks = [
            // It died, and its log is damaged, too.
            check(0, &[log(0, 0, true, 1)]),
            check(1, &[log(1, 0, true, 0), log(0, 3, false, 1)]),
            check(2, &[log(2, 5, true, 1), log(0, 3, true, 0)]),
        ];
        let logs = logs_of(&checks);
        let at: Vec<_> =
            logs.iter().map(|(&of, (daemon, log))| (of.0, *daemon, log.epoch)).collect();
        assert_eq!(at, [(0, 2, 3), (1, 1, 0), (2, 2, 5)]);
        let damaged = |check| damage_of(check, &logs).len();
        assert_eq!(checks.each_ref().map(damaged), [0, 0, 1]);
    }

    #[test]
    fn bytes_are_lost_where_all_copies_of_them_are_damaged() {
        let damaged = |unit, offset: u64, pages: u64| DamagedRange {
            inode: 9,
            offset: offset * 4096,
            length: pages * 4096,
            is_in_backing: false,
            unit: Some(unit),
        };
        let check = |index, units: &[u32], damaged: &[DamagedRange]| DaemonCheck {
            index,
            units: units.to_vec(),
            damaged: damaged.to_vec(),
            ..DaemonCheck::default()
        };
        let checks = [
            check(0, &[1, 2], &[damaged(1, 0, 3), damaged(2, 40, 1)]),
            check(1, &[1, 3], &[damaged(1, 1, 4), damaged(3, 80, 2)]),
            DaemonCheck { spoiled: vec![(9, 5 * 4096 + 7, 4096)], ..check(2, &[2], &[]) },
        ];
        let mut in_copies = 0;
        let found = damaged_everywhere(&checks, &mut in_copies);
        // Unit 3 has one copy left.
        let expected = [1..3, 5..7, 80..82].map(|it| (Inode(9), it.start * 4096..it.end * 4096));
        assert_eq!(found, expected);
        // Pages 0, 3 and 4 of unit 1, and that of unit 2.
        assert_eq!(in_copies, 4 * 4096);
    }

    #[test]
    fn each_loss_has_its_word_and_meaning() {
        use Loss::{
            BeyondEnd, Bytes, Data, DirectoryAttributes, File, Holes, Links, Name, SecondName,
        };
        let all =
            [File, Data, DirectoryAttributes, Name, SecondName, Links, BeyondEnd, Holes, Bytes];
        let of_copies = [true, false].map(|is_gone| {
            LostFile::without_copies(LostBytes { is_gone, ..LostBytes::default() }).what
        });
        let words = all.map(word_of).into_iter().chain(of_copies.iter().map(String::as_str));
        assert!(words.eq(WORDS.iter().map(|(word, _)| *word)));
    }
}
