//! Admission: from bytes that a client or peer wrote to a checked request.

use crate::check;
use crate::session::PeerCredentials;
use wire::codec::{Malformed, Reader, Writer};
use wire::errno::{Errno, Result};
use wire::limits::{FRAME_BYTES_MAX, SLOT_BYTES};
use wire::{Header, JobWord, Request};

/// A request that passed all checks.
#[derive(Clone, Copy, Debug)]
pub struct Admitted<'a> {
    /// The header. Fields that the sender could forge are corrected.
    pub header: Header,
    /// The decoded request.
    pub request: Request<'a>,
    /// The encoded request, as received.
    pub bytes: &'a [u8],
}

/// Longest encoded header: 43 fixed bytes and the credentials.
const HEADER_BYTES_MAX: usize = 128;

impl Admitted<'_> {
    /// Header and request as one buffer, for a peer or another thread.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut head = [0; HEADER_BYTES_MAX];
        let mut writer = Writer::new(&mut head);
        self.header.encode(&mut writer);
        let length = writer.finish().unwrap_or(0);
        let mut bytes = Vec::with_capacity(length + self.bytes.len());
        bytes.extend_from_slice(head.get(..length).unwrap_or_default());
        bytes.extend_from_slice(self.bytes);
        bytes
    }
}

/// Maximum bytes of data in a reply to a client: a slot less the fields in front of the data.
const ANSWER_BYTES_MAX: u64 = SLOT_BYTES as u64 - 64;

/// Admits a request of a session of this host.
///
/// # Errors
/// `EPROTO` if the bytes are not a request; `EINVAL` and others if a field is out of its bounds.
pub fn admit_from_session<'a>(
    bytes: &'a [u8],
    peer: &PeerCredentials,
    host: u16,
) -> Result<Admitted<'a>> {
    let mut admitted = admit(bytes)?;
    if check::answer_bytes(&admitted.request) > ANSWER_BYTES_MAX {
        return Err(Errno::EINVAL);
    }
    if let Request::LocateBacking { .. }
    | Request::IsClean { .. }
    | Request::KnownLoss { .. }
    | Request::LostFiles { .. }
    | Request::Names { .. } = admitted.request
    {
        // The reply reveals names of directories that the sender may not search.
        return Err(Errno::EPERM);
    }
    if let Request::WriteCopies { .. } | Request::ReadCopy { .. } | Request::ClearCopies { .. } =
        admitted.request
    {
        // A session asks a target, and its daemon passes that on.
        return Err(Errno::EPERM);
    }
    admitted.header.caller = peer.credentials(&admitted.header.caller);
    admitted.header.host = host;
    // The daemon says it, once it knows whether the request takes memory.
    admitted.header.job = JobWord::NONE;
    if is_writeback_request(&admitted.request) && !is_own_identity(&admitted.header, peer) {
        return Err(Errno::EPERM);
    }
    Ok(admitted)
}

/// True for requests that only the writeback daemon sends.
const fn is_writeback_request(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::SyncState { .. }
            | Request::DirtyNames { .. }
            | Request::DirtyInodes { .. }
            | Request::AwaitDirty { .. }
            | Request::AwaitCleanRequests { .. }
            | Request::CleanRequests {}
            | Request::Settled { .. }
            | Request::Writing { .. }
            | Request::Wrote { .. }
            | Request::NotWritten { .. }
            | Request::Gone { .. }
            | Request::NameWritten { .. }
            | Request::NotePartial { .. }
            | Request::ForgetPartial { .. }
            | Request::BeginWriteback { .. }
            | Request::EndWriteback { .. }
    )
}

/// True unless a mount acts for another user, or root as another user. Only the instance's owner
/// and root get a session.
const fn is_own_identity(header: &Header, peer: &PeerCredentials) -> bool {
    header.mount == 0 && !header.caller.is_checked && header.caller.uid == peer.uid
}

/// Admits a request of another daemon, which has authenticated itself as a member of the instance
/// and vouches for the caller.
///
/// # Errors
/// As `admit_from_session`.
pub fn admit_from_peer(bytes: &[u8]) -> Result<Admitted<'_>> {
    let admitted = admit(bytes)?;
    if check::answer_bytes(&admitted.request) > (FRAME_BYTES_MAX - SLOT_BYTES) as u64 {
        return Err(Errno::EINVAL);
    }
    Ok(admitted)
}

