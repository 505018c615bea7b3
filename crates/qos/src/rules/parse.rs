//! Text of a command on rules, to its parts. Each error has the column, in letters from 1.

use super::{Condition, NAME_BYTES_MAX, Operation, Pattern, Scope, TEXT_BYTES_MAX};
use super::{DATA_OPERATIONS, METADATA_OPERATIONS};
use super::{OWN_BYTES_PER_SECOND_MIN, OWN_TEXT_BYTES_MAX};
use crate::scheduler::{Limits, LimitsError};
use std::fmt;

/// Letters that end a word.
const MARKS: &str = "={}&,";

/// Why a text is no command on rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is longer than `TEXT_BYTES_MAX`.
    TooLong,
    /// A rule is a line, of letters that are shown.
    ControlCharacter,
    /// Another thing should stand here.
    Expected(&'static str),
    /// Such a key is unknown.
    UnknownKey(String),
    /// Such a limit is unknown.
    UnknownLimit(String),
    /// Such an operation is unknown.
    UnknownOperation(String),
    /// It is no number, or none that fits.
    Number(String),
    /// A range whose end is before its start.
    Range(String),
    /// A directory does not begin with `/`.
    RelativeDir(String),
    /// The limit is given twice.
    Repeated(String),
    /// There is no limit.
    NoLimit,
    /// The limits are impossible.
    Limits(LimitsError),
    /// A rule of this name exists.
    RuleExists,
    /// There is no rule of this name.
    NoSuchRule,
    /// There are `RULES_MAX` rules.
    TooManyRules,
    /// A user's own rule is longer than `OWN_TEXT_BYTES_MAX`.
    OwnTooLong,
    /// A user's own rule has a condition that only those of the instance may have.
    NotOwnKey(String),
    /// A user's own rule has a limit that only those of the instance may have.
    NotOwnLimit(String),
    /// A user's own rule allows less than `OWN_BYTES_PER_SECOND_MIN`.
    OwnTooSlow,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::TooLong => write!(f, "longer than {TEXT_BYTES_MAX} bytes: use several rules"),
            Fault::ControlCharacter => write!(f, "a control character"),
            Fault::Expected(text) => write!(f, "expected {text}"),
            Fault::UnknownKey(key) => {
                write!(f, "unknown key \"{key}\": use uid, gid, jobid, program, dir, opcode or tag")
            }
            Fault::UnknownLimit(key) => write!(
                f,
                "unknown limit \"{key}\": use rate, bw, min, dirty, weight, inflight, per or rank"
            ),
            Fault::UnknownOperation(name) => {
                write!(f, "unknown operation \"{name}\": use one of")?;
                Operation::ALL.iter().try_for_each(|(known, _)| write!(f, " {known}"))?;
                write!(f, ", {DATA_OPERATIONS} or {METADATA_OPERATIONS}")
            }
            Fault::Number(text) => write!(f, "\"{text}\" is not a number that fits here"),
            Fault::Range(text) => write!(f, "the range \"{text}\" ends before it begins"),
            Fault::RelativeDir(text) => {
                write!(f, "directory \"{text}\" does not begin with /, the top of the instance")
            }
            Fault::Repeated(key) => write!(f, "\"{key}\" is given twice"),
            Fault::NoLimit => {
                write!(f, "the rule limits nothing: add rate, bw, min, dirty, weight or inflight")
            }
            Fault::Limits(error) => write!(f, "{error}"),
            Fault::RuleExists => {
                write!(f, "a rule of this name exists: change it, or stop it first")
            }
            Fault::NoSuchRule => write!(f, "there is no rule of this name"),
            Fault::TooManyRules => write!(f, "there are too many rules: stop one first"),
            Fault::OwnTooLong => {
                write!(f, "longer than {OWN_TEXT_BYTES_MAX} bytes: use several rules")
            }
            Fault::NotOwnKey(key) => write!(
                f,
                "a rule of your own says nothing about \"{key}\": use jobid, program, opcode or tag"
            ),
            Fault::NotOwnLimit(key) => {
                write!(f, "a rule of your own gives no \"{key}\": use bw, rate or inflight")
            }
            Fault::OwnTooSlow => write!(
                f,
                "less than {}K: a request would wait too long",
                OWN_BYTES_PER_SECOND_MIN >> 10
            ),
        }
    }
}

/// An error in the text of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    /// Column, in letters from 1.
    pub at: usize,
    /// The fault there.
    pub fault: Fault,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.at, self.fault)
    }
}

