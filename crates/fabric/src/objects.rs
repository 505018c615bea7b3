//! The objects of the library behind one endpoint: opened in order, called, closed in order.
//!
//! All C calls are here and in `library` and `offer`. Not here: transfers, and which memory
//! may be used (`endpoint`).

use crate::abi::{
    self, AvAttr, AvFid, AvOps, CmOps, CqAttr, CqEntry, CqErrEntry, CqFid, CqOps, DomainFid,
    DomainOps, EpFid, FabricFid, FabricOps, Fid, FidOps, Info, Iovec, MrFid, MrOps, MsgRma, RmaIov,
    RmaOps,
};
use crate::error::{Error, Result};
use crate::library::Library;
use crate::transfers::Kind;
use core::ffi::{c_int, c_void};
use core::mem::{MaybeUninit, offset_of};
use core::ptr::{self, NonNull};
use rustix::fd::BorrowedFd;

/// Longest address of a peer; the longest of a provider today has 64 bytes.
pub(crate) const ADDRESS_BYTES_MAX: usize = 256;

/// The call `$name` of a table, if there is a table and it reaches that far.
macro_rules! entry {
    ($table:expr, $type:ty, $name:ident) => {{
        let table: *const $type = $table;
        let reaches = !table.is_null() && (*table).size > offset_of!($type, $name);
        if reaches { (*table).$name } else { None }
    }};
}

/// Arguments of an operation.
pub(crate) struct Post {
    pub(crate) kind: Kind,
    pub(crate) local: *mut c_void,
    pub(crate) length: usize,
    pub(crate) region: NonNull<MrFid>,
    pub(crate) peer: u64,
    pub(crate) place: u64,
    pub(crate) key: u64,
    pub(crate) context: *mut c_void,
}

/// Result of an attempt to post.
pub(crate) enum Posted {
    Yes,
    /// Queues are full: take completions, then try again.
    Later,
    No(Error),
}

/// Null until it is opened.
pub(crate) struct Objects {
    library: Library,
    info: NonNull<Info>,
    fabric: *mut FabricFid,
    domain: *mut DomainFid,
    cq: *mut CqFid,
    av: *mut AvFid,
    ep: *mut EpFid,
    wait: Option<c_int>,
}

// SAFETY: the objects may be used from any thread, one at a time, which ownership and `&mut`
// ensure; they refer to nothing of the thread that made them.
unsafe impl Send for Objects {}

impl Objects {
    /// Opens everything up to an enabled endpoint. `info` is freed with the objects.
    pub(crate) fn open(library: Library, info: NonNull<Info>, completions: usize) -> Result<Self> {
        let null = ptr::null_mut();
        let mut own = Objects {
            library,
            info,
            fabric: ptr::null_mut(),
            domain: ptr::null_mut(),
            cq: ptr::null_mut(),
            av: ptr::null_mut(),
            ep: ptr::null_mut(),
            wait: None,
        };
        let none = || library.failed("open", libc::ENOSYS);
        let check =
            |call, code: c_int| if code == 0 { Ok(()) } else { Err(library.failed(call, code)) };
        // WHY: objects of C. On an error those that were opened are closed by `drop`.
        // SAFETY: `info` is whole; each object is made by its parent, which is not null after
        // success; attributes are whole structures that the library only reads during the call.
        unsafe {
            let attr = (*info.as_ptr()).fabric_attr;
            check("fi_fabric", (library.fabric)(attr, &raw mut own.fabric, null))?;
            let open = entry!((*own.fabric).ops, FabricOps, domain).ok_or_else(none)?;
            check("fi_domain", open(own.fabric, info.as_ptr(), &raw mut own.domain, null))?;
            let mut attr = AvAttr {
                kind: 0,
                rx_ctx_bits: 0,
                count: 0,
                ep_per_node: 0,
                name: ptr::null(),
                map_addr: null,
                flags: 0,
            };
            let open = entry!((*own.domain).ops, DomainOps, av_open).ok_or_else(none)?;
            check("fi_av_open", open(own.domain, &raw mut attr, &raw mut own.av, null))?;
            check("fi_cq_open", own.open_queue(completions))?;
            let open = entry!((*own.domain).ops, DomainOps, endpoint).ok_or_else(none)?;
            check("fi_endpoint", open(own.domain, info.as_ptr(), &raw mut own.ep, null))?;
            let ep = &raw mut (*own.ep).fid;
            let both = abi::TRANSMIT | abi::RECV;
            check("fi_ep_bind", bind(ep, &raw mut (*own.av).fid, 0))?;
            check("fi_ep_bind", bind(ep, &raw mut (*own.cq).fid, both))?;
            check("fi_enable", control(ep, abi::CONTROL_ENABLE, null))?;
        }
        Ok(own)
    }

