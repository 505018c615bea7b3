//! The contents of a daemon's files, for `forebay check`: its logs, the SSD file and the tables in
//! shared memory are read, and nothing is changed. The daemon may run meanwhile.
//!
//! Where services go on at followers, a log that was a copy counts beside those of the workers: which of
//! them is that of a service only all daemons together know. The log of units is read, too, so that
//! damage of one copy is told from that of all. So are the files that are replaced as a whole: the state
//! of the consensus, and the rules of shares.
//!
//! Not here: what the losses of all daemons together mean, which is `metadata::rescue`.

use crate::members::copies::{KnownCopy, directory_of};
use crate::shared::kept_record::{KeptRecords, RecordName};
use crate::shared::owners::Numbers;
use crate::startup::failure::{Failure, StartResult, failed};
use crate::startup::memory::{HOST, extent_count};
use crate::startup::recover::service_config;
use crate::startup::settings::Settings;
use crate::target::devices::used_slots;
use crate::units::{self, FoundUnits};
use cluster::membership::ServiceIndex;
use config::control::{DAMAGED_PAGE_BYTES, DaemonCheck, DamagedRange, LogCheck, LogGap, to_hex};
use config::process::CheckExtent;
use data::tiering::spill::spill_host;
use metadata::Service;
use placement::{Map, ServiceName};
use rustix::fd::{AsFd as _, OwnedFd};
use shm::extents::{ExtentStates, ExtentTable, PageSums, SUM_PAGE_BYTES, check_extent};
use shm::host::HostSegment;
use shm::local_ops::OpLog;
use shm::{Access, Segment};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use store::journal::{Progress, STEP_BYTES};
use store::log_file::Gap;
use store::medium::RealFiles;
use store::starts::DISK_RECORD;
use store::{Damage, Expected, Identity, Options, Replay, SsdFile, StartRecord, Sync};
use wire::Inode;
use wire::codec::Reader;
use wire::local_op::{LOCAL_OP_BYTES_MAX, LocalOp};
use wire::reply::Extent;

/// Damaged places that are listed; behind them a file has more.
const DAMAGED_MAX: usize = 100_000;
const _: () = assert!(DAMAGED_PAGE_BYTES == SUM_PAGE_BYTES as u64);

/// Name, in the run directory, of the list of files in which a daemon found damage.
pub(crate) fn damage_list(index: u16) -> String {
    format!("d{index}.damage")
}

fn failure(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}

/// Checks the files of the daemon that `settings` describe.
pub(crate) fn check(settings: &Settings, extent: CheckExtent) -> StartResult<DaemonCheck> {
    let secret = super::read_secret(&settings.run.join("secret"))?;
    let identity = Identity::of_daemon(secret.instance_number(), settings.index);
    let mut disk: RealFiles = RealFiles::new(&settings.data);
    let record = StartRecord::read(&mut disk, DISK_RECORD, identity).map_err(failure)?;
    let starts = record.map_or(0, |record| record.number);
    let mut check = DaemonCheck {
        index: settings.index,
        starts,
        layout: [
            settings.spread(),
            settings.placement(),
            settings.stripe_log2(),
            settings.root_flags(),
        ],
        ..DaemonCheck::default()
    };
    if starts == 0 {
        // Nothing was acknowledged yet.
        return Ok(check);
    }
    let map = Map::initial(settings.began);
    let map = map.ok_or_else(|| Failure::new("invalid number of daemons"))?;
    for found in found_logs(settings)? {
        check.logs.push(check_log(settings, &map, &found, secret.instance_number())?);
    }
    check.records = check_records(settings, identity)?;
    let units = check_units(settings, identity, &mut check)?;
    check_data(settings, (identity, &units), extent, &mut check)?;
    check.used = used_inodes(settings)?;
    Ok(check)
}

/// Errors of the files that are replaced as a whole. A running daemon counts a replacement when the
/// file is in place, so its files are never older than their words.
fn check_records(settings: &Settings, identity: Identity) -> StartResult<Vec<String>> {
    let (progress, _) = open(settings, "log_progress")?;
    let records = KeptRecords::of(&settings.data, identity, &Arc::new(progress));
    let wrong = RecordName::ALL.map(|name| records.open(name).err());
    Ok(wrong.into_iter().flatten().map(|failure| failure.text).collect())
}

/// Inodes that no log may know and that are in use all the same: those of local operations that wait
/// for the daemon, and those of files that programs of this host have open.
fn used_inodes(settings: &Settings) -> StartResult<Vec<u64>> {
    let (op_log, _) = open(settings, "op_log")?;
    let op_log = OpLog::new(op_log).map_err(failed("read the operation log"))?;
    let mut used = BTreeSet::new();
    for worker in 0..settings.workers() {
        op_log.each_committed(worker, &mut |id| {
            let mut bytes = [0; LOCAL_OP_BYTES_MAX];
            let length = op_log.read(id, &mut bytes);
            let encoded = length.and_then(|length| bytes.get(..length)).unwrap_or(&[]);
            let op = LocalOp::decode(&mut Reader::new(encoded));
            used.extend(op.map(|op| op.inode().0));
        });
    }
    // Compared with its mark by an atomic operation, which needs a writable mapping.
    let path = settings.shm.join(HOST);
    let doing = || format!("read {}", path.display());
    let file = File::options().read(true).write(true).open(&path).map_err(failed(doing()))?;
    let length = file.metadata().map_err(failed(doing()))?.len();
    let length = usize::try_from(length).map_err(failed(doing()))?;
    let host = Segment::map(&file, length, Access::ReadWrite).and_then(HostSegment::new);
    host.map_err(failed(doing()))?.vnode_list(&mut |_, vnode| {
        if vnode.opens() > 0 {
            used.insert(vnode.inode.load(Acquire));
        }
    });
    Ok(used.into_iter().collect())
}

