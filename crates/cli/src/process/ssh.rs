//! Requests to other hosts: `$FOREBAY_SSH HOST forebay daemon-start` and the like, with the request
//! on standard input (so the secret is in no argument) and one line of JSON as the reply.

use crate::failure::{Failure, Result};
use crate::process::limit;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest request, or error text. A pipe holds this much, so writing the request never waits for a
/// command that does not read.
const TEXT_BYTES_MAX: usize = 60 * 1024;
/// Longest reply: of a check, which has 300 bytes for each file of the host's daemons.
const REPLY_BYTES_MAX: usize = 1 << 30;
/// Time in addition to the timeout, because the host itself waits for that long.
const GRACE: Duration = Duration::from_secs(2);

/// Runs `forebay <command>` on `host` and returns its reply.
///
/// # Errors
/// The host cannot be reached within `timeout`, or the command ended without a reply.
pub(crate) fn call(
    ssh: &[String],
    host: &str,
    command: &str,
    request: &str,
    timeout: Duration,
) -> Result<String> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::at("cannot find", "this program", error))?;
    let own = own.to_string_lossy().into_owned();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._+".contains(&byte);
    if !own.bytes().all(is_plain) {
        let why = "its path has characters that a shell interprets: install it elsewhere";
        return Err(Failure::at("cannot be run on other hosts", own, why));
    }
    if request.len() > TEXT_BYTES_MAX {
        return Err(Failure::at("request too large", format!("host {host}"), request.len()));
    }
    let Some((program, words)) = ssh.split_first() else {
        return Err(Failure::at("empty command", "setting ssh", "set FOREBAY_SSH"));
    };
    let mut child = Command::new(program)
        .args(words)
        .args([host, &own, command])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| Failure::at("cannot run", program, format!("{error}: see FOREBAY_SSH")))?;
    if let Some(mut input) = child.stdin.take() {
        // If the command has already ended, reading its output shows that.
        let _ = input.write_all(request.as_bytes());
    }
    let answer = read(&mut child, Instant::now() + timeout + GRACE);
    if answer.is_none() {
        let _ = child.kill();
    }
    let _ = child.wait();
    let Some((answer, errors)) = answer else {
        let why =
            format!("no answer in {} s: can '{}' reach it?", timeout.as_secs(), ssh.join(" "));
        return Err(Failure::at("cannot be reached", format!("host {host}"), why));
    };
    match answer.lines().find(|line| line.starts_with('{')) {
        Some(line) => Ok(line.to_owned()),
        None => {
            let last = errors.lines().rfind(|line| !line.trim().is_empty());
            let why = last.unwrap_or("no output").trim().to_owned();
            let why = format!("{why}: try '{} {host} {own} version'", ssh.join(" "));
            Err(Failure::at("cannot be reached", format!("host {host}"), why))
        }
    }
}

/// Reads standard output to its end, and standard error meanwhile; `None` after the deadline.
pub(super) fn read(child: &mut Child, deadline: Instant) -> Option<(String, String)> {
    let (mut output, mut errors) = (child.stdout.take()?, child.stderr.take()?);
    let (mut answer, mut error_text) = (Vec::new(), Vec::new());
    let mut is_open = [true, true];
    // Standard error is not read to its end: a process such as the master of shared ssh connections
    // may keep it open.
    while is_open[0] {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        // A pipe at its end would be reported as ready for ever.
        let mut polled = vec![PollFd::new(&output, PollFlags::IN)];
        if is_open[1] {
            polled.push(PollFd::new(&errors, PollFlags::IN));
        }
        let _ = poll(&mut polled, Some(&limit(left)));
        let is_ready = |one: Option<&PollFd<'_>>| one.is_some_and(|one| !one.revents().is_empty());
        let ready = [is_ready(polled.first()), is_ready(polled.get(1))];
        drop(polled);
        let mut part = [0; 16 << 10];
        if ready[0] {
            let length = output.read(&mut part).unwrap_or(0);
            answer.extend_from_slice(part.get(..length).unwrap_or_default());
            is_open[0] = length > 0 && answer.len() < REPLY_BYTES_MAX;
        }
        if ready[1] {
            let length = errors.read(&mut part).unwrap_or(0);
            error_text.extend_from_slice(part.get(..length).unwrap_or_default());
            is_open[1] = length > 0 && error_text.len() < TEXT_BYTES_MAX;
        }
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some((text(&answer), text(&error_text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ssh(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(str::to_owned).to_vec()
    }

    #[test]
    fn the_reply_is_the_line_of_json() {
        // $0 is the host, $2 the command.
        let echo = ssh("read work; echo welcome; echo \"{\\\"$0\\\":\\\"$2 $work\\\"}\"");
        let answer = call(&echo, "c1", "daemon-start", "job\n", Duration::from_secs(5));
        assert_eq!(answer.expect("an answer"), "{\"c1\":\"daemon-start job\"}");
    }

    #[test]
    fn an_unreachable_host_is_named() {
        let refused = ssh("echo 'no route to host' >&2; exit 255");
        let failure = call(&refused, "c7", "daemon-start", "", Duration::from_secs(5));
        let text = failure.expect_err("refused").text().to_owned();
        assert!(text.starts_with("cannot be reached: host c7: no route to host"), "{text}");
        let begun = Instant::now();
        let silent = ssh("exec sleep 60");
        let failure = call(&silent, "c8", "daemon-start", "", Duration::from_millis(100));
        let text = failure.expect_err("silent").text().to_owned();
        assert!(text.contains("host c8: no answer in"), "{text}");
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
