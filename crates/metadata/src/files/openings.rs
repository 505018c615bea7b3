//! The hosts that have a file open, as the table `State::hosts` records it, and what follows from it:
//! which hosts may write to a file. This host's open files are in shared memory (`HostView`).

use wire::Inode;
use wire::codec::{Malformed, Reader};
use wire::reply::opened;

use crate::core::coding::Put;
use crate::core::context::Context;
use crate::core::record::Record;
use crate::core::state::State;

/// Another host that has a file open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Opening {
    pub(crate) host: u16,
    /// The largest open sequence of its openings; 0: it created the file.
    pub(crate) open_sequence: u64,
    /// True if one of its openings may write.
    pub(crate) writes: bool,
    /// True if kernels behind mounts there may cache pages of it (`kernel_cache::page_cache`).
    pub(crate) caches: bool,
}

/// Bits of an encoded open sequence: `writes`, `caches`. No host draws numbers that large.
const WRITES: u64 = 1 << 63;
const CACHES: u64 = 1 << 62;

impl Opening {
    /// The host's use of the file, as bits of `wire::reply::opened`.
    pub(crate) const fn uses(self) -> u8 {
        let writes = if self.writes { opened::OTHERS_WRITE } else { 0 };
        writes | if self.caches { opened::OTHERS_CACHE } else { 0 }
    }
}

/// Records which hosts have a file open.
pub(crate) fn put_hosts(cx: &mut Context, inode: Inode, hosts: &[Opening]) {
    let mut bytes = cx.io.buffer();
    encode(hosts, &mut bytes);
    cx.put(&Record::PutHosts { inode, hosts: &bytes });
    cx.io.recycle(bytes);
}

/// Appends openings: two bytes of host and eight of open sequence each.
pub(crate) fn encode(openings: &[Opening], to: &mut Vec<u8>) {
    for opening in openings {
        opening.host.append_to(to);
        let writes = if opening.writes { WRITES } else { 0 };
        let caches = if opening.caches { CACHES } else { 0 };
        (opening.open_sequence | writes | caches).append_to(to);
    }
}

pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<Opening>, Malformed> {
    let mut reader = Reader::new(bytes);
    let mut openings = Vec::new();
    while !reader.rest().is_empty() {
        let (host, open_sequence) = (reader.u16()?, reader.u64()?);
        let (writes, caches) = (open_sequence & WRITES != 0, open_sequence & CACHES != 0);
        openings.push(Opening {
            host,
            open_sequence: open_sequence & !(WRITES | CACHES),
            writes,
            caches,
        });
    }
    Ok(openings)
}

impl State {
    /// The use of a file by all hosts but one.
    pub(crate) fn uses_but(&self, inode: Inode, host: u16) -> impl Iterator<Item = (u16, u8)> {
        let hosts = self.hosts.get(&inode).into_iter().flatten();
        hosts.filter(move |known| known.host != host).map(|known| (known.host, known.uses()))
    }

    /// Other hosts that have a file open and may write to it.
    pub(crate) fn writers_but(
        &self,
        inode: Inode,
        host: u16,
    ) -> impl Iterator<Item = u16> + use<'_> {
        let hosts = self.hosts.get(&inode).into_iter().flatten();
        hosts.filter(move |known| known.writes && known.host != host).map(|known| known.host)
    }
}
