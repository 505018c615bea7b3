//! Properties of a directory that new files and directories in it inherit (`docs/semantics.md`), as
//! extended attributes that every directory has: programs set them like any other attribute, on a
//! mount as well. Existing children keep their values. The attributes are not listed, so programs
//! that copy attributes leave them out.

use wire::attributes::{placement, writeback};
use wire::errno::{Errno, Result};
use wire::limits::{STRIPE_LOG2_MAX, STRIPE_LOG2_MIN};
use wire::request::set;
use wire::{Attributes, Credentials, DaemonIndex, Inode, Layout};

use crate::file::change::Change;
use crate::file::layout::File;
use crate::file::{change, layout};
use crate::transport::Transport;

/// Consistency between hosts: `posix` or `relaxed`.
const CONSISTENCY: &[u8] = b"user.forebay.consistency";
const POSIX: &[u8] = b"posix";
const RELAXED: &[u8] = b"relaxed";

/// Number of targets over which the stripes of a file are spread; or `all`, by hash; or `local`,
/// the target of the daemon through which the file is created.
const STRIPE_COUNT: &[u8] = b"user.forebay.stripe_count";
const ALL: &[u8] = b"all";
const LOCAL: &[u8] = b"local";

/// Bytes of a stripe, a power of two.
const STRIPE_SIZE: &[u8] = b"user.forebay.stripe_size";

/// When files are written back to the backing store: a name of `wire::attributes::writeback`.
/// Without a backing store no directory has it. Files follow their directory.
const WRITEBACK: &[u8] = b"user.forebay.writeback";

/// Whether a file, or each file created in a directory, is pinned in memory: `yes` or `no`. Files
/// have it, too.
const PINNED: &[u8] = b"user.forebay.pinned";
const YES: &[u8] = b"yes";
const NO: &[u8] = b"no";

/// Copies of the bytes of each file created in a directory: a number. Files have it, too.
const REPLICAS: &[u8] = b"user.forebay.replicas";

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

    /// The number in `text`, which must consist of digits alone.
    pub(crate) fn parse(text: &[u8]) -> Option<u64> {
        let is_number = text.iter().all(u8::is_ascii_digit);
        core::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
    }
}

/// Copies a value out, or only returns its length if `to` is empty.
pub(crate) fn copy_value(value: &[u8], to: &mut [u8]) -> Result<usize> {
    if !to.is_empty() {
        to.get_mut(..value.len()).ok_or(Errno::ERANGE)?.copy_from_slice(value);
    }
    Ok(value.len())
}

/// True for the name of one of these attributes.
pub(crate) fn is_name(name: &[u8]) -> bool {
    matches!(name, CONSISTENCY | STRIPE_COUNT | STRIPE_SIZE | WRITEBACK | PINNED | REPLICAS)
}

/// Copies of the bytes of a file, or of those created in a directory, in an instance that keeps so many
/// unless told otherwise.
pub(crate) const fn copies_of(file: &Attributes, copies: u8) -> u8 {
    match file.layout.copies {
        _ if !file.is_directory() => file.inode.copies_in(copies),
        0 => copies,
        own => own,
    }
}

/// Gets the attribute `name`, one of these, of a file. `copies` as in `copies_of`.
pub(crate) fn get(file: &Attributes, copies: u8, name: &[u8], to: &mut [u8]) -> Result<usize> {
    let layout = &file.layout;
    match name {
        CONSISTENCY => copy_value(if file.is_posix() { POSIX } else { RELAXED }, to),
        STRIPE_COUNT => match placement::group_count(layout.placement) {
            Some(count) => copy_value(Decimal::of(count.into()).text(), to),
            None => copy_value(if layout.placement == placement::LOCAL { LOCAL } else { ALL }, to),
        },
        STRIPE_SIZE => copy_value(Decimal::of(1 << File::of(file).stripe_log2()).text(), to),
        PINNED => copy_value(if file.is_pinned() { YES } else { NO }, to),
        REPLICAS => copy_value(Decimal::of(copies_of(file, copies).into()).text(), to),
        WRITEBACK => {
            let name = writeback::name(layout.writeback()).ok_or(Errno::ENODATA)?;
            copy_value(name.as_bytes(), to)
        }
        _ => Err(Errno::ENODATA),
    }
}

/// The change that setting one of these attributes makes, in an instance with this many targets.
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
            layout.stripe_log2 = size.trailing_zeros() as u8;
            let limits = STRIPE_LOG2_MIN..=STRIPE_LOG2_MAX;
            limits.contains(&layout.stripe_log2).then_some(set::STRIPE)?
        }
        (REPLICAS, b"1") => of_copies(&mut layout, 1),
        (REPLICAS, b"2") => of_copies(&mut layout, 2),
        (REPLICAS, b"3") => of_copies(&mut layout, 3),
        (WRITEBACK, name) => {
            layout.flags = layout.flags_with_writeback(writeback::value(name)?);
            set::WRITEBACK
        }
        _ => return None,
    };
    Some(Change { mask, size: layout.word(), ..Change::default() })
}

