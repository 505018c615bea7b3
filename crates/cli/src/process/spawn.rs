//! Starts daemon processes, all at once, and waits on their pipes until each is ready.
//!
//! A daemon is started through `forebay daemon-exec`, which creates a session, so that no signals
//! of a terminal reach it, gives up all else that is the starter's, moves the pipe away from
//! standard output, and becomes the daemon. When
//! the daemon is ready, it writes one line to that pipe.

use crate::failure::{Failure, Result};
use crate::process::ending::last_lines;
use crate::process::progress::Progress;
use crate::process::{ProcessIdentity, limit};
use config::process::EXIT_DAMAGED;
use rustix::event::{PollFd, PollFlags, poll};
use serde::Deserialize;
use signal_hook::low_level::signal_name;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest ready line.
const LINE_BYTES_MAX: usize = 4096;
/// Lines of a log that a failure shows.
const LOG_LINES: usize = 5;

/// Longest wait for the exit status of a daemon that closed its pipe.
const END_TIME: Duration = Duration::from_secs(1);
/// Pause between attempts to read it.
const END_PAUSE: Duration = Duration::from_millis(2);
/// The signal of a process that touches memory for which its file system has no space.
const SIGBUS: i32 = 7;

/// One daemon to start.
#[derive(Debug)]
pub(crate) struct SpawnRequest {
    /// Its number.
    pub(crate) index: u16,
    /// Its name, for people.
    pub(crate) what: String,
    /// Path of its configuration.
    pub(crate) config: PathBuf,
    /// More arguments, which come first; without `--ready-fd`.
    pub(crate) words: Vec<OsString>,
    /// Path of its log.
    pub(crate) log: PathBuf,
}

/// One daemon that is ready.
#[derive(Debug)]
pub(crate) struct ReadyDaemon {
    /// Its number.
    pub(crate) index: u16,
    /// Its process.
    pub(crate) process: ProcessIdentity,
    /// Address on which it listens for other daemons.
    pub(crate) tcp: String,
}

/// The ready line of a daemon.
#[derive(Deserialize)]
struct ReadyLine {
    ready: bool,
    #[serde(default)]
    tcp: String,
}

struct StartingDaemon {
    request: SpawnRequest,
    child: Child,
    pipe: ChildStdout,
    received: Vec<u8>,
    /// It ended with `EXIT_DAMAGED`.
    has_found_damage: bool,
}

/// Daemons that are being started. Dropping this value kills them, unless `finish` was called.
#[derive(Default)]
pub(crate) struct Spawned {
    all: Vec<StartingDaemon>,
}

impl Drop for Spawned {
    fn drop(&mut self) {
        for one in &mut self.all {
            let _ = one.child.kill();
        }
        for one in &mut self.all {
            let _ = one.child.wait();
        }
    }
}

impl Spawned {
    /// Starts all daemons.
    ///
    /// # Errors
    /// A log or a process cannot be created; daemons started before are killed.
    pub(crate) fn start(program: &Path, requests: Vec<SpawnRequest>) -> Result<Spawned> {
        let own = std::env::current_exe()
            .map_err(|error| Failure::at("cannot find", "this program", error))?;
        let mut spawned = Spawned::default();
        for request in requests {
            let mut options = OpenOptions::new();
            let log = options.create(true).append(true).mode(0o600).open(&request.log);
            let log = log.map_err(|error| {
                Failure::at("cannot write the log", request.log.display(), error)
            })?;
            let mut child = Command::new(&own)
                .arg("daemon-exec")
                .arg(program)
                .args(&request.words)
                .arg("--config")
                .arg(&request.config)
                .env_remove("LD_PRELOAD")
                // In a command of `forebay run` the library adds itself; without a run directory it
                // does nothing.
                .env("FOREBAY_RUN", "")
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(log)
                .current_dir("/")
                .spawn()
                .map_err(|error| Failure::at("cannot start", own.display(), error))?;
            if let Some(pipe) = child.stdout.take() {
                let (received, has_found_damage) = (Vec::new(), false);
                let starting = StartingDaemon { request, child, pipe, received, has_found_damage };
                spawned.all.push(starting);
            }
        }
        Ok(spawned)
    }

