//! `forebay dashboard`: an instance on one page, live, in a browser.
//!
//! A thread looks at the instance (`look`) and keeps what it saw (`model`: `history`, `events`). A
//! thread for each connection answers one request (`http`) that has the secret (`token`): the page,
//! which is in this program, or figures as JSON; those of one job are asked of the daemons then
//! (`details`), and those of the past are read from the history (`past`). Each look is recorded
//! there (`recording`): `forebay monitor` does this alone, without a page.
//!
//! *Invariant:* it changes nothing of the instance. *Invariant:* memory, threads and the time of
//! each connection have bounds, whatever a client sends. *Invariant:* the secret is printed once,
//! to standard output, and compared in constant time.

mod details;

mod events;

mod history;

mod http;

mod look;

mod model;

mod past;

mod recording;

mod token;

use crate::failure::{Failure, NO_INSTANCE, Result};
use crate::instance::recorder;
use crate::state::history::HistoryPlace;
use details::Details;
use http::{Answer, HttpRequest};
use look::Look;
use model::Model;
use recording::Recording;
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use token::Token;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Connections at one time. A page has one or two.
const CONNECTIONS_MAX: usize = 32;
/// Pause after a connection that could not be accepted, for instance because files are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// After this time without a daemon that lives, the recorder of `forebay start` ends.
const LEFT_TIME: Duration = Duration::from_secs(600);
/// Jobs whose advice the overview has.
const ADVISED_MAX: usize = 3;

/// Where the dashboard is, and how often it looks.
#[derive(Clone, Debug)]
pub(crate) struct DashboardOptions {
    /// Its address.
    pub(crate) address: IpAddr,
    /// Its port; 0: any that is free.
    pub(crate) port: u16,
    /// Time between looks.
    pub(crate) interval: Duration,
    /// How long the daemons are waited for.
    pub(crate) timeout: Duration,
    /// File with its secret; `None`: a new one.
    pub(crate) token_file: Option<PathBuf>,
    /// Jobs with metrics of their own.
    pub(crate) top_jobs: usize,
}

/// Shared by the threads.
struct Shared {
    token: Token,
    model: Mutex<Model>,
    details: Mutex<Details>,
    place: HistoryPlace,
    top_jobs: usize,
    connections: AtomicUsize,
}

/// Shows the instance `name` until the process is ended.
///
/// # Errors
/// There is no such instance, or the address cannot be used.
pub(crate) fn serve(name: &str, options: DashboardOptions, place: HistoryPlace) -> Result<()> {
    let token = match &options.token_file {
        Some(path) => Token::in_file(path)?,
        None => Token::new()?,
    };
    let first = look::take(name, options.timeout)?;
    let at = SocketAddr::new(options.address, options.port);
    let listener = TcpListener::bind(at).map_err(|error| refused(at, &error))?;
    let at = listener.local_addr().map_err(|error| refused(at, &error))?;
    let mut model = Model::new(name, options.interval);
    model.take(Ok(first));
    let shared = Arc::new(Shared {
        token,
        model: Mutex::new(model),
        details: Mutex::new(Details::new(name, options.timeout)),
        place: place.clone(),
        top_jobs: options.top_jobs,
        connections: AtomicUsize::new(0),
    });
    let (sampled, instance) = (Arc::clone(&shared), name.to_owned());
    let recording = Recording::of(name, options.timeout, place)?;
    thread::Builder::new()
        .spawn(move || sample(&sampled, &instance, options, recording))
        .map_err(|error| Failure::new(format!("cannot start a thread: {error}")))?;
    outln!("http://{at}/?token={}", shared.token.text());
    // The reader of a pipe waits for the address.
    let _ = std::io::stdout().flush();
    for stream in listener.incoming() {
        match stream {
            Ok(stream) => accept(&shared, stream),
            Err(_) => thread::sleep(ACCEPT_PAUSE),
        }
    }
    Ok(())
}

fn refused(at: SocketAddr, error: &std::io::Error) -> Failure {
    let why = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "another program uses it: give another --port, or none for any that is free".to_owned()
        }
        std::io::ErrorKind::AddrNotAvailable => "this host has no such address".to_owned(),
        _ => error.to_string(),
    };
    Failure::at("cannot listen", at, why)
}

fn locked<T>(one: &Mutex<T>) -> MutexGuard<'_, T> {
    one.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How an instance is recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordOptions {
    /// Time between looks.
    pub(crate) interval: Duration,
    /// How long the daemons are waited for.
    pub(crate) timeout: Duration,
    /// Descriptor on which the starter waits; `None`: a person started it.
    pub(crate) ready_fd: Option<i32>,
}

