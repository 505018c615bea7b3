//! May a user do what he asks for? By the mode of a file, and where it has an access control list by
//! that, which its shard is asked for each time: such files are few.

use wire::acl::{ACCESS, Acl};
use wire::attributes::{mode, want};
use wire::errno::{Errno, Result};
use wire::{Attributes, Credentials, Reply, Request};

use crate::Client;
use crate::opened::o;
use crate::request::To;

/// Bits of `want` for the access mode of `flags`. The access mode 3, an old oddity of Linux, asks
/// for both permissions and allows neither.
pub(crate) fn wanted(flags: u32) -> u32 {
    let by_mode = match flags & o::ACCESS {
        0 => want::READ,
        o::WRITE_ONLY => want::WRITE,
        _ => want::READ | want::WRITE,
    };
    if flags & o::TRUNCATE != 0 { by_mode | want::WRITE } else { by_mode }
}

/// What Linux checks before it opens a file that exists: the bits of `want` that it must permit.
fn must_permit(attributes: &Attributes, flags: u32) -> Result<u32> {
    let kind = attributes.mode & mode::TYPE;
    let is_directory = kind == mode::DIRECTORY;
    if flags & o::DIRECTORY != 0 && !is_directory {
        return Err(Errno::ENOTDIR);
    }
    if flags & o::PATH != 0 {
        return Ok(0);
    }
    if kind == mode::SYMLINK {
        return Err(Errno::ELOOP);
    }
    let wanted = wanted(flags);
    if is_directory && (wanted & want::WRITE != 0 || flags & o::CREATE != 0) {
        return Err(Errno::EISDIR);
    }
    Ok(wanted)
}

impl Client {
    /// May `who` open a file that exists?
    pub(crate) fn may_open(
        &self,
        attributes: &Attributes,
        flags: u32,
        who: &Credentials,
    ) -> Result<()> {
        let wanted = must_permit(attributes, flags)?;
        if wanted == 0 {
            return Ok(());
        }
        self.permits(attributes, who, wanted)?;
        let is_socket = attributes.mode & mode::TYPE == mode::SOCKET;
        if is_socket { Err(Errno::ENXIO) } else { Ok(()) }
    }

    /// May `who` do all of `wanted` (bits of `want`)?
    ///
    /// # Errors
    /// `EACCES` if not; `EIO` if nobody says so in time.
    #[inline]
    pub fn permits(&self, file: &Attributes, who: &Credentials, wanted: u32) -> Result<()> {
        match file.is_up_to_acl(who) {
            true => self.permits_by_acl(file, who, wanted),
            false => file.permits(who, wanted),
        }
    }

    #[cold]
    fn permits_by_acl(&self, file: &Attributes, who: &Credentials, wanted: u32) -> Result<()> {
        let request = Request::GetXattr { inode: file.inode, name: ACCESS };
        let answer = match self.call(To::Shard(file.inode.shard()), &request, who) {
            // It was taken away since.
            Err(Errno::ENODATA) => return file.permits(who, wanted),
            answer => answer?,
        };
        answer.with(|reply| {
            let Reply::Bytes { bytes } = reply else { return Err(Errno::EIO) };
            let acl = Acl::parse(bytes)?.ok_or(Errno::EIO)?;
            let may = acl.permits((file.uid, file.gid), who, wanted);
            if may { Ok(()) } else { Err(Errno::EACCES) }
        })
    }

    /// May `who` change the entries of `parent`?
    pub(crate) fn may_change(&self, parent: &Attributes, who: &Credentials) -> Result<()> {
        self.permits(parent, who, want::WRITE | want::EXECUTE)
    }

    /// May `who` take `file` out of `parent`? In a sticky directory only owners may; that holds for whom
    /// a kernel has checked, too, as it may have looked at another file.
    pub(crate) fn may_remove(
        &self,
        parent: &Attributes,
        file: Option<&Attributes>,
        who: &Credentials,
    ) -> Result<()> {
        self.may_change(parent, who)?;
        if parent.mode & mode::STICKY == 0 || who.is_owner_of_all() || who.uid == parent.uid {
            return Ok(());
        }
        match file {
            Some(file) if file.uid != who.uid => Err(Errno::EPERM),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(mode: u32) -> Attributes {
        Attributes { mode, uid: 1, gid: 1, links: 1, ..Attributes::default() }
    }

    #[test]
    fn an_existing_file_is_checked_as_linux_does() {
        static CLIENT: Client = Client::new();
        let me = Credentials::of(1, 1);
        let directory = of(mode::DIRECTORY | 0o755);
        let file = of(mode::REGULAR | 0o444);
        let link = of(mode::SYMLINK | 0o777);
        let socket = of(mode::SOCKET | 0o777);
        for (attributes, flags, outcome) in [
            (&directory, 0, Ok(())),
            (&directory, o::READ_WRITE, Err(Errno::EISDIR)),
            (&directory, o::CREATE, Err(Errno::EISDIR)),
            (&directory, o::TRUNCATE, Err(Errno::EISDIR)),
            (&file, 0, Ok(())),
            (&file, o::WRITE_ONLY, Err(Errno::EACCES)),
            (&file, o::TRUNCATE, Err(Errno::EACCES)),
            (&file, o::DIRECTORY, Err(Errno::ENOTDIR)),
            (&file, o::PATH | o::NO_FOLLOW, Ok(())),
            (&link, o::NO_FOLLOW, Err(Errno::ELOOP)),
            (&link, o::NO_FOLLOW | o::DIRECTORY, Err(Errno::ENOTDIR)),
            (&link, o::NO_FOLLOW | o::PATH, Ok(())),
            (&socket, 0, Err(Errno::ENXIO)),
            (&socket, o::PATH, Ok(())),
        ] {
            assert_eq!(CLIENT.may_open(attributes, flags, &me), outcome, "flags {flags:o}");
        }
    }
}
