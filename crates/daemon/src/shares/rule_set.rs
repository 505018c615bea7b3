//! The rules in force, their version, and their record (`shared::kept_record`): a line with
//! the version, a line `done DAEMON NUMBER` for each of the last commands of other daemons that were
//! carried out, then a line for each rule, as `qos::rules` reads it.

use qos::rules::{Pattern, Rule, Rules, TEXT_BYTES_MAX};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use wire::limits::{BULK_BYTES, NAME_BYTES_MAX};

/// First word of the record.
const HEAD: &str = "version ";
/// First word of a line about a command.
const DONE: &str = "done ";
/// Commands that are remembered. Other daemons repeat one for a few seconds.
const DONE_MAX: usize = 256;
/// Most bytes of all rules as text: they are one message.
const ALL_BYTES_MAX: usize = BULK_BYTES;
/// Most directories that rules name.
const DIRS_MAX: usize = 256;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleSet {
    /// Number of changes so far.
    pub(crate) version: u64,
    /// The rules, in their order.
    pub(crate) rules: Rules,
    /// In the arbiter: the last commands of others that it carried out.
    done: VecDeque<CommandId>,
}

/// A command of another daemon: that one, and its number there, which no other command has.
pub(crate) type CommandId = (u16, u64);

/// Whether the rules of the arbiter are in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Authority {
    /// It kept them, or has changed them: they are in force.
    Decided,
    /// It began without any, perhaps in the place of one that had some, or it has just become the
    /// arbiter.
    Open,
}

