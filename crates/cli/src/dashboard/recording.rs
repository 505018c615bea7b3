//! Looks at an instance become its history: the load of the instance and of its busiest jobs,
//! events, and the profile of each job when it has ended.
//!
//! One process records an instance on a host: it holds a lock on the directory of the instance, which
//! the kernel releases with the process. Another dashboard only shows. The thread of the recorder writes;
//! this one never waits for it.

use super::events::Event;
use super::model::{Known, Model, top_jobs};
use crate::failure::{Failure, Result};
use crate::instance::jobs;
use crate::instance::recorder;
use crate::state::directories;
use crate::state::history::{HistoryPlace, run_of};
use crate::top::rates::JobRates;
use config::activity::JobSummary;
use history::record::{EventRecord, FIGURES, LoadSample, Record};
use history::recorder::Recorder;
use insight::report::Report;
use std::collections::VecDeque;
use std::fs::File;
use std::time::{Duration, Instant};

/// Jobs whose load is recorded.
const JOBS_MAX: usize = 10;
/// Jobs that have ended and wait until their profile is asked for.
const ENDED_MAX: usize = 256;
/// Profiles asked for after one look: the next look must not be late.
const PROFILES_AT_ONCE: usize = 2;
/// How long profiles are asked for at the end.
const LAST_TIME: Duration = Duration::from_secs(5);

/// Records an instance.
pub(super) struct Recording {
    name: String,
    timeout: Duration,
    recorder: Recorder,
    /// Samples, and events, that were recorded.
    seen: (u64, u64),
    /// Jobs may have ended before the first look. A job that is recorded again replaces itself.
    is_new: bool,
    ended: VecDeque<String>,
    /// Jobs that were not recorded, because too many ended at once.
    missed: u64,
    _lock: File,
}

impl Recording {
    /// Begins to record the instance `name`. `None`: another process of this host does it.
    ///
    /// # Errors
    /// The directory of the instance cannot be opened, or there is no thread.
    pub(super) fn of(
        name: &str,
        timeout: Duration,
        place: HistoryPlace,
    ) -> Result<Option<Recording>> {
        let Some(lock) = recorder::lock(&directories::run(name)?)? else { return Ok(None) };
        let shown = place.text();
        let say = Box::new(move |line: &str| errln!("forebay: {shown}: {line}"));
        let recorder = Recorder::start(Box::new(move || place.open()), say, super::look::now_ms)
            .map_err(|error| Failure::new(format!("cannot start a thread: {error}")))?;
        let (seen, ended, missed) = ((0, 0), VecDeque::new(), 0);
        let (name, is_new) = (name.to_owned(), true);
        Ok(Some(Recording { name, timeout, recorder, seen, is_new, ended, missed, _lock: lock }))
    }

    /// Records what the last look showed, and jobs that have ended.
    pub(super) fn note(&mut self, model: &Model) {
        let ended = self.note_seen(model);
        self.note_ended(ended);
    }

    /// Records what the last look showed. Returns the jobs that have ended since the one before.
    pub(super) fn note_seen(&mut self, model: &Model) -> Vec<String> {
        let known = model.known();
        let (samples, events) = self.seen;
        self.seen = (known.history.last(), known.events.added());
        for event in known.events.since(events) {
            self.recorder.offer(Record::Event(event_record(&self.name, event)));
        }
        if std::mem::take(&mut self.is_new) {
            return jobs_of(&known, |job| job.ended.is_some());
        }
        if known.history.last() == samples {
            return Vec::new();
        }
        for sample in load_of(&self.name, &known) {
            self.recorder.offer(Record::Load(sample));
        }
        ended(&known)
    }

    /// Records jobs that have ended, a few at a time.
    pub(super) fn note_ended(&mut self, jobs: Vec<String>) {
        for job in jobs {
            match self.ended.len() < ENDED_MAX {
                true => self.ended.push_back(job),
                false => self.missed += 1,
            }
        }
        for _ in 0..PROFILES_AT_ONCE {
            self.note_profile();
        }
    }