impl std::error::Error for RuleError {}

/// The action on a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Start,
    Change,
    Stop,
}

/// Limits that a command names.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Named {
    weight: Option<u32>,
    bytes_per_second_max: Option<u64>,
    operations_per_second_max: Option<u64>,
    bytes_per_second_min: Option<u64>,
    in_flight_max: Option<u32>,
    dirty_bytes_max: Option<u64>,
    pub(super) scope: Option<Scope>,
}

impl Named {
    pub(super) fn apply_to(self, limits: Limits) -> Limits {
        Limits {
            weight: self.weight.unwrap_or(limits.weight),
            bytes_per_second_max: self.bytes_per_second_max.unwrap_or(limits.bytes_per_second_max),
            operations_per_second_max: self
                .operations_per_second_max
                .unwrap_or(limits.operations_per_second_max),
            bytes_per_second_min: self.bytes_per_second_min.unwrap_or(limits.bytes_per_second_min),
            in_flight_max: self.in_flight_max.unwrap_or(limits.in_flight_max),
            dirty_bytes_max: self.dirty_bytes_max.unwrap_or(limits.dirty_bytes_max),
        }
    }

    const fn has_limit(&self) -> bool {
        self.weight.is_some()
            || self.bytes_per_second_max.is_some()
            || self.operations_per_second_max.is_some()
            || self.bytes_per_second_min.is_some()
            || self.in_flight_max.is_some()
            || self.dirty_bytes_max.is_some()
    }
}

/// A parsed command.
#[derive(Clone, Debug)]
pub(super) struct Command {
    /// The user whose own rule it is about; `None`: one of the instance.
    pub(super) owner: Option<u32>,
    pub(super) verb: Verb,
    pub(super) name: String,
    pub(super) name_at: usize,
    pub(super) expression: String,
    pub(super) groups: Vec<Vec<Condition>>,
    /// Column and name of the rule before which it goes.
    pub(super) rank: Option<(usize, String)>,
    pub(super) limits: Named,
    pub(super) limits_at: usize,
}

/// The rest of a text.
struct Cursor<'a> {
    rest: &'a str,
    /// Column of its first letter.
    at: usize,
    /// The command is on a rule of a user's own.
    is_own: bool,
}

impl<'a> Cursor<'a> {
    fn fail<T>(&self, fault: Fault) -> Result<T, RuleError> {
        Err(RuleError { at: self.at, fault })
    }

    /// Goes on by so many bytes, which end between letters.
    fn advance(&mut self, bytes: usize) -> &'a str {
        let (passed, rest) = self.rest.split_at_checked(bytes).unwrap_or((self.rest, ""));
        self.at += passed.chars().count();
        self.rest = rest;
        passed
    }

    fn skip_space(&mut self) {
        let bytes = self.rest.len() - self.rest.trim_start().len();
        self.advance(bytes);
    }

    /// Whether the next letter is this one, which is passed then.
    fn has_mark(&mut self, mark: char) -> bool {
        let is_next = self.rest.starts_with(mark);
        if is_next {
            self.advance(mark.len_utf8());
        }
        is_next
    }

    /// The word up to a space or mark; it may be empty.
    fn word(&mut self) -> &'a str {
        let ends = |letter: char| letter.is_whitespace() || MARKS.contains(letter);
        self.advance(self.rest.find(ends).unwrap_or(self.rest.len()))
    }
}

