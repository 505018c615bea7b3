//! A buffer that need not be zeroed first: a path is short, its buffer is a page, and zeroing a
//! page for each call would be a tenth of the cost of a `stat`.

use core::mem::MaybeUninit;

/// A buffer of up to `N` bytes, of which a prefix is in use.
pub struct ScratchBuffer<const N: usize> {
    bytes: [MaybeUninit<u8>; N],
    /// Length of the prefix that was ever written. Invariant: these bytes are initialised.
    known: usize,
}

impl<const N: usize> ScratchBuffer<N> {
    /// An empty buffer.
    #[must_use]
    pub const fn new() -> ScratchBuffer<N> {
        ScratchBuffer { bytes: [const { MaybeUninit::uninit() }; N], known: 0 }
    }

    /// The prefix that was ever in use.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let known = self.bytes.get(..self.known).unwrap_or(&[]);
        // WHY: zeroing all of it first is what this type is there to avoid.
        // SAFETY: the bytes below `known` are initialised, by the type's invariant.
        unsafe { core::slice::from_raw_parts(known.as_ptr().cast(), known.len()) }
    }

    /// Copies `bytes` to the start of the buffer, followed by eight zeros so that they can be read
    /// in words. False if they do not fit.
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

    /// The first `length` bytes; bytes that were never written are zeros. `None` beyond `N`.
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

impl<const N: usize> Default for ScratchBuffer<N> {
    fn default() -> ScratchBuffer<N> {
        ScratchBuffer::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_bytes_are_zero_and_the_end_is_checked() {
        let mut buffer = ScratchBuffer::<8>::new();
        assert_eq!(buffer.bytes(), b"");
        buffer.bytes_mut(3).expect("space").copy_from_slice(b"abc");
        assert_eq!(buffer.bytes(), b"abc");
        assert_eq!(buffer.bytes_mut(5).expect("space"), b"abc\0\0");
        buffer.bytes_mut(1).expect("space").fill(b'x');
        assert_eq!(buffer.bytes(), b"xbc\0\0");
        assert_eq!(buffer.bytes_mut(9), None);
        assert_eq!(buffer.bytes_mut(8).map(|bytes| bytes.len()), Some(8));
    }

    #[test]
    fn put_bytes_are_followed_by_zeros() {
        let mut buffer = ScratchBuffer::<12>::new();
        buffer.bytes_mut(12).expect("space").fill(b'x');
        assert!(buffer.put(b"yz"));
        assert_eq!(buffer.bytes(), b"yz\0\0\0\0\0\0\0\0xx");
        assert!(!buffer.put(&[0; 5]));
        let mut buffer = ScratchBuffer::<12>::new();
        assert!(buffer.put(b"1234"));
        assert_eq!(buffer.bytes(), b"1234\0\0\0\0\0\0\0\0");
    }
}
