//! All that the dashboard knows: the last look, rates, the history and events; and the answer to
//! the page.
//!
//! Figures of the whole instance cover all daemons and jobs. Lists are bounded (`DAEMONS_MAX`,
//! `JOBS_MAX`), and say how many there are.

use super::events::{EventKind, Events};
use super::history::{HEAT_MAPS, History, POINT_FIELDS};
use super::look::{JobCounts, Look, now_ms};
use crate::failure::{NO_INSTANCE, Result};
use crate::instance::exposition;
use crate::top::rates::{self, DaemonRates, JobRates, Rates};
use config::metrics::{DAEMON, DaemonSample, Metric, MetricKind, WRITEBACK, WritebackSample};
use insight::interference::InterferenceWatch;
use serde_json::{Map, Value, json};
use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// Daemons that an answer lists; each takes 2 KiB.
const DAEMONS_MAX: usize = 128;
/// Jobs that an answer lists.
const JOBS_MAX: usize = 100;
/// Looks from which the rate of writeback is taken.
const DRAINED_MAX: usize = 30;

/// All that the dashboard knows.
pub(super) struct Model {
    name: String,
    interval: Duration,
    history: History,
    watch: InterferenceWatch,
    events: Events,
    /// The last two looks that succeeded: the present and the one before.
    looks: [Option<Look>; 2],
    rates: Option<Rates>,
    /// Why there is no newer look.
    failure: Option<String>,
    is_stopped: bool,
    /// When nothing was dirty for the last time.
    clean_at: Option<Instant>,
    /// Bytes that were written back until each of the last looks.
    drained: VecDeque<(Instant, u64)>,
}

/// The part of a model that is recorded.
pub(super) struct Known<'a> {
    /// The samples.
    pub(super) history: &'a History,
    /// The events.
    pub(super) events: &'a Events,
    /// The last look and the one before.
    pub(super) looks: &'a [Option<Look>; 2],
    /// The rates between them.
    pub(super) rates: Option<&'a Rates>,
}

impl Model {
    pub(super) fn new(name: &str, interval: Duration) -> Model {
        Model {
            name: name.to_owned(),
            interval,
            history: History::default(),
            watch: InterferenceWatch::default(),
            events: Events::default(),
            looks: [None, None],
            rates: None,
            failure: None,
            is_stopped: false,
            clean_at: None,
            drained: VecDeque::new(),
        }
    }

    /// Takes a look, or the reason why there is none.
    pub(super) fn take(&mut self, look: Result<Look>) {
        let look = match look {
            Ok(look) => look,
            Err(failure) if failure.code() == NO_INSTANCE => {
                // Only a stop removes its records.
                self.note_stop();
                self.failure = Some(failure.text().to_owned());
                return;
            }
            Err(failure) => {
                if self.failure.is_none() {
                    self.events.add(now_ms(), EventKind::High, failure.text().to_owned());
                }
                self.failure = Some(failure.text().to_owned());
                return;
            }
        };
        self.is_stopped = false;
        if self.failure.take().is_some() {
            self.events.add(look.at_ms, EventKind::Info, "the instance answers again".to_owned());
        }
        if look.sample.writeback.is_some_and(|now| now.dirty == 0 && now.bytes_dirty == 0) {
            self.clean_at = Some(look.sample.at);
        }
        if let Some(now) = look.sample.writeback {
            self.drained.push_back((look.sample.at, now.bytes_written));
            if self.drained.len() > DRAINED_MAX {
                self.drained.pop_front();
            }
        }
        let [now, before] = &mut self.looks;
        *before = now.take();
        if let Some(before) = before {
            let rates = rates::between(&before.sample, &look.sample);
            let hosts = look.host_rates(before);
            self.history.take(&look, &rates, hosts.as_deref());
            self.events.compare(before, &look);
            let disturbed = self.watch.found();
            for (host, moved) in look.moved_since(before) {
                self.watch.add_span(host, rates.totals.seconds, &moved);
            }
            self.events.compare_jobs(look.at_ms, &disturbed, &self.watch.found());
            self.rates = Some(rates);
        }
        *now = Some(look);
    }

