//! Paths: where one starts, and the buffer in which a walk takes it apart and puts links in.

use shm::room::Room;
use wire::attributes::ATTRIBUTES_BYTES;
use wire::errno::{Errno, Result};
use wire::limits::{NAME_BYTES_MAX, PATH_BYTES_MAX, WALK_NAMES_MAX};
use wire::{Attributes, Inode};

const ATTRIBUTES_WORDS: usize = ATTRIBUTES_BYTES / 8;

/// A path relative to a directory of the instance. Slashes at its start mean nothing.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    /// The directory.
    pub base: Inode,
    /// The path, without a NUL. Empty: `ENOENT`; `.` is the directory itself.
    pub path: &'a [u8],
    /// The base is meant itself, which may be any file then, and no path.
    pub(crate) is_base: bool,
}

impl<'a> At<'a> {
    /// A path below the root of the instance.
    #[must_use]
    pub const fn root(path: &'a [u8]) -> At<'a> {
        At { base: Inode::ROOT, path, is_base: false }
    }

    /// A path below an open directory.
    #[must_use]
    pub const fn below(base: Inode, path: &'a [u8]) -> At<'a> {
        At { base, path, is_base: false }
    }

    /// The file `inode` itself.
    #[must_use]
    pub const fn itself(inode: Inode) -> At<'a> {
        At { base: inode, path: &[], is_base: true }
    }
}

/// Is the last component followed if it is a symbolic link?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follow {
    /// Yes.
    Yes,
    /// No; a slash at the path's end follows it all the same.
    No,
    /// Not even with a slash: calls that change the name itself.
    Never,
}

/// What a path led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome<T> {
    /// Into the instance, and the call is done.
    Done(T),
    /// Out of it, by a symbolic link or `..`: `PathBuffer::outside` is where to.
    Outside,
    /// To a pipe or a device, which only the kernel can open.
    Special(Attributes),
}

impl<T> Outcome<T> {
    /// The outcome with `with` done to its value.
    pub(crate) fn and<R>(self, with: impl FnOnce(T) -> Result<R>) -> Result<Outcome<R>> {
        Ok(match self {
            Outcome::Done(value) => Outcome::Done(with(value)?),
            Outcome::Outside => Outcome::Outside,
            Outcome::Special(attributes) => Outcome::Special(attributes),
        })
    }
}

/// Room for one path and for what it meets.
pub struct PathBuffer {
    pub(crate) way: Way,
    /// The directory that a walk is in, and what it found there.
    pub(crate) met: [Attributes; 2],
}

impl PathBuffer {
    /// An empty buffer.
    #[must_use]
    pub const fn new() -> PathBuffer {
        PathBuffer { way: Way::new(), met: [Attributes::from_words(&[0; ATTRIBUTES_WORDS]); 2] }
    }

    /// After `Outcome::Outside`: the absolute path to go on with, without a NUL.
    #[must_use]
    pub fn outside(&self) -> &[u8] {
        self.way.outside()
    }

    /// True if the last walk with this buffer left the instance.
    #[must_use]
    pub const fn is_outside(&self) -> bool {
        self.way.is_outside
    }
}

impl Default for PathBuffer {
    fn default() -> PathBuffer {
        PathBuffer::new()
    }
}

/// A path on its way through a walk. What is yet to go is in `next .. end`.
pub(crate) struct Way {
    room: Room<{ PATH_BYTES_MAX + 8 }>,
    next: usize,
    end: usize,
    is_outside: bool,
}

/// One component of a path, as a place in the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) start: usize,
    end: usize,
    /// No component follows.
    pub(crate) is_last: bool,
    /// A slash follows.
    pub(crate) slash: bool,
}

impl Way {
    pub(crate) const fn new() -> Way {
        Way { room: Room::new(), next: 0, end: 0, is_outside: false }
    }

    /// What is yet to go.
    pub(crate) fn outside(&self) -> &[u8] {
        self.room.bytes().get(self.next..self.end).unwrap_or(&[])
    }

    /// Takes a path to walk.
    ///
    /// # Errors
    /// `ENOENT` if it is empty, `ENAMETOOLONG` if it leaves no room for a NUL.
    pub(crate) fn load(&mut self, path: &[u8]) -> Result<()> {
        self.is_outside = false;
        self.next = 0;
        self.end = 0;
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if path.len() >= PATH_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if !self.room.put(path) {
            return Err(Errno::ENAMETOOLONG);
        }
        self.end = path.len();
        Ok(())
    }

