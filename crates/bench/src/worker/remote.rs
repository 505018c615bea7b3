//! Phases on two hosts: metadata and data of the remote host, and sockets between the hosts.

use super::metadata::create;
use super::{Amount, Worker, wrong};
use crate::suites::socket::{self, Connection, ConnectionUse};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;

/// Equal to the block size of the sockets that the results are compared with.
const BLOCK_BYTES: usize = 4 << 20;
/// Passes over each file, so that a phase takes about a second, as iperf3 does: an idle connection
/// needs a while to reach full speed.
const PASSES: u64 = 8;

impl Worker {
    /// Sequential operations on files of a directory whose inodes are on the remote host.
    pub(super) fn remote_metadata(&self) -> io::Result<()> {
        let names: Vec<String> =
            (0..self.files).map(|number| format!("{}/{number}", self.directory)).collect();
        let amount = Amount::Operations(self.files);
        self.phase("create", amount, || create(&names))?;
        self.phase("stat", amount, || {
            names.iter().try_for_each(|name| match fs::metadata(name)?.len() {
                0 => Ok(()),
                _ => Err(wrong(name)),
            })
        })?;
        self.phase("open-close", amount, || {
            names.iter().try_for_each(|name| File::open(name).map(drop))
        })?;
        self.phase("unlink", amount, || names.iter().try_for_each(fs::remove_file))
    }

    /// Message round trips.
    pub(super) fn round_trips(&self) -> io::Result<()> {
        let connection = socket::connect(&self.directory, ConnectionUse::Rounds, self.files)?;
        let amount = Amount::Operations(self.files);
        self.phase("round-trip", amount, || Connection::work(connection))
    }

    /// Round trips, then as many bytes as the other workers write and read.
    pub(super) fn sockets(&self) -> io::Result<()> {
        self.round_trips()?;
        let bytes = (self.megabytes << 20) * PASSES;
        for (name, what) in [
            ("write-4m", ConnectionUse::Send),
            ("read-4m", ConnectionUse::Receive),
            ("write-4m-copied", ConnectionUse::SendCopied),
            ("read-4m-copied", ConnectionUse::ReceiveCopied),
            ("write-4m-unpaced", ConnectionUse::SendUnpaced),
            ("read-4m-unpaced", ConnectionUse::ReceiveUnpaced),
        ] {
            let connection = socket::connect(&self.directory, what, bytes)?;
            self.phase(name, Amount::Bytes(bytes), || Connection::work(connection))?;
        }
        Ok(())
    }

    /// The worker after the last one creates the files, on the host that is to hold their bytes;
    /// the others write and read one file each.
    pub(super) fn remote_data(&self) -> io::Result<()> {
        let path = |index: u64| format!("{}/stream-{index}", self.directory);
        let is_maker = self.index == self.processes;
        self.phase("make", Amount::Nothing, || match is_maker {
            true => (0..self.processes).try_for_each(|index| create(&[path(index)])),
            false => Ok(()),
        })?;
        let blocks = (self.megabytes << 20) / BLOCK_BYTES as u64;
        let amount = match is_maker {
            true => Amount::Nothing,
            false => Amount::Bytes(blocks * BLOCK_BYTES as u64 * PASSES),
        };
        let mut block = vec![self.index as u8 + 1; BLOCK_BYTES];
        let offset_of_block = |number: u64| number * BLOCK_BYTES as u64;
        let numbers = || (0..PASSES).flat_map(|_| 0..blocks);
        self.phase("write-4m", amount, || {
            if is_maker {
                return Ok(());
            }
            let file = OpenOptions::new().write(true).open(path(self.index))?;
            numbers().try_for_each(|number| {
                block[..8].copy_from_slice(&number.to_le_bytes());
                file.write_all_at(&block, offset_of_block(number))
            })
        })?;
        self.phase("read-4m", amount, || {
            if is_maker {
                return Ok(());
            }
            let file = File::open(path(self.index))?;
            numbers().try_for_each(|number| {
                file.read_exact_at(&mut block, offset_of_block(number))?;
                let is_right = block[..8] == number.to_le_bytes()
                    && block[BLOCK_BYTES - 1] == self.index as u8 + 1;
                if is_right { Ok(()) } else { Err(wrong(path(self.index))) }
            })
        })
    }
}
