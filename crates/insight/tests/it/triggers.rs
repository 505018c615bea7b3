//! Each trigger fires for a job at its threshold, and not for one just below. Only the trigger under
//! test is looked at: a job of one kind of I/O has other findings, too.

use insight::advice::{FILES_NAMED, Finding, advise};
use insight::profile::{
    BackingAccesses, BackingTraffic, DirectoryProfile, Disturbance, FileProfile, FileUse,
    JobProfile, Operations, RankProfile, Rates, Span, ThrashingBytes, TierBytes, Transfers,
    WaitSeconds,
};
use wire::job::size_class;

const MIB: u64 = 1 << 20;

fn operations(number: u64, bytes: u64, seconds: f64) -> Operations {
    Operations { number, bytes, seconds }
}

/// `number` transfers of `size` bytes, one behind the other.
fn transfers(number: u64, size: u64) -> Transfers {
    let mut sizes = [0; 10];
    sizes[size_class(size)] = number;
    Transfers {
        number,
        bytes: number * size,
        seconds: number as f64 * 1e-3,
        sizes,
        consecutive: number.saturating_sub(1),
        highest: number * size,
        ..Transfers::default()
    }
}

/// A job of one host for each rank, without I/O.
fn job(ranks: u32) -> JobProfile {
    JobProfile {
        seconds: 100.0,
        is_complete: true,
        hosts: (0..ranks).map(|host| format!("node{host}")).collect(),
        ranks: (0..ranks)
            .map(|rank| RankProfile { rank, host: rank, ..RankProfile::default() })
            .collect(),
        rates: Rates { local_bytes: 1e9, call_seconds: 1e-4, name_seconds: 1e-5 },
        ..JobProfile::default()
    }
}

/// Lets ranks read and write a file as given, one use each.
fn with_file(mut job: JobProfile, uses: Vec<FileUse>) -> JobProfile {
    for one in &uses {
        let rank = &mut job.ranks[one.rank as usize];
        rank.reads.add(operations(one.reads.number, one.reads.bytes, one.reads.seconds));
        rank.writes.add(operations(one.writes.number, one.writes.bytes, one.writes.seconds));
    }
    let path = format!("/file{}", job.files.len());
    let size = uses.iter().map(|one| one.reads.highest.max(one.writes.highest)).max().unwrap_or(0);
    job.files.push(FileProfile { path, size, uses, ..FileProfile::default() });
    job
}

fn read_by(rank: u32, reads: Transfers) -> FileUse {
    FileUse { rank, opens: 1, reads, ..FileUse::default() }
}

fn written_by(rank: u32, writes: Transfers) -> FileUse {
    FileUse { rank, opens: 1, writes, ..FileUse::default() }
}

fn found(job: &JobProfile, trigger: &str) -> Option<Finding> {
    let findings = advise(job);
    let mut of_trigger = findings.into_iter().filter(|one| one.trigger == trigger);
    let first = of_trigger.next();
    assert_eq!(of_trigger.next(), None, "{trigger} twice");
    first
}

/// The trigger fires for the first job, not for the second.
fn at_threshold(trigger: &str, fires: &JobProfile, below: &JobProfile) -> Finding {
    assert_eq!(found(below, trigger), None, "{trigger} fires below its threshold");
    found(fires, trigger).unwrap_or_else(|| panic!("{trigger} does not fire: {:#?}", advise(fires)))
}

/// For both directions: the trigger's names, and a job made of transfers of that direction.
fn both(
    triggers: [&str; 2],
    fires: impl Fn(fn(u32, Transfers) -> FileUse) -> JobProfile,
    below: impl Fn(fn(u32, Transfers) -> FileUse) -> JobProfile,
) {
    let makers: [fn(u32, Transfers) -> FileUse; 2] = [read_by, written_by];
    for (trigger, maker) in triggers.into_iter().zip(makers) {
        let finding = at_threshold(trigger, &fires(maker), &below(maker));
        assert!(!finding.evidence.is_empty());
    }
}

