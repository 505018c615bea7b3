//! Requests of the kernel to a mount: headers and operations. The first byte selects the operation,
//! the second whether attributes have the long form.
#![no_main]

use forebay_fuzz::write_seeds;
use fuse::request::fixed_bytes;
use fuse::{Header, Operation};
use libfuzzer_sys::fuzz_target;

/// One seed of each operation, with a name after its part of fixed size.
fn seeds() -> Vec<Vec<u8>> {
    (0..64u8)
        .map(|opcode| {
            let fixed = vec![1; fixed_bytes(u32::from(opcode), true)];
            [&[opcode, 1][..], &fixed, b"name\0other\0"].concat()
        })
        .collect()
}

fuzz_target!(init: write_seeds(seeds()), |data: &[u8]| {
    let [opcode, long, body @ ..] = data else { return };
    let opcode = u32::from(*opcode);
    if let Ok(header) = Header::parse(body) {
        assert!(header.length as usize >= fuse::abi::IN_HEADER_BYTES);
    }
    match Operation::parse(opcode, body, long & 1 != 0) {
        Ok(Operation::Lookup { name } | Operation::Unlink { name }) => {
            assert!(!name.is_empty() && !name.contains(&0));
        }
        Ok(Operation::Rename { name, to_name, .. }) => {
            assert!(!name.contains(&0) && !to_name.contains(&0));
        }
        Ok(Operation::Write { data, .. }) => assert!(data.len() < body.len()),
        Ok(Operation::BatchForget(all)) => assert!(all.count() <= body.len() / 16),
        Ok(_) => {}
        Err(_) => assert!(opcode < 64, "an unknown operation stays unknown"),
    }
});
