//! Asynchronous I/O of the kernel (`io_submit`, as libaio calls it) on files of the instance.
//!
//! Such a request copies memory, so it is performed at submission. Its completion is the kernel's
//! own: in place of the request, one is submitted that writes as many bytes to `/dev/null`. It
//! produces the event with the right result in the right context, wakes waiters and signals event
//! descriptors. Contexts, waiting and cancelling stay the kernel's, whatever files are mixed in one
//! context.

use crate::calls::files::uses::FileUse;
use crate::calls::files::{kernel_io, reserved, transfer};
use crate::calls::process::state::{NULL_DEVICE, client, kernel, note_private, ours};
use crate::calls::{Answer, answer, native, user};
use client::{BY_KERNEL, OfdIndex, Position};
use core::sync::atomic::Ordering::{AcqRel, Acquire};
use wire::errno::{Errno, Result};

/// Offsets of the fields of `struct iocb`.
const RW_FLAGS: u64 = 12;
const OPCODE: u64 = 16;
const DESCRIPTOR: u64 = 20;
const BUFFER: u64 = 24;
const LENGTH: u64 = 32;
const OFFSET: u64 = 40;

const READ: u16 = 0;
const WRITE: u16 = 1;
const SYNC: u16 = 2;
const DATA_SYNC: u16 = 3;
const READ_VECTORED: u16 = 7;
const WRITE_VECTORED: u16 = 8;

/// Most requests of one call that are inspected; the kernel's default limit.
const REQUESTS_MAX: u64 = 65_536;

/// `io_submit`: context, count, addresses of the requests.
#[must_use]
pub fn submit(a: [u64; 6]) -> Answer {
    let count = a[1].min(REQUESTS_MAX);
    let is_ours = |index: u64| match file_of(a[2] + 8 * index) {
        Ok((_, file)) => file.is_some(),
        Err(errno) => matches!(errno, Errno::EBADF | Errno::EIO),
    };
    if (a[1] as i64) <= 0 || !(0..count).any(is_ours) {
        return None;
    }
    answer(submit_each(a[0], count, a[2]))
}

/// The request at `address`, and its file if that is ours. `EBADF` for a reserved descriptor,
/// `EIO` for an unreachable one.
fn file_of(address: u64) -> Result<(u64, Option<FileUse>)> {
    let request: u64 = user::get(address)?;
    let fd: u32 = user::get(request + DESCRIPTOR)?;
    match ours(fd.into()) {
        Some(file) => Ok((request, Some(file))),
        None => match reserved::refuse(fd.into()) {
            Some(refusal) => Err(kernel(refusal).err().unwrap_or(Errno::EBADF)),
            None => Ok((request, None)),
        },
    }
}

fn submit_each(context: u64, count: u64, list: u64) -> Result<u64> {
    for index in 0..count {
        let address = list + 8 * index;
        let outcome = file_of(address).and_then(|(request, file)| match file {
            Some(file) => complete(context, address, request, file.file()),
            None => submit_one(context, address),
        });
        match outcome {
            Ok(()) => {}
            Err(errno) if index == 0 => return Err(errno),
            Err(_) => return Ok(index),
        }
    }
    Ok(count)
}

/// Submits the one request at `address` to the kernel.
fn submit_one(context: u64, address: u64) -> Result<()> {
    let args = [context, 1, address, 0, 0, 0];
    match kernel(native::call(libc::SYS_io_submit, args))? {
        1 => Ok(()),
        _ => Err(Errno::EAGAIN),
    }
}

/// Performs the request and has the kernel complete it.
fn complete(context: u64, address: u64, request: u64, file: OfdIndex) -> Result<()> {
    let null = null()?;
    let opcode: u16 = user::get(request + OPCODE)?;
    let done = perform(opcode, request, file)?;
    let (fd, flags): (u32, u32) =
        (user::get(request + DESCRIPTOR)?, user::get(request + RW_FLAGS)?);
    let (length, offset): (u64, u64) = (user::get(request + LENGTH)?, user::get(request + OFFSET)?);
    user::put(request + OPCODE, WRITE)?;
    user::put(request + DESCRIPTOR, null as u32)?;
    user::put(request + RW_FLAGS, 0u32)?;
    user::put(request + LENGTH, done as u64)?;
    user::put(request + OFFSET, 0u64)?;
    let outcome = submit_one(context, address);
    user::put(request + OPCODE, opcode)?;
    user::put(request + DESCRIPTOR, fd)?;
    user::put(request + RW_FLAGS, flags)?;
    user::put(request + LENGTH, length)?;
    user::put(request + OFFSET, offset)?;
    outcome
}

fn perform(opcode: u16, request: u64, file: OfdIndex) -> Result<usize> {
    let client = client()?;
    let (buffer, length): (u64, u64) = (user::get(request + BUFFER)?, user::get(request + LENGTH)?);
    let offset: u64 = user::get(request + OFFSET)?;
    if offset > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    let at = Position::At(offset);
    let bytes = usize::try_from(length).map_err(|_| Errno::EINVAL)?;
    match opcode {
        READ => transfer::read_into(file, user::bytes_mut(buffer, bytes)?, at),
        WRITE => transfer::write_from(file, user::bytes(buffer, bytes)?, at),
        SYNC | DATA_SYNC => client.sync(file).map(|()| 0),
        READ_VECTORED => {
            let parts = user::Vectors::new(buffer, length)?
                .filter_map(|(start, length)| user::bytes_mut(start, length).ok());
            match client.read_vectored(file, parts, at) {
                Err(BY_KERNEL) => vectored(libc::SYS_preadv2, file, (buffer, length), at),
                done => done,
            }
        }
        WRITE_VECTORED => {
            let parts = user::Vectors::new(buffer, length)?
                .filter_map(|(start, length)| user::bytes(start, length).ok());
            match client.write_vectored(file, parts, at) {
                Err(BY_KERNEL) => vectored(libc::SYS_pwritev2, file, (buffer, length), at),
                done => done,
            }
        }
        _ => Err(Errno::EINVAL),
    }
}

fn vectored(number: i64, file: OfdIndex, buffers: (u64, u64), at: Position) -> Result<usize> {
    let (address, count) = buffers;
    kernel_io::transfer(file, kernel_io::Transfer { number, address, count, flags: 0 }, at)
}

/// `/dev/null`, opened once.
fn null() -> Result<i32> {
    let open = NULL_DEVICE.load(Acquire);
    if open >= 0 {
        return Ok(open);
    }
    let path = c"/dev/null".as_ptr() as u64;
    let flags = (libc::O_WRONLY | libc::O_CLOEXEC) as u64;
    let fd = kernel(native::call(libc::SYS_open, [path, flags, 0, 0, 0, 0]))? as i32;
    // Programs rely on low numbers for what they open themselves.
    let high = native::duplicate(fd, 900, true);
    let fd = if high < 0 {
        fd
    } else {
        native::close(fd);
        high as i32
    };
    match NULL_DEVICE.compare_exchange(-1, fd, AcqRel, Acquire) {
        Ok(_) => {
            note_private(fd);
            Ok(fd)
        }
        Err(first) => {
            native::close(fd);
            Ok(first)
        }
    }
}
