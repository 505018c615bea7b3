//! Credentials, and a deadline for obtaining them.
//!
//! They come from the places where AWS's own tools look: the environment, the profile in `~/.aws`,
//! a program that the profile names, a web identity, the role of the container or machine. They are
//! fetched with the first request, cached in memory, and refreshed before they expire.
//!
//! *Invariant:* one search over all places ends within `SEARCH_TIME`. All callers that waited for a
//! failed search get its error, and do not start another search.
//! *Invariant:* a failure is reported in one line without the output of a program or a service.

use crate::files;
use bytes::Bytes;
use http::{Request, Response};
use reqsign_aws_v4::{Credential, DefaultCredentialProvider, RequestSigner};
use reqsign_core::{
    CommandExecute, CommandOutput, Context, FileRead, HttpSend, OsEnv, ProvideCredential, Signer,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use ureq::Agent;

/// Deadline of a search for credentials.
const SEARCH_TIME: Duration = Duration::from_secs(15);
/// Timeout of a credential service, which is on this machine or close to it,
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// and of a credential program, which may contact a remote service.
const COMMAND_TIME: Duration = Duration::from_secs(10);
/// Time after a failed search during which no other search starts.
const FAILED_TIME: Duration = Duration::from_secs(5);
/// Maximum output of a program, in bytes; credentials take at most 3 KiB.
const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// The signer of requests for a region.
pub(crate) fn signer(region: &str) -> Signer<Credential> {
    let search = Search::default();
    let context = Context::new()
        .with_env(OsEnv)
        .with_file_read(Files(search.clone()))
        .with_command_execute(Commands { search: search.clone(), time: COMMAND_TIME })
        .with_http_send(HttpSender::new(search.clone()));
    let places = BoundedProvider { places: DefaultCredentialProvider::new(), search };
    Signer::new(context, places, RequestSigner::new("s3", region))
}

#[derive(Debug, Default)]
struct SearchState {
    /// Its deadline.
    until: Option<Instant>,
    /// Errors so far.
    errors: Vec<String>,
    /// Time at which the last search failed.
    failed: Option<Instant>,
}

/// The current search, or the last one.
#[derive(Clone, Debug, Default)]
struct Search(Arc<Mutex<SearchState>>);

impl Search {
    fn guard(&self) -> MutexGuard<'_, SearchState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, time: Duration) {
        *self.guard() =
            SearchState { until: Some(Instant::now() + time), ..SearchState::default() };
    }

    /// Time that a step of the search may take, at most `most`.
    ///
    /// # Errors
    /// The deadline has passed.
    fn left(&self, most: Duration) -> reqsign_core::Result<Duration> {
        let until = self.guard().until;
        let left = until.map_or(most, |it| it.saturating_duration_since(Instant::now()).min(most));
        match left.is_zero() {
            true => Err(self.note("the search for them took too long".to_owned())),
            false => Ok(left),
        }
    }

    /// Notes an error of the search.
    fn note(&self, text: String) -> reqsign_core::Error {
        let mut inside = self.guard();
        if !inside.errors.contains(&text) {
            inside.errors.push(text.clone());
        }
        unexpected(text)
    }

    fn fail(&self) -> reqsign_core::Error {
        let mut inside = self.guard();
        inside.failed.get_or_insert_with(Instant::now);
        unexpected(match inside.errors.as_slice() {
            [] => "there are none in the environment, in files, or from a service".to_owned(),
            errors => errors.join("; "),
        })
    }

    fn has_just_failed(&self) -> bool {
        self.guard().failed.is_some_and(|failed| failed.elapsed() < FAILED_TIME)
    }
}

fn unexpected(text: String) -> reqsign_core::Error {
    reqsign_core::Error::unexpected(text)
}

/// The places to search, one after the other. Only one search runs at a time; other signers wait
/// for it.
#[derive(Debug)]
struct BoundedProvider<P> {
    places: P,
    search: Search,
}

impl<P: ProvideCredential> ProvideCredential for BoundedProvider<P> {
    type Credential = P::Credential;

