//! An owner and a follower whose link takes long, while every operation waits.

use cluster::change::{Change, Tenure};
use cluster::membership::{Follower, Seat, ServiceIndex};
use cluster::shipping::Parcel;
use cluster::shipping::follower::{FollowerOutput, Standby};
use cluster::shipping::owner::{Owner, OwnerOutput};
use wire::DaemonIndex;

const MILLI: i64 = 1_000_000;

fn seat(of: Tenure) -> Seat {
    Seat {
        epoch: of.epoch,
        owner: Some(DaemonIndex(0)),
        is_successor: false,
        last_owner: DaemonIndex(0),
        followers: vec![Follower { daemon: DaemonIndex(1), since: 1, is_in_sync: false }],
    }
}

#[test]
fn a_follower_on_a_slow_link_gets_in_sync() {
    let of = Tenure { service: ServiceIndex(0), epoch: 1 };
    let mut owner = Owner::new(of, None, 0, 0);
    let (mut standby, mut out) = (Standby::default(), Vec::new());
    let (mut received, mut written) = (Vec::new(), Vec::new());
    owner.follow(&seat(of), 0, &mut out);
    for trip in 0..100 {
        // More operations than parcels that may be on their way.
        for number in 0..20 {
            let record = vec![trip as u8, number];
            owner.append(&record);
            written.push(record);
            owner.wait(written.len() as u64);
            owner.tick(trip * 20 * MILLI + i64::from(number) * MILLI, &mut out);
        }
        for output in std::mem::take(&mut out) {
            match output {
                OwnerOutput::Slice(lane) => {
                    let mut batch = Vec::new();
                    for record in &written {
                        cluster::shipping::put_record(&mut batch, record);
                    }
                    owner.slice(lane, &batch, true);
                }
                OwnerOutput::Send { parcel, .. } => {
                    let parcel = Parcel::from_bytes(&parcel).expect("an owner wrote it");
                    let mut outputs = Vec::new();
                    standby.receive(&parcel, of.epoch, &mut outputs);
                    for output in outputs {
                        match output {
                            FollowerOutput::Records(batch) | FollowerOutput::Slice(batch) => {
                                let records = cluster::shipping::records(batch);
                                received.extend(records.map(<[u8]>::to_vec));
                            }
                            FollowerOutput::Receipt(receipt) => {
                                let now = (trip + 1) * 20 * MILLI;
                                owner.receipt(DaemonIndex(1), &receipt, now, &mut out);
                            }
                            FollowerOutput::Begin | FollowerOutput::Complete => {}
                        }
                    }
                }
                OwnerOutput::Propose(Change::InSync { .. }) => {
                    let missing = written.iter().filter(|it| !received.contains(it)).count();
                    assert!(missing <= 40, "{missing} of {} are missing", written.len());
                    return;
                }
                _ => {}
            }
        }
    }
    panic!("after {} operations it has {} records", written.len(), received.len());
}
