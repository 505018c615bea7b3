//! Property tests of the wire format: encoded values decode to the same values, and no input makes
//! the decoders panic or read beyond its end.

use proptest::prelude::*;
use wire::backing::{BackingLocation, DirtyName, DirtyStatus, Stamp, SyncState, Version, listed};
use wire::codec::{Field, Malformed, Reader, Writer};
use wire::names::{FoundName, NamePlace};
use wire::reply::{DirectoryEntry, Extent};
use wire::request::removed;
use wire::{
    Attributes, Credentials, Errno, Header, Inode, JobWord, Layout, Reply, Request, Welcome,
};

fn attributes() -> impl Strategy<Value = Attributes> {
    (any::<[u64; 3]>(), any::<[u32; 6]>(), any::<[i64; 4]>(), any::<(u8, u8, u8, u8, u16, u16)>())
        .prop_map(|(words, numbers, times, layout)| Attributes {
            inode: Inode(words[0]),
            parent: Inode(words[1]),
            mode: numbers[0],
            uid: numbers[1],
            gid: numbers[2],
            links: numbers[3],
            size: words[2],
            accessed: times[0],
            modified: times[1],
            changed: times[2],
            born: times[3],
            device: numbers[4],
            project: numbers[5],
            layout: Layout {
                spread: layout.0 & 1 | (layout.4 >> 11 << 1) as u8,
                pool: layout.0 >> 1,
                placement: layout.1,
                copies: layout.2 >> 6,
                stripe_log2: layout.2 & 63,
                flags: layout.3,
                place: layout.4 & 0x7ff,
            },
            extras: layout.5,
        })
}

fn encode(buffer: &mut [u8], put: impl FnOnce(&mut Writer<'_>)) -> &[u8] {
    let mut writer = Writer::new(buffer);
    put(&mut writer);
    let length = writer.finish().expect("the buffer is large enough");
    &buffer[..length]
}

fn request_round_trip(request: Request<'_>) {
    let mut buffer = vec![0; 64 * 1024];
    let bytes = encode(&mut buffer, |to| request.encode(to));
    let mut reader = Reader::new(bytes);
    assert_eq!(Request::decode(&mut reader), Ok(request));
    assert!(reader.rest().is_empty());
    for cut in 0..bytes.len() {
        assert!(Request::decode(&mut Reader::new(&bytes[..cut])).is_err(), "truncated at {cut}");
    }
}

fn reply_round_trip(reply: Reply<'_>) {
    let mut buffer = vec![0; 64 * 1024];
    let bytes = encode(&mut buffer, |to| reply.encode(to));
    let mut reader = Reader::new(bytes);
    assert_eq!(Reply::decode(&mut reader), Ok(reply));
    assert!(reader.rest().is_empty());
}

/// Any value that decodes from the bytes is encoded in as many bytes, which decode to the same.
fn come_back(bytes: &[u8]) {
    fn check<'a, T: PartialEq + std::fmt::Debug>(
        bytes: &'a [u8],
        decode: impl Fn(&mut Reader<'a>) -> Result<T, Malformed>,
        put: impl Fn(&T, &mut Writer<'_>),
        again: impl for<'b> Fn(&mut Reader<'b>, &T) -> bool,
    ) {
        let mut reader = Reader::new(bytes);
        let Ok(value) = decode(&mut reader) else { return };
        let mut buffer = vec![0; bytes.len() - reader.rest().len()];
        let mut writer = Writer::new(&mut buffer);
        put(&value, &mut writer);
        assert_eq!(writer.finish(), Ok(bytes.len() - reader.rest().len()), "{value:?}");
        let mut reader = Reader::new(&buffer);
        assert!(again(&mut reader, &value) && reader.rest().is_empty(), "{value:?}");
    }
    macro_rules! comes_back {
        ($decode:path, $put:ident) => {
            check(
                bytes,
                $decode,
                |value, to| value.$put(to),
                |from, value| $decode(from).as_ref() == Ok(value),
            )
        };
    }
    comes_back!(Request::decode, encode);
    comes_back!(Reply::decode, encode);
    comes_back!(Header::decode, encode);
    comes_back!(Credentials::decode, encode);
    comes_back!(Attributes::decode, encode);
    comes_back!(DirectoryEntry::take, put);
    comes_back!(Extent::take, put);
    comes_back!(BackingLocation::take, put);
    comes_back!(SyncState::take, put);
    comes_back!(DirtyName::take, put);
    comes_back!(DirtyStatus::take, put);
    if let Ok(welcome) = Welcome::decode(&mut Reader::new(bytes)) {
        let mut buffer = [0; 256];
        let written = encode(&mut buffer, |to| welcome.encode(to));
        assert_eq!(Welcome::decode(&mut Reader::new(&written[1..])), Ok(welcome));
    }
}

fn location<'a>(words: &[u64; 8], name: &'a [u8]) -> BackingLocation<'a> {
    let [parent, number, modified, size, counts, changed, here, here_size] = *words;
    BackingLocation {
        parent: Inode(parent),
        name,
        version: Version { number, modified: modified.cast_signed(), size },
        counts,
        stamp: Stamp {
            changed: changed.cast_signed(),
            modified: here.cast_signed(),
            size: here_size,
        },
    }
}

