//! Rules reach all daemons. Their arbiter changes them; it sends them to each daemon until that has them,
//! and again when one connects. A command given elsewhere goes to the arbiter, until that has answered it
//! or its sender gives up; the arbiter carries it out once.
//!
//! Messages may be lost with any connection. A daemon answers rules with what it has afterwards: their
//! version, or rules of its own that are as new, because the arbiter lost those that it kept.
//!
//! The arbiter is daemon 0, until that is to leave the instance; then the first one that is not. A new
//! arbiter asks all others for their rules, and decides nothing before the one before has answered, or
//! has had time to: that may have carried out a command which nobody else knows.

use crate::shares::inbox::KnownDaemons;
use crate::shares::rule_set::{Authority, RuleSet};
use qos::exchange::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::SyncSender;

/// How often rules are sent again.
pub(crate) const AGAIN_NANOS: u64 = 1_000_000_000;
/// How often a command is sent again.
const COMMAND_AGAIN_NANOS: u64 = 500_000_000;
/// How long a command waits for the arbiter: less than `forebay qos` waits, so that it says why.
pub(crate) const COMMAND_NANOS: u64 = 2_500_000_000;
/// Commands that wait for the arbiter; the sender of the oldest gives up then.
const COMMANDS_MAX: usize = 64;
/// How long a new arbiter waits for the answer of the one before, which may be dead.
const SUCCESSION_NANOS: u64 = 2 * AGAIN_NANOS;
const _: () = assert!(SUCCESSION_NANOS < COMMAND_NANOS);

/// A command that the arbiter has not answered.
struct OpenCommand {
    message: Vec<u8>,
    answer: SyncSender<String>,
    again_at: u64,
    until: u64,
}

/// See the module.
pub(crate) struct Spread {
    /// Index of the arbiter, and whether it is this daemon.
    arbiter: u16,
    is_arbiter: bool,
    /// Daemons that have left.
    left: BTreeSet<u16>,
    /// In a new arbiter: the one before, and how long its answer is waited for.
    before: Option<(u16, u64)>,
    /// There: the version that each other daemon has; `None`: it connected and has not said it.
    has: BTreeMap<u16, Option<u64>>,
    authority: Authority,
    sent_at: u64,
    commands: BTreeMap<u64, OpenCommand>,
    /// Of the last command. Those of a later start are higher.
    number: u64,
}

impl Spread {
    /// For daemon 0 of so many, which has these rules.
    pub(crate) fn of_first(now: u64, daemons: u16, rules: &RuleSet) -> Spread {
        let authority = if rules.version > 0 { Authority::Decided } else { Authority::Open };
        let has = (1..daemons).map(|daemon| (daemon, Some(0))).collect();
        Spread { is_arbiter: true, has, authority, ..Spread::of_other(now) }
    }

    /// For another daemon. `now` is in nanoseconds since 1970.
    pub(crate) const fn of_other(now: u64) -> Spread {
        Spread {
            arbiter: 0,
            is_arbiter: false,
            left: BTreeSet::new(),
            before: None,
            has: BTreeMap::new(),
            authority: Authority::Open,
            sent_at: 0,
            commands: BTreeMap::new(),
            number: now,
        }
    }

    pub(crate) const fn is_arbiter(&self) -> bool {
        self.is_arbiter
    }

    /// Index of the arbiter.
    pub(crate) const fn arbiter(&self) -> u16 {
        self.arbiter
    }

    /// The instance has these daemons now, of which this one has the index `own`. True if another one is
    /// the arbiter than before.
    pub(crate) fn set_daemons(&mut self, now: u64, own: u16, known: &KnownDaemons) -> bool {
        self.left.clone_from(&known.left);
        self.has.retain(|daemon, _| !known.left.contains(daemon));
        let before = std::mem::replace(&mut self.arbiter, known.arbiter);
        if before == known.arbiter {
            return false;
        }
        self.is_arbiter = known.arbiter == own;
        self.has.clear();
        self.before = None;
        if self.is_arbiter {
            let others = (0..known.count).filter(|it| *it != own && !known.left.contains(it));
            self.has = others.map(|daemon| (daemon, None)).collect();
            self.authority = Authority::Open;
            self.before = Some((before, now.saturating_add(SUCCESSION_NANOS)));
        }
        self.sent_at = 0;
        self.commands.values_mut().for_each(|command| command.again_at = 0);
        true
    }

