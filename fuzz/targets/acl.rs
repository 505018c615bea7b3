//! Access control lists as programs supply them: accepted or refused, stored unchanged, and the
//! mode and the inherited list follow from them.
#![no_main]

use forebay_fuzz::write_seeds;
use libfuzzer_sys::fuzz_target;
use wire::Credentials;
use wire::acl::{Acl, ENTRY_BYTES, HEADER_BYTES};

fn seeds() -> Vec<Vec<u8>> {
    let list =
        |entries: &[[u8; ENTRY_BYTES]]| [&[7, 0, 2, 0, 0, 0], entries.as_flattened()].concat();
    let (owner, group) = ([1, 0, 7, 0, 0, 0, 0, 0], [4, 0, 5, 0, 0, 0, 0, 0]);
    let (user, mask) = ([2, 0, 6, 0, 9, 0, 0, 0], [16, 0, 7, 0, 0, 0, 0, 0]);
    let (named, other) = ([8, 0, 4, 0, 3, 0, 0, 0], [32, 0, 1, 0, 0, 0, 0, 0]);
    vec![
        list(&[]),
        list(&[owner, group, other]),
        list(&[owner, user, group, named, mask, other]),
        list(&[owner, user, group, other]),
    ]
}

fuzz_target!(init: write_seeds(seeds()), |data: &[u8]| {
    let Some((&[low, high], bytes)) = data.split_first_chunk() else { return };
    let mode = u32::from(u16::from_le_bytes([low, high])) & 0o777;
    let Ok(Some(acl)) = Acl::parse(bytes) else { return };
    assert_eq!(acl.byte_count(), bytes.len());
    let mut stored = vec![0; acl.byte_count()];
    acl.store(&mut stored);
    // Except the id field of entries without a qualifier, which is ignored.
    for (stored, given) in stored[HEADER_BYTES..].chunks(ENTRY_BYTES).zip(bytes[HEADER_BYTES..].chunks(ENTRY_BYTES)) {
        assert_eq!(stored[..4], given[..4]);
    }
    let same = |bytes: &[u8]| Acl::parse(bytes).ok().flatten().map(|acl| acl.mode());
    assert_eq!(same(&stored), Some(acl.mode()));
    acl.with_mode(mode, &mut stored);
    assert_eq!(same(&stored), Some(mode));
    let bits = acl.inherit(mode, &mut stored);
    assert_eq!((same(&stored), bits), (Some(bits), acl.mode() & mode));
    let (owner, other) = (Credentials::of(1, 1), Credentials::of(u32::from(low), u32::from(high)));
    for requested in 0..8 {
        // The owner's bits of the mode apply to the owner; all others are limited by the mask.
        assert_eq!(acl.permits((1, 1), &owner, requested), acl.mode() >> 6 & requested == requested);
        if other.uid != 1 && acl.permits((1, 1), &other, requested) {
            let most = acl.mode() >> 3 | acl.mode();
            assert_eq!(most & requested, requested);
        }
    }
});