proptest! {
    /// Sync states decode as they were encoded, alone, in requests and in lists.
    #[test]
    fn sync_states_survive(
        words in any::<[u64; 8]>(), others in any::<[u64; 8]>(), bits in 0u8..32, m in any::<u32>(),
        name in proptest::collection::vec(any::<u8>(), 0..300), attributes in attributes(),
    ) {
        let (inode, name, location) = (Inode(others[1]), &name[..], location(&words, &name));
        let next = BackingLocation { counts: others[0], name: &name[..name.len() / 2], ..location };
        let sync_state = SyncState {
            inode,
            attributes: (bits & 1 != 0).then_some(attributes),
            is_written: bits & 2 != 0,
            now: (bits & 4 != 0).then_some(location),
            next: (bits & 8 != 0).then_some(next),
            partial: (bits & 16 != 0).then_some(location),
        };
        let (entry, backing) = (Inode(others[2]), Inode(others[3]));
        let dirty = DirtyName { parent: inode, name, entry, mode: m, backed_inode: backing };
        let mut buffer = vec![0; 64 * 1024];
        let bytes = encode(&mut buffer, |to| [sync_state, sync_state].iter().for_each(|it| it.put(to)));
        prop_assert_eq!(listed::<SyncState>(bytes).collect::<Vec<_>>(), [sync_state, sync_state]);
        prop_assert!(bytes.len() / 2 <= SyncState::BYTES_MAX || name.len() > 255);
        prop_assert_eq!(listed::<SyncState>(&bytes[..bytes.len() - 1]).count(), 1);
        let mut buffer = vec![0; 64 * 1024];
        let bytes = encode(&mut buffer, |to| [dirty, dirty].iter().for_each(|it| it.put(to)));
        prop_assert_eq!(listed::<DirtyName>(bytes).collect::<Vec<_>>(), [dirty, dirty]);
        prop_assert!(bytes.len() / 2 <= DirtyName::BYTES_MAX || name.len() > 255);
        let status = DirtyStatus { number: words[0], names: words[1], inodes: words[2] };
        let mut buffer = [0; DirtyStatus::BYTES];
        let bytes = encode(&mut buffer, |to| status.put(to));
        prop_assert_eq!(DirtyStatus::take(&mut Reader::new(bytes)), Ok(status));
        request_round_trip(Request::Writing { inode, location });
        request_round_trip(Request::Wrote { inode, location });
        request_round_trip(Request::NotePartial { inode, is_new: bits & 1, location });
        request_round_trip(Request::NameWritten { parent: inode, name, from: entry, to: backing });
        request_round_trip(Request::DirtyNames { parent: inode, name });
        let place = NamePlace { parent: entry, hash: others[1], collision: bits };
        request_round_trip(place.request(name));
        let found = FoundName { parent: inode, inode: entry, mode: m, name };
        let mut buffer = vec![0; 64 * 1024];
        let bytes = encode(&mut buffer, |to| {
            place.put(to);
            [found, found].iter().for_each(|it| it.put(to));
        });
        let mut reader = Reader::new(bytes);
        prop_assert_eq!(NamePlace::take(&mut reader), Ok(place));
        prop_assert_eq!(listed::<FoundName>(reader.rest()).collect::<Vec<_>>(), [found, found]);
        prop_assert!(bytes.len() / 2 <= FoundName::BYTES_MAX + 17 || name.len() > 255);
    }

    /// The writeback mode of a directory is independent of its other flags.
    #[test]
    fn writeback_mode_is_independent_of_other_flags(attributes in attributes(), value in 0u8..4) {
        let layout = attributes.layout;
        use wire::attributes::flag::WRITEBACK;
        let flags = layout.flags_with_writeback(value);
        prop_assert_eq!(Layout { flags, ..layout }.writeback(), value);
        prop_assert_eq!(flags & !WRITEBACK, layout.flags & !WRITEBACK);
        prop_assert!(layout.writeback() < 8);
    }
}

