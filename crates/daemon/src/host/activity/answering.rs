//! Requests for what jobs did. Each is answered by a thread of its own: an answer may be megabytes
//! long, and its reader slow.

use crate::host::activity::HostActivity;
use crate::host::activity::gather::Check;
use crate::host::activity::{names, rates};
use crate::shared::Shared;
use config::activity::access_times::FileTimes;
use config::activity::{ActivityAnswer, JobProfile, JobSummary};
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use wire::welcome::job_word;

/// Answers at the same time. Others find the connection closed, and ask again.
const ANSWERS_MAX: u32 = 4;
/// Longest wait for a reader.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers with all jobs in short (`word` is 0), or with those that have this `job_word`.
pub(crate) fn answer(shared: &Arc<Shared>, stream: UnixStream, word: u32) {
    let Some(activity) = &shared.host.activity else {
        // The home daemon of the host has them.
        let backing = backing(shared, word);
        return write(stream, &ActivityAnswer { backing, ..ActivityAnswer::default() });
    };
    if activity.answers.fetch_add(1, Relaxed) >= ANSWERS_MAX {
        activity.answers.fetch_sub(1, Relaxed);
        return;
    }
    let in_thread = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("answer".to_owned());
    let spawned = thread.spawn(move || {
        if let Some(activity) = &in_thread.host.activity {
            let mut answer = activity.answer(word);
            let profiles = answer.profiles.iter_mut();
            profiles.for_each(|profile| names::name_files(&in_thread, profile));
            answer.backing = backing(&in_thread, word);
            write(stream, &answer);
            activity.answers.fetch_sub(1, Relaxed);
        }
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "cannot answer what jobs did");
        activity.answers.fetch_sub(1, Relaxed);
    }
}

/// This daemon's reads of the backing store by file, if a job is asked for.
fn backing(shared: &Shared, word: u32) -> Vec<FileTimes> {
    if word == 0 { Vec::new() } else { shared.metrics.accesses() }
}

fn write(mut stream: UnixStream, answer: &ActivityAnswer) {
    // It has no map with other keys than text, so that it can always be written.
    let line = serde_json::to_string(answer).unwrap_or_default() + "\n";
    let written = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_write_timeout(Some(WRITE_TIMEOUT)))
        .and_then(|()| stream.write_all(line.as_bytes()));
    if let Err(error) = written {
        tracing::debug!(%error, "cannot write what jobs did");
    }
}

impl HostActivity {
    fn answer(&self, word: u32) -> ActivityAnswer {
        let (forgotten, all) = {
            let mut gatherer = self.gatherer();
            gatherer.pass(self, Check::Thoroughly);
            let jobs = gatherer.snapshot(self);
            let (forgotten, mut all) = (jobs.forgotten, jobs.profiles());
            let is_it = |profile: &&mut JobProfile| job_word(profile.job.as_bytes()) == word;
            all.iter_mut().filter(is_it).for_each(|profile| gatherer.spans.complete(profile));
            (forgotten, all)
        };
        if word == 0 {
            let jobs = all.iter().map(JobSummary::of).collect();
            return ActivityAnswer { jobs, forgotten, ..ActivityAnswer::default() };
        }
        let rates = rates::measured(&all);
        let is_it = |profile: &JobProfile| job_word(profile.job.as_bytes()) == word;
        let profiles = all.into_iter().filter(is_it).collect();
        ActivityAnswer { profiles, rates, forgotten, ..ActivityAnswer::default() }
    }
}
