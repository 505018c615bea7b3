//! Bytes of peers and of files: whatever they are, nothing panics, and what is written is read again.

use crate::world::World;
use cluster::change::{Change, Following, LastAllowed, Tenure};
use cluster::exchange::Balancing;
use cluster::membership::{Membership, ServiceIndex, Unsuitable};
use cluster::shipping::{Contents, Lane, Parcel, Position, Receipt, put_record, records};
use encoding::{Decode as _, Encode as _};
use proptest::prelude::*;
use wire::DaemonIndex;

fn following(n: [u64; 4]) -> Following {
    let of = Tenure { service: ServiceIndex(n[0] as u32), epoch: n[1] };
    Following { of, follower: DaemonIndex(n[2] as u16), since: n[3] }
}

pub(crate) fn changes(n: [u64; 4]) -> [Change; 14] {
    let (of, daemon) = (following(n), DaemonIndex(n[2] as u16));
    let (is_on, is_asked) = (n[1].is_multiple_of(2), n[2].is_multiple_of(2));
    let to = Balancing { number: n[0], is_on, is_asked };
    let known = LastAllowed { epoch: n[1], version: n[0] };
    [
        Change::Down {
            daemon,
            incarnation: n[0],
            known: if n[3].is_multiple_of(2) { known } else { LastAllowed::UNKNOWN },
        },
        Change::Up {
            daemon,
            incarnation: n[0],
            domain: n[1] as u32,
            is_empty: n[3].is_multiple_of(2),
            known: if n[3].is_multiple_of(3) { known } else { LastAllowed::UNKNOWN },
        },
        Change::Leave { daemon },
        Change::AddFollower { of: of.of, follower: daemon },
        Change::DropFollower { of },
        Change::InSync { of },
        Change::HandOver { of },
        Change::Add { daemon, incarnation: n[0], domain: n[1] as u32 },
        Change::Left { daemon },
        Change::Resign { of },
        Change::Rehome { of: of.of, next: daemon },
        Change::Exchange {
            hot: of.of,
            cool: Tenure { service: ServiceIndex(n[3] as u32), epoch: n[1] },
        },
        Change::Balance { to },
        Change::AllowSingle,
    ]
}

proptest! {
    #[test]
    fn changes_survive_encoding(n: [u64; 4]) {
        for change in changes(n) {
            prop_assert_eq!(Change::from_bytes(&change.to_bytes()), Ok(change));
        }
    }

    /// Any changes, in any order: each is made or refused as a whole, and the result is encoded.
    #[test]
    fn any_changes_leave_a_membership(
        list in prop::collection::vec((prop::array::uniform4(0_u64..6), 0_usize..14), 0..60),
    ) {
        let mut membership = Membership::initial(&[0, 1, 2, 3], 5, 1, false).expect("a setup");
        for (n, kind) in list {
            let before = membership.clone();
            if membership.apply(&changes(n)[kind]).is_err() {
                prop_assert_eq!(&membership, &before);
            } else {
                prop_assert_eq!(membership.epoch, before.epoch + 1);
                // At once a second time it is late.
                let after = membership.clone();
                prop_assert!(membership.apply(&changes(n)[kind]).is_err());
                prop_assert_eq!(&membership, &after);
            }
            for (service, seat) in membership.services() {
                let earlier = before.seat(service).expect("services stay");
                prop_assert!(seat.epoch >= earlier.epoch);
                let is_same = seat.owner.is_none() || seat.owner == earlier.owner;
                prop_assert!(is_same || seat.epoch > earlier.epoch);
                let mut copies: Vec<_> = seat.followers.iter().map(|it| it.daemon).collect();
                copies.extend(seat.owner);
                copies.sort();
                copies.dedup();
                prop_assert_eq!(copies.len(), seat.followers.len() + usize::from(seat.owner.is_some()));
            }
            let bytes = membership.to_bytes();
            let decoded = Membership::from_bytes(&bytes);
            prop_assert_eq!(decoded.as_ref(), Ok(&membership));
        }
    }

    #[test]
    fn any_bytes_are_read(bytes: Vec<u8>) {
        let _ = Membership::from_bytes(&bytes);
        let _ = Change::from_bytes(&bytes);
        let _ = Receipt::from_bytes(&bytes);
        prop_assert!(records(&bytes).count() <= bytes.len());
        if let Ok(parcel) = Parcel::from_bytes(&bytes) {
            prop_assert_eq!(parcel.to_bytes(), bytes);
        }
    }

    #[test]
    fn parcels_survive_encoding(n: [u64; 4], list: Vec<Vec<u8>>) {
        let mut batch = Vec::new();
        list.iter().for_each(|record| put_record(&mut batch, record));
        prop_assert!(records(&batch).eq(list.iter().map(Vec::as_slice)));
        let lane = Lane { of: following(n).of, number: n[3] };
        let full = [Contents::Records(&batch), Contents::Slice(&batch)];
        let empty = [Contents::Ask, Contents::Snapshot, Contents::Complete];
        for contents in full.into_iter().chain(empty) {
            let parcel = Parcel { lane, number: n[0], first: n[1], records: n[2], contents };
            let bytes = parcel.to_bytes();
            prop_assert_eq!(Parcel::from_bytes(&bytes), Ok(parcel));
        }
        for stored in [None, Some(n[0] / 2)] {
            let known = Position { epoch: n[1], records: n[2], is_exact: n[3].is_multiple_of(2) };
            for position in [None, Some(known)] {
                let receipt = Receipt { lane, stored, position };
                prop_assert_eq!(Receipt::from_bytes(&receipt.to_bytes()), Ok(receipt));
            }
        }
    }
}

#[test]
fn changed_messages_of_peers_end_no_node() {
    let first = testkit::seed(1);
    for seed in first..first + testkit::rounds(20) {
        let daemons = 3 + (seed % 4) as u16;
        World::new(crate::setup(daemons, 1), seed).run_with_changed_messages(100);
    }
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let initial = |domains: &[u32], services, followers| {
        Membership::initial(domains, services, followers, false).err()
    };
    assert_eq!(initial(&[], 1, 0), Some(Unsuitable::Daemons));
    assert_eq!(initial(&[0, 1], 0, 0), Some(Unsuitable::Services));
    assert_eq!(initial(&[0, 1, 2, 3], 1, 3), Some(Unsuitable::Followers));
    assert_eq!(initial(&[7, 7], 2, 1), Some(Unsuitable::Domains { found: 1, needed: 2 }));
    assert_eq!(Membership::initial(&[7, 7], 2, 1, true).err(), None);
}