fn admit(bytes: &[u8]) -> Result<Admitted<'_>> {
    let protocol = |_: Malformed| Errno::EPROTO;
    let mut reader = Reader::new(bytes);
    let header = Header::decode(&mut reader).map_err(protocol)?;
    let bytes = reader.rest();
    let request = Request::decode(&mut reader).map_err(protocol)?;
    reader.end().map_err(protocol)?;
    check::request(&header, &request)?;
    Ok(Admitted { header, request, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::limits::{BOUNCE_BUFFER_BYTES, REMOVE_COUNT_MAX, STRIPE_LOG2_MIN};
    use wire::losses::LostUnits;
    use wire::names::NamePlace;
    use wire::{Credentials, Inode};

    fn encoded(request: &Request<'_>, shard: u16) -> Vec<u8> {
        let caller = Credentials::of(7, 8);
        let header = Header {
            shard,
            daemon: 1,
            epoch: 2,
            client_id: 3,
            sequence: 4,
            host: 5,
            mount: 6,
            job: JobWord { user: 7, number: 1, dirty_mib_max: 1 },
            caller,
        };
        let mut bytes = [0; SLOT_BYTES];
        let mut writer = Writer::new(&mut bytes);
        header.encode(&mut writer);
        request.encode(&mut writer);
        let length = writer.finish().expect("fits");
        bytes[..length].to_vec()
    }

    const USER: PeerCredentials = PeerCredentials { uid: 1000, gid: 100, pid: 9 };

    fn admit_user(request: &Request<'_>, shard: u16) -> Result<()> {
        admit_from_session(&encoded(request, shard), &USER, 6).map(drop)
    }

    #[test]
    fn a_session_speaks_for_itself_and_a_peer_for_others() {
        let request = Request::Lookup { parent: Inode::ROOT, name: b"a" };
        let bytes = encoded(&request, 0);
        let admitted = admit_from_session(&bytes, &USER, 6).expect("right");
        assert_eq!((admitted.header.caller.uid, admitted.header.host), (1000, 6));
        assert_eq!(admitted.header.job, JobWord::NONE);
        assert_eq!(admitted.request, request);
        let again = admitted.encode();
        let by_peer = admit_from_peer(&again).expect("right");
        assert_eq!((by_peer.header, by_peer.request), (admitted.header, request));
    }

    /// A daemon asks only its own target where spilled extents are (`data::LOCATE`).
    #[test]
    fn nobody_locates_extents_by_a_request() {
        for (allocate, outcome) in [(0, Ok(())), (2, Ok(())), (3, Err(Errno::EINVAL))] {
            let (inode, stripe_log2) = (Inode::ROOT, STRIPE_LOG2_MIN);
            let (offset, length, preallocate) = (0, 4096, 0);
            let request =
                Request::MapExtents { inode, stripe_log2, allocate, offset, length, preallocate };
            assert_eq!(admit_user(&request, Header::TARGET), outcome);
            let bytes = encoded(&request, Header::TARGET);
            assert_eq!(admit_from_peer(&bytes).map(drop), outcome);
        }
    }

    #[test]
    fn each_invalid_field_is_refused_with_its_errno() {
        let long = [b'x'; 256];
        let parent = Inode::ROOT;
        let cases: [(&[u8], Errno); 5] = [
            (b"", Errno::EINVAL),
            (b"..", Errno::EINVAL),
            (b"a/b", Errno::EINVAL),
            (b"a\0", Errno::EINVAL),
            (&long, Errno::ENAMETOOLONG),
        ];
        for (name, errno) in cases {
            assert_eq!(admit_user(&Request::Unlink { parent, name }, 0), Err(errno));
        }
        let inode = Inode::ROOT;
        let beyond = Request::Extend { inode, size: 1 << 63 };
        assert_eq!(admit_user(&beyond, 0), Err(Errno::EFBIG));
        let other_shard = Request::GetAttributes { inode };
        assert_eq!(admit_user(&other_shard, 1), Err(Errno::EINVAL));
        assert_eq!(admit_user(&other_shard, 5000), Err(Errno::EINVAL));
        let directory = inode;
        for (from, names, outcome) in [
            (0, &b"a//b/c"[..], Ok(())),
            (1, b"a", Ok(())),
            (2, b"a", Err(Errno::EINVAL)),
            (0, b"", Ok(())),
            (0, b"///", Ok(())),
            (1, b"", Err(Errno::EINVAL)),
            (1, b"///", Err(Errno::EINVAL)),
            (0, b"a/../b", Err(Errno::EINVAL)),
            (0, b"1/2/3/4/5/6/7/8/9", Err(Errno::EINVAL)),
            (0, &long, Err(Errno::ENAMETOOLONG)),
        ] {
            assert_eq!(admit_user(&Request::Walk { directory, from, names }, 0), outcome);
        }
        let by_shard = |from| admit_user(&Request::Walk { directory, from, names: b"a" }, 1);
        assert_eq!((by_shard(0), by_shard(1)), (Err(Errno::EINVAL), Ok(())));
        let target = Request::Usage { inode, end: 1 };
        assert_eq!(admit_user(&target, 0), Err(Errno::EINVAL));
        assert_eq!(admit_user(&target, Header::TARGET), Ok(()));
        let remove = |inodes: &[u8]| admit_user(&Request::Remove { inodes }, Header::TARGET);
        let some = [1; 8 * REMOVE_COUNT_MAX + 8];
        for (length, outcome) in [
            (0, Err(Errno::EINVAL)),
            (8, Ok(())),
            (12, Err(Errno::EINVAL)),
            (8 * REMOVE_COUNT_MAX, Ok(())),
            (8 * REMOVE_COUNT_MAX + 8, Err(Errno::EINVAL)),
        ] {
            assert_eq!(remove(&some[..length]), outcome, "{length} bytes");
        }
        assert_eq!(remove(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Err(Errno::EINVAL));
        let large = Request::Read { inode, stripe_log2: 20, offset: 0, length: 1 << 20 };
        assert_eq!(admit_user(&large, Header::TARGET), Err(Errno::EINVAL));
        assert!(admit_from_peer(&encoded(&large, Header::TARGET)).is_ok());
        let odd = Request::Read { inode, stripe_log2: 80, offset: 0, length: 1 };
        assert_eq!(admit_user(&odd, Header::TARGET), Err(Errno::EINVAL));
    }

    #[test]
    fn writeback_requests_through_a_mount_are_refused() {
        let request = Request::DirtyInodes { after: Inode::NONE };
        let admitted = |mount: u8, caller: Credentials, by: &PeerCredentials| {
            let mut bytes = [0; 256];
            let mut writer = Writer::new(&mut bytes);
            let (shard, daemon, epoch, client_id) = (0, 1, 2, 3);
            let job = JobWord::NONE;
            Header { shard, daemon, epoch, client_id, sequence: 4, host: 5, mount, job, caller }
                .encode(&mut writer);
            request.encode(&mut writer);
            let length = writer.finish().expect("fits");
            admit_from_session(&bytes[..length], by, 6).map(drop)
        };
        let root = PeerCredentials { uid: 0, gid: 0, pid: 9 };
        let checked = Credentials { is_checked: true, ..Credentials::of(1000, 100) };
        assert_eq!(admitted(0, Credentials::of(1000, 100), &USER), Ok(()));
        assert_eq!(admitted(0, Credentials::ROOT, &root), Ok(()));
        assert_eq!(admitted(1, Credentials::of(1000, 100), &USER), Err(Errno::EPERM));
        assert_eq!(admitted(0, checked, &USER), Err(Errno::EPERM));
        assert_eq!(admitted(0, Credentials::of(1000, 100), &root), Err(Errno::EPERM));
        assert_eq!(
            admit_user(&Request::LocateBacking { inode: Inode::ROOT }, 0),
            Err(Errno::EPERM)
        );
        assert_eq!(admit_user(&NamePlace::FIRST.request(&[]), 0), Err(Errno::EPERM));
        let of_daemon = Request::KnownLoss { inode: Inode::ROOT };
        assert_eq!(admit_user(&of_daemon, 0), Err(Errno::EPERM));
        assert!(admit_from_peer(&encoded(&of_daemon, 0)).is_ok());
        assert_eq!(admit_from_peer(&encoded(&of_daemon, 1)).map(drop), Err(Errno::EINVAL));
    }

    #[test]
    fn requests_for_lost_files_are_those_of_daemons() {
        let row = [1; LostUnits::BYTES];
        let asked = |per_target, units| {
            let (from, shard) = (Inode::NONE, 5);
            encoded(&Request::LostFiles { from, per_target, units }, shard)
        };
        let of_session = admit_from_session(&asked(64, &row), &USER, 6).map(drop);
        assert_eq!(of_session, Err(Errno::EPERM));
        assert!(admit_from_peer(&asked(64, &row)).is_ok());
        for (per_target, units) in [(0, &row[..]), (65, &row[..]), (64, &row[1..]), (64, &row[..0])]
        {
            let refused = admit_from_peer(&asked(per_target, units)).map(drop);
            assert_eq!(refused, Err(Errno::EINVAL), "{per_target} {units:?}");
        }
    }

    #[test]
    fn requests_for_copies_are_those_of_daemons() {
        let (home, inode, stripe_log2, offset) = (0, Inode::ROOT, 22, 8);
        let read = |length, stripe_log2| {
            let request = Request::ReadCopy { home, inode, stripe_log2, offset, length };
            encoded(&request, Header::TARGET)
        };
        let of_session = admit_from_session(&read(9, 22), &USER, 6).map(drop);
        assert_eq!(of_session, Err(Errno::EPERM));
        assert!(admit_from_peer(&read(9, 22)).is_ok());
        let longest = BOUNCE_BUFFER_BYTES as u32;
        assert!(admit_from_peer(&read(longest, 22)).is_ok());
        for (length, log2) in [(0, 22), (longest + 1, 22), (9, STRIPE_LOG2_MIN - 1), (9, 64)] {
            let refused = admit_from_peer(&read(length, log2)).map(drop);
            assert_eq!(refused, Err(Errno::EINVAL), "{length} {log2}");
        }
        let (length, unit_epoch) = (9, 1);
        let write = Request::WriteCopies { home, inode, stripe_log2, offset, length, unit_epoch };
        assert_eq!(admit_user(&write, Header::TARGET), Err(Errno::EPERM));
        assert!(admit_from_peer(&encoded(&write, Header::TARGET)).is_ok());
        assert_eq!(admit_from_peer(&encoded(&write, 0)).map(drop), Err(Errno::EINVAL));
        let (units, size, number) = (1, 0, Inode::ROOT.0.to_le_bytes());
        let clear = |inodes| Request::ClearCopies { home, units, size, inodes };
        assert_eq!(admit_user(&clear(&number), Header::TARGET), Err(Errno::EPERM));
        assert!(admit_from_peer(&encoded(&clear(&number), Header::TARGET)).is_ok());
        let numbers =
            |copies: [u8; 2]| copies.map(|it| Inode::ROOT.with_copies(it).0.to_le_bytes()).concat();
        let two = numbers([2, 2]);
        assert!(admit_from_peer(&encoded(&clear(&two), Header::TARGET)).is_ok());
        // They are in other units.
        let mixed = numbers([2, 0]);
        for wrong in [&number[..7], &[0; 8], &[], &mixed[..]] {
            let refused = admit_from_peer(&encoded(&clear(wrong), Header::TARGET)).map(drop);
            assert_eq!(refused, Err(Errno::EINVAL), "{wrong:?}");
        }
    }

    #[test]
    fn trailing_bytes_are_refused() {
        let mut bytes = encoded(&Request::Space {}, Header::TARGET);
        bytes.push(0);
        assert_eq!(admit_from_peer(&bytes).map(drop), Err(Errno::EPROTO));
        assert_eq!(admit_from_peer(&[]).map(drop), Err(Errno::EPROTO));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = admit_from_session(&bytes, &USER, 0);
            let mut valid = encoded(&Request::Lookup { parent: Inode::ROOT, name: b"abc" }, 0);
            for (place, byte) in bytes.iter().enumerate() {
                let length = valid.len();
                valid[(place * 7 + usize::from(*byte)) % length] = *byte;
                let _ = admit_from_peer(&valid);
            }
        }
    }
}
