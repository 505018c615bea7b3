//! The thread that looks for damage on the SSD before a program meets it: it reads all data there at a
//! bounded rate, past the page cache, and compares its checksums (`shm::extents::PageSums`).
//!
//! It also handles the damage that clients and this daemon's other threads report: a line in the log, a
//! count, and where the backing store has the same bytes the extent is evicted, so that they are read
//! from there again. Damage of a file with copies is told to the units, which get the bytes from another
//! copy whether or not a program reads them: the good copy may be the next to die.

use crate::shared::Shared;
use crate::shared::inbox::WorkerMessage;
use crate::startup::settings::Settings;
use crate::startup::{StartResult, damage_list, failed, listed_in};
use crate::target::devices::used_slots;
use crate::target::{Devices, Protection};
use crate::units::Event;
use config::control::FoundDamage;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use shm::extents::{DamageReport, SUM_PAGE_BYTES, Target};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use wire::Inode;
use wire::errno::Errno;
use wire::reply::Extent;

/// Longest interval between looks at the reports.
const LOOK: Duration = Duration::from_millis(500);
/// Pause after all data was read.
const PASS_PAUSE: Duration = Duration::from_secs(60);
/// Damaged places that are remembered, so that each has one line in the log.
const KNOWN_MAX: usize = 4096;
/// Pause between requests to repair damage: an extent that is to be evicted may be in use, mapped for
/// instance, and the other copies of a page may be away. It doubles each time, up to the maximum.
const REPAIR_PAUSE: Duration = LOOK;
/// See `REPAIR_PAUSE`.
const REPAIR_PAUSE_MAX: Duration = Duration::from_secs(30);

/// State of the thread.
pub(crate) struct Scrubber {
    /// The extent table, to find the entries that are in use.
    table: OwnedFd,
    /// The SSD file past the page cache, where the file system has that.
    direct: Option<OwnedFd>,
    /// Bytes per second; 0: nothing is read.
    rate: u64,
    seen: u64,
    /// Damaged pages: the file and the offset there.
    known: BTreeMap<(Inode, u64), Damaged>,
    /// Entries that this pass has still to check, the next one last.
    pass: Vec<u32>,
    next_read: Instant,
    /// Path of the list of damaged files, and those in it.
    list: PathBuf,
    listed: BTreeSet<Inode>,
}

/// A damaged page.
struct Damaged {
    extent: Extent,
    /// When its repair is requested next.
    repair_at: Instant,
    /// Pause after that.
    pause: Duration,
}

impl Scrubber {
    /// Opens what the thread needs.
    pub(crate) fn new(table: &impl AsFd, settings: &Settings) -> StartResult<Scrubber> {
        let list = settings.run.join(damage_list(settings.index));
        let (ssd, rate) = (settings.data.join("ssd"), settings.instance.scrub_rate);
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(Scrubber {
            table: table.as_fd().try_clone_to_owned().map_err(failed("copy a descriptor"))?,
            direct: rustix::fs::open(ssd, flags, Mode::empty()).ok(),
            rate,
            seen: 0,
            known: BTreeMap::new(),
            pass: Vec::new(),
            next_read: Instant::now(),
            listed: listed_in(&list),
            list,
        })
    }

    /// Runs until the daemon stops.
    pub(crate) fn run(mut self, shared: &Shared, devices: &Devices) {
        while !shared.stopping.load(Acquire) {
            let now = Instant::now();
            if self.rate > 0 && now >= self.next_read {
                self.read_next(shared, devices, now);
            }
            self.take_reports(shared, devices);
            self.repair(shared, devices);
            if !self.listed.is_empty() && !self.list.exists() {
                // The run directory was removed, and made again.
                self.write_list(self.listed.iter().copied());
            }
            let reads_next = self.next_read.saturating_duration_since(Instant::now());
            thread::sleep(if self.rate > 0 { reads_next.min(LOOK) } else { LOOK });
        }
    }

    /// Reads one extent, or begins a pass.
    fn read_next(&mut self, shared: &Shared, devices: &Devices, now: Instant) {
        let Some(slot) = self.pass.pop() else {
            let ranges = used_slots(&self.table, devices.table.count()).unwrap_or_default();
            self.pass = ranges.into_iter().flatten().collect();
            self.pass.reverse();
            if self.pass.is_empty() {
                self.next_read = now + PASS_PAUSE;
            }
            return;
        };
        let bytes = self.read_extent(devices, slot);
        shared.metrics.daemon.bytes_scrubbed.fetch_add(bytes, Relaxed);
        let micros = bytes.saturating_mul(1_000_000) / self.rate.max(1);
        self.next_read = now + Duration::from_micros(micros);
        if self.pass.is_empty() {
            self.next_read += PASS_PAUSE;
        }
    }

