//! Figures of jobs in a running instance: asked of the home daemon of each host, directly or through
//! `ssh`, and merged.

mod causes;

mod ranks;

use crate::failure::{Failure, Result};
use crate::instance::cluster;
use crate::instance::{host, inspect, thrashing, writeback};
use crate::process::query::activity_query;
use crate::state::directories;
use crate::state::records::{self, HostRecord, InstanceRecord};
use config::InstanceConfig;
use config::activity::{
    ActivityAnswer, FileProfile, JobProfile, JobSummary, MeasuredRates, ProcessProfile, SlowBytes,
    Transfers, WaitNanos,
};
use config::choice::WritebackMode;
use config::control::DaemonStatus;
use insight::profile as insights;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use wire::Inode;
use wire::job::SIZE_CLASSES;

/// Transfers of a process in a file after which patterns come from a sample.
const EXACT_COUNT: u64 = 256;

/// Figures of jobs on this host: all in short, or one of them.
///
/// # Errors
/// There is no such instance here, or its home daemon does not answer.
pub(crate) fn here(name: &str, job: Option<&str>, timeout: Duration) -> Result<ActivityAnswer> {
    let run = directories::run(name)?;
    let host: Option<HostRecord> = records::load(&run, host::RECORD)?;
    let host = host.ok_or_else(|| Failure::no_instance(name))?;
    let ask = |index: u16| activity_query(&run.join(format!("d{index}.sock")), job, timeout);
    let mut answer = ask(host.first).ok_or_else(|| {
        let why = "it does not answer: see 'forebay status'";
        Failure::at("cannot read what jobs did", format!("daemon {} of {name}", host.first), why)
    })?;
    if job.is_some() {
        // The others know only what they read from the backing store.
        let others = host.daemons.iter().filter(|daemon| daemon.index != host.first);
        let backing = others.filter_map(|daemon| ask(daemon.index)).flat_map(|other| other.backing);
        answer.backing.extend(backing);
    }
    Ok(answer)
}

/// A line for each host that does not answer: its figures are missing.
pub(crate) type SilentHosts = Vec<String>;

/// Figures of hosts, by their names.
pub(crate) type HostAnswers = Vec<(String, ActivityAnswer)>;

/// Says which hosts' figures are missing in what is printed.
pub(crate) fn warn_of(silent: &SilentHosts) {
    silent.iter().for_each(|why| errln!("forebay: figures of a host are missing: {why}"));
}

/// The answers of all hosts that answer. The death of one takes what it had counted.
///
/// # Errors
/// There is no such instance, or no host answers.
fn answers(name: &str, job: Option<&str>, timeout: Duration) -> Result<(HostAnswers, SilentHosts)> {
    let run = directories::run(name)?;
    let own: Option<HostRecord> = records::load(&run, host::RECORD)?;
    let instance: Option<InstanceRecord> = match cluster::load(name)? {
        None => records::load(&run, cluster::HOSTS_RECORD)?,
        started => started,
    };
    let this_host = this_host();
    let Some(instance) = instance else {
        return Ok((vec![(this_host, here(name, job, timeout)?)], Vec::new()));
    };
    let all = cluster::activity(&instance, own.as_ref(), job, timeout)?;
    let names = instance.hosts.iter().map(|entry| match entry.host.as_str() {
        "" => this_host.clone(),
        host => host.to_owned(),
    });
    let (mut found, mut silent, mut first) = (Vec::new(), Vec::new(), None);
    for (host, answer) in names.zip(all) {
        match answer {
            Ok(answer) => found.push((host, answer)),
            Err(failure) => {
                silent.push(failure.text().to_owned());
                first.get_or_insert(failure);
            }
        }
    }
    match first.filter(|_| found.is_empty()) {
        Some(failure) => Err(failure),
        None => Ok((found, silent)),
    }
}

/// The jobs of each host.
///
/// # Errors
/// As for `list`.
pub(crate) fn by_host(name: &str, timeout: Duration) -> Result<(HostAnswers, SilentHosts)> {
    answers(name, None, timeout)
}

/// The jobs of an instance, in the order in which they began; those that run are last.
///
/// # Errors
/// There is no such instance, or no host answers.
pub(crate) fn list(name: &str, timeout: Duration) -> Result<(Vec<JobSummary>, SilentHosts)> {
    let (answers, silent) = by_host(name, timeout)?;
    Ok((merged(answers.iter().map(|(_, answer)| answer)), silent))
}

