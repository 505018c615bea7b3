//! Messages between daemons about rules, caps and shares. All little-endian; the first byte is the kind:
//!
//! ```text
//!   1 rules    version u64, the rules as text     the arbiter to all, until each has said it has them;
//!                                                 to the arbiter by one that has others, not older
//!   2 has      version u64                        to the arbiter
//!   3 command  number u64, a command as text      to the arbiter, which alone changes rules; repeated
//!   4 outcome  number u64, the answer as text     from the arbiter
//!   5 reports  version u64, for each cap 45 bytes: key, cap u64, number u64, demand u64, grant u64
//!   6 grants   for each cap 37 bytes: key, number u64, report u64, tokens per second u64
//!   7 uses     pool u8, for each job 29 bytes: user u32, its weight u32, job u64, its weight u32,
//!              waits u8, bytes per second u64    to the daemon of a way (`incoming`)
//!   8 factor   pool u8, thousandths u32          from that daemon
//!   key: user u32, job u64, 1 byte: 0 bytes, 1 operations
//! ```
//!
//! They come from daemons of the instance, so a wrong one is an error of the program; it changes nothing.

use crate::incoming::JobUse;

/// The unit of a cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Token {
    /// Bytes.
    Bytes,
    /// Operations.
    Operations,
}

/// A cap: of an account of a user, in bytes or operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CapKey {
    /// User.
    pub user: u32,
    /// Hash of the job, and of the rule that limits it.
    pub job: u64,
    /// Its unit.
    pub token: Token,
}

/// A daemon's report on one cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapReport {
    /// The cap.
    pub key: CapKey,
    /// Tokens per second in all.
    pub cap: u64,
    /// See `division::Report`.
    pub number: u64,
    /// See `division::Report`.
    pub demand: u64,
    /// See `division::Report`.
    pub grant: u64,
}

/// A grant of one cap to the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapGrant {
    /// The cap.
    pub key: CapKey,
    /// See `division::Grant`.
    pub number: u64,
    /// See `division::Grant`.
    pub report: u64,
    /// See `division::Grant`.
    pub per_second: u64,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// The rules, and their version.
    Rules(u64, &'a str),
    /// The sender has the rules of this version.
    Has(u64),
    /// A command on rules, and its number at the sender.
    Command(u64, &'a str),
    /// The answer to a command of the receiver.
    Outcome(u64, &'a str),
    /// Demand, of a daemon with the rules of this version.
    Reports(u64, Vec<CapReport>),
    /// Grants.
    Grants(Vec<CapGrant>),
    /// Bytes that jobs got on the way to the receiver, for files of this pool.
    Uses(u8, Vec<JobUse>),
    /// By what factor the window of the receiver is to be larger there, in thousandths.
    Factor(u8, u32),
}

/// The rest of a message.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*front)
    }

    fn number(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn small(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn job_use(&mut self) -> Option<JobUse> {
        let (user, job) = ((self.small()?, self.small()?), (self.number()?, self.small()?));
        let waits = match self.bytes()? {
            [0] => false,
            [1] => true,
            _ => return None,
        };
        Some(JobUse { user, job, waits, bytes_per_second: self.number()? })
    }

    fn text(self) -> Option<&'a str> {
        str::from_utf8(self.0).ok()
    }

    fn key(&mut self) -> Option<CapKey> {
        let (user, job) = (self.small()?, self.number()?);
        let token = match self.bytes()? {
            [0] => Token::Bytes,
            [1] => Token::Operations,
            _ => return None,
        };
        Some(CapKey { user, job, token })
    }

    /// All that is left, as rows.
    fn rows<T>(mut self, read: impl Fn(&mut Input<'a>) -> Option<T>) -> Option<Vec<T>> {
        let mut rows = Vec::new();
        while !self.0.is_empty() {
            rows.push(read(&mut self)?);
        }
        Some(rows)
    }
}

fn put_key(to: &mut Vec<u8>, key: CapKey) {
    to.extend_from_slice(&key.user.to_le_bytes());
    to.extend_from_slice(&key.job.to_le_bytes());
    to.push(match key.token {
        Token::Bytes => 0,
        Token::Operations => 1,
    });
}

fn put_numbers<const N: usize>(to: &mut Vec<u8>, numbers: [u64; N]) {
    numbers.iter().for_each(|number| to.extend_from_slice(&number.to_le_bytes()));
}

fn put_job_use(to: &mut Vec<u8>, row: &JobUse) {
    let JobUse { user, job, waits, bytes_per_second } = *row;
    to.extend_from_slice(&user.0.to_le_bytes());
    to.extend_from_slice(&user.1.to_le_bytes());
    to.extend_from_slice(&job.0.to_le_bytes());
    to.extend_from_slice(&job.1.to_le_bytes());
    to.push(waits.into());
    to.extend_from_slice(&bytes_per_second.to_le_bytes());
}

impl<'a> Message<'a> {
    /// Appends the encoded form.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let mut put_text = |kind: u8, number: u64, text: &str| {
            to.push(kind);
            to.extend_from_slice(&number.to_le_bytes());
            to.extend_from_slice(text.as_bytes());
        };
        match self {
            Message::Rules(version, text) => put_text(1, *version, text),
            Message::Has(version) => put_text(2, *version, ""),
            Message::Command(number, text) => put_text(3, *number, text),
            Message::Outcome(number, text) => put_text(4, *number, text),
            Message::Reports(version, rows) => {
                put_text(5, *version, "");
                for row in rows {
                    put_key(to, row.key);
                    put_numbers(to, [row.cap, row.number, row.demand, row.grant]);
                }
            }
            Message::Grants(rows) => {
                to.push(6);
                for row in rows {
                    put_key(to, row.key);
                    put_numbers(to, [row.number, row.report, row.per_second]);
                }
            }
            Message::Uses(pool, rows) => {
                to.extend_from_slice(&[7, *pool]);
                rows.iter().for_each(|row| put_job_use(to, row));
            }
            Message::Factor(pool, thousandths) => {
                to.extend_from_slice(&[8, *pool]);
                to.extend_from_slice(&thousandths.to_le_bytes());
            }
        }
    }

    /// Reads a message; `None` if it is malformed.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Message<'a>> {
        let mut from = Input(bytes);
        let [kind] = from.bytes()?;
        if let 7 | 8 = kind {
            let [pool] = from.bytes()?;
            if kind == 7 {
                return Some(Message::Uses(pool, from.rows(Input::job_use)?));
            }
            let thousandths = from.small()?;
            return from.0.is_empty().then_some(Message::Factor(pool, thousandths));
        }
        if kind == 6 {
            let grant = |from: &mut Input<'a>| {
                let key = from.key()?;
                let (number, report) = (from.number()?, from.number()?);
                Some(CapGrant { key, number, report, per_second: from.number()? })
            };
            return from.rows(grant).map(Message::Grants);
        }
        let number = from.number()?;
        match kind {
            1 => Some(Message::Rules(number, from.text()?)),
            2 if from.0.is_empty() => Some(Message::Has(number)),
            3 => Some(Message::Command(number, from.text()?)),
            4 => Some(Message::Outcome(number, from.text()?)),
            5 => {
                let report = |from: &mut Input<'a>| {
                    let key = from.key()?;
                    let (cap, number) = (from.number()?, from.number()?);
                    let (demand, grant) = (from.number()?, from.number()?);
                    Some(CapReport { key, cap, number, demand, grant })
                };
                Some(Message::Reports(number, from.rows(report)?))
            }
            _ => None,
        }
    }
}
