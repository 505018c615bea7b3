//! Other hosts: `$FOREBAY_SSH host forebay daemon-start` and its like, with the work on standard
//! input (the secret is in no argument) and one line of JSON as the answer.

use crate::failure::{Failure, Result};
use crate::process::limit;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest work or answer of a host. A pipe holds this much, so writing the work never waits for a
/// command that does not read.
const TEXT_BYTES_MAX: usize = 60 * 1024;
/// What the host itself may take beyond the instance's timeout: it has the same one.
const GRACE: Duration = Duration::from_secs(2);

/// Runs `forebay <command>` on `host`; what it answered.
///
/// # Errors
/// The host can not be reached in `timeout`, or the command ended with no answer.
pub(crate) fn call(
    ssh: &[String],
    host: &str,
    command: &str,
    work: &str,
    timeout: Duration,
) -> Result<String> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::at("can not find", "this program", error))?;
    let own = own.to_string_lossy().into_owned();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._+".contains(&byte);
    if !own.bytes().all(is_plain) {
        let why = "a shell would take its path apart: install it elsewhere";
        return Err(Failure::at("can not be run on other hosts", own, why));
    }
    if work.len() > TEXT_BYTES_MAX {
        return Err(Failure::at("too much work", format!("host {host}"), work.len()));
    }
    let Some((program, words)) = ssh.split_first() else {
        return Err(Failure::at("no command", "setting ssh", "set FOREBAY_SSH"));
    };
    let mut child = Command::new(program)
        .args(words)
        .args([host, &own, command])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            Failure::at("can not run", program, format!("{error}: see FOREBAY_SSH"))
        })?;
    if let Some(mut input) = child.stdin.take() {
        // A command that ended already shows it below.
        let _ = input.write_all(work.as_bytes());
    }
    let answer = read(&mut child, Instant::now() + timeout + GRACE);
    if answer.is_none() {
        let _ = child.kill();
    }
    let _ = child.wait();
    let Some((answer, errors)) = answer else {
        let why =
            format!("no answer in {} s: can '{}' reach it?", timeout.as_secs(), ssh.join(" "));
        return Err(Failure::at("can not be reached", format!("host {host}"), why));
    };
    match answer.lines().find(|line| line.starts_with('{')) {
        Some(line) => Ok(line.to_owned()),
        None => {
            let last = errors.lines().rfind(|line| !line.trim().is_empty());
            let why = last.unwrap_or("it said nothing").trim().to_owned();
            let why = format!("{why}: try '{} {host} {own} version'", ssh.join(" "));
            Err(Failure::at("can not be reached", format!("host {host}"), why))
        }
    }
}

/// Reads both outputs to their ends; `None` if time is up.
fn read(child: &mut Child, until: Instant) -> Option<(String, String)> {
    let (mut output, mut errors) = (child.stdout.take()?, child.stderr.take()?);
    let (mut answer, mut complaint) = (Vec::new(), Vec::new());
    let mut is_open = [true, true];
    // What goes on to hold the second pipe, as a master of shared ssh connections does, is not
    // waited for.
    while is_open[0] {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        // A pipe at its end would be reported for ever.
        let mut polled = vec![PollFd::new(&output, PollFlags::IN)];
        if is_open[1] {
            polled.push(PollFd::new(&errors, PollFlags::IN));
        }
        let _ = poll(&mut polled, Some(&limit(left)));
        let is_ready = |one: Option<&PollFd<'_>>| one.is_some_and(|one| !one.revents().is_empty());
        let ready = [is_ready(polled.first()), is_ready(polled.get(1))];
        drop(polled);
        let mut part = [0; 4096];
        if ready[0] {
            let length = output.read(&mut part).unwrap_or(0);
            answer.extend_from_slice(part.get(..length).unwrap_or_default());
            is_open[0] = length > 0 && answer.len() < TEXT_BYTES_MAX;
        }
        if ready[1] {
            let length = errors.read(&mut part).unwrap_or(0);
            complaint.extend_from_slice(part.get(..length).unwrap_or_default());
            is_open[1] = length > 0 && complaint.len() < TEXT_BYTES_MAX;
        }
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some((text(&answer), text(&complaint)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ssh(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(str::to_owned).to_vec()
    }

    #[test]
    fn an_answer_is_the_line_of_json() {
        // $0 is the host, $2 the command.
        let echo = ssh("read work; echo welcome; echo \"{\\\"$0\\\":\\\"$2 $work\\\"}\"");
        let answer = call(&echo, "c1", "daemon-start", "job\n", Duration::from_secs(5));
        assert_eq!(answer.expect("an answer"), "{\"c1\":\"daemon-start job\"}");
    }

    #[test]
    fn a_host_that_can_not_be_reached_is_named() {
        let refused = ssh("echo 'no route to host' >&2; exit 255");
        let failure = call(&refused, "c7", "daemon-start", "", Duration::from_secs(5));
        let text = failure.expect_err("refused").text().to_owned();
        assert!(text.starts_with("can not be reached: host c7: no route to host"), "{text}");
        let begun = Instant::now();
        let silent = ssh("exec sleep 60");
        let failure = call(&silent, "c8", "daemon-start", "", Duration::from_millis(100));
        let text = failure.expect_err("silent").text().to_owned();
        assert!(text.contains("host c8: no answer in"), "{text}");
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
