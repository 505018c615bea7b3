//! The reason for the end of a daemon, as the end of its log tells it. Its exit status is
//! lost: the process that started it ended long before.

use crate::state::resources;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// Bytes at the end of a log that are read.
const LOG_BYTES: u64 = 8192;
/// The words before the name of a signal in the last line of a daemon (`shm::faults`).
const KILLED: &str = "the daemon is killed by ";
/// The words of a daemon that a signal asked to end.
const STOPPING: &str = " stopping ";

/// The last lines of a log.
pub(crate) fn last_lines(path: &Path, count: usize) -> Vec<String> {
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
    let first = lines.len().saturating_sub(count);
    lines.into_iter().skip(first).map(str::to_owned).collect()
}

/// Why the daemon whose log is `log` ended.
pub(crate) fn reason(log: &Path) -> String {
    reason_in(&last_lines(log, 2), resources::killed_for_memory())
}

fn reason_in(lines: &[String], killed_for_memory: u64) -> String {
    let Some(last) = lines.last() else { return "its log is empty".to_owned() };
    if let Some((_, signal)) = last.split_once(KILLED) {
        return format!("killed by {}", signal.trim_end());
    }
    if last.contains(STOPPING) {
        return "a signal asked it to end".to_owned();
    }
    if let Some((_, error)) = last.split_once("ERROR ") {
        return error.trim().to_owned();
    }
    let killed = "killed by SIGKILL, as its log ends in the middle of work";
    match killed_for_memory {
        0 => killed.to_owned(),
        count => format!(
            "{killed}: the kernel killed processes of this control group {count} times because \
             its memory was full: give less --memory"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_a_log_tells_the_reason() {
        let reason = |line: &str, killed| reason_in(&["INFO ready".into(), line.into()], killed);
        assert_eq!(
            reason("ERROR the daemon is killed by SIGBUS (signal 7): no memory", 0),
            "killed by SIGBUS (signal 7): no memory"
        );
        assert_eq!(
            reason("2026-01-01T00:00:00Z  INFO stopping index=0", 0),
            "a signal asked it to end"
        );
        assert_eq!(
            reason("2026-01-01T00:00:00Z ERROR assertion failed, the daemon aborts: x", 3),
            "assertion failed, the daemon aborts: x"
        );
        let killed = "killed by SIGKILL, as its log ends in the middle of work";
        assert_eq!(reason("2026-01-01T00:00:00Z  INFO peer connected", 0), killed);
        let text = reason("2026-01-01T00:00:00Z  INFO peer connected", 2);
        assert!(text.starts_with(killed) && text.contains("2 times"), "{text}");
        assert_eq!(reason_in(&[], 0), "its log is empty");
    }

    #[test]
    fn the_end_of_a_log_is_read() {
        let place = tempfile::tempdir().expect("a directory");
        let log = place.path().join("log");
        assert!(last_lines(&log, 5).is_empty());
        let lines: Vec<_> = (0..5000).map(|number| format!("line {number}\n\n")).collect();
        std::fs::write(&log, lines.concat()).expect("written");
        let end = last_lines(&log, 5);
        assert_eq!((end.len(), end.first().map(String::as_str)), (5, Some("line 4995")));
    }
}
