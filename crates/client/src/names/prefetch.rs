//! Prefetch: bringing files up before they are read, by an extended attribute that every regular
//! file has, so that programs which can only work on files can use it, too (`docs/user-guide.md`).
//!
//! Setting it names the tier: `memory` or `ssd`. For a file of an ordered list ` LIST INDEX GROUP`
//! follows: a number that names the list, the index of the file in it, and how many of its files
//! are read at a time; `guess LIST INDEX GROUP` is the same for a list that may be wrong. `evict`
//! drops the cached copy of backing data instead. Reading it returns the number of bytes still to
//! come. The attribute is not listed.

use wire::errno::{Errno, Result};
use wire::request::prefetch;
use wire::{Attributes, Credentials, Reply, Request};

use crate::file::layout;
use crate::file::layout::File;
use crate::names::inherited::{Decimal, copy_value};
use crate::transport::Transport;
use crate::transport::request::Destination;

/// Name of the attribute.
pub(crate) const NAME: &[u8] = b"user.forebay.prefetch";

/// Position in a list of files that are read in its order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListPosition {
    /// Identifies the list; not 0.
    pub list: u64,
    /// Index of this file in the list.
    pub index: u64,
    /// How many files of the list are read at a time.
    pub group: u32,
}

/// Tier to which a file is brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    /// Memory where it has space to spare, else the SSD.
    Memory,
    /// The SSD; what is in memory stays there.
    Ssd,
}

/// Parses a value: what to do, and the position in a list.
fn parse(value: &[u8]) -> Option<(u8, Option<ListPosition>)> {
    let mut words = value.split(|byte| *byte == b' ');
    let what = match words.next()? {
        b"memory" => prefetch::MEMORY,
        b"ssd" => prefetch::SSD,
        b"guess" => prefetch::SPECULATIVE,
        _ => return None,
    };
    let Some(list) = words.next() else {
        return (what != prefetch::SPECULATIVE).then_some((what, None));
    };
    let list = Decimal::parse(list).filter(|list| *list != 0)?;
    let index = Decimal::parse(words.next()?)?;
    let group = u32::try_from(Decimal::parse(words.next()?)?).ok().filter(|group| *group != 0)?;
    let listed = ListPosition { list, index, group };
    words.next().is_none().then_some((what, Some(listed)))
}

/// Starts a prefetch of a regular file in the background, before it is read. Returns the number
/// of bytes to come.
pub(crate) fn prefetch(
    transport: &Transport,
    file: &Attributes,
    tier: Tier,
    listed: Option<ListPosition>,
    caller: &Credentials,
) -> Result<u64> {
    let what = if tier == Tier::Memory { prefetch::MEMORY } else { prefetch::SSD };
    send_prefetch(transport, file, what, listed, caller)
}

/// Evicts the clean data of a file. Data that was created or changed here, is pinned or in use,
/// stays. Returns the number of bytes that a read will fetch from the backing store.
///
/// A file with copies gives them up as a whole, and is another inode then.
pub(crate) fn evict(transport: &Transport, file: &Attributes, caller: &Credentials) -> Result<u64> {
    if file.is_regular() && transport.has_copies_of(file.inode) {
        let request = Request::GiveUpCopies { inode: file.inode };
        return match transport.call(Destination::Shard(file.inode.shard()), &request, caller) {
            // The answer to an earlier attempt was lost.
            Err(Errno::ESTALE) => Ok(file.size),
            answer => answer?.with(|reply| match reply {
                Reply::Number { value } => Ok(value),
                _ => Err(Errno::EIO),
            }),
        };
    }
    send_prefetch(transport, file, prefetch::EVICT, None, caller)
}

/// Number of bytes of a file that are still to be prefetched.
pub(crate) fn prefetch_bytes_left(
    transport: &Transport,
    file: &Attributes,
    caller: &Credentials,
) -> Result<u64> {
    send_prefetch(transport, file, prefetch::QUERY, None, caller)
}

fn send_prefetch(
    transport: &Transport,
    file: &Attributes,
    what: u8,
    listed: Option<ListPosition>,
    caller: &Credentials,
) -> Result<u64> {
    if !file.is_regular() {
        return Err(Errno::EINVAL);
    }
    if file.is_inline() || file.size == 0 {
        return Ok(0);
    }
    let ListPosition { list, index, group } =
        listed.unwrap_or(ListPosition { list: 0, index: 0, group: 1 });
    let (inode, layout, size) = (file.inode, file.layout.word(), file.size);
    let request = Request::Prefetch { inode, what, layout, size, list, index, group };
    let (mut left, mut still_goes) = (0u64, false);
    layout::each_target(transport, &File::of(file), 0, size, &mut |target| {
        let answer =
            transport.call(Destination::Target(target), &request, caller).and_then(|answer| {
                answer.with(|reply| match reply {
                    Reply::Number { value } => Ok(value),
                    _ => Err(Errno::EIO),
                })
            });
        match answer {
            Ok(value) => left = left.saturating_add(value),
            // Continues with the other targets.
            Err(Errno::EAGAIN) if what == prefetch::EVICT => still_goes = true,
            Err(errno) => return Err(errno),
        }
        Ok(())
    })?;
    if still_goes { Err(Errno::EAGAIN) } else { Ok(left) }
}

pub(crate) fn get_prefetch(
    transport: &Transport,
    file: &Attributes,
    to: &mut [u8],
    caller: &Credentials,
) -> Result<usize> {
    copy_value(Decimal::of(prefetch_bytes_left(transport, file, caller)?).text(), to)
}

pub(crate) fn set_prefetch(
    transport: &Transport,
    file: &Attributes,
    value: &[u8],
    caller: &Credentials,
) -> Result<()> {
    if value == b"evict" {
        return evict(transport, file, caller).map(drop);
    }
    let (what, listed) = parse(value).ok_or(Errno::EINVAL)?;
    send_prefetch(transport, file, what, listed, caller).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefetch_request_is_written_in_words() {
        let listed = ListPosition { list: 7, index: 0, group: 2 };
        for (text, right) in [
            (&b"memory"[..], Some((prefetch::MEMORY, None))),
            (b"ssd", Some((prefetch::SSD, None))),
            (b"memory 7 0 2", Some((prefetch::MEMORY, Some(listed)))),
            (b"guess 7 0 2", Some((prefetch::SPECULATIVE, Some(listed)))),
            (b"guess", None),
            (b"", None),
            (b"disk", None),
            (b"memory ", None),
            (b"memory 0 0 1", None),
            (b"memory 7 0", None),
            (b"memory 7 0 0", None),
            (b"memory 7 0 4294967296", None),
            (b"memory 7 0 1 1", None),
        ] {
            assert_eq!(parse(text), right, "{}", text.escape_ascii());
        }
    }
}
