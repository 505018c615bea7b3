//! Layouts: what a new file gets from its directory, where a file's bytes are, and a layout as one
//! word of an open file.

use placement::locate::{self, Targets};
use wire::attributes::{flag, mode, placement as placed, spread};
use wire::errno::Result;
use wire::limits::{CHUNK_LOG2_MAX, CHUNK_LOG2_MIN};
use wire::request::{ANY_CUTS, RESIDENT_CHUNK, set};
use wire::{Attributes, Credentials, DaemonIndex, Inode, Layout};

use crate::Client;
use crate::attach::Attachment;
use crate::attributes::Change;
use crate::errno::by_descriptor;
use crate::opened::Open;
use crate::request::own_credentials;

/// A file as its targets know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct File {
    /// The inode.
    pub(crate) inode: Inode,
    /// Where the bytes are.
    pub(crate) layout: Layout,
    /// What is written to other hosts is good as long as the file was cut so often; or `ANY_CUTS`.
    pub(crate) good_for: u64,
}

impl File {
    /// True if it is known to have holes.
    pub(crate) const fn is_sparse(&self) -> bool {
        self.layout.flags & flag::SPARSE != 0
    }

    /// True if hosts see each other's changes of it at once.
    pub(crate) const fn is_posix(&self) -> bool {
        self.layout.flags & flag::POSIX != 0
    }

    /// True if its pieces stay in memory, as far as is known.
    pub(crate) const fn is_pinned(&self) -> bool {
        self.layout.flags & flag::PINNED != 0
    }

    /// True if something beyond `end` can only be made after `Client::reach`.
    const fn is_short_of(&self, end: u64, chunk_log2: u8) -> bool {
        self.layout.flags & flag::SHORT != 0 && end > 1 << chunk_log2
    }

    /// The file of these attributes.
    pub(crate) const fn of(attributes: &Attributes) -> File {
        File { inode: attributes.inode, layout: attributes.layout, good_for: ANY_CUTS }
    }

    /// log2 of the chunk size, in bounds whatever a message said.
    pub(crate) fn chunk_log2(&self) -> u8 {
        self.layout.chunk_log2.clamp(CHUNK_LOG2_MIN, CHUNK_LOG2_MAX)
    }

    /// The `chunk_log2` of a request for bytes.
    pub(crate) fn chunk_word(&self) -> u8 {
        self.chunk_log2() | if self.is_pinned() { RESIDENT_CHUNK } else { 0 }
    }

    /// True if the contents are in the inode record.
    pub(crate) const fn is_inline(&self) -> bool {
        self.layout.flags & flag::INLINE != 0
    }
}

/// Who makes a file in `parent`, and its mode: a directory with the set-group-id bit hands its
/// group down, and the bit to directories.
pub(crate) fn heir(parent: &Attributes, who: &Credentials, mode: u32) -> (Credentials, u32) {
    if parent.mode & mode::SET_GID == 0 {
        return (*who, mode);
    }
    let who = Credentials { gid: parent.gid, ..*who };
    let is_directory = mode & mode::TYPE == mode::DIRECTORY;
    (who, if is_directory { mode | mode::SET_GID } else { mode })
}

impl Client {
    /// The layout that a new file with these type bits gets in `parent`.
    pub(crate) fn layout_of_child(&self, parent: &Attributes, mode: u32) -> Result<Layout> {
        let Attachment { welcome, map, .. } = self.home()?;
        let mut layout = Layout { place: 0, flags: 0, ..parent.layout };
        if layout.chunk_log2 == 0 {
            layout.chunk_log2 = welcome.chunk_log2;
        }
        match mode & mode::TYPE {
            mode::DIRECTORY => layout.flags = parent.layout.flags,
            kind => {
                layout.spread = spread::HOME;
                if layout.placement == placed::LOCAL {
                    layout.place = welcome.daemon;
                }
                // On this host a piece costs no message, but contents in the inode record do.
                let is_far = map.daemon_count() > welcome.local_count;
                if kind == mode::REGULAR {
                    let is_inline = welcome.inline_bytes > 0 && is_far;
                    layout.flags = if is_inline { flag::INLINE | flag::SHORT } else { flag::SHORT };
                }
                layout.flags |= parent.layout.flags & (flag::POSIX | flag::PINNED);
            }
        }
        Ok(layout)
    }

    /// The file of `open`, which is about to get pieces before `end`. If some are beyond its first
    /// chunk, the shard knows it before there are any: else it would not look for them when the file
    /// goes.
    ///
    /// # Errors
    /// What the shard says; then nothing may be made there.
    pub(crate) fn reach(&self, open: &Open<'_>, end: u64) -> Result<File> {
        let file = open.file();
        if file.is_short_of(end, file.chunk_log2()) && self.is_spread(&file)? {
            return self.note_long(open);
        }
        Ok(file)
    }

    /// True if different chunks may be on different targets.
    pub(crate) fn is_spread(&self, file: &File) -> Result<bool> {
        Ok(self.targets_of(file)?.len() > 1)
    }

    /// All targets that may hold something of a file.
    pub(crate) fn targets_of(&self, file: &File) -> Result<Targets> {
        let count = self.home()?.map.daemon_count().max(1);
        Ok(locate::targets(&file.layout, file.inode, count))
    }

    #[cold]
    fn note_long(&self, open: &Open<'_>) -> Result<File> {
        let change = Change { mask: set::LONG | set::BY_DESCRIPTOR, ..Change::default() };
        let attributes = self.change(open.inode, &change, &own_credentials());
        Ok(open.set_layout(&by_descriptor(attributes)?))
    }

    /// Largest contents that stay in the inode record.
    pub(crate) fn inline_bytes(&self) -> u64 {
        self.home_now().map_or(0, |home| u64::from(home.welcome.inline_bytes))
    }

    /// The target that holds `offset` of a file.
    pub(crate) fn target_of(&self, file: &File, offset: u64) -> Result<DaemonIndex> {
        let count = self.home()?.map.daemon_count().max(1);
        let chunk = offset >> file.chunk_log2();
        Ok(locate::target(&file.layout, file.inode, chunk, count))
    }

    /// Calls `with` for each target that may hold something of `start .. end` of a file, once.
    ///
    /// # Errors
    /// The first that `with` returns.
    pub(crate) fn each_target(
        &self,
        file: &File,
        start: u64,
        end: u64,
        with: &mut dyn FnMut(DaemonIndex) -> Result<()>,
    ) -> Result<()> {
        let mut all = self.targets_of(file)?;
        let log2 = file.chunk_log2();
        let first = start >> log2;
        let chunks = (end.saturating_sub(1) >> log2).saturating_sub(first).saturating_add(1);
        if chunks >= all.len() as u64 {
            return all.try_for_each(with);
        }
        // Fewer chunks than targets: ask each target at its first chunk.
        let of = |chunk: u64| self.target_of(file, chunk << log2);
        for chunk in first..first.saturating_add(chunks) {
            let target = of(chunk)?;
            let is_new = (first..chunk).all(|earlier| of(earlier) != Ok(target));
            if is_new {
                with(target)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_group_id_directory_hands_its_group_down() {
        let parent = Attributes { mode: 0o042_775, gid: 7, ..Attributes::default() };
        let who = Credentials::of(1, 2);
        let (heir_of_file, mode) = heir(&parent, &who, 0o100_644);
        assert_eq!((heir_of_file.gid, mode), (7, 0o100_644));
        let (heir_of_directory, mode) = heir(&parent, &who, 0o040_755);
        assert_eq!((heir_of_directory.gid, mode), (7, 0o042_755));
    }
}
