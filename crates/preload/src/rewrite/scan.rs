//! Finds the `syscall` instructions of an image and decides what to replace at each (x86_64).
//!
//! A linear sweep: libc's text contains no data, and a lost step is regained within a few bytes. A
//! *window* is what a jump replaces: whole instructions, at least 5 bytes, that no branch enters
//! except at its start. Windows are tried in this order:
//! 1. before the `syscall`, which stays where it is (mostly `mov eax, number`, 5 bytes): a blocked
//!    call then waits at its own address, and no thread can return into a window;
//! 2. the `syscall` and what follows; 3. what precedes, the `syscall`, and what follows.
//!
//! Branch targets come from direct branches and from jump tables: any table that a rip-relative
//! `lea` points to and whose 32-bit entries lead to instruction starts. No-ops end a window,
//! because an entry that only a pointer knows follows padding.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};

use crate::arch::stub::JUMP_BYTES;
use crate::rewrite::image::{Image, Segment};
use crate::rewrite::site::{Fixup, Site};

/// Instructions before a call that are searched for its number.
const SEARCH_INSTRUCTIONS_MAX: usize = 12;

/// A window's largest size: 4 neighbours of at most 15 bytes do not all fit, and need not.
const WINDOW_BYTES_MAX: usize = 24;

/// Most entries that are read of one jump table.
const TABLE_ENTRIES_MAX: u64 = 1024;

/// Result of a sweep.
#[derive(Debug, Default)]
pub struct ScanResult {
    /// Sites with a window, in the order of addresses.
    pub sites: Vec<Site>,
    /// Sites without one.
    pub refused: Vec<(u32, u16)>,
}

/// A set of addresses of a segment, one bit each.
struct Marks {
    base: u64,
    bits: Vec<u64>,
}

impl Marks {
    fn new(segment: &Segment<'_>) -> Self {
        Self { base: segment.address, bits: vec![0; segment.bytes.len() / 64 + 1] }
    }

    fn slot(&self, address: u64) -> Option<(usize, u64)> {
        let index = address.checked_sub(self.base)?;
        Some((usize::try_from(index / 64).ok()?, 1 << (index % 64)))
    }

    fn set(&mut self, address: u64) {
        if let Some((word, bit)) = self.slot(address)
            && let Some(word) = self.bits.get_mut(word)
        {
            *word |= bit;
        }
    }

    fn has(&self, address: u64) -> bool {
        self.slot(address)
            .is_some_and(|(word, bit)| self.bits.get(word).is_some_and(|word| word & bit != 0))
    }
}

/// One swept executable segment.
struct Sweep<'a> {
    segment: Segment<'a>,
    starts: Marks,
    targets: Marks,
    calls: Vec<u64>,
    tables: Vec<u64>,
}

/// Finds all sites of an image.
#[must_use]
pub fn scan(image: &Image<'_>) -> ScanResult {
    let mut found = ScanResult::default();
    for segment in image.segments().filter(|segment| segment.executable) {
        let mut sweep = Sweep::new(*segment);
        sweep.read_tables(image);
        for &call in &sweep.calls {
            match sweep.site(call) {
                Ok(site) => found.sites.push(site),
                Err(number) => found.refused.push((call as u32, number)),
            }
        }
    }
    found
}

impl<'a> Sweep<'a> {
    fn new(segment: Segment<'a>) -> Self {
        let mut sweep = Sweep {
            segment,
            starts: Marks::new(&segment),
            targets: Marks::new(&segment),
            calls: Vec::new(),
            tables: Vec::new(),
        };
        let mut decoder =
            Decoder::with_ip(64, segment.bytes, segment.address, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            sweep.starts.set(instruction.ip());
            if instruction.is_invalid() {
                let next = (instruction.ip() - segment.address) as usize + 1;
                let _ = decoder.set_position(next);
                decoder.set_ip(instruction.ip() + 1);
                continue;
            }
            match instruction.flow_control() {
                FlowControl::Next => {
                    if instruction.mnemonic() == Mnemonic::Lea
                        && instruction.is_ip_rel_memory_operand()
                    {
                        sweep.tables.push(instruction.ip_rel_memory_address());
                    }
                }
                _ if instruction.code() == Code::Syscall => sweep.calls.push(instruction.ip()),
                _ => sweep.targets.set(instruction.near_branch_target()),
            }
        }
        sweep
    }

    /// Marks the targets of jump tables, and what `lea` itself points to inside the code.
    fn read_tables(&mut self, image: &Image<'_>) {
        for table in core::mem::take(&mut self.tables) {
            self.targets.set(table);
            for index in 0..TABLE_ENTRIES_MAX {
                let Some(&[a, b, c, d]) = image.bytes(table + index * 4, 4) else {
                    break;
                };
                let entry = i64::from(i32::from_le_bytes([a, b, c, d]));
                let target = table.wrapping_add_signed(entry);
                if !self.starts.has(target) {
                    break;
                }
                self.targets.set(target);
            }
        }
    }

