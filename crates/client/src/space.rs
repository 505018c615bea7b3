//! Space of the instance (`statfs`), and reserving or giving back space of a file (`fallocate`).

use placement::piece;
use wire::attributes::want;
use wire::errno::{Errno, Result};
use wire::limits::{FILE_BYTES_MAX, PIECE_BYTES_MIN};
use wire::quota::{Account, Limits, Row};
use wire::{Attributes, DaemonIndex, Reply, Request};

use crate::errno::by_descriptor;
use crate::layout::File;
use crate::opened::Open;
use crate::request::{To, own_credentials};
use crate::size::Met;
use crate::{Client, OfdIndex};

/// Space of all daemons together, or what a project may use of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// Bytes of all targets.
    pub bytes_total: u64,
    /// Bytes that are free.
    pub bytes_free: u64,
    /// Files of all kinds that there are or could be made.
    pub files_total: u64,
    /// Files that could be made.
    pub files_free: u64,
}

impl Space {
    /// Unit in which space is shown: the smallest piece of a file. Inodes are bounded by space
    /// alone; each takes one in the worst case.
    pub const BLOCK_BYTES: u64 = PIECE_BYTES_MIN;

    fn within(self, row: &Row) -> Space {
        let Limits { space_soft, space_hard, inodes_soft, inodes_hard, .. } = row.limits;
        let space = (self.bytes_total, self.bytes_free);
        let (bytes_total, bytes_free) = within(space, [space_soft, space_hard], row.space);
        let files = (self.files_total, self.files_free);
        let (files_total, files_free) = within(files, [inodes_soft, inodes_hard], row.inodes);
        Space { bytes_total, bytes_free, files_total, files_free }
    }
}

/// What there is and what is free, for one who may use so much by the lower of two limits, and does use
/// `used`.
fn within((total, free): (u64, u64), limits: [u64; 2], used: u64) -> (u64, u64) {
    match limits.into_iter().filter(|&limit| limit != 0).min() {
        Some(limit) if limit < total => (limit, free.min(limit.saturating_sub(used))),
        _ => (total, free),
    }
}

/// Modes of `fallocate(2)`.
mod allocate {
    pub(super) const KEEP_SIZE: u32 = 1;
    pub(super) const PUNCH_HOLE: u32 = 2;
    pub(super) const COLLAPSE_RANGE: u32 = 8;
    pub(super) const ZERO_RANGE: u32 = 16;
    pub(super) const INSERT_RANGE: u32 = 32;
    pub(super) const UNSHARE_RANGE: u32 = 64;
}

/// True for a mode that Linux hands on to file systems; whether this one has it is said after the range
/// was looked at, as there.
const fn is_mode(mode: u32) -> bool {
    let keeps = mode & allocate::KEEP_SIZE != 0;
    match mode & !allocate::KEEP_SIZE {
        0 | allocate::ZERO_RANGE | allocate::UNSHARE_RANGE => true,
        allocate::PUNCH_HOLE => keeps,
        allocate::COLLAPSE_RANGE | allocate::INSERT_RANGE => !keeps,
        _ => false,
    }
}

/// Bytes of zeros that are written into an inline file at once.
const ZEROS: [u8; 1024] = [0; 1024];

impl Client {
    /// The space of the instance, for `statfs(2)`.
    ///
    /// # Errors
    /// `EIO` if a daemon can not be reached.
    pub fn space(&self) -> Result<Space> {
        let who = own_credentials();
        let mut sum = Space::default();
        for daemon in 0..self.home()?.map.daemon_count() {
            let to = To::Target(DaemonIndex(daemon));
            self.call(to, &Request::Space {}, &who)?.with(|reply| {
                let Reply::Space { memory_total, memory_free, ssd_total, ssd_free, files } = reply
                else {
                    return Err(Errno::EIO);
                };
                let add = |sum: u64, a: u64, b: u64| sum.saturating_add(a).saturating_add(b);
                sum.bytes_total = add(sum.bytes_total, memory_total, ssd_total);
                sum.bytes_free = add(sum.bytes_free, memory_free, ssd_free);
                sum.files_total = sum.files_total.saturating_add(files);
                Ok(())
            })?;
        }
        sum.files_free = sum.bytes_free / Space::BLOCK_BYTES;
        sum.files_total = sum.files_total.saturating_add(sum.files_free);
        Ok(sum)
    }

    /// As `space`, where a file is: if it counts for a project that is limited, what that may use, as XFS
    /// and ext4 have it.
    ///
    /// # Errors
    /// As `space`.
    pub fn space_of(&self, file: &Attributes) -> Result<Space> {
        let space = self.space()?;
        let Some(account) = Account::project(file.project) else { return Ok(space) };
        let mut within = space;
        self.quotas(account, &own_credentials(), &mut |row| {
            if row.account == account {
                within = space.within(&row);
            }
        })?;
        Ok(within)
    }