    /// The next component, `None` at the end.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Part> {
        let bytes = self.room.bytes().get(..self.end)?;
        let start = skip_slashes(bytes, self.next);
        if start >= self.end {
            return None;
        }
        let end = end_of_name(bytes, start);
        self.next = end;
        let slash = end < self.end;
        let is_last = !slash || skip_slashes(bytes, end) >= self.end;
        Some(Part { start, end, is_last, slash })
    }

    /// Where the path's last name begins, before a walk. `None` if it ends with a slash, `.` or `..`.
    pub(crate) fn last_name(&self) -> Option<usize> {
        let bytes = self.room.bytes().get(..self.end)?;
        let start = behind_last_slash(bytes);
        let name = bytes.get(start..)?;
        (!matches!(name, b"" | b"." | b"..")).then_some(start)
    }

    /// The first `length` bytes in words of eight, the last filled up with zeros.
    pub(crate) fn words(&self, length: usize) -> impl Iterator<Item = u64> {
        let bytes = self.room.bytes();
        (0..length).step_by(8).map(move |at| {
            let word = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>);
            let word = word.map_or(0, |word| u64::from_le_bytes(*word));
            let left = length.saturating_sub(at).min(8) as u32;
            word & u64::MAX >> 64u32.saturating_sub(left.saturating_mul(8))
        })
    }

    /// The last eight of the first `length` bytes, or what there is from the path's start on.
    pub(crate) fn word_before(&self, length: usize) -> u64 {
        let word = self.room.bytes().get(length.saturating_sub(8)..);
        word.and_then(<[u8]>::first_chunk::<8>).map_or(0, |word| u64::from_le_bytes(*word))
    }

    /// Goes on behind the first `length` bytes.
    pub(crate) const fn skip(&mut self, length: usize) {
        self.next = length;
    }

    /// The bytes of a component that was taken and not replaced since.
    pub(crate) fn name(&self, part: Part) -> &[u8] {
        self.room.bytes().get(part.start..part.end).unwrap_or(&[])
    }

    /// Where what is yet to go starts.
    pub(crate) const fn place(&self) -> usize {
        self.next
    }

    /// Names that follow each other from `place` on, as they stand in the path: none of them `.`,
    /// `..` or too long, at most `WALK_NAMES_MAX`, and how many. The path's last only if it counts.
    pub(crate) fn names(&self, place: usize, last_counts: bool) -> (&[u8], usize) {
        let rest = self.room.bytes().get(place..self.end).unwrap_or(&[]);
        let (mut at, mut end, mut count) = (0usize, 0usize, 0usize);
        while count < WALK_NAMES_MAX {
            let behind = rest.get(at..).unwrap_or(&[]);
            let start = at.saturating_add(behind.iter().take_while(|&&byte| byte == b'/').count());
            let name = rest.get(start..).unwrap_or(&[]);
            let length = name.iter().take_while(|&&byte| byte != b'/').count();
            let (name, behind) = name.split_at_checked(length).unwrap_or_default();
            let is_last = behind.iter().all(|&byte| byte == b'/');
            let is_name = !matches!(name, b"" | b"." | b"..") && length <= NAME_BYTES_MAX;
            if !is_name || (is_last && !last_counts) {
                break;
            }
            at = start.saturating_add(length);
            end = at;
            count = count.saturating_add(1);
        }
        (rest.get(..end).unwrap_or(&[]), count)
    }

    /// Puts `front` before what is yet to go: the target of a link in place of its name.
    ///
    /// # Errors
    /// `ENAMETOOLONG` if both do not fit.
    pub(crate) fn put_before(&mut self, front: &[u8]) -> Result<()> {
        let rest = self.end.saturating_sub(self.next);
        let end = front.len().checked_add(rest).ok_or(Errno::ENAMETOOLONG)?;
        if end >= PATH_BYTES_MAX || self.end > PATH_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let bytes = self.room.bytes_mut(end.max(self.end)).ok_or(Errno::ENAMETOOLONG)?;
        bytes.copy_within(self.next..self.end, front.len());
        bytes.get_mut(..front.len()).ok_or(Errno::ENAMETOOLONG)?.copy_from_slice(front);
        self.next = 0;
        self.end = end;
        Ok(())
    }

    /// If the path to go is absolute and below `prefix`: takes the prefix off it. Returns whether
    /// it was.
    pub(crate) fn enter(&mut self, prefix: &[u8]) -> bool {
        let path = self.room.bytes().get(self.next..self.end).unwrap_or(&[]);
        let Some(rest) = path.strip_prefix(prefix) else { return false };
        if !rest.is_empty() && !rest.starts_with(b"/") {
            return false;
        }
        self.next = self.next.saturating_add(prefix.len());
        true
    }

    /// True if what is yet to go is an absolute path.
    pub(crate) fn is_absolute(&self) -> bool {
        self.room.bytes().get(self.next..self.end).is_some_and(|path| path.starts_with(b"/"))
    }

    /// The path left the instance: what is yet to go is where to.
    pub(crate) fn leave(&mut self) {
        self.is_outside = true;
    }

    /// `..` of the root: what is yet to go starts at the directory that holds `prefix`.
    ///
    /// # Errors
    /// `ENAMETOOLONG`.
    pub(crate) fn leave_upwards(&mut self, prefix: &[u8]) -> Result<()> {
        let length = prefix.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        let above = prefix.get(..length).unwrap_or(&[]);
        // The rest starts with a slash or is empty.
        let is_root = above.is_empty() && self.next >= self.end;
        self.put_before(if is_root { b"/" } else { above })?;
        self.leave();
        Ok(())
    }

    /// Puts `front` before what is there and a slash before that: for a path that is found from
    /// its end.
    ///
    /// # Errors
    /// `ENAMETOOLONG`.
    pub(crate) fn put_component_before(&mut self, front: &[u8]) -> Result<()> {
        self.put_before(front)?;
        self.put_before(b"/")
    }

    /// Forgets what is there.
    pub(crate) fn clear(&mut self) {
        self.next = 0;
        self.end = 0;
        self.is_outside = false;
    }
}