proptest! {
    /// The words of attributes are their encoded bytes.
    #[test]
    fn attributes_survive_as_words(attributes in attributes()) {
        let words = attributes.words();
        prop_assert_eq!(Attributes::from_words(&words), attributes);
        let mut bytes = [0; wire::attributes::ATTRIBUTES_BYTES];
        attributes.encode(&mut Writer::new(&mut bytes));
        let all: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        prop_assert_eq!(&all[..], &bytes[..]);
    }
}

proptest! {
    #[test]
    fn requests_survive(
        a in any::<u64>(), b in any::<u64>(), c in any::<u64>(), m in any::<u32>(),
        name in proptest::collection::vec(any::<u8>(), 0..300),
        value in proptest::collection::vec(any::<u8>(), 0..300),
        attributes in attributes(),
    ) {
        let (inode, parent) = (Inode(a), Inode(b));
        let (name, value) = (&name[..], &value[..]);
        let layout = attributes.layout;
        request_round_trip(Request::Lookup { parent, name });
        request_round_trip(Request::SetAttributes {
            inode, mask: m, mode: m, uid: m, gid: m, size: c, accessed: a, modified: b,
        });
        request_round_trip(Request::Create {
            parent, name, mode: m, device: c, flags: m, layout, target: value,
        });
        request_round_trip(Request::Rename {
            parent, name, new_parent: inode, new_name: value, flags: m,
        });
        request_round_trip(Request::SetXattr { inode, name, value, flags: m });
        request_round_trip(Request::WriteInline { inode, offset: c, bytes: value });
        request_round_trip(Request::Lock {
            inode, owner: b, party: a, pid: m, kind: 1, flags: 2, start: a, end: c,
        });
        request_round_trip(Request::MapExtents {
            inode, stripe_log2: 22, allocate: 1, offset: b, length: c, preallocate: a,
        });
        request_round_trip(Request::Walk { directory: inode, from: 1, names: name });
        let (home, stripe_log2, offset, length, units) = (layout.place, 22, b, m, c);
        request_round_trip(Request::WriteCopies {
            home, inode, stripe_log2, offset, length, unit_epoch: c,
        });
        request_round_trip(Request::ReadCopy { home, inode, stripe_log2, offset, length });
        request_round_trip(Request::ClearCopies { home, units, size: a, inodes: value });
        request_round_trip(Request::KnownLoss { inode });
        request_round_trip(Request::GiveUpCopies { inode });
        request_round_trip(Request::CopyState { inode });
        request_round_trip(Request::LostFiles { from: inode, per_target: home, units: value });
        request_round_trip(Request::Remove { inodes: value });
        prop_assert_eq!(removed(value).count(), value.len() / 8);
        let inodes: Vec<u8> = [a, b, c].iter().flat_map(|inode| inode.to_le_bytes()).collect();
        prop_assert_eq!(removed(&inodes).collect::<Vec<_>>(), [inode, parent, Inode(c)]);
        request_round_trip(Request::Space {});
        reply_round_trip(Reply::Attributes { attributes });
        reply_round_trip(Reply::Contents { size: c, bytes: value });
        let (leased, term, revocation) = (3, 4, 5);
        reply_round_trip(Reply::Walked { absent: 1, leased, term, revocation, chain: value });
        reply_round_trip(Reply::Refused { errno: Errno(m as u16) });
        reply_round_trip(Reply::Entries { more: 1, next: 9, entries: name });
    }

    #[test]
    fn headers_survive(
        words in any::<[u64; 3]>(), shorts in any::<[u16; 3]>(), ids in any::<[u32; 2]>(),
        groups in proptest::collection::vec(any::<u32>(), 0..=16),
    ) {
        let mut caller = Credentials::of(ids[0], ids[1]);
        caller.group_count = groups.len() as u8;
        caller.groups[..groups.len()].copy_from_slice(&groups);
        let job = JobWord { user: ids[0], number: ids[1], dirty_mib_max: ids[0] ^ ids[1] };
        let header = Header {
            shard: shorts[0], daemon: shorts[1], epoch: words[0], client_id: words[1],
            sequence: words[2], host: shorts[2], mount: shorts[2] as u8, job, caller,
        };
        let mut buffer = [0; 256];
        let bytes = encode(&mut buffer, |to| header.encode(to));
        prop_assert_eq!(Header::decode(&mut Reader::new(bytes)), Ok(header));
    }

    #[test]
    fn any_bytes_are_decoded_safely(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        come_back(&bytes);
        if let Ok(extent) = Extent::take(&mut Reader::new(&bytes)) {
            prop_assert!(extent.length() <= 1 << wire::limits::STRIPE_LOG2_MAX);
        }
    }

    /// A message that was changed on its way is refused, or is another valid message.
    #[test]
    fn altered_messages_are_refused_or_decode(
        kind in 0usize..9, number: u64, changes in proptest::collection::vec(any::<(usize, u8)>(), 0..6),
        name in proptest::collection::vec(any::<u8>(), 0..40), attributes in attributes(), cut: usize,
    ) {
        let (inode, name, layout) = (Inode(number), &name[..], attributes.layout);
        let mut buffer = [0; 512];
        let bytes = encode(&mut buffer, |to| match kind {
            0 => Request::Rename { parent: inode, name, new_parent: inode, new_name: name, flags: 1 }
                .encode(to),
            1 => Request::Create {
                parent: inode, name, mode: 1, device: number, flags: 2, layout, target: name,
            }.encode(to),
            2 => Reply::Created { attributes }.encode(to),
            3 => Reply::Entries { more: 1, next: 9, entries: name }.encode(to),
            4 => Welcome { workers: 3, client_id: number, ..Welcome::default() }.encode(to),
            5 => DirectoryEntry { hash: number, inode, mode: 7, name }.put(to),
            6 => Extent { start: number, slot: 1, location: number, length_log2: 20, tier: 1 }.put(to),
            7 => Header {
                shard: 1, daemon: 2, epoch: number, client_id: number, sequence: 3, host: 4, mount: 5,
                job: JobWord { user: 1, number: 2, dirty_mib_max: 3 }, caller: Credentials::of(5, 6),
            }.encode(to),
            _ => attributes.encode(to),
        });
        let mut bytes = bytes.to_vec();
        for (at, to) in changes {
            let length = bytes.len();
            bytes[at % length] = to;
        }
        bytes.truncate(bytes.len().saturating_sub(cut % 64 / 8 * (cut % 2)));
        come_back(&bytes);
    }

    #[test]
    fn a_writer_without_space_reports_it(length in 0usize..40) {
        let mut buffer = vec![0; length];
        let mut writer = Writer::new(&mut buffer);
        Request::Lookup { parent: Inode(1), name: b"a-name-of-some-length" }.encode(&mut writer);
        prop_assert_eq!(writer.finish().is_ok(), length >= 1 + 8 + 4 + 21);
    }
}

