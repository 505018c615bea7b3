//! Credentials of a caller that its request does not contain: further groups, and capabilities.
//! They are read from `/proc`, where the caller exists as long as it waits for the reply.

use std::path::{Path, PathBuf};
use wire::credentials::{Credentials, GROUPS_MAX};
use wire::errno::Errno;

use crate::ops::request::Request;

/// `CAP_DAC_OVERRIDE`, as a bit of a capability set.
const OVERRIDES: u64 = 1 << 1;

/// `CAP_CHOWN`, as a bit of a capability set.
pub(crate) const GIVES_AWAY: u64 = 1;

/// `CAP_FOWNER`, as a bit of a capability set.
pub(crate) const OWNS_ALL: u64 = 1 << 3;

/// `CAP_FSETID`, as a bit of a capability set.
const KEEPS_SET_ID: u64 = 1 << 4;

/// Credentials of a process from `/proc`.
#[derive(Debug, Default)]
struct Caller {
    /// Supplementary groups, as seen in this program's user namespace.
    groups: Vec<u32>,
    /// Effective capabilities, in the user namespace of the process.
    may: u64,
}

impl Caller {
    /// Empty if the process does not exist or is not visible here.
    fn of(pid: u32) -> Caller {
        Caller::parse(&std::fs::read_to_string(process(pid).join("status")).unwrap_or_default())
    }

    fn parse(status: &str) -> Caller {
        let of = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().split_whitespace()
        };
        Caller {
            groups: of("Groups:").filter_map(|group| group.parse().ok()).collect(),
            may: of("CapEff:").find_map(|bits| u64::from_str_radix(bits, 16).ok()).unwrap_or(0),
        }
    }
}

fn process(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// True if a process is in this program's user namespace, so that its capabilities count.
fn is_of_this_namespace(pid: u32) -> bool {
    let of = |process: &Path| std::fs::read_link(process.join("ns/user")).ok();
    of(&process(pid)).is_some_and(|space| Some(space) == of(Path::new("/proc/self")))
}

/// True if the caller is root or a member of a group of the instance. A request contains only
/// its first group.
pub(crate) fn may_keep_set_gid(request: &Request<'_>, gid: u32) -> bool {
    let gid = request.server.owners.groups.inside(gid);
    let header = &request.header;
    request.is_of_root() || header.gid == gid || Caller::of(header.pid).groups.contains(&gid)
}

/// As `may_keep_set_gid` for a file whose mode the caller sets: `CAP_FSETID` permits it, too.
pub(crate) fn may_set_gid_bit(request: &Request<'_>, gid: u32) -> bool {
    may_keep_set_gid(request, gid) || Caller::of(request.header.pid).may & KEEPS_SET_ID != 0
}

/// Does what only the owner of a file may do: the removal of a name in a sticky directory, a change
/// of owner, mode, times or access control list. The kernel has checked the owner of the file that
/// it knew under the name, or the owner that it remembers of the file, and the shard checks the
/// current one. Only this program can see that a caller other than root has `capability`, with which
/// it may do it to files of all.
pub(crate) fn as_owner<T>(
    request: &Request<'_>,
    capability: u64,
    mut work: impl FnMut(&Credentials) -> Result<T, Errno>,
) -> Result<T, Errno> {
    match work(&request.caller()) {
        Err(Errno::EPERM)
            if !request.server.owners.are_checked_here()
                && Caller::of(request.header.pid).may & capability != 0 =>
        {
            work(&Credentials::checked(0, 0))
        }
        outcome => outcome,
    }
}

/// Credentials of a caller that the instance checks, whatever the kernel has permitted.
pub(crate) fn to_be_checked(request: &Request<'_>) -> Credentials {
    let (owners, header) = (&request.server.owners, &request.header);
    let caller =
        Credentials::of(owners.user_of_caller(header.uid), owners.group_of_caller(header.gid));
    with_groups(caller, &Caller::of(header.pid).groups, |group| owners.group_of_caller(group))
}

fn with_groups(caller: Credentials, groups: &[u32], of: impl Fn(u32) -> u32) -> Credentials {
    let mut caller = caller;
    for (place, &group) in caller.groups.iter_mut().zip(groups) {
        *place = of(group);
    }
    // Groups beyond the maximum could only have permitted more.
    caller.group_count = groups.len().min(GROUPS_MAX) as u8;
    caller
}

/// Credentials for an operation that the kernel has not checked. `None` if the instance would
/// take the caller for another user, because it trusts only root about others, or if it is
/// uncertain that the caller is root.
pub(crate) fn unchecked_caller(request: &Request<'_>) -> Option<Credentials> {
    let (owners, header, caller) = (&request.server.owners, &request.header, request.caller());
    if owners.are_checked_here() {
        return Some(caller);
    }
    let process = Caller::of(header.pid);
    if header.uid == 0 {
        let is_root = process.may & OVERRIDES != 0 && is_of_this_namespace(header.pid);
        return is_root.then_some(caller);
    }
    let own = owners.users.outside(rustix::process::geteuid().as_raw());
    if own != 0 && own != caller.uid {
        return None;
    }
    let unchecked = Credentials::of(caller.uid, caller.gid);
    Some(with_groups(unchecked, &process.groups, |group| owners.groups.outside(group)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_parsed_from_proc() {
        let process = Caller::parse("Name:\tx\nGroups:\t4 24 1000 \nCapEff:\t000001ffffffffff\n");
        assert_eq!((process.groups, process.may), (vec![4, 24, 1000], 0x1ff_ffff_ffff));
        let process = Caller::parse("Groups:\nCapEff:\tnothing\n");
        assert_eq!((process.groups, process.may), (vec![], 0));
        assert!(is_of_this_namespace(std::process::id()), "its own");
        assert!(!is_of_this_namespace(0) && Caller::of(0).groups.is_empty(), "of none");
    }
}
