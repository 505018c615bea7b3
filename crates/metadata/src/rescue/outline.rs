//! The outline of a service: a log record of all names, inodes, counts and open transactions, without
//! the contents of files.

use crate::core::peer_messages::{Action, actions};
use crate::core::record::{self, Record, VERSION};
use crate::core::state::{State, encode_tallies};
use crate::namespace::widening::Moved;
use crate::service::{LoggedState, Service};
use wire::Inode;
use wire::codec::Malformed;
use wire::hash::NameHash;

impl Service {
    /// The part of the state that `rescue::Rescue` needs, as one log record.
    #[must_use]
    pub fn outline(&self) -> Vec<u8> {
        outline(&self.files.cx.state)
    }
}

impl LoggedState {
    /// As `Service::outline`.
    #[must_use]
    pub fn outline(&self) -> Vec<u8> {
        outline(&self.0)
    }
}

fn outline(state: &State) -> Vec<u8> {
    let mut out = vec![VERSION];
    let mut tallies = Vec::new();
    for node in state.inodes.iter_from(Inode(0)) {
        tallies.clear();
        encode_tallies(&node.tallies, &mut tallies);
        let nameless = u8::from(node.is_nameless);
        let (target, contents, xattrs): (&[u8], &[u8], &[u8]) = (&[], &[], &[]);
        let attributes = node.attributes;
        let tallies = &tallies;
        Record::PutInode { attributes, nameless, target, contents, xattrs, tallies }
            .encode(&mut out);
    }
    for (&(parent, ..), entry) in state.entries.iter_from((Inode(0), NameHash(0), 0)) {
        let (name, inode, mode) = (&*entry.name, entry.inode, entry.mode);
        Record::PutEntry { parent, name, inode, mode }.encode(&mut out);
    }
    // Behind the inodes: a count of entries changes the directory.
    for (&directory, tally) in &state.tallies {
        tally.record(directory).encode(&mut out);
    }
    for (&(group, sequence), prepared) in &state.prepared {
        let (from, actions) = (prepared.from, &prepared.actions);
        Record::PutPrepared { group, sequence, from, actions }.encode(&mut out);
    }
    for (&sequence, left) in &state.decisions {
        Record::PutDecision { sequence, left }.encode(&mut out);
    }
    out
}

/// Takes up an outline.
pub(super) fn read(state: &mut State, outline: &[u8]) -> Result<(), Malformed> {
    for change in record::changes(outline)? {
        state.apply(&change?)?;
    }
    Ok(())
}

/// Inodes that the actions of a transaction concern.
pub(super) fn concerned(encoded: &[u8]) -> Vec<Inode> {
    let mut found = Vec::new();
    for action in actions(encoded) {
        match action {
            Action::Entry { parent, expect, set, .. } => found.extend([parent, expect, set]),
            Action::Moved { inode, parent } | Action::Chain { inode, parent } => {
                found.extend([inode, parent]);
            }
            Action::Links { inode, .. }
            | Action::RemoveDirectory { inode, .. }
            | Action::Widen { inode, .. } => found.push(inode),
            Action::Freeze { directory, .. }
            | Action::Give { directory, .. }
            | Action::Carry { directory, .. } => found.push(directory),
            Action::Take { directory, names, .. } => {
                found.push(directory);
                found.extend(Moved::all(names).map(|moved| moved.inode));
            }
        }
    }
    found.retain(|inode| !inode.is_none());
    found
}
