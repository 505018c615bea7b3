//! Where credentials come from, and that nobody waits for them without end.
//!
//! They come from where AWS's own programs look for them: the environment, the profile in `~/.aws`, a
//! program that it names, a web identity, the container's or the machine's role. They are fetched with
//! the first request, kept in memory, and fetched anew before they end.
//!
//! *Invariant:* one search, over all of these places, is over in `SEARCH_TIME`; who waited for one that
//! failed is told the same, and does not begin another.
//! *Invariant:* what is said of a failure is one line, without what a program or a service said.

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

/// A search for credentials is over in this time.
const SEARCH_TIME: Duration = Duration::from_secs(15);
/// A service that tells some is near: it answers in this time,
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// and a program may ask somebody far away: in this.
const COMMAND_TIME: Duration = Duration::from_secs(10);
/// So long after a search failed the next one is not begun.
const FAILED_TIME: Duration = Duration::from_secs(5);
/// Bytes of what a program says; there are 3 KiB of it at most.
const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// Signs requests for a region.
pub(crate) fn signer(region: &str) -> Signer<Credential> {
    let search = Search::default();
    let context = Context::new()
        .with_env(OsEnv)
        .with_file_read(Files(search.clone()))
        .with_command_execute(Commands { search: search.clone(), time: COMMAND_TIME })
        .with_http_send(Teller::new(search.clone()));
    let places = Bounded { places: DefaultCredentialProvider::new(), search };
    Signer::new(context, places, RequestSigner::new("s3", region))
}

#[derive(Debug, Default)]
struct Inside {
    /// When it is over.
    until: Option<Instant>,
    /// What was in its way.
    troubles: Vec<String>,
    /// When the last one failed.
    failed: Option<Instant>,
}

/// The search that goes on, or the last one.
#[derive(Clone, Debug, Default)]
struct Search(Arc<Mutex<Inside>>);

impl Search {
    fn guard(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, time: Duration) {
        *self.guard() = Inside { until: Some(Instant::now() + time), ..Inside::default() };
    }

    /// How long something in it may take.
    ///
    /// # Errors
    /// It is over.
    fn left(&self, most: Duration) -> reqsign_core::Result<Duration> {
        let until = self.guard().until;
        let left = until.map_or(most, |it| it.saturating_duration_since(Instant::now()).min(most));
        match left.is_zero() {
            true => Err(self.note("the search for them took too long".to_owned())),
            false => Ok(left),
        }
    }

    /// Something was in its way.
    fn note(&self, text: String) -> reqsign_core::Error {
        let mut inside = self.guard();
        if !inside.troubles.contains(&text) {
            inside.troubles.push(text.clone());
        }
        unexpected(text)
    }

    fn fail(&self) -> reqsign_core::Error {
        let mut inside = self.guard();
        inside.failed.get_or_insert_with(Instant::now);
        unexpected(match inside.troubles.as_slice() {
            [] => "there are none in the environment, in files, or from a service".to_owned(),
            troubles => troubles.join("; "),
        })
    }

    fn has_just_failed(&self) -> bool {
        self.guard().failed.is_some_and(|failed| failed.elapsed() < FAILED_TIME)
    }
}

fn unexpected(text: String) -> reqsign_core::Error {
    reqsign_core::Error::unexpected(text)
}

/// Places where credentials are looked for, one after the other. One search is made at a time: who signs
/// waits for it.
#[derive(Debug)]
struct Bounded<P> {
    places: P,
    search: Search,
}

impl<P: ProvideCredential> ProvideCredential for Bounded<P> {
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

/// Files of credentials.
#[derive(Debug)]
struct Files(Search);

impl FileRead for Files {
    async fn file_read(&self, path: &str) -> reqsign_core::Result<Vec<u8>> {
        files::read(Path::new(path)).map_err(|error| {
            let text = format!("can not read {path}: {error}");
            match error.kind() {
                // As most of those that are looked for.
                io::ErrorKind::NotFound => unexpected(text),
                _ => self.0.note(text),
            }
        })
    }
}

/// Programs that tell credentials (`credential_process`).
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
        // Its words may be secret, and so may what it says.
        let failed = |why: String| self.search.note(format!("the program {program} {why}"));
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.process_group(0).spawn();
        let child = child.map_err(|error| failed(format!("can not be run: {error}")))?;
        let mut running = Running(child);
        let stdout = running.output(until).map_err(|error| failed(error.to_string()))?;
        let status = running.status(until).map_err(|error| failed(error.to_string()))?;
        if status != 0 {
            let _ = failed(format!("failed with status {status}"));
        }
        Ok(CommandOutput { status, stdout, stderr: Vec::new() })
    }
}