    /// Whether the arbiter may carry out commands.
    pub(crate) fn may_decide(&self, now: u64) -> bool {
        self.before.is_none_or(|(before, until)| {
            now >= until || !matches!(self.has.get(&before), Some(None))
        })
    }

    /// A daemon is connected, perhaps one that was added: it has an unknown version, and what was sent to
    /// it may be lost.
    pub(crate) fn note_up(&mut self, daemon: u16) {
        if self.is_arbiter && !self.left.contains(&daemon) {
            self.has.insert(daemon, None);
        }
        if daemon == self.arbiter {
            self.commands.values_mut().for_each(|command| command.again_at = 0);
        }
        self.sent_at = 0;
    }

    /// A daemon has this version.
    pub(crate) fn note_has(&mut self, daemon: u16, version: u64) {
        if self.is_arbiter && !self.left.contains(&daemon) {
            self.has.insert(daemon, Some(version));
        }
    }

    /// Whether a daemon has to be sent this version, or the arbiter a command.
    pub(crate) fn is_open(&self, version: u64) -> bool {
        !self.commands.is_empty()
            || self.has.values().any(|has| has.is_none_or(|has| has < version))
    }

    /// The daemons to send this version to now.
    pub(crate) fn receivers(&mut self, now: u64, version: u64) -> Vec<u16> {
        if now < self.sent_at.saturating_add(AGAIN_NANOS) {
            return Vec::new();
        }
        self.sent_at = now;
        let open = self.has.iter().filter(|(_, has)| has.is_none_or(|has| has < version));
        open.map(|(&daemon, _)| daemon).collect()
    }

    /// In the arbiter: its rules were changed by a command.
    pub(crate) const fn decided(&mut self) {
        (self.authority, self.sent_at) = (Authority::Decided, 0);
    }

    /// The rules of a daemon that was sent these; `None`: as they are.
    ///
    /// # Errors
    /// The line that is no rule, and why.
    pub(crate) fn meet(
        &mut self,
        rules: &RuleSet,
        from: u16,
        (version, text): (u64, &str),
    ) -> Result<Option<RuleSet>, String> {
        if from == self.arbiter {
            return rules.taught(version, text);
        }
        self.note_has(from, version);
        let reminded = rules.reminded(version, text, self.authority);
        if matches!(reminded, Ok(Some(_))) {
            self.sent_at = 0;
        }
        reminded
    }

    /// The answer to rules of the arbiter of a daemon that has these afterwards.
    pub(crate) fn answer_to_rules(rules: &RuleSet, (version, text): (u64, &str)) -> Vec<u8> {
        let mut bytes = Vec::new();
        if rules.is(version, text) {
            Message::Has(version).encode(&mut bytes);
        } else {
            Message::Rules(rules.version, &rules.rules.to_text()).encode(&mut bytes);
        }
        bytes
    }

    /// A command for the arbiter, sent by `commands_due`.
    pub(crate) fn command(&mut self, now: u64, text: &str, answer: SyncSender<String>) {
        self.number += 1;
        while self.commands.len() >= COMMANDS_MAX {
            self.commands.pop_first();
        }
        let mut message = Vec::new();
        Message::Command(self.number, text).encode(&mut message);
        let until = now.saturating_add(COMMAND_NANOS);
        self.commands.insert(self.number, OpenCommand { message, answer, again_at: now, until });
    }

    /// The commands to send to the arbiter now, as messages.
    pub(crate) fn commands_due(&mut self, now: u64) -> Vec<Vec<u8>> {
        self.commands.retain(|_, command| now < command.until);
        let due = self.commands.values_mut().filter(|command| command.again_at <= now);
        due.map(|command| {
            command.again_at = now.saturating_add(COMMAND_AGAIN_NANOS);
            command.message.clone()
        })
        .collect()
    }