/// The jobs of these answers, as `list` gives them.
pub(crate) fn merged<'a>(answers: impl Iterator<Item = &'a ActivityAnswer>) -> Vec<JobSummary> {
    let mut all: BTreeMap<&str, JobSummary> = BTreeMap::new();
    for job in answers.flat_map(|answer| &answer.jobs) {
        match all.get_mut(job.job.as_str()) {
            Some(sum) => sum.add(job),
            None => drop(all.insert(&job.job, job.clone())),
        }
    }
    let mut all: Vec<JobSummary> = all.into_values().collect();
    all.sort_by_key(|job| (job.ended.is_none(), job.began));
    all
}

/// The figures of one job, over all hosts; `None`: the instance knows no such job.
///
/// # Errors
/// There is no such instance, or no host answers.
pub(crate) fn counted(
    name: &str,
    job: &str,
    timeout: Duration,
) -> Result<(Option<JobProfile>, SilentHosts)> {
    let (measured, silent) = measured(name, job, timeout)?;
    Ok((measured.map(|it| it.0), silent))
}

/// As `counted`, and what operations take on these hosts.
fn measured(
    name: &str,
    job: &str,
    timeout: Duration,
) -> Result<(Option<(JobProfile, MeasuredRates)>, SilentHosts)> {
    let (mut all, mut rates) = (JobProfile::default(), MeasuredRates::default());
    let mut backing = Vec::new();
    let (answers, silent) = answers(name, Some(job), timeout)?;
    for (host, answer) in answers {
        rates = rates.best(answer.rates);
        backing.extend(answer.backing);
        // Other jobs may have the same word.
        for mut profile in answer.profiles.into_iter().filter(|profile| profile.job == job) {
            name_host(&mut profile, &host);
            all.add(profile);
        }
    }
    all.add_backing(&backing);
    Ok(((!all.processes.is_empty()).then_some((all, rates)), silent))
}

/// The figures of one job, over all hosts, as the report of a job takes it; `None`: the instance knows no
/// such job.
///
/// # Errors
/// There is no such instance, or no host answers.
pub(crate) fn profile(
    name: &str,
    job: &str,
    timeout: Duration,
) -> Result<(Option<insights::JobProfile>, SilentHosts)> {
    let (both, silent) = both(name, job, timeout)?;
    Ok((both.map(|(_, profile)| profile), silent))
}

/// The figures of one job over all hosts, as they were counted and as its report takes them; `None`: the
/// instance knows no such job.
///
/// # Errors
/// There is no such instance, or no host answers.
pub(crate) fn both(
    name: &str,
    job: &str,
    timeout: Duration,
) -> Result<(Option<(JobProfile, insights::JobProfile)>, SilentHosts)> {
    let (measured, silent) = measured(name, job, timeout)?;
    let Some((counted, rates)) = measured else { return Ok((None, silent)) };
    let mut profile = profile_of(&counted, rates);
    let found = inspect::inspect(name, timeout)?;
    let hosts: BTreeSet<&str> = found.daemons.iter().map(|one| one.host.as_str()).collect();
    profile.copies = Some(copies_in(&found.config, hosts.len() as u64, &counted.files));
    let statuses: Vec<&DaemonStatus> =
        found.daemons.iter().filter_map(inspect::DaemonReport::status).collect();
    add_from_daemons(&mut profile, name, &counted, &statuses);
    Ok((Some((counted, profile)), silent))
}

/// As `profile`, of this host alone, which takes no `ssh`.
///
/// # Errors
/// There is no such instance, or its home daemon does not answer.
pub(crate) fn profile_here(
    name: &str,
    job: &str,
    timeout: Duration,
) -> Result<Option<insights::JobProfile>> {
    let answer = here(name, Some(job), timeout)?;
    let mut found = answer.profiles.into_iter().find(|profile| profile.job == job);
    if let Some(profile) = &mut found {
        name_host(profile, &this_host());
        profile.add_backing(&answer.backing);
    }
    let Some(found) = found else { return Ok(None) };
    let mut profile = profile_of(&found, answer.rates);
    let states = inspect::here(name, timeout)?;
    let statuses: Vec<&DaemonStatus> =
        states.iter().filter_map(|state| state.status.as_ref()).collect();
    add_from_daemons(&mut profile, name, &found, &statuses);
    Ok(Some(profile))
}

