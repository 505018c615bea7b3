//! Starting daemon processes: all at once, then waiting on their pipes until each is ready.
//!
//! A daemon is started through `forebay daemon-exec`, which makes it a session of its own, so that
//! no terminal's signals reach it, moves the pipe to a descriptor of its own, and becomes the
//! daemon. The daemon's last act of starting is one line on that pipe.

use crate::failure::{Failure, Result};
use crate::process::{Identity, limit};
use crate::progress::Progress;
use rustix::event::{PollFd, PollFlags, poll};
use serde::Deserialize;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

/// Longest line of readiness.
const LINE_BYTES_MAX: usize = 4096;
/// Lines of a log that a failure shows.
const LOG_LINES: usize = 5;
/// Bytes of a log's end in which they are looked for.
const LOG_BYTES: u64 = 8192;

/// One daemon to start.
#[derive(Debug)]
pub(crate) struct Order {
    /// Its number.
    pub(crate) index: u16,
    /// What it is, for people.
    pub(crate) what: String,
    /// Its words, without `--ready-fd`.
    pub(crate) words: Vec<OsString>,
    /// Its variables.
    pub(crate) variables: Vec<(&'static str, String)>,
    /// Its log.
    pub(crate) log: PathBuf,
}

/// One daemon that is ready.
#[derive(Debug)]
pub(crate) struct Ready {
    /// Its number.
    pub(crate) index: u16,
    /// Its process.
    pub(crate) process: Identity,
    /// Where its peers reach it.
    pub(crate) tcp: String,
}

/// The line of a daemon.
#[derive(Deserialize)]
struct Line {
    ready: bool,
    #[serde(default)]
    tcp: String,
}

struct Starting {
    order: Order,
    child: Child,
    pipe: ChildStdout,
    said: Vec<u8>,
}

/// Daemons that are being started. Those that are not `finish`ed are killed when this goes.
#[derive(Default)]
pub(crate) struct Spawned {
    all: Vec<Starting>,
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
    /// Starts all.
    ///
    /// # Errors
    /// A log or a process can not be made; what was started before is killed.
    pub(crate) fn start(program: &Path, orders: Vec<Order>) -> Result<Spawned> {
        let own = std::env::current_exe()
            .map_err(|error| Failure::at("can not find", "this program", error))?;
        let mut spawned = Spawned::default();
        for order in orders {
            let mut options = OpenOptions::new();
            let log = options.create(true).append(true).mode(0o600).open(&order.log);
            let log = log.map_err(|error| {
                Failure::at("can not write the log", order.log.display(), error)
            })?;
            let mut child = Command::new(&own)
                .arg("daemon-exec")
                .arg(program)
                .args(&order.words)
                .envs(order.variables.iter().map(|(name, value)| (name, value)))
                .env_remove("LD_PRELOAD")
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(log)
                .current_dir("/")
                .spawn()
                .map_err(|error| Failure::at("can not start", own.display(), error))?;
            if let Some(pipe) = child.stdout.take() {
                spawned.all.push(Starting { order, child, pipe, said: Vec::new() });
            }
        }
        Ok(spawned)
    }

    /// Waits until all are ready.
    ///
    /// # Errors
    /// One ended or said something else, or time is up; the end of its log is in the text.
    pub(crate) fn wait(&mut self, until: Instant, progress: &mut Progress) -> Result<Vec<Ready>> {
        loop {
            let mut waiting: Vec<&mut Starting> =
                self.all.iter_mut().filter(|one| !one.said.contains(&b'\n')).collect();
            if waiting.is_empty() {
                return self.all.iter().map(Starting::ready).collect();
            }
            let left = until.saturating_duration_since(Instant::now());
            if let (true, Some(one)) = (left.is_zero(), waiting.first()) {
                return Err(one.failure("was not ready in time"));
            }
            let is_readable: Vec<bool> = {
                let mut polled: Vec<_> =
                    waiting.iter().map(|one| PollFd::new(&one.pipe, PollFlags::IN)).collect();
                let _ = poll(&mut polled, Some(&limit(left)));
                polled.iter().map(|one| !one.revents().is_empty()).collect()
            };
            for (one, is_readable) in waiting.iter_mut().zip(is_readable) {
                if is_readable {
                    one.read()?;
                }
            }
            progress.tick();
        }
    }