/// Reads a command.
pub(super) fn parse(text: &str) -> Result<Command, RuleError> {
    let mut cursor = Cursor { rest: text, at: 1, is_own: false };
    if text.len() > TEXT_BYTES_MAX {
        return cursor.fail(Fault::TooLong);
    }
    let owner = parse_owner(&mut cursor)?;
    if owner.is_some() && cursor.rest.len() > OWN_TEXT_BYTES_MAX {
        return cursor.fail(Fault::OwnTooLong);
    }
    if let Some(before) = cursor.rest.chars().position(char::is_control) {
        return Err(RuleError { at: cursor.at + before, fault: Fault::ControlCharacter });
    }
    cursor.skip_space();
    let at = cursor.at;
    let verb = match cursor.word() {
        "start" => Verb::Start,
        "change" => Verb::Change,
        "stop" => Verb::Stop,
        _ => return Err(RuleError { at, fault: Fault::Expected("start, change or stop") }),
    };
    cursor.skip_space();
    let name_at = cursor.at;
    let name = cursor.word().to_owned();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_plain) {
        let fault = Fault::Expected("a name of at most 32 letters, digits, \"_\", \"-\" and \".\"");
        return Err(RuleError { at: name_at, fault });
    }
    cursor.skip_space();
    let mut command = Command {
        owner,
        verb,
        name,
        name_at,
        expression: String::new(),
        groups: Vec::new(),
        rank: None,
        limits: Named::default(),
        limits_at: name_at,
    };
    if verb == Verb::Start {
        let before = cursor.rest;
        command.groups = parse_expression(&mut cursor)?;
        let bytes = before.len() - cursor.rest.len();
        command.expression = before.get(..bytes).unwrap_or(before).trim_end().to_owned();
    }
    if verb == Verb::Stop && !cursor.rest.is_empty() {
        return cursor.fail(Fault::Expected("nothing more"));
    }
    command.limits_at = cursor.at;
    parse_limits(&mut cursor, &mut command)?;
    let has_any = command.limits.has_limit();
    let changes_more = command.rank.is_some() || command.limits.scope.is_some();
    match verb {
        Verb::Start if !has_any => cursor.fail(Fault::NoLimit),
        Verb::Change if !has_any && !changes_more => cursor.fail(Fault::NoLimit),
        _ => Ok(command),
    }
}

/// The user of `by USER`, if the command begins with it. Columns count behind it: no user typed it.
fn parse_owner(cursor: &mut Cursor<'_>) -> Result<Option<u32>, RuleError> {
    let is_named = cursor.rest.strip_prefix("by").is_some_and(|it| it.starts_with(' '));
    if !is_named {
        return Ok(None);
    }
    cursor.word();
    cursor.skip_space();
    let at = cursor.at;
    let word = cursor.word();
    let user = word.parse().map_err(|_| RuleError { at, fault: Fault::Number(word.to_owned()) })?;
    if let Some(rest) = cursor.rest.strip_prefix(' ') {
        cursor.rest = rest;
    }
    (cursor.at, cursor.is_own) = (1, true);
    Ok(Some(user))
}

/// Groups of conditions; `*` is one group without any.
fn parse_expression(cursor: &mut Cursor<'_>) -> Result<Vec<Vec<Condition>>, RuleError> {
    if cursor.has_mark('*') {
        cursor.skip_space();
        return Ok(vec![Vec::new()]);
    }
    let mut groups = Vec::new();
    loop {
        let mut group = Vec::new();
        loop {
            cursor.skip_space();
            group.push(parse_condition(cursor)?);
            cursor.skip_space();
            if !cursor.has_mark('&') {
                break;
            }
        }
        groups.push(group);
        if !cursor.has_mark(',') {
            return Ok(groups);
        }
    }
}

fn parse_condition(cursor: &mut Cursor<'_>) -> Result<Condition, RuleError> {
    let at = cursor.at;
    let key = cursor.word();
    let mut condition = match key {
        "uid" | "gid" | "dir" if cursor.is_own => {
            return Err(RuleError { at, fault: Fault::NotOwnKey(key.to_owned()) });
        }
        "uid" => Condition::Uid(Vec::new()),
        "gid" => Condition::Gid(Vec::new()),
        "jobid" => Condition::Job(Vec::new()),
        "program" => Condition::Program(Vec::new()),
        "dir" => Condition::Dir(Vec::new()),
        "tag" => Condition::Tag(Vec::new()),
        "opcode" => Condition::Operation(Vec::new()),
        "" => {
            let fault = Fault::Expected("* or a condition such as uid={1000}");
            return Err(RuleError { at, fault });
        }
        _ => return Err(RuleError { at, fault: Fault::UnknownKey(key.to_owned()) }),
    };
    if !cursor.has_mark('=') || !cursor.has_mark('{') {
        return cursor.fail(Fault::Expected("={ and values, such as ={1000}"));
    }
    let mut count = 0;
    loop {
        cursor.skip_space();
        if count > 0 && cursor.has_mark('}') {
            return Ok(condition);
        }
        let at = cursor.at;
        // In a value only spaces and braces have a meaning.
        let ends = |letter: char| letter.is_whitespace() || "{}".contains(letter);
        let value = cursor.advance(cursor.rest.find(ends).unwrap_or(cursor.rest.len()));
        if value.is_empty() {
            return Err(RuleError { at, fault: Fault::Expected("a value, and } at the end") });
        }
        count += 1;
        add_value(&mut condition, value).map_err(|fault| RuleError { at, fault })?;
    }
}

