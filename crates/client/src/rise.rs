//! Files that are to be brought up before they are read: an extended attribute that every regular file
//! has, so that programs which can only touch files say it, too (`docs/user-guide.md`).
//!
//! Set, it says where to: `memory` or `ssd`; of a file of an ordered list besides that ` LIST INDEX
//! GROUP`: a number that names the list, which file of it this is, and how many of its files are read at
//! a time; `guess LIST INDEX GROUP` is the same for a list that may be wrong. `drop` gives up what lies
//! below, too. Read, it says how many bytes are still to come. It is in
//! no list of attributes.

use crate::Client;
use crate::handed_down::{Decimal, give};
use crate::layout::File;
use crate::request::To;
use wire::errno::{Errno, Result};
use wire::request::rise;
use wire::{Attributes, Credentials, Reply, Request};

/// The attribute.
pub(crate) const NAME: &[u8] = b"user.forebay.rise";

/// A place in a list of files that are read in its order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Names the list; not 0.
    pub list: u64,
    /// Which file of it this is.
    pub index: u64,
    /// How many files of it are read at a time.
    pub group: u32,
}

/// To which tier a file is to be brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    /// Memory where that has room to spare, else the SSD.
    Memory,
    /// The SSD; what is in memory stays there.
    Ssd,
}

/// A value of `wire::request::rise`, and the place.
fn parse(value: &[u8]) -> Option<(u8, Option<Place>)> {
    let mut words = value.split(|byte| *byte == b' ');
    let what = match words.next()? {
        b"memory" => rise::MEMORY,
        b"ssd" => rise::SSD,
        b"guess" => rise::GUESS,
        _ => return None,
    };
    let Some(list) = words.next() else { return (what != rise::GUESS).then_some((what, None)) };
    let list = Decimal::parse(list).filter(|list| *list != 0)?;
    let index = Decimal::parse(words.next()?)?;
    let group = u32::try_from(Decimal::parse(words.next()?)?).ok().filter(|group| *group != 0)?;
    let listed = Place { list, index, group };
    words.next().is_none().then_some((what, Some(listed)))
}

impl Client {
    /// Has a regular file brought up in the background, before it is read. Returns how many bytes are to
    /// come.
    ///
    /// # Errors
    /// `EINVAL` of what is no regular file; EAGAIN: too much is to come, try again later; and what was in
    /// the way of an earlier wish, once.
    pub fn raise(
        &self,
        file: &Attributes,
        tier: Tier,
        listed: Option<Place>,
        who: &Credentials,
    ) -> Result<u64> {
        let what = if tier == Tier::Memory { rise::MEMORY } else { rise::SSD };
        self.rise(file, what, listed, who)
    }

    /// Gives up what a file has here and below, too; what was made or changed here, is pinned or in use,
    /// stays. Returns how many bytes are to come from below when they are read.
    ///
    /// # Errors
    /// `EINVAL` of what is no regular file; EAGAIN: some is still going, ask again.
    pub fn give_up(&self, file: &Attributes, who: &Credentials) -> Result<u64> {
        self.rise(file, rise::DROP, None, who)
    }

    /// How many bytes of a file are still to come up.
    ///
    /// # Errors
    /// As `raise`.
    pub fn still_to_rise(&self, file: &Attributes, who: &Credentials) -> Result<u64> {
        self.rise(file, rise::ASK, None, who)
    }

    fn rise(
        &self,
        file: &Attributes,
        what: u8,
        listed: Option<Place>,
        who: &Credentials,
    ) -> Result<u64> {
        if !file.is_regular() {
            return Err(Errno::EINVAL);
        }
        if file.is_inline() || file.size == 0 {
            return Ok(0);
        }
        let Place { list, index, group } = listed.unwrap_or(Place { list: 0, index: 0, group: 1 });
        let (inode, layout, size) = (file.inode, file.layout.word(), file.size);
        let request = Request::Rise { inode, what, layout, size, list, index, group };
        let (mut left, mut still_goes) = (0u64, false);
        self.each_target(&File::of(file), 0, size, &mut |target| {
            let told = self.call(To::Target(target), &request, who).and_then(|answer| {
                answer.with(|reply| match reply {
                    Reply::Number { value } => Ok(value),
                    _ => Err(Errno::EIO),
                })
            });
            match told {
                Ok(value) => left = left.saturating_add(value),
                // The others are told, too.
                Err(Errno::EAGAIN) if what == rise::DROP => still_goes = true,
                Err(errno) => return Err(errno),
            }
            Ok(())
        })?;
        if still_goes { Err(Errno::EAGAIN) } else { Ok(left) }
    }

    pub(crate) fn get_rise(
        &self,
        file: &Attributes,
        to: &mut [u8],
        who: &Credentials,
    ) -> Result<usize> {
        give(Decimal::of(self.still_to_rise(file, who)?).text(), to)
    }

    pub(crate) fn set_rise(
        &self,
        file: &Attributes,
        value: &[u8],
        who: &Credentials,
    ) -> Result<()> {
        if value == b"drop" {
            return self.give_up(file, who).map(drop);
        }
        let (what, listed) = parse(value).ok_or(Errno::EINVAL)?;
        self.rise(file, what, listed, who).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wished_for_is_said_in_words() {
        let listed = Place { list: 7, index: 0, group: 2 };
        for (text, right) in [
            (&b"memory"[..], Some((rise::MEMORY, None))),
            (b"ssd", Some((rise::SSD, None))),
            (b"memory 7 0 2", Some((rise::MEMORY, Some(listed)))),
            (b"guess 7 0 2", Some((rise::GUESS, Some(listed)))),
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