/// The first class that matches decides, and root may not execute what nobody may execute.
#[test]
fn permissions_follow_access() {
    use wire::attributes::want;
    let file = |permissions: u32| Attributes {
        mode: wire::attributes::mode::REGULAR | permissions,
        uid: 10,
        gid: 20,
        ..Attributes::default()
    };
    let owner = Credentials::of(10, 99);
    let group = Credentials::of(11, 20);
    let other = Credentials::of(11, 99);
    assert_eq!(file(0o077).permits(&owner, want::READ), Err(Errno::EACCES));
    assert_eq!(file(0o707).permits(&group, want::READ), Err(Errno::EACCES));
    assert_eq!(file(0o070).permits(&group, want::READ | want::WRITE | want::EXECUTE), Ok(()));
    assert_eq!(file(0o001).permits(&other, want::EXECUTE), Ok(()));
    assert_eq!(file(0o000).permits(&Credentials::ROOT, want::READ | want::WRITE), Ok(()));
    assert_eq!(file(0o666).permits(&Credentials::ROOT, want::EXECUTE), Err(Errno::EACCES));
}

/// Numbered names of directories whose inode numbers are neighbours, in a shard or in several, have
/// keys of their own. Each half alone has them, too.
#[test]
fn names_of_neighbouring_directories_have_keys_of_their_own() {
    use std::collections::BTreeSet;
    let inodes =
        (0..32).flat_map(|shard| (1..5).map(move |n| Inode::new(wire::ShardIndex(shard), n)));
    let (mut upper, mut lower) = (BTreeSet::new(), BTreeSet::new());
    for inode in inodes {
        for number in 0..2000 {
            for name in [format!("{number}"), format!("0f{number}"), format!("a-file-{number}")] {
                let key = wire::hash::entry_key(inode, name.as_bytes());
                assert!(upper.insert((key >> 64) as u64), "{inode:?} {name}");
                assert!(lower.insert(key as u64), "{inode:?} {name}");
            }
        }
    }
}