#[test]
fn calls_and_bytes_dominate_from_a_tenth_more() {
    let mixed = |reads: Transfers, writes: Transfers| {
        with_file(job(1), vec![FileUse { reads, writes, ..FileUse::default() }])
    };
    let of = |number| transfers(number, MIB);
    at_threshold("mostly-write-calls", &mixed(of(100), of(123)), &mixed(of(100), of(122)));
    at_threshold("mostly-read-calls", &mixed(of(123), of(100)), &mixed(of(122), of(100)));
    at_threshold("mostly-writes", &mixed(of(100), of(123)), &mixed(of(100), of(122)));
    at_threshold("mostly-reads", &mixed(of(123), of(100)), &mixed(of(122), of(100)));
    // Many small reads beside one large write: calls are mostly reads, bytes mostly writes.
    let apart = mixed(transfers(500, 1000), of(1));
    assert!(
        found(&apart, "mostly-read-calls").is_some() && found(&apart, "mostly-writes").is_some()
    );
}

#[test]
fn a_thousand_small_transfers_are_many() {
    both(
        ["small-reads", "small-writes"],
        |maker| with_file(job(1), vec![maker(0, transfers(1001, MIB - 1))]),
        |maker| with_file(job(1), vec![maker(0, transfers(1000, MIB - 1))]),
    );
    // Beside ten times as many large ones they are few.
    both(
        ["small-reads", "small-writes"],
        |maker| {
            with_file(
                with_file(job(1), vec![maker(0, transfers(1100, 4096))]),
                vec![maker(0, transfers(9800, 2 * MIB))],
            )
        },
        |maker| {
            with_file(
                with_file(job(1), vec![maker(0, transfers(1100, 4096))]),
                vec![maker(0, transfers(9900, 2 * MIB))],
            )
        },
    );
}

#[test]
fn transfers_of_files_without_an_entry_count_by_their_sizes() {
    let of = |number| {
        let mut one = job(1);
        one.ranks[0].other_reads = Transfers { misaligned: number, ..transfers(number, 5000) };
        one.ranks[0].other_writes = transfers(number, 5000);
        one
    };
    for trigger in ["small-reads", "small-writes", "misaligned-reads"] {
        at_threshold(trigger, &of(1001), &of(1000));
    }
    // They alternate between files, which is no order.
    let mut mixed = of(3000);
    mixed.ranks[0].other_reads.consecutive = 0;
    assert_eq!(found(&mixed, "random-reads"), None);
}

#[test]
fn small_transfers_of_shared_files_are_told_apart() {
    both(
        ["small-reads-of-shared-file", "small-writes-of-shared-file"],
        |maker| {
            with_file(job(2), vec![maker(0, transfers(501, 4096)), maker(1, transfers(500, 4096))])
        },
        |maker| {
            with_file(job(2), vec![maker(0, transfers(500, 4096)), maker(1, transfers(500, 4096))])
        },
    );
    let own = with_file(
        with_file(job(2), vec![written_by(0, transfers(5000, 4096))]),
        vec![written_by(1, transfers(5000, 4096))],
    );
    assert_eq!(found(&own, "small-writes-of-shared-file"), None, "each has its own file");
}

#[test]
fn misaligned_transfers_are_found() {
    let of = |number| Transfers { misaligned: number, ..transfers(5000, 2 * MIB) };
    both(
        ["misaligned-reads", "misaligned-writes"],
        |maker| with_file(job(1), vec![maker(0, of(1001))]),
        |maker| with_file(job(1), vec![maker(0, of(1000))]),
    );
    both(
        ["misaligned-reads", "misaligned-writes"],
        |maker| {
            with_file(
                job(1),
                vec![maker(0, Transfers { misaligned: 1101, ..transfers(11_000, MIB) })],
            )
        },
        |maker| {
            with_file(
                job(1),
                vec![maker(0, Transfers { misaligned: 1100, ..transfers(11_000, MIB) })],
            )
        },
    );
}

#[test]
fn bytes_moved_more_than_once_are_found() {
    let of = |highest| Transfers { highest, ..transfers(110, MIB) };
    both(
        ["repeated-reads", "repeated-writes"],
        |maker| with_file(job(1), vec![maker(0, of(99 * MIB))]),
        |maker| with_file(job(1), vec![maker(0, of(100 * MIB))]),
    );
    // Ranks that share a file are each counted for themselves.
    let shared =
        with_file(job(2), vec![read_by(0, transfers(10, MIB)), read_by(1, transfers(10, MIB))]);
    assert_eq!(found(&shared, "repeated-reads"), None);
}

