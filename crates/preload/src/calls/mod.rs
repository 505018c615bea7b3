//! The file system calls of the application, one subject per file, on top of `client`.
//!
//! `handle` takes the number and the arguments of an intercepted call and returns `Some(result)` (a
//! value or a negative errno, as the kernel would return it) if the call concerns the instance,
//! `None` if it is the kernel's. Nothing here calls libc, allocates, or panics.
//!
//! A call is ours if it names, in this order: a descriptor in our table; an absolute path below the
//! prefix; a relative path whose base (a descriptor of ours, or the working directory) is ours. All
//! others go to the kernel untouched.

pub mod native;

pub mod user;

pub mod process;

pub mod names;

pub mod files;

mod table;

pub use table::handle;

use wire::errno::Errno;

/// Result of an intercepted call for the application: a value or a negative errno.
pub type Answer = Option<i64>;

/// An error as the kernel returns it.
#[must_use]
pub const fn failed(errno: Errno) -> i64 {
    -(errno.0 as i64)
}

/// A result as the kernel returns it.
pub fn answer<T>(result: wire::errno::Result<T>) -> Answer
where
    i64: Returned<T>,
{
    Some(match result {
        Ok(value) => <i64 as Returned<T>>::returned(value),
        Err(errno) => {
            if errno == Errno::EFBIG {
                process::limits::note_too_large();
            }
            failed(errno)
        }
    })
}

/// Values that system calls return. Sizes never exceed `i64::MAX`: a call moves less than 2 GiB,
/// and offsets are checked below 2^63 where they are made.
pub trait Returned<T> {
    /// The value as the kernel would return it.
    fn returned(value: T) -> i64;
}

impl Returned<()> for i64 {
    fn returned((): ()) -> i64 {
        0
    }
}

impl Returned<usize> for i64 {
    fn returned(value: usize) -> i64 {
        i64::try_from(value).unwrap_or(i64::MAX)
    }
}

impl Returned<u64> for i64 {
    fn returned(value: u64) -> i64 {
        i64::try_from(value).unwrap_or(i64::MAX)
    }
}

impl Returned<u32> for i64 {
    fn returned(value: u32) -> i64 {
        i64::from(value)
    }
}

impl Returned<i32> for i64 {
    fn returned(value: i32) -> i64 {
        i64::from(value)
    }
}

impl Returned<i64> for i64 {
    fn returned(value: i64) -> i64 {
        value
    }
}
