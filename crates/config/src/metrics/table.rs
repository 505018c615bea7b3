//! The table of metrics.

use super::{Metric, MetricKind, MetricUnit};
use serde::{Deserialize, Serialize};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A row is: key, name in Prometheus, kind, unit, help.
macro_rules! metrics {
    (
        $(#[$rows_doc:meta])* $rows:ident;
        $(#[$values_doc:meta])* $values:ident;
        $($key:ident $name:literal $kind:ident $unit:ident $help:literal)+
    ) => {
        $(#[$rows_doc])*
        pub const $rows: [Metric; [$($name),+].len()] = [$(Metric {
            key: stringify!($key),
            name: $name,
            kind: MetricKind::$kind,
            unit: MetricUnit::$unit,
            help: $help,
        }),+];

        $(#[$values_doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $values<T: Default> {
            $(#[doc = $help] pub $key: T,)+
        }

        impl<T: Default> $values<T> {
            /// The values of another type, one by one.
            #[must_use]
            pub fn map<U: Default>(&self, mut change: impl FnMut(&T) -> U) -> $values<U> {
                $values { $($key: change(&self.$key),)+ }
            }
        }

        impl $values<u64> {
            /// The values in the order of the rows.
            #[must_use]
            pub fn in_order(&self) -> Vec<u64> {
                vec![$(self.$key),+]
            }

            /// Adds the values of another one.
            pub fn add(&mut self, other: &Self) {
                $(self.$key = self.$key.saturating_add(other.$key);)+
            }
        }
    };
}

metrics! {
    /// Metrics of a job. They are no counters: a job moves between a row of its own and `other`.
    JOB;
    /// One value for each metric of a job.
    JobValues;

    running "forebay_job_running_processes" Gauge Count
        "Processes of the job that run"
    operations "forebay_job_operations" Gauge Count
        "Operations of the job so far"
    bytes_read "forebay_job_read_bytes" Gauge Bytes
        "Data that the job has read so far"
    bytes_written "forebay_job_written_bytes" Gauge Bytes
        "Data that the job has written so far"
    transfer_us "forebay_job_transfer_seconds" Gauge Micros
        "Time of the processes of the job in reads and writes so far"
}

/// The values of a job.
pub type JobSample = JobValues<u64>;

metrics! {
    /// Metrics of a daemon.
    DAEMON;
    /// One value for each metric of a daemon.
    DaemonValues;

    uptime_s "forebay_uptime_seconds" Gauge Seconds
        "Time since the daemon started"
    epoch "forebay_map_epoch" Gauge Count
        "Version of the map of shards and targets"
    membership_epoch "forebay_membership_epoch" Gauge Count
        "Version of the membership that the daemon knows; 0: daemons do not watch each other"
    daemons_down "forebay_daemons_down" Gauge Count
        "Daemons that are down in this membership"
    daemons_reached "forebay_daemons_reached_total" Counter Count
        "Questions of peers whether a daemon's host can be reached that were answered with yes"
    services_without_copy "forebay_services_without_copy" Gauge Count
        "Metadata services of the daemon without a follower that is in sync, where there are followers"
    follower_lag_records "forebay_follower_lag_records" Gauge Count
        "Records of the daemon's services that the follower furthest behind has not confirmed"
    follower_lag_bytes "forebay_follower_lag_bytes" Gauge Bytes
        "Bytes that wait to be confirmed by that follower"
    followers_resumed "forebay_followers_resumed_total" Counter Count
        "Followers that returned and got only the records since"
    syncs_without_copy "forebay_syncs_without_copy_total" Counter Count
        "Operations that should have waited for a follower and returned while none was in sync"
    copies "forebay_copies" Gauge Count
        "Services of other daemons whose logs the daemon has a copy of"
    copy_bytes "forebay_copy_bytes" Gauge Bytes
        "Length of these copies"
    copies_failed "forebay_copies_failed_total" Counter Count
        "Times that a copy could not be stored, for example since the disk is full"
    units_degraded "forebay_units_degraded" Gauge Count
        "Units of file data that the daemon is the primary of and that have fewer copies than they should"
    units_lost "forebay_units_lost" Gauge Count
        "Units of file data of which all copies are down, as one daemon of the instance tells"
    units_gone "forebay_units_gone" Gauge Count
        "Units of file data that lost all their copies for good, as one daemon of the instance tells"
    unit_bytes_filled "forebay_unit_filled_bytes_total" Counter Bytes
        "Bytes of the daemon's units that copies got which are made anew or missed changes"
    unit_bytes_unfilled "forebay_unit_unfilled_bytes" Gauge Bytes
        "Bytes of the daemon's units that copies have to get yet which are made anew, catch up or move"
    unit_fill_rate "forebay_unit_filled_last_second_bytes" Gauge Bytes
        "Bytes that these copies get in a second now"
    unit_copies "forebay_unit_copies" Gauge Count
        "Copies of units of file data that the daemon has"
    unit_copies_leaving "forebay_unit_copies_leaving" Gauge Count
        "Copies of units that leave the daemon, since its node needs the memory"
    unit_repairs "forebay_unit_repairs_total" Counter Count
        "Ranges of copies that failed their checksum and came from another copy"
    sessions "forebay_sessions" Gauge Count
        "Attached programs"
    requests "forebay_requests_total" Counter Count
        "Requests answered or forwarded"
    files "forebay_files" Gauge Count
        "Files and directories whose inodes the daemon has"
    reply_cache_entries "forebay_reply_cache_entries" Gauge Count
        "Replies remembered against duplicate requests"
    log_bytes "forebay_log_bytes" Gauge Bytes
        "Length of the metadata logs"
    log_full "forebay_log_full" Gauge Count
        "Metadata logs for which the device has no space: only reads and removals succeed"
    rss "forebay_resident_memory_bytes" Gauge Bytes
        "Resident memory of the process, shared memory included"

    memory_total "forebay_memory_bytes" Gauge Bytes
        "Memory for files"
    memory_free "forebay_memory_free_bytes" Gauge Bytes
        "Free memory for files"
    memory_users "forebay_memory_users" Gauge Count
        "Known users with files in memory that may be demoted"
    memory_allowance "forebay_memory_allowance_bytes" Gauge Bytes
        "Memory for files that the daemon may hold"
    memory_held "forebay_memory_held_bytes" Gauge Bytes
        "Memory for files that the daemon holds"
    memory_used "forebay_memory_used_bytes" Gauge Bytes
        "Memory in files"
    memory_released "forebay_memory_released_bytes_total" Counter Bytes
        "Memory released to the system"
    memory_release_us "forebay_memory_release_seconds_total" Counter Micros
        "Time spent releasing memory to the system"
    ssd_total "forebay_ssd_bytes" Gauge Bytes
        "SSD space for files"
    ssd_free "forebay_ssd_free_bytes" Gauge Bytes
        "Free SSD space for files"
    target_speed "forebay_target_speed_bytes" Gauge Bytes
        "Bytes per second of the device of the SSD, or of memory without one, measured at the start"

    bytes_allocated "forebay_allocated_bytes_total" Counter Bytes
        "Extents allocated for writers"
    bytes_overflowed "forebay_overflowed_bytes_total" Counter Bytes
        "Extents allocated for writers that found no free memory"
    bytes_demoted "forebay_demoted_bytes_total" Counter Bytes
        "Data moved from memory to the SSD"
    demotion_us "forebay_demotion_seconds_total" Counter Micros
        "Time spent copying demoted data"
    bytes_refaulted "forebay_refaulted_bytes_total" Counter Bytes
        "Demoted data that was used again"
    bytes_promoted "forebay_promoted_bytes_total" Counter Bytes
        "Data moved from the SSD to memory"
    moves_cancelled "forebay_moves_cancelled_total" Counter Count
        "Demotions and promotions cancelled by an access"
    copies_waiting "forebay_copies_waiting" Gauge Count
        "Parts of files that wait for their copy between memory and the SSD"
    copies_waiting_urgent "forebay_copies_waiting_urgent" Gauge Count
        "Those of them for which writers wait: they free memory"
    copy_wait_us "forebay_copy_wait_seconds_total" Counter Micros
        "Time that such copies have waited, added up over copies"
    copy_wait_urgent_us "forebay_copy_wait_urgent_seconds_total" Counter Micros
        "The same of copies for which writers wait"
    demote_low_watermark_bytes "forebay_demote_low_watermark_bytes" Gauge Bytes
        "Free memory below which idle data is demoted"
    demote_min_watermark_bytes "forebay_demote_min_watermark_bytes" Gauge Bytes
        "Free memory below which any data is demoted"
    bytes_pinned "forebay_pinned_bytes" Gauge Bytes
        "Memory in pinned files"
    bytes_spilled_out "forebay_spilled_out_bytes" Gauge Bytes
        "Data of this daemon in the memory of other nodes"
    bytes_spilled_in "forebay_spilled_in_bytes" Gauge Bytes
        "Data of other daemons in the memory of this one"
    bytes_migrated "forebay_migrated_bytes_total" Counter Bytes
        "Data that moved to other targets because this one was slow"
    reads_redirected "forebay_redirected_reads_total" Counter Count
        "Reads of other hosts that were sent to the target to which data moved"
    bytes_evicted "forebay_evicted_bytes_total" Counter Bytes
        "Clean data evicted, which the backing store still has"
    bytes_fetched "forebay_fetched_bytes_total" Counter Bytes
        "Data read from the backing store"
    fetches "forebay_fetches_total" Counter Count
        "Parts of files read from the backing store"
    fetch_us "forebay_fetch_seconds_total" Counter Micros
        "Time of these reads, added up over those that run side by side"
    fetches_failed "forebay_fetches_failed_total" Counter Count
        "Those of them that failed"
    bytes_refetched "forebay_refetched_bytes_total" Counter Bytes
        "Evicted data that was read from the backing store again"
    bytes_prefetched "forebay_prefetched_bytes_total" Counter Bytes
        "Data read from the backing store ahead of a reader"
    bytes_discarded "forebay_discarded_bytes_total" Counter Bytes
        "Data read ahead of a reader that was evicted before it was read"
    tiers_thrashing "forebay_thrashing" Gauge Count
        "1 if memory and SSD are too small for what programs read again and again"
    bytes_scrubbed "forebay_scrubbed_bytes_total" Counter Bytes
        "Data on the SSD read in the background to check it"
    pages_damaged "forebay_damaged_pages_total" Counter Count
        "Pages of 4 KiB on the SSD whose checksum differed"

    writers_waiting "forebay_writers_waiting" Gauge Count
        "Writes that wait for space"
    write_waits "forebay_write_waits_total" Counter Count
        "Writes that have waited for space"
    write_wait_us "forebay_write_wait_seconds_total" Counter Micros
        "Time that writes have waited for space"
    write_wait_us_max "forebay_write_wait_max_seconds" Gauge Micros
        "Longest time that a write has waited for space"
    dirty_waits "forebay_dirty_waits_total" Counter Count
        "Writes that have waited because their job had reached its bound on dirty bytes"

    targets_slow "forebay_slow_targets" Gauge Count
        "Targets of pools that the metadata services of the daemon found slow"
    qos_rules "forebay_qos_rules" Gauge Count
        "Rules of shares and limits in force"
    qos_waiting "forebay_qos_waiting_requests" Gauge Count
        "Requests that wait for their share or limit"
    qos_jobs_short "forebay_qos_jobs_short_of_share" Gauge Count
        "Jobs that waited and got less than 80 % of their share of the ways to other hosts in 5 s"
    qos_requests "forebay_qos_requests_total" Counter Count
        "Requests that started by their share and limit"
    qos_bytes "forebay_qos_bytes_total" Counter Bytes
        "Data that these requests move"
    qos_urgent "forebay_qos_urgent_requests_total" Counter Count
        "Those of them that were urgent: writeback for which writers wait"
    qos_throttled_us "forebay_qos_throttled_seconds_total" Counter Micros
        "Time in which jobs had requests that waited for their share or limit, added up over jobs"

    wire_tampered "forebay_wire_tampered_total" Counter Count
        "Connections of daemons that ended because bytes were changed on their way"
    wire_incomplete "forebay_wire_incomplete_total" Counter Count
        "Connections of daemons that ended because a record did not arrive whole in 5 s"
    wire_refused "forebay_wire_refused_total" Counter Count
        "Connections to this daemon that did not prove the secret"

    profile_recorded "forebay_profile_recorded_files_total" Counter Count
        "Files recorded for the access profile"
    profile_listed "forebay_profile_listed_files" Gauge Count
        "Files in the access profile of the last run"
    profile_hits "forebay_profile_hits_total" Counter Count
        "Files read that the access profile lists"
    profile_misses "forebay_profile_misses_total" Counter Count
        "Files read that the access profile does not list"
    profile_abandoned "forebay_profile_abandoned" Gauge Count
        "1 if the access profile is no longer followed, because too many files were not in it"
}

metrics! {
    /// Metrics of the writeback daemon.
    WRITEBACK;
    /// One value for each metric of the writeback daemon.
    WritebackValues;

    dirty "forebay_writeback_dirty" Gauge Count
        "Files and names that are not written back"
    bytes_dirty "forebay_writeback_dirty_bytes" Gauge Bytes
        "Contents that are being written back, wait, or failed, as far as known"
    written "forebay_writeback_written_total" Counter Count
        "Files and names written back"
    bytes_written "forebay_writeback_written_bytes_total" Counter Bytes
        "Contents written back"
    waiting "forebay_writeback_waiting" Gauge Count
        "Dirty files that are open for writing or not idle yet"
    deferred "forebay_writeback_deferred" Gauge Count
        "Dirty files and names that are written only at the end, or never"
    failed "forebay_writeback_failed" Gauge Count
        "Files and names that failed in the last round"
    conflicts "forebay_writeback_conflicts_total" Counter Count
        "Files that others changed in the backing store"
    attributes_lost "forebay_writeback_attributes_lost_total" Counter Count
        "Files of which some attributes could not be written"
}

/// The metrics of a daemon while it runs. Only for display: nothing waits for them, so that each
/// update is one relaxed operation.
pub type DaemonMetrics = DaemonValues<AtomicU64>;

/// The metrics of a daemon at one time.
pub type DaemonSample = DaemonValues<u64>;

/// The metrics of the writeback daemon at one time.
pub type WritebackSample = WritebackValues<u64>;

impl DaemonMetrics {
    /// The current values.
    #[must_use]
    pub fn load(&self) -> DaemonSample {
        self.map(|value| value.load(Relaxed))
    }
}
