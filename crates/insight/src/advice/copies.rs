//! Copies of file data: results that a death of a node would take.

use super::{Finding, Severity};
use crate::profile::{FileProfile, FileUse, JobProfile};
use crate::text;

/// Results of fewer bytes are soon made again.
const MUCH: u64 = 64 << 20;

/// Words in the names of files and directories with checkpoints.
const WORDS: [&str; 4] = ["checkpoint", "ckpt", "chkpt", "restart"];

/// On several hosts, checkpoints and other results that the job kept have one copy, and nothing writes
/// them back. Results are what ranks wrote that also synced: a program syncs what it wants to have
/// after a fault.
pub(super) fn advise(job: &JobProfile, findings: &mut Vec<Finding>) {
    let Some(kept) = job.copies.as_ref().filter(|it| it.hosts > 1 && !it.is_written_back) else {
        return;
    };
    let syncs =
        |one: &FileUse| job.ranks.get(one.rank as usize).is_some_and(|it| it.syncs.number > 0);
    let is_result = |file: &FileProfile| {
        let path = file.path.to_ascii_lowercase();
        WORDS.iter().any(|word| path.contains(word))
            || file.uses.iter().any(|one| one.writes.bytes > 0 && syncs(one))
    };
    let written = |file: &FileProfile| file.uses.iter().map(|one| one.writes.bytes).sum::<u64>();
    let is_single = |file: &FileProfile| kept.replicas == 1 || kept.single.contains(&file.path);
    let single = job.files.iter().filter(|file| !file.is_removed && is_single(file));
    let results = single.filter(|file| written(file) > 0 && is_result(file));
    let marked: Vec<_> = results.map(|file| (written(file), file.path.as_str())).collect();
    let bytes: u64 = marked.iter().map(|(bytes, _)| bytes).sum();
    if bytes < MUCH {
        return;
    }
    let evidence = format!(
        "checkpoints or synced results, {} in {}, have one copy, on {} hosts: the death of a host takes \
         its part of them",
        text::bytes(bytes),
        text::plural(marked.len() as u64, "file", "files"),
        text::count(kept.hosts)
    );
    let change = if kept.replicas > 1 {
        "give their directory the copies of the instance: forebay layout set --replicas 2 DIR"
    } else {
        "start with --followers 1 --replicas 2, or stage them out: forebay stage out"
    };
    let finding = Finding::new("one-copy-of-results", Severity::Warn, evidence, change);
    findings.push(finding.naming(marked));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{InstanceCopies, Operations, RankProfile, Transfers};

    fn job(copies: InstanceCopies, path: &str, syncs: u64, bytes: u64) -> JobProfile {
        let syncs = Operations { number: syncs, ..Operations::default() };
        let writes = Transfers { number: 1, bytes, ..Transfers::default() };
        let file = FileProfile {
            path: path.to_owned(),
            uses: vec![FileUse { writes, ..FileUse::default() }],
            ..FileProfile::default()
        };
        JobProfile {
            copies: Some(copies),
            ranks: vec![RankProfile { syncs, ..RankProfile::default() }],
            files: vec![file],
            ..JobProfile::default()
        }
    }

    fn findings(job: &JobProfile) -> Vec<Finding> {
        let mut findings = Vec::new();
        advise(job, &mut findings);
        findings
    }

    #[test]
    fn results_with_one_copy_on_several_hosts_are_in_danger() {
        let one = InstanceCopies { hosts: 4, replicas: 1, ..InstanceCopies::default() };
        let found = findings(&job(one.clone(), "/out/field", 1, MUCH));
        assert_eq!(
            found[0].evidence,
            "checkpoints or synced results, 64.0 MiB in 1 file, have one copy, on 4 hosts: the death \
             of a host takes its part of them"
        );
        assert!(found[0].change.contains("--replicas 2") && found[0].files == ["/out/field"]);
        // By its name, where nothing was synced.
        assert_eq!(findings(&job(one.clone(), "/Checkpoints/7/rank0", 0, MUCH)).len(), 1);
        let two = InstanceCopies { replicas: 2, ..one.clone() };
        let single = ["/out/field".to_owned()].into();
        let in_scratch = InstanceCopies { single, ..two.clone() };
        assert!(findings(&job(in_scratch, "/out/field", 1, MUCH))[0].change.contains("layout set"));

        let mut removed = job(one.clone(), "/out/field", 1, MUCH);
        removed.files[0].is_removed = true;
        for safe in [
            job(one.clone(), "/scratch/field", 0, MUCH),
            job(one.clone(), "/out/field", 1, MUCH - 1),
            job(InstanceCopies { hosts: 1, ..one.clone() }, "/out/field", 1, MUCH),
            job(InstanceCopies { is_written_back: true, ..one.clone() }, "/out/field", 1, MUCH),
            removed,
            job(two, "/out/field", 1, MUCH),
            JobProfile { copies: None, ..job(one.clone(), "/out/field", 1, MUCH) },
        ] {
            assert_eq!(findings(&safe), []);
        }
    }
}
