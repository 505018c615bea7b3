//! Figures of a job that only the instance knows, as its report takes them: where the bytes of its reads
//! were, what it waited for, its bytes over time, what moved beside it, and what is damaged or dirty.
//!
//! Daemons count bytes from slow places in whole extents, and what comes from the backing store through
//! another host twice. Here each byte that was read is in one place: the slowest first.

use config::activity::access_times::AccessTimes;
use config::activity::timeline::Timeline;
use config::activity::{FileProfile, ProcessProfile, SlowBytes, WaitNanos};
use config::control::{FoundDamage, JobShare};
use insight::profile::{BackingAccesses, BackingTraffic, Span, TierBytes, WaitSeconds};
use std::collections::BTreeMap;
use std::time::Duration;

/// The places of this many bytes that were read.
pub(crate) fn tiers(read: u64, slow: SlowBytes) -> TierBytes {
    let backing = slow.backing.min(read);
    let remote = slow.remote.min(read - backing);
    let ssd = slow.ssd.min(read - backing - remote);
    TierBytes { memory: read - backing - remote - ssd, ssd, remote, backing }
}

/// Waits as seconds.
pub(crate) fn waits(of: WaitNanos) -> WaitSeconds {
    let seconds = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64();
    WaitSeconds {
        admission: seconds(of.space),
        backing: seconds(of.backing),
        locks: seconds(of.locks),
        throttled: seconds(of.shares),
    }
}

/// Accesses to the backing store, as a report has them.
pub(crate) fn accesses(times: &AccessTimes) -> BackingAccesses {
    BackingAccesses {
        number: times.number,
        failed: times.failed,
        seconds: Duration::from_micros(times.micros).as_secs_f64(),
        p50_seconds: times.quantile_seconds(0.5),
        p99_seconds: times.quantile_seconds(0.99),
        classes: times.classes.clone(),
    }
}

/// Adds what the job wrote that is nowhere else, of files that were asked about.
pub(crate) fn add_dirty(traffic: &mut BackingTraffic, files: &[FileProfile]) {
    let mut dirty: BTreeMap<u64, u64> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_dirty && !file.is_removed) {
        let size = dirty.entry(file.inode).or_default();
        *size = (*size).max(file.writes.highest);
    }
    traffic.dirty_files = dirty.len() as u64;
    traffic.dirty_bytes = dirty.into_values().fold(0, u64::saturating_add);
}

/// Adds damage that was found in files of the job since it began.
pub(crate) fn add_damage(
    traffic: &mut BackingTraffic,
    (found, begin_ms): (&[FoundDamage], u64),
    files: &[FileProfile],
) {
    let is_own = |one: &&FoundDamage| {
        one.at_ms >= begin_ms && files.iter().any(|file| file.inode == one.inode)
    };
    for one in found.iter().filter(is_own) {
        match one.is_in_backing {
            true => traffic.repaired += 1,
            false => traffic.damaged += 1,
        }
    }
}

/// Bytes that writeback moved in the spans in which one of these processes moved some.
pub(crate) fn written_beside(writeback: &Timeline, processes: &[ProcessProfile]) -> u64 {
    let mut spans: Vec<(u64, u64)> = Vec::new();
    for line in processes.iter().map(|process| &process.timeline) {
        let active = line.each().filter(|(_, bytes)| *bytes != [0; 2]);
        spans.extend(active.map(|(begin, _)| (begin, begin.saturating_add(line.span_ms))));
    }
    spans.sort_unstable();
    let (mut sum, mut until) = (0_u64, 0);
    for (begin, end) in spans {
        let begin = begin.max(until);
        if begin < end {
            sum = sum.saturating_add(writeback.between((begin, end))[1]);
            until = end;
        }
    }
    sum
}

/// Spans of the report.
const SPANS: u64 = 64;

/// The bytes of each rank over the time of the job. `ranks` has the rank of each process.
pub(crate) fn timeline(
    (begin_ms, end_ms): (u64, u64),
    processes: &[ProcessProfile],
    ranks: &[usize],
    count: usize,
) -> Vec<Span> {
    let length = end_ms.saturating_sub(begin_ms);
    if processes.iter().all(|process| process.timeline.is_none()) || length == 0 {
        return Vec::new();
    }
    // A second is the shortest span in which bytes are known.
    let number = (length / 1000).clamp(1, SPANS);
    let mut spans = Vec::new();
    for at in 0..number {
        let edge = |at: u64| begin_ms.saturating_add(length.saturating_mul(at) / number);
        // Whatever was found after the end belongs to it.
        let end = if at + 1 == number { u64::MAX } else { edge(at + 1) };
        let mut span = Span { read: vec![0; count], written: vec![0; count] };
        for (process, &rank) in processes.iter().zip(ranks) {
            let [read, written] = process.timeline.between((edge(at), end));
            for (to, bytes) in [(&mut span.read, read), (&mut span.written, written)] {
                if let Some(to) = to.get_mut(rank) {
                    *to = to.saturating_add(bytes);
                }
            }
        }
        spans.push(span);
    }
    spans
}

