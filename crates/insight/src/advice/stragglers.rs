//! Ranks and hosts that are slower than their peers.

use super::{Finding, Severity, share};
use crate::pattern::Direction;
use crate::profile::JobProfile;
use crate::text;

/// Members of a group (hosts, targets) that are slow by Beacon's rule: the mean over active spans and
/// the peak are both below half of the mean of all peaks, while the member carries over 60 % of the
/// mean volume.
///
/// `series` has bytes per second of each member, in equal spans. Gives indices of slow members.
#[must_use]
pub fn slow_members(series: &[Vec<f64>]) -> Vec<usize> {
    let volumes: Vec<f64> = series.iter().map(|one| one.iter().sum()).collect();
    qos::slow::slow_members(series, &volumes)
}

pub(super) fn advise(job: &JobProfile, findings: &mut Vec<Finding>) {
    slow_hosts(job, findings);
    for direction in Direction::ALL {
        slow_ranks(job, direction, findings);
    }
}

/// Bytes per second of each host of the job over its timeline.
fn host_series(job: &JobProfile) -> Vec<Vec<f64>> {
    let span_seconds = share(job.seconds, job.timeline.len() as f64);
    let mut series = vec![vec![0.0; job.timeline.len()]; job.hosts.len()];
    for (at, span) in job.timeline.iter().enumerate() {
        for (index, rank) in job.ranks.iter().enumerate() {
            let bytes =
                [&span.read, &span.written].map(|each| each.get(index).copied().unwrap_or(0));
            let slot = series.get_mut(rank.host as usize).and_then(|one| one.get_mut(at));
            if let Some(slot) = slot {
                *slot += share(bytes.iter().map(|one| *one as f64).sum(), span_seconds);
            }
        }
    }
    series
}

fn slow_hosts(job: &JobProfile, findings: &mut Vec<Finding>) {
    let slow = slow_members(&host_series(job));
    if job.hosts.len() < 2 || slow.is_empty() {
        return;
    }
    let names: Vec<&str> =
        slow.iter().filter_map(|at| job.hosts.get(*at)).map(String::as_str).collect();
    let evidence = format!(
        "{} moved their share of the data at less than half of the peak rate of the others",
        names.join(", ")
    );
    let change = "run without them (sbatch --exclude), and tell your administrator";
    findings.push(Finding::new("slow-hosts", Severity::High, evidence, change));
}

/// In a file that several ranks share, the slowest takes 15 % longer than the fastest.
fn slow_ranks(job: &JobProfile, direction: Direction, findings: &mut Vec<Finding>) {
    let mut marked = Vec::new();
    let mut saved: f64 = 0.0;
    for file in &job.files {
        let each = || file.uses.iter().map(|one| direction.of(one)).filter(|one| one.bytes > 0);
        let times = || each().map(|one| one.seconds);
        let (slowest, fastest) = (times().fold(0.0, f64::max), times().fold(f64::MAX, f64::min));
        if each().count() < 2 || share(slowest - fastest, slowest) <= 0.15 || slowest < 0.1 {
            continue;
        }
        let mean = share(times().sum(), each().count() as f64);
        saved += slowest - mean;
        marked.push((((slowest - fastest) * 1e6) as u64, file.path.as_str()));
    }
    if marked.is_empty() {
        return;
    }
    let verb = direction.verb();
    let evidence = format!(
        "in {} shared files the slowest rank takes over 15 % longer to {verb} than the fastest",
        text::count(marked.len() as u64)
    );
    let change = "divide the file evenly, and look whether slow ranks share a host or a target";
    let trigger = match direction {
        Direction::Read => "slow-rank-reads",
        Direction::Write => "slow-rank-writes",
    };
    findings
        .push(Finding::new(trigger, Severity::Warn, evidence, change).saving(saved).naming(marked));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttled_member_among_eight_is_slow() {
        let mut series = vec![vec![100e6; 10]; 7];
        // A fifth of the rate for five times as long: the same volume.
        for one in &mut series {
            one.resize(50, 0.0);
        }
        series.push(vec![20e6; 50]);
        assert_eq!(slow_members(&series), [7]);
    }

    #[test]
    fn a_member_with_less_work_or_a_late_burst_is_not_slow() {
        let mut less = vec![vec![100e6; 10]; 7];
        less.push(vec![20e6; 10]);
        assert_eq!(slow_members(&less), [0_usize; 0]);
        let mut burst = vec![vec![100e6; 10]; 7];
        burst.push(vec![10e6, 10e6, 10e6, 10e6, 10e6, 10e6, 10e6, 10e6, 10e6, 900e6]);
        assert_eq!(slow_members(&burst), [0_usize; 0]);
        assert_eq!(slow_members(&[]), [0_usize; 0]);
        assert_eq!(slow_members(&[vec![], vec![]]), [0_usize; 0]);
    }
}