const fn of_copies(layout: &mut Layout, copies: u8) -> u32 {
    layout.copies = copies;
    set::COPIES
}

/// Sets the attribute `name`, one of these, of a directory; `PINNED` also of a file.
pub(crate) fn set_inherited(
    transport: &Transport,
    directory: &Attributes,
    (name, value): (&[u8], &[u8]),
    caller: &Credentials,
) -> Result<()> {
    if !directory.is_directory() && name != PINNED {
        return Err(Errno::ENOTDIR);
    }
    let change = change_to(name, value, target_count(transport)?).ok_or(Errno::EINVAL)?;
    change::apply(transport, directory.inode, &change, caller).map(drop)
}

/// Number of targets of the instance.
pub(crate) fn target_count(transport: &Transport) -> Result<u16> {
    Ok(transport.home()?.map.daemon_count())
}

/// Number of the metadata service that has an inode.
pub(crate) fn metadata_service(transport: &Transport, inode: Inode) -> Result<u32> {
    let home = transport.home()?;
    let service = home.map.service(inode.shard(), home.workers());
    Ok(u32::from(service.worker) * u32::from(home.map.first_count()) + u32::from(service.first.0))
}

/// Calls `with` for each target that may hold bytes of a file of its current size.
pub(crate) fn each_target_of(
    transport: &Transport,
    file: &Attributes,
    with: &mut dyn FnMut(DaemonIndex),
) -> Result<()> {
    if !file.is_regular() || file.is_inline() || file.size == 0 {
        return Ok(());
    }
    layout::each_target(transport, &File::of(file), 0, file.size, &mut |target| {
        with(target);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_numbers_round_trip() {
        for number in [0, 7, 10, 262_144, u64::MAX] {
            assert_eq!(Decimal::parse(Decimal::of(number).text()), Some(number));
        }
        for wrong in [&b""[..], b"+1", b"-1", b" 1", b"1k", b"18446744073709551616"] {
            assert_eq!(Decimal::parse(wrong), None, "{}", wrong.escape_ascii());
        }
    }

    #[test]
    fn an_inherited_value_reads_back_as_it_was_set() {
        let mut value = [0; 32];
        for (name, text) in [
            (STRIPE_COUNT, &b"all"[..]),
            (STRIPE_COUNT, b"local"),
            (STRIPE_COUNT, b"1"),
            (STRIPE_COUNT, b"4"),
            (STRIPE_SIZE, b"65536"),
            (STRIPE_SIZE, b"67108864"),
            (WRITEBACK, b"close"),
            (WRITEBACK, b"idle"),
            (WRITEBACK, b"end"),
            (WRITEBACK, b"never"),
            (REPLICAS, b"1"),
            (REPLICAS, b"3"),
        ] {
            let change = change_to(name, text, 4).expect("a change");
            let layout = Layout::from_word(change.size);
            let mode = wire::attributes::mode::DIRECTORY;
            let file = Attributes { layout, mode, ..Attributes::default() };
            let length = get(&file, 2, name, &mut value).expect("a value");
            assert_eq!(value.get(..length), Some(text));
        }
    }

    #[test]
    fn a_file_has_the_copies_of_its_number_and_a_directory_those_of_its_layout() {
        let inode = Inode(9);
        let file = |inode| Attributes { inode, ..Attributes::default() };
        assert_eq!(copies_of(&file(inode), 2), 2);
        assert_eq!([1, 2].map(|own| copies_of(&file(inode.with_copies(own)), 3)), [1, 2]);
        assert_eq!(copies_of(&file(Inode(wire::id::BACKED_FIRST + 9)), 2), 1);
        let mode = wire::attributes::mode::DIRECTORY;
        let directory = |copies| Attributes {
            inode,
            mode,
            layout: Layout { copies, ..Layout::default() },
            ..Attributes::default()
        };
        assert_eq!([0, 1, 2].map(|own| copies_of(&directory(own), 3)), [3, 1, 2]);
        let found = Attributes { inode: Inode(wire::id::BACKED_FIRST + 9), ..directory(0) };
        assert_eq!(copies_of(&found, 3), 3, "of files that are made in it");
    }

    #[test]
    fn invalid_values_are_refused() {
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
            (WRITEBACK, b"always"),
            (REPLICAS, b"0"),
            (REPLICAS, b"4"),
            (REPLICAS, b"02"),
            (PINNED, b"1"),
            (PINNED, b""),
            (WRITEBACK, b""),
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