/// The host of all that a daemon counted.
fn name_host(profile: &mut JobProfile, host: &str) {
    let processes = profile.processes.iter_mut().map(|one| &mut one.host);
    let all = processes.chain(profile.disturbances.iter_mut().map(|one| &mut one.host));
    all.for_each(|to| host.clone_into(to));
}

/// The copies that an instance with this number of hosts keeps of these files.
fn copies_in(
    config: &InstanceConfig,
    hosts: u64,
    files: &[FileProfile],
) -> insights::InstanceCopies {
    let is_written_back = config.has_writeback() && config.writeback != WritebackMode::Never;
    let single = files.iter().filter(|file| Inode(file.inode).is_single());
    let single = names_of(single).into_values().collect();
    insights::InstanceCopies { hosts, replicas: config.replicas, is_written_back, single }
}

/// Adds what daemons, and the writeback daemon if it is on this host, say of the time of the job.
fn add_from_daemons(
    profile: &mut insights::JobProfile,
    name: &str,
    counted: &JobProfile,
    statuses: &[&DaemonStatus],
) {
    add_thrashing(profile, statuses.iter().copied());
    let shares = statuses.iter().flat_map(|status| &status.job_shares);
    profile.share = causes::share(&counted.job, shares);
    for status in statuses {
        let found = (status.damage.as_slice(), profile.begin_ms);
        causes::add_damage(&mut profile.backing, found, &counted.files);
    }
    // Without it nothing is written back.
    let mut times = counted.backing.clone();
    let report = directories::run(name).ok().and_then(|run| writeback::status_with_files(&run));
    if let Some(report) = report {
        let mut written = JobProfile { files: counted.files.clone(), ..JobProfile::default() };
        written.add_backing(&report.files);
        times.writes.add(&written.backing.writes);
        let beside = causes::written_beside(&report.timeline, &counted.processes);
        profile.backing.written_beside = beside;
        let end_ms = profile.begin_ms.saturating_add((profile.seconds * 1000.0) as u64);
        profile.backing.written = report.timeline.between((profile.begin_ms, end_ms))[1];
    }
    profile.backing_reads = causes::accesses(&times.reads);
    profile.backing_writes = causes::accesses(&times.writes);
}

/// Adds what daemons say of their tiers while the job ran.
fn add_thrashing<'a>(
    profile: &mut insights::JobProfile,
    statuses: impl Iterator<Item = &'a DaemonStatus>,
) {
    let end_ms = profile.begin_ms.saturating_add((profile.seconds * 1000.0) as u64);
    let spans = statuses.map(|status| status.thrashing.as_slice());
    profile.thrashing = thrashing::between(spans, (profile.begin_ms, end_ms));
}

fn this_host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn seconds(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64()
}

fn profile_of(counted: &JobProfile, rates: MeasuredRates) -> insights::JobProfile {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    let mut profile = insights::JobProfile {
        job: counted.job.clone(),
        begin_ms: counted.began / 1_000_000,
        seconds: seconds(counted.ended.unwrap_or(now).saturating_sub(counted.began)),
        is_complete: counted.ended.is_some(),
        other_files: counted.processes.iter().map(|process| process.other_files).sum(),
        is_sampled: is_sampled(counted),
        rates: insights::Rates {
            local_bytes: rates.bytes_per_second,
            call_seconds: rates.call_nanos / 1e9,
            name_seconds: rates.name_nanos / 1e9,
        },
        ..insights::JobProfile::default()
    };
    if let Some(first) = counted.processes.first() {
        profile.user = first.uid.to_string();
    }
    let ranks = add_ranks(&mut profile, &counted.processes);
    profile.command = programs(&counted.processes);
    let mut files: BTreeMap<u64, Vec<&FileProfile>> = BTreeMap::new();
    for file in &counted.files {
        files.entry(file.inode).or_default().push(file);
        let rank = ranks.get(file.process).and_then(|&rank| profile.ranks.get_mut(rank));
        if let Some(rank) = rank {
            add_bytes(rank, &file.reads, &file.writes);
            rank.small_files_read += u64::from(is_small_file_read(file));
        }
    }
    profile.files =
        files.into_iter().map(|(inode, of_ranks)| file(inode, &of_ranks, &ranks)).collect();
    let end_ms = profile.begin_ms.saturating_add((profile.seconds * 1000.0) as u64);
    let times = (profile.begin_ms, end_ms);
    profile.timeline = causes::timeline(times, &counted.processes, &ranks, profile.ranks.len());
    add_causes(&mut profile, counted);
    profile
}