/// The part that the job got of the device time to which it was entitled while it waited, on all hosts;
/// `None`: it did not wait.
pub(crate) fn share<'a>(job: &str, of_daemons: impl Iterator<Item = &'a JobShare>) -> Option<f64> {
    let own = of_daemons.filter(|one| one.job == job);
    let (got, entitled) = own.fold((0_u64, 0_u64), |(got, entitled), one| {
        (got.saturating_add(one.got), entitled.saturating_add(one.entitled))
    });
    (entitled > 0).then(|| got as f64 / entitled as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_in_one_place_and_the_slowest_counts_first() {
        let of = |ssd, remote, backing| tiers(100, SlowBytes { ssd, remote, backing });
        let places = |memory, ssd, remote, backing| TierBytes { memory, ssd, remote, backing };
        assert_eq!(of(0, 0, 0), places(100, 0, 0, 0));
        assert_eq!(of(10, 20, 0), places(70, 10, 20, 0));
        assert_eq!(of(0, 100, 60), places(0, 0, 40, 60), "through another host");
        assert_eq!(of(9, 9, 4096), places(0, 0, 0, 100), "a whole extent for a few bytes");
        let mut sum = of(10, 0, 0);
        sum.add(of(0, 0, 50));
        assert_eq!(sum, places(140, 10, 0, 50));
    }

    #[test]
    fn a_share_is_that_of_all_daemons_while_the_job_waited() {
        let one = |job: &str, got, entitled| JobShare { job: job.into(), got, entitled };
        let all = [one("a", 10, 100), one("b", 9, 9), one("a", 20, 50)];
        assert_eq!(share("a", all.iter()), Some(0.2));
        assert_eq!(share("c", all.iter()), None);
    }

    fn process(began_ms: u64, spans: &[[u64; 2]]) -> ProcessProfile {
        let timeline = Timeline { began_ms, span_ms: 1000, spans: spans.to_vec() };
        ProcessProfile { timeline, ..ProcessProfile::default() }
    }

    #[test]
    fn writeback_counts_where_the_job_itself_moves_bytes() {
        let writeback = Timeline { began_ms: 0, span_ms: 1000, spans: vec![[0, 10]; 20] };
        let idle = process(2000, &[[0, 0], [0, 0]]);
        assert_eq!(written_beside(&writeback, &[idle]), 0);
        let both = [process(2000, &[[1, 0], [0, 0], [0, 1]]), process(2500, &[[1, 0]])];
        assert_eq!(written_beside(&writeback, &both), 25, "2 to 3.5 s, and 4 to 5 s");
    }

    #[test]
    fn a_timeline_has_a_row_for_each_rank_and_no_byte_is_lost() {
        let processes = [process(5000, &[[4, 0], [2, 8]]), process(7000, &[[0, 6]])];
        let spans = timeline((5000, 8000), &processes, &[0, 1], 2);
        let written: Vec<_> = spans.iter().map(|span| span.written.clone()).collect();
        assert_eq!(written, [vec![0, 0], vec![8, 0], vec![0, 6]]);
        assert_eq!(spans.iter().map(|span| span.read[0]).sum::<u64>(), 6);
        let short = timeline((5000, 5100), &processes, &[0, 1], 2);
        assert_eq!((short.len(), short[0].written.clone()), (1, vec![8, 6]));
        assert_eq!(timeline((5000, 6000), &[process(0, &[])], &[0], 1), []);
    }

    #[test]
    fn dirty_and_damaged_data_counts_once_for_each_file_of_the_job() {
        let file = |inode, highest, is_dirty| FileProfile {
            inode,
            is_dirty,
            writes: config::activity::Transfers { highest, ..Default::default() },
            ..FileProfile::default()
        };
        let files = [file(1, 10, true), file(1, 30, true), file(2, 5, false)];
        let mut traffic = BackingTraffic::default();
        add_dirty(&mut traffic, &files);
        assert_eq!((traffic.dirty_files, traffic.dirty_bytes), (1, 30));
        let found =
            |at_ms, inode, is_in_backing| FoundDamage { at_ms, inode, offset: 0, is_in_backing };
        let all =
            [found(50, 1, true), found(200, 1, true), found(200, 2, false), found(200, 3, true)];
        add_damage(&mut traffic, (&all, 100), &files);
        assert_eq!((traffic.repaired, traffic.damaged), (1, 1));
    }
}
