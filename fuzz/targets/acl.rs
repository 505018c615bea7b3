//! Access control lists as programs hand them in: taken or refused, kept as they were, and the mode and
//! what is handed down follow from them.
#![no_main]

use forebay_fuzz::sow;
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

fuzz_target!(init: sow(seeds()), |data: &[u8]| {
    let Some((&[low, high], bytes)) = data.split_first_chunk() else { return };
    let mode = u32::from(u16::from_le_bytes([low, high])) & 0o777;
    let Ok(Some(acl)) = Acl::parse(bytes) else { return };
    assert_eq!(acl.byte_count(), bytes.len());
    let mut kept = vec![0; acl.byte_count()];
    acl.keep(&mut kept);
    // But of whom entries without a name speak, which nobody asks for.
    for (kept, given) in kept[HEADER_BYTES..].chunks(ENTRY_BYTES).zip(bytes[HEADER_BYTES..].chunks(ENTRY_BYTES)) {
        assert_eq!(kept[..4], given[..4]);
    }
    let same = |bytes: &[u8]| Acl::parse(bytes).ok().flatten().map(|acl| acl.mode());
    assert_eq!(same(&kept), Some(acl.mode()));
    acl.with_mode(mode, &mut kept);
    assert_eq!(same(&kept), Some(mode));
    let bits = acl.inherit(mode, &mut kept);
    assert_eq!((same(&kept), bits), (Some(bits), acl.mode() & mode));
    let (owner, somebody) = (Credentials::of(1, 1), Credentials::of(u32::from(low), u32::from(high)));
    for wanted in 0..8 {
        // The owner's bits of the mode are his; nobody else has more than the mask.
        assert_eq!(acl.permits((1, 1), &owner, wanted), acl.mode() >> 6 & wanted == wanted);
        if somebody.uid != 1 && acl.permits((1, 1), &somebody, wanted) {
            let most = acl.mode() >> 3 | acl.mode();
            assert_eq!(most & wanted, wanted);
        }
    }
});
