//! Paths: the starting point of a path, and the buffer in which a walk parses it and inserts links.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use shm::scratch::ScratchBuffer;
use wire::attributes::ATTRIBUTES_BYTES;
use wire::errno::{Errno, Result};
use wire::limits::{NAME_BYTES_MAX, PATH_BYTES_MAX, WALK_NAMES_MAX};
use wire::{Attributes, Inode};

const ATTRIBUTES_WORDS: usize = ATTRIBUTES_BYTES / 8;

/// A path relative to a directory of the instance. Leading slashes are ignored.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    /// The starting directory.
    pub base: Inode,
    /// The path, without a NUL. Empty: `ENOENT`; `.` is the directory itself.
    pub path: &'a [u8],
    /// The base itself is meant, whatever kind of file it is; `path` is empty.
    pub(crate) is_base: bool,
}

impl<'a> At<'a> {
    /// A path relative to the root of the instance.
    #[must_use]
    pub const fn root(path: &'a [u8]) -> At<'a> {
        At { base: Inode::ROOT, path, is_base: false }
    }

    /// A path relative to an open directory.
    #[must_use]
    pub const fn relative(base: Inode, path: &'a [u8]) -> At<'a> {
        At { base, path, is_base: false }
    }

    /// The file `inode` itself.
    #[must_use]
    pub const fn itself(inode: Inode) -> At<'a> {
        At { base: inode, path: &[], is_base: true }
    }
}

/// Whether a symbolic link in the last component is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follow {
    /// Always.
    Yes,
    /// Only if a slash ends the path.
    No,
    /// Not even with a slash: for calls that change the name itself.
    Never,
}

/// Where a path leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome<T> {
    /// Into the instance; the call is done.
    Done(T),
    /// Out of the instance, by a symbolic link or `..`: `PathBuffer::outside` has the path to
    /// continue with.
    Outside,
    /// To a pipe or a device, which only the kernel can open.
    Special(Attributes),
}

impl<T> Outcome<T> {
    /// Applies `with` to the value.
    pub(crate) fn and<R>(self, with: impl FnOnce(T) -> Result<R>) -> Result<Outcome<R>> {
        Ok(match self {
            Outcome::Done(value) => Outcome::Done(with(value)?),
            Outcome::Outside => Outcome::Outside,
            Outcome::Special(attributes) => Outcome::Special(attributes),
        })
    }
}

/// Scratch space of one walk: the path and the attributes that it meets.
pub struct PathBuffer {
    pub(crate) cursor: PathCursor,
    /// The directory that the walk is in, and what it found there.
    pub(crate) met: [Attributes; 2],
}

impl PathBuffer {
    /// An empty buffer.
    #[must_use]
    pub const fn new() -> PathBuffer {
        PathBuffer {
            cursor: PathCursor::new(),
            met: [Attributes::from_words(&[0; ATTRIBUTES_WORDS]); 2],
        }
    }

    /// After `Outcome::Outside`: the absolute path to continue with, without a NUL.
    #[must_use]
    pub fn outside(&self) -> &[u8] {
        self.cursor.outside()
    }

    /// True if the last walk with this buffer left the instance.
    #[must_use]
    pub const fn is_outside(&self) -> bool {
        self.cursor.is_outside
    }
}

impl Default for PathBuffer {
    fn default() -> PathBuffer {
        PathBuffer::new()
    }
}

/// A path during a walk. The unparsed rest is `next .. end`.
pub(crate) struct PathCursor {
    buffer: ScratchBuffer<{ PATH_BYTES_MAX + 8 }>,
    next: usize,
    end: usize,
    is_outside: bool,
}

/// One component of a path, as a range of the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Component {
    pub(crate) start: usize,
    end: usize,
    /// No component follows.
    pub(crate) is_last: bool,
    /// A slash follows.
    pub(crate) slash: bool,
}

impl PathCursor {
    pub(crate) const fn new() -> PathCursor {
        PathCursor { buffer: ScratchBuffer::new(), next: 0, end: 0, is_outside: false }
    }

    /// The unparsed rest of the path.
    pub(crate) fn outside(&self) -> &[u8] {
        self.buffer.bytes().get(self.next..self.end).unwrap_or(&[])
    }

