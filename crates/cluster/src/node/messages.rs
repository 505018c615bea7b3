//! Messages between the nodes of two daemons.

use crate::change::{Change, Following, LastAllowed, Tenure};
use crate::membership::ServiceIndex;
use crate::shipping::{Parcel, Receipt};
use crate::voters::Voter;
use encoding::{Decode, Encode, check};
use replicas::change::CopyId;
use wire::DaemonIndex;
use wire::codec::{Malformed, Reader};

/// A sign of life, to each voter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Beat {
    pub incarnation: u64,
    pub domain: u32,
    /// As in `Settings`.
    pub began: u64,
    /// The sender's time, which the grant repeats.
    pub sent: i64,
    /// Epoch of the membership that the sender knows.
    pub epoch: u64,
    /// Epoch of the membership that has the voters which the sender knows.
    pub voters_since: u64,
    /// The name under which it votes, if it does.
    pub votes_as: Option<Voter>,
    /// Whether it has a lease, so a majority of voters reaches it.
    pub has_lease: bool,
}

/// A voter's answer: until some time after `sent` it counts the sender as alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Grant {
    pub incarnation: u64,
    pub sent: i64,
    /// Epoch of the membership that the voter knows.
    pub epoch: u64,
    /// Nanoseconds since the voter granted anything to a daemon that is down in this membership.
    pub quiet: u64,
    /// The newest that the leader allows to act on. `None`: the voter does not lead.
    pub allowed: Option<LastAllowed>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message<'a> {
    Consensus(&'a [u8]),
    /// As from `encode_changes`.
    Propose(&'a [u8]),
    Beat(Beat),
    Grant(Grant),
    Membership(&'a [u8]),
    /// Changes since an epoch, each encoded as `consensus::Made`.
    Changes {
        since: u64,
        list: &'a [u8],
    },
    /// As from `encode_loads`.
    Loads(&'a [u8]),
    /// A `replicas::space::SpaceReport`.
    Space(&'a [u8]),
    /// Asks a daemon to become a voter of this name.
    Invite(Voter),
    Check {
        daemon: DaemonIndex,
    },
    Checked {
        daemon: DaemonIndex,
        is_reached: bool,
    },
    Advise(Following),
    /// As `Advise`, of a unit of file data.
    AdviseUnit(CopyId),
    Parcel(Parcel<'a>),
    Receipt(Receipt),
}

impl Encode for Message<'_> {
    fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Message::Consensus(bytes) => put(0, bytes, to),
            Message::Propose(list) => put(1, list, to),
            Message::Beat(beat) => {
                to.push(2);
                beat.incarnation.encode(to);
                beat.domain.encode(to);
                beat.began.encode(to);
                beat.sent.encode(to);
                beat.epoch.encode(to);
                beat.voters_since.encode(to);
                beat.has_lease.encode(to);
                beat.votes_as.encode(to);
            }
            Message::Grant(grant) => {
                to.push(if grant.allowed.is_some() { OF_LEADER } else { 3 });
                grant.incarnation.encode(to);
                grant.sent.encode(to);
                grant.epoch.encode(to);
                grant.quiet.encode(to);
                if let Some(allowed) = &grant.allowed {
                    allowed.encode(to);
                }
            }
            Message::Membership(bytes) => put(4, bytes, to),
            Message::Changes { since, list } => {
                to.push(10);
                since.encode(to);
                to.extend_from_slice(list);
            }
            Message::Loads(bytes) => put(11, bytes, to),
            Message::Space(bytes) => put(15, bytes, to),
            Message::Invite(voter) => {
                to.push(12);
                voter.encode(to);
            }
            Message::Check { daemon } => {
                to.push(5);
                daemon.encode(to);
            }
            Message::Checked { daemon, is_reached } => {
                to.push(6);
                daemon.encode(to);
                is_reached.encode(to);
            }
            Message::Advise(following) => {
                to.push(7);
                following.of.encode(to);
                following.follower.encode(to);
                following.since.encode(to);
            }
            Message::AdviseUnit(copy) => {
                to.push(13);
                copy.encode(to);
            }
            Message::Parcel(parcel) => {
                to.push(PARCEL);
                parcel.encode(to);
            }
            Message::Receipt(receipt) => {
                to.push(9);
                receipt.encode(to);
            }
        }
    }
}

/// Changes of one proposal: no daemon has more to say at once.
pub(super) const CHANGES_MAX: usize = 1024;
const PARCEL: u8 = 8;
/// A grant of the leader, in an instance with units.
const OF_LEADER: u8 = 14;

fn put(kind: u8, bytes: &[u8], to: &mut Vec<u8>) {
    to.push(kind);
    to.extend_from_slice(bytes);
}

/// Changes, one after the other.
pub(super) fn encode_changes(changes: &[Change]) -> Vec<u8> {
    let mut bytes = Vec::new();
    changes.iter().for_each(|change| change.encode(&mut bytes));
    bytes
}

pub(super) fn changes(bytes: &[u8]) -> Result<Vec<Change>, Malformed> {
    let mut reader = Reader::new(bytes);
    let mut changes = Vec::new();
    while !reader.rest().is_empty() {
        changes.push(Change::decode(&mut reader)?);
    }
    check(changes.len() <= CHANGES_MAX)?;
    Ok(changes)
}

/// Services (4 bytes each) and their loads (8).
pub(super) fn encode_loads(loads: &[(ServiceIndex, u64)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(loads.len() * 12);
    for (service, load) in loads {
        service.0.encode(&mut bytes);
        load.encode(&mut bytes);
    }
    bytes
}

pub(super) fn loads(bytes: &[u8]) -> impl Iterator<Item = (ServiceIndex, u64)> {
    let mut reader = Reader::new(bytes);
    core::iter::from_fn(move || {
        let service = reader.u32().ok()?;
        Some((ServiceIndex(service), reader.u64().ok()?))
    })
}

impl<'a> Message<'a> {
    /// The message with a parcel that is encoded already.
    pub(super) fn of_parcel(encoded: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(1 + encoded.len());
        bytes.push(PARCEL);
        bytes.extend_from_slice(encoded);
        bytes
    }

    pub(super) fn from_bytes(bytes: &'a [u8]) -> Result<Message<'a>, Malformed> {
        let mut from = Reader::new(bytes);
        let message = match from.u8()? {
            0 => return Ok(Message::Consensus(from.rest())),
            1 => return Ok(Message::Propose(from.rest())),
            2 => {
                let (incarnation, domain) = (from.u64()?, from.u32()?);
                let began = from.u64()?;
                let (sent, epoch) = (i64::decode(&mut from)?, from.u64()?);
                let voters_since = from.u64()?;
                let has_lease = bool::decode(&mut from)?;
                let votes_as = Option::decode(&mut from)?;
                Message::Beat(Beat {
                    incarnation,
                    domain,
                    began,
                    sent,
                    epoch,
                    voters_since,
                    votes_as,
                    has_lease,
                })
            }
            kind @ (3 | OF_LEADER) => {
                let (incarnation, sent) = (from.u64()?, i64::decode(&mut from)?);
                let (epoch, quiet) = (from.u64()?, from.u64()?);
                let is_of_leader = kind == OF_LEADER;
                let allowed = is_of_leader.then(|| LastAllowed::decode(&mut from)).transpose()?;
                Message::Grant(Grant { incarnation, sent, epoch, quiet, allowed })
            }
            4 => return Ok(Message::Membership(from.rest())),
            5 => Message::Check { daemon: DaemonIndex::decode(&mut from)? },
            6 => {
                let daemon = DaemonIndex::decode(&mut from)?;
                Message::Checked { daemon, is_reached: bool::decode(&mut from)? }
            }
            7 => {
                let of = Tenure::decode(&mut from)?;
                let follower = DaemonIndex::decode(&mut from)?;
                Message::Advise(Following { of, follower, since: from.u64()? })
            }
            PARCEL => return Ok(Message::Parcel(Parcel::from_bytes(from.rest())?)),
            9 => Message::Receipt(Receipt::decode(&mut from)?),
            10 => {
                let since = from.u64()?;
                return Ok(Message::Changes { since, list: from.rest() });
            }
            11 => return Ok(Message::Loads(from.rest())),
            15 => return Ok(Message::Space(from.rest())),
            12 => Message::Invite(Voter::decode(&mut from)?),
            13 => Message::AdviseUnit(CopyId::decode(&mut from)?),
            _ => return Err(Malformed),
        };
        from.end()?;
        Ok(message)
    }
}