/// A file of shared memory, to be read.
fn open(settings: &Settings, name: &str) -> StartResult<(Segment, OwnedFd)> {
    let path = settings.shm.join(format!("d{}.{name}", settings.index));
    let doing = || format!("read {}", path.display());
    let file = File::open(&path).map_err(failed(doing()))?;
    let length = file.metadata().map_err(failed(doing()))?.len();
    let length = usize::try_from(length).map_err(failed(doing()))?;
    let segment = Segment::map(&file, length, Access::ReadOnly).map_err(failed(doing()))?;
    Ok((segment, file.into()))
}

/// A log that may be that of a service, or the copy with which a worker's service goes on.
struct FoundLog {
    name: ServiceName,
    /// As in `LogCheck`.
    epoch: u64,
    is_owners: bool,
    directory: PathBuf,
    /// How far it has come at least: taken before it is read, since a running daemon appends.
    progress: Progress,
}

impl FoundLog {
    fn of_copy(settings: &Settings, name: ServiceName, known: &KnownCopy) -> FoundLog {
        let KnownCopy { epoch, is_owned: is_owners, progress } = *known;
        let directory = directory_of(&settings.data, name);
        FoundLog { name, epoch, is_owners, directory, progress }
    }
}

/// The logs of the workers, and those of services that this daemon took over.
fn found_logs(settings: &Settings) -> StartResult<Vec<FoundLog>> {
    let (progress, _) = open(settings, "log_progress")?;
    let entries = match settings.has_moving_services() {
        true => Some(open(settings, "copies")?.0),
        false => None,
    };
    let known = |service| KnownCopy::of(entries.as_ref()?, service);
    let numbers = Numbers::new(settings.me(), settings.began, settings.workers());
    let mut found = Vec::new();
    for worker in 0..settings.workers() {
        let Some(service) = numbers.of_worker(worker) else { break };
        let (name, epoch) = (numbers.service_name(service), 0);
        let first = settings.data.join(format!("log{worker}"));
        let copy = directory_of(&settings.data, name);
        // See `Copies::take_over`.
        found.push(match known(service) {
            Some(known) if !first.exists() => FoundLog::of_copy(settings, name, &known),
            None if !first.exists() && copy.exists() => {
                let (is_owners, progress) = (true, Progress::default());
                FoundLog { name, epoch, is_owners, directory: copy, progress }
            }
            _ => {
                let word = progress.word64(worker * size_of::<u64>());
                let word = word.map_err(failed("read the progress"))?.load(Acquire);
                let (is_owners, progress) = (first.exists(), Progress::from_word(word));
                FoundLog { name, epoch, is_owners, directory: first, progress }
            }
        });
    }
    let others = (0..numbers.services() as u32).map(ServiceIndex);
    for service in others.filter(|&it| !numbers.is_own(it)) {
        let taken = known(service).filter(|known| known.is_owned);
        let name = numbers.service_name(service);
        found.extend(taken.map(|known| FoundLog::of_copy(settings, name, &known)));
    }
    Ok(found)
}

fn check_log(
    settings: &Settings,
    map: &Map,
    found: &FoundLog,
    instance: u64,
) -> StartResult<LogCheck> {
    let FoundLog { name: ServiceName { first, worker }, epoch, is_owners, progress, .. } = *found;
    let options = Options {
        identity: Identity::of_daemon(instance, first.0).of_worker(worker.into()),
        expected: Expected::Existing,
        progress,
        damage: Damage::Skip,
        sync: Sync::Never,
        step_bytes: STEP_BYTES,
    };
    let directory = &found.directory;
    let config = service_config(settings, map, worker.into());
    let mut service = Service::new(metadata::Config { first, daemon: first, ..config });
    let (mut records, mut unreadable) = (0, Vec::new());
    let (mut gaps, mut file) =
        (vec![Gap { offset: 0, first: 1, last: Gap::UNKNOWN }], directory.clone());
    if directory.exists() {
        let mut replay = Replay::inspect(<RealFiles>::new(directory), options).map_err(failure)?;
        while let Some(record) = replay.next().map_err(failure)? {
            records += 1;
            if service.replay(record).is_err() {
                unreadable.push(records);
            }
        }
        (gaps, file) = (replay.gaps(), replay.path());
    }
    Ok(LogCheck {
        first: first.0,
        worker,
        epoch,
        is_owners,
        file: file.to_string_lossy().into_owned(),
        records,
        gaps: gaps.into_iter().map(log_gap).collect(),
        unreadable,
        outline: to_hex(&service.outline()),
    })
}

