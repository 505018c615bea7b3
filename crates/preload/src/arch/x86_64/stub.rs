//! Writes stubs, and the jumps that lead to them.
//!
//! A stub runs the instructions before the call that its jump replaced, asks the handler, and then
//! either continues after the `syscall` with the handler's result, or makes the call natively with
//! the application's registers and stack. If the window ends before the `syscall`, that instruction
//! is still in its place and the stub jumps to it: a blocking call then waits at its own address,
//! which pthread_cancel inspects. Nothing of a stub is on the stack during a native call, so a
//! child may be on any stack.
//!
//! Area: the first 24 bytes hold the addresses of `forebay_enter`, `forebay_after` and
//! `forebay_enter_selected`.

use crate::entry::select;
use crate::rewrite::site::Site;

/// The jump that replaces a window: e9 rel32.
pub const JUMP_BYTES: usize = 5;

/// The largest stub: instructions before and after the call (two windows' worth), and the code for
/// processes.
pub const STUB_BYTES_MAX: usize = 224;

/// Bytes at the start of an area that hold the three entry addresses.
pub const HEADER_BYTES: usize = 24;

/// Bytes that a stub leaves below the application's stack pointer while it calls the handler: the red
/// zone, and the place of the address where the application continues.
pub const SKIPS: u64 = 136;

/// Where in the code of that call the stack pointer is so far below: from the end of the first
/// instruction to the begin of the last.
pub const SKIPPED: core::ops::RangeInclusive<u32> = 8..=25;

/// Why a site cannot be served from this area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// The area is full.
    Full,
    /// A displacement does not reach.
    OutOfReach,
    /// The site is inconsistent.
    Malformed,
}

/// A write position in an area; `address` is where the bytes will run.
struct Code<'a> {
    bytes: &'a mut [u8],
    address: u64,
    length: usize,
    unfit: Option<Unfit>,
}

/// A one-byte displacement still to be filled in.
#[derive(Clone, Copy)]
struct Short(usize);

impl Code<'_> {
    fn put(&mut self, bytes: &[u8]) {
        match self.bytes.get_mut(self.length..self.length + bytes.len()) {
            Some(to) => to.copy_from_slice(bytes),
            None => self.unfit = Some(Unfit::Full),
        }
        self.length += bytes.len();
    }

    fn here(&self) -> u64 {
        self.address + self.length as u64
    }

    /// Emits `opcode` and a 32-bit displacement to `target`.
    fn relative(&mut self, opcode: &[u8], target: u64) {
        self.put(opcode);
        let next = self.here() + 4;
        match i32::try_from(target.wrapping_sub(next).cast_signed()) {
            Ok(distance) => self.put(&distance.to_le_bytes()),
            Err(_) => self.unfit = Some(Unfit::OutOfReach),
        }
    }

    fn short(&mut self, opcode: u8) -> Short {
        self.put(&[opcode, 0]);
        Short(self.length)
    }

    fn land(&mut self, short: Short) {
        let distance = i8::try_from(self.length - short.0);
        match (distance, self.bytes.get_mut(short.0 - 1)) {
            (Ok(distance), Some(slot)) => *slot = distance.cast_unsigned(),
            _ => self.unfit = Some(Unfit::OutOfReach),
        }
    }

    /// Skips the red zone, stores where the application continues, and calls an entry.
    fn call(&mut self, entry: u64, resume: u64) {
        self.put(&[0x48, 0x8d, 0xa4, 0x24, 0x78, 0xff, 0xff, 0xff]); // lea rsp, [rsp - 136]
        self.relative(&[0x4c, 0x8d, 0x1d], resume); // lea r11, [rip + resume]
        self.put(&[0x4c, 0x89, 0x1c, 0x24]); // mov [rsp], r11
        self.relative(&[0xff, 0x15], entry); // call [rip + entry]
        self.put(&[0x48, 0x8d, 0xa4, 0x24, 0x88, 0x00, 0x00, 0x00]); // lea rsp, [rsp + 136]
    }

    /// Copies `window[from..to]` and adjusts its rip-relative operands.
    fn relocate(&mut self, site: &Site, window: &[u8], window_at: u64, from: usize, to: usize) {
        let start = self.length;
        let moved = (window_at + from as u64).wrapping_sub(self.here()).cast_signed();
        let Some(part) = window.get(from..to) else {
            self.unfit = Some(Unfit::Malformed);
            return;
        };
        self.put(part);
        for fixup in site.fixups() {
            let at = usize::from(fixup.displacement);
            if at < from || at >= to {
                continue;
            }
            let place = start + (at - from);
            let Some(slot) = self.bytes.get_mut(place..place + 4) else {
                self.unfit = Some(Unfit::Full);
                return;
            };
            let mut old = [0; 4];
            old.copy_from_slice(slot);
            match i32::try_from(i64::from(i32::from_le_bytes(old)).wrapping_add(moved)) {
                Ok(new) => slot.copy_from_slice(&new.to_le_bytes()),
                Err(_) => self.unfit = Some(Unfit::OutOfReach),
            }
        }
    }
}