    /// Checks the extent of an entry, if it is on the SSD. Returns the bytes read.
    fn read_extent(&self, devices: &Devices, slot: u32) -> u64 {
        // Protected first and read afterwards, so that its space is not given to another meanwhile.
        devices.hazards.protect(slot, Protection::Holds);
        let extent = devices.table.get(slot).map(|(_, extent)| extent);
        let bytes = match extent.filter(|extent| extent.tier == Extent::SSD) {
            Some(extent) => {
                let target = devices.target();
                let direct = self.direct.as_ref();
                let direct = direct.map(|ssd| Target { ssd: ssd.as_fd(), ..target });
                let checked = direct.map(|direct| direct.check_stable(&extent));
                match checked {
                    Some(Ok(bytes)) => bytes,
                    // Damage is reported by the check. The device may want a larger alignment.
                    Some(Err(Errno::EIO)) => extent.length(),
                    Some(Err(_)) | None => target.check_stable(&extent).unwrap_or(extent.length()),
                }
            }
            None => 0,
        };
        devices.hazards.release(slot, Protection::Holds);
        bytes
    }

    fn take_reports(&mut self, shared: &Shared, devices: &Devices) {
        let mut reports = Vec::new();
        let mut each = |report| reports.push(report);
        self.seen = devices.states.sums().each_report(self.seen, &mut each).unwrap_or(self.seen);
        for report in reports {
            self.note(shared, devices, report);
        }
    }

    fn note(
        &mut self,
        shared: &Shared,
        devices: &Devices,
        DamageReport { slot, page }: DamageReport,
    ) {
        devices.hazards.protect(slot, Protection::Holds);
        let found = devices.table.get(slot).filter(|(_, extent)| extent.tier == Extent::SSD);
        let offset_in = |extent: &Extent| extent.start + u64::from(page) * SUM_PAGE_BYTES as u64;
        // A client can report anything: only what this daemon finds damaged, too, is.
        let found = found.filter(|(inode, extent)| {
            self.known.len() < KNOWN_MAX
                && !self.known.contains_key(&(*inode, offset_in(extent)))
                && devices.target().check_stable(extent) == Err(Errno::EIO)
        });
        devices.hazards.release(slot, Protection::Holds);
        let Some((inode, extent)) = found else { return };
        let offset = offset_in(&extent);
        let is_in_backing = devices.states.is_clean(slot);
        tracing::error!(
            inode = inode.0,
            offset,
            ssd_offset = extent.location + (offset - extent.start),
            is_in_backing,
            "data on the SSD is damaged: its checksum differs"
        );
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let found = FoundDamage { at_ms, inode: inode.0, offset, is_in_backing };
        shared.metrics.note_damage(found);
        self.list(inode);
        let (repair_at, pause) = (Instant::now(), REPAIR_PAUSE);
        self.known.insert((inode, offset), Damaged { extent, repair_at, pause });
    }

    /// Adds a file to the list that `forebay lost` reads. The line in the log tells the same.
    fn list(&mut self, inode: Inode) {
        if self.listed.insert(inode) {
            self.write_list(std::iter::once(inode));
        }
    }

    fn write_list(&self, inodes: impl Iterator<Item = Inode>) {
        let lines: String = inodes.map(|inode| format!("{}\n", inode.0)).collect();
        let opened = OpenOptions::new().create(true).append(true).open(&self.list);
        if let Err(error) = opened.and_then(|mut file| file.write_all(lines.as_bytes())) {
            tracing::warn!(%error, list = %self.list.display(), "cannot list a damaged file");
        }
    }

    /// Has damaged extents evicted that are clean, and damaged pages of copies repaired; forgets those
    /// that are gone or well.
    fn repair(&mut self, shared: &Shared, devices: &Devices) {
        let (table, now, mut whole) = (&devices.table, Instant::now(), BTreeMap::new());
        // Once for all pages of an extent.
        let mut is_whole = |extent: &Extent| {
            *whole.entry(extent.slot).or_insert_with(|| matches_sums(devices, extent))
        };
        self.known.retain(|(inode, offset), damaged| {
            let slot = damaged.extent.slot;
            // While it is hidden its eviction is under way.
            let is_there = table.get(slot).or_else(|| table.hidden(slot));
            if is_there != Some((*inode, damaged.extent)) {
                return false;
            }
            let units = shared.units.as_ref().filter(|_| !inode.is_single());
            let is_clean = devices.states.is_clean(slot);
            if damaged.repair_at > now || units.is_none() && !is_clean {
                return true;
            }
            if units.is_some() && is_whole(&damaged.extent) {
                tracing::info!(inode = inode.0, offset, "damaged data came from another copy");
                return false;
            }
            damaged.repair_at = now + damaged.pause;
            damaged.pause = (damaged.pause * 2).min(REPAIR_PAUSE_MAX);
            match units {
                Some(units) => units.inbox.put(Event::Damaged(*inode, *offset)),
                None => shared.inboxes.send_to_target(WorkerMessage::Evict { inode: *inode }),
            }
            true
        });
    }
}

/// Whether all pages of an extent match their checksums now.
fn matches_sums(devices: &Devices, extent: &Extent) -> bool {
    devices.hazards.protect(extent.slot, Protection::Holds);
    let is_there = devices.table.get(extent.slot).is_some_and(|(_, found)| found == *extent);
    let matches = is_there && devices.target().check_stable(extent).is_ok();
    devices.hazards.release(extent.slot, Protection::Holds);
    matches
}
