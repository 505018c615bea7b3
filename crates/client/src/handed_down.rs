//! What a directory hands down to what is made in it (`docs/semantics.md`), as extended attributes that
//! every file has: programs set them as they set any other, on a mount as well. What is there already
//! keeps
//! what it has. They are in no list, so that programs that copy attributes leave them out.

use wire::attributes::{placement, write_back};
use wire::errno::{Errno, Result};
use wire::limits::{CHUNK_LOG2_MAX, CHUNK_LOG2_MIN};
use wire::request::set;
use wire::{Attributes, Credentials, DaemonIndex, Layout};

use crate::Client;
use crate::attributes::Change;
use crate::layout::File;

/// What hosts see of each other's changes: `posix` or `relaxed`.
const CONSISTENCY: &[u8] = b"user.forebay.consistency";
const POSIX: &[u8] = b"posix";
const RELAXED: &[u8] = b"relaxed";

/// Over how many targets the chunks of a file go in turn; or `all`, by hash; or `local`, the target of
/// the
/// daemon through which the file was made.
const STRIPE_COUNT: &[u8] = b"user.forebay.stripe_count";
const ALL: &[u8] = b"all";
const LOCAL: &[u8] = b"local";

/// Bytes of a chunk, a power of two.
const STRIPE_SIZE: &[u8] = b"user.forebay.stripe_size";

/// When files are saved in the backing directory: a name of `write_back`. Where there is none, no
/// directory has it; files go by their directory's.
const WRITE_BACK: &[u8] = b"user.forebay.write_back";

/// Whether a file stays in memory, or what is made in a directory: `yes` or `no`. Files have it, too.
const PINNED: &[u8] = b"user.forebay.pinned";
const YES: &[u8] = b"yes";
const NO: &[u8] = b"no";

/// Digits of the largest number.
const DIGITS_MAX: usize = 20;
/// A number in decimal digits.
pub(crate) struct Decimal {
    digits: [u8; DIGITS_MAX],
    first: usize,
}

impl Decimal {
    pub(crate) fn of(number: u64) -> Decimal {
        let mut decimal = Decimal { digits: [0; DIGITS_MAX], first: DIGITS_MAX };
        let mut left = number;
        for (place, digit) in decimal.digits.iter_mut().enumerate().rev() {
            *digit = b'0' + (left % 10) as u8;
            (left, decimal.first) = (left / 10, place);
            if left == 0 {
                break;
            }
        }
        decimal
    }

    pub(crate) fn text(&self) -> &[u8] {
        self.digits.get(self.first..).unwrap_or_default()
    }

    /// The number that `text` shows; digits alone.
    pub(crate) fn parse(text: &[u8]) -> Option<u64> {
        let is_number = text.iter().all(u8::is_ascii_digit);
        core::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
    }
}

/// Copies a value out, or only tells its length if `to` is empty.
pub(crate) fn give(value: &[u8], to: &mut [u8]) -> Result<usize> {
    if !to.is_empty() {
        to.get_mut(..value.len()).ok_or(Errno::ERANGE)?.copy_from_slice(value);
    }
    Ok(value.len())
}

/// True for the name of one of these attributes.
pub(crate) fn is_name(name: &[u8]) -> bool {
    matches!(name, CONSISTENCY | STRIPE_COUNT | STRIPE_SIZE | WRITE_BACK | PINNED)
}

/// Gives the attribute `name`, which is one of these, of a file.
pub(crate) fn get(file: &Attributes, name: &[u8], to: &mut [u8]) -> Result<usize> {
    let layout = &file.layout;
    match name {
        CONSISTENCY => give(if file.is_posix() { POSIX } else { RELAXED }, to),
        STRIPE_COUNT => match placement::group_count(layout.placement) {
            Some(count) => give(Decimal::of(count.into()).text(), to),
            None => give(if layout.placement == placement::LOCAL { LOCAL } else { ALL }, to),
        },
        STRIPE_SIZE => give(Decimal::of(1 << File::of(file).chunk_log2()).text(), to),
        PINNED => give(if file.is_pinned() { YES } else { NO }, to),
        WRITE_BACK => {
            let name = write_back::name(layout.write_back()).ok_or(Errno::ENODATA)?;
            give(name.as_bytes(), to)
        }
        _ => Err(Errno::ENODATA),
    }
}

