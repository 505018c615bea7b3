//! memcpy, memmove, memset, memcmp, bcmp and strlen of this library, hidden from others.
//!
//! Rust's core calls these by name, and libc selects implementations at run time that use AVX,
//! whose registers a stub does not save (saving them by xsave would cost more than the call). These
//! use SSE2 and `rep movsb` only. Hidden symbols bind inside the library and interpose nothing
//! outside. A program that links the rlib gets them for its own code too, which is harmless.
//!
//! 1 KiB is where `rep movsb` overtakes 16-byte moves on processors with fast strings, but only if
//! both ends have the same alignment. If they differ by 16 modulo 32, as large malloc blocks do
//! from our extents, it takes three times as long on AMD's Zen 4 (1 MiB: read 8.6 GB/s, write 12.9,
//! against 24 and 23 with 16-byte moves; with other alignments 25 and 23 against 22 to 24).

use core::arch::global_asm;

global_asm!(
    ".macro FOREBAY_FUNCTION name",
    ".p2align 4",
    ".globl \\name",
    ".hidden \\name",
    ".type \\name, @function",
    "\\name:",
    ".endm",
    ".text",
    "FOREBAY_FUNCTION memcpy",
    "FOREBAY_FUNCTION memmove",
    "mov rax, rdi",
    "cmp rdx, 16",
    "jb 3f",
    "cmp rdx, 32",
    "ja 6f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + rdx - 16], xmm1",
    "ret",
    // Below 16 bytes: all loads come before the stores, so overlap does not matter.
    "3: cmp edx, 8",
    "jb 4f",
    "mov rcx, [rsi]",
    "mov r8, [rsi + rdx - 8]",
    "mov [rdi], rcx",
    "mov [rdi + rdx - 8], r8",
    "ret",
    "4: cmp edx, 4",
    "jb 5f",
    "mov ecx, [rsi]",
    "mov r8d, [rsi + rdx - 4]",
    "mov [rdi], ecx",
    "mov [rdi + rdx - 4], r8d",
    "ret",
    "5: test edx, edx",
    "je 2f",
    "mov r9d, edx",
    "shr r9d, 1",
    "movzx ecx, byte ptr [rsi]",
    "movzx r8d, byte ptr [rsi + r9]",
    "movzx r10d, byte ptr [rsi + rdx - 1]",
    "mov [rdi], cl",
    "mov [rdi + r9], r8b",
    "mov [rdi + rdx - 1], r10b",
    "2: ret",
    "6: mov rcx, rdi",
    "sub rcx, rsi",
    "cmp rcx, rdx",
    "jb 8f",
    "cmp rdx, 1024",
    "jae 9f",
    // Forwards; the tail is loaded first because the loop may overwrite it in the source.
    "movups xmm1, [rsi + rdx - 16]",
    "lea r8, [rdi + rdx - 16]",
    "7: movups xmm0, [rsi]",
    "movups [rdi], xmm0",
    "add rsi, 16",
    "add rdi, 16",
    "cmp rdi, r8",
    "jb 7b",
    "movups [r8], xmm1",
    "ret",
    // Backwards, if the destination begins inside the source; the head is loaded first.
    "8: movups xmm1, [rsi]",
    "88: movups xmm0, [rsi + rdx - 16]",
    "movups [rdi + rdx - 16], xmm0",
    "sub rdx, 16",
    "cmp rdx, 16",
    "ja 88b",
    "movups [rdi], xmm1",
    "ret",
    "9: test cl, 31",
    "jne 10f",
    "mov rcx, rdx",
    "rep movsb",
    "ret",
    // Forwards by 64 to aligned addresses. Head and tail are loaded before anything is stored,
    // because the loop may overwrite both in the source.
    "10: movups xmm8, [rsi]",
    "movups xmm9, [rsi + 16]",
    "movups xmm10, [rsi + 32]",
    "movups xmm11, [rsi + 48]",
    "movups xmm4, [rsi + rdx - 64]",
    "movups xmm5, [rsi + rdx - 48]",
    "movups xmm6, [rsi + rdx - 32]",
    "movups xmm7, [rsi + rdx - 16]",
    "lea r8, [rdi + rdx - 64]",
    "mov rcx, rdi",
    "neg rcx",
    "and ecx, 63",
    "add rdi, rcx",
    "add rsi, rcx",
    "11: movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movaps [rdi], xmm0",
    "movaps [rdi + 16], xmm1",
    "movaps [rdi + 32], xmm2",
    "movaps [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "cmp rdi, r8",
    "jb 11b",
    "movups [rax], xmm8",
    "movups [rax + 16], xmm9",
    "movups [rax + 32], xmm10",
    "movups [rax + 48], xmm11",
    "movups [r8], xmm4",
    "movups [r8 + 16], xmm5",
    "movups [r8 + 32], xmm6",
    "movups [r8 + 48], xmm7",
    "ret",
    "FOREBAY_FUNCTION memset",
    "mov r8, rdi",
    "movzx eax, sil",
    "cmp rdx, 16",
    "jb 3f",
    "cmp rdx, 1024",
    "jae 3f",
    "imul eax, eax, 0x01010101",
    "movd xmm0, eax",
    "pshufd xmm0, xmm0, 0",
    "lea rcx, [rdi + rdx - 16]",
    "2: movups [rdi], xmm0",
    "add rdi, 16",
    "cmp rdi, rcx",
    "jb 2b",
    "movups [rcx], xmm0",
    "mov rax, r8",
    "ret",
    "3: mov rcx, rdx",
    "rep stosb",
    "mov rax, r8",
    "ret",
    "FOREBAY_FUNCTION bcmp",
    "FOREBAY_FUNCTION memcmp",
    "xor ecx, ecx",
    "2: lea r8, [rcx + 8]",
    "cmp r8, rdx",
    "ja 3f",
    "mov r9, [rdi + rcx]",
    "cmp r9, [rsi + rcx]",
    "jne 3f",
    "mov rcx, r8",
    "jmp 2b",
    "3: cmp rcx, rdx",
    "jae 4f",
    "movzx eax, byte ptr [rdi + rcx]",
    "movzx r8d, byte ptr [rsi + rcx]",
    "inc rcx",
    "sub eax, r8d",
    "je 3b",
    "ret",
    "4: xor eax, eax",
    "ret",
    "FOREBAY_FUNCTION strlen",
    "xor eax, eax",
    "2: cmp byte ptr [rdi + rax], 0",
    "je 3f",
    "inc rax",
    "jmp 2b",
    "3: ret",
    // The aligned sixteen bytes around one byte of a string are in the same page.
    "FOREBAY_FUNCTION forebay_length",
    "mov rax, rdi",
    "and rax, -16",
    "pxor xmm0, xmm0",
    "pcmpeqb xmm0, [rax]",
    "pmovmskb edx, xmm0",
    "mov ecx, edi",
    "and ecx, 15",
    "shr edx, cl",
    "test edx, edx",
    "je 2f",
    "bsf eax, edx",
    "ret",
    "2: add rsi, rdi",
    "3: add rax, 16",
    "cmp rax, rsi",
    "jae 4f",
    "pxor xmm0, xmm0",
    "pcmpeqb xmm0, [rax]",
    "pmovmskb edx, xmm0",
    "test edx, edx",
    "je 3b",
    "bsf edx, edx",
    "add rax, rdx",
    "4: sub rax, rdi",
    "ret",
);

