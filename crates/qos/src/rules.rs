//! Rules of `forebay qos`: which limits a request falls under. The first rule that matches decides.
//!
//! `pattern` matches names, `parse` reads the text of a rule. The form is that of the rules of Lustre's
//! token bucket filter where it fits:
//!
//! ```text
//! start NAME EXPRESSION [rank=OTHER] LIMIT...
//! change NAME [rank=OTHER] LIMIT...
//! stop NAME
//! by USER ...                                  one of these, on a rule of that user's own
//! ```
//!
//! - An expression is `*`, or conditions `key={value value ..}` joined by `&` (all of them) and `,` (one
//!   of the groups). Keys: `uid`, `gid` (numbers and ranges `100-199`), `jobid`, `program`, `tag` (with
//!   `*` for any letters), `dir` (that directory and all below it, or with `*`), `opcode` (an
//!   operation, or `data` or `metadata` for all that move bytes or do not).
//! - Limits: `rate=` operations per second, `bw=` and `min=` bytes per second (`K`, `M`, `G`, `T`: powers
//!   of 1,024), `weight=`, `inflight=`, `dirty=` bytes in the memory of a target (`dirty`), and `per=job`
//!   (the usual) or `per=user`: for each job, or for all jobs of a user together.
//! - A new rule stands before all others; `rank=` puts it before that one.
//! - *Own rules* of users limit requests beside those of the instance, which are decided as if there were
//!   none: a request keeps within both. So they loosen nothing, match their user's requests alone, and
//!   have names of their own. They have caps, for jobs, programs, operations and tags; their number,
//!   length and least rate are bounded, because any user may make some.
//!
//! Elsewhere: the scheduler, which holds the limits (`scheduler`).

mod pattern;

mod parse;

pub use parse::{Fault, RuleError};
pub use pattern::Pattern;

use crate::scheduler::{Limits, WEIGHT_USUAL};
use std::fmt;

/// Most rules.
pub const RULES_MAX: usize = 256;
/// Most bytes of the text of a rule.
pub const TEXT_BYTES_MAX: usize = 4096;
/// Most own rules of a user.
pub const OWN_RULES_MAX: usize = 8;
/// Most own rules of all users.
pub const OWN_RULES_ALL_MAX: usize = 256;
/// Most bytes of the text of an own rule.
pub const OWN_TEXT_BYTES_MAX: usize = 256;
/// Least bytes per second of an own rule. At this rate a request of a bounce buffer, 256 KiB, takes 4 s:
/// a limit that a user gives itself keeps slots of a mount, and locks of its kernel, no longer.
pub const OWN_BYTES_PER_SECOND_MIN: u64 = 64 << 10;
/// Most bytes of a name of a rule.
pub const NAME_BYTES_MAX: usize = 32;

/// Operations that a rule can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Opens of existing files.
    Open,
    /// New files, directories, links and special files.
    Create,
    /// Attributes and look-ups.
    Stat,
    /// Listing directories.
    List,
    /// Removing names.
    Unlink,
    /// Renaming.
    Rename,
    /// Changing attributes.
    SetAttributes,
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Making data durable.
    Sync,
}

/// The word for all operations that move bytes.
pub const DATA_OPERATIONS: &str = "data";
/// The word for all others.
pub const METADATA_OPERATIONS: &str = "metadata";

impl Operation {
    /// All operations, with their names in rules.
    pub const ALL: [(&str, Operation); 10] = [
        ("open", Operation::Open),
        ("create", Operation::Create),
        ("stat", Operation::Stat),
        ("list", Operation::List),
        ("unlink", Operation::Unlink),
        ("rename", Operation::Rename),
        ("setattr", Operation::SetAttributes),
        ("read", Operation::Read),
        ("write", Operation::Write),
        ("sync", Operation::Sync),
    ];

    /// Whether it moves bytes.
    #[must_use]
    pub const fn moves_bytes(self) -> bool {
        matches!(self, Operation::Read | Operation::Write)
    }

    /// The operations that a word names: one, all that move bytes, all others, or none.
    fn named(word: &str) -> impl Iterator<Item = Operation> {
        let is_it = move |name: &str, operation: Operation| match word {
            DATA_OPERATIONS => operation.moves_bytes(),
            METADATA_OPERATIONS => !operation.moves_bytes(),
            _ => name == word,
        };
        let all = Operation::ALL.into_iter();
        all.filter(move |&(name, operation)| is_it(name, operation)).map(|(_, operation)| operation)
    }
}

/// The facts about a request that rules ask for. The user and group are the kernel's word; the others
/// are what the process says.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Job.
    pub job: &'a [u8],
    /// Name of the program.
    pub program: &'a [u8],
    /// Directory of the file in the instance, beginning with `/`.
    pub dir: &'a [u8],
    /// Tag of the job's own.
    pub tag: &'a [u8],
    /// Operation.
    pub operation: Operation,
}

