//! Requests for what jobs did. Each is answered by a thread of its own: an answer may be megabytes
//! long, and its reader slow.

use crate::host::activity::HostActivity;
use crate::host::activity::gather::Check;
use crate::host::activity::jobs::CopiedFiles;
use crate::host::activity::names;
use crate::host::activity::rates::MeasuredTimes;
use crate::shared::Shared;
use config::activity::access_times::FileTimes;
use config::activity::{ActivityAnswer, JobSummary};
use std::io::{BufWriter, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Answers at the same time. Others find the connection closed, and ask again.
const ANSWERS_MAX: u32 = 4;
/// Longest wait for a reader.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that are written at once.
const BUFFER_BYTES: usize = 64 << 10;

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

fn write(stream: UnixStream, answer: &ActivityAnswer) {
    let prepared =
        stream.set_nonblocking(false).and_then(|()| stream.set_write_timeout(Some(WRITE_TIMEOUT)));
    // Through a buffer: the text of a large job is longer than its profile.
    let mut to = BufWriter::with_capacity(BUFFER_BYTES, stream);
    let written = prepared
        .and_then(|()| Ok(serde_json::to_writer(&mut to, answer)?))
        .and_then(|()| to.write_all(b"\n"))
        .and_then(|()| to.flush());
    if let Err(error) = written {
        tracing::debug!(%error, "cannot write what jobs did");
        // Nothing more is written when it is dropped: each attempt may take its time.
        let _ = to.into_parts();
    }
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