/// Adds where the bytes of reads were, and what was waited for.
fn add_causes(profile: &mut insights::JobProfile, counted: &JobProfile) {
    for file in &profile.files {
        profile.read_tiers.add(file.read_tiers);
    }
    let (mut waits, mut slow) = (WaitNanos::default(), SlowBytes::default());
    for process in &counted.processes {
        let tiers = causes::tiers(process.other_reads.bytes, process.other_slow);
        profile.read_tiers.add(tiers);
        slow.add(process.other_slow);
        waits.add(process.waits);
    }
    counted.files.iter().for_each(|file| slow.add(file.slow));
    profile.backing.read = slow.backing;
    profile.waits = causes::waits(waits);
    causes::add_dirty(&mut profile.backing, &counted.files);
    profile.disturbances.clone_from(&counted.disturbances);
    for directory in &counted.directories {
        let unknown = || format!("directory {}", directory.inode);
        profile.directories.push(insights::DirectoryProfile {
            path: directory.path.clone().unwrap_or_else(unknown),
            operations: directory.operations,
        });
    }
}

/// Files below this size are better kept in few large ones.
const SMALL_FILE_BYTES: u64 = 64 << 10;

/// Whether a process read a small file from its begin to its end. The end is where it read last: sizes
/// are not counted.
fn is_small_file_read(file: &FileProfile) -> bool {
    let FileProfile { reads, writes, .. } = file;
    let is_whole = reads.lowest == Some(0) && reads.bytes >= reads.highest && reads.bytes > 0;
    is_whole && writes.is_none() && reads.highest < SMALL_FILE_BYTES
}

/// As `is_small_file_read`, of the files of a process that have no entry: how many, by the share of reads
/// in their transfers.
fn other_small_files_read(process: &ProcessProfile) -> u64 {
    let ProcessProfile { other_reads: reads, other_writes: writes, other_files, .. } = process;
    if reads.number == 0 || reads.bytes == 0 || reads.highest >= SMALL_FILE_BYTES {
        return 0;
    }
    let all = u128::from(reads.number) + u128::from(writes.number);
    u64::try_from(u128::from(*other_files) * u128::from(reads.number) / all).unwrap_or(u64::MAX)
}

/// True if some counts are estimates, or belong to several processes or files.
fn is_sampled(counted: &JobProfile) -> bool {
    let is_long = |one: &Transfers| one.number > EXACT_COUNT;
    counted.files.iter().any(|file| is_long(&file.reads) || is_long(&file.writes))
        || counted.processes.iter().any(|process| process.pid == 0 || process.other_files > 0)
}

/// Names of the programs, each once.
fn programs(processes: &[ProcessProfile]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for process in processes {
        if !process.program.is_empty() && !names.contains(&process.program.as_str()) {
            names.push(&process.program);
        }
    }
    names.join(", ")
}

/// Adds the ranks of the job; returns the rank of each process (`ranks::of`).
fn add_ranks(profile: &mut insights::JobProfile, processes: &[ProcessProfile]) -> Vec<usize> {
    let places = ranks::of(processes);
    for (process, &place) in processes.iter().zip(&places) {
        let host = profile.hosts.iter().position(|host| *host == process.host);
        let host = host.unwrap_or_else(|| {
            profile.hosts.push(process.host.clone());
            profile.hosts.len() - 1
        });
        let count = profile.ranks.len();
        if place == count {
            profile.ranks.push(insights::RankProfile {
                rank: process.rank.unwrap_or_else(|| u32::try_from(count).unwrap_or(u32::MAX)),
                host: u32::try_from(host).unwrap_or(u32::MAX),
                program: process.program.clone(),
                ..insights::RankProfile::default()
            });
        }
        if let Some(rank) = profile.ranks.get_mut(place) {
            add_operations(rank, process);
        }
    }
    places
}

fn add_operations(rank: &mut insights::RankProfile, process: &ProcessProfile) {
    let of = &process.operations;
    let operations = |number: u64, nanos: u64| insights::Operations {
        number,
        bytes: 0,
        seconds: seconds(nanos),
    };
    for class in
        [of.open, of.create, of.stat, of.read_directory, of.unlink, of.rename, of.close, of.other]
    {
        rank.metadata.add(operations(class.number, class.nanos));
        rank.absent += class.absent;
    }
    rank.opens += of.open.number + of.create.number;
    rank.syncs.add(operations(of.sync.number, of.sync.nanos));
    rank.reads.add(operations(of.read.number, of.read.nanos));
    rank.writes.add(operations(of.write.number, of.write.nanos));
    add_bytes(rank, &process.other_reads, &process.other_writes);
    rank.other_reads.add(&transfers(&process.other_reads));
    rank.other_writes.add(&transfers(&process.other_writes));
    rank.small_files_read += other_small_files_read(process);
}

