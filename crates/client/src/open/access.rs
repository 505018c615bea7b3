//! Permission to open: from the flags of an open to the access that the file must permit.

use wire::attributes::{mode, want};
use wire::errno::{Errno, Result};
use wire::{Attributes, Credentials};

use crate::file::open_file::o;
use crate::lookup::permission;
use crate::transport::Transport;

/// Bits of `want` for the access mode of `flags`. Access mode 3, a quirk of Linux, requires both
/// permissions and grants neither.
pub(crate) fn access_of_flags(flags: u32) -> u32 {
    let by_mode = match flags & o::ACCESS {
        0 => want::READ,
        o::WRITE_ONLY => want::WRITE,
        _ => want::READ | want::WRITE,
    };
    if flags & o::TRUNCATE != 0 { by_mode | want::WRITE } else { by_mode }
}

/// The checks of Linux before it opens an existing file. Returns the bits of `want` that must be
/// permitted.
fn required_access(attributes: &Attributes, flags: u32) -> Result<u32> {
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
    let access = access_of_flags(flags);
    if is_directory && (access & want::WRITE != 0 || flags & o::CREATE != 0) {
        return Err(Errno::EISDIR);
    }
    Ok(access)
}

/// Checks whether `caller` may open an existing file.
pub(crate) fn may_open(
    transport: &Transport,
    attributes: &Attributes,
    flags: u32,
    caller: &Credentials,
) -> Result<()> {
    let access = required_access(attributes, flags)?;
    if access == 0 {
        return Ok(());
    }
    permission::permits(transport, attributes, caller, access)?;
    let is_socket = attributes.mode & mode::TYPE == mode::SOCKET;
    if is_socket { Err(Errno::ENXIO) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(mode: u32) -> Attributes {
        Attributes { mode, uid: 1, gid: 1, links: 1, ..Attributes::default() }
    }

    #[test]
    fn an_existing_file_is_checked_as_linux_does() {
        static TRANSPORT: Transport = Transport::new();
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
            assert_eq!(may_open(&TRANSPORT, attributes, flags, &me), outcome, "flags {flags:o}");
        }
    }
}
