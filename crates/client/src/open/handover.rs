//! Handing an open file over to the kernel: how a preloaded program says to the mount on its host
//! which file, and which open file, it means.
//!
//! The program opens `NAME` followed by the inode number in hexadecimal in the root of the mount: a
//! file is found by it that has no name any more, or another one by now. With `SHARE` the mount then
//! lets the new descriptor share the program's open file, with its offset and flags.

use wire::Inode;

/// The name's first part. Names that begin so exist in the root of a mount for its owner only, and
/// no listing shows them.
const NAME: &[u8] = b"\x01forebay:";
const DIGITS: usize = 16;

/// The `ioctl` command by which a new descriptor on the mount shares an open file: it writes eight
/// bytes, the number of the open file.
pub const SHARE: u32 = 1 << 30 | 8 << 16 | 0xfb << 8 | 1;

/// The name of an inode in the root of a mount.
#[must_use]
pub fn name_of(inode: Inode) -> [u8; NAME.len() + DIGITS] {
    let mut name = [0; NAME.len() + DIGITS];
    let digits = (0..DIGITS).rev().map(|place| {
        let value = (inode.0 >> (4 * place)) as u8 & 15;
        if value < 10 { b'0' + value } else { b'a' + value - 10 }
    });
    for (to, from) in name.iter_mut().zip(NAME.iter().copied().chain(digits)) {
        *to = from;
    }
    name
}

/// The inode of such a name.
#[must_use]
pub fn inode_of(name: &[u8]) -> Option<Inode> {
    let digits = name.strip_prefix(NAME).filter(|digits| digits.len() == DIGITS)?;
    let number = digits.iter().try_fold(0, |sum: u64, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(sum << 4 | u64::from(value))
    });
    number.filter(|&number| number != 0).map(Inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_back_to_its_inode() {
        for number in [1, 0xfedc_ba98_7654_3210, u64::MAX] {
            assert_eq!(inode_of(&name_of(Inode(number))), Some(Inode(number)));
        }
        for other in
            [&b"\x01forebay:"[..], b"forebay:0000000000000001", b"\x01forebay:0000000000000000"]
        {
            assert_eq!(inode_of(other), None);
        }
        assert_eq!(inode_of(b"\x01forebay:000000000000000G"), None);
    }
}