fn add_bytes(rank: &mut insights::RankProfile, reads: &Transfers, writes: &Transfers) {
    rank.reads.bytes = rank.reads.bytes.saturating_add(reads.bytes);
    rank.writes.bytes = rank.writes.bytes.saturating_add(writes.bytes);
}

/// The name of a file for people: its path, or its inode number if that is not known.
fn name_of(inode: u64, entries: &[&FileProfile]) -> String {
    let is_removed = entries.iter().any(|one| one.is_removed);
    match entries.iter().find_map(|one| one.path.clone()) {
        Some(directory) if is_removed => {
            format!("{}/(removed, inode {inode})", directory.trim_end_matches('/'))
        }
        None if is_removed => format!("(removed, inode {inode})"),
        found => found.unwrap_or_else(|| format!("inode {inode}")),
    }
}

/// The names of files for people, by inode number.
pub(crate) fn names_of<'a>(files: impl Iterator<Item = &'a FileProfile>) -> BTreeMap<u64, String> {
    let mut all: BTreeMap<u64, Vec<&FileProfile>> = BTreeMap::new();
    files.for_each(|file| all.entry(file.inode).or_default().push(file));
    all.into_iter().map(|(inode, entries)| (inode, name_of(inode, &entries))).collect()
}

fn file(inode: u64, of_ranks: &[&FileProfile], ranks: &[usize]) -> insights::FileProfile {
    let mut file = insights::FileProfile {
        path: name_of(inode, of_ranks),
        is_removed: of_ranks.iter().any(|one| one.is_removed),
        ..insights::FileProfile::default()
    };
    let (mut read, mut slow) = (0_u64, SlowBytes::default());
    for one in of_ranks {
        read = read.saturating_add(one.reads.bytes);
        slow.add(one.slow);
        let rank = ranks.get(one.process).copied().and_then(|rank| u32::try_from(rank).ok());
        let Some(rank) = rank else { continue };
        let place = file.uses.iter().position(|known| known.rank == rank).unwrap_or_else(|| {
            file.uses.push(insights::FileUse { rank, ..insights::FileUse::default() });
            file.uses.len() - 1
        });
        if let Some(known) = file.uses.get_mut(place) {
            known.reads.add(&transfers(&one.reads));
            known.writes.add(&transfers(&one.writes));
            known.opens = known.opens.saturating_add(one.opens);
        }
        file.size = file.size.max(one.reads.highest).max(one.writes.highest);
    }
    file.read_tiers = causes::tiers(read, slow);
    file
}

/// The numbers of each size. Transfers since the last one that was looked at have none yet, and reads
/// that find the end of a file never have one: they are taken to be like most.
fn sizes(of: &Transfers) -> [u64; SIZE_CLASSES] {
    let mut sizes = of.sizes;
    let known = sizes.iter().copied().fold(0, u64::saturating_add);
    if let Some(most) = sizes.iter_mut().max() {
        *most = most.saturating_add(of.number.saturating_sub(known));
    }
    sizes
}

