//! The log of a program: standard error, which the starter redirects to a file of the run directory.
//! The file is bounded: when it is full it becomes the old one, and a new one is begun.

use config::choice::LogLevel;
use config::printable::{error_text, printable, without_os_error};
use rustix::fs::{FileType, fstat, ftruncate};
use std::fs::{OpenOptions, rename};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Size at which a log becomes the old one. With the old one, a log takes twice as much: a
/// tenth of a small `/run`, and 80,000 lines.
const LOG_BYTES_MAX: u64 = 8 << 20;

/// Writes lines to standard error and bounds the file behind it.
struct LogFile {
    /// Bytes of the file; `None`: standard error is something else, which is not ours to rename.
    length: Mutex<Option<u64>>,
    bytes_max: u64,
}

/// Begins the log of a program of the instance with the run directory `run`.
pub fn begin(level: LogLevel, run: &Path) {
    let length = Mutex::new(length_if_ours(run));
    let file = LogFile { length, bytes_max: LOG_BYTES_MAX };
    tracing_subscriber::fmt()
        .with_max_level(level.word().parse().unwrap_or(tracing::Level::INFO))
        .with_writer(file)
        .with_ansi(false)
        .with_target(false)
        // It would be told on standard error, by a call that panics if that fails as well.
        .log_internal_errors(false)
        .init();
}

/// Reports the error that ends a program: `begin` may not have been called. Nobody may read standard
/// error any more.
pub fn report_error(program: &str, error: &impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "{program}{}", error_text(error));
}

/// The path of the file behind standard error. The starter may rename it.
fn path() -> io::Result<PathBuf> {
    std::fs::read_link("/proc/self/fd/2")
}

/// The length of the file behind standard error, if it is one in the run directory.
fn length_if_ours(run: &Path) -> Option<u64> {
    let stat = fstat(rustix::stdio::stderr()).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let is_there = path().ok()?.parent()? == run.canonicalize().ok()?;
    (is_file && is_there).then(|| u64::try_from(stat.st_size).unwrap_or(0))
}

impl LogFile {
    /// A line for which there is no room is lost: a full disk ends no daemon.
    fn write_line(&self, line: &[u8]) {
        let mut length = self.length.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(length) = &mut *length {
            if *length >= self.bytes_max {
                // Of a file whose directory was removed nothing is kept.
                if replace().is_ok() || ftruncate(rustix::stdio::stderr(), 0).is_ok() {
                    *length = 0;
                }
            }
            *length += line.len() as u64;
        }
        let _ = io::stderr().write_all(line);
    }
}

/// The file becomes the old one, in place of an earlier old one.
fn replace() -> io::Result<()> {
    let path = path()?;
    let mut old = path.clone().into_os_string();
    old.push(".old");
    rename(&path, old)?;
    go_on_in(&path)
}

/// Continues the log in the file `path`: its directory was removed and made again.
///
/// # Errors
/// It cannot be written.
pub fn go_on_in(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let new = options.create(true).append(true).mode(0o600).open(path)?;
    // Standard output goes there, too.
    rustix::stdio::dup2_stdout(&new)?;
    rustix::stdio::dup2_stderr(&new)?;
    Ok(())
}

impl<'a> tracing_subscriber::fmt::MakeWriter<'a> for LogFile {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}

/// Writer of one line; the formatter writes each by one call.
struct Line<'a>(&'a LogFile);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_line(&one_line(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A line as the formatter wrote it, with the names in it escaped, and without the numbers of errors.
fn one_line(bytes: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes.strip_suffix(b"\n").unwrap_or(bytes));
    [printable(&without_os_error(&text)).as_bytes(), b"\n"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_begin_a_line_of_the_log_or_act_on_a_terminal() {
        let line = "INFO cannot read path=/a\n2026 ERROR all is lost\u{1b}[2J\n".as_bytes();
        let expected = "INFO cannot read path=/a\\n2026 ERROR all is lost\\u{1b}[2J\n";
        assert_eq!(String::from_utf8_lossy(&one_line(line)), expected);
    }

    #[test]
    fn an_error_is_named_without_its_number() {
        let line = b"WARN cannot connect error=Connection refused (os error 111) host=a\n";
        let expected = "WARN cannot connect error=Connection refused host=a\n";
        assert_eq!(String::from_utf8_lossy(&one_line(line)), expected);
    }

    /// A process that logs and ends with an error where standard error takes nothing: a full disk, or a
    /// pipe that nobody reads. It is this test once more, as a child.
    #[test]
    fn a_log_that_cannot_be_written_ends_no_process() {
        const CHILD: &str = "FOREBAY_TEST_LOGS";
        if std::env::var_os(CHILD).is_some() {
            begin(LogLevel::Info, Path::new("/no/such"));
            (0..3).for_each(|line| tracing::warn!(line, "nobody reads this"));
            report_error("test: ", &"nor this");
            return;
        }
        let (reader, closed) = io::pipe().expect("a pipe");
        drop(reader);
        let full = OpenOptions::new().write(true).open("/dev/full").expect("open");
        for output in [std::process::Stdio::from(closed), full.into()] {
            let name = "log_file::tests::a_log_that_cannot_be_written_ends_no_process";
            let mut child = std::process::Command::new(std::env::current_exe().expect("a path"));
            // The harness would take what is printed.
            child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").stderr(output);
            let ended = child.output().expect("it runs").status;
            assert!(ended.success(), "{ended}");
        }
    }

    /// Standard error of the tests is another file, so that only the bound is tested: `replace`
    /// would move it.
    #[test]
    fn only_a_file_of_the_run_directory_is_ours() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(length_if_ours(directory.path()), None, "it is another one");
        assert_eq!(length_if_ours(Path::new("/no/such")), None);
    }
}