    /// Lets them live on.
    pub(crate) fn finish(mut self) {
        self.all.clear();
    }
}

impl Starting {
    fn read(&mut self) -> Result<()> {
        let mut part = [0; LINE_BYTES_MAX];
        let length = self.pipe.read(&mut part).unwrap_or(0);
        self.said.extend_from_slice(part.get(..length).unwrap_or_default());
        if length == 0 || self.said.len() > LINE_BYTES_MAX {
            return Err(self.failure("ended before it was ready"));
        }
        Ok(())
    }

    fn ready(&self) -> Result<Ready> {
        let line = self.said.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let pid = self.child.id().cast_signed();
        match (serde_json::from_slice::<Line>(line), Identity::of(pid)) {
            (_, Err(error)) => Err(self.failure(&format!("can not be looked at ({error})"))),
            (Ok(Line { ready: true, tcp }), Ok(Some(process))) => {
                Ok(Ready { index: self.order.index, process, tcp })
            }
            (_, Ok(None)) => Err(self.failure("ended as soon as it was ready")),
            _ => Err(self.failure("said something else than that it is ready")),
        }
    }

    fn failure(&self, what: &str) -> Failure {
        let log = &self.order.log;
        let end = end_of(log);
        let log = if end.is_empty() { "  its log is empty".to_owned() } else { end };
        Failure::new(format!("{} {what}: the end of its log:\n{log}", self.order.what))
    }
}

/// The last lines of a log, indented.
fn end_of(path: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(path)?;
        let begin = file.metadata()?.len().saturating_sub(LOG_BYTES);
        file.seek(SeekFrom::Start(begin))?;
        let mut bytes = Vec::new();
        file.take(LOG_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let text = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let first = lines.len().saturating_sub(LOG_LINES);
    let lines: Vec<_> = lines.iter().skip(first).map(|line| format!("  {line}")).collect();
    lines.join("\n")
}

/// What `daemon-exec` does: becomes the daemon. Comes back only when that fails.
pub(crate) fn become_daemon(words: &[&OsString]) -> Failure {
    let Some((program, words)) = words.split_first() else {
        return Failure::new("daemon-exec: no program");
    };
    // Fails only for a leader of a process group, which then has a session already.
    let _ = rustix::process::setsid();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    // The pipe leaves standard output, which from now on goes to the log as well.
    let pipe = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3).and_then(|pipe| {
        rustix::io::fcntl_setfd(&pipe, rustix::io::FdFlags::empty())?;
        Ok(pipe)
    });
    let pipe = match pipe {
        Ok(pipe) => pipe,
        Err(error) => return Failure::at("can not keep", "the pipe to the starter", error),
    };
    if let Err(error) = rustix::stdio::dup2_stdout(rustix::stdio::stderr()) {
        return Failure::at("can not write", "to the log", error);
    }
    let number = rustix::fd::AsRawFd::as_raw_fd(&pipe).to_string();
    let error = Command::new(program).args(words).arg("--ready-fd").arg(number).exec();
    Failure::at("can not run", program.display(), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_shown() {
        let place = tempfile::tempdir().expect("a directory");
        let log = place.path().join("log");
        assert_eq!(end_of(&log), "");
        let lines: Vec<_> = (0..5000).map(|number| format!("line {number}\n\n")).collect();
        std::fs::write(&log, lines.concat()).expect("written");
        let end = end_of(&log);
        assert!(end.starts_with("  line 4995\n") && end.ends_with("  line 4999"), "{end}");
    }
}
