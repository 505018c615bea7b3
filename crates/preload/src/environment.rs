//! The environment as the loader passes it: read in the constructor, without libc.

use core::ffi::{CStr, c_char};

/// The process's environment at start.
#[derive(Clone, Copy, Debug)]
pub struct Environment(*const *const c_char);

impl Environment {
    /// # Safety
    /// `strings` is null or an array of C strings that ends with null and outlives the process's
    /// constructors.
    // SAFETY: nothing is read here; `get` relies on the caller's promise.
    // WHY: no type can express that a pointer leads to strings.
    #[must_use]
    pub unsafe fn new(strings: *const *const c_char) -> Self {
        Self(strings)
    }

    /// The value of a variable.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&'static CStr> {
        let mut at = self.0;
        if at.is_null() {
            return None;
        }
        // WHY: libc is not ready while its constructors run, so only what the loader passed can be
        // read.
        // SAFETY: `new`'s promise: entries up to null are C strings.
        unsafe {
            while let Some(entry) = (*at).as_ref() {
                let entry = CStr::from_ptr(entry);
                let value = entry.to_bytes_with_nul().strip_prefix(name);
                if let Some([b'=', value @ ..]) = value {
                    return CStr::from_bytes_with_nul(value).ok();
                }
                at = at.add(1);
            }
        }
        None
    }
}
