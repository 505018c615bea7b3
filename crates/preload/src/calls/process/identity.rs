//! Id and start time of the calling process, and the name of its program.

use crate::calls::files::uses;
use crate::calls::native;
use shm::activity::blocks::{Label, PROGRAM_BYTES, label};

/// Id and start time of a process, which identify its descriptor table, and the name of its program.
#[derive(Clone, Copy, Debug)]
pub struct ProcessIdentity {
    /// Its id.
    pub pid: u32,
    /// Its start time; 0: unknown.
    pub started: u64,
    /// The program, as the kernel names it.
    pub program: Label<PROGRAM_BYTES>,
}

/// The identity of the calling process.
#[must_use]
pub fn identity() -> ProcessIdentity {
    let pid = native::call(libc::SYS_getpid, [0; 6]) as u32;
    let path = c"/proc/self/stat".as_ptr() as u64;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
    let fd = native::call(libc::SYS_openat, [libc::AT_FDCWD as u64, path, flags, 0, 0, 0]);
    if fd < 0 {
        return ProcessIdentity { pid, started: 0, program: [0; PROGRAM_BYTES] };
    }
    let mut text = [0u8; 1024];
    let to = [fd as u64, text.as_mut_ptr() as u64, text.len() as u64, 0, 0, 0];
    let length = native::call(libc::SYS_read, to);
    native::close(fd as i32);
    let text = text.get(..usize::try_from(length).unwrap_or(0)).unwrap_or(&[]);
    if field(text, THREADS) != Some(1) {
        // Created before the constructor ran, or unseen by it.
        uses::note_threads();
    }
    let started = field(text, START_TIME).unwrap_or(0);
    ProcessIdentity { pid, started, program: label(program(text)) }
}

/// The name of the program in `/proc/<pid>/stat`.
fn program(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|&byte| byte == b'(').map_or(text.len(), |at| at + 1);
    let end = text.iter().rposition(|&byte| byte == b')').unwrap_or(start);
    text.get(start..end).unwrap_or(&[])
}

/// Fields of `/proc/<pid>/stat`, counted from the one after the name: number of threads, and start
/// time of the process.
const THREADS: usize = 17;
const START_TIME: usize = 19;

/// A field after the name. The name may contain spaces, so fields are counted from its last
/// parenthesis.
fn field(text: &[u8], index: usize) -> Option<u64> {
    let after = text.iter().rposition(|&byte| byte == b')')?;
    let field = text.get(after + 2..)?.split(|&byte| byte == b' ').nth(index)?;
    field.iter().try_fold(0u64, |sum, &digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_after_any_process_name() {
        let text = b"12 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        assert_eq!(field(text, START_TIME), Some(4711));
        assert_eq!(field(text, THREADS), Some(17));
        assert_eq!(field(b"12 (a", START_TIME), None);
        assert_eq!(
            (program(text), program(b"12 (a"), program(b"12")),
            (&b"a) b (c"[..], &b""[..], &b""[..])
        );
    }
}