fn add_value(condition: &mut Condition, value: &str) -> Result<(), Fault> {
    match condition {
        Condition::Uid(ranges) | Condition::Gid(ranges) => ranges.push(parse_range(value)?),
        Condition::Job(patterns) | Condition::Program(patterns) | Condition::Tag(patterns) => {
            patterns.push(Pattern::new(value));
        }
        Condition::Dir(_) if !value.starts_with(['/', '*']) => {
            return Err(Fault::RelativeDir(value.to_owned()));
        }
        Condition::Dir(patterns) => patterns.push(Pattern::new(value)),
        Condition::Operation(operations) => {
            let before = operations.len();
            operations.extend(Operation::named(value));
            if operations.len() == before {
                return Err(Fault::UnknownOperation(value.to_owned()));
            }
        }
    }
    Ok(())
}

fn parse_range(text: &str) -> Result<(u32, u32), Fault> {
    let number = |part: &str| part.parse::<u32>().map_err(|_| Fault::Number(text.to_owned()));
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(text)?, number(text)?),
    };
    if last < first { Err(Fault::Range(text.to_owned())) } else { Ok((first, last)) }
}

fn parse_limits(cursor: &mut Cursor<'_>, command: &mut Command) -> Result<(), RuleError> {
    loop {
        cursor.skip_space();
        if cursor.rest.is_empty() {
            return Ok(());
        }
        let at = cursor.at;
        let key = cursor.word();
        if key.is_empty() || !cursor.has_mark('=') {
            return Err(RuleError { at, fault: Fault::Expected("a limit such as rate=100") });
        }
        let value_at = cursor.at;
        let value = cursor.word();
        if cursor.is_own && matches!(key, "min" | "weight" | "dirty") {
            return Err(RuleError { at, fault: Fault::NotOwnLimit(key.to_owned()) });
        }
        let is_repeated = add_limit(command, key, value, value_at).map_err(|fault| {
            let is_key = matches!(fault, Fault::UnknownLimit(_));
            RuleError { at: if is_key { at } else { value_at }, fault }
        })?;
        if is_repeated {
            return Err(RuleError { at, fault: Fault::Repeated(key.to_owned()) });
        }
        let is_slow = |rate: u64| rate > 0 && rate < OWN_BYTES_PER_SECOND_MIN;
        if cursor.is_own && key == "bw" && command.limits.bytes_per_second_max.is_some_and(is_slow)
        {
            return Err(RuleError { at: value_at, fault: Fault::OwnTooSlow });
        }
    }
}

/// Adds a limit; whether it was there.
fn add_limit(command: &mut Command, key: &str, value: &str, at: usize) -> Result<bool, Fault> {
    let limits = &mut command.limits;
    let small = || value.parse::<u32>().map_err(|_| Fault::Number(value.to_owned()));
    Ok(match key {
        "rate" => limits.operations_per_second_max.replace(parse_amount(value, 1000)?).is_some(),
        "bw" => limits.bytes_per_second_max.replace(parse_amount(value, 1024)?).is_some(),
        "min" => limits.bytes_per_second_min.replace(parse_amount(value, 1024)?).is_some(),
        "dirty" => limits.dirty_bytes_max.replace(parse_amount(value, 1024)?).is_some(),
        "weight" => limits.weight.replace(small()?).is_some(),
        "inflight" => limits.in_flight_max.replace(small()?).is_some(),
        "per" => {
            let scope = match value {
                "job" => Scope::Job,
                "user" => Scope::User,
                _ => return Err(Fault::Expected("job or user")),
            };
            limits.scope.replace(scope).is_some()
        }
        "rank" => command.rank.replace((at, value.to_owned())).is_some(),
        _ => return Err(Fault::UnknownLimit(key.to_owned())),
    })
}

/// A number with `K`, `M`, `G` or `T` behind it.
fn parse_amount(text: &str, unit: u64) -> Result<u64, Fault> {
    let letter = text.chars().next_back().unwrap_or(' ');
    let power = match letter.to_ascii_uppercase() {
        'K' => 1,
        'M' => 2,
        'G' => 3,
        'T' => 4,
        _ => 0,
    };
    let digits = if power > 0 { text.strip_suffix(letter).unwrap_or(text) } else { text };
    let is_plain = digits.bytes().all(|digit| digit.is_ascii_digit());
    let number = digits.parse::<u64>().ok().filter(|_| is_plain);
    number
        .and_then(|number| number.checked_mul(unit.pow(power)))
        .ok_or_else(|| Fault::Number(text.to_owned()))
}
