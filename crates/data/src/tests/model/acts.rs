//! Random acts of the model.

use super::{FILE_BYTES, PAGE, TIER_BYTES};
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(super) enum ModelAct {
    Write {
        file: u64,
        offset: u64,
        length: u64,
        with: u8,
    },
    Read {
        file: u64,
        offset: u64,
        length: u64,
    },
    Map {
        file: u64,
        offset: u64,
        length: u64,
        ahead: u64,
    },
    Truncate {
        file: u64,
        size: u64,
    },
    Punch {
        file: u64,
        offset: u64,
        length: u64,
    },
    /// Several files at once; one may be named twice, or be empty.
    Remove {
        files: Vec<u64>,
    },
    /// A stopped client keeps a hazard pointer on the slot that `slot` chooses, from now on.
    Protect {
        slot: u32,
    },
    /// Those clients, and readers that take long, are done.
    Unprotect,
    /// A service says that the target is slow.
    Slow,
    /// No service has said anything for so long.
    Silence {
        millis: u32,
        kill_at: Option<usize>,
    },
    /// Another host reads an extent; perhaps the transfer goes on for a while.
    ReadFromAfar {
        file: u64,
        offset: u64,
        takes_long: bool,
    },
    Tick,
    Kill,
    /// The daemon looks for extents to demote, or to promote, this many milliseconds later; set
    /// bits of `used` stand for slots that clients used.
    Look {
        up: bool,
        millis: u32,
        used: u64,
        kill_at: Option<usize>,
    },
    /// Some more pages of a copy.
    CopyGoesOn {
        which: usize,
        pages: usize,
    },
    /// A copy ends; the device may refuse.
    CopyEnds {
        which: usize,
        fails: bool,
        kill_at: Option<usize>,
    },
    /// Memory is lent, or wanted back.
    Lend {
        bytes: u64,
        kill_at: Option<usize>,
    },
    /// A block was given back; the system may refuse.
    GiveBackEnds {
        which: usize,
        fails: bool,
    },
    /// The file may be created soon.
    Preallocate {
        file: u64,
    },
    /// A client writes to the file's last, or else its first, preallocated extent if it finds one,
    /// without a message.
    WritePreallocated {
        file: u64,
        last: bool,
        length: u64,
        with: u8,
    },
    /// The daemon examines the preallocated extents.
    LookAtPreallocated,
    /// Usage is counted from now on.
    Count,
    /// A client waits for space.
    Want {
        file: u64,
        offset: u64,
        length: u64,
    },
    /// Others report whether they can free space.
    SpaceReported {
        comes: bool,
    },
    /// A file is another user's, user 1 is the limited one; and is pinned, or not.
    Own {
        file: u64,
        uid: u32,
        pinned: bool,
    },
}

/// Mostly no kill; else one after this many effects.
fn kill_at() -> impl Strategy<Value = Option<usize>> {
    prop_oneof![6 => Just(None), 1 => (0usize..6).prop_map(Some)]
}

pub(super) fn act() -> impl Strategy<Value = ModelAct> {
    let file = || 1u64..5;
    let offset = || 0..FILE_BYTES;
    let length = || prop_oneof![0..3 * PAGE, 0..FILE_BYTES / 2];
    prop_oneof![
        6 => (file(), offset(), length(), 1u8..=255).prop_map(
            |(file, offset, length, with)| ModelAct::Write { file, offset, length, with }),
        4 => (file(), offset(), length()).prop_map(
            |(file, offset, length)| ModelAct::Read { file, offset, length }),
        3 => (file(), offset(), length(), length()).prop_map(
            |(file, offset, length, ahead)| ModelAct::Map { file, offset, length, ahead }),
        2 => (file(), offset()).prop_map(|(file, size)| ModelAct::Truncate { file, size }),
        2 => (file(), offset(), length()).prop_map(
            |(file, offset, length)| ModelAct::Punch { file, offset, length }),
        2 => proptest::collection::vec(file(), 1..4).prop_map(|files| ModelAct::Remove { files }),
        2 => (0u32..40).prop_map(|slot| ModelAct::Protect { slot }),
        1 => Just(ModelAct::Unprotect),
        3 => Just(ModelAct::Slow),
        1 => (prop_oneof![5_000u32..20_000, Just(200_000)], kill_at()).prop_map(
            |(millis, kill_at)| ModelAct::Silence { millis, kill_at }),
        8 => (file(), offset(), any::<bool>()).prop_map(
            |(file, offset, takes_long)| ModelAct::ReadFromAfar { file, offset, takes_long }),
        2 => Just(ModelAct::Tick),
        1 => Just(ModelAct::Kill),
        6 => (0u32..40, any::<u64>(), kill_at()).prop_map(
            |(millis, used, kill_at)| ModelAct::Look { up: false, millis, used, kill_at }),
        // Used in most passes.
        6 => (60u32..200, any::<[u64; 2]>(), kill_at()).prop_map(
            |(millis, [a, b], kill_at)| ModelAct::Look { up: true, millis, used: a | b, kill_at }),
        6 => (0usize..8, 1usize..16).prop_map(
            |(which, pages)| ModelAct::CopyGoesOn { which, pages }),
        6 => (0usize..8, proptest::bool::weighted(0.1), kill_at()).prop_map(
            |(which, fails, kill_at)| ModelAct::CopyEnds { which, fails, kill_at }),
        4 => (prop_oneof![0..TIER_BYTES + PAGE, Just(TIER_BYTES)], kill_at()).prop_map(
            |(bytes, kill_at)| ModelAct::Lend { bytes, kill_at }),
        6 => (0usize..8, proptest::bool::weighted(0.1)).prop_map(
            |(which, fails)| ModelAct::GiveBackEnds { which, fails }),
        4 => (file(), offset(), length()).prop_map(
            |(file, offset, length)| ModelAct::Want { file, offset, length }),
        2 => any::<bool>().prop_map(|comes| ModelAct::SpaceReported { comes }),
        3 => file().prop_map(|file| ModelAct::Preallocate { file }),
        3 => (file(), any::<bool>(), 1..PAGE, 1u8..=255).prop_map(
            |(file, last, length, with)| ModelAct::WritePreallocated { file, last, length, with }),
        1 => Just(ModelAct::LookAtPreallocated),
        1 => Just(ModelAct::Count),
        3 => (file(), 1u32..4, any::<bool>()).prop_map(
            |(file, uid, pinned)| ModelAct::Own { file, uid, pinned }),
    ]
}