    /// Waits until all are ready.
    ///
    /// # Errors
    /// One ended or wrote something else, or the deadline passed. The message contains the end of
    /// its log.
    pub(crate) fn wait(
        &mut self,
        deadline: Instant,
        progress: &mut Progress,
    ) -> Result<Vec<ReadyDaemon>> {
        loop {
            let mut waiting: Vec<&mut StartingDaemon> =
                self.all.iter_mut().filter(|one| !one.received.contains(&b'\n')).collect();
            if waiting.is_empty() {
                return self.all.iter().map(StartingDaemon::ready).collect();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let is_readable: Vec<bool> = {
                let mut polled: Vec<_> =
                    waiting.iter().map(|one| PollFd::new(&one.pipe, PollFlags::IN)).collect();
                let _ = poll(&mut polled, Some(&limit(left)));
                polled.iter().map(|one| !one.revents().is_empty()).collect()
            };
            // On a busy machine this program may be late, and not the daemons.
            let is_over = left.is_zero() && !is_readable.contains(&true);
            if let (true, Some(one)) = (is_over, waiting.first()) {
                return Err(one.failure("was not ready in time"));
            }
            for (one, is_readable) in waiting.iter_mut().zip(is_readable) {
                if is_readable {
                    one.read()?;
                }
            }
            progress.tick();
        }
    }

    /// Whether one of them ended since its files are damaged.
    pub(crate) fn have_found_damage(&self) -> bool {
        self.all.iter().any(|one| one.has_found_damage)
    }

    /// Keeps the daemons running.
    pub(crate) fn finish(mut self) {
        self.all.clear();
    }
}

impl StartingDaemon {
    fn read(&mut self) -> Result<()> {
        let mut part = [0; LINE_BYTES_MAX];
        let length = self.pipe.read(&mut part).unwrap_or(0);
        self.received.extend_from_slice(part.get(..length).unwrap_or_default());
        if length == 0 || self.received.len() > LINE_BYTES_MAX {
            return Err(self.ended());
        }
        Ok(())
    }

    fn ready(&self) -> Result<ReadyDaemon> {
        let line = self.received.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let pid = self.child.id().cast_signed();
        match (serde_json::from_slice::<ReadyLine>(line), ProcessIdentity::of(pid)) {
            (_, Err(error)) => Err(self.failure(&format!("cannot be checked ({error})"))),
            (Ok(ReadyLine { ready: true, tcp }), Ok(Some(process))) => {
                Ok(ReadyDaemon { index: self.request.index, process, tcp })
            }
            (_, Ok(None)) => Err(self.failure("ended immediately after it was ready")),
            _ => Err(self.failure("wrote an unexpected line instead of the ready line")),
        }
    }

    /// The failure of a daemon that closed its pipe: a signal that ended it is named.
    fn ended(&mut self) -> Failure {
        // The pipe closes before the process can be waited for.
        let until = Instant::now() + END_TIME;
        let mut status = self.child.try_wait();
        while matches!(status, Ok(None)) && Instant::now() < until {
            std::thread::sleep(END_PAUSE);
            status = self.child.try_wait();
        }
        let status = status.ok().flatten();
        let code = status.and_then(|status| status.code());
        self.has_found_damage = code == Some(EXIT_DAMAGED.into());
        match status.and_then(|status| status.signal()) {
            Some(number) => {
                let name = signal_name(number).unwrap_or("a signal");
                let advice = if number == SIGBUS { ": is /dev/shm full?" } else { "" };
                self.failure(&format!(
                    "was killed by {name} (signal {number}) before it was ready{advice}"
                ))
            }
            None => self.failure("ended before it was ready"),
        }
    }

    fn failure(&self, what: &str) -> Failure {
        let log = &self.request.log;
        let end: Vec<_> =
            last_lines(log, LOG_LINES).iter().map(|line| format!("  {line}")).collect();
        let log = if end.is_empty() { "  (empty)".to_owned() } else { end.join("\n") };
        Failure::of_lines(&format!("{} {what}; the end of its log:\n{log}", self.request.what))
    }
}

/// Becomes the daemon, for `daemon-exec`. Returns only if that fails. The daemon has nothing of the
/// starter's: no descriptor but its log and the pipe, a session, a working directory (`start`), a
/// umask, and dispositions and a mask of signals of its own.
pub(crate) fn become_daemon(words: &[&OsString]) -> Failure {
    let Some((program, words)) = words.split_first() else {
        return Failure::new("daemon-exec: no program");
    };
    // Fails only for a process group leader, which already has a session.
    let _ = rustix::process::setsid();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    preload::starter::keep_nothing();
    // Moves the pipe away from standard output, which then also goes to the log. The program closes
    // the pipe when it is ready, which is possible for a standard descriptor only.
    if let Err(error) = rustix::stdio::dup2_stdin(rustix::stdio::stdout()) {
        return Failure::at("cannot keep", "the pipe to the starter", error);
    }
    if let Err(error) = rustix::stdio::dup2_stdout(rustix::stdio::stderr()) {
        return Failure::at("cannot write", "to the log", error);
    }
    let error = Command::new(program).args(words).arg("--ready-fd").arg("0").exec();
    Failure::at("cannot run", program.display(), error)
}