    /// The instance is stopped, or will be at once.
    pub(super) fn note_stop(&mut self) {
        if !std::mem::replace(&mut self.is_stopped, true) {
            self.events.add(now_ms(), EventKind::Info, "the instance was stopped".to_owned());
        }
    }

    /// The name of the instance.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The metrics of the last look, for Prometheus; `None`: there is no recent one.
    pub(super) fn metrics(&self, top_jobs: usize) -> Option<String> {
        let look = self.looks[0].as_ref().filter(|_| self.failure.is_none())?;
        let jobs = look.jobs.as_ref().map_or(&[][..], |counts| counts.jobs.as_slice());
        Some(exposition::text(&look.overview, jobs, top_jobs))
    }

    /// The samples taken so far, the events, the last two looks and their rates.
    pub(super) fn known(&self) -> Known<'_> {
        let Model { history, events, looks, rates, .. } = self;
        Known { history, events, looks, rates: rates.as_ref() }
    }

    /// The heat map of a figure; `None`: there is no such figure.
    pub(super) fn heat_map(&self, figure: &str) -> Option<Value> {
        self.history.heat_map(figure)
    }

    /// The jobs that matter most now: those that run, of these the busiest; else the last that ran.
    pub(super) fn busiest(&self, count: usize) -> Vec<String> {
        let jobs = self.looks[0].as_ref().and_then(|look| look.jobs.as_ref().ok());
        let jobs = jobs.map_or(&[][..], |counts| counts.jobs.as_slice());
        let running = jobs.iter().any(|job| job.ended.is_none());
        match (&self.rates, running) {
            (Some(rates), true) => {
                let (mut all, _) = top_jobs(rates, count);
                all.retain(|job| job.running > 0);
                all.into_iter().map(|job| job.job.clone()).collect()
            }
            _ => jobs
                .iter()
                .max_by_key(|job| job.ended)
                .map(|job| job.job.clone())
                .into_iter()
                .collect(),
        }
    }

    /// The answer to the page that knows the samples up to number `after`.
    pub(super) fn state(&self, after: u64) -> Value {
        let mut answer = json!({
            "name": self.name,
            "interval_ms": u64::try_from(self.interval.as_millis()).unwrap_or(u64::MAX),
            "now_ms": now_ms(),
            "failure": self.failure,
            "events": self.events.all(),
            "interference": self.watch.found(),
            "last": self.history.last(),
            "points": self.history.points(after),
            "point_fields": POINT_FIELDS,
            "heat_maps": HEAT_MAPS.map(|(word, _)| word),
        });
        if let (Value::Object(fields), Some(look)) = (&mut answer, &self.looks[0]) {
            self.add_look(fields, look);
        }
        answer
    }

    /// Bytes written back in a second, over the last looks: files become durable one by one, so
    /// that the rate between two looks is often 0. `None`: there are not two looks, or the
    /// writeback daemon began anew.
    fn drain_rate(&self) -> Option<f64> {
        let ((begin, first), (end, last)) = (self.drained.front()?, self.drained.back()?);
        let seconds = end.saturating_duration_since(*begin).as_secs_f64();
        let bytes = last.checked_sub(*first).filter(|_| seconds > 0.0)?;
        Some(bytes as f64 / seconds)
    }

    fn add_look(&self, fields: &mut Map<String, Value>, look: &Look) {
        let daemons = &look.overview.inspection.daemons;
        let shown: BTreeSet<u16> = {
            let mut all: Vec<_> = daemons.iter().collect();
            // Those that do not answer come first.
            all.sort_by_key(|one| (one.status().is_some(), one.daemon.index));
            all.iter().take(DAEMONS_MAX).map(|one| one.daemon.index).collect()
        };
        let before = self.looks[1].as_ref();
        let seconds = before.map_or(0.0, |before| {
            look.sample.at.saturating_duration_since(before.sample.at).as_secs_f64()
        });
        let sums = [before, Some(look)].map(|look| look.map(sum_of).unwrap_or_default().in_order());
        fields.insert("at_ms".into(), json!(look.at_ms));
        fields.insert(
            "status".into(),
            look.overview.to_json(|one| shown.contains(&one.daemon.index)),
        );
        fields.insert("daemons_total".into(), json!(daemons.len()));
        fields.insert("unreachable".into(), json!(look.overview.inspection.failures));
        fields.insert("sums".into(), by_key(&DAEMON, &sums[1]));
        fields.insert("sum_rates".into(), rates_by_key(&DAEMON, &sums, seconds));
        if let Some(now) = look.sample.writeback {
            let then = before.and_then(|before| before.sample.writeback).unwrap_or(now);
            let both = [then, now].map(|one: WritebackSample| one.in_order());
            fields.insert("writeback_rates".into(), rates_by_key(&WRITEBACK, &both, seconds));
            let is_clean = now.dirty == 0 && now.bytes_dirty == 0;
            let age = self.clean_at.filter(|_| !is_clean).map(|at| at.elapsed().as_secs_f64());
            let rate = self.drain_rate();
            let eta = rate.filter(|rate| *rate > 0.0).map(|rate| now.bytes_dirty as f64 / rate);
            let undrained = json!({
                "bytes": now.bytes_dirty,
                "files_and_names": now.dirty,
                "age_seconds_max": age,
                "eta_seconds": eta,
                "bytes_per_second": rate,
            });
            fields.insert("undrained".into(), undrained);
        }
        let (times, forgotten, failure) = match &look.jobs {
            Ok(JobCounts { times, forgotten, .. }) => (Some(*times), *forgotten, None),
            Err(why) => (None, 0, Some(why)),
        };
        fields.insert("times".into(), json!(times));
        fields.insert("jobs_forgotten".into(), json!(forgotten));
        fields.insert("jobs_failure".into(), json!(failure));
        let Some(rates) = &self.rates else { return };
        let is_counted = before.is_some_and(|before| before.jobs.is_ok()) && look.jobs.is_ok();
        fields.insert("is_counted".into(), json!(is_counted));
        fields.insert("totals".into(), json!(rates.totals));
        let (jobs, jobs_total) = top_jobs(rates, JOBS_MAX);
        fields.insert("jobs".into(), json!(jobs));
        fields.insert("jobs_total".into(), json!(jobs_total));
        let listed = |one: &&DaemonRates| shown.contains(&one.index);
        let daemons: Vec<_> = rates.daemons.iter().filter(listed).collect();
        fields.insert("daemon_rates".into(), json!(daemons));
    }
}