    /// Records what the last look showed, and all jobs: there is no later one.
    pub(super) fn note_last(&mut self, model: &Model) {
        let ended = self.note_seen(model);
        let running = jobs_of(&model.known(), |job| job.ended.is_none());
        let free = ENDED_MAX.saturating_sub(self.ended.len());
        self.missed += (ended.len() + running.len()).saturating_sub(free) as u64;
        self.ended.extend(ended.into_iter().chain(running).take(free));
        let begun = Instant::now();
        while !self.ended.is_empty() && begun.elapsed() < LAST_TIME {
            self.note_profile();
        }
    }

    /// Records the first of the jobs that have ended.
    fn note_profile(&mut self) {
        let Some(job) = self.ended.pop_front() else { return };
        // A job that the instance forgot since, or that ended with it, has no profile any more.
        match jobs::profile(&self.name, &job, self.timeout) {
            Ok((Some(profile), _)) => match run_of(&self.name, &Report::new(profile)) {
                Ok(run) => drop(self.recorder.offer(Record::Run(Box::new(run)))),
                Err(_) => self.missed += 1,
            },
            _ => self.missed += 1,
        }
    }

    /// Waits until everything is written. Returns the number of records that are lost.
    pub(super) fn finish(self) -> u64 {
        let missed = self.missed + self.ended.len() as u64;
        self.recorder.finish().saturating_add(missed)
    }
}

fn event_record(name: &str, event: &Event) -> EventRecord {
    EventRecord {
        instance: name.to_owned(),
        at_ms: event.at_ms,
        kind: event.kind.word().to_owned(),
        text: event.text.clone(),
    }
}

/// The load of the instance and of its busiest jobs.
fn load_of(name: &str, known: &Known<'_>) -> Vec<LoadSample> {
    let Some((at_ms, totals)) = known.history.last_point() else { return Vec::new() };
    let finite = |figure: f64| Some(figure).filter(|figure| figure.is_finite());
    let [operations, read, written, memory, ssd, dirty, waiting, requests] = totals.map(finite);
    let sample = |job: &str, figures: [Option<f64>; FIGURES.len()]| LoadSample {
        instance: name.to_owned(),
        job: job.to_owned(),
        at_ms,
        figures,
        samples: 1,
    };
    let all = [operations, read, written, requests, memory, ssd, dirty, waiting, read, written];
    let mut samples = vec![sample("", all)];
    // Without the answers of all hosts, rates of jobs are those of a part of them.
    let is_counted = known.looks.iter().flatten().all(|look| look.jobs.is_ok());
    let rates = known.rates.filter(|_| is_counted);
    let jobs = rates.map(|rates| top_jobs(rates, JOBS_MAX).0).unwrap_or_default();
    // The processes of a script come and go between the looks.
    let is_active = |job: &&JobRates| {
        let through = &job.throughput;
        job.running > 0 || through.operations_per_second > 0.0
    };
    for job in jobs.into_iter().filter(is_active).filter(|job| !job.job.is_empty()) {
        let through = &job.throughput;
        let [operations, read, written] = [
            through.operations_per_second,
            through.read_bytes_per_second,
            through.written_bytes_per_second,
        ]
        .map(finite);
        let mut figures = [None; FIGURES.len()];
        (figures[0], figures[1], figures[2]) = (operations, read, written);
        (figures[8], figures[9]) = (read, written);
        samples.push(sample(&job.job, figures));
    }
    samples
}

/// Names of jobs of the last look.
fn jobs_of(known: &Known<'_>, is_named: impl Fn(&JobSummary) -> bool) -> Vec<String> {
    let Some(Ok(counts)) = known.looks[0].as_ref().map(|look| &look.jobs) else {
        return Vec::new();
    };
    let jobs = counts.jobs.iter().filter(|job| !job.job.is_empty() && is_named(job));
    jobs.map(|job| job.job.clone()).collect()
}

/// The jobs that ran at the look before, or began since, and have ended.
fn ended(known: &Known<'_>) -> Vec<String> {
    let [Some(now), Some(before)] = known.looks else { return Vec::new() };
    let (Ok(now), Ok(before)) = (&now.jobs, &before.jobs) else { return Vec::new() };
    let had_ended = |job: &JobSummary| {
        before.jobs.iter().any(|one| one.job == job.job && one.ended == job.ended)
    };
    let new = now.jobs.iter().filter(|job| job.ended.is_some() && !had_ended(job));
    new.filter(|job| !job.job.is_empty()).map(|job| job.job.clone()).collect()
}