/// A program, which ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

impl Running {
    /// What it says until it ends: others that it started may have its output still.
    fn output(&mut self, until: Instant) -> io::Result<Vec<u8>> {
        let mut stdout = self.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let end = pidfd_open(Pid::from_child(&self.0), PidfdFlags::empty())?;
        let (mut said, mut some) = (Vec::new(), [0; 4096]);
        let mut has_ended = false;
        loop {
            let mut both = [PollFd::new(&stdout, PollFlags::IN), PollFd::new(&end, PollFlags::IN)];
            let left = if has_ended { Duration::ZERO } else { left(until)? };
            let watched = if has_ended { 1 } else { 2 };
            match wait_for(both.get_mut(..watched).unwrap_or_default(), left)? {
                0 if has_ended => return Ok(said),
                0 => continue,
                _ => {}
            }
            let [output, ended] = both.map(|one| !one.revents().is_empty());
            has_ended |= ended;
            if !output {
                continue;
            }
            match stdout.read(&mut some)? {
                0 => return Ok(said),
                count => said.extend(some.iter().take(count)),
            }
            if said.len() > OUTPUT_BYTES_MAX {
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

/// Services that tell credentials.
#[derive(Debug)]
struct Teller {
    agent: Agent,
    search: Search,
}

impl Teller {
    fn new(search: Search) -> Teller {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(ANSWER_TIME / 5))
            .build();
        Teller { agent: config.into(), search }
    }
}

impl HttpSend for Teller {
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
        let troubles = search.guard().troubles.clone();
        (output.ok(), troubles)
    }

    #[test]
    fn a_program_that_tells_is_heard() {
        let (output, troubles) = run("echo told; exit 0", COMMAND_TIME);
        let output = output.expect("it runs");
        assert_eq!((output.status, output.stdout.as_slice()), (0, &b"told\n"[..]));
        assert_eq!(troubles, Vec::<String>::new());
        // It has ended, and what it started goes on with its output.
        let (output, _) = run("echo told; sleep 100 & exit 3", COMMAND_TIME);
        let output = output.expect("it runs");
        assert_eq!((output.status, output.stdout.as_slice()), (3, &b"told\n"[..]));
    }

    #[test]
    fn a_program_that_does_not_end_or_says_too_much_is_ended() {
        let short = Duration::from_millis(50);
        for (script, time, why) in [
            ("sleep 1000; echo secret", short, "the program sh does not end in time"),
            ("exec >&-; sleep 1000", short, "the program sh does not end in time"),
            ("yes secret", COMMAND_TIME, "the program sh says more than credentials are"),
        ] {
            let (output, troubles) = run(script, time);
            assert!(output.is_none(), "{script}");
            assert_eq!(troubles, [why], "{script}");
        }
        let (output, troubles) = run("echo secret >&2; exit 5", COMMAND_TIME);
        assert!(output.is_some_and(|output| output.status == 5 && output.stderr.is_empty()));
        assert_eq!(troubles, ["the program sh failed with status 5"]);
    }

    /// Asks a service and has none.
    #[derive(Debug)]
    struct Asks(Arc<AtomicU32>);

    impl ProvideCredential for Asks {
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
    fn a_search_that_failed_is_not_made_again_by_each_who_waited() {
        let (search, asked) = (Search::default(), Arc::new(AtomicU32::new(0)));
        let context = Context::new().with_file_read(Files(search.clone()));
        let places = Bounded { places: Asks(Arc::clone(&asked)), search };
        for _ in 0..3 {
            let failed = wait(places.provide_credential(&context)).expect_err("none").to_string();
            assert!(failed.contains("can not read /dev/zero: it is too large"), "{failed}");
            assert_eq!(failed.lines().count(), 1, "{failed}");
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn all_requests_of_a_search_together_have_an_end() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("bound"));
        let search = Search::default();
        search.begin(Duration::from_millis(100));
        let teller = Teller::new(search.clone());
        let ask = || {
            let request = Request::get(&url).body(Bytes::new()).expect("a request");
            wait(teller.http_send(request)).expect_err("nobody answers").to_string()
        };
        // The first uses it up, and no other is begun.
        ask();
        let second = ask();
        assert!(second.contains("the search for them took too long"), "{second}");
        assert_eq!(search.guard().troubles, ["the search for them took too long"]);
    }
}
