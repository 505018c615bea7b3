//! Questions to Slurm, in a job of it.

use crate::process::ssh;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for an answer: without one a command goes on.
const TIME_MAX: Duration = Duration::from_secs(5);

/// The switches of the cluster and their nodes, as `scontrol show topology` prints them. `None`: this is
/// no job of Slurm, or Slurm does not answer.
pub(crate) fn topology() -> Option<String> {
    std::env::var_os("SLURM_JOB_ID")?;
    let mut command = Command::new("scontrol");
    command.args(["show", "topology"]).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().ok()?;
    let answer = ssh::read(&mut child, Instant::now() + TIME_MAX);
    if answer.is_none() {
        let _ = child.kill();
    }
    let has_succeeded = child.wait().is_ok_and(|status| status.success());
    answer.filter(|_| has_succeeded).map(|(text, _)| text)
}
