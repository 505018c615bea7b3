//! Loads libfabric when the daemon starts, and its few real symbols. Everything else goes through
//! tables that its objects point to.

use crate::abi::{self, FabricAttr, FabricFid, Info};
use crate::error::{Error, Result};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;

/// The name of every release since 2014.
const NAME: &CStr = c"libfabric.so.1";

type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const Info,
    *mut *mut Info,
) -> c_int;
type OpenFabric = unsafe extern "C" fn(*mut FabricAttr, *mut *mut FabricFid, *mut c_void) -> c_int;

/// The loaded library. It stays loaded: its providers may have threads.
#[derive(Clone, Copy)]
pub struct Library {
    pub(crate) getinfo: GetInfo,
    pub(crate) freeinfo: unsafe extern "C" fn(*mut Info),
    pub(crate) dupinfo: unsafe extern "C" fn(*const Info) -> *mut Info,
    pub(crate) fabric: OpenFabric,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    version: u32,
}

impl Library {
    /// Loads the library of this host.
    ///
    /// # Errors
    /// `Absent`, in one line: there is none, or it is too old.
    pub fn load() -> Result<Library> {
        Library::load_named(NAME)
    }

    /// Loads the library from another name or path.
    ///
    /// # Errors
    /// As `load`.
    pub fn load_named(name: &CStr) -> Result<Library> {
        // WHY: the library belongs to the site; linking would make every installation need one.
        // SAFETY: a C string; the constructors of the library are installed by the site to be
        // loaded into programs. `dlerror` is the calling thread's own and is copied at once.
        let handle = unsafe {
            let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            if handle.is_null() {
                let text = libc::dlerror();
                let known = !text.is_null();
                let text = if known { CStr::from_ptr(text) } else { c"no reason given" };
                return Err(Error::Absent(text.to_string_lossy().into_owned()));
            }
            handle
        };
        let symbol = |name: &CStr| {
            // SAFETY: the handle is good, the name is a C string.
            let at = unsafe { libc::dlsym(handle, name.as_ptr()) };
            let missing = || Error::Absent(format!("no {} in it", name.to_string_lossy()));
            if at.is_null() { Err(missing()) } else { Ok(at) }
        };
        // SAFETY: these are functions of exactly these types since interface 1.3; `dlsym` finds the
        // newest version of each, whose structures have the same beginnings.
        let (library, version) = unsafe {
            let version: unsafe extern "C" fn() -> u32 = transmute(symbol(c"fi_version")?);
            let library = Library {
                getinfo: transmute::<*mut c_void, GetInfo>(symbol(c"fi_getinfo")?),
                freeinfo: transmute::<*mut c_void, unsafe extern "C" fn(*mut Info)>(symbol(
                    c"fi_freeinfo",
                )?),
                dupinfo: transmute::<*mut c_void, unsafe extern "C" fn(*const Info) -> *mut Info>(
                    symbol(c"fi_dupinfo")?,
                ),
                fabric: transmute::<*mut c_void, OpenFabric>(symbol(c"fi_fabric")?),
                strerror: transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> *const c_char>(
                    symbol(c"fi_strerror")?,
                ),
                version: 0,
            };
            (library, version())
        };
        if version < abi::LIBRARY_VERSION_MIN {
            let (have, need) = (Version(version), Version(abi::LIBRARY_VERSION_MIN));
            return Err(Error::Absent(format!("it has version {have}, needed is {need}")));
        }
        Ok(Library { version, ..library })
    }

    /// Version of the library, major and minor.
    #[must_use]
    pub const fn version(&self) -> (u32, u32) {
        (self.version >> 16, self.version & 0xffff)
    }

    /// The library's text for an error number.
    #[must_use]
    pub fn text(&self, code: i32) -> String {
        // SAFETY: takes any number; answers with a string that is never freed, or with null.
        unsafe {
            let text = (self.strerror)(code.saturating_abs());
            if text.is_null() {
                return format!("error {code}");
            }
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }

    /// An error of one of the library's calls.
    pub(crate) fn failed(&self, call: &'static str, code: i32) -> Error {
        Error::Call { call, code: code.saturating_abs(), text: self.text(code) }
    }
}

struct Version(u32);

impl core::fmt::Display for Version {
    fn fmt(&self, to: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(to, "{}.{}", self.0 >> 16, self.0 & 0xffff)
    }
}
