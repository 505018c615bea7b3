//! Relocated operands keep their targets, checked by decoding what was emitted; distances that do
//! not fit are refused; the parts of a stub lead where they should.

use iced_x86::{Code as Opcode, Decoder, DecoderOptions, Instruction};
use proptest::prelude::*;

use super::*;
use crate::rewrite::site::Fixup;

const AREA_AT: u64 = 0x7000_0000_0000;

fn decoded(bytes: &[u8], at: u64) -> Vec<Instruction> {
    Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).iter().collect()
}

/// `mov eax, [rip + displacement]` (6 bytes) before a `syscall` that stays or moves.
fn emitted(displacement: i32, distance: i64, moves: bool, number: u16) -> Result<Vec<u8>, Unfit> {
    let mut window = vec![0x8b, 0x05];
    window.extend_from_slice(&displacement.to_le_bytes());
    if moves {
        window.extend_from_slice(&[0x0f, 0x05, 0xc3]);
    }
    let site = Site {
        address: 0,
        length: window.len() as u8,
        call: 6,
        number,
        fixups: [Fixup { displacement: 2 }, Fixup::NONE],
    };
    let mut area = vec![0; 512];
    let window_at = AREA_AT.wrapping_add_signed(distance);
    let length = emit(&mut area, AREA_AT, HEADER_BYTES, &site, &window, window_at)?;
    assert!(length <= STUB_BYTES_MAX, "length={length}");
    area.truncate(HEADER_BYTES + length);
    Ok(area.split_off(HEADER_BYTES))
}

proptest! {
    #[test]
    fn operands_keep_their_targets(
        displacement: i32,
        distance in -0x9000_0000_i64..0x9000_0000,
        moves: bool,
        unknown: bool,
    ) {
        let window_at = AREA_AT.wrapping_add_signed(distance);
        let target = window_at.wrapping_add(6).wrapping_add_signed(i64::from(displacement));
        let stub_at = AREA_AT + HEADER_BYTES as u64;
        let moved = target.wrapping_sub(stub_at + 6).cast_signed();
        let number = if unknown { Site::UNKNOWN } else { 0 };
        match emitted(displacement, distance, moves, number) {
            Ok(stub) => {
                let code = decoded(&stub, stub_at);
                prop_assert_eq!(code[0].ip_rel_memory_address(), target);
                prop_assert!(code.iter().all(|instruction| !instruction.is_invalid()));
                let ends = [window_at + 8, window_at + if moves { 9 } else { 8 }];
                let last = code.last().map(Instruction::near_branch_target);
                prop_assert!(last.is_some_and(|last| ends.contains(&last)));
                let calls = code.iter().filter(|code| code.code() == Opcode::Syscall).count();
                prop_assert_eq!(calls, usize::from(moves) + if unknown { 4 } else { 0 });
                // Every short branch lands on an instruction of this stub.
                let is_short = |code: &&Instruction| {
                    code.is_jcx_short() || code.is_jmp_short()
                };
                for branch in code.iter().filter(is_short) {
                    let to = branch.near_branch_target();
                    prop_assert!(code.iter().any(|instruction| instruction.ip() == to));
                }
            }
            Err(unfit) => {
                prop_assert_eq!(unfit, Unfit::OutOfReach);
                let is_beyond_jump = distance.unsigned_abs() > 0x7fff_f000;
                prop_assert!(is_beyond_jump || i32::try_from(moved).is_err());
            }
        }
    }

    #[test]
    fn jumps_reach_or_are_refused(from in AREA_AT - 0x1_0000_0000..AREA_AT + 0x1_0000_0000) {
        match jump(from, AREA_AT) {
            Ok(bytes) => prop_assert_eq!(decoded(&bytes, from)[0].near_branch_target(), AREA_AT),
            Err(_) => prop_assert!(from.abs_diff(AREA_AT) >= 0x7fff_fff0),
        }
    }
}

#[test]
fn a_full_area_is_refused() {
    let site = Site { address: 0, length: 5, call: 5, number: 0, fixups: [Fixup::NONE; 2] };
    let mut area = [0; 40];
    let window = [0xb8, 0, 0, 0, 0];
    let answer = emit(&mut area, AREA_AT, HEADER_BYTES, &site, &window, AREA_AT + 4096);
    assert_eq!(answer, Err(Unfit::Full));
}

#[test]
fn memory_functions_agree_with_a_plain_loop() {
    // In this program, too, the names bind to ours (see `memory`).
    let source: Vec<u8> = (0..3000_u32).map(|index| (index * 7 % 251) as u8).collect();
    for length in (0..300).chain([1000, 1023, 1024, 1500]) {
        for shift in [0_usize, 1, 3, 15, 16, 17, 40] {
            let mut forwards = source.clone();
            forwards.copy_within(shift..shift + length, 0);
            let mut backwards = source.clone();
            backwards.copy_within(0..length, shift);
            for index in 0..length {
                assert_eq!(forwards[index], source[index + shift], "length={length}");
                assert_eq!(backwards[index + shift], source[index], "length={length}");
            }
            assert_eq!(forwards[length..], source[length..], "length={length}");
            let mut filled = source.clone();
            filled[shift..shift + length].fill(9);
            assert!(filled[shift..shift + length].iter().all(|&byte| byte == 9));
            assert_eq!(filled[shift + length..], source[shift + length..]);
            assert_eq!(filled[..shift], source[..shift]);
            let mut other = source.clone();
            assert!(other[..length] == source[..length]);
            if length > 0 {
                other[length - 1] = other[length - 1].wrapping_add(1);
                assert!(other[..length] != source[..length]);
                assert_eq!(
                    other[..length].cmp(&source[..length]),
                    other[length - 1].cmp(&source[length - 1])
                );
            }
        }
    }
}