unsafe extern "C" {
    fn forebay_length(at: *const u8, limit: usize) -> usize;
}

/// Length of the string at `at`; a number not below `limit` if the string is not shorter.
///
/// # Safety
/// Every byte up to the NUL or the limit, whichever comes first, must be readable.
#[must_use]
pub unsafe fn text_length(at: *const u8, limit: usize) -> usize {
    // WHY: sixteen bytes at a time; one at a time took a twentieth of a stat.
    // SAFETY: the function reads aligned blocks of sixteen bytes, each with a readable byte, so
    // they are mapped.
    unsafe { forebay_length(at, limit) }
}

#[cfg(test)]
mod tests {
    use super::text_length;

    unsafe extern "C" {
        fn memmove(to: *mut u8, from: *const u8, length: usize) -> *mut u8;
    }

    /// All lengths near the boundaries between the copy methods, at all alignments of both ends,
    /// disjoint and overlapping in both directions, compared with a copy byte by byte.
    #[test]
    fn bytes_of_any_alignment_and_length_are_moved() {
        const BUFFER_BYTES: usize = 8192;
        let mut fresh = vec![0; BUFFER_BYTES];
        for (at, byte) in fresh.iter_mut().enumerate() {
            *byte = (at * 7 + at / 251) as u8;
        }
        let lengths = (0..70).chain([100, 1000]).chain(1023..1030).chain([1087, 1088, 1089, 1500]);
        let starts = || (0..66).step_by(3).chain([15, 16, 17, 31, 32, 33, 48, 64]);
        for length in lengths {
            for from in starts() {
                for to in starts().flat_map(|to| [to, to + 1024, to + 4096]) {
                    let mut bytes = fresh.clone();
                    // SAFETY: both ranges are inside the vector.
                    unsafe {
                        let start = bytes.as_mut_ptr();
                        let moved = memmove(start.add(to), start.add(from), length);
                        assert_eq!(moved, start.add(to));
                    }
                    let mut expected = fresh.clone();
                    // Byte by byte: a copy of slices would use the functions under test.
                    for (to, from) in expected[to..].iter_mut().zip(&fresh[from..]).take(length) {
                        *to = *from;
                    }
                    assert!(bytes == expected, "{length} bytes from {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn a_string_ends_at_its_first_nul_or_at_the_limit() {
        let mut bytes = [b'x'; 128];
        for start in 0..40 {
            for length in 0..60 {
                bytes[start + length] = 0;
                for limit in [length + 1, 80] {
                    // SAFETY: a NUL is inside the array.
                    let found = unsafe { text_length(bytes.as_ptr().add(start), limit) };
                    assert_eq!(found, length, "from {start}");
                }
                // SAFETY: as above; the limit is inside the array, too.
                let found = unsafe { text_length(bytes.as_ptr().add(start), length) };
                assert!(found >= length);
                bytes[start + length] = b'x';
            }
        }
    }
}
