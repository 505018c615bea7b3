//! Layouts: what a new file inherits from its directory, and which target holds which bytes of a
//! file.

use placement::locate;
use placement::locate::Targets;
use wire::attributes::placement as placed;
use wire::attributes::{flag, mode, spread};
use wire::errno::Result;
use wire::limits::{STRIPE_LOG2_MAX, STRIPE_LOG2_MIN};
use wire::request::{ANY_TRUNCATE_EPOCH, PINNED_STRIPE};
use wire::{Attributes, Credentials, DaemonIndex, Inode, Layout};

use crate::transport::Transport;
use crate::transport::attachment::Attachment;

/// A file as its targets identify it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct File {
    /// The inode.
    pub(crate) inode: Inode,
    /// Layout: determines which target holds which bytes.
    pub(crate) layout: Layout,
    /// Truncate epoch for which writes to other hosts are valid; after a later truncation targets
    /// refuse them. `ANY_TRUNCATE_EPOCH`: always valid.
    pub(crate) good_for: u64,
}

impl File {
    /// True if it is known to have holes.
    pub(crate) const fn is_sparse(&self) -> bool {
        self.layout.flags & flag::SPARSE != 0
    }

    /// True if hosts see each other's changes at once.
    pub(crate) const fn is_posix(&self) -> bool {
        self.layout.flags & flag::POSIX != 0
    }

    /// True if its extents are known to be pinned in memory.
    pub(crate) const fn is_pinned(&self) -> bool {
        self.layout.flags & flag::PINNED != 0
    }

    /// True if extents that end at `end` may be allocated only after `io::locate::prepare_extents`.
    pub(crate) const fn is_short_of(&self, end: u64, stripe_log2: u8) -> bool {
        self.layout.flags & flag::SHORT != 0 && end > 1 << stripe_log2
    }

    /// The file with these attributes.
    pub(crate) const fn of(attributes: &Attributes) -> File {
        File { inode: attributes.inode, layout: attributes.layout, good_for: ANY_TRUNCATE_EPOCH }
    }

    /// log2 of the stripe size, clamped whatever a message says.
    #[inline]
    pub(crate) fn stripe_log2(&self) -> u8 {
        self.layout.stripe_log2.clamp(STRIPE_LOG2_MIN, STRIPE_LOG2_MAX)
    }

    /// The `stripe_log2` field of a data request.
    pub(crate) fn stripe_word(&self) -> u8 {
        self.stripe_log2() | if self.is_pinned() { PINNED_STRIPE } else { 0 }
    }

    /// True if the contents are in the inode record.
    pub(crate) const fn is_inline(&self) -> bool {
        self.layout.flags & flag::INLINE != 0
    }
}

/// Owner and mode of a file that is created in `parent`: a directory with the set-group-id bit
/// passes on its group, and the bit itself to subdirectories.
pub(crate) fn inherit_group(
    parent: &Attributes,
    caller: &Credentials,
    mode: u32,
) -> (Credentials, u32) {
    if parent.mode & mode::SET_GID == 0 {
        return (*caller, mode);
    }
    let caller = Credentials { gid: parent.gid, ..*caller };
    let is_directory = mode & mode::TYPE == mode::DIRECTORY;
    (caller, if is_directory { mode | mode::SET_GID } else { mode })
}

/// The layout of a new file of this type in `parent`.
pub(crate) fn layout_of_child(
    transport: &Transport,
    parent: &Attributes,
    mode: u32,
) -> Result<Layout> {
    let Attachment { welcome, map, .. } = transport.home()?;
    let mut layout = Layout { place: 0, flags: 0, ..parent.layout };
    if layout.stripe_log2 == 0 {
        layout.stripe_log2 = welcome.stripe_log2;
    }
    match mode & mode::TYPE {
        mode::DIRECTORY => layout.flags = parent.layout.flags,
        kind => {
            layout.spread = spread::HOME;
            layout.place = match layout.placement {
                placed::LOCAL => welcome.daemon,
                _ if kind == mode::REGULAR => map.place_of_new(),
                _ => 0,
            };
            // On this host an extent costs no message, but contents in the inode record do.
            let is_remote = map.daemon_count() > welcome.local_count;
            if kind == mode::REGULAR {
                let is_inline = welcome.inline_bytes > 0 && is_remote;
                layout.flags = if is_inline { flag::INLINE | flag::SHORT } else { flag::SHORT };
            }
            layout.flags |= parent.layout.flags & (flag::POSIX | flag::PINNED);
        }
    }
    Ok(layout)
}

/// True if different stripes may be on different targets.
pub(crate) fn is_spread(transport: &Transport, file: &File) -> Result<bool> {
    Ok(targets_of(transport, file)?.len() > 1)
}

/// True if all bytes of a file are on one target, as far as is known here.
#[inline(never)]
pub(crate) fn is_on_one_target(transport: &Transport, file: &File) -> bool {
    is_spread(transport, file) == Ok(false)
}

/// All targets that may hold data of a file.
fn targets_of(transport: &Transport, file: &File) -> Result<Targets> {
    let first = transport.home()?.map.first_count();
    Ok(locate::targets(&file.layout, file.inode, first))
}

/// Largest contents that stay in the inode record.
pub(crate) fn inline_bytes(transport: &Transport) -> u64 {
    transport.attached_home().map_or(0, |home| u64::from(home.welcome.inline_bytes))
}

/// The target that holds `offset` of a file.
pub(crate) fn target_of(transport: &Transport, file: &File, offset: u64) -> Result<DaemonIndex> {
    let first = transport.home()?.map.first_count();
    let stripe = offset >> file.stripe_log2();
    Ok(locate::target(&file.layout, file.inode, stripe, first))
}

/// Calls `with` once for each target that may hold data of `start .. end`.
///
/// # Errors
/// The first that `with` returns.
pub(crate) fn each_target(
    transport: &Transport,
    file: &File,
    start: u64,
    end: u64,
    with: &mut dyn FnMut(DaemonIndex) -> Result<()>,
) -> Result<()> {
    let mut all = targets_of(transport, file)?;
    let log2 = file.stripe_log2();
    let first = start >> log2;
    let stripes = (end.saturating_sub(1) >> log2).saturating_sub(first).saturating_add(1);
    if stripes >= all.len() as u64 {
        return all.try_for_each(with);
    }
    // Fewer stripes than targets: call each target at its first stripe.
    let of = |stripe: u64| target_of(transport, file, stripe << log2);
    for stripe in first..first.saturating_add(stripes) {
        let target = of(stripe)?;
        let is_new = (first..stripe).all(|earlier| of(earlier) != Ok(target));
        if is_new {
            with(target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_of_a_set_group_id_directory_inherit_its_group() {
        let parent = Attributes { mode: 0o042_775, gid: 7, ..Attributes::default() };
        let caller = Credentials::of(1, 2);
        let (creator_of_file, mode) = inherit_group(&parent, &caller, 0o100_644);
        assert_eq!((creator_of_file.gid, mode), (7, 0o100_644));
        let (creator_of_directory, mode) = inherit_group(&parent, &caller, 0o040_755);
        assert_eq!((creator_of_directory.gid, mode), (7, 0o042_755));
    }
}
