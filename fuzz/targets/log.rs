//! A log as a start finds it: any bytes as the file, or records with right checksums in any order,
//! torn and damaged. A replay gives records and an end, or says where the file is damaged; after
//! an end the log takes more, and the next replay gives all of it.
//!
//! The first byte of the input chooses: 0 the bytes are the file, else they describe one.
#![no_main]

use forebay_fuzz::sow;
use libfuzzer_sys::fuzz_target;
use store::fault::FaultyFiles;
use store::journal::{Options, Replay, Sync};
use store::medium::{Files as _, Medium as _};
use store::record::{self, Record};
use store::{Journal, Kind};

const NAME: &str = "log-00000001";
const OPTIONS: Options = Options { sync: Sync::Never, step_bytes: 64 << 10 };

fn file(bytes: &[u8]) -> FaultyFiles {
    let mut files = FaultyFiles::new();
    let mut file = files.create(NAME).expect("made");
    file.grow(bytes.len() as u64).expect("grown");
    file.write(0, bytes).expect("written");
    files
}

/// All records, and the journal that goes on behind them.
fn replay(files: &FaultyFiles) -> store::Result<(Vec<Vec<u8>>, Journal<FaultyFiles>)> {
    let mut replay = Replay::open(files.clone(), OPTIONS)?;
    let mut records = Vec::new();
    while let Some(record) = replay.next()? {
        records.push(record.to_vec());
    }
    Ok((records, replay.into_journal()?))
}

fn record(sequence: u64, unsynced: u32, generation: u32, bytes: &[u8]) -> Vec<u8> {
    let header = record::encode_header(&Record { sequence, unsynced, generation, bytes });
    let mut stored = [&header, bytes].concat();
    stored.resize(record::bytes_stored(bytes.len()) as usize, 0);
    stored
}

/// Builds a file from commands of four bytes: what, and three numbers.
fn described(commands: &[u8]) -> Vec<u8> {
    let mut bytes = record::encode_head(1).to_vec();
    let mut sequence = 0u64;
    for command in commands.chunks_exact(4) {
        let &[what, a, b, c] = command else { continue };
        match what % 8 {
            // The record that must come next.
            0..=2 => {
                sequence += 1;
                bytes.extend(record(sequence, u32::from(b), 1, &vec![c; usize::from(a) + 1]));
            }
            // One with another number, of another file, or within the content of another.
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
    let plain = [record::encode_head(1).to_vec(), record(1, 0, 1, b"one"), record(2, 0, 1, b"two")];
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

fuzz_target!(init: sow(seeds()), |data: &[u8]| {
    let Some((&kind, rest)) = data.split_first() else { return };
    let bytes = if kind == 0 { rest.to_vec() } else { described(rest) };
    let _ = (record::decode_record(&bytes), record::decode_head(&bytes));
    let files = file(&bytes);
    match replay(&files) {
        Err(error) => {
            let Kind::Corrupt { offset, .. } = error.kind else { panic!("{error}") };
            assert!(offset <= bytes.len() as u64);
            let text = error.to_string();
            assert!(text.contains(NAME) && text.contains(&format!("offset={offset}")), "{text}");
            // Nothing was changed by looking.
            assert_eq!(replay(&files).map(|(records, _)| records), Err(error));
        }
        Ok((mut records, mut journal)) => {
            // The file may end within the zeros behind the last record.
            let stored = records.iter().map(|one| record::bytes_stored(one.len())).sum::<u64>();
            let most = bytes.len() as u64 + record::ALIGN_BYTES - 1;
            assert!(stored + record::HEAD_BYTES as u64 <= most);
            journal.append(b"more").expect("room");
            records.push(b"more".to_vec());
            let again = replay(&files.after_kill()).expect("what was opened opens");
            assert_eq!(again.0, records);
        }
    }
});