/// Writes the entry addresses at the start of an area.
pub fn begin(area: &mut [u8], entries: [u64; 3]) {
    for (slot, entry) in area.chunks_exact_mut(8).zip(entries) {
        slot.copy_from_slice(&entry.to_le_bytes());
    }
}

/// Writes the stub of `site` into `area` at `offset`; returns the stub's length.
///
/// `window` holds the site's original bytes, located at `window_at`; `area` will run at `area_at`
/// and begins with the entry addresses.
///
/// # Errors
/// `Unfit` if the area is full or too far away; what was written is then not used.
pub fn emit(
    area: &mut [u8],
    area_at: u64,
    offset: usize,
    site: &Site,
    window: &[u8],
    window_at: u64,
) -> Result<usize, Unfit> {
    let bytes = area.get_mut(offset..).ok_or(Unfit::Full)?;
    let mut code = Code { bytes, address: area_at + offset as u64, length: 0, unfit: None };
    let length = usize::from(site.length);
    let call = usize::from(site.call);
    let stays = call >= length;
    let resume = window_at + call as u64 + 2;

    code.relocate(site, window, window_at, 0, call.min(length));
    let is_selected = site.number != Site::UNKNOWN
        && select::selected(site.number)
        && !select::creates(site.number);
    code.call(if is_selected { area_at + 16 } else { area_at }, resume);
    let pass = code.short(0xe3); // jrcxz
    let done = if select::creates(site.number) || site.number == Site::UNKNOWN {
        processes(&mut code, area_at + 8, resume)
    } else {
        [code.short(0xeb), Short(0)]
    };
    code.land(pass);
    if stays {
        code.relative(&[0xe9], window_at + call as u64);
    } else {
        code.put(&[0x0f, 0x05]);
    }
    for short in done.into_iter().filter(|short| short.0 != 0) {
        code.land(short);
    }
    if stays {
        code.relative(&[0xe9], resume);
    } else {
        code.relocate(site, window, window_at, call + 2, length);
        code.relative(&[0xe9], window_at + length as u64);
    }
    match code.unfit {
        None => Ok(code.length),
        Some(unfit) => Err(unfit),
    }
}

/// The part of a stub for calls that create processes: a `syscall` of its own for each of the four
/// numbers, so that parent and child know by their address which it was, and need no memory.
fn processes(code: &mut Code<'_>, after: u64, resume: u64) -> [Short; 2] {
    code.put(&[0x8d, 0x49, 0xff]); // lea ecx, [rcx - 1]
    let done = code.short(0xe3);
    let mut tails = [Short(0); 4];
    for (tail, number) in tails.iter_mut().zip(select::CREATORS) {
        code.put(&[0x8d, 0x49, 0xff]);
        let this = code.short(0xe3);
        let next = code.short(0xeb);
        code.land(this);
        code.put(&[0x0f, 0x05, 0xb9]); // syscall; mov ecx, number
        code.put(&u32::from(number).to_le_bytes());
        *tail = code.short(0xeb);
        code.land(next);
    }
    code.put(&[0x0f, 0x0b]); // ud2: no verdict leads here
    for tail in tails {
        code.land(tail);
    }
    code.call(after, resume);
    [done, code.short(0xeb)]
}

/// The jump from `from` to `to`.
///
/// # Errors
/// `Unfit::OutOfReach` if the distance has more than 32 bits.
pub fn jump(from: u64, to: u64) -> Result<[u8; JUMP_BYTES], Unfit> {
    let distance = to.wrapping_sub(from + JUMP_BYTES as u64).cast_signed();
    let [a, b, c, d] = i32::try_from(distance).map_err(|_| Unfit::OutOfReach)?.to_le_bytes();
    Ok([0xe9, a, b, c, d])
}

#[cfg(test)]
mod tests;
