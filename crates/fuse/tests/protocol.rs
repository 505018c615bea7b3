//! Requests from arbitrary bytes, requests as the kernel writes them, and the lengths of replies,
//! which the kernel compares with those of its structures.

use fuse::abi::{IN_HEADER_BYTES, capability, change, notify, opcode};
use fuse::init::Offer;
use fuse::notice::Notice;
use fuse::reply::{self, Attributes, Entry, Listed, Space, Validity};
use fuse::request::{Init, Lock, fixed_bytes};
use fuse::{Agreed, Header, Operation};
use proptest::prelude::*;
use std::time::Duration;
use wire::codec::Writer;

fn written(with: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut bytes = [0; 4096];
    let mut to = Writer::new(&mut bytes);
    with(&mut to);
    let length = to.finish().expect("it fits");
    bytes[..length].to_vec()
}

#[test]
fn a_header_is_read_as_the_kernel_writes_it() {
    let bytes = written(|to| {
        for word in [50, opcode::LOOKUP] {
            to.u32(word);
        }
        to.u64(7);
        to.u64(1);
        for word in [1000, 100, 4711, 0] {
            to.u32(word);
        }
    });
    let header = Header::parse(&bytes).expect("whole");
    let expected =
        Header { length: 50, opcode: 1, unique: 7, node: 1, uid: 1000, gid: 100, pid: 4711 };
    assert_eq!(header, expected);
    assert!(Header::parse(&bytes[..IN_HEADER_BYTES - 1]).is_err());
}

#[test]
fn operations_are_read_as_the_kernel_writes_them() {
    let rename = written(|to| {
        to.u64(9);
        to.u32(1);
        to.u32(0);
        to.raw(b"old\0new\0");
    });
    let rename = Operation::parse(opcode::RENAME2, &rename, true).expect("whole");
    let Operation::Rename { name, to_directory, to_name, flags } = rename else {
        panic!("it is one")
    };
    assert_eq!((name, to_directory, to_name, flags), (&b"old"[..], 9, &b"new"[..], 1));

    let write = written(|to| {
        to.u64(3);
        to.u64(1 << 33);
        to.u32(5);
        to.u32(4);
        to.u64(0);
        to.u64(0);
        to.raw(b"bytes");
    });
    let write = Operation::parse(opcode::WRITE, &write, true).expect("whole");
    let Operation::Write { handle, offset, flags, data } = write else { panic!("it is one") };
    assert_eq!((handle, offset, flags, data), (3, 1 << 33, 4, &b"bytes"[..]));

    let set = written(|to| {
        to.u32(change::SIZE | change::MTIME | change::HANDLE);
        to.u32(0);
        for word in [8, 4096, 0, 1, 2, 3] {
            to.u64(word);
        }
        for word in [4, 5, 6, 0o644, 0, 10, 20, 0] {
            to.u32(word);
        }
    });
    let set = Operation::parse(opcode::SETATTR, &set, true).expect("whole");
    let Operation::SetAttributes(set) = set else { panic!("it is one") };
    let times = set.times.map(|time| (time.seconds, time.nanos));
    assert_eq!((set.handle, set.size, set.mode, set.uid, set.gid), (8, 4096, 0o644, 10, 20));
    assert_eq!(times, [(1, 4), (2, 5), (3, 6)]);

    let old = written(|to| {
        to.u32(2);
        to.u32(0);
        to.raw(b"user.a\0vv");
    });
    let Ok(Operation::SetXattr { name, value, .. }) =
        Operation::parse(opcode::SETXATTR, &old, false)
    else {
        panic!("it is one")
    };
    assert_eq!((name, value), (&b"user.a"[..], &b"vv"[..]));
}

#[test]
fn forgotten_nodes_are_listed_one_by_one() {
    let bytes = written(|to| {
        to.u32(3);
        to.u32(0);
        for word in [5, 1, 6, 2] {
            to.u64(word);
        }
    });
    let Ok(Operation::BatchForget(all)) = Operation::parse(opcode::BATCH_FORGET, &bytes, true)
    else {
        panic!("it is one")
    };
    // The third is cut off.
    assert_eq!(all.collect::<Vec<_>>(), [(5, 1), (6, 2)]);
}

#[test]
fn only_what_both_sides_have_is_agreed_on() {
    let capabilities = capability::INIT_EXT | capability::BIG_WRITES | capability::OVER_IO_URING;
    let init = Init { major: 7, minor: 99, max_readahead: 0, capabilities };
    let agreed = Agreed::of(&init, Offer::default()).expect("new enough");
    assert!(agreed.has(capability::BIG_WRITES) && !agreed.has(capability::OVER_IO_URING));
    assert!(!agreed.has(capability::MAX_PAGES), "the kernel has it not");
    let with_rings = Agreed::of(&init, Offer { rings: true, ..Offer::default() });
    assert!(with_rings.expect("new enough").has(capability::OVER_IO_URING));
    assert!(Agreed::of(&Init { minor: 30, ..init }, Offer::default()).is_err());
    assert!(Agreed::of(&Init { major: 8, ..init }, Offer::default()).is_err());
    assert_eq!(written(|to| agreed.write(to)).len(), 64);
}

