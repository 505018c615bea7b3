//! A log as a start finds it: any bytes as the file, or records with right checksums in any order,
//! torn and damaged. A replay returns records and an end, or the position of the damage; after an
//! end the log accepts more, and the next replay returns all of it. A salvage of the same file goes on
//! behind the damage, changes nothing while it reads, and returns at least what a replay did.
//!
//! The first byte of the input chooses: 0 means that the bytes are the file, else they describe
//! one.
#![no_main]

use forebay_fuzz::write_seeds;
use libfuzzer_sys::fuzz_target;
use store::fault::FaultyFiles;
use store::journal::{Damage, Options, Progress, Replay, Sync};
use store::medium::{Files as _, Medium as _};
use store::record::{self, Head, Record};
use store::{Expected, Identity, Journal, Kind};

const NAME: &str = "log-00000001";
const ME: Identity = Identity::of_daemon(7, 0);
const OPTIONS: Options = Options {
    identity: ME,
    expected: Expected::Existing,
    progress: Progress { generation: 0, sequence: 0 },
    damage: Damage::Refuse,
    sync: Sync::Never,
    step_bytes: 64 << 10,
};

fn head() -> Vec<u8> {
    record::encode_head(&Head { generation: 1, identity: ME }).to_vec()
}

fn file(bytes: &[u8]) -> FaultyFiles {
    let mut files = FaultyFiles::new();
    let mut file = files.create(NAME).expect("made");
    file.grow(bytes.len() as u64).expect("grown");
    file.write(0, bytes).expect("written");
    files
}

/// All records, and the journal that continues after them.
fn replay(files: &FaultyFiles) -> store::Result<(Vec<Vec<u8>>, Journal<FaultyFiles>)> {
    let mut replay = Replay::open(files.clone(), OPTIONS)?;
    let mut records = Vec::new();
    while let Some(record) = replay.next()? {
        records.push(record.to_vec());
    }
    Ok((records, replay.into_journal()?))
}

/// The records that a salvage keeps. It refuses nothing but another log's file.
fn salvage(files: &FaultyFiles) -> Vec<Vec<u8>> {
    let options = Options { damage: Damage::Skip, ..OPTIONS };
    let mut replay = Replay::inspect(files.clone(), options).expect("salvaged");
    let mut records = Vec::new();
    while let Some(record) = replay.next().expect("salvaged") {
        records.push(record.to_vec());
    }
    let gaps = replay.gaps();
    assert!(gaps.windows(2).all(|two| two[0].last < two[1].first), "{gaps:?}");
    records
}

fn record(sequence: u64, unsynced: u32, generation: u32, bytes: &[u8]) -> Vec<u8> {
    let header = record::encode_header(&Record { sequence, unsynced, generation, bytes });
    let mut stored = [&header, bytes].concat();
    stored.resize(record::bytes_stored(bytes.len()) as usize, 0);
    stored
}

/// Builds a file from commands of four bytes: an operation and three numbers.
fn described(commands: &[u8]) -> Vec<u8> {
    let mut bytes = head();
    let mut sequence = 0u64;
    for command in commands.chunks_exact(4) {
        let &[what, a, b, c] = command else { continue };
        match what % 8 {
            // The record that must come next.
            0..=2 => {
                sequence += 1;
                bytes.extend(record(sequence, u32::from(b), 1, &vec![c; usize::from(a) + 1]));
            }
            // A record with another number, of another file, or within the content of another.
            3 => bytes.extend(record(sequence.wrapping_add(a.into()), b.into(), 1, &[c; 9])),
            4 => bytes.extend(record(sequence + 1, b.into(), c.into(), &[a; 5])),
            5 => {
                let inner = record(sequence + u64::from(a), b.into(), 1, &[c; 17]);
                sequence += 1;
                bytes.extend(record(sequence, 0, 1, &inner));
            }
            // Zeros, and a byte that changed.
            6 => bytes.extend(vec![0; 8 * usize::from(a)]),
            _ => {
                let at = usize::from(a) << 8 | usize::from(b);
                let at = bytes.len().saturating_sub(1 + at);
                bytes[at] ^= c;
            }
        }
    }
    bytes
}

fn seeds() -> Vec<Vec<u8>> {
    let plain = [head(), record(1, 0, 1, b"one"), record(2, 0, 1, b"two")];
    let as_file = |bytes: Vec<u8>| [vec![0], bytes].concat();
    let commands: [&[u8]; 4] = [
        &[1, 0, 9, 0, 1, 0, 200, 1, 2, 6, 90, 0, 0],
        &[1, 0, 9, 0, 1, 7, 0, 12, 9, 0, 3, 0, 4, 0, 3, 2, 4],
        &[1, 0, 9, 0, 1, 6, 4, 0, 0, 3, 2, 0, 7],
        &[1, 5, 2, 0, 1, 4, 0, 1, 2, 0, 4, 3, 2],
    ];
    let whole = as_file(plain.concat());
    let torn = whole[..whole.len() - 7].to_vec();
    commands.into_iter().map(<[u8]>::to_vec).chain([whole, torn]).collect()
}

fuzz_target!(init: write_seeds(seeds()), |data: &[u8]| {
    let Some((&kind, rest)) = data.split_first() else { return };
    let bytes = if kind == 0 { rest.to_vec() } else { described(rest) };
    let _ = (record::decode_record(&bytes), record::decode_head(&bytes));
    let files = file(&bytes);
    let is_foreign = |head: Head| head.identity != ME;
    if !record::decode_head(&bytes).is_some_and(is_foreign) {
        let kept = salvage(&files);
        assert_eq!(files.contents(NAME).as_deref(), Some(&bytes[..]), "a salvage reads only");
        if let Ok((records, _)) = replay(&file(&bytes)) {
            assert_eq!(kept, records, "nothing is damaged");
        }
    }
    match replay(&files) {
        Err(error) => {
            if error.kind == Kind::Foreign {
                return;
            }
            let Kind::Corrupt { offset, .. } = error.kind else { panic!("{error}") };
            assert!(offset <= bytes.len() as u64);
            let text = error.to_string();
            assert!(text.contains(NAME) && text.contains(&format!("offset={offset}")), "{text}");
            // A failed replay changes nothing.
            assert_eq!(replay(&files).map(|(records, _)| records), Err(error));
        }
        Ok((mut records, mut journal)) => {
            // The file may end within the zeros after the last record.
            let stored = records.iter().map(|one| record::bytes_stored(one.len())).sum::<u64>();
            let most = bytes.len() as u64 + record::ALIGN_BYTES - 1;
            assert!(stored + record::HEAD_BYTES as u64 <= most);
            journal.append(b"more").expect("room");
            records.push(b"more".to_vec());
            let again = replay(&files.after_kill()).expect("an opened file opens again");
            assert_eq!(again.0, records);
        }
    }
});
