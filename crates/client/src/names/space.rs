//! Space of the instance (`statfs`), and the share of it that a project may use.

use wire::errno::{Errno, Result};
use wire::limits::EXTENT_BYTES_MIN;
use wire::quota::{Account, AccountUsage, Limits};
use wire::{Attributes, DaemonIndex, Reply, Request};

use crate::names::quota;
use crate::transport::Transport;
use crate::transport::request::{Destination, own_credentials};

/// Space of all daemons together, or the share that a project may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// Bytes of all targets.
    pub bytes_total: u64,
    /// Free bytes.
    pub bytes_free: u64,
    /// Existing files of all kinds plus those that can be created.
    pub files_total: u64,
    /// Files that can be created.
    pub files_free: u64,
}

impl Space {
    /// Unit in which space is reported: the smallest extent. Inodes are bounded by space alone;
    /// each takes one block in the worst case.
    pub const BLOCK_BYTES: u64 = EXTENT_BYTES_MIN;

    fn within(self, usage: &AccountUsage) -> Space {
        let Limits { space_soft, space_hard, inodes_soft, inodes_hard, .. } = usage.limits;
        let space = (self.bytes_total, self.bytes_free);
        let (bytes_total, bytes_free) = within(space, [space_soft, space_hard], usage.space);
        let files = (self.files_total, self.files_free);
        let (files_total, files_free) = within(files, [inodes_soft, inodes_hard], usage.inodes);
        Space { bytes_total, bytes_free, files_total, files_free }
    }
}

/// Total and free amounts under the lower of two limits (0: none), for an account that uses `used`.
fn within((total, free): (u64, u64), limits: [u64; 2], used: u64) -> (u64, u64) {
    match limits.into_iter().filter(|&limit| limit != 0).min() {
        Some(limit) if limit < total => (limit, free.min(limit.saturating_sub(used))),
        _ => (total, free),
    }
}

/// The space of the instance, for `statfs(2)`.
pub(crate) fn space(transport: &Transport) -> Result<Space> {
    let caller = own_credentials();
    let mut sum = Space::default();
    for daemon in 0..transport.home()?.map.daemon_count() {
        let to = Destination::Target(DaemonIndex(daemon));
        transport.call(to, &Request::Space {}, &caller)?.with(|reply| {
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

/// As `space`, for the location of a file: if its project has a limit, the share that the
/// project may use, as in XFS and ext4.
pub(crate) fn space_of(transport: &Transport, file: &Attributes) -> Result<Space> {
    let space = space(transport)?;
    let Some(account) = Account::project(file.project) else { return Ok(space) };
    let mut within = space;
    quota::quotas(transport, account, &own_credentials(), &mut |usage| {
        if usage.account == account {
            within = space.within(&usage);
        }
    })?;
    Ok(within)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_limit_caps_total_and_free_space() {
        let all = (1000, 600);
        assert_eq!(within(all, [0, 0], 300), all);
        assert_eq!(within(all, [0, 400], 300), (400, 100));
        assert_eq!(within(all, [350, 400], 300), (350, 50));
        assert_eq!(within(all, [350, 0], 360), (350, 0));
        assert_eq!(within(all, [0, 900], 100), (900, 600));
        assert_eq!(within(all, [0, 1000], 100), all);
    }
}
