//! Rules reach all daemons. Daemon 0 changes them; it sends them to each daemon until that has them, and
//! again when one connects. A command given elsewhere goes to daemon 0.

use qos::exchange::Message;
use std::collections::BTreeMap;
use std::sync::mpsc::SyncSender;

/// How often rules are sent again.
pub(crate) const AGAIN_NANOS: u64 = 1_000_000_000;
/// Commands that wait for daemon 0; the sender of the oldest gives up then.
const COMMANDS_MAX: usize = 64;

/// See the module.
#[derive(Default)]
pub(crate) struct Spread {
    /// In daemon 0: the version that each other daemon has.
    has: BTreeMap<u16, u64>,
    sent_at: u64,
    commands: BTreeMap<u64, SyncSender<String>>,
    number: u64,
}

impl Spread {
    /// For daemon 0 of so many.
    pub(crate) fn new(daemons: u16) -> Spread {
        Spread { has: (1..daemons).map(|daemon| (daemon, 0)).collect(), ..Spread::default() }
    }

    /// A daemon has this version, or, connected anew, an unknown one.
    pub(crate) fn note_has(&mut self, daemon: u16, version: u64) {
        if let Some(has) = self.has.get_mut(&daemon) {
            *has = version;
        }
    }

    /// Whether a daemon has to be sent this version.
    pub(crate) fn is_open(&self, version: u64) -> bool {
        self.has.values().any(|&has| has < version)
    }

    /// The daemons to send this version to now.
    pub(crate) fn receivers(&mut self, now: u64, version: u64) -> Vec<u16> {
        if now < self.sent_at.saturating_add(AGAIN_NANOS) {
            return Vec::new();
        }
        self.sent_at = now;
        self.has.iter().filter(|&(_, &has)| has < version).map(|(&daemon, _)| daemon).collect()
    }

    /// The next `receivers` are those of a new version.
    pub(crate) const fn send_at_once(&mut self) {
        self.sent_at = 0;
    }

    /// A command for daemon 0, as a message.
    pub(crate) fn command(&mut self, text: &str, answer: SyncSender<String>) -> Vec<u8> {
        self.number += 1;
        while self.commands.len() >= COMMANDS_MAX {
            self.commands.pop_first();
        }
        self.commands.insert(self.number, answer);
        let mut bytes = Vec::new();
        Message::Command(self.number, text).encode(&mut bytes);
        bytes
    }

    /// The sender of a command gets its answer.
    pub(crate) fn answer(&mut self, number: u64, text: &str) {
        if let Some(answer) = self.commands.remove(&number) {
            let _ = answer.try_send(text.to_owned());
        }
    }
}