    /// The sender of a command gets its answer.
    pub(crate) fn answer(&mut self, number: u64, text: &str) {
        if let Some(command) = self.commands.remove(&number) {
            let _ = command.answer.try_send(text.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shares::rule_set::CommandId;
    use std::collections::VecDeque;
    use std::sync::mpsc::{Receiver, sync_channel};

    const SECOND: u64 = 1_000_000_000;

    /// Daemons with rules, and messages between them, as the dispatcher passes them.
    struct RuleWorld {
        now: u64,
        daemons: Vec<(RuleSet, Spread)>,
        /// From, to, and bytes.
        sent: VecDeque<(u16, u16, Vec<u8>)>,
    }

    fn first(now: u64, rules: RuleSet) -> (RuleSet, Spread) {
        let spread = Spread::of_first(now, 3, &rules);
        (rules, spread)
    }

    impl RuleWorld {
        fn new() -> RuleWorld {
            let other = || (RuleSet::default(), Spread::of_other(1));
            let daemons = vec![first(1, RuleSet::default()), other(), other()];
            let mut world = RuleWorld { now: SECOND, daemons, sent: VecDeque::new() };
            for (daemon, peer) in [(0, 1), (0, 2), (1, 0), (2, 0)] {
                world.daemons[daemon].1.note_up(peer);
            }
            world
        }

        /// Time passes, and each daemon sends what is due.
        fn pass(&mut self, nanos: u64) {
            self.now += nanos;
            for (own, (rules, spread)) in (0..).zip(&mut self.daemons) {
                let text = rules.rules.to_text();
                for to in spread.receivers(self.now, rules.version) {
                    let mut bytes = Vec::new();
                    Message::Rules(rules.version, &text).encode(&mut bytes);
                    self.sent.push_back((own, to, bytes));
                }
                let due = spread.commands_due(self.now).into_iter();
                let arbiter = spread.arbiter();
                self.sent.extend(due.map(|bytes| (own, arbiter, bytes)));
            }
        }

        /// The messages on their way arrive, and the answers to them are on theirs.
        fn deliver(&mut self) {
            for (from, to, bytes) in std::mem::take(&mut self.sent) {
                let (rules, spread) = &mut self.daemons[usize::from(to)];
                match Message::decode(&bytes).expect("a message") {
                    // One of the two does not know the arbiter yet.
                    Message::Rules(..) if spread.is_arbiter() == (from == spread.arbiter()) => {}
                    Message::Rules(version, text) => {
                        let met = spread.meet(rules, from, (version, text)).expect("rules");
                        *rules = met.unwrap_or_else(|| rules.clone());
                        if !spread.is_arbiter() {
                            let answer = Spread::answer_to_rules(rules, (version, text));
                            self.sent.push_back((to, from, answer));
                        }
                    }
                    Message::Has(version) => spread.note_has(from, version),
                    Message::Command(..)
                        if !spread.is_arbiter() || !spread.may_decide(self.now) => {}
                    Message::Command(number, text) => {
                        let text = carry_out(rules, spread, (from, number), text);
                        let mut bytes = Vec::new();
                        Message::Outcome(number, &text).encode(&mut bytes);
                        self.sent.push_back((to, from, bytes));
                    }
                    Message::Outcome(number, text) => spread.answer(number, text),
                    other => panic!("{other:?}"),
                }
            }
        }

        /// Everything arrives until nothing is to be sent.
        fn settle(&mut self) {
            for _ in 0..8 {
                self.pass(AGAIN_NANOS);
                (0..3).for_each(|_| self.deliver());
            }
            assert!(self.daemons.iter().all(|(rules, spread)| !spread.is_open(rules.version)));
        }

        fn command(&mut self, daemon: usize, text: &str) -> Receiver<String> {
            let (answer, answers) = sync_channel(1);
            self.daemons[daemon].1.command(self.now, text, answer);
            self.pass(0);
            answers
        }

        fn texts(&self) -> Vec<String> {
            self.daemons.iter().map(|(rules, _)| rules.rules.to_text()).collect()
        }
    }

    fn carry_out(rules: &mut RuleSet, spread: &mut Spread, id: CommandId, text: &str) -> String {
        if !rules.has_done(id) {
            match rules.after(text) {
                Err(why) => return why,
                Ok(after) => *rules = after,
            }
            rules.note_done(id);
            spread.decided();
        }
        "done".to_owned()
    }

    #[test]
    fn a_command_whose_answer_is_lost_is_repeated_and_carried_out_once() {
        let mut world = RuleWorld::new();
        world.settle();
        let answers = world.command(2, "start a * rate=1");
        world.deliver();
        // The answer, and the rules for the other daemons.
        world.sent.clear();
        world.pass(COMMAND_AGAIN_NANOS);
        (0..2).for_each(|_| world.deliver());
        assert_eq!(answers.try_recv().as_deref(), Ok("done"));
        world.settle();
        assert_eq!(world.texts(), ["start a * rate=1\n"; 3]);
        assert_eq!(world.daemons[0].0.version, 1);
        // A daemon that begins again has other numbers, and its commands are other ones.
        world.daemons[2].1 = Spread::of_other(world.now);
        let answers = world.command(2, "stop a");
        world.settle();
        assert_eq!(
            (answers.try_recv().as_deref(), world.texts()),
            (Ok("done"), vec![String::new(); 3])
        );
    }

    #[test]
    fn a_command_is_repeated_when_daemon_0_is_back_and_not_after_its_sender_gave_up() {
        let mut world = RuleWorld::new();
        world.settle();
        let answers = world.command(1, "start a * rate=1");
        world.sent.clear();
        world.pass(COMMAND_AGAIN_NANOS / 2);
        assert!(world.sent.is_empty());
        world.daemons[1].1.note_up(0);
        world.settle();
        assert_eq!(answers.try_recv().as_deref(), Ok("done"));
        let answers = world.command(1, "stop a");
        world.sent.clear();
        world.pass(COMMAND_NANOS);
        assert!(world.sent.is_empty());
        world.settle();
        assert!(answers.try_recv().is_err());
        assert_eq!(world.texts(), ["start a * rate=1\n"; 3]);
    }

    #[test]
    fn daemon_0_that_lost_its_rules_gets_them_back() {
        let mut world = RuleWorld::new();
        for name in ["a", "b", "c"] {
            drop(world.command(1, &format!("start {name} * rate=1")));
            world.settle();
        }
        let before = world.texts();
        world.daemons[0] = first(world.now, RuleSet::default());
        for peer in [1, 2] {
            world.daemons[0].1.note_up(peer);
        }
        world.settle();
        assert_eq!(world.texts(), before);
        assert_eq!(world.daemons[0].0.version, 3);
    }

    #[test]
    fn what_daemon_0_decides_after_its_loss_is_in_force_whatever_the_numbers() {
        for commands in 1..=4 {
            let mut world = RuleWorld::new();
            for name in ["a", "b", "c"] {
                drop(world.command(1, &format!("start {name} * rate=1")));
                world.settle();
            }
            // Nobody has told it of those rules when it carries out the next commands.
            let mut rules = RuleSet::default();
            for number in 0..commands {
                rules = rules.after(&format!("start new{number} * rate=2")).expect("a rule");
            }
            world.daemons[0] = first(world.now, rules);
            for peer in [1, 2] {
                world.daemons[0].1.note_up(peer);
            }
            world.settle();
            let texts = world.texts();
            assert!(texts[0].contains("new0") && !texts[0].contains("start a"), "{texts:?}");
            assert_eq!(texts, vec![texts[0].clone(); 3], "after {commands} commands");
        }
    }

    #[test]
    fn daemons_that_were_added_get_the_rules_from_daemon_0() {
        let mut first = Spread::of_first(1, 2, &RuleSet::default());
        first.note_has(1, 7);
        assert!(!first.is_open(7));
        first.note_up(2);
        assert!(first.is_open(7));
        assert_eq!(first.receivers(2 * AGAIN_NANOS, 7), [2]);
        first.note_has(2, 7);
        assert!(!first.is_open(7));
        let mut other = Spread::of_other(1);
        other.note_up(0);
        assert!(!other.is_open(7), "only daemon 0 sends rules");
    }

    fn known(arbiter: u16, left: &[u16]) -> KnownDaemons {
        KnownDaemons { arbiter, count: 3, left: left.iter().copied().collect() }
    }

    #[test]
    fn the_next_arbiter_has_what_the_one_before_decided_last() {
        // In any order daemons learn that daemon 0 is to leave.
        for order in [[0, 1, 2], [1, 2, 0], [2, 0, 1]] {
            let mut world = RuleWorld::new();
            drop(world.command(2, "start a * rate=1"));
            world.settle();
            // Nobody else is told of this one before.
            drop(world.command(1, "start b * rate=1"));
            world.deliver();
            world.sent.clear();
            let mut answers = None;
            for own in order {
                let now = world.now;
                assert!(world.daemons[usize::from(own)].1.set_daemons(now, own, &known(1, &[])));
                answers = Some(world.command(2, "start c * rate=1"));
                world.deliver();
            }
            world.settle();
            let texts = world.texts();
            assert!(["a", "b", "c"].iter().all(|it| texts[0].contains(&format!("start {it}"))));
            assert_eq!(texts, vec![texts[0].clone(); 3], "{order:?}");
            drop(answers);
            for own in 0..3 {
                let now = world.now;
                assert!(!world.daemons[usize::from(own)].1.set_daemons(now, own, &known(1, &[0])));
            }
            // One that has left is asked and told nothing.
            drop(world.command(2, "stop a"));
            world.daemons[0].0 = RuleSet::default();
            world.settle();
            let texts = world.texts();
            assert!(texts[0].is_empty() && !texts[1].contains("start a"), "{texts:?}");
            assert_eq!(texts[1], texts[2]);
        }
    }

    #[test]
    fn a_new_arbiter_decides_without_the_one_before_that_is_dead() {
        let mut next = Spread::of_other(1);
        assert!(next.set_daemons(SECOND, 1, &known(1, &[])) && next.is_arbiter());
        assert!(!next.may_decide(SECOND + SUCCESSION_NANOS - 1));
        assert!(next.may_decide(SECOND + SUCCESSION_NANOS));
        next.note_has(2, 7);
        assert!(!next.may_decide(SECOND), "another one has answered");
        next.note_has(0, 7);
        assert!(next.may_decide(SECOND));
        assert!(!next.set_daemons(SECOND, 1, &known(1, &[0])) && next.may_decide(SECOND));
        next.note_up(0);
        assert!(!next.is_open(7), "it has left");
        assert!(next.set_daemons(SECOND, 1, &known(2, &[0])) && !next.is_arbiter());
        assert!(next.may_decide(SECOND) && !next.is_open(7));
    }

    #[test]
    fn rules_converge_whatever_is_lost() {
        for seed in 0..64 {
            let mut random = testkit::Random::new(seed);
            let mut world = RuleWorld::new();
            for step in 0..40 {
                match random.uniform(8) {
                    0 => drop(world.command(
                        random.uniform(2) as usize + 1,
                        &format!("start r{step} * rate=1"),
                    )),
                    1 => {
                        // Daemon 0 begins again with what it stored.
                        world.daemons[0] = first(world.now, world.daemons[0].0.clone());
                        (1..3).for_each(|peer| world.daemons[0].1.note_up(peer));
                    }
                    2 => world.sent.clear(),
                    3 | 4 => world.pass(COMMAND_AGAIN_NANOS),
                    _ => world.deliver(),
                }
            }
            world.settle();
            let texts = world.texts();
            assert_eq!(texts, vec![texts[0].clone(); 3], "seed {seed}");
        }
    }
}
