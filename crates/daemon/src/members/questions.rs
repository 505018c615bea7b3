//! Questions whether the host of a daemon can be reached, by a message on the connection that there is:
//! the host acknowledges it even if the daemon stands still. Where the daemon was killed there is no
//! connection.

use crate::shared::network::{Network, message};
use net::{Reach, Urgency};
use wire::DaemonIndex;

/// How long a host may take to acknowledge. Linux delays an acknowledgement by 40 ms, and at most 200.
const REACHED_NANOS: i64 = 200_000_000;

/// The questions that are not answered yet, each with its end.
#[derive(Default)]
pub(super) struct Questions {
    asked: Vec<(DaemonIndex, i64)>,
}

impl Questions {
    /// Asks about a daemon.
    pub(super) fn begin(&mut self, net: &Network, daemon: DaemonIndex, now: i64) {
        if !self.asked.iter().any(|(asked, _)| *asked == daemon) {
            net.send(daemon, &[message::ARE_YOU_THERE], Urgency::Now);
            self.asked.push((daemon, now + REACHED_NANOS));
        }
    }

    /// The answers that there are, each whether the daemon is reached.
    pub(super) fn answers(&mut self, net: &Network, now: i64) -> Vec<(DaemonIndex, bool)> {
        let mut answers = Vec::new();
        self.asked.retain(|&(daemon, end)| {
            let answer = match net.sender.reach(daemon) {
                Reach::Acknowledged => Some(true),
                Reach::Unconnected => Some(false),
                Reach::Unacknowledged => (now >= end).then_some(false),
            };
            answers.extend(answer.map(|is_reached| (daemon, is_reached)));
            answer.is_none()
        });
        answers
    }
}