/// The first `count` jobs: those that run, of these the busiest; and the number of all.
pub(super) fn top_jobs(rates: &Rates, count: usize) -> (Vec<&JobRates>, usize) {
    let mut jobs: Vec<&JobRates> = rates.jobs.iter().collect();
    let bytes = |job: &JobRates| {
        job.throughput.read_bytes_per_second + job.throughput.written_bytes_per_second
    };
    jobs.sort_by(|a, b| {
        let running = (b.running > 0).cmp(&(a.running > 0));
        let operations =
            b.throughput.operations_per_second.total_cmp(&a.throughput.operations_per_second);
        running.then(bytes(b).total_cmp(&bytes(a))).then(operations).then(a.job.cmp(&b.job))
    });
    let all = jobs.len();
    jobs.truncate(count);
    (jobs, all)
}

fn sum_of(look: &Look) -> DaemonSample {
    let mut sum = DaemonSample::default();
    let all = look.sample.daemons.iter().filter_map(|one| one.metrics.as_ref());
    all.for_each(|one| sum.add(one));
    sum
}

fn by_key(rows: &[Metric], values: &[u64]) -> Value {
    let pairs = rows.iter().zip(values);
    Value::Object(pairs.map(|(row, value)| (row.key.to_owned(), json!(value))).collect())
}