#[test]
fn random_access_is_found_and_order_is_praised() {
    let of = |random: u64, number: u64| Transfers {
        consecutive: number - 1 - random,
        ..transfers(number, 2 * MIB)
    };
    both(
        ["random-reads", "random-writes"],
        |maker| with_file(job(1), vec![maker(0, of(1001, 5000))]),
        |maker| with_file(job(1), vec![maker(0, of(1000, 4999))]),
    );
    both(
        ["random-reads", "random-writes"],
        |maker| with_file(job(1), vec![maker(0, of(2001, 10_000))]),
        |maker| with_file(job(1), vec![maker(0, of(2000, 10_000))]),
    );
    both(
        ["ordered-reads", "ordered-writes"],
        |maker| with_file(job(1), vec![maker(0, of(200, 1001))]),
        |maker| with_file(job(1), vec![maker(0, of(0, 1000))]),
    );
}

#[test]
fn unequal_ranks_are_found() {
    both(
        ["unequal-reads", "unequal-writes"],
        |maker| {
            with_file(
                with_file(job(2), vec![maker(0, transfers(100, MIB))]),
                vec![maker(1, transfers(69, MIB))],
            )
        },
        |maker| {
            with_file(
                with_file(job(2), vec![maker(0, transfers(100, MIB))]),
                vec![maker(1, transfers(70, MIB))],
            )
        },
    );
    both(
        ["unequal-reads-of-shared-file", "unequal-writes-of-shared-file"],
        |maker| {
            with_file(job(2), vec![maker(0, transfers(100, MIB)), maker(1, transfers(84, MIB))])
        },
        |maker| {
            with_file(job(2), vec![maker(0, transfers(100, MIB)), maker(1, transfers(85, MIB))])
        },
    );
    // One rank collects for four: even work takes a quarter of its time.
    let collector = with_file(job(4), vec![written_by(0, transfers(4000, MIB))]);
    let saves = found(&collector, "unequal-writes").and_then(|finding| finding.saves_seconds);
    assert_eq!(saves, Some(3.0));
}

#[test]
fn little_and_the_processes_of_a_script_are_no_findings() {
    let of = |size| {
        let one = with_file(job(2), vec![written_by(0, transfers(100, size))]);
        with_file(one, vec![FileUse { opens: 1, ..written_by(1, transfers(1, 10)) }])
    };
    assert_eq!(found(&of(1000), "unequal-writes"), None, "100 kB");
    assert!(found(&of(MIB), "unequal-writes").is_some());
    let mut script = of(MIB);
    script.ranks[1].program = "sh".to_string();
    assert_eq!(found(&script, "unequal-writes"), None, "a shell and its tool");
    let again = Transfers { highest: 9, ..transfers(1, 6) };
    assert_eq!(found(&with_file(job(1), vec![read_by(0, again)]), "repeated-reads"), None);
    let again = Transfers { highest: 6, ..transfers(3, 6) };
    assert_eq!(
        found(&with_file(job(1), vec![read_by(0, again)]), "repeated-reads"),
        None,
        "12 bytes"
    );
}

#[test]
fn slow_ranks_of_shared_files_are_found() {
    let of = |seconds| Transfers { seconds, ..transfers(100, MIB) };
    both(
        ["slow-rank-reads", "slow-rank-writes"],
        |maker| with_file(job(2), vec![maker(0, of(10.0)), maker(1, of(8.4))]),
        |maker| with_file(job(2), vec![maker(0, of(10.0)), maker(1, of(8.6))]),
    );
}

#[test]
fn long_metadata_is_found() {
    let of = |seconds| {
        let mut one = job(2);
        one.ranks[1].metadata = operations(100_000, 0, seconds);
        one
    };
    let finding = at_threshold("long-metadata", &of(30.1), &of(30.0));
    assert!(finding.evidence.contains("rank 1"), "{}", finding.evidence);
    assert!(finding.saves_seconds.is_some_and(|saved| (saved - 29.1).abs() < 1e-9), "{finding:?}");
}

#[test]
fn absent_names_are_found() {
    let of = |absent, number| {
        let mut one = job(1);
        one.ranks[0].metadata = operations(number, 0, 10.0);
        one.ranks[0].absent = absent;
        one
    };
    at_threshold("absent-names", &of(1001, 5000), &of(1000, 4000));
    at_threshold("absent-names", &of(2001, 10_000), &of(2000, 10_000));
}

#[test]
fn small_files_read_whole_are_found() {
    let of = |number| {
        let mut one = job(1);
        one.ranks[0].small_files_read = number;
        one
    };
    at_threshold("whole-small-files", &of(1001), &of(1000));
}

