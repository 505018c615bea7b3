//! The common part of the programs that run in the background: a bounded log (`log_file`), and the
//! word to the starter that they are ready, after which they have nothing of the starter's left.
//!
//! Not here: how they are started, which is `forebay` (`process::spawn`), and what they do.
#![forbid(unsafe_code)]

pub mod log_file;

use std::fs::OpenOptions;
use std::io::{self, Write as _};

/// Writes a line to the pipe on descriptor `fd`, if there is one. On a standard descriptor the pipe
/// is closed then, so that its reader sees the end, and the process keeps nothing of its starter.
///
/// # Errors
/// The descriptor cannot be written.
pub fn report_ready(fd: Option<i32>, line: &str) -> io::Result<()> {
    let Some(fd) = fd else { return Ok(()) };
    let mut pipe = OpenOptions::new().write(true).open(format!("/proc/self/fd/{fd}"))?;
    pipe.write_all(line.as_bytes())?;
    match fd {
        0 => rustix::stdio::dup2_stdin(OpenOptions::new().read(true).open("/dev/null")?)?,
        1 => rustix::stdio::dup2_stdout(rustix::stdio::stderr())?,
        _ => {}
    }
    Ok(())
}