    fn decode(&self, address: u64) -> Option<(Instruction, Option<u8>)> {
        let bytes = self.segment.bytes.get((address - self.segment.address) as usize..)?;
        let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
        let instruction = decoder.decode();
        let offsets = decoder.get_constant_offsets(&instruction);
        let relative = instruction.is_ip_rel_memory_operand();
        let displacement = relative.then_some(offsets.displacement_offset() as u8);
        (!instruction.is_invalid()).then_some((instruction, displacement))
    }

    /// The instruction that ends at this address.
    fn previous(&self, address: u64) -> Option<u64> {
        (1..=15)
            .filter_map(|back| address.checked_sub(back))
            .take_while(|at| *at >= self.segment.address)
            .find(|at| self.starts.has(*at))
    }

    /// The number of `call`, if the code just before it sets one.
    fn number(&self, call: u64) -> u16 {
        let mut factory = InstructionInfoFactory::new();
        let mut at = call;
        for _ in 0..SEARCH_INSTRUCTIONS_MAX {
            if self.targets.has(at) {
                return Site::UNKNOWN;
            }
            let Some(before) = self.previous(at) else {
                return Site::UNKNOWN;
            };
            let Some((instruction, _)) = self.decode(before) else {
                return Site::UNKNOWN;
            };
            if instruction.flow_control() != FlowControl::Next {
                return Site::UNKNOWN;
            }
            let writes = factory.info(&instruction).used_registers().iter().any(|used| {
                used.register().full_register() == Register::RAX
                    && !matches!(used.access(), OpAccess::Read | OpAccess::CondRead)
            });
            if writes {
                return constant(&instruction).unwrap_or(Site::UNKNOWN);
            }
            at = before;
        }
        Site::UNKNOWN
    }

    /// Chooses a window; `Err` with the number if there is none.
    fn site(&self, call: u64) -> Result<Site, u16> {
        let number = self.number(call);
        let ahead = (0..=4).map_while(|count| self.back(call, count));
        for start in ahead.clone().skip(1) {
            if call - start >= JUMP_BYTES as u64
                && let Some(site) = self.window(start, call, call, number)
            {
                return Ok(site);
            }
        }
        for start in ahead {
            for following in 0..=3 {
                if let Some(end) = self.forward(call, following)
                    && end - start >= JUMP_BYTES as u64
                    && let Some(site) = self.window(start, end, call, number)
                {
                    return Ok(site);
                }
            }
        }
        Err(number)
    }

    /// The start of the instruction `count` before `call`.
    fn back(&self, call: u64, count: usize) -> Option<u64> {
        (0..count).try_fold(call, |at, _| self.previous(at))
    }

    /// The end of the instruction `count` after the one at `call`.
    fn forward(&self, call: u64, count: usize) -> Option<u64> {
        (0..count).try_fold(call + 2, |at, _| Some(self.decode(at)?.0.next_ip()))
    }

    /// The site for the window `start..end`, if each instruction in it can be moved.
    fn window(&self, start: u64, end: u64, call: u64, number: u16) -> Option<Site> {
        if end - start > WINDOW_BYTES_MAX as u64 {
            return None;
        }
        let mut site = Site {
            address: u32::try_from(start).ok()?,
            length: (end - start) as u8,
            call: (call - start) as u8,
            number,
            fixups: [Fixup::NONE; 2],
        };
        let mut free = site.fixups.iter_mut();
        let mut at = start;
        while at < end {
            if at != start && self.targets.has(at) {
                return None;
            }
            let (instruction, displacement) = self.decode(at)?;
            let ret = instruction.mnemonic() == Mnemonic::Ret && instruction.next_ip() == end;
            if at != call && !ret && !movable(&instruction) {
                return None;
            }
            if let Some(displacement) = displacement {
                *free.next()? = Fixup { displacement: (at - start) as u8 + displacement };
            }
            at = instruction.next_ip();
        }
        // A branch to a `syscall` that stays in its place would miss the jump.
        let missed = call >= end && self.targets.has(call);
        (at == end && !missed).then_some(site)
    }
}

/// True if an instruction does the same elsewhere (its rip-relative operand apart).
fn movable(instruction: &Instruction) -> bool {
    instruction.flow_control() == FlowControl::Next
        && !matches!(
            instruction.mnemonic(),
            Mnemonic::Nop | Mnemonic::Endbr64 | Mnemonic::Hlt | Mnemonic::Syscall
        )
}

/// The constant that an instruction loads into rax.
fn constant(instruction: &Instruction) -> Option<u16> {
    let immediate = matches!(
        instruction.op_kind(1),
        OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64
    );
    match instruction.mnemonic() {
        Mnemonic::Mov if instruction.op_count() == 2 && immediate => {
            u16::try_from(instruction.immediate(1)).ok().filter(|number| *number != Site::UNKNOWN)
        }
        Mnemonic::Xor if instruction.op_count() == 2 => {
            let same = instruction.op_kind(1) == OpKind::Register
                && instruction.op0_register() == instruction.op1_register()
                && matches!(instruction.op0_register(), Register::EAX | Register::RAX);
            same.then_some(0)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