    /// Loads a path to walk.
    ///
    /// # Errors
    /// `ENOENT` if it is empty, `ENAMETOOLONG` if no byte is left for a NUL.
    pub(crate) fn set_path(&mut self, path: &[u8]) -> Result<()> {
        self.is_outside = false;
        self.next = 0;
        self.end = 0;
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if path.len() >= PATH_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if !self.buffer.put(path) {
            return Err(Errno::ENAMETOOLONG);
        }
        self.end = path.len();
        Ok(())
    }

    /// The next component; `None` at the end.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Component> {
        let bytes = self.buffer.bytes().get(..self.end)?;
        let start = skip_slashes(bytes, self.next);
        if start >= self.end {
            return None;
        }
        let end = end_of_name(bytes, start);
        self.next = end;
        let slash = end < self.end;
        let is_last = !slash || skip_slashes(bytes, end) >= self.end;
        Some(Component { start, end, is_last, slash })
    }

    /// Start of the path's last name, before a walk. `None` if the path ends with a slash, `.` or
    /// `..`.
    pub(crate) fn last_name(&self) -> Option<usize> {
        let bytes = self.buffer.bytes().get(..self.end)?;
        let start = after_last_slash(bytes);
        let name = bytes.get(start..)?;
        (!matches!(name, b"" | b"." | b"..")).then_some(start)
    }

    /// True if the first `length` bytes are these words, the last padded with zeros.
    #[inline]
    pub(crate) fn is_of_words(&self, length: usize, words: &[AtomicU64]) -> bool {
        let (blocks, _) = self.buffer.bytes().as_chunks::<8>();
        let (whole, left) = (length / 8, length as u32 % 8);
        let is_same = blocks
            .iter()
            .zip(words)
            .take(whole)
            .all(|(block, word)| u64::from_le_bytes(*block) == word.load(Relaxed));
        // Eight bytes follow the path.
        is_same
            && (left == 0
                || blocks.get(whole).zip(words.get(whole)).is_some_and(|(block, word)| {
                    u64::from_le_bytes(*block) & !(u64::MAX << (left * 8)) == word.load(Relaxed)
                }))
    }

    /// The first `length` bytes as words of eight, the last padded with zeros.
    pub(crate) fn words(&self, length: usize) -> impl Iterator<Item = u64> {
        let bytes = self.buffer.bytes();
        (0..length).step_by(8).map(move |at| {
            let word = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>);
            let word = word.map_or(0, |word| u64::from_le_bytes(*word));
            let left = length.saturating_sub(at).min(8) as u32;
            word & u64::MAX >> 64u32.saturating_sub(left.saturating_mul(8))
        })
    }

    /// The last eight of the first `length` bytes, or fewer at the start of the path.
    pub(crate) fn word_before(&self, length: usize) -> u64 {
        let word = self.buffer.bytes().get(length.saturating_sub(8)..);
        word.and_then(<[u8]>::first_chunk::<8>).map_or(0, |word| u64::from_le_bytes(*word))
    }

    /// Skips the first `length` bytes.
    pub(crate) const fn skip(&mut self, length: usize) {
        self.next = length;
    }

    /// The bytes of a component that was taken and not replaced since.
    pub(crate) fn name(&self, part: Component) -> &[u8] {
        self.buffer.bytes().get(part.start..part.end).unwrap_or(&[])
    }

    /// Start of the unparsed rest.
    pub(crate) const fn place(&self) -> usize {
        self.next
    }

    /// The run of consecutive names that starts at `place`, as written in the path, and how many
    /// they are: at most `WALK_NAMES_MAX`, none of them `.`, `..` or too long. The path's last name
    /// is included only if `last_counts`.
    pub(crate) fn names(&self, place: usize, last_counts: bool) -> (&[u8], usize) {
        let rest = self.buffer.bytes().get(place..self.end).unwrap_or(&[]);
        let (mut at, mut end, mut count) = (0usize, 0usize, 0usize);
        while count < WALK_NAMES_MAX {
            let rest_after = rest.get(at..).unwrap_or(&[]);
            let start =
                at.saturating_add(rest_after.iter().take_while(|&&byte| byte == b'/').count());
            let name = rest.get(start..).unwrap_or(&[]);
            let length = name.iter().take_while(|&&byte| byte != b'/').count();
            let (name, rest_after) = name.split_at_checked(length).unwrap_or_default();
            let is_last = rest_after.iter().all(|&byte| byte == b'/');
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

    /// Inserts `front` before the unparsed rest: the target of a link in place of its name.
    ///
    /// # Errors
    /// `ENAMETOOLONG` if both do not fit.
    pub(crate) fn prepend(&mut self, front: &[u8]) -> Result<()> {
        let rest = self.end.saturating_sub(self.next);
        let end = front.len().checked_add(rest).ok_or(Errno::ENAMETOOLONG)?;
        if end >= PATH_BYTES_MAX || self.end > PATH_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let bytes = self.buffer.bytes_mut(end.max(self.end)).ok_or(Errno::ENAMETOOLONG)?;
        bytes.copy_within(self.next..self.end, front.len());
        bytes.get_mut(..front.len()).ok_or(Errno::ENAMETOOLONG)?.copy_from_slice(front);
        self.next = 0;
        self.end = end;
        Ok(())
    }

    /// Strips `prefix` from the rest if the rest is an absolute path below it. Returns whether it
    /// was.
    pub(crate) fn enter(&mut self, prefix: &[u8]) -> bool {
        let path = self.buffer.bytes().get(self.next..self.end).unwrap_or(&[]);
        let Some(rest) = path.strip_prefix(prefix) else { return false };
        if !rest.is_empty() && !rest.starts_with(b"/") {
            return false;
        }
        self.next = self.next.saturating_add(prefix.len());
        true
    }

    /// True if the unparsed rest is an absolute path.
    pub(crate) fn is_absolute(&self) -> bool {
        self.buffer.bytes().get(self.next..self.end).is_some_and(|path| path.starts_with(b"/"))
    }

    /// The path left the instance; the rest is where it leads.
    pub(crate) fn leave(&mut self) {
        self.is_outside = true;
    }

    /// Handles `..` in the root: the rest then starts in the directory that contains `prefix`.
    ///
    /// # Errors
    /// `ENAMETOOLONG`.
    pub(crate) fn leave_to_parent(&mut self, prefix: &[u8]) -> Result<()> {
        let length = prefix.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        let parent = prefix.get(..length).unwrap_or(&[]);
        // The rest is empty or starts with a slash.
        let is_root = parent.is_empty() && self.next >= self.end;
        self.prepend(if is_root { b"/" } else { parent })?;
        self.leave();
        Ok(())
    }

    /// Inserts a slash and `front` before the rest: for a path that is built from its end.
    ///
    /// # Errors
    /// `ENAMETOOLONG`.
    pub(crate) fn prepend_component(&mut self, front: &[u8]) -> Result<()> {
        self.prepend(front)?;
        self.prepend(b"/")
    }

    /// Empties the buffer.
    pub(crate) fn clear(&mut self) {
        self.next = 0;
        self.end = 0;
        self.is_outside = false;
    }
}

/// Offset after the last slash.
#[inline]
fn after_last_slash(bytes: &[u8]) -> usize {
    const LOW: u64 = u64::from_ne_bytes([0x7f; 8]);
    let mut rest = bytes;
    while let Some((front, word)) = rest.split_last_chunk::<8>() {
        let word = u64::from_le_bytes(*word) ^ u64::from_ne_bytes([b'/'; 8]);
        // Sets the top bit of each byte that is zero, and no other.
        let zeros = !((word & LOW).wrapping_add(LOW) | word | LOW);
        if zeros != 0 {
            return rest.len().saturating_sub((zeros.leading_zeros() / 8) as usize);
        }
        rest = front;
    }
    rest.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at.saturating_add(1))
}

