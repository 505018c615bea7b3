//! The writeback daemon of an instance, `forebay-writeback`, on the host of daemon 0: started with
//! the instance, restarted by the next command that finds it dead, queried, and stopped with the
//! instance. While that host is lost, another one runs one for a flush.

use crate::commands::{files_and_names, human};
use crate::failure::{Failure, Result};
use crate::instance::host::{RECORD as HOST_RECORD, component};
use crate::process::progress::Progress;
use crate::process::spawn::{SpawnRequest, Spawned};
use crate::process::{self, ProcessIdentity};
use crate::state::records::{self, HostRecord, VERSION};
use config::WritebackConfig;
use config::control::{WritebackAnswer, WritebackReport, path_from_hex};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const RECORD: &str = "writeback.json";
const SOCKET: &str = "writeback.sock";
const CONFIG: &str = "writeback.config";
const LOG: &str = "writeback.log";
/// File in which it records its uploads to a bucket.
const UPLOADS: &str = "writeback.uploads";
/// Locked by the command that starts it.
const START_LOCK: &str = "writeback.lock";
/// Locked by the daemon while it runs.
const INSTANCE_LOCK: &str = "writeback.instance";
/// Pause between attempts to take the start lock.
const START_LOCK_PAUSE: Duration = Duration::from_millis(10);
/// Threads that copy. A parallel file system is rarely fast with one.
const THREADS: usize = 4;
/// Threads that copy to an object store, whose latency is higher and which serves requests
/// independently.
const THREADS_BUCKET: usize = 16;
/// Longest wait for one line. The daemon reports its progress ten times per second.
const LINE_TIME: Duration = Duration::from_secs(5);
/// How long an instance that stops waits for the removal of its temporary files from the backing store.
const LEAVE_TIME: Duration = Duration::from_secs(20);
/// Failures that a message lists.
const FAILURES_SHOWN_MAX: usize = 5;

/// The record of the daemon.
#[derive(Serialize, Deserialize)]
struct WritebackRecord {
    version: u32,
    process: ProcessIdentity,
}

/// The failures of a report and their reasons, for people.
fn reasons(report: &WritebackReport) -> String {
    let mut reasons: Vec<String> = report.error.iter().cloned().collect();
    let shown = report.failures.iter().take(FAILURES_SHOWN_MAX);
    reasons.extend(shown.map(|(path, why)| format!("{}: {why}", path.display())));
    let more = report.metrics.failed.saturating_sub(FAILURES_SHOWN_MAX as u64);
    if more > 0 {
        reasons.push(format!("and {more} more"));
    }
    reasons.join("; ")
}

/// True if the writeback daemon belongs on this host.
fn is_here(host: &HostRecord) -> bool {
    host.first == 0 && host.config.has_writeback()
}

/// Starts the writeback daemon if it belongs on this host and does not run.
///
/// # Errors
/// It cannot be started, or reports why it cannot work.
pub(crate) fn ensure(run: &Path) -> Result<()> {
    let Some(host) = records::load::<HostRecord>(run, HOST_RECORD)?.filter(is_here) else {
        return Ok(());
    };
    begin(run, host)
}

/// Starts it on this host if it does not run.
fn begin(run: &Path, host: HostRecord) -> Result<()> {
    if is_alive(run)? && run.join(SOCKET).exists() {
        return Ok(());
    }
    let timeout = Duration::from_micros(host.config.timeout);
    // Only one of several commands that find it dead starts it.
    let _lock = StartLock::take(run, timeout)?;
    if is_alive(run)? {
        if run.join(SOCKET).exists() {
            return Ok(());
        }
        // The run directory was removed and made again. It keeps nothing that must survive.
        if let Some(record) = records::load::<WritebackRecord>(run, RECORD)? {
            process::end(&[record.process], timeout, &mut Progress::new(""))?;
        }
    }
    let is_bucket = host.config.backing.as_deref().is_some_and(backing::is_bucket);
    let config = WritebackConfig {
        run: run.to_owned(),
        home: host.first,
        threads: if is_bucket { THREADS_BUCKET } else { THREADS },
        instance: host.config,
    };
    let path = run.join(CONFIG);
    records::store_config(&path, &config)?;
    let what = "the writeback daemon".to_owned();
    let log = run.join(LOG);
    let request = SpawnRequest { index: 0, what, config: path, words: Vec::new(), log };
    let mut spawned = Spawned::start(&component("forebay-writeback")?, vec![request])?;
    let ready = spawned.wait(Instant::now() + timeout, &mut Progress::new(""))?;
    if let Some(ready) = ready.into_iter().next() {
        records::store(run, RECORD, &WritebackRecord { version: VERSION, process: ready.process })?;
    }
    spawned.finish();
    Ok(())
}