fn transfers(of: &Transfers) -> insights::Transfers {
    insights::Transfers {
        number: of.number,
        bytes: of.bytes,
        seconds: seconds(of.nanos),
        sizes: sizes(of),
        consecutive: of.consecutive,
        sequential: of.sequential.saturating_sub(of.consecutive),
        misaligned: of.misaligned,
        lowest: of.lowest.unwrap_or(0),
        highest: of.highest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::activity::Counter;

    #[test]
    fn a_profile_has_a_rank_for_each_process_and_the_uses_of_each_file() {
        let process = |pid: u32, rank: Option<u32>, by: Counter| {
            let mut process =
                ProcessProfile { host: "c1".into(), pid, rank, by, ..Default::default() };
            process.program = "app".into();
            process.processes = 1;
            process.operations.stat.number = 2;
            process.operations.stat.absent = 1;
            process.operations.create.number = 1;
            process.operations.read.number = 4;
            process
        };
        let reads = |bytes: u64, lowest: u64| Transfers {
            number: 4,
            bytes,
            consecutive: 1,
            sequential: 3,
            lowest: Some(lowest),
            highest: lowest + bytes,
            ..Transfers::default()
        };
        let file = |process: usize, lowest: u64| FileProfile {
            inode: 77,
            process,
            reads: reads(100, lowest),
            ..FileProfile::default()
        };
        let processes = vec![
            process(10, Some(5), Counter::Preload),
            process(11, None, Counter::Preload),
            process(10, Some(5), Counter::Mount),
        ];
        let counted = JobProfile {
            job: "a".into(),
            began: 1_000_000_000,
            ended: Some(3_500_000_000),
            processes,
            files: vec![file(0, 0), file(1, 100), file(2, 200)],
            ..JobProfile::default()
        };
        let rates = MeasuredRates { call_nanos: 500.0, ..MeasuredRates::default() };
        let profile = profile_of(&counted, rates);
        assert_eq!((profile.begin_ms, profile.seconds, profile.is_complete), (1000, 2.5, true));
        assert_eq!((profile.hosts.len(), profile.command.as_str()), (1, "app"));
        let ranks: Vec<_> = profile.ranks.iter().map(|rank| (rank.rank, rank.reads)).collect();
        assert_eq!((ranks.len(), ranks[0].0, ranks[1].0), (2, 5, 1));
        assert_eq!((ranks[0].1.number, ranks[0].1.bytes, ranks[1].1.bytes), (8, 200, 100));
        assert_eq!((profile.ranks[0].opens, profile.ranks[0].absent), (2, 2));
        let [file] = profile.files.as_slice() else { panic!("one file") };
        assert_eq!((file.size, file.uses.len()), (300, 2));
        let first = file.uses[0].reads;
        assert_eq!((first.number, first.lowest, first.highest), (8, 0, 300));
        assert_eq!((first.consecutive, first.sequential), (2, 4), "with a gap");
        assert!(!profile.is_sampled);
        assert_eq!((profile.rates.call_seconds, profile.rates.local_bytes), (5e-7, 0.0));
    }

    #[test]
    fn small_files_that_are_read_whole_are_counted_with_those_without_an_entry() {
        let reads = |bytes: u64, lowest: u64, highest: u64| Transfers {
            number: 2,
            bytes,
            lowest: Some(lowest),
            highest,
            ..Transfers::default()
        };
        let file = |reads: Transfers| FileProfile { reads, opens: 3, ..FileProfile::default() };
        let written = FileProfile { writes: reads(9, 0, 9), ..file(reads(9, 0, 9)) };
        let files = vec![
            file(reads(5000, 0, 5000)),
            file(reads(5000, 100, 5100)),
            file(reads(8192, 0, 60_000)),
            file(reads(SMALL_FILE_BYTES, 0, SMALL_FILE_BYTES)),
            written,
        ];
        let process = |other_reads: Transfers, other_writes: Transfers| ProcessProfile {
            pid: 1,
            processes: 1,
            other_files: 900,
            other_reads,
            other_writes,
            ..ProcessProfile::default()
        };
        let count = |process: ProcessProfile, files: Vec<FileProfile>| {
            let counted = JobProfile { processes: vec![process], files, ..JobProfile::default() };
            let profile = profile_of(&counted, MeasuredRates::default());
            (profile.ranks[0].small_files_read, profile.files.first().map(|one| one.uses[0].opens))
        };
        let none = Transfers::default;
        assert_eq!(count(process(none(), none()), files), (1, Some(15)));
        let small = reads(90_000, 0, 4000);
        assert_eq!(count(process(small, none()), vec![]), (900, None));
        assert_eq!(count(process(small, small), vec![]), (450, None), "half of them are written");
        assert_eq!(count(process(reads(90_000, 0, 70_000), none()), vec![]), (0, None));
    }

    #[test]
    fn a_file_is_named_by_its_path_or_as_removed() {
        let named = |path: Option<&str>, is_removed: bool| {
            let path = path.map(str::to_owned);
            let one = FileProfile { inode: 7, path, is_removed, ..FileProfile::default() };
            file(7, &[&FileProfile::default(), &one], &[0]).path
        };
        assert_eq!(named(Some("/d/f"), false), "/d/f");
        assert_eq!(named(None, false), "inode 7");
        assert_eq!(named(Some("/d"), true), "/d/(removed, inode 7)");
        assert_eq!(named(Some("/"), true), "/(removed, inode 7)");
        assert_eq!(named(None, true), "(removed, inode 7)");
    }
}