/// What setting one of these attributes changes, where there are `targets`.
fn change_to(name: &[u8], value: &[u8], targets: u16) -> Option<Change> {
    let mut layout = Layout::default();
    let mask = match (name, value) {
        (CONSISTENCY, POSIX) => set::POSIX,
        (CONSISTENCY, RELAXED) => set::RELAXED,
        (PINNED, YES) => set::PINNED,
        (PINNED, NO) => set::UNPINNED,
        (STRIPE_COUNT, _) => {
            layout.placement = match value {
                ALL => placement::HASH,
                LOCAL => placement::LOCAL,
                number => {
                    let count = u16::try_from(Decimal::parse(number)?).ok()?;
                    placement::group(count).filter(|_| count <= targets)?
                }
            };
            set::PLACEMENT
        }
        (STRIPE_SIZE, _) => {
            let size = Decimal::parse(value).filter(|size| size.is_power_of_two())?;
            layout.chunk_log2 = size.trailing_zeros() as u8;
            let limits = CHUNK_LOG2_MIN..=CHUNK_LOG2_MAX;
            limits.contains(&layout.chunk_log2).then_some(set::CHUNK)?
        }
        (WRITE_BACK, name) => {
            layout.flags = layout.flags_with_write_back(write_back::value(name)?);
            set::WRITE_BACK
        }
        _ => return None,
    };
    Some(Change { mask, size: layout.word(), ..Change::default() })
}

impl Client {
    /// Sets the attribute `name`, which is one of these, of a directory; `PINNED` also of a file.
    pub(crate) fn set_handed_down(
        &self,
        directory: &Attributes,
        (name, value): (&[u8], &[u8]),
        who: &Credentials,
    ) -> Result<()> {
        if !directory.is_directory() && name != PINNED {
            return Err(Errno::ENOTDIR);
        }
        let change = change_to(name, value, self.target_count()?).ok_or(Errno::EINVAL)?;
        self.change(directory.inode, &change, who).map(drop)
    }

    /// How many targets the instance has.
    ///
    /// # Errors
    /// `EIO` if this process has none.
    pub fn target_count(&self) -> Result<u16> {
        Ok(self.home()?.map.daemon_count())
    }

    /// Calls `with` for each target that bytes of a file may be on, as long as it is now.
    ///
    /// # Errors
    /// `EIO` if this process has no instance.
    pub fn each_target_of(
        &self,
        file: &Attributes,
        with: &mut dyn FnMut(DaemonIndex),
    ) -> Result<()> {
        if !file.is_regular() || file.is_inline() || file.size == 0 {
            return Ok(());
        }
        self.each_target(&File::of(file), 0, file.size, &mut |target| {
            with(target);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_they_are_read() {
        for number in [0, 7, 10, 262_144, u64::MAX] {
            assert_eq!(Decimal::parse(Decimal::of(number).text()), Some(number));
        }
        for wrong in [&b""[..], b"+1", b"-1", b" 1", b"1k", b"18446744073709551616"] {
            assert_eq!(Decimal::parse(wrong), None, "{}", wrong.escape_ascii());
        }
    }

    #[test]
    fn what_is_set_is_what_is_shown_of_a_file_that_takes_it_over() {
        let mut value = [0; 32];
        for (name, text) in [
            (STRIPE_COUNT, &b"all"[..]),
            (STRIPE_COUNT, b"local"),
            (STRIPE_COUNT, b"1"),
            (STRIPE_COUNT, b"4"),
            (STRIPE_SIZE, b"65536"),
            (STRIPE_SIZE, b"67108864"),
            (WRITE_BACK, b"close"),
            (WRITE_BACK, b"cooling"),
            (WRITE_BACK, b"end"),
            (WRITE_BACK, b"never"),
        ] {
            let change = change_to(name, text, 4).expect("a change");
            let layout = Layout::from_word(change.size);
            let file = Attributes { layout, ..Attributes::default() };
            let length = get(&file, name, &mut value).expect("a value");
            assert_eq!(value.get(..length), Some(text));
        }
    }

    #[test]
    fn what_can_not_be_is_no_change() {
        for (name, text) in [
            (CONSISTENCY, &b"strict"[..]),
            (STRIPE_COUNT, b"0"),
            (STRIPE_COUNT, b"5"),
            (STRIPE_COUNT, b"65540"),
            (STRIPE_COUNT, b"ALL"),
            (STRIPE_COUNT, b""),
            (STRIPE_SIZE, b"0"),
            (STRIPE_SIZE, b"32768"),
            (STRIPE_SIZE, b"134217728"),
            (STRIPE_SIZE, b"196608"),
            (STRIPE_SIZE, b"18446744073709551615"),
            (WRITE_BACK, b"always"),
            (PINNED, b"1"),
            (PINNED, b""),
            (WRITE_BACK, b""),
            (b"user.forebay.other", b"1"),
        ] {
            assert!(change_to(name, text, 4).is_none(), "{}", text.escape_ascii());
        }
        let most = Decimal::of(u64::from(placement::GROUP_MAX));
        assert!(change_to(STRIPE_COUNT, most.text(), 1000).is_some());
        let more = Decimal::of(u64::from(placement::GROUP_MAX) + 1);
        assert!(change_to(STRIPE_COUNT, more.text(), 1000).is_none());
    }
}
