//! Memory for bytes that need not be zeroed first: a path is short, room for one is a page, and a
//! page of zeros for each call would be a tenth of what looking at a file costs.

use core::mem::MaybeUninit;

/// Room for up to `N` bytes, of which a front part is in use.
pub struct Room<const N: usize> {
    bytes: [MaybeUninit<u8>; N],
    /// Bytes that were ever written; invariant: they are initialised.
    known: usize,
}

impl<const N: usize> Room<N> {
    /// Room of which nothing is in use.
    #[must_use]
    pub const fn new() -> Room<N> {
        Room { bytes: [const { MaybeUninit::uninit() }; N], known: 0 }
    }

    /// What was ever in use.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let known = self.bytes.get(..self.known).unwrap_or(&[]);
        // WHY: zeroing all of it first is what this type is there to avoid.
        // SAFETY: the bytes below `known` are initialised, by the type's invariant.
        unsafe { core::slice::from_raw_parts(known.as_ptr().cast(), known.len()) }
    }

    /// Puts `bytes` in front of what is there, and eight zeros behind them, so that they can be looked
    /// at in words. False if they are too many.
    #[must_use]
    pub fn put(&mut self, bytes: &[u8]) -> bool {
        let Some(to) = self.bytes.get_mut(..bytes.len().saturating_add(8)) else { return false };
        let (to, zeros) = to.split_at_mut(bytes.len());
        // WHY: as for `bytes`.
        // SAFETY: as many bytes of our own array; what is copied over is initialised.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_mut_ptr().cast(), to.len()) };
        zeros.fill(MaybeUninit::new(0));
        self.known = self.known.max(bytes.len() + 8);
        true
    }

    /// The first `length` bytes; those that were never in use are zeros. `None` beyond `N`.
    pub fn bytes_mut(&mut self, length: usize) -> Option<&mut [u8]> {
        if length > self.known {
            self.bytes.get_mut(self.known..length)?.fill(MaybeUninit::new(0));
            self.known = length;
        }
        let bytes = self.bytes.get_mut(..length)?;
        // WHY and SAFETY: as for `bytes`; what was beyond `known` has just been filled.
        Some(unsafe { core::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) })
    }
}

impl<const N: usize> Default for Room<N> {
    fn default() -> Room<N> {
        Room::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_in_use_is_zero_and_beyond_is_nothing() {
        let mut room = Room::<8>::new();
        assert_eq!(room.bytes(), b"");
        room.bytes_mut(3).expect("room").copy_from_slice(b"abc");
        assert_eq!(room.bytes(), b"abc");
        assert_eq!(room.bytes_mut(5).expect("room"), b"abc\0\0");
        room.bytes_mut(1).expect("room").fill(b'x');
        assert_eq!(room.bytes(), b"xbc\0\0");
        assert_eq!(room.bytes_mut(9), None);
        assert_eq!(room.bytes_mut(8).map(|bytes| bytes.len()), Some(8));
    }

    #[test]
    fn what_is_put_has_zeros_behind_it() {
        let mut room = Room::<12>::new();
        room.bytes_mut(12).expect("room").fill(b'x');
        assert!(room.put(b"yz"));
        assert_eq!(room.bytes(), b"yz\0\0\0\0\0\0\0\0xx");
        assert!(!room.put(&[0; 5]));
        let mut room = Room::<12>::new();
        assert!(room.put(b"1234"));
        assert_eq!(room.bytes(), b"1234\0\0\0\0\0\0\0\0");
    }
}
