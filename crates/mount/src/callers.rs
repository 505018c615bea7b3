//! Who asks, where the kernel has not said it all: his other groups, and whether he is above permissions.
//! `/proc` tells, where he is as long as he waits for the answer.

use std::path::{Path, PathBuf};
use wire::credentials::{Credentials, GROUPS_MAX};
use wire::errno::Errno;

use crate::answer::Request;

/// `CAP_DAC_OVERRIDE`, as a bit of what a process may.
const OVERRIDES: u64 = 1 << 1;
/// `CAP_FOWNER`.
const OWNS_ALL: u64 = 1 << 3;

/// What `/proc` says of a process.
#[derive(Debug, Default)]
struct Caller {
    /// Supplementary groups, as this program's user namespace has them.
    groups: Vec<u32>,
    /// Capabilities that are in effect, in its own user namespace.
    may: u64,
}

impl Caller {
    /// With nothing in it if there is no such process, or none that can be seen from here.
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

/// True if what a process may is meant for this program's user namespace.
fn is_of_this_namespace(pid: u32) -> bool {
    let of = |process: &Path| std::fs::read_link(process.join("ns/user")).ok();
    of(&process(pid)).is_some_and(|space| Some(space) == of(Path::new("/proc/self")))
}

impl Request<'_> {
    /// True if who asks is root, or in a group of the instance. A request names his first group alone.
    pub(crate) fn may_keep_set_gid(&self, gid: u32) -> bool {
        let gid = self.server.owners.groups.inside(gid);
        let header = &self.header;
        header.uid == 0 || header.gid == gid || Caller::of(header.pid).groups.contains(&gid)
    }

    /// Has somebody remove a name. In a sticky directory the kernel has checked whose the file is that it
    /// knew by it, and its shard checks whose it is. Who may do as any owner may, without being root, is
    /// known here alone.
    pub(crate) fn removing<T>(
        &self,
        mut remove: impl FnMut(&Credentials) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match remove(&self.who()) {
            Err(Errno::EPERM) if Caller::of(self.header.pid).may & OWNS_ALL != 0 => {
                remove(&Credentials::checked(0, 0))
            }
            outcome => outcome,
        }
    }

    /// Who asks, for what the kernel has not checked. `None` where the instance would take him for
    /// somebody
    /// else, as it believes nobody but root about others, or where it is not certain that he is root.
    pub(crate) fn who_unchecked(&self) -> Option<Credentials> {
        let (owners, header, who) = (&self.server.owners, &self.header, self.who());
        let caller = Caller::of(header.pid);
        if header.uid == 0 {
            let is_root = caller.may & OVERRIDES != 0 && is_of_this_namespace(header.pid);
            return is_root.then_some(who);
        }
        let own = owners.users.outside(rustix::process::geteuid().as_raw());
        if own != 0 && own != who.uid {
            return None;
        }
        let mut unchecked = Credentials::of(who.uid, who.gid);
        for (place, &group) in unchecked.groups.iter_mut().zip(&caller.groups) {
            *place = owners.groups.outside(group);
        }
        // Further ones could only have allowed more.
        unchecked.group_count = caller.groups.len().min(GROUPS_MAX) as u8;
        Some(unchecked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says_is_found() {
        let caller = Caller::parse("Name:\tx\nGroups:\t4 24 1000 \nCapEff:\t000001ffffffffff\n");
        assert_eq!((caller.groups, caller.may), (vec![4, 24, 1000], 0x1ff_ffff_ffff));
        let caller = Caller::parse("Groups:\nCapEff:\tnothing\n");
        assert_eq!((caller.groups, caller.may), (vec![], 0));
        assert!(is_of_this_namespace(std::process::id()), "its own");
        assert!(!is_of_this_namespace(0) && Caller::of(0).groups.is_empty(), "of none");
    }
}