/// Reads the log of units, where there is one.
fn check_units(
    settings: &Settings,
    identity: Identity,
    check: &mut DaemonCheck,
) -> StartResult<FoundUnits> {
    if !settings.has_copies() {
        return Ok(FoundUnits::default());
    }
    let (progress, _) = open(settings, "units")?;
    let word = progress.word64(0).map_err(failed("read the progress"))?.load(Acquire);
    let found = units::inspect(&settings.data, identity, Progress::from_word(word));
    let found = found.map_err(failure)?;
    check.units = found.units().collect();
    check.spoiled = found.spoiled().map(|it| (it.inode.0, it.offset, it.length)).collect();
    check.units_log = Some(LogCheck {
        file: found.file.to_string_lossy().into_owned(),
        records: found.records,
        gaps: found.gaps.iter().copied().map(log_gap).collect(),
        unreadable: found.unreadable.clone(),
        ..LogCheck::default()
    });
    Ok(found)
}

fn log_gap(Gap { offset, first, last }: Gap) -> LogGap {
    LogGap { offset, first, last: (last != Gap::UNKNOWN).then_some(last) }
}

/// The files in a list of damaged ones.
pub(crate) fn listed_in(path: &Path) -> BTreeSet<Inode> {
    let list = std::fs::read_to_string(path).unwrap_or_default();
    list.lines().filter_map(|line| line.parse().ok()).map(Inode).collect()
}

fn check_data(
    settings: &Settings,
    (identity, units): (Identity, &FoundUnits),
    extent: CheckExtent,
    check: &mut DaemonCheck,
) -> StartResult<()> {
    let path = settings.data.join("ssd");
    let opened = SsdFile::open(&path, settings.ssd, identity, Expected::Existing);
    check.ssd = opened.err().map(|error| error.to_string());
    // Whatever is wrong with it as a whole, what is there is compared.
    let ssd = File::open(&path).or_else(|_| File::open("/dev/null"));
    let ssd = ssd.map_err(failed("open /dev/null"))?;
    let length = ssd.metadata().map_or(0, |found| found.len()).min(settings.ssd);
    let (table, table_fd) = open(settings, "extents")?;
    let [states, groups, sums] =
        ["states", "page_groups", "page_sums"].map(|name| open(settings, name).map(|it| it.0));
    let (table, states) =
        (ExtentTable::new(table), ExtentStates::new(states?, groups?, PageSums::new(sums?)));
    // Those in which the daemon found damage while it ran.
    let suspects = listed_in(&settings.run.join(damage_list(settings.index)));
    let slots = used_slots(&table_fd, extent_count(settings)).map_err(failed("read the table"))?;
    let mut held: BTreeMap<Inode, (u64, u64)> = BTreeMap::new();
    for slot in slots.into_iter().flatten() {
        let Some((inode, found)) = table.get(slot).or_else(|| table.hidden(slot)) else { continue };
        if found.tier == Extent::SPILLED {
            let (_, there) = spill_host(settings.me(), &found);
            check.spilled.push((there.0, inode.0, found.start));
            continue;
        }
        let of_file = held.entry(inode).or_default();
        let is_read =
            extent == CheckExtent::All || check.ssd.is_some() || suspects.contains(&inode);
        let mut damaged = Vec::new();
        let file = is_read.then_some((ssd.as_fd(), length));
        let counted = check_extent(&states, file, &found, &mut |at| damaged.push(at));
        // A running daemon may have moved the extent meanwhile: then nothing is known about it.
        let now = table.get(slot).or_else(|| table.hidden(slot));
        let (Ok((pages, end)), true) = (counted, now == Some((inode, found))) else { continue };
        of_file.0 += pages * SUM_PAGE_BYTES as u64;
        if pages > 0 {
            of_file.1 = of_file.1.max(found.start + end);
        }
        let is_in_backing = states.is_clean(slot);
        for at in damaged {
            let offset = found.start + at;
            let of = (is_in_backing, units.unit_of(inode, offset));
            note(&mut check.damaged, inode, offset, of);
        }
    }
    check.damaged.sort_unstable();
    check.held = held.into_iter().map(|(inode, (bytes, end))| (inode.0, bytes, end)).collect();
    Ok(())
}

/// Adds a page to the damaged ranges.
fn note(
    ranges: &mut Vec<DamagedRange>,
    inode: Inode,
    offset: u64,
    (is_in_backing, unit): (bool, Option<u32>),
) {
    let length = SUM_PAGE_BYTES as u64;
    if let Some(last) = ranges.last_mut()
        && (last.inode, last.is_in_backing, last.unit) == (inode.0, is_in_backing, unit)
        && last.offset + last.length == offset
    {
        last.length += length;
    } else if ranges.len() < DAMAGED_MAX {
        ranges.push(DamagedRange { inode: inode.0, offset, length, is_in_backing, unit });
    }
}