/// The growth of counters in a second. A counter that fell, because a daemon died, has no rate.
fn rates_by_key(rows: &[Metric], [then, now]: &[Vec<u64>; 2], seconds: f64) -> Value {
    let counters = rows.iter().zip(then.iter().zip(now));
    let counters = counters.filter(|(row, _)| row.kind == MetricKind::Counter);
    let each = counters.map(|(row, (then, now))| {
        let grown = now.checked_sub(*then).filter(|_| seconds > 0.0);
        (row.key.to_owned(), json!(grown.map(|grown| grown as f64 / seconds)))
    });
    Value::Object(each.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::history::{ROWS_MAX, SAMPLES_MAX};
    use crate::failure::Failure;
    use crate::instance::inspect::{DaemonReport, DaemonState, Inspection};
    use crate::instance::overview::Overview;
    use crate::state::records::DaemonRecord;
    use config::activity::{ActivityAnswer, JobSummary};
    use config::control::{DaemonStatus, MemberStatus, MembershipStatus, WritebackReport};
    use config::{InstanceConfig, Key, Settings, Sources};

    /// A look at `daemons` daemons, of which number 1 does not answer, after `seconds`.
    fn look(begin: Instant, daemons: u16, seconds: u64) -> Look {
        let report = |index: u16| {
            let metrics = DaemonSample {
                memory_total: 100,
                memory_free: 40,
                requests: 10 * seconds,
                bytes_demoted: 7 * seconds,
                ..DaemonSample::default()
            };
            let status = (index != 1).then(|| DaemonStatus { metrics, ..DaemonStatus::default() });
            let state = DaemonState { index, is_alive: true, ended: None, resident: None, status };
            let daemon = DaemonRecord::unknown(index);
            let (host, domain) = (format!("h{index}"), String::new());
            DaemonReport { host, domain, daemon, state: Some(state) }
        };
        let mut sources = Sources::default();
        sources.options.insert(Key::Workers, "1".to_owned());
        let settings = Settings::resolve(&sources).expect("allowed");
        let config = InstanceConfig::new(&settings).expect("complete");
        let daemons = (0..daemons).map(report).collect();
        let metrics = WritebackSample {
            bytes_dirty: if seconds < 3 { 0 } else { 500 },
            bytes_written: 50 * seconds,
            ..WritebackSample::default()
        };
        let overview = Overview {
            name: "a".into(),
            inspection: Inspection { daemons, config, failures: Vec::new() },
            mounts: Vec::new(),
            writeback: Some(WritebackReport { metrics, ..WritebackReport::default() }),
        };
        let job = |job: &str, bytes: u64| JobSummary {
            job: job.into(),
            running: 1,
            processes: 1,
            bytes_written: bytes * seconds,
            ..JobSummary::default()
        };
        let jobs = vec![job("slow", 10), job("fast", 1000)];
        let answer = ActivityAnswer { jobs, ..ActivityAnswer::default() };
        let mut look = Look::new(overview, Ok(vec![("c1".to_owned(), answer)]));
        look.sample.at = begin + Duration::from_secs(seconds);
        look
    }

    #[test]
    fn figures_of_all_daemons_are_summed_and_jobs_begin_with_the_busiest() {
        let begin = Instant::now();
        let mut model = Model::new("a", Duration::from_secs(1));
        assert_eq!(model.state(0)["status"], Value::Null);
        for seconds in [1, 2] {
            model.take(Ok(look(begin, 3, seconds)));
        }
        let state = model.state(0);
        assert_eq!(
            (&state["sums"]["memory_total"], &state["daemons_total"]),
            (&200.into(), &3.into())
        );
        assert_eq!(state["sum_rates"]["bytes_demoted"], 14.0);
        assert_eq!(
            (&state["jobs"][0]["job"], &state["is_counted"]),
            (&"fast".into(), &true.into())
        );
        assert_eq!(state["totals"]["written_bytes_per_second"], 1010.0);
        assert_eq!(
            (state["points"][0][0].as_u64(), model.busiest(1)),
            (Some(1), vec!["fast".to_owned()])
        );
        assert_eq!(state["undrained"]["age_seconds_max"], Value::Null);
        assert_eq!(model.state(1)["points"], json!([]));
        // Nothing was dirty at 2 s.
        model.take(Ok(look(begin, 3, 3)));
        let undrained = &model.state(0)["undrained"];
        assert_eq!((&undrained["bytes"], &undrained["eta_seconds"]), (&500.into(), &10.0.into()));
        assert!(undrained["age_seconds_max"].is_number(), "{undrained}");
    }

    #[test]
    fn a_job_that_another_disturbs_is_named_with_it() {
        let begin = Instant::now();
        let mut model = Model::new("a", Duration::from_secs(1));
        // Both move 1 MB in each second; it takes job 'first' 100 ms, and 300 ms beside the other.
        for second in 1..=12_u64 {
            let mut look = look(begin, 1, second);
            let beside = second.saturating_sub(6);
            let job = |bytes: u64, millis: u64| [bytes * 1_000_000, millis * 1_000_000];
            let first = job(second, 100 * second + 200 * beside);
            let moved = [("first", first), ("second", job(beside, 100 * beside))];
            let moved = moved.map(|(job, counts)| (job.to_owned(), counts)).into();
            look.jobs.as_mut().expect("jobs").moved = [("c1".to_owned(), moved)].into();
            model.take(Ok(look));
        }
        let state = model.state(0);
        let found = &state["interference"][0];
        assert_eq!(
            [&found["host"], &found["job"], &found["by"]],
            [&json!("c1"), &json!("first"), &json!("second")],
            "{state}"
        );
        let said = "job first takes 3.0 times as long for a byte on c1 since job second moves";
        assert!(state["events"].to_string().contains(said), "{}", state["events"]);
    }

    #[test]
    fn hosts_whose_jobs_get_too_little_are_named() {
        let begin = Instant::now();
        let mut model = Model::new("a", Duration::from_secs(1));
        for (second, short) in (1..).zip([0, 2, 1, 0]) {
            let mut look = look(begin, 3, second);
            let of_h2 = look.overview.inspection.daemons[2].state.as_mut().expect("known");
            of_h2.status.as_mut().expect("it answers").metrics.qos_jobs_short = short;
            let sampled = look.sample.daemons[2].metrics.as_mut().expect("it answers");
            sampled.qos_jobs_short = short;
            model.take(Ok(look));
            assert_eq!(model.state(0)["sums"]["qos_jobs_short"], short);
        }
        let events = model.state(0)["events"].clone();
        let text = |at: usize| events[at]["text"].as_str().unwrap_or_default().to_owned();
        assert_eq!(text(0), "all jobs on host h2 get their shares again", "{events}");
        assert!(text(1).starts_with("2 of the jobs on host h2 got less than 80 % "), "{events}");
    }

    #[test]
    fn daemons_that_the_others_do_not_reach_are_named() {
        let begin = Instant::now();
        let mut model = Model::new("a", Duration::from_secs(1));
        let presences = ["up", "down", "up", "leaving", "left"];
        for (second, presence) in (1..).zip(presences) {
            let member = |word: &str| MemberStatus {
                presence: word.to_owned(),
                leaves: word == "leaving",
                ..MemberStatus::default()
            };
            let members = vec![member("up"), member("up"), member(presence)];
            let membership =
                MembershipStatus { epoch: second, members, ..MembershipStatus::default() };
            let mut look = look(begin, 3, second);
            let state = look.overview.inspection.daemons[0].state.as_mut().expect("a state");
            state.status.as_mut().expect("a status").membership = Some(membership);
            model.take(Ok(look));
        }
        let events = model.state(0)["events"].clone();
        let texts: Vec<&str> = events
            .as_array()
            .expect("events")
            .iter()
            .filter_map(|event| event["text"].as_str())
            .filter(|text| text.starts_with("daemon 2"))
            .collect();
        let down = "daemon 2 is down: the other daemons do not reach it";
        let others = ["daemon 2 has left", "daemon 2 leaves", "daemon 2 takes part again"];
        assert_eq!(texts, [&others[..], &[down]].concat(), "{events}");
    }

    #[test]
    fn what_is_not_known_is_not_shown_as_nothing() {
        let begin = Instant::now();
        let mut model = Model::new("a", Duration::from_secs(1));
        model.take(Ok(look(begin, 2, 1)));
        let mut silent = look(begin, 2, 2);
        silent.jobs = Err("daemon 0 does not answer".into());
        silent.sample.jobs.clear();
        model.take(Ok(silent));
        let state = model.state(0);
        assert_eq!(
            (&state["is_counted"], &state["jobs_failure"]),
            (&false.into(), &"daemon 0 does not answer".into())
        );
        assert_eq!(state["points"][0][2], Value::Null, "operations");
        // The first rates after that would count from zero.
        model.take(Ok(look(begin, 2, 3)));
        assert_eq!(model.state(0)["is_counted"], false);
        model.take(Err(Failure::new("no such instance")));
        model.take(Err(Failure::new("no such instance")));
        let state = model.state(0);
        assert_eq!(
            (&state["failure"], state["status"].is_object()),
            (&"no such instance".into(), true)
        );
        model.take(Ok(look(begin, 2, 4)));
        let state = model.state(0);
        let texts: Vec<&str> = state["events"]
            .as_array()
            .expect("events")
            .iter()
            .filter_map(|event| event["text"].as_str())
            .collect();
        assert_eq!(
            (texts, &state["failure"]),
            (vec!["the instance answers again", "no such instance"], &Value::Null)
        );
    }

    #[test]
    fn answers_are_bounded_with_a_thousand_daemons() {
        let begin = Instant::now();
        let mut model = Model::new("a", Duration::from_secs(1));
        for seconds in 1..400 {
            model.take(Ok(look(begin, 1000, seconds)));
        }
        let state = model.state(0);
        let listed = state["status"]["daemons"].as_array().expect("daemons");
        assert_eq!((listed.len(), &listed[1]["index"]), (DAEMONS_MAX, &1.into()));
        assert_eq!(
            (&state["daemons_total"], state["daemon_rates"].as_array().map(Vec::len)),
            (&1000.into(), Some(DAEMONS_MAX))
        );
        assert_eq!(state["points"].as_array().map(Vec::len), Some(SAMPLES_MAX));
        assert!(state.to_string().len() < 1 << 20);
        let map = model.heat_map("requests").expect("a figure");
        let rows = map["rows"].as_array().expect("rows");
        assert_eq!((rows.len(), &map["rows_total"]), (ROWS_MAX, &1000.into()));
        let cells = |row: usize| rows[row]["cells"].as_str().expect("a text");
        assert_eq!((cells(0).len(), cells(1).chars().all(|one| one == 'x')), (SAMPLES_MAX, true));
        let host = model.heat_map("written").expect("a figure");
        assert_eq!((&host["rows"][0]["name"], &host["most"]), (&"c1".into(), &1010.0.into()));
        assert!(host["rows"][0]["cells"].as_str().is_some_and(|cells| cells.ends_with('p')));
        assert_eq!(model.heat_map("none"), None);
    }
}
