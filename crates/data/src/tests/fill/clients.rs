//! Client actions that the target learns of late, or not at all.

use super::{FILE_BYTES, FillAct, FillFiles, FillWorld, grow};
use crate::effect::Answer;
use wire::reply::Extent;
use wire::request::prefetch;
use wire::{Errno, Inode};

pub(super) fn prefetch_file(
    world: &mut FillWorld,
    file: u64,
    what: u8,
    list_index: (u64, u64, u32),
) {
    let answer = world.prefetch_file(file, what, list_index);
    let is_right = match answer {
        Answer::Number(bytes_left) => bytes_left <= FILE_BYTES.next_power_of_two(),
        // The index is taken, or it failed before, for a reason that held then. A speculative
        // request belongs to a list.
        Answer::Refused(Errno::EINVAL) => list_index.0 != 0 || what == prefetch::SPECULATIVE,
        Answer::Refused(Errno::EAGAIN) => what == prefetch::EVICT,
        Answer::Refused(Errno::EIO) => world.failing > 0,
        Answer::Refused(Errno::ENOSPC) => true,
        _ => false,
    };
    assert!(is_right, "{answer:?}");
    world.target.check_prefetch_queue();
}

/// A client action without a message to the target.
pub(super) fn by_clients(world: &mut FillWorld, files: &mut FillFiles, act: &FillAct) {
    match *act {
        FillAct::Scribble { file, offset, with } => {
            let holds =
                |extent: &Extent| (extent.start..extent.start + extent.length()).contains(&offset);
            let mut entries = world.table.values();
            let row = entries.find(|(inode, extent)| inode.0 == file && holds(extent)).copied();
            let Some((_, extent)) = row.filter(|row| !world.hidden.contains_key(&row.1.slot))
            else {
                return;
            };
            world.saved.is_as_is.remove(&Inode(file));
            world.changes(extent.slot);
            world.part(&extent, offset - extent.start, 1)[0] = with;
            grow(files, file, offset + 1)[offset as usize] = with;
        }
        FillAct::Protect { slot } => {
            if let Some(row) = world.table.get(&slot).filter(|_| !world.hidden.contains_key(&slot))
            {
                world.protected.insert(slot, row.1);
            }
        }
        FillAct::Look { millis, used, kill_at } => {
            world.kill_at = kill_at;
            world.look(millis, used, &[]);
            if world.kill_at.take() == Some(0) {
                world.kill();
            }
        }
        _ => world.protected.clear(),
    }
}
