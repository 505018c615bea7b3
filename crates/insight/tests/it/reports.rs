//! Reports in their forms: bounded, self-contained, and safe to show whatever names files have.

use insight::comparison::compare;
use insight::profile::{
    FileProfile, FileUse, JobProfile, Operations, RankProfile, Rates, Span, Transfers,
};
use insight::report::Report;

/// A job in which each rank writes its own file, in small transfers.
fn checkpoint(ranks: u32, number: u64, path: impl Fn(u32) -> String) -> JobProfile {
    let bytes = number * 4096;
    let mut job = JobProfile {
        job: "4711".to_string(),
        user: "ada".to_string(),
        command: "mpirun ./sim input.nml".to_string(),
        seconds: 60.0,
        is_complete: true,
        hosts: vec!["node0".to_string(), "node1".to_string()],
        rates: Rates { local_bytes: 1e9, call_seconds: 1e-4, name_seconds: 1e-5 },
        ..JobProfile::default()
    };
    for rank in 0..ranks {
        let writes = Operations { number, bytes, seconds: 20.0 };
        job.ranks.push(RankProfile { rank, host: rank % 2, writes, ..RankProfile::default() });
        let mut transfers =
            Transfers { number, bytes, seconds: 20.0, highest: bytes, ..Transfers::default() };
        transfers.sizes[2] = number;
        transfers.consecutive = number - 1;
        let uses = vec![FileUse { rank, opens: 1, writes: transfers, ..FileUse::default() }];
        job.files.push(FileProfile {
            path: path(rank),
            size: bytes,
            uses,
            ..FileProfile::default()
        });
    }
    for at in 0..60_u64 {
        let written =
            (0..u64::from(ranks)).map(|rank| (at * 7 + rank * 3) % 11 * 1_000_000).collect();
        job.timeline.push(Span { read: Vec::new(), written });
    }
    job
}

#[test]
fn the_text_says_what_to_change_and_what_it_saves() {
    let text = Report::new(checkpoint(4, 100_000, |rank| format!("/out/part{rank}"))).text();
    for expected in [
        "Job 4711 of ada: mpirun ./sim input.nml",
        "60 s on 2 hosts, 4 processes, 4 files",
        "writes N-N",
        "high small-writes: 400,000 of 400,000 writes (100 %) move less than 1 MiB; the mean is 4.0 KiB",
        "(saves about 10 s)",
        "/out/part0",
        "  write              400,000      1.5 GiB   20 s",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in\n{text}");
    }
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn a_page_of_many_ranks_is_small_and_refers_to_nothing() {
    let job = checkpoint(1024, 100_000, |rank| {
        format!("/out/a/long/directory/of/a/checkpoint/part{rank:05}")
    });
    let page = Report::new(job).page();
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
    for reference in ["http:", "https:", "src=", "href=", "url(", "@import", "fetch("] {
        assert!(!page.contains(reference), "{reference}");
    }
    assert!(page.contains("small-writes") && page.contains("id=\"heat\""));
    assert!(page.contains(" 0 backwards,"), "a first transfer does not go backwards");
}

#[test]
fn names_are_no_markup_and_no_terminal_commands() {
    let job = checkpoint(1, 2000, |_| "/<script>alert('1')</script>\u{1b}[2J\"&".to_string());
    let job = JobProfile { job: "</title><b>".to_string(), command: "a\nb<i>".to_string(), ..job };
    let report = Report::new(job);
    let page = report.page();
    assert!(
        !page.contains("alert('1')") && !page.contains("</title><b>") && !page.contains("<i>\n")
    );
    assert!(page.contains("&lt;script&gt;") && page.contains("&lt;/title&gt;"));
    assert_eq!(page.matches("<script>").count(), 1);
    assert!(!page.contains('\u{1b}') && !report.text().contains('\u{1b}'));
    assert!(report.text().contains("a\u{fffd}b<i>"));
}

#[test]
fn an_empty_or_broken_profile_has_a_report() {
    let empty = Report::new(JobProfile::default());
    assert!(empty.text().contains("was killed or has not ended"));
    assert!(empty.page().contains("None."));
    // Indices of ranks and hosts that are not there, and numbers at their ends.
    let transfers =
        Transfers { number: 1, bytes: u64::MAX, consecutive: u64::MAX, ..Transfers::default() };
    let uses =
        vec![FileUse { rank: 77, reads: transfers, writes: transfers, ..FileUse::default() }; 3];
    let file = FileProfile { uses, ..FileProfile::default() };
    let span = Span { read: vec![u64::MAX; 9], written: vec![u64::MAX; 9] };
    let broken = JobProfile {
        seconds: f64::NAN,
        ranks: vec![RankProfile { host: 9, ..RankProfile::default() }],
        files: vec![file.clone(), file],
        timeline: vec![span.clone(), span],
        is_sampled: true,
        ..JobProfile::default()
    };
    let report = Report::new(broken);
    assert!(report.text().contains("estimates from samples"));
    assert!(report.page().contains("</html>"));
}

#[test]
fn json_is_read_again() {
    let job = checkpoint(2, 2000, |rank| format!("/{rank}"));
    let json = serde_json::to_value(Report::new(job.clone())).unwrap();
    assert_eq!(json["write_pattern"]["pattern"], "N-N");
    assert_eq!(json["findings"][0]["severity"], "high");
    let again: JobProfile = serde_json::from_value(json["profile"].clone()).unwrap();
    assert_eq!(again, job);
    // A profile of an earlier version lacks fields.
    let partial: JobProfile =
        serde_json::from_str(r#"{"job": "1", "files": [{"path": "/a"}]}"#).unwrap();
    assert_eq!(partial.files[0].path, "/a");
}

#[test]
fn two_runs_are_compared() {
    let first = Report::new(checkpoint(2, 100_000, |rank| format!("/{rank}")));
    let mut better = checkpoint(2, 100, |rank| format!("/{rank}"));
    better.seconds = 30.0;
    let comparison = compare(&first, &Report::new(better));
    assert_eq!(comparison.figures[0].ratio, Some(0.5));
    assert!(comparison.gone.contains(&"small-writes") && comparison.new.is_empty());
    let text = comparison.text();
    assert!(
        text.contains("run time") && text.contains("0.50") && text.contains("no longer found: "),
        "{text}"
    );
}
