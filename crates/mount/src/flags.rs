//! The project of a file as `lsattr -p`, `chattr -p` and the tools of XFS ask for it, by `ioctl`. The
//! kernel
//! looks whether who asks owns the file and is not in another user namespace, and hands on four commands
//! of fixed sizes. Of the flags of `chattr` there is one: what is made in a directory counts for its
//! project.

use client::{At, Follow};
use wire::Attributes;
use wire::codec::{Reader, Writer};
use wire::errno::{Errno, Result};

use crate::answer::{Request, within};
use crate::quota::PROJECT;
use crate::serve::Scratch;

/// `FS_IOC_GETFLAGS`: 32 bits of flags, however long it says that they are.
const GET_FLAGS: u32 = 0x8008_6601;
/// `FS_IOC_SETFLAGS`.
const SET_FLAGS: u32 = 0x4008_6602;
/// `FS_IOC_FSGETXATTR`: `struct fsxattr`, words of flags, extent size, extents, project, extent size of
/// copies, and 8 bytes of nothing.
const GET_EXTENDED: u32 = 0x801c_581f;
/// `FS_IOC_FSSETXATTR`.
const SET_EXTENDED: u32 = 0x401c_5820;
const EXTENDED_BYTES: usize = 28;
/// `FS_PROJINHERIT_FL` among the flags, and `FS_XFLAG_PROJINHERIT` among the others.
const INHERITS: u32 = 0x2000_0000;
const INHERITS_EXTENDED: u32 = 0x200;

fn inherits(file: &Attributes) -> bool {
    file.is_directory() && file.project != 0
}

impl Request<'_> {
    /// A command, its data, and how long the answer is.
    pub(crate) fn ioctl(
        &self,
        (command, data, room): (u32, &[u8], u32),
        scratch: &mut Scratch,
        to: &mut Writer<'_>,
    ) -> Result<()> {
        let mut answer = [0; EXTENDED_BYTES];
        let answer = answer.get_mut(..room as usize).ok_or(Errno::ENOTTY)?;
        let mut words = Writer::new(answer);
        match command {
            GET_FLAGS => {
                let file = self.file_itself(scratch)?;
                words.u32(if inherits(&file) { INHERITS } else { 0 });
            }
            GET_EXTENDED => {
                let file = self.file_itself(scratch)?;
                words.u32(if inherits(&file) { INHERITS_EXTENDED } else { 0 });
                words.raw(&[0; 8]);
                words.u32(file.project);
            }
            SET_FLAGS => {
                let flags = Reader::new(data).u32().map_err(|_| Errno::EINVAL)?;
                let file = self.file_itself(scratch)?;
                let now = if inherits(&file) { INHERITS } else { 0 };
                if flags != now {
                    return Err(Errno::EOPNOTSUPP);
                }
            }
            SET_EXTENDED => self.set_extended(data, scratch)?,
            _ => return Err(Errno::ENOTTY),
        }
        fuse::reply::ioctl(to, answer);
        Ok(())
    }

    fn file_itself(&self, scratch: &mut Scratch) -> Result<Attributes> {
        let at = At::itself(self.node());
        let found = self.server.client.stat(at, Follow::Never, &self.who(), &mut scratch.path);
        within(found?)
    }

    fn set_extended(&self, data: &[u8], scratch: &mut Scratch) -> Result<()> {
        let mut words = Reader::new(data);
        let mut word = || words.u32().map_err(|_| Errno::EINVAL);
        let (flags, extent, _extents, project, copies) =
            (word()?, word()?, word()?, word()?, word()?);
        let file = self.file_itself(scratch)?;
        let known = if file.is_directory() { INHERITS_EXTENDED } else { 0 };
        if flags & !known != 0 || extent != 0 || copies != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if project == file.project {
            return Ok(());
        }
        let (client, at, text) = (self.server.client, At::itself(self.node()), project.to_string());
        let value = (PROJECT, text.as_bytes());
        within(client.set_xattr(at, Follow::Never, value, 0, &self.who(), &mut scratch.path)?)
    }
}
