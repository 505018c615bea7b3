//! Requests for what jobs did. An answer may be megabytes long.

use crate::host::activity::HostActivity;
use crate::host::activity::gather::Check;
use crate::host::activity::jobs::CopiedFiles;
use crate::host::activity::names;
use crate::host::activity::rates::MeasuredTimes;
use crate::sessions::long_answers::LongAnswer;
use crate::shared::Shared;
use config::activity::access_times::FileTimes;
use config::activity::{ActivityAnswer, JobSummary};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

static ANSWER: LongAnswer = LongAnswer {
    name: "answer",
    subject: "what jobs did",
    at_once_max: 4,
    count: |shared| shared.host.activity.as_ref().map(|activity| &activity.answers),
};

/// Answers with all jobs in short (`word` is 0), or with those that have this `job_word`.
pub(crate) fn answer(shared: &Arc<Shared>, stream: UnixStream, word: u32) {
    if shared.host.activity.is_none() {
        // The home daemon of the host has them.
        let backing = backing(shared, word);
        return ANSWER.write(stream, &ActivityAnswer { backing, ..ActivityAnswer::default() });
    }
    ANSWER.give(shared, stream, move |shared| {
        let activity = shared.host.activity.as_ref();
        let mut answer = activity.map(|activity| activity.answer(word)).unwrap_or_default();
        let profiles = answer.profiles.iter_mut();
        profiles.for_each(|profile| names::name_files(shared, profile));
        answer.backing = backing(shared, word);
        answer
    });
}

/// This daemon's reads of the backing store by file, if a job is asked for.
fn backing(shared: &Shared, word: u32) -> Vec<FileTimes> {
    if word == 0 { Vec::new() } else { shared.metrics.accesses() }
}

impl HostActivity {
    fn answer(&self, word: u32) -> ActivityAnswer {
        let mut gatherer = self.gatherer();
        gatherer.pass(self, Check::Thoroughly);
        let gatherer = &*gatherer;
        let forgotten = gatherer.forgotten();
        let mut answer = ActivityAnswer { forgotten, ..ActivityAnswer::default() };
        if word == 0 {
            gatherer.each_job(self, CopiedFiles::Merged, |job| {
                answer.jobs.push(JobSummary::of(&job.profile()));
            });
            return answer;
        }
        let mut times = MeasuredTimes::default();
        gatherer.each_job(self, CopiedFiles::Each, |job| {
            times.add(job.processes(), job.transfers());
            if job.is_of(word) {
                let mut profile = job.profile();
                gatherer.spans.complete(&mut profile);
                answer.profiles.push(profile);
            }
        });
        answer.rates = times.rates();
        answer
    }
}