impl RuleSet {
    /// True if there is no rule.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.all_rules().is_empty()
    }

    /// The rules of a message.
    ///
    /// # Errors
    /// The line that is no rule, and why.
    pub(crate) fn from_message(version: u64, text: &str) -> Result<RuleSet, String> {
        let rules = Rules::from_text(text).map_err(|(line, error)| format!("rule {line}: {error}"));
        Ok(RuleSet { version, rules: rules?, done: VecDeque::new() })
    }

    /// Whether these are the rules of a message.
    pub(crate) fn is(&self, version: u64, text: &str) -> bool {
        version == self.version && text == self.rules.to_text()
    }

    /// The rules of another daemon than the arbiter when that one has these; `None`: as they are.
    ///
    /// # Errors
    /// As `from_message`.
    pub(crate) fn taught(&self, version: u64, text: &str) -> Result<Option<RuleSet>, String> {
        (version > self.version).then(|| RuleSet::from_message(version, text)).transpose()
    }

    /// The rules of the arbiter when another one has these; `None`: as they are. If these are not older,
    /// it has lost what it kept: then what it decided since is in force, and else these are.
    ///
    /// # Errors
    /// As `from_message`.
    pub(crate) fn reminded(
        &self,
        version: u64,
        text: &str,
        own: Authority,
    ) -> Result<Option<RuleSet>, String> {
        if version < self.version || self.is(version, text) {
            return Ok(None);
        }
        match own {
            Authority::Decided => {
                Ok(Some(RuleSet { version: version.saturating_add(1), ..self.clone() }))
            }
            Authority::Open => {
                let done = self.done.clone();
                RuleSet::from_message(version, text).map(|rules| Some(RuleSet { done, ..rules }))
            }
        }
    }

    /// Whether a command was carried out.
    pub(crate) fn has_done(&self, command: CommandId) -> bool {
        self.done.contains(&command)
    }

    /// These are the rules after this command.
    pub(crate) fn note_done(&mut self, command: CommandId) {
        if self.done.len() >= DONE_MAX {
            self.done.pop_front();
        }
        self.done.push_back(command);
    }

    /// The rules that an earlier start kept.
    ///
    /// # Errors
    /// The record is damaged.
    pub(crate) fn from_record(record: &[u8]) -> Result<RuleSet, String> {
        let text = str::from_utf8(record).map_err(|error| error.to_string())?;
        let (head, mut rest) = text.split_once('\n').unwrap_or((text, ""));
        let version = head.strip_prefix(HEAD).and_then(|number| number.parse().ok());
        let version = version.ok_or("it has no version")?;
        let mut done = VecDeque::new();
        while let Some((line, behind)) = rest.strip_prefix(DONE).and_then(|it| it.split_once('\n'))
        {
            let command = line
                .split_once(' ')
                .and_then(|(daemon, number)| Some((daemon.parse().ok()?, number.parse().ok()?)));
            done.push_back(command.ok_or("a command in it has no number")?);
            rest = behind;
        }
        RuleSet::from_message(version, rest).map(|rules| RuleSet { done, ..rules })
    }

    /// The record of the rules, for later starts.
    pub(crate) fn to_record(&self) -> String {
        let mut text = format!("{HEAD}{}\n", self.version);
        for (daemon, number) in &self.done {
            text.push_str(&format!("{DONE}{daemon} {number}\n"));
        }
        text.push_str(&self.rules.to_text());
        text
    }

    /// The rules after a command.
    ///
    /// # Errors
    /// One line for people, with the column of the command.
    pub(crate) fn after(&self, command: &str) -> Result<RuleSet, String> {
        if command.len() > TEXT_BYTES_MAX {
            return Err(format!("column 1: longer than {TEXT_BYTES_MAX} bytes: use several rules"));
        }
        let mut after = RuleSet { version: self.version.saturating_add(1), ..self.clone() };
        after.rules.execute(command).map_err(|error| error.to_string())?;
        let patterns = || after.rules.all_rules().iter().flat_map(|rule| rule.dirs());
        if let Some(why) = patterns().find_map(fault_of_dir) {
            let at = command.find("dir={").unwrap_or(0);
            let column = command.get(..at).map_or(0, |front| front.chars().count()) + 1;
            return Err(format!("column {column}: {why}"));
        }
        let is_unknowable =
            |rule: &Rule| rule.limits().dirty_bytes_max > 0 && rule.dirs().next().is_some();
        if after.rules.all_rules().iter().any(is_unknowable) {
            let at = command.find("dirty=").unwrap_or(0);
            let column = command.get(..at).map_or(0, |front| front.chars().count()) + 1;
            return Err(format!(
                "column {column}: dirty= bounds a job on each target, in all of its directories: \
                 leave out dir="
            ));
        }
        if after.rules.to_text().len() > ALL_BYTES_MAX {
            return Err("column 1: the rules are too long together: stop one first".to_owned());
        }
        if after.dirs().len() > DIRS_MAX {
            return Err(format!("column 1: rules name more than {DIRS_MAX} directories"));
        }
        Ok(after)
    }

    /// The directories that rules name, each once.
    pub(crate) fn dirs(&self) -> Vec<Arc<str>> {
        let patterns = self.rules.all_rules().iter().flat_map(|rule| rule.dirs());
        let texts = patterns.filter_map(|pattern| str::from_utf8(pattern.text()).ok());
        let dirs: BTreeSet<&str> = texts.collect();
        dirs.into_iter().map(Arc::from).collect()
    }

    /// For people: what is odd about the rules of the instance, or of a user's own, although they are in
    /// force.
    pub(crate) fn warnings(&self, owner: Option<u32>) -> Vec<String> {
        let idle = self.rules.idle_rules().into_iter();
        let idle = idle.filter(|(rule, _)| rule.own_user() == owner);
        let line = |(rule, by): (&Rule, &Rule)| {
            let (rule, by) = (rule.name(), by.name());
            format!("rule {rule} decides nothing: {by} stands before it and always matches")
        };
        idle.map(line).collect()
    }
}

/// The user whose own rule a command is about; `None`: it is about one of the instance.
pub(crate) fn own_user_of(command: &str) -> Option<u32> {
    command.strip_prefix("by ")?.split(' ').next()?.parse().ok()
}