    async fn provide_credential(
        &self,
        context: &Context,
    ) -> reqsign_core::Result<Option<P::Credential>> {
        if self.search.has_just_failed() {
            return Err(self.search.fail());
        }
        self.search.begin(SEARCH_TIME);
        match self.places.provide_credential(context).await {
            Ok(Some(found)) => Ok(Some(found)),
            Ok(None) | Err(_) => Err(self.search.fail()),
        }
    }
}

/// Reads credential files.
#[derive(Debug)]
struct Files(Search);

impl FileRead for Files {
    async fn file_read(&self, path: &str) -> reqsign_core::Result<Vec<u8>> {
        files::read(Path::new(path)).map_err(|error| {
            let text = format!("cannot read {path}: {error}");
            match error.kind() {
                // The usual case: most of the files do not exist.
                io::ErrorKind::NotFound => unexpected(text),
                _ => self.0.note(text),
            }
        })
    }
}

/// Runs credential programs (`credential_process`).
#[derive(Debug)]
struct Commands {
    search: Search,
    time: Duration,
}

impl CommandExecute for Commands {
    async fn command_execute<'a>(
        &'a self,
        program: &'a str,
        words: &'a [&'a str],
    ) -> reqsign_core::Result<CommandOutput> {
        let until = Instant::now() + self.search.left(self.time)?;
        // Arguments and output may be secret, so only the program's name is reported.
        let failed = |why: String| self.search.note(format!("the program {program} {why}"));
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.process_group(0).spawn();
        let child = child.map_err(|error| failed(format!("cannot be run: {error}")))?;
        let mut running = RunningProgram(child);
        let stdout = running.output(until).map_err(|error| failed(error.to_string()))?;
        let status = running.status(until).map_err(|error| failed(error.to_string()))?;
        if status != 0 {
            let _ = failed(format!("failed with status {status}"));
        }
        Ok(CommandOutput { status, stdout, stderr: Vec::new() })
    }
}

/// A running program, which is killed on drop.
struct RunningProgram(Child);

impl Drop for RunningProgram {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

impl RunningProgram {
    /// Its output until it exits. Processes that it started may still hold its output open.
    fn output(&mut self, until: Instant) -> io::Result<Vec<u8>> {
        let mut stdout = self.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let end = pidfd_open(Pid::from_child(&self.0), PidfdFlags::empty())?;
        let (mut message, mut some) = (Vec::new(), [0; 4096]);
        let mut has_ended = false;
        loop {
            let mut both = [PollFd::new(&stdout, PollFlags::IN), PollFd::new(&end, PollFlags::IN)];
            let left = if has_ended { Duration::ZERO } else { left(until)? };
            let watched = if has_ended { 1 } else { 2 };
            match wait_for(both.get_mut(..watched).unwrap_or_default(), left)? {
                0 if has_ended => return Ok(message),
                0 => continue,
                _ => {}
            }
            let [output, ended] = both.map(|one| !one.revents().is_empty());
            has_ended |= ended;
            if !output {
                continue;
            }
            match stdout.read(&mut some)? {
                0 => return Ok(message),
                count => message.extend(some.iter().take(count)),
            }
            if message.len() > OUTPUT_BYTES_MAX {
                return Err(io::Error::other("says more than credentials are"));
            }
        }
    }

    fn status(&mut self, until: Instant) -> io::Result<i32> {
        let end = pidfd_open(Pid::from_child(&self.0), PidfdFlags::empty())?;
        while wait_for(&mut [PollFd::new(&end, PollFlags::IN)], left(until)?)? == 0 {}
        Ok(self.0.wait()?.code().unwrap_or(-1))
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::Error::new(io::ErrorKind::TimedOut, "does not end in time")),
        false => Ok(left),
    }
}

fn wait_for(those: &mut [PollFd<'_>], time: Duration) -> io::Result<usize> {
    let time = Timespec::try_from(time).map_err(io::Error::other)?;
    match poll(those, Some(&time)) {
        Err(rustix::io::Errno::INTR) => Ok(0),
        found => Ok(found?),
    }
}

/// Sends requests to credential services.
#[derive(Debug)]
struct HttpSender {
    agent: Agent,
    search: Search,
}

impl HttpSender {
    fn new(search: Search) -> HttpSender {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(ANSWER_TIME / 5))
            .build();
        HttpSender { agent: config.into(), search }
    }
}