/// The lock of the command that starts the daemon. It is released with this value, or with the
/// command.
struct StartLock {
    _lock: std::fs::File,
}

impl StartLock {
    fn take(run: &Path, timeout: Duration) -> Result<StartLock> {
        let path = run.join(START_LOCK);
        let failed =
            |why: String| Failure::at("cannot start the writeback daemon", path.display(), why);
        let mut options = std::fs::OpenOptions::new();
        let lock = options.create(true).append(true).open(&path);
        let lock = lock.map_err(|error| failed(error.to_string()))?;
        let deadline = Instant::now() + timeout;
        while rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() >= deadline {
                return Err(failed("another forebay command is starting it: try again".to_owned()));
            }
            std::thread::sleep(START_LOCK_PAUSE);
        }
        Ok(StartLock { _lock: lock })
    }
}

fn is_alive(run: &Path) -> Result<bool> {
    match records::load::<WritebackRecord>(run, RECORD)? {
        Some(record) => record.process.is_alive(),
        None => Ok(false),
    }
}

/// Stops the writeback daemon of this host at the end of the instance. It first removes temporary
/// files that it left in the backing directory, as far as that takes at most `timeout`, and 20 s: a
/// directory that does not answer holds up no stop for longer.
///
/// # Errors
/// The state of its process cannot be read.
pub(crate) fn end(run: &Path, timeout: Duration, progress: &mut Progress) -> Result<()> {
    if let Some(record) = records::load::<WritebackRecord>(run, RECORD)? {
        let until = Instant::now() + timeout.min(LEAVE_TIME);
        let _ = query(run, "leave", &mut |_| Instant::now() < until);
        process::end(&[record.process], timeout, progress)?;
    }
    remove_files(run);
    Ok(())
}

fn remove_files(run: &Path) {
    for name in [RECORD, SOCKET, CONFIG, LOG, START_LOCK, INSTANCE_LOCK, UPLOADS] {
        let _ = std::fs::remove_file(run.join(name));
    }
    let _ = std::fs::remove_file(run.join(format!("{LOG}.old")));
}

/// Its report; `None` if it is not on this host or does not answer.
pub(crate) fn status(run: &Path) -> Option<WritebackReport> {
    report(run, "status")
}

/// As `status`, with its accesses to the backing store by file.
pub(crate) fn status_with_files(run: &Path) -> Option<WritebackReport> {
    report(run, "files")
}

fn report(run: &Path, word: &str) -> Option<WritebackReport> {
    let mut last = None;
    query(run, word, &mut |answer| {
        last = Some(answer.report);
        true
    })
    .ok()?;
    last
}

/// Writes all changes back, or those of these paths of the instance (as `path_to_hex` gives them) and
/// everything under them. Gives up when nothing has been written for `timeout`.
///
/// # Errors
/// Names of files that were not written back, each with its reason.
pub(crate) fn flush(
    run: &Path,
    paths: &[String],
    timeout: Duration,
    progress: &mut Progress,
) -> Result<WritebackReport> {
    ensure(run)?;
    flush_by_running(run, paths, timeout, progress)
}

/// As `flush`, where this is another host than that of daemon 0, which is lost: with a daemon that runs
/// until then.
///
/// # Errors
/// As `flush`.
pub(crate) fn flush_instead(
    run: &Path,
    paths: &[String],
    timeout: Duration,
    progress: &mut Progress,
) -> Result<WritebackReport> {
    let host: Option<HostRecord> = records::load(run, HOST_RECORD)?;
    begin(run, host.ok_or_else(|| Failure::new("no instance runs here".to_owned()))?)?;
    let flushed = flush_by_running(run, paths, timeout, progress);
    give_up(run, timeout, progress)?;
    flushed
}