    /// `fallocate(2)` with the kernel's mode bits: reserve (0, `KEEP_SIZE`), `PUNCH_HOLE` with
    /// `KEEP_SIZE`, `ZERO_RANGE` with and without it.
    ///
    /// # Errors
    /// As `fallocate(2)`; `EOPNOTSUPP` for other modes.
    pub fn allocate(&self, ofd: OfdIndex, mode: u32, offset: u64, length: u64) -> Result<()> {
        let open = self.open_for(ofd, want::WRITE)?;
        if length == 0 || offset > FILE_BYTES_MAX {
            return Err(Errno::EINVAL);
        }
        const PUNCH: u32 = allocate::PUNCH_HOLE | allocate::KEEP_SIZE;
        const ZERO_KEEP: u32 = allocate::ZERO_RANGE | allocate::KEEP_SIZE;
        if !is_mode(mode) {
            return Err(Errno::EOPNOTSUPP);
        }
        let end = offset.checked_add(length).filter(|&end| end <= FILE_BYTES_MAX);
        let end = end.ok_or(Errno::EFBIG)?;
        self.settle(open.vnode)?;
        match mode {
            0 | allocate::KEEP_SIZE => self.reserve(&open, offset, end, mode == 0)?,
            PUNCH | ZERO_KEEP => self.punch(&open, offset, end)?,
            allocate::ZERO_RANGE => {
                self.punch(&open, offset, end)?;
                self.grow(&open, end)?;
            }
            _ => return Err(Errno::EOPNOTSUPP),
        }
        open.note_modified();
        self.tell_page_keepers(&open)
    }

    /// Makes sure that writes into `offset .. end` find their space.
    fn reserve(&self, open: &Open<'_>, offset: u64, end: u64, grows: bool) -> Result<()> {
        let mut file = open.file();
        if file.is_inline() && end > self.inline_bytes() {
            file = self.move_out(open)?;
        }
        if !file.is_inline() {
            file = self.reach(open, end)?;
            self.reserve_range(&file, offset, end)?;
        }
        if grows { self.grow(open, end) } else { Ok(()) }
    }

    fn reserve_range(&self, file: &File, offset: u64, end: u64) -> Result<()> {
        let whole = !self.is_spread(file)?;
        let log2 = file.chunk_log2();
        let mut at = piece::at(offset, log2).start;
        while at < end {
            let chunk_end = (at >> log2).saturating_add(1) << log2;
            let next = if whole { end } else { chunk_end.min(end) };
            self.reserve_pieces(file, at, next)?;
            at = next;
        }
        Ok(())
    }

    /// The file is at least `end` long from now on.
    fn grow(&self, open: &Open<'_>, end: u64) -> Result<()> {
        let mut met = Met::new();
        loop {
            let cuts = self.uncut(open)?;
            if end <= self.size_now(open)? {
                return Ok(());
            }
            // Not by setting the size: others may make it longer still meanwhile.
            if open.note_written(cuts, end).is_ok() {
                return by_descriptor(self.flush(open.vnode, open.inode));
            }
            met.again(self)?;
        }
    }

    /// Makes `offset .. end` read as zeros.
    fn punch(&self, open: &Open<'_>, offset: u64, end: u64) -> Result<()> {
        let end = end.min(self.size_now(open)?);
        if offset >= end {
            return Ok(());
        }
        if open.file().is_inline() {
            return self.punch_inline(open, offset, end);
        }
        let _changing = self.changing(open.vnode);
        let file = open.file();
        let request = Request::Punch {
            inode: file.inode,
            chunk_log2: file.chunk_log2(),
            offset,
            length: end.saturating_sub(offset),
        };
        let who = own_credentials();
        self.each_target(&file, offset, end, &mut |target| {
            by_descriptor(self.call_done(To::Target(target), &request, &who))
        })
    }

    fn punch_inline(&self, open: &Open<'_>, offset: u64, end: u64) -> Result<()> {
        let mut offset = offset;
        while offset < end {
            let left = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX);
            let zeros = ZEROS.get(..left.min(ZEROS.len())).unwrap_or(&ZEROS);
            let written = self.write_at(open, offset, zeros)?;
            offset = offset.saturating_add(written.max(1) as u64);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_what_there_is_and_no_more_is_free_than_there_is() {
        let all = (1000, 600);
        assert_eq!(within(all, [0, 0], 300), all);
        assert_eq!(within(all, [0, 400], 300), (400, 100));
        assert_eq!(within(all, [350, 400], 300), (350, 50));
        assert_eq!(within(all, [350, 0], 360), (350, 0));
        assert_eq!(within(all, [0, 900], 100), (900, 600));
        assert_eq!(within(all, [0, 1000], 100), all);
    }
}