#[test]
fn a_hot_directory_is_found() {
    let of = |here: u64, number: u64, ranks: u32| {
        let mut one = job(ranks);
        one.ranks[0].metadata = operations(number, 0, 10.0);
        one.directories.push(DirectoryProfile { path: "/out".to_string(), operations: here });
        one
    };
    at_threshold("hot-directory", &of(500_100, 1_000_000, 2), &of(500_000, 1_000_000, 2));
    at_threshold("hot-directory", &of(500_100, 600_000, 2), &of(500_000, 600_000, 2));
    assert_eq!(
        found(&of(900_000, 1_000_000, 1), "hot-directory"),
        None,
        "one rank disturbs nobody"
    );
}

#[test]
fn a_sync_after_each_write_is_found() {
    let of = |syncs, writes| {
        let uses = vec![FileUse { syncs, ..written_by(0, transfers(writes, 4096)) }];
        let mut one = with_file(job(1), uses);
        one.ranks[0].syncs = operations(syncs, 0, 5.0);
        one
    };
    at_threshold("sync-after-each-write", &of(101, 101), &of(100, 100));
    at_threshold("sync-after-each-write", &of(500, 1000), &of(499, 1000));
}

#[test]
fn files_opened_again_and_again_are_found() {
    let of = |opens, number| {
        with_file(job(1), vec![FileUse { opens, ..read_by(0, transfers(number, 4096)) }])
    };
    at_threshold("reopened-files", &of(1001, 1001), &of(1000, 1000));
    at_threshold("reopened-files", &of(1001, 2002), &of(1001, 2003));
}

#[test]
fn cold_reads_are_found() {
    let of = |backing| JobProfile {
        read_tiers: TierBytes { memory: 1000 - backing, backing, ..TierBytes::default() },
        waits: WaitSeconds { backing: 8.0, ..WaitSeconds::default() },
        ..job(1)
    };
    assert_eq!(
        at_threshold("cold-reads", &of(101), &of(100)).saves_seconds.map(f64::round),
        Some(8.0)
    );
}

#[test]
fn dirty_files_at_the_end_are_found() {
    let of = |dirty_files| JobProfile {
        backing: BackingTraffic { dirty_files, ..BackingTraffic::default() },
        ..job(1)
    };
    at_threshold("dirty-at-end", &of(1), &of(0));
    assert_eq!(
        found(&JobProfile { is_complete: false, ..of(1) }, "dirty-at-end"),
        None,
        "it still runs"
    );
}

#[test]
fn waits_for_space_are_found() {
    let of = |admission| JobProfile {
        waits: WaitSeconds { admission, ..WaitSeconds::default() },
        ..job(4)
    };
    assert_eq!(at_threshold("waits-for-space", &of(4.1), &of(4.0)).saves_seconds, Some(1.025));
}

#[test]
fn files_never_in_memory_are_found() {
    let of = |ssd, memory| {
        let mut one = with_file(job(1), vec![read_by(0, transfers(100, MIB))]);
        one.files[0].read_tiers = TierBytes { ssd, memory, ..TierBytes::default() };
        one
    };
    at_threshold("never-in-memory", &of(300 * MIB, 0), &of(300 * MIB - 1, 0));
    at_threshold("never-in-memory", &of(300 * MIB, 0), &of(300 * MIB, 1));
}

#[test]
fn remote_reads_are_found() {
    let of = |remote| {
        let tiers = TierBytes { memory: 1000 - remote, remote, ..TierBytes::default() };
        JobProfile { read_tiers: tiers, ..job(1) }
    };
    at_threshold("remote-reads", &of(301), &of(300));
}

#[test]
fn a_job_below_its_share_is_found() {
    let of = |share| JobProfile { share, ..job(1) };
    at_threshold("below-its-share", &of(Some(0.79)), &of(Some(0.8)));
    assert_eq!(found(&of(None), "below-its-share"), None);
    let held = |throttled| {
        let mut one =
            JobProfile { waits: WaitSeconds { throttled, ..WaitSeconds::default() }, ..job(1) };
        one.ranks[0].writes = operations(10, 10, 10.0);
        one
    };
    at_threshold("held-back", &held(5.1), &held(5.0));
}