/// A condition: one of its values must match.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    Uid(Vec<(u32, u32)>),
    Gid(Vec<(u32, u32)>),
    Job(Vec<Pattern>),
    Program(Vec<Pattern>),
    Dir(Vec<Pattern>),
    Tag(Vec<Pattern>),
    Operation(Vec<Operation>),
}

impl Condition {
    fn matches(&self, facts: &Facts<'_>) -> bool {
        let within = |ranges: &[(u32, u32)], id: u32| {
            ranges.iter().any(|&(first, last)| first <= id && id <= last)
        };
        let named =
            |patterns: &[Pattern], name: &[u8]| patterns.iter().any(|one| one.matches(name));
        match self {
            Condition::Uid(ranges) => within(ranges, facts.uid),
            Condition::Gid(ranges) => within(ranges, facts.gid),
            Condition::Job(patterns) => named(patterns, facts.job),
            Condition::Program(patterns) => named(patterns, facts.program),
            Condition::Dir(patterns) => patterns.iter().any(|one| one.matches_dir(facts.dir)),
            Condition::Tag(patterns) => named(patterns, facts.tag),
            Condition::Operation(operations) => operations.contains(&facts.operation),
        }
    }
}

impl Condition {
    /// Its key.
    const fn key(&self) -> &'static str {
        match self {
            Condition::Uid(_) => "uid",
            Condition::Gid(_) => "gid",
            Condition::Job(_) => "jobid",
            Condition::Program(_) => "program",
            Condition::Dir(_) => "dir",
            Condition::Tag(_) => "tag",
            Condition::Operation(_) => "opcode",
        }
    }
}

/// To which the limits of a rule apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// To each job.
    Job,
    /// To all jobs of a user together.
    User,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The user whose own rule it is; `None`: it is one of the instance.
    owner: Option<u32>,
    name: String,
    /// The text of the expression, as it was given.
    expression: String,
    /// One of the groups must hold with all of its conditions.
    groups: Vec<Vec<Condition>>,
    limits: Limits,
    scope: Scope,
}

impl Rule {
    /// The user whose own rule it is.
    #[must_use]
    pub const fn own_user(&self) -> Option<u32> {
        self.owner
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its expression, as it was given.
    #[must_use]
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// Its limits.
    #[must_use]
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// To which they apply.
    #[must_use]
    pub const fn scope(&self) -> Scope {
        self.scope
    }

    /// Whether one of its conditions has this key.
    #[must_use]
    pub fn has_key(&self, key: &str) -> bool {
        self.groups.iter().flatten().any(|condition| condition.key() == key)
    }

    /// The directories that its conditions name.
    pub fn dirs(&self) -> impl Iterator<Item = &Pattern> {
        self.groups.iter().flatten().flat_map(|condition| match condition {
            Condition::Dir(patterns) => patterns.as_slice(),
            _ => &[],
        })
    }

    /// Whether each request that falls under `other` falls under this rule, by the texts of their
    /// conditions: each group of `other` has all conditions of one of its groups.
    fn covers(&self, other: &Rule) -> bool {
        let is_within = |group: &Vec<Condition>| {
            self.groups.iter().any(|own| own.iter().all(|condition| group.contains(condition)))
        };
        other.groups.iter().all(is_within)
    }

    /// Whether a request falls under it.
    #[must_use]
    pub fn matches(&self, facts: &Facts<'_>) -> bool {
        if self.owner.is_some_and(|owner| owner != facts.uid) {
            return false;
        }
        self.groups.iter().any(|group| group.iter().all(|condition| condition.matches(facts)))
    }
}

/// The command that starts the rule.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limits {
            weight,
            bytes_per_second_max,
            operations_per_second_max,
            bytes_per_second_min,
            in_flight_max,
            dirty_bytes_max,
        } = self.limits;
        // A rule limits something, so a weight stands there if nothing else does.
        let others = [
            ("rate", operations_per_second_max),
            ("bw", bytes_per_second_max),
            ("min", bytes_per_second_min),
            ("inflight", u64::from(in_flight_max)),
            ("dirty", dirty_bytes_max),
        ];
        let has_other = others.iter().any(|&(_, value)| value > 0);
        if let Some(owner) = self.owner {
            write!(f, "by {owner} ")?;
        }
        write!(f, "start {} {}", self.name, self.expression)?;
        for (key, value) in others.into_iter().filter(|&(_, value)| value > 0) {
            write!(f, " {key}={value}")?;
        }
        if weight != WEIGHT_USUAL || !has_other {
            write!(f, " weight={weight}")?;
        }
        match self.scope {
            Scope::Job => Ok(()),
            Scope::User => write!(f, " per=user"),
        }
    }
}

/// Rules in their order.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
}

impl Rules {
    /// No rules.
    #[must_use]
    pub fn new() -> Rules {
        Rules::default()
    }

