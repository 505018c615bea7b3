//! A system call site: the `syscall` instruction and the window around it that a jump replaces.

/// A rip-relative operand in a window: the offset of its 32-bit displacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixup {
    /// Offset from the window's start; 0xff: none.
    pub displacement: u8,
}

impl Fixup {
    /// No operand.
    pub const NONE: Self = Self { displacement: 0xff };
}

/// A `syscall` instruction and the window that its jump replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Image address of the window.
    pub address: u32,
    /// Bytes of the window.
    pub length: u8,
    /// Offset of the `syscall` from the window's start; not below `length` if it stays in place.
    pub call: u8,
    /// The number of the call, or `UNKNOWN`.
    pub number: u16,
    /// Operands to correct.
    pub fixups: [Fixup; 2],
}

impl Site {
    /// The number is known only when the call is made.
    pub const UNKNOWN: u16 = 0xffff;

    /// True if the `syscall` instruction stays where it is.
    #[must_use]
    pub fn stays(&self) -> bool {
        self.call >= self.length
    }

    /// The operands to correct.
    pub fn fixups(&self) -> impl Iterator<Item = Fixup> {
        self.fixups.into_iter().filter(|fixup| *fixup != Fixup::NONE)
    }
}
