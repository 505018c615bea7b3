//! The figures of a job as comma-separated values (RFC 4180), for spreadsheets and programs: one row for
//! each file and rank.

use crate::profile::{JobProfile, Transfers};
use std::fmt::Write as _;
use wire::job::SIZE_CLASSES;

/// Names of the columns of the reads, and of the writes, without `read_` and `write_`.
const TRANSFERS: [&str; 8] = [
    "number",
    "bytes",
    "seconds",
    "consecutive",
    "sequential",
    "misaligned",
    "lowest_offset",
    "highest_offset",
];

/// The rows of a job, with their heads. Files that have no entry are one row for each rank, with an empty
/// path.
#[must_use]
pub fn rows(job: &JobProfile) -> String {
    let mut text = String::from("job,path,rank,host,program,opens,metadata_seconds,syncs,size");
    for way in ["read", "write"] {
        let sizes = (0..SIZE_CLASSES).map(|class| format!("size_class_{class}"));
        for name in TRANSFERS.iter().map(|name| (*name).to_owned()).chain(sizes) {
            // A string takes any text.
            let _ = write!(text, ",{way}_{name}");
        }
    }
    text.push_str("\r\n");
    for file in &job.files {
        for one in &file.uses {
            let begin = begin(job, &file.path, one.rank);
            let figures =
                format!("{},{},{},{}", one.opens, one.metadata_seconds, one.syncs, file.size);
            let _ = write!(text, "{begin},{figures}");
            push_transfers(&mut text, [&one.reads, &one.writes]);
        }
    }
    for (place, rank) in job.ranks.iter().enumerate() {
        if rank.other_reads.number + rank.other_writes.number > 0 {
            let place = u32::try_from(place).unwrap_or(u32::MAX);
            let _ = write!(text, "{},,,,", begin(job, "", place));
            push_transfers(&mut text, [&rank.other_reads, &rank.other_writes]);
        }
    }
    text
}

/// The first columns of a row of the rank with this index.
fn begin(job: &JobProfile, path: &str, place: u32) -> String {
    let rank = usize::try_from(place).ok().and_then(|place| job.ranks.get(place));
    let host = rank.and_then(|rank| job.hosts.get(usize::try_from(rank.host).ok()?));
    let number = rank.map(|rank| rank.rank.to_string()).unwrap_or_default();
    let program = rank.map_or("", |rank| rank.program.as_str());
    let host = host.map_or("", String::as_str);
    [&job.job, path, &number, host, program].map(quoted).join(",")
}

fn push_transfers(text: &mut String, both: [&Transfers; 2]) {
    for one in both {
        let Transfers { number, bytes, seconds, consecutive, sequential, misaligned, .. } = one;
        let _ = write!(text, ",{number},{bytes},{seconds},{consecutive},{sequential},{misaligned}");
        let _ = write!(text, ",{},{}", one.lowest, one.highest);
        for count in one.sizes {
            let _ = write!(text, ",{count}");
        }
    }
    text.push_str("\r\n");
}

/// A text as one value.
fn quoted(text: &str) -> String {
    let is_special = |one: char| matches!(one, ',' | '"' | '\r' | '\n');
    match text.contains(is_special) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{FileProfile, FileUse, RankProfile};

    #[test]
    fn each_row_has_a_value_for_each_column() {
        let writes = Transfers { number: 3, bytes: 30, seconds: 0.5, ..Transfers::default() };
        let one = |rank: u32| FileUse { rank, opens: 2, writes, ..FileUse::default() };
        let file = |path: &str| FileProfile {
            path: path.into(),
            size: 9,
            uses: vec![one(0), one(1)],
            ..FileProfile::default()
        };
        let rank = RankProfile { program: "sim".into(), ..RankProfile::default() };
        let job = JobProfile {
            job: "a".into(),
            hosts: vec!["c1".into()],
            files: vec![file("/a"), file("/b,\"c\"")],
            ranks: vec![rank.clone(), RankProfile { rank: 7, other_reads: writes, ..rank }],
            ..JobProfile::default()
        };
        let text = rows(&job);
        let lines: Vec<&str> = text.split_terminator("\r\n").collect();
        assert_eq!(lines.len(), 6);
        assert!(lines[1].starts_with("a,/a,0,c1,sim,2,0,0,9,0,0,0,"), "{}", lines[1]);
        assert!(lines[3].starts_with("a,\"/b,\"\"c\"\"\",0,c1,sim,"), "{}", lines[3]);
        assert!(lines[5].starts_with("a,,7,c1,sim,,,,,3,30,0.5,"), "{}", lines[5]);
        let columns = lines[0].split(',').count();
        for line in [1, 2, 5].map(|line| lines[line]) {
            assert_eq!(line.split(',').count(), columns, "{line}");
        }
        // Two commas more are inside of the quotes.
        assert_eq!(lines[3].split(',').count(), columns + 1, "{}", lines[3]);
    }
}
