//! Messages and entries of the consensus by byte. The library's own parser never sees bytes of a peer.

use super::log::conf_state;
use crate::membership::Membership;
use encoding::{Decode, Encode};
use raft::eraftpb::{Entry, EntryType, Message, MessageType, Snapshot};
use wire::codec::{Malformed, Reader};

/// Entries of one message at most.
const ENTRIES_MAX: u32 = 4096;
/// The greatest term and index. `raft` adds to them without a check; so many steps are never made.
pub(super) const NUMBER_MAX: u64 = 1 << 62;
/// A change of voters is in the context of its entry: the library's own form of it stays at the leader.
pub(super) fn encode_entry(entry: &Entry, to: &mut Vec<u8>) {
    (entry.get_entry_type() as u8).encode(to);
    entry.term.encode(to);
    entry.index.encode(to);
    let is_normal = entry.get_entry_type() == EntryType::EntryNormal;
    if is_normal { &entry.data } else { &entry.context }.encode(to);
}

pub(super) fn decode_entry(from: &mut Reader<'_>) -> Result<Entry, Malformed> {
    let kind = from.u8()?;
    let (term, index) = (from.u64()?, from.u64()?);
    let bytes = from.bytes()?.to_vec().into();
    let mut entry = Entry { term, index, ..Entry::default() };
    if kind == EntryType::EntryNormal as u8 {
        entry.data = bytes;
    } else if kind == EntryType::EntryConfChangeV2 as u8 {
        entry.set_entry_type(EntryType::EntryConfChangeV2);
        entry.context = bytes;
    } else {
        return Err(Malformed);
    }
    Ok(entry)
}

pub(super) fn encode(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    let to = &mut bytes;
    (message.get_msg_type() as u8).encode(to);
    let numbers = [
        message.to,
        message.from,
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.request_snapshot,
        message.reject_hint,
    ];
    numbers.iter().for_each(|number| number.encode(to));
    message.reject.encode(to);
    message.context.encode(to);
    (message.entries.len() as u32).encode(to);
    message.entries.iter().for_each(|entry| encode_entry(entry, to));
    let snapshot = message.get_snapshot();
    (!snapshot.is_empty()).encode(to);
    if !snapshot.is_empty() {
        let metadata = snapshot.get_metadata();
        metadata.index.encode(to);
        metadata.term.encode(to);
        snapshot.data.encode(to);
    }
    bytes
}

/// Kinds that voters send to each other.
fn kind_of(number: u8) -> Result<MessageType, Malformed> {
    use MessageType as Kind;
    let kinds = [
        Kind::MsgPropose,
        Kind::MsgAppend,
        Kind::MsgAppendResponse,
        Kind::MsgRequestVote,
        Kind::MsgRequestVoteResponse,
        Kind::MsgSnapshot,
        Kind::MsgHeartbeat,
        Kind::MsgHeartbeatResponse,
        Kind::MsgRequestPreVote,
        Kind::MsgRequestPreVoteResponse,
        Kind::MsgTimeoutNow,
    ];
    kinds.into_iter().find(|&kind| kind as u8 == number).ok_or(Malformed)
}

/// The voter that a message is for.
pub(super) fn addressee(bytes: &[u8]) -> Result<u64, Malformed> {
    let mut from = Reader::new(bytes);
    kind_of(from.u8()?)?;
    from.u64()
}

pub(super) fn decode(bytes: &[u8]) -> Result<Message, Malformed> {
    let mut from = Reader::new(bytes);
    let mut message = Message::default();
    message.set_msg_type(kind_of(from.u8()?)?);
    message.to = from.u64()?;
    message.from = from.u64()?;
    message.term = from.u64()?;
    message.log_term = from.u64()?;
    message.index = from.u64()?;
    message.commit = from.u64()?;
    message.commit_term = from.u64()?;
    message.request_snapshot = from.u64()?;
    message.reject_hint = from.u64()?;
    message.reject = from.u8()? != 0;
    message.context = from.bytes()?.to_vec().into();
    let count = from.u32()?;
    if count > ENTRIES_MAX {
        return Err(Malformed);
    }
    let mut entries = Vec::new();
    for _ in 0..count {
        entries.push(decode_entry(&mut from)?);
    }
    check(&message, &entries)?;
    message.set_entries(entries.into());
    if from.u8()? != 0 {
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = from.u64()?;
        metadata.term = from.u64()?;
        let data = from.bytes()?;
        let membership = Membership::from_bytes(data)?;
        // Term 0 would be that of each entry which is not there.
        let is_possible = (1..=NUMBER_MAX).contains(&metadata.index)
            && (1..=message.term).contains(&metadata.term);
        if !is_possible || membership.voters().next().is_empty() {
            return Err(Malformed);
        }
        *metadata.mut_conf_state() = conf_state(membership.voters());
        snapshot.data = data.to_vec().into();
        message.set_snapshot(snapshot);
    }
    let is_snapshot = message.get_msg_type() == MessageType::MsgSnapshot;
    if is_snapshot == message.get_snapshot().is_empty() {
        return Err(Malformed);
    }
    from.end()?;
    Ok(message)
}

/// Refuses messages about which the algorithm panics.
fn check(message: &Message, entries: &[Entry]) -> Result<(), Malformed> {
    let numbers = [
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.reject_hint,
    ];
    // No voter asks for a snapshot of its own accord.
    if numbers.into_iter().any(|number| number > NUMBER_MAX) || message.request_snapshot != 0 {
        return Err(Malformed);
    }
    let is_proposal = message.get_msg_type() == MessageType::MsgPropose;
    // Zero marks messages of a process to itself, and proposals, which are passed on without a term.
    if (message.term == 0) != is_proposal {
        return Err(Malformed);
    }
    match message.get_msg_type() {
        MessageType::MsgAppend => {
            // Term 0 means an entry that is not there. Terms never fall, and none is above the
            // sender's.
            let mut term = message.log_term.max(1);
            for (entry, index) in entries.iter().zip(message.index.saturating_add(1)..) {
                if entry.index != index || entry.term < term {
                    return Err(Malformed);
                }
                term = entry.term;
            }
            if message.log_term == 0 || term > message.term {
                return Err(Malformed);
            }
        }
        MessageType::MsgPropose => {
            // Only the leader proposes other voters.
            let is_change = |it: &Entry| it.get_entry_type() == EntryType::EntryNormal;
            if entries.is_empty() || !entries.iter().all(is_change) {
                return Err(Malformed);
            }
        }
        _ if !entries.is_empty() => return Err(Malformed),
        _ => {}
    }
    Ok(())
}