    /// Opens the queue of completions, with a descriptor to wait for if the provider has one.
    ///
    /// # Safety
    /// The domain is open.
    unsafe fn open_queue(&mut self, size: usize) -> c_int {
        let mut attr = CqAttr {
            size,
            flags: 0,
            format: abi::CQ_FORMAT_CONTEXT,
            wait_obj: abi::WAIT_FD,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: ptr::null_mut(),
        };
        // SAFETY: as this function demands; the attributes are whole.
        unsafe {
            let Some(open) = entry!((*self.domain).ops, DomainOps, cq_open) else {
                return libc::ENOSYS;
            };
            let null = ptr::null_mut();
            if open(self.domain, &raw mut attr, &raw mut self.cq, null) == 0 {
                let mut fd: c_int = -1;
                let fid = &raw mut (*self.cq).fid;
                if control(fid, abi::CONTROL_GETWAIT, (&raw mut fd).cast()) == 0 && fd >= 0 {
                    self.wait = Some(fd);
                }
                return 0;
            }
            attr.wait_obj = abi::WAIT_NONE;
            open(self.domain, &raw mut attr, &raw mut self.cq, null)
        }
    }

    /// The local address.
    pub(crate) fn address(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; ADDRESS_BYTES_MAX];
        let mut length = bytes.len();
        // SAFETY: the endpoint is open; the library writes no more than the length says.
        let code = unsafe {
            match entry!((*self.ep).cm, CmOps, getname) {
                Some(get) => {
                    get(&raw mut (*self.ep).fid, bytes.as_mut_ptr().cast(), &raw mut length)
                }
                None => libc::ENOSYS,
            }
        };
        if code != 0 {
            return Err(self.library.failed("fi_getname", code));
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    /// The library's number for an address.
    pub(crate) fn insert(&mut self, address: &[u8]) -> Result<u64> {
        // Zeros behind it: providers read as much as their kind of address has, or up to a zero.
        let mut bytes = [0_u64; ADDRESS_BYTES_MAX / 4];
        for (word, part) in bytes.iter_mut().zip(address.chunks(8)) {
            let mut eight = [0; 8];
            eight.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
            *word = u64::from_ne_bytes(eight);
        }
        let mut number = u64::MAX;
        // SAFETY: the vector is open; the bytes are longer than any address and aligned as any.
        let count = unsafe {
            match entry!((*self.av).ops, AvOps, insert) {
                Some(insert) => {
                    let at = bytes.as_ptr().cast();
                    insert(self.av, at, 1, &raw mut number, 0, ptr::null_mut())
                }
                None => -libc::ENOSYS,
            }
        };
        match count {
            1 if number != u64::MAX => Ok(number),
            count if count < 0 => Err(self.library.failed("fi_av_insert", count)),
            _ => Err(self.library.failed("fi_av_insert", libc::EINVAL)),
        }
    }

    /// Registers memory under `preferred`, or under a key of the provider's if it makes its own.
    ///
    /// # Safety
    /// The memory stays mapped until the region is closed, and is used only as shared memory.
    pub(crate) unsafe fn register(
        &mut self,
        at: *mut u8,
        length: usize,
        access: u64,
        preferred: u64,
    ) -> core::result::Result<NonNull<MrFid>, c_int> {
        let mut region = ptr::null_mut();
        // SAFETY: the domain is open; the memory is as this function demands.
        unsafe {
            let Some(reg) = entry!((*self.domain).mr, MrOps, reg) else {
                return Err(libc::ENOSYS);
            };
            let (domain, null) = (&raw mut (*self.domain).fid, ptr::null_mut());
            let code =
                reg(domain, at.cast(), length, access, 0, preferred, 0, &raw mut region, null);
            if code != 0 {
                return Err(code.saturating_abs());
            }
            let region = NonNull::new(region).ok_or(libc::ENOMEM)?;
            let attr = (*self.info.as_ptr()).domain_attr;
            if (*attr).mr_mode & abi::MR_ENDPOINT != 0 {
                let fid = &raw mut (*region.as_ptr()).fid;
                let mut code = bind(fid, &raw mut (*self.ep).fid, 0);
                if code == 0 {
                    code = control(fid, abi::CONTROL_ENABLE, ptr::null_mut());
                }
                if code != 0 {
                    close(fid);
                    return Err(code.saturating_abs());
                }
            }
            Ok(region)
        }
    }

    /// Closes a region.
    pub(crate) fn unregister(&mut self, region: NonNull<MrFid>) -> Result<()> {
        // SAFETY: the region is open and of this domain.
        let code = unsafe { close(&raw mut (*region.as_ptr()).fid) };
        if code == 0 { Ok(()) } else { Err(self.library.failed("fi_close", code)) }
    }

    /// Posts one operation.
    ///
    /// # Safety
    /// Local bytes are in the region, the peer is one of this endpoint, and the bytes and the
    /// context's words stay until the operation's completion was read.
    pub(crate) unsafe fn post(&mut self, post: &Post) -> Posted {
        let Post { local, length, peer, place, key, context, .. } = *post;
        let own = Iovec { base: local, length };
        let theirs = RmaIov { addr: place, len: length, key };
        // SAFETY: the endpoint is enabled; everything the operation points to lives through the
        // call; the rest is as this function demands.
        let (name, code) = unsafe {
            let table = (*self.ep).rma;
            // The flag is given to each: 1.17 forgets that of the endpoint in its provider `net`.
            let (name, call, flags) = match post.kind {
                Kind::Read => ("fi_readmsg", entry!(table, RmaOps, readmsg), 0),
                Kind::Write => {
                    ("fi_writemsg", entry!(table, RmaOps, writemsg), abi::DELIVERY_COMPLETE)
                }
            };
            let Some(call) = call else {
                return Posted::No(self.library.failed(name, libc::ENOSYS));
            };
            let mut description = (*post.region.as_ptr()).mem_desc;
            let message = MsgRma {
                msg_iov: &raw const own,
                desc: &raw mut description,
                iov_count: 1,
                addr: peer,
                rma_iov: &raw const theirs,
                rma_iov_count: 1,
                context,
                data: 0,
            };
            (name, call(self.ep, &raw const message, flags | abi::COMPLETION))
        };
        match i32::try_from(code).unwrap_or(-libc::EIO) {
            0 => Posted::Yes,
            code if code == -libc::EAGAIN => Posted::Later,
            code => Posted::No(self.library.failed(name, code)),
        }
    }

    /// Reads completions; returns their number, or 0 if there is none now, or 1 after a call of
    /// `failed` for an operation that failed.
    pub(crate) fn completions(
        &mut self,
        entries: &mut [CqEntry],
        failed: &mut Option<(*mut c_void, Error)>,
    ) -> Result<usize> {
        // SAFETY: the queue is open, its format is that of the entries.
        let count = unsafe {
            let Some(read) = entry!((*self.cq).ops, CqOps, read) else {
                return Err(self.library.failed("fi_cq_read", libc::ENOSYS));
            };
            read(self.cq, entries.as_mut_ptr().cast(), entries.len())
        };
        let count = i64::try_from(count).unwrap_or(0);
        if count == -abi::ERROR_AVAILABLE {
            *failed = self.failure()?;
            return Ok(usize::from(failed.is_some()));
        }
        if count >= 0 {
            return Ok(usize::try_from(count).unwrap_or(0).min(entries.len()));
        }
        match i32::try_from(count).unwrap_or(-libc::EIO) {
            code if code == -libc::EAGAIN || code == -libc::EINTR => Ok(0),
            code => Err(self.library.failed("fi_cq_read", code)),
        }
    }

    fn failure(&mut self) -> Result<Option<(*mut c_void, Error)>> {
        // SAFETY: all of it is numbers and pointers, for which zeros are values; no space for more
        // data is offered.
        let mut entry: CqErrEntry = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the queue is open, the entry is whole.
        let count = unsafe {
            let Some(read) = entry!((*self.cq).ops, CqOps, readerr) else {
                return Err(self.library.failed("fi_cq_readerr", libc::ENOSYS));
            };
            read(self.cq, &raw mut entry, 0)
        };
        match i32::try_from(count).unwrap_or(-libc::EIO) {
            0 => Ok(None),
            code if code == -libc::EAGAIN => Ok(None),
            code if code < 0 => Err(self.library.failed("fi_cq_readerr", code)),
            _ => Ok(Some((entry.op_context, self.library.failed("transfer", entry.err)))),
        }
    }

    /// The descriptor to sleep on, if there is one and nothing has to be done before.
    pub(crate) fn sleep_on(&mut self) -> Option<BorrowedFd<'_>> {
        let fd = self.wait?;
        // SAFETY: fabric and queue are open; the descriptor is the queue's and open as long.
        unsafe {
            let trywait = entry!((*self.fabric).ops, FabricOps, trywait)?;
            let mut fids = [&raw mut (*self.cq).fid];
            let may_sleep = trywait(self.fabric, fids.as_mut_ptr(), 1) == 0;
            may_sleep.then(|| BorrowedFd::borrow_raw(fd))
        }
    }