/// The place behind the last slash.
#[inline]
fn behind_last_slash(bytes: &[u8]) -> usize {
    const LOW: u64 = u64::from_ne_bytes([0x7f; 8]);
    let mut rest = bytes;
    while let Some((front, word)) = rest.split_last_chunk::<8>() {
        let word = u64::from_le_bytes(*word) ^ u64::from_ne_bytes([b'/'; 8]);
        // The top bit of each byte that is zero, and no other.
        let zeros = !((word & LOW).wrapping_add(LOW) | word | LOW);
        if zeros != 0 {
            return rest.len().saturating_sub((zeros.leading_zeros() / 8) as usize);
        }
        rest = front;
    }
    rest.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at.saturating_add(1))
}

/// The first place from `at` on that holds no slash.
#[inline]
fn skip_slashes(bytes: &[u8], at: usize) -> usize {
    let mut at = at;
    while bytes.get(at) == Some(&b'/') {
        at = at.saturating_add(1);
    }
    at
}

/// The place of the first slash from `at` on, or the end. Eight bytes at a time: with one it was a
/// quarter of a walk.
#[inline]
fn end_of_name(bytes: &[u8], at: usize) -> usize {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let mut at = at;
    while let Some(word) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*word) ^ ONES.wrapping_mul(b'/' as u64);
        // The lowest byte that is zero has its top bit here, and none below it has.
        let zeros = word.wrapping_sub(ONES) & !word & ONES << 7;
        if zeros != 0 {
            return at.saturating_add((zeros.trailing_zeros() / 8) as usize);
        }
        at = at.saturating_add(8);
    }
    while bytes.get(at).is_some_and(|&byte| byte != b'/') {
        at = at.saturating_add(1);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn parts(path: &[u8]) -> Vec<(Vec<u8>, bool, bool)> {
        let mut buffer = Way::new();
        buffer.load(path).expect("a short path");
        let mut found = Vec::new();
        while let Some(part) = buffer.take() {
            found.push((buffer.name(part).to_vec(), part.is_last, part.slash));
        }
        found
    }

    #[test]
    fn a_path_falls_into_components() {
        assert_eq!(parts(b"a"), [(b"a".to_vec(), true, false)]);
        assert_eq!(parts(b"/"), []);
        assert_eq!(
            parts(b"//a///bc/"),
            [(b"a".to_vec(), false, true), (b"bc".to_vec(), true, true)]
        );
        assert_eq!(
            parts(b"./../x"),
            [
                (b".".to_vec(), false, true),
                (b"..".to_vec(), false, true),
                (b"x".to_vec(), true, false)
            ]
        );
    }

    #[test]
    fn a_name_of_any_length_ends_at_its_slash() {
        for before in 0..20 {
            for length in 1..40 {
                // Bytes that differ from a slash in one bit, or look like one to the left of it.
                let name: Vec<u8> =
                    (0..length).map(|at| [b'.', b'0', 0xaf, 0x2e][at % 4]).collect();
                for behind in [&b""[..], b"/", b"/x", b"//0123456789"] {
                    let path = [&b"/".repeat(before)[..], &name, behind].concat();
                    let mut buffer = Way::new();
                    buffer.load(&path).expect("short");
                    let last = path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
                    let is_name = !matches!(&path[last..], b"" | b"." | b"..");
                    assert_eq!(buffer.last_name(), is_name.then_some(last), "{path:?}");
                    let words: Vec<u8> = buffer.words(last).flat_map(u64::to_le_bytes).collect();
                    assert_eq!(words.len(), last.next_multiple_of(8));
                    assert!(words[..last] == path[..last] && words[last..].iter().all(|b| *b == 0));
                    let part = buffer.take().expect("a name");
                    assert_eq!(buffer.name(part), name, "{before} {length} {behind:?}");
                    assert_eq!(part.slash, !behind.is_empty());
                    assert_eq!(part.is_last, behind.len() < 2);
                    assert_eq!(buffer.outside(), behind);
                }
            }
        }
    }

    #[test]
    fn names_end_where_they_are_no_names() {
        let long = [b'x'; NAME_BYTES_MAX + 1];
        for (path, last_counts, names) in [
            (&b"a/b//c"[..], true, (&b"a/b//c"[..], 3)),
            (b"a/b//c", false, (b"a/b", 2)),
            (b"a/b/c///", false, (b"a/b", 2)),
            (b"//a/./b", true, (b"//a", 1)),
            (b"a/../b", true, (b"a", 1)),
            (b"..", true, (b"", 0)),
            (b"//", true, (b"", 0)),
            (b"a", false, (b"", 0)),
            (b"1/2/3/4/5/6/7/8/9/0", true, (b"1/2/3/4/5/6/7/8", 8)),
            (&long, true, (b"", 0)),
        ] {
            let mut buffer = Way::new();
            buffer.load(path).expect("short");
            assert_eq!(buffer.names(buffer.place(), last_counts), names);
        }
        let mut buffer = Way::new();
        buffer.load(b"a/b/c").expect("short");
        buffer.take().expect("a component");
        assert_eq!(buffer.names(buffer.place(), true), (&b"/b/c"[..], 2));
    }

    #[test]
    fn too_long_and_empty_paths_are_refused() {
        let mut buffer = Way::new();
        assert_eq!(buffer.load(b""), Err(Errno::ENOENT));
        assert_eq!(buffer.load(&[b'x'; PATH_BYTES_MAX]), Err(Errno::ENAMETOOLONG));
        assert_eq!(buffer.load(&[b'x'; PATH_BYTES_MAX - 1]), Ok(()));
        assert_eq!(buffer.put_before(b"y"), Err(Errno::ENAMETOOLONG));
    }

    #[test]
    fn a_link_takes_the_place_of_its_name() {
        let mut buffer = Way::new();
        buffer.load(b"link/rest/more").expect("short");
        buffer.take().expect("a component");
        buffer.put_before(b"/fb/target").expect("fits");
        assert_eq!(buffer.outside(), b"/fb/target/rest/more");
        assert!(buffer.is_absolute());
        assert!(!buffer.enter(b"/f"));
        assert!(buffer.enter(b"/fb"));
        assert_eq!(buffer.outside(), b"/target/rest/more");
    }

    #[test]
    fn leaving_upwards_starts_above_the_prefix() {
        for (path, prefix, outside) in [
            (&b"../x"[..], &b"/mnt/fb"[..], &b"/mnt/x"[..]),
            (b"..", b"/mnt/fb", b"/mnt"),
            (b"..", b"/fb", b"/"),
            (b"../", b"/fb", b"/"),
            (b"../../x", b"/fb", b"/../x"),
        ] {
            let mut buffer = Way::new();
            buffer.load(path).expect("short");
            buffer.take().expect("a component");
            buffer.leave_upwards(prefix).expect("fits");
            assert_eq!(buffer.outside(), outside);
            assert!(buffer.is_outside);
        }
    }
}