/// Stops the writeback daemon of this host while the instance goes on without it: its files in the
/// backing directory stay.
///
/// # Errors
/// The state of its process cannot be read.
pub(crate) fn give_up(run: &Path, timeout: Duration, progress: &mut Progress) -> Result<()> {
    if let Some(record) = records::load::<WritebackRecord>(run, RECORD)? {
        process::end(&[record.process], timeout, progress)?;
    }
    remove_files(run);
    Ok(())
}

/// As `flush`, or `flush_instead`, as another host asks for it.
///
/// # Errors
/// As `flush`.
pub(crate) fn flush_here(
    run: &Path,
    paths: &[String],
    timeout: Duration,
    progress: &mut Progress,
) -> Result<WritebackReport> {
    match records::load::<HostRecord>(run, HOST_RECORD)? {
        Some(host) if host.first != 0 => flush_instead(run, paths, timeout, progress),
        _ => flush(run, paths, timeout, progress),
    }
}

fn flush_by_running(
    run: &Path,
    paths: &[String],
    timeout: Duration,
    progress: &mut Progress,
) -> Result<WritebackReport> {
    let request = ["flush"].into_iter().chain(paths.iter().map(String::as_str));
    let request = request.collect::<Vec<_>>().join(" ");
    let mut last = WritebackAnswer::default();
    let (mut before, mut since) = ((0, 0, 0), Instant::now());
    let queried = query(run, &request, &mut |answer| {
        let metrics = answer.report.metrics;
        let now = (metrics.written, metrics.dirty, metrics.bytes_dirty);
        if now != before {
            (before, since) = (now, Instant::now());
        }
        progress.show(format!(
            "flushing: {}, {} left ",
            files_and_names(metrics.dirty),
            human(Some(metrics.bytes_dirty))
        ));
        last = answer;
        since.elapsed() < timeout
    });
    progress.hide();
    if let Some((path, why)) = &last.refused {
        let path = path_from_hex(path).unwrap_or_else(|| PathBuf::from(path));
        let path = path.strip_prefix(".").unwrap_or(&path);
        return Err(Failure::at("cannot flush", path.display(), why));
    }
    let left = files_and_names(last.report.metrics.dirty);
    match (queried, last.done) {
        (Ok(()), Some(true)) => Ok(last.report),
        (Ok(()), Some(false)) => Err(Failure::at("not written back", left, reasons(&last.report))),
        (Ok(()), None) => {
            let why = match reasons(&last.report) {
                none if none.is_empty() => {
                    let seconds = timeout.as_secs();
                    format!(
                        "nothing was written for {seconds} s: does the backing directory answer?"
                    )
                }
                reasons => reasons,
            };
            Err(Failure::at("not written back in time", left, why))
        }
        (Err(error), _) => {
            Err(Failure::at("the writeback daemon does not answer", run.display(), error))
        }
    }
}

/// Sends a request and passes each report to `each`, until `each` returns false or the last report
/// came.
fn query(
    run: &Path,
    word: &str,
    each: &mut dyn FnMut(WritebackAnswer) -> bool,
) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(run.join(SOCKET))?;
    stream.set_read_timeout(Some(LINE_TIME))?;
    stream.set_write_timeout(Some(LINE_TIME))?;
    stream.write_all(format!("{word}\n").as_bytes())?;
    for line in BufReader::new(stream).lines() {
        let answer: WritebackAnswer = serde_json::from_str(&line?)?;
        let is_last = answer.done.is_some();
        if !each(answer) || is_last {
            return Ok(());
        }
    }
    Err(ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::metrics::WritebackSample;

    #[test]
    fn the_first_failures_are_listed_with_their_reasons() {
        let failures = (0..7).map(|number| (PathBuf::from(format!("f{number}")), "no".to_owned()));
        let report = WritebackReport {
            metrics: WritebackSample { failed: 7, ..WritebackSample::default() },
            failures: failures.collect(),
            ..WritebackReport::default()
        };
        assert_eq!(reasons(&report), "f0: no; f1: no; f2: no; f3: no; f4: no; and 2 more");
    }
}