    /// The descriptor to sleep on, if there is one.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor is the queue's, which is open as long as `self`.
        self.wait.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// True if there is a descriptor to sleep on.
    pub(crate) const fn has_descriptor(&self) -> bool {
        self.wait.is_some()
    }

    /// Leaves the objects open for the life of the process.
    pub(crate) const fn leave(&mut self) {
        self.ep = ptr::null_mut();
        self.cq = ptr::null_mut();
        self.av = ptr::null_mut();
        self.domain = ptr::null_mut();
        self.fabric = ptr::null_mut();
    }

    pub(crate) fn info(&self) -> &Info {
        // SAFETY: ours, whole, and not changed any more.
        unsafe { self.info.as_ref() }
    }

    /// Closes everything, regions included. False if an object refused to close: its memory must
    /// stay mapped then.
    ///
    /// The endpoint first: nothing is in flight after that. Some providers bind regions to
    /// endpoints and want those closed first, so objects that refuse are tried again after the
    /// others.
    pub(crate) fn close(&mut self, regions: impl Iterator<Item = NonNull<MrFid>>) -> bool {
        let mut open: Vec<*mut Fid> = vec![self.ep.cast()];
        open.extend(regions.map(|region| region.as_ptr().cast::<Fid>()));
        let rest = [self.cq.cast(), self.av.cast(), self.domain.cast(), self.fabric.cast()];
        open.extend::<[*mut Fid; 4]>(rest);
        for _ in 0..3 {
            // SAFETY: each begins with its `Fid`, was opened by us, and is not used after it
            // closed. A null object was not opened.
            open.retain(|&fid| !fid.is_null() && unsafe { close(fid) } != 0);
        }
        self.leave();
        if !open.is_empty() {
            tracing::warn!(
                objects = open.len(),
                "libfabric keeps objects open; so is their memory"
            );
        }
        open.is_empty()
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        self.close(core::iter::empty());
        // SAFETY: ours; the objects made from it are closed.
        unsafe { (self.library.freeinfo)(self.info.as_ptr()) };
    }
}

/// # Safety
/// The object is open.
unsafe fn close(fid: *mut Fid) -> c_int {
    // SAFETY: as this function demands.
    unsafe { entry!((*fid).ops, FidOps, close).map_or(libc::ENOSYS, |close| close(fid)) }
}

/// # Safety
/// Both objects are open.
unsafe fn bind(fid: *mut Fid, to: *mut Fid, flags: u64) -> c_int {
    // SAFETY: as this function demands.
    unsafe { entry!((*fid).ops, FidOps, bind).map_or(libc::ENOSYS, |bind| bind(fid, to, flags)) }
}

/// # Safety
/// The object is open, and the argument is the one that the command demands.
unsafe fn control(fid: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: as this function demands.
    unsafe {
        let control = entry!((*fid).ops, FidOps, control);
        control.map_or(libc::ENOSYS, |control| control(fid, command, argument))
    }
}