/// Records the instance `name` until it ends, or a signal ends this process.
///
/// # Errors
/// There is no such instance, or another process records it.
pub(crate) fn record(name: &str, options: RecordOptions, place: HistoryPlace) -> Result<()> {
    let RecordOptions { interval, timeout, ready_fd } = options;
    let told = signals()?;
    let shown = place.text();
    let begin = || {
        let why = "another 'forebay monitor' or 'forebay dashboard' records it";
        Recording::of(name, timeout, place)?
            .ok_or_else(|| Failure::at("nothing to do for instance", name, why))
    };
    let mut model = Model::new(name, interval);
    let mut recording = if ready_fd.is_some() {
        // The starter does not wait for a look, which asks all hosts.
        let recording = begin()?;
        background::report_ready(ready_fd, "{\"ready\":true}\n")
            .map_err(|error| Failure::at("cannot report", "to the starter", error))?;
        model.take(look::take(name, timeout));
        recording
    } else {
        model.take(Ok(look::take(name, timeout)?));
        let recording = begin()?;
        errln!("forebay monitor: instance {name} is recorded in {shown} until it ends");
        recording
    };
    recording.note(&model);
    let mut next = Instant::now() + interval;
    let mut alive_at = Instant::now();
    loop {
        if told.recv_timeout(next.saturating_duration_since(Instant::now())).is_ok() {
            model.take(look::take(name, timeout));
            if recorder::is_stopping(name) {
                model.note_stop();
            }
            recording.note_last(&model);
            break;
        }
        let look = look::take(name, timeout);
        let is_over = look.as_ref().is_err_and(|failure| failure.code() == NO_INSTANCE);
        if look.as_ref().is_ok_and(Look::has_daemon) {
            alive_at = Instant::now();
        }
        model.take(look);
        recording.note(&model);
        // Without a person, nobody would end this one; the next start starts another.
        let is_left = ready_fd.is_some() && alive_at.elapsed() >= LEFT_TIME;
        if is_over || is_left {
            break;
        }
        next = (next + interval).max(Instant::now());
    }
    match recording.finish() {
        0 => {}
        dropped => errln!("forebay monitor: {dropped} records are lost"),
    }
    Ok(())
}

/// Gets a message for each signal that ends this process.
fn signals() -> Result<Receiver<()>> {
    let failed = |error: std::io::Error| Failure::at("cannot wait for", "signals", error);
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(failed)?;
    let (tell, told) = channel();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for _ in signals.forever() {
                // The process may be about to end.
                let _ = tell.send(());
            }
        })
        .map_err(failed)?;
    Ok(told)
}

/// Looks at the instance again and again.
fn sample(
    shared: &Shared,
    name: &str,
    options: DashboardOptions,
    mut recording: Option<Recording>,
) {
    let mut next = Instant::now() + options.interval;
    loop {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        let look = look::take(name, options.timeout);
        let mut model = locked(&shared.model);
        model.take(look);
        let ended = recording.as_mut().map(|recording| recording.note_seen(&model));
        drop(model);
        if let (Some(recording), Some(ended)) = (&mut recording, ended) {
            // This asks the daemons, for which no page waits.
            recording.note_ended(ended);
        }
        // After a slow look the next one is not made up for.
        next = (next + options.interval).max(Instant::now());
    }
}

/// A connection that is counted while it lives.
struct Connection(Arc<Shared>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Answers the request of a connection, in a thread of its own. One too many is closed.
fn accept(shared: &Arc<Shared>, mut stream: TcpStream) {
    let before = shared.connections.fetch_add(1, Ordering::AcqRel);
    let connection = Connection(Arc::clone(shared));
    if before >= CONNECTIONS_MAX {
        return;
    }
    // Without a thread the connection is closed, too.
    let _ = thread::Builder::new().spawn(move || {
        let answer = match http::read(&mut stream) {
            Some(Ok(request)) => answer(&connection.0, &request),
            Some(Err(refusal)) => refusal,
            None => return,
        };
        http::write(&mut stream, &answer);
    });
}

fn answer(shared: &Shared, request: &HttpRequest) -> Answer {
    let has_token = request.token().is_some_and(|word| shared.token.is(&word));
    if !has_token {
        let why =
            "the token is missing or wrong: open the address that 'forebay dashboard' printed";
        return Answer::refusal("403 Forbidden", why);
    }
    match request.path.as_str() {
        "/" => page(),
        "/metrics" => match locked(&shared.model).metrics(shared.top_jobs) {
            Some(text) => Answer::metrics(text),
            None => Answer::refusal("503 Service Unavailable", "the instance does not answer"),
        },
        "/api/state" => {
            let after = request.value("after").and_then(|text| text.parse().ok()).unwrap_or(0);
            Answer::json(&locked(&shared.model).state(after))
        }
        "/api/heat" => {
            let figure = request.value("figure").unwrap_or_default();
            match locked(&shared.model).heat_map(&figure) {
                Some(map) => Answer::json(&map),
                None => Answer::refusal("404 Not Found", "there is no such figure"),
            }
        }
        "/api/job" => {
            let job = request.value("job").unwrap_or_default();
            Answer::json(&details(shared, &[job])[0])
        }
        "/api/history" => {
            let minutes = request.value("minutes").and_then(|text| text.parse().ok());
            let name = &locked(&shared.model).name().to_owned();
            match past::of(&shared.place, name, minutes.unwrap_or(past::MINUTES)) {
                Ok(value) => Answer::json(&value),
                Err(failure) => Answer::json(&json!({ "failure": failure.text() })),
            }
        }
        "/api/advice" => {
            let jobs = locked(&shared.model).busiest(ADVISED_MAX);
            Answer::json(&json!({ "jobs": details(shared, &jobs) }))
        }
        _ => Answer::refusal("404 Not Found", "there is no such page"),
    }
}

/// The details of jobs, or for each why there are none.
fn details(shared: &Shared, jobs: &[String]) -> Value {
    // Another page asks just now, and daemons are slow: that page's answer is shown next time.
    let Ok(mut details) = shared.details.try_lock() else {
        return jobs.iter().map(|job| json!({ "job": job, "busy": true })).collect();
    };
    let one = |job: &String| match details.of(job) {
        Ok(Value::Null) => json!({ "job": job, "failure": "there is no such job" }),
        Ok(value) => value,
        Err(failure) => json!({ "job": job, "failure": failure.text() }),
    };
    jobs.iter().map(one).collect()
}

fn page() -> Answer {
    match token::random_word() {
        Ok(nonce) => {
            let page = PAGE.replace("{nonce}", &nonce);
            Answer::page(page.replace("{style}", STYLE).replace("{script}", SCRIPT), nonce)
        }
        Err(failure) => Answer::refusal("503 Service Unavailable", failure.text()),
    }
}