    /// The first rule of the instance that matches.
    #[must_use]
    pub fn find_rule(&self, facts: &Facts<'_>) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.owner.is_none() && rule.matches(facts))
    }

    /// The first of the user's own rules that matches.
    #[must_use]
    pub fn find_own_rule(&self, facts: &Facts<'_>) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.owner.is_some() && rule.matches(facts))
    }

    /// All rules, in their order.
    #[must_use]
    pub fn all_rules(&self) -> &[Rule] {
        &self.rules
    }

    /// All rules as text, a line for each, in their order.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.rules.iter().map(|rule| format!("{rule}\n")).collect()
    }

    /// The rules that `to_text` wrote.
    ///
    /// # Errors
    /// A line is no rule: its number, from 1, and its error.
    pub fn from_text(text: &str) -> Result<Rules, (usize, RuleError)> {
        let mut rules = Rules::new();
        let lines: Vec<&str> = text.lines().collect();
        // A new rule stands before the others.
        for (number, line) in (1..).zip(&lines).collect::<Vec<_>>().into_iter().rev() {
            rules.execute(line).map_err(|error| (number, error))?;
        }
        Ok(rules)
    }

    /// Rules that decide nothing, because an earlier one always matches first: each with that one.
    #[must_use]
    pub fn idle_rules(&self) -> Vec<(&Rule, &Rule)> {
        let first_of = |(place, rule): (usize, &Rule)| {
            let mut earlier = self.rules.iter().take(place);
            earlier.find(|earlier| earlier.owner == rule.owner && earlier.covers(rule))
        };
        let pairs = self.rules.iter().enumerate();
        pairs.filter_map(|(place, rule)| Some((rule, first_of((place, rule))?))).collect()
    }

    /// The rule of this name of the instance, or of a user's own.
    #[must_use]
    pub fn named(&self, owner: Option<u32>, name: &str) -> Option<&Rule> {
        self.rules.get(self.place(owner, name)?)
    }

    fn place(&self, owner: Option<u32>, name: &str) -> Option<usize> {
        self.rules.iter().position(|rule| rule.owner == owner && rule.name == name)
    }

    /// True if there is no room for one more.
    fn is_full(&self, owner: Option<u32>) -> bool {
        let count = |is_such: &dyn Fn(Option<u32>) -> bool| {
            self.rules.iter().filter(|rule| is_such(rule.owner)).count()
        };
        match owner {
            None => count(&|one| one.is_none()) >= RULES_MAX,
            Some(_) => {
                count(&|one| one == owner) >= OWN_RULES_MAX
                    || count(&|one| one.is_some()) >= OWN_RULES_ALL_MAX
            }
        }
    }

    /// Carries out `start`, `change` or `stop`. With an error, the rules are as before.
    ///
    /// # Errors
    /// The text is no command, or contradicts the rules; the error names the column.
    pub fn execute(&mut self, text: &str) -> Result<(), RuleError> {
        let command = parse::parse(text)?;
        let owner = command.owner;
        let place = self.place(owner, &command.name);
        let rank = match &command.rank {
            Some((_, name)) if *name == command.name => None,
            Some((at, name)) => match self.place(owner, name) {
                Some(_) => Some(name.clone()),
                None => return Err(RuleError { at: *at, fault: Fault::NoSuchRule }),
            },
            None => None,
        };
        let fails = |fault| Err(RuleError { at: command.name_at, fault });
        let rule = match (command.verb, place) {
            (parse::Verb::Start, Some(_)) => return fails(Fault::RuleExists),
            (parse::Verb::Start, None) if self.is_full(owner) => {
                return fails(Fault::TooManyRules);
            }
            (parse::Verb::Start, None) => Rule {
                owner,
                name: command.name,
                expression: command.expression,
                groups: command.groups,
                limits: command.limits.apply_to(Limits::default()),
                scope: command.limits.scope.unwrap_or(Scope::Job),
            },
            (parse::Verb::Change | parse::Verb::Stop, None) => return fails(Fault::NoSuchRule),
            (parse::Verb::Stop, Some(place)) => {
                self.rules.remove(place);
                return Ok(());
            }
            (parse::Verb::Change, Some(place)) => {
                let Some(mut rule) = self.rules.get(place).cloned() else {
                    return fails(Fault::NoSuchRule);
                };
                rule.limits = command.limits.apply_to(rule.limits);
                rule.scope = command.limits.scope.unwrap_or(rule.scope);
                rule
            }
        };
        if let Err(error) = rule.limits.checked() {
            return Err(RuleError { at: command.limits_at, fault: Fault::Limits(error) });
        }
        let old = place.filter(|&place| place < self.rules.len());
        if let Some(place) = old {
            self.rules.remove(place);
        }
        let place = match rank {
            Some(other) => self.place(owner, &other).unwrap_or(0),
            None => old.unwrap_or(0),
        };
        self.rules.insert(place.min(self.rules.len()), rule);
        Ok(())
    }
}