impl HttpSend for HttpSender {
    async fn http_send(&self, request: Request<Bytes>) -> reqsign_core::Result<Response<Bytes>> {
        let left = self.search.left(ANSWER_TIME)?;
        let (parts, body) = request.into_parts();
        let request = Request::from_parts(parts, &body[..]);
        let request = self.agent.configure_request(request).timeout_global(Some(left)).build();
        let answer = self.agent.run(request);
        let (parts, mut body) = answer.map_err(|error| unexpected(error.to_string()))?.into_parts();
        let bytes = body.read_to_vec().map_err(|error| unexpected(error.to_string()))?;
        Ok(Response::from_parts(parts, bytes.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::wait;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn run(script: &str, time: Duration) -> (Option<CommandOutput>, Vec<String>) {
        let search = Search::default();
        let commands = Commands { search: search.clone(), time };
        let output = wait(commands.command_execute("sh", &["-c", script]));
        let errors = search.guard().errors.clone();
        (output.ok(), errors)
    }

    #[test]
    fn a_program_provides_credentials() {
        let (output, errors) = run("echo secret; exit 0", COMMAND_TIME);
        let output = output.expect("it runs");
        assert_eq!((output.status, output.stdout.as_slice()), (0, &b"secret\n"[..]));
        assert_eq!(errors, Vec::<String>::new());
        // The program exits, and a process that it started keeps its output open.
        let (output, _) = run("echo secret; sleep 100 & exit 3", COMMAND_TIME);
        let output = output.expect("it runs");
        assert_eq!((output.status, output.stdout.as_slice()), (3, &b"secret\n"[..]));
    }

    #[test]
    fn a_program_that_hangs_or_writes_too_much_is_killed() {
        let short = Duration::from_millis(50);
        for (script, time, why) in [
            ("sleep 1000; echo secret", short, "the program sh does not end in time"),
            ("exec >&-; sleep 1000", short, "the program sh does not end in time"),
            ("yes secret", COMMAND_TIME, "the program sh says more than credentials are"),
        ] {
            let (output, errors) = run(script, time);
            assert!(output.is_none(), "{script}");
            assert_eq!(errors, [why], "{script}");
        }
        let (output, errors) = run("echo secret >&2; exit 5", COMMAND_TIME);
        assert!(output.is_some_and(|output| output.status == 5 && output.stderr.is_empty()));
        assert_eq!(errors, ["the program sh failed with status 5"]);
    }

    /// Queries a service and gets no credentials.
    #[derive(Debug)]
    struct CountingProvider(Arc<AtomicU32>);

    impl ProvideCredential for CountingProvider {
        type Credential = Credential;

        async fn provide_credential(
            &self,
            context: &Context,
        ) -> reqsign_core::Result<Option<Credential>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let _ = context.file_read("/dev/zero").await;
            Ok(None)
        }
    }

    #[test]
    fn a_failed_search_is_not_repeated_by_each_waiter() {
        let (search, searches) = (Search::default(), Arc::new(AtomicU32::new(0)));
        let context = Context::new().with_file_read(Files(search.clone()));
        let places = BoundedProvider { places: CountingProvider(Arc::clone(&searches)), search };
        for _ in 0..3 {
            let failed = wait(places.provide_credential(&context)).expect_err("none").to_string();
            assert!(failed.contains("cannot read /dev/zero: it is too large"), "{failed}");
            assert_eq!(failed.lines().count(), 1, "{failed}");
        }
        assert_eq!(searches.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_search_has_one_deadline() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("bound"));
        let search = Search::default();
        search.begin(Duration::from_millis(100));
        let sender = HttpSender::new(search.clone());
        let query = || {
            let request = Request::get(&url).body(Bytes::new()).expect("a request");
            wait(sender.http_send(request)).expect_err("no answer").to_string()
        };
        // The first search uses up the time, and no other search starts.
        query();
        let second = query();
        assert!(second.contains("the search for them took too long"), "{second}");
        assert_eq!(search.guard().errors, ["the search for them took too long"]);
    }
}
