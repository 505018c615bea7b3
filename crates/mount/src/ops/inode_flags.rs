//! The project of a file as `lsattr -p`, `chattr -p` and the XFS tools access it, by `ioctl`. The
//! kernel checks that the caller owns the file and is in the same user namespace, and passes on
//! four commands of fixed size; a fifth is that of `handover`, a sixth that of `users::own_limits`. Of
//! the flags of `chattr` one is supported: files created in a directory inherit its project.

use client::handover::SHARE;
use client::{At, Follow};
use wire::Attributes;
use wire::codec::{Reader, Writer};
use wire::errno::{Errno, Result};

use crate::commands::quota::PROJECT;
use crate::ops::handover;
use crate::ops::request::{Request, Scratch, within};
use crate::users::own_limits;

/// `FS_IOC_GETFLAGS`: 32 bits of flags, whatever size the command encodes.
const GET_FLAGS: u32 = 0x8008_6601;

/// `FS_IOC_SETFLAGS`.
const SET_FLAGS: u32 = 0x4008_6602;

/// `FS_IOC_FSGETXATTR`: `struct fsxattr`, 32-bit words for flags, extent size, number of extents,
/// project, and copy-on-write extent size, then 8 bytes of padding.
const GET_EXTENDED: u32 = 0x801c_581f;

/// `FS_IOC_FSSETXATTR`.
const SET_EXTENDED: u32 = 0x401c_5820;

const EXTENDED_BYTES: usize = 28;

/// `FS_PROJINHERIT_FL` of `FS_IOC_GETFLAGS`, and `FS_XFLAG_PROJINHERIT` of `FS_IOC_FSGETXATTR`.
const INHERITS: u32 = 0x2000_0000;

const INHERITS_EXTENDED: u32 = 0x200;

fn inherits(file: &Attributes) -> bool {
    file.is_directory() && file.project != 0
}

/// Executes a command with its data; `length` is the length of the answer.
pub(crate) fn execute_ioctl(
    request: &Request<'_>,
    handle: u64,
    (command, data, length): (u32, &[u8], u32),
    scratch: &mut Scratch,
    to: &mut Writer<'_>,
) -> Result<()> {
    if command == own_limits::CODE {
        let said = request.server.own_limits.answer(request, data)?;
        // Its end is its NUL.
        let mut answer = vec![0; length as usize];
        let place = answer.get_mut(..said.len()).filter(|place| place.len() < length as usize);
        place.ok_or(Errno::E2BIG)?.copy_from_slice(&said);
        fuse::reply::ioctl(to, &answer);
        return Ok(());
    }
    let mut answer = [0; EXTENDED_BYTES];
    let answer = answer.get_mut(..length as usize).ok_or(Errno::ENOTTY)?;
    let mut words = Writer::new(answer);
    match command {
        SHARE => handover::share_open(request, handle, data)?,
        GET_FLAGS => {
            let file = file_itself(request, scratch)?;
            words.u32(if inherits(&file) { INHERITS } else { 0 });
        }
        GET_EXTENDED => {
            let file = file_itself(request, scratch)?;
            words.u32(if inherits(&file) { INHERITS_EXTENDED } else { 0 });
            words.raw(&[0; 8]);
            words.u32(file.project);
        }
        SET_FLAGS => {
            let flags = Reader::new(data).u32().map_err(|_| Errno::EINVAL)?;
            let file = file_itself(request, scratch)?;
            let now = if inherits(&file) { INHERITS } else { 0 };
            if flags != now {
                return Err(Errno::EOPNOTSUPP);
            }
        }
        SET_EXTENDED => set_extended(request, data, scratch)?,
        _ => return Err(Errno::ENOTTY),
    }
    fuse::reply::ioctl(to, answer);
    Ok(())
}

fn file_itself(request: &Request<'_>, scratch: &mut Scratch) -> Result<Attributes> {
    let at = At::itself(request.node());
    let found = request.server.client.stat(at, Follow::Never, &request.caller(), &mut scratch.path);
    within(found?)
}

fn set_extended(request: &Request<'_>, data: &[u8], scratch: &mut Scratch) -> Result<()> {
    let mut words = Reader::new(data);
    let mut word = || words.u32().map_err(|_| Errno::EINVAL);
    let (flags, extent, _extents, project, copies) = (word()?, word()?, word()?, word()?, word()?);
    let file = file_itself(request, scratch)?;
    let known = if file.is_directory() { INHERITS_EXTENDED } else { 0 };
    if flags & !known != 0 || extent != 0 || copies != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if project == file.project {
        return Ok(());
    }
    let (client, at, text) =
        (request.server.client, At::itself(request.node()), project.to_string());
    let value = (PROJECT, text.as_bytes());
    within(client.set_xattr(at, Follow::Never, value, 0, &request.caller(), &mut scratch.path)?)
}