#[test]
fn replies_are_as_long_as_the_structures_of_the_kernel() {
    let attributes = Attributes { times: [-1, 1_500_000_000, 0], ..Attributes::default() };
    let bytes = written(|to| reply::attributes(to, &attributes, Duration::from_millis(1500)));
    assert_eq!(bytes.len(), 104);
    assert_eq!(
        (bytes[0], u32::from_le_bytes(*bytes[8..].first_chunk().expect("4"))),
        (1, 500_000_000)
    );
    // One nanosecond before 1970 is a second before it, and 999,999,999 nanoseconds.
    assert_eq!(i64::from_le_bytes(*bytes[40..].first_chunk().expect("8")), -1);
    assert_eq!(u32::from_le_bytes(*bytes[64..].first_chunk().expect("4")), 999_999_999);
    assert_eq!(written(|to| Entry::default().write(to)).len(), 128);
    assert_eq!(written(|to| reply::opened(to, 1, 2, 3)).len(), 16);
    assert_eq!(written(|to| Space::default().write(to)).len(), 80);
    assert_eq!(written(|to| reply::lock(to, &Lock::default())).len(), 24);
    assert_eq!(written(|to| reply::count(to, 1)).len(), 8);
}

#[test]
fn notices_have_their_lengths_and_codes() {
    let mut reply_bytes_max = [0; 64];
    let length =
        Notice::Entry { directory: 1, name: b"ab" }.write(&mut reply_bytes_max).expect("it fits");
    assert_eq!(
        (length, u32::from(reply_bytes_max[0]), u32::from(reply_bytes_max[4])),
        (35, 35, notify::INVAL_ENTRY)
    );
    let poke = Notice::Poke { node: 5, unique: 6 }.write(&mut reply_bytes_max);
    assert_eq!(
        (poke, reply_bytes_max[4], reply_bytes_max[16], reply_bytes_max[24]),
        (Some(48), notify::RETRIEVE as u8, 6, 5)
    );
    let length = Notice::Inode { node: 1, offset: -1, length: 0 }.write(&mut reply_bytes_max);
    assert_eq!(length, Some(40));
    let long = [b'a'; 64];
    assert_eq!(
        Notice::Deleted { directory: 1, node: 2, name: &long }.write(&mut reply_bytes_max),
        None
    );
}

proptest! {
    #[test]
    fn an_expiry_falls_back_to_an_invalidation_without_the_capability(
        names in proptest::collection::vec("[a-z]{1,40}", 0..9),
        seconds in 1..1000u64,
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        let written = |valid: Duration| {
            let validity = Validity { entry: valid, attributes: valid };
            let entry = Entry { node: 7, generation: 8, validity, ..Entry::default() };
            let mut all = [vec![0; 4096], vec![0; 4096], vec![0; 4096]];
            let [listing, one, attributes] = &mut all;
            let mut to = Writer::new(listing);
            for name in &names {
                let listed = Listed { inode: 1, next: 2, kind: 8, name: name.as_bytes() };
                let _ = reply::listed(&mut to, Some(&entry), &listed);
            }
            let length = to.len();
            listing.truncate(length);
            entry.write(&mut Writer::new(one));
            reply::attributes(&mut Writer::new(attributes), &entry.attributes, valid);
            all
        };
        let mut said = written(Duration::new(seconds, 5));
        let opcodes = [opcode::READDIRPLUS, opcode::LOOKUP, opcode::GETATTR];
        for (body, opcode) in said.iter_mut().zip(opcodes) {
            reply::expire(opcode, body);
        }
        prop_assert_eq!(said, written(Duration::ZERO));
        let mut bytes = bytes;
        reply::expire(opcode::READDIRPLUS, &mut bytes);
    }

    #[test]
    fn no_request_of_any_kind_is_too_much(
        opcode in 0..64u32,
        body in proptest::collection::vec(any::<u8>(), 0..300),
        is_long: bool,
    ) {
        let parsed = Operation::parse(opcode, &body, is_long);
        if body.len() < fixed_bytes(opcode, is_long) {
            prop_assert!(parsed.is_err());
        }
        if let Ok(Operation::BatchForget(all)) = parsed {
            prop_assert!(all.count() <= body.len() / 16);
        }
        let _ = Header::parse(&body);
    }

    #[test]
    fn a_listing_never_overflows_and_its_records_are_aligned(
        names in proptest::collection::vec("[a-z]{1,40}", 0..40),
        reply_bytes_max in 0..2000usize,
        with_entry: bool,
    ) {
        let mut bytes = vec![0; reply_bytes_max];
        let mut to = Writer::new(&mut bytes);
        let entry = with_entry.then(Entry::default);
        let mut before = 0;
        for name in &names {
            let listed = Listed { inode: 1, next: 2, kind: 8, name: name.as_bytes() };
            let fits = reply::listed(&mut to, entry.as_ref(), &listed);
            prop_assert!(to.len().is_multiple_of(8));
            prop_assert_eq!(fits, to.len() > before);
            before = to.len();
        }
        prop_assert!(to.finish().is_ok());
    }
}