#[test]
fn writeback_beside_a_job_is_found() {
    let of = |written_beside| {
        let backing = BackingTraffic { written_beside, ..BackingTraffic::default() };
        let mut one = JobProfile { backing, ..job(1) };
        one.ranks[0].writes = operations(10, 700, 1.0);
        one
    };
    at_threshold("writeback-beside", &of(301), &of(300));
}

#[test]
fn repaired_data_is_found() {
    let of = |repaired| JobProfile {
        backing: BackingTraffic { repaired, ..BackingTraffic::default() },
        ..job(1)
    };
    at_threshold("repaired-data", &of(1), &of(0));
}

#[test]
fn damage_that_cannot_be_repaired_is_found() {
    let of = |damaged| JobProfile {
        backing: BackingTraffic { damaged, ..BackingTraffic::default() },
        ..job(1)
    };
    at_threshold("damaged-data", &of(1), &of(0));
}

#[test]
fn a_job_that_another_disturbs_is_found() {
    let one = |by: &str, slowdown, seconds| Disturbance {
        host: "node1".into(),
        by: by.into(),
        slowdown,
        by_bytes_per_second: 1e9,
        seconds,
    };
    let of = |disturbances| JobProfile { disturbances, ..job(1) };
    let both = of(vec![one("short", 10.0, 1.0), one("long", 4.0, 8.0)]);
    let finding = at_threshold("disturbed-by-job", &both, &of(vec![]));
    assert_eq!(finding.saves_seconds, Some(6.0), "three quarters of 8 s");
    assert!(finding.evidence.contains("job long moved"), "{}", finding.evidence);
}

#[test]
fn tiers_that_thrashed_are_found_with_the_size_that_suffices() {
    let of = |thrashing| {
        let mut one = JobProfile { thrashing, ..job(2) };
        // 1 GB at 1 GB/s would take a second of the 9.
        one.ranks[0].reads = operations(10, 1_000_000_000, 9.0);
        one
    };
    let bytes = ThrashingBytes {
        seconds: 30.0,
        fetched: 100 << 20,
        refetched: 75 << 20,
        tiers: 16 << 20,
        sufficient: 48 << 20,
        ..ThrashingBytes::default()
    };
    let finding = at_threshold("thrashing", &of(Some(bytes)), &of(None));
    assert_eq!(finding.saves_seconds, Some(3.0), "three quarters of 8 s of two ranks");
    assert!(finding.change.starts_with("about 48.0 MiB of memory"), "{}", finding.change);
    assert!(finding.evidence.contains("75.0 MiB of them again"), "{}", finding.evidence);
    let unread = ThrashingBytes { prefetched: 90, discarded: 50, sufficient: 0, ..bytes };
    let finding = at_threshold("thrashing", &of(Some(unread)), &of(None));
    assert!(finding.change.starts_with("prefetch less"), "{}", finding.change);
}

#[test]
fn a_slow_host_is_found() {
    // Four hosts move as much; the last in as many spans as its rate is lower.
    let of = |slow: u64| {
        let mut one = job(4);
        let spans = 100 / slow;
        for at in 0..spans {
            let fast = if at == 0 { 100 * MIB } else { 0 };
            one.timeline.push(Span { read: vec![], written: vec![fast, fast, fast, slow * MIB] });
        }
        one.seconds = spans as f64;
        one
    };
    let finding = at_threshold("slow-hosts", &of(40), &of(50));
    assert!(finding.evidence.starts_with("node3 "), "{}", finding.evidence);
}

#[test]
fn findings_name_the_worst_files_first() {
    let mut one = job(1);
    for number in [2000, 9000, 1000, 4000, 3000, 5000, 6000] {
        one = with_file(one, vec![read_by(0, transfers(number, 4096))]);
    }
    let finding = found(&one, "small-reads").unwrap();
    assert_eq!(finding.files.len(), FILES_NAMED);
    assert_eq!(finding.files[..2], ["/file1", "/file6"]);
}

#[test]
fn accesses_to_the_backing_store_that_fail_are_found() {
    let with = |failed: u64| JobProfile {
        backing_reads: BackingAccesses { number: 40, failed, ..BackingAccesses::default() },
        ..job(1)
    };
    let found =
        |job: &JobProfile| advise(job).into_iter().find(|one| one.trigger == "backing-failures");
    assert_eq!(found(&with(0)), None);
    let finding = found(&with(3)).expect("a finding");
    assert!(finding.evidence.starts_with("3 of 40 reads"), "{}", finding.evidence);
}
