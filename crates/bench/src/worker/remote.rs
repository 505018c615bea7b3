//! Phases with two hosts: metadata of another host, data that lies there, and sockets between them.

use super::metadata::create;
use super::{Amount, Worker, wrong};
use crate::socket::{self, Connection, Use};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;

/// As large as those of the sockets beside which they are measured.
const BLOCK_BYTES: usize = 4 << 20;
/// How often a file is gone through, so that it takes about a second, as iperf3 does: a connection that
/// was idle takes a while until it is fast.
const PASSES: u64 = 8;

impl Worker {
    /// One operation after the other on files of a directory that another host has.
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

    /// Messages to and fro.
    pub(super) fn round_trips(&self) -> io::Result<()> {
        let connection = socket::connect(&self.directory, Use::Rounds, self.files)?;
        let amount = Amount::Operations(self.files);
        self.phase("round-trip", amount, || Connection::work(connection))
    }

    /// The same, then as much data as the other workers write and read.
    pub(super) fn sockets(&self) -> io::Result<()> {
        self.round_trips()?;
        let bytes = (self.megabytes << 20) * PASSES;
        for (name, what) in [
            ("write-4m", Use::Send),
            ("read-4m", Use::Receive),
            ("write-4m-copied", Use::SendCopied),
            ("read-4m-copied", Use::ReceiveCopied),
            ("write-4m-unpaced", Use::SendUnpaced),
            ("read-4m-unpaced", Use::ReceiveUnpaced),
        ] {
            let connection = socket::connect(&self.directory, what, bytes)?;
            self.phase(name, Amount::Bytes(bytes), || Connection::work(connection))?;
        }
        Ok(())
    }

    /// The worker behind the last makes the files, on the host where their bytes are to lie; the
    /// others write and read one each.
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
        let place = |number: u64| number * BLOCK_BYTES as u64;
        let numbers = || (0..PASSES).flat_map(|_| 0..blocks);
        self.phase("write-4m", amount, || {
            if is_maker {
                return Ok(());
            }
            let file = OpenOptions::new().write(true).open(path(self.index))?;
            numbers().try_for_each(|number| {
                block[..8].copy_from_slice(&number.to_le_bytes());
                file.write_all_at(&block, place(number))
            })
        })?;
        self.phase("read-4m", amount, || {
            if is_maker {
                return Ok(());
            }
            let file = File::open(path(self.index))?;
            numbers().try_for_each(|number| {
                file.read_exact_at(&mut block, place(number))?;
                let is_right = block[..8] == number.to_le_bytes()
                    && block[BLOCK_BYTES - 1] == self.index as u8 + 1;
                if is_right { Ok(()) } else { Err(wrong(path(self.index))) }
            })
        })
    }
}
