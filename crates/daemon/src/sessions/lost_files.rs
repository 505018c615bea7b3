//! The files that lost bytes with all their copies, for `forebay lost`: any daemon answers for the whole
//! instance. Its table of units says which units have none of their bytes, all services say which
//! files have bytes there (`Request::LostFiles`), and then how they are called.
//!
//! Neither targets nor copies are asked: there are none. Services look at their tables alone, so a
//! million files take about as long as a listing of them.

use crate::host::activity::names::Names;
use crate::sessions::long_answers::LongAnswer;
use crate::shared::Shared;
use crate::units::{LossesNow, Units};
use config::control::{LostBytes, LostFiles};
use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::backing::listed;
use wire::codec::{Field as _, Reader, Writer};
use wire::losses::{LOST_UNITS_MAX, LostFile, LostUnits};
use wire::names::NAMES_ASKED_MAX;
use wire::{Inode, Reply, Request, ShardIndex};

/// Files that are listed; the answer has to be read by a person, or comes from another host in one line.
const FILES_MAX: usize = 4096;
/// Longest search; at most half of the instance's timeout, which the asker waits.
const TIME_MAX: Duration = Duration::from_secs(20);
/// Longest wait for one answer of a service: longer than it takes to go on elsewhere.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(3);

static ANSWER: LongAnswer = LongAnswer {
    name: "lost",
    subject: "lost files",
    at_once_max: 2,
    count: |shared| shared.units.as_ref().map(|units| &units.lost_answers),
};

/// Answers in a thread of its own, since services are waited for.
pub(super) fn answer(shared: &Arc<Shared>, stream: UnixStream) {
    if shared.units.is_none() {
        return ANSWER.write(stream, &LostFiles::default());
    }
    ANSWER.give(shared, stream, |shared| {
        let units = shared.units.as_ref();
        units.map_or_else(LostFiles::default, |units| list(shared, units))
    });
}

fn list(shared: &Shared, units: &Units) -> LostFiles {
    let (begun, time) = (Instant::now(), TIME_MAX.min(shared.timing.timeout / 2));
    let LossesNow { per_target, mut gone, mut down } = units.losses_now();
    // Of files with one copy.
    gone.push(LostUnits::CHANGES);
    down.extend(units.targets_down());
    let (mut found, mut services) = (LostFiles::default(), shared.net.services());
    let count = services.len();
    for (rows, is_gone) in [(gone, true), (down, false)] {
        for rows in rows.chunks(LOST_UNITS_MAX) {
            let rows = encoded(rows);
            let request = |from| Request::LostFiles { from, per_target, units: &rows };
            services.retain(|&shard| {
                ask(shared, (shard, begun + time / 2), request, is_gone, &mut found)
            });
        }
    }
    found.services_silent = (count - services.len()) as u64;
    name_all(shared, &services, &mut found, begun + time);
    found
}

fn encoded(rows: &[LostUnits]) -> Vec<u8> {
    let mut bytes = vec![0; rows.len() * LostUnits::BYTES];
    let mut writer = Writer::new(&mut bytes);
    rows.iter().for_each(|row| row.put(&mut writer));
    bytes
}

/// Adds the files of a service. False: it does not answer in time.
fn ask<'a>(
    shared: &Shared,
    (shard, until): (ShardIndex, Instant),
    request: impl Fn(Inode) -> Request<'a>,
    is_gone: bool,
    found: &mut LostFiles,
) -> bool {
    let mut from = Inode::NONE;
    loop {
        let until = until.min(Instant::now() + ANSWER_TIME_MAX);
        let answer = shared.ask_in_time(shard, &request(from), until);
        match answer.and_then(|answer| take(&answer, is_gone, found)) {
            None => return false,
            Some(next) if next.is_none() || found.has_more => return true,
            Some(next) => from = next,
        }
    }
}

/// Takes the files of an answer; returns the inode to go on from.
fn take(answer: &[u8], is_gone: bool, found: &mut LostFiles) -> Option<Inode> {
    let Ok(Reply::Bytes { bytes }) = Reply::decode(&mut Reader::new(answer)) else { return None };
    let mut reader = Reader::new(bytes);
    let next = Inode::take(&mut reader).ok()?;
    for file in listed::<LostFile>(reader.rest()) {
        if found.files.len() == FILES_MAX {
            found.has_more = true;
            break;
        }
        let (inode, ranges) = (file.inode.0, file.ranges().to_vec());
        let LostFile { size, has_more, .. } = file;
        found.files.push(LostBytes { inode, path: None, size, is_gone, ranges, has_more });
    }
    Some(next)
}

/// Adds paths, as far as they are found in time by these services.
fn name_all(
    shared: &Shared,
    services: &BTreeSet<ShardIndex>,
    found: &mut LostFiles,
    until: Instant,
) {
    let inodes: BTreeSet<u64> = found.files.iter().map(|file| file.inode).collect();
    let (inodes, mut names) = (Vec::from_iter(inodes), Names::default());
    for asked in inodes.chunks(NAMES_ASKED_MAX) {
        names.look_for(shared, services, &asked.iter().copied().collect(), until);
    }
    for file in &mut found.files {
        file.path = names.path_of(file.inode);
    }
    found.files.sort_by(|a, b| (&a.path, a.inode, !a.is_gone).cmp(&(&b.path, b.inode, !b.is_gone)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::reply::encode_reply;

    #[test]
    fn an_answer_of_a_service_is_taken_and_the_list_has_an_end() {
        let mut file = LostFile::new(Inode(9), 100);
        file.add(10, 20);
        let mut bytes = vec![0; 8 + 2 * LostFile::BYTES_MAX];
        let mut writer = Writer::new(&mut bytes);
        Inode(77).put(&mut writer);
        file.put(&mut writer);
        file.inode = Inode(10);
        file.put(&mut writer);
        let length = writer.len();
        let bytes = &bytes[..length];
        let reply = encode_reply(&Reply::Bytes { bytes }, length);
        let mut found = LostFiles::default();
        assert_eq!(take(&reply, true, &mut found), Some(Inode(77)));
        let ranges = vec![(10, 20)];
        let first =
            LostBytes { inode: 9, size: 100, is_gone: true, ranges, ..LostBytes::default() };
        assert_eq!((found.files.len(), &found.files[0]), (2, &first));
        while !found.has_more {
            take(&reply, false, &mut found).expect("an inode");
        }
        assert_eq!(found.files.len(), FILES_MAX);
        let refused = encode_reply(&Reply::Busy { retry_micros: 1 }, 0);
        assert_eq!(take(&refused, true, &mut found), None);
    }
}