/// First offset from `at` on that holds no slash.
#[inline]
fn skip_slashes(bytes: &[u8], at: usize) -> usize {
    let mut at = at;
    while bytes.get(at) == Some(&b'/') {
        at = at.saturating_add(1);
    }
    at
}

/// Offset of the first slash from `at` on, or the end. It compares eight bytes at a time; one at a
/// time took a quarter of a walk.
#[inline]
fn end_of_name(bytes: &[u8], at: usize) -> usize {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let mut at = at;
    while let Some(word) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*word) ^ ONES.wrapping_mul(u64::from(b'/'));
        // The lowest zero byte has its top bit set, and no byte before it has.
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
        let mut buffer = PathCursor::new();
        buffer.set_path(path).expect("a short path");
        let mut found = Vec::new();
        while let Some(part) = buffer.take() {
            found.push((buffer.name(part).to_vec(), part.is_last, part.slash));
        }
        found
    }

    #[test]
    fn a_path_is_split_into_components() {
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
                // Bytes that differ from a slash in one bit, or resemble one.
                let name: Vec<u8> =
                    (0..length).map(|at| [b'.', b'0', 0xaf, 0x2e][at % 4]).collect();
                for rest_after in [&b""[..], b"/", b"/x", b"//0123456789"] {
                    let path = [&b"/".repeat(before)[..], &name, rest_after].concat();
                    let mut buffer = PathCursor::new();
                    buffer.set_path(&path).expect("short");
                    let last = path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
                    let is_name = !matches!(&path[last..], b"" | b"." | b"..");
                    assert_eq!(buffer.last_name(), is_name.then_some(last), "{path:?}");
                    let words: Vec<u8> = buffer.words(last).flat_map(u64::to_le_bytes).collect();
                    assert_eq!(words.len(), last.next_multiple_of(8));
                    assert!(words[..last] == path[..last] && words[last..].iter().all(|b| *b == 0));
                    let part = buffer.take().expect("a name");
                    assert_eq!(buffer.name(part), name, "{before} {length} {rest_after:?}");
                    assert_eq!(part.slash, !rest_after.is_empty());
                    assert_eq!(part.is_last, rest_after.len() < 2);
                    assert_eq!(buffer.outside(), rest_after);
                }
            }
        }
    }

    #[test]
    fn a_batch_of_names_ends_at_dots_and_long_names() {
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
            let mut buffer = PathCursor::new();
            buffer.set_path(path).expect("short");
            assert_eq!(buffer.names(buffer.place(), last_counts), names);
        }
        let mut buffer = PathCursor::new();
        buffer.set_path(b"a/b/c").expect("short");
        buffer.take().expect("a component");
        assert_eq!(buffer.names(buffer.place(), true), (&b"/b/c"[..], 2));
    }

    #[test]
    fn too_long_and_empty_paths_are_refused() {
        let mut buffer = PathCursor::new();
        assert_eq!(buffer.set_path(b""), Err(Errno::ENOENT));
        assert_eq!(buffer.set_path(&[b'x'; PATH_BYTES_MAX]), Err(Errno::ENAMETOOLONG));
        assert_eq!(buffer.set_path(&[b'x'; PATH_BYTES_MAX - 1]), Ok(()));
        assert_eq!(buffer.prepend(b"y"), Err(Errno::ENAMETOOLONG));
    }

    #[test]
    fn a_link_target_replaces_the_name_of_the_link() {
        let mut buffer = PathCursor::new();
        buffer.set_path(b"link/rest/more").expect("short");
        buffer.take().expect("a component");
        buffer.prepend(b"/fb/target").expect("fits");
        assert_eq!(buffer.outside(), b"/fb/target/rest/more");
        assert!(buffer.is_absolute());
        assert!(!buffer.enter(b"/f"));
        assert!(buffer.enter(b"/fb"));
        assert_eq!(buffer.outside(), b"/target/rest/more");
    }

    #[test]
    fn leaving_upwards_starts_in_the_parent_of_the_prefix() {
        for (path, prefix, outside) in [
            (&b"../x"[..], &b"/mnt/fb"[..], &b"/mnt/x"[..]),
            (b"..", b"/mnt/fb", b"/mnt"),
            (b"..", b"/fb", b"/"),
            (b"../", b"/fb", b"/"),
            (b"../../x", b"/fb", b"/../x"),
        ] {
            let mut buffer = PathCursor::new();
            buffer.set_path(path).expect("short");
            buffer.take().expect("a component");
            buffer.leave_to_parent(prefix).expect("fits");
            assert_eq!(buffer.outside(), outside);
            assert!(buffer.is_outside);
        }
    }
}