/// Why a directory cannot be looked up.
fn fault_of_dir(pattern: &Pattern) -> Option<String> {
    let text = String::from_utf8_lossy(pattern.text());
    if pattern.has_star() {
        return Some(format!("\"{text}\" has a star: name each directory"));
    }
    if text.contains("//") {
        return Some(format!("\"{text}\" has two slashes in a row"));
    }
    let is_odd = |name: &&str| name.len() > NAME_BYTES_MAX || matches!(*name, "." | "..");
    let name = text.split('/').find(is_odd)?;
    Some(format!("\"{name}\" cannot be part of a directory's path here"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(commands: &[&str]) -> RuleSet {
        let execute = |rules: RuleSet, command: &&str| rules.after(command).expect(command);
        commands.iter().fold(RuleSet::default(), execute)
    }

    #[test]
    fn rules_are_kept_with_their_version_and_order() {
        let rules =
            after(&["start a jobid={x y} bw=5M", "start b * rate=2K", "change a inflight=3"]);
        let again = RuleSet::from_record(rules.to_record().as_bytes()).expect("loaded");
        assert_eq!((again.version, again.rules.to_text()), (3, rules.rules.to_text()));
        assert!(again.rules.to_text().starts_with("start b * rate=2000\nstart a jobid={x y} bw="));
        let mut rules = again;
        for number in 0..=DONE_MAX as u64 {
            rules.note_done((7, number));
        }
        let again = RuleSet::from_record(rules.to_record().as_bytes()).expect("loaded");
        assert_eq!((&again.done, again.rules.to_text()), (&rules.done, rules.rules.to_text()));
        assert_eq!([0, 1, DONE_MAX as u64].map(|it| again.has_done((7, it))), [false, true, true]);
        let why = |record: &str| RuleSet::from_record(record.as_bytes()).expect_err("damaged");
        assert_eq!(why("version 3\ndone 7\n"), "a command in it has no number");
        assert!(why("version 3\nstart a * rate=\n").starts_with("rule 1: column 16"));
        assert_eq!(why(""), "it has no version");
    }

    #[test]
    fn directories_are_listed_once_and_idle_rules_are_told() {
        let rules = after(&["start a dir={/x /y} rate=1", "start b dir={/x} & tag={t} rate=2"]);
        assert_eq!(rules.dirs(), [Arc::from("/x"), Arc::from("/y")]);
        assert_eq!(rules.warnings(None), [""; 0]);
        let rules = rules.after("start c * rate=3").expect("a rule");
        let idle = ["b", "a"].map(|name| {
            format!("rule {name} decides nothing: c stands before it and always matches")
        });
        assert_eq!(rules.warnings(None), idle);
    }

    #[test]
    fn each_is_told_of_its_own_rules() {
        let rules = after(&["start a jobid={x} rate=1", "start b * rate=1"]);
        let rules = rules.after("by 7 start a jobid={x} rate=1").expect("a rule");
        let rules = rules.after("by 7 start c * rate=1").expect("a rule");
        let line = |by| format!("rule a decides nothing: {by} stands before it and always matches");
        assert_eq!(rules.warnings(None), [line("b")]);
        assert_eq!((rules.warnings(Some(7)), rules.warnings(Some(8))), (vec![line("c")], vec![]));
        assert_eq!(
            ["by 7 stop a", "stop a", "by x stop a"].map(own_user_of),
            [Some(7), None, None]
        );
    }

    #[test]
    fn a_refused_command_names_the_column_and_changes_nothing() {
        let rules = after(&["start a jobid={x} bw=5M"]);
        for (command, expected) in [
            ("start a * rate=1", "column 7: a rule of this name exists"),
            ("start b * rate=1X", "column 16: \"1X\" is not a number"),
            ("start b uid={1} & dir={/x/*} rate=1", "column 19: \"/x/*\" has a star"),
            ("start b dir={/x/../y} rate=1", "column 9: \"..\" cannot be part"),
            ("start b dir={/y /x//y} rate=1", "column 9: \"/x//y\" has two slashes"),
            ("start b *\nrate=1", "column 10: a control character"),
            ("start b dir={/x} dirty=1G", "column 18: dirty= bounds a job on each target"),
            ("stop c", "column 6: there is no rule of this name"),
            ("by 7 stop a", "column 6: there is no rule of this name"),
            ("by 7 start b dir={/x} rate=1", "column 9: a rule of your own says nothing about"),
        ] {
            let error = rules.after(command).map(|rules| rules.rules.to_text()).expect_err(command);
            assert!(error.starts_with(expected), "{command}: {error}");
        }
    }
}
