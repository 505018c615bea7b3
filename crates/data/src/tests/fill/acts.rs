//! Acts of the model of filling: what may happen to files, clients and the daemon, and how often.

use super::dirty_ranges::{RangeAct, part};
use super::{BACKED_FIRST, FILE_BYTES};
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(super) enum FillAct {
    Read {
        file: u64,
        offset: u64,
        length: u64,
    },
    Map {
        file: u64,
        offset: u64,
        length: u64,
        allocate: u8,
    },
    Write {
        file: u64,
        offset: u64,
        length: u64,
        with: u8,
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
    Seek {
        file: u64,
        offset: u64,
    },
    Remove {
        file: u64,
    },
    /// Writeback of a whole file.
    WriteBack {
        file: u64,
    },
    /// Writeback of a range of an open file.
    RangeAct {
        file: u64,
        part: RangeAct,
    },
    Pin {
        file: u64,
        pinned: u8,
    },
    Prefetch {
        file: u64,
        what: u8,
        list_index: (u64, u64, u32),
    },
    Readahead {
        millis: u32,
        used: u64,
    },
    Come,
    Kill,
    /// A client writes where it finds an extent, without a message.
    Scribble {
        file: u64,
        offset: u64,
        with: u8,
    },
    /// A stopped client keeps a hazard pointer on the slot that `slot` chooses.
    Protect {
        slot: u32,
    },
    Unprotect,
    Look {
        millis: u32,
        used: u64,
        kill_at: Option<usize>,
    },
}

/// Mostly no kill; else one after this many effects.
fn kill_at() -> impl Strategy<Value = Option<usize>> {
    prop_oneof![4 => Just(None), 1 => (0usize..8).prop_map(Some)]
}

pub(super) fn act() -> impl Strategy<Value = FillAct> {
    let file = || prop_oneof![1u64..2, BACKED_FIRST + 1..BACKED_FIRST + 4];
    let offset = || 0..FILE_BYTES;
    let length = || prop_oneof![0u64..10_000, 0..FILE_BYTES / 2];
    prop_oneof![
        5 => (file(), offset(), length()).prop_map(
            |(file, offset, length)| FillAct::Read { file, offset, length }),
        3 => (file(), offset(), length(), 0u8..2).prop_map(
            |(file, offset, length, allocate)| FillAct::Map { file, offset, length, allocate }),
        5 => (file(), offset(), length(), 1u8..=255).prop_map(
            |(file, offset, length, with)| FillAct::Write { file, offset, length, with }),
        2 => (file(), offset()).prop_map(|(file, size)| FillAct::Truncate { file, size }),
        2 => (file(), offset(), length()).prop_map(
            |(file, offset, length)| FillAct::Punch { file, offset, length }),
        1 => (file(), offset()).prop_map(|(file, offset)| FillAct::Seek { file, offset }),
        1 => file().prop_map(|file| FillAct::Remove { file }),
        5 => file().prop_map(|file| FillAct::WriteBack { file }),
        12 => (file(), part()).prop_map(|(file, part)| FillAct::RangeAct { file, part }),
        2 => (file(), 0u8..2).prop_map(|(file, pinned)| FillAct::Pin { file, pinned }),
        4 => (file(), 0u8..5, (0u64..3, 0u64..6, 1u32..3)).prop_map(
            |(file, what, list_index)| FillAct::Prefetch { file, what, list_index }),
        4 => (0u32..100, any::<u64>()).prop_map(
            |(millis, used)| FillAct::Readahead { millis, used }),
        4 => Just(FillAct::Come),
        1 => Just(FillAct::Kill),
        6 => (file(), offset(), 1u8..=255).prop_map(
            |(file, offset, with)| FillAct::Scribble { file, offset, with }),
        1 => (0u32..40).prop_map(|slot| FillAct::Protect { slot }),
        1 => Just(FillAct::Unprotect),
        6 => (0u32..40, any::<u64>(), kill_at()).prop_map(
            |(millis, used, kill_at)| FillAct::Look { millis, used, kill_at }),
    ]
}
