//! What clients do that the target is told of late, or not at all.

use super::{Act, FILE_BYTES, Files, World, grow};
use crate::effect::Answer;
use wire::reply::Piece;
use wire::request::rise;
use wire::{Errno, Inode};

pub(super) fn wish(world: &mut World, file: u64, what: u8, place: (u64, u64, u32)) {
    let answer = world.wish(file, what, place);
    let is_right = match answer {
        Answer::Number(left) => left <= FILE_BYTES.next_power_of_two(),
        // The place is taken, or it failed before, for a reason that there was then.
        // A guess is a list's.
        Answer::Refused(Errno::EINVAL) => place.0 != 0 || what == rise::GUESS,
        Answer::Refused(Errno::EAGAIN) => what == rise::DROP,
        Answer::Refused(Errno::EIO) => world.failing > 0,
        Answer::Refused(Errno::ENOSPC) => true,
        _ => false,
    };
    assert!(is_right, "{answer:?}");
    world.target.check_wishes();
}

/// What the target is not told of.
pub(super) fn by_clients(world: &mut World, files: &mut Files, act: &Act) {
    match *act {
        Act::Scribble { file, offset, with } => {
            let holds =
                |piece: &Piece| (piece.start..piece.start + piece.length()).contains(&offset);
            let mut rows = world.table.values();
            let row = rows.find(|(inode, piece)| inode.0 == file && holds(piece)).copied();
            let Some((_, piece)) = row.filter(|row| !world.hidden.contains_key(&row.1.slot)) else {
                return;
            };
            world.saved.is_as_is.remove(&Inode(file));
            world.changes(piece.slot);
            world.part(&piece, offset - piece.start, 1)[0] = with;
            grow(files, file, offset + 1)[offset as usize] = with;
        }
        Act::Pin { slot } => {
            if let Some(row) = world.table.get(&slot).filter(|_| !world.hidden.contains_key(&slot))
            {
                world.pinned.insert(slot, row.1);
            }
        }
        Act::Look { millis, used, kill_at } => {
            world.kill_at = kill_at;
            world.look(millis, used, &[]);
            if world.kill_at.take() == Some(0) {
                world.kill();
            }
        }
        _ => world.pinned.clear(),
    }
}
