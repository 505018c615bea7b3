//! Small configuration files: certificates, profiles, credentials. Pipes and other special files
//! are refused without blocking.

use rustix::fs::OFlags;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Maximum size in bytes; the certificates of a system take 220 KiB.
const BYTES_MAX: u64 = 4 << 20;

/// Reads a whole file.
///
/// # Errors
/// It cannot be read, is not a regular file, or is too large.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
    // Opening a pipe without this flag would block until a writer opens it.
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_fifo() || kind.is_socket() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a pipe and not a file"));
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is too large"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_and_endless_files_are_refused() {
        let location = tempfile::tempdir().expect("a directory");
        let pipe = location.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0)
            .expect("made");
        let failed = |path: &Path| read(path).expect_err("none").to_string();
        assert_eq!(failed(&pipe), "it is a pipe and not a file");
        assert_eq!(failed(Path::new("/dev/zero")), "it is too large");
        assert_eq!(read(Path::new("/dev/null")).expect("empty"), b"");
        let file = location.path().join("file");
        std::fs::write(&file, "all").expect("written");
        assert_eq!(read(&file).expect("all of it"), b"all");
        let none = read(&location.path().join("none")).expect_err("none");
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
    }
}
