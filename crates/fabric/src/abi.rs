//! The C interface of libfabric as far as it is used: numbers, structures, tables of calls.
//!
//! The interface only grows: tables state their size, structures get fields at their end. So a
//! structure that the library makes is declared up to the last field that is used here, and is
//! never made or copied by us; those that we pass in are declared whole. `layout.rs` compares
//! sizes, offsets and numbers with the header where it is installed.

use core::ffi::{c_char, c_int, c_void};

/// The requested interface version; a newer library behaves like this one.
pub(crate) const API_VERSION: u32 = (1 << 16) | 14;
/// The oldest supported library: the interface above.
pub(crate) const LIBRARY_VERSION_MIN: u32 = API_VERSION;

// Capabilities of an endpoint, and access rights of a region.
pub(crate) const CAP_MSG: u64 = 1 << 1;
pub(crate) const CAP_RMA: u64 = 1 << 2;
pub(crate) const CAP_REMOTE_COMM: u64 = 1 << 52;
pub(crate) const READ: u64 = 1 << 8;
pub(crate) const WRITE: u64 = 1 << 9;
pub(crate) const RECV: u64 = 1 << 10;
pub(crate) const TRANSMIT: u64 = 1 << 11;
pub(crate) const REMOTE_READ: u64 = 1 << 12;
pub(crate) const REMOTE_WRITE: u64 = 1 << 13;
/// A write completes when its bytes are visible at the target.
pub(crate) const DELIVERY_COMPLETE: u64 = 1 << 28;

/// Its completion is reported.
pub(crate) const COMPLETION: u64 = 1 << 24;

// Memory that the caller provides for each operation: four or eight words.
pub(crate) const MODE_CONTEXT: u64 = 1 << 59;
pub(crate) const MODE_CONTEXT2: u64 = 1 << 52;

// Requirements of a provider for registered memory.
pub(crate) const MR_LOCAL: c_int = 1 << 2;
pub(crate) const MR_VIRT_ADDR: c_int = 1 << 4;
pub(crate) const MR_ALLOCATED: c_int = 1 << 5;
pub(crate) const MR_PROV_KEY: c_int = 1 << 6;
pub(crate) const MR_ENDPOINT: c_int = 1 << 9;

// Members of enumerations.
pub(crate) const EP_RDM: c_int = 3;
pub(crate) const THREAD_DOMAIN: c_int = 3;
pub(crate) const FORMAT_SOCKADDR: u32 = 1;
pub(crate) const FORMAT_SOCKADDR_IN: u32 = 2;
pub(crate) const FORMAT_SOCKADDR_IN6: u32 = 3;
pub(crate) const WAIT_NONE: c_int = 0;
pub(crate) const WAIT_FD: c_int = 3;
pub(crate) const CQ_FORMAT_CONTEXT: c_int = 1;
pub(crate) const CONTROL_GETWAIT: c_int = 5;
pub(crate) const CONTROL_ENABLE: c_int = 6;
pub(crate) const KEY_NOTAVAIL: u64 = u64::MAX;

/// Errors beyond those of the operating system.
pub(crate) const ERROR_AVAILABLE: i64 = 259;
/// The key is in use.
pub(crate) const ERROR_KEY: c_int = 266;

/// Words of memory that an operation keeps for the provider (`fi_context2`).
pub(crate) const CONTEXT_WORDS: usize = 8;

/// The first fields of every object.
#[repr(C)]
pub(crate) struct Fid {
    pub(crate) class: usize,
    pub(crate) context: *mut c_void,
    pub(crate) ops: *const FidOps,
}

/// Calls of every object.
#[repr(C)]
pub(crate) struct FidOps {
    pub(crate) size: usize,
    pub(crate) close: Option<unsafe extern "C" fn(*mut Fid) -> c_int>,
    pub(crate) bind: Option<unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int>,
    pub(crate) control: Option<unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int>,
}

/// Attributes for sending.
#[repr(C)]
pub(crate) struct TxAttr {
    pub(crate) caps: u64,
    pub(crate) mode: u64,
    pub(crate) op_flags: u64,
    pub(crate) msg_order: u64,
    pub(crate) comp_order: u64,
    pub(crate) inject_size: usize,
    pub(crate) size: usize,
}

/// Attributes of an endpoint.
#[repr(C)]
pub(crate) struct EpAttr {
    pub(crate) kind: c_int,
    pub(crate) protocol: u32,
    pub(crate) protocol_version: u32,
    pub(crate) max_msg_size: usize,
}

/// Attributes of a domain.
#[repr(C)]
pub(crate) struct DomainAttr {
    pub(crate) domain: *mut DomainFid,
    pub(crate) name: *mut c_char,
    pub(crate) threading: c_int,
    pub(crate) control_progress: c_int,
    pub(crate) data_progress: c_int,
    pub(crate) resource_mgmt: c_int,
    pub(crate) av_type: c_int,
    pub(crate) mr_mode: c_int,
    pub(crate) mr_key_size: usize,
}

/// Attributes of a fabric.
#[repr(C)]
pub(crate) struct FabricAttr {
    pub(crate) fabric: *mut FabricFid,
    pub(crate) name: *mut c_char,
    pub(crate) prov_name: *mut c_char,
}

/// One way to communicate; a list of them.
#[repr(C)]
pub(crate) struct Info {
    pub(crate) next: *mut Info,
    pub(crate) caps: u64,
    pub(crate) mode: u64,
    pub(crate) addr_format: u32,
    pub(crate) src_addrlen: usize,
    pub(crate) dest_addrlen: usize,
    pub(crate) src_addr: *mut c_void,
    pub(crate) dest_addr: *mut c_void,
    pub(crate) handle: *mut Fid,
    pub(crate) tx_attr: *mut TxAttr,
    pub(crate) rx_attr: *mut c_void,
    pub(crate) ep_attr: *mut EpAttr,
    pub(crate) domain_attr: *mut DomainAttr,
    pub(crate) fabric_attr: *mut FabricAttr,
}

/// A fabric.
#[repr(C)]
pub(crate) struct FabricFid {
    pub(crate) fid: Fid,
    pub(crate) ops: *const FabricOps,
}

type Opener<P, A, C> =
    Option<unsafe extern "C" fn(*mut P, *mut A, *mut *mut C, *mut c_void) -> c_int>;

/// Calls of a fabric.
#[repr(C)]
pub(crate) struct FabricOps {
    pub(crate) size: usize,
    pub(crate) domain: Opener<FabricFid, Info, DomainFid>,
    pub(crate) passive_ep: *const c_void,
    pub(crate) eq_open: *const c_void,
    pub(crate) wait_open: *const c_void,
    pub(crate) trywait: Option<unsafe extern "C" fn(*mut FabricFid, *mut *mut Fid, c_int) -> c_int>,
}

/// A domain: one device.
#[repr(C)]
pub(crate) struct DomainFid {
    pub(crate) fid: Fid,
    pub(crate) ops: *const DomainOps,
    pub(crate) mr: *const MrOps,
}

/// Calls of a domain.
#[repr(C)]
pub(crate) struct DomainOps {
    pub(crate) size: usize,
    pub(crate) av_open: Opener<DomainFid, AvAttr, AvFid>,
    pub(crate) cq_open: Opener<DomainFid, CqAttr, CqFid>,
    pub(crate) endpoint: Opener<DomainFid, Info, EpFid>,
}

/// Calls that register memory.
#[repr(C)]
pub(crate) struct MrOps {
    pub(crate) size: usize,
    /// Object, address, length, access, offset, requested key, flags, result, context.
    #[rustfmt::skip]
    pub(crate) reg: Option<unsafe extern "C" fn(
        *mut Fid, *const c_void, usize, u64, u64, u64, u64, *mut *mut MrFid, *mut c_void,
    ) -> c_int>,
}

/// Registered memory.
#[repr(C)]
pub(crate) struct MrFid {
    pub(crate) fid: Fid,
    pub(crate) mem_desc: *mut c_void,
    pub(crate) key: u64,
}

/// Attributes of an address vector; whole.
#[repr(C)]
pub(crate) struct AvAttr {
    pub(crate) kind: c_int,
    pub(crate) rx_ctx_bits: c_int,
    pub(crate) count: usize,
    pub(crate) ep_per_node: usize,
    pub(crate) name: *const c_char,
    pub(crate) map_addr: *mut c_void,
    pub(crate) flags: u64,
}

/// An address vector.
#[repr(C)]
pub(crate) struct AvFid {
    pub(crate) fid: Fid,
    pub(crate) ops: *const AvOps,
}

/// Calls of an address vector.
#[repr(C)]
pub(crate) struct AvOps {
    pub(crate) size: usize,
    #[rustfmt::skip]
    pub(crate) insert: Option<unsafe extern "C" fn(
        *mut AvFid, *const c_void, usize, *mut u64, u64, *mut c_void,
    ) -> c_int>,
    pub(crate) insertsvc: *const c_void,
    pub(crate) insertsym: *const c_void,
}

/// Attributes of a completion queue; whole.
#[repr(C)]
pub(crate) struct CqAttr {
    pub(crate) size: usize,
    pub(crate) flags: u64,
    pub(crate) format: c_int,
    pub(crate) wait_obj: c_int,
    pub(crate) signaling_vector: c_int,
    pub(crate) wait_cond: c_int,
    pub(crate) wait_set: *mut c_void,
}

/// A completion queue.
#[repr(C)]
pub(crate) struct CqFid {
    pub(crate) fid: Fid,
    pub(crate) ops: *const CqOps,
}

/// Calls of a completion queue.
#[repr(C)]
pub(crate) struct CqOps {
    pub(crate) size: usize,
    pub(crate) read: Option<unsafe extern "C" fn(*mut CqFid, *mut c_void, usize) -> isize>,
    pub(crate) readfrom: *const c_void,
    pub(crate) readerr: Option<unsafe extern "C" fn(*mut CqFid, *mut CqErrEntry, u64) -> isize>,
}

/// A completion; whole.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CqEntry {
    pub(crate) op_context: *mut c_void,
}

/// A completion with an error, with space for fields that the library adds (2.1: one word).
#[repr(C)]
pub(crate) struct CqErrEntry {
    pub(crate) op_context: *mut c_void,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) buf: *mut c_void,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    pub(crate) olen: usize,
    pub(crate) err: c_int,
    pub(crate) prov_errno: c_int,
    pub(crate) err_data: *mut c_void,
    pub(crate) err_data_size: usize,
    pub(crate) reserved: [u64; 16],
}

/// An endpoint.
#[repr(C)]
pub(crate) struct EpFid {
    pub(crate) fid: Fid,
    pub(crate) ops: *const c_void,
    pub(crate) cm: *const CmOps,
    pub(crate) msg: *const c_void,
    pub(crate) rma: *const RmaOps,
}

/// Calls for addresses.
#[repr(C)]
pub(crate) struct CmOps {
    pub(crate) size: usize,
    pub(crate) setname: *const c_void,
    pub(crate) getname: Option<unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int>,
}

/// A range of local bytes; whole. The system's structure is the same.
#[repr(C)]
pub(crate) struct Iovec {
    pub(crate) base: *mut c_void,
    pub(crate) length: usize,
}

/// A range of a peer's bytes; whole.
#[repr(C)]
pub(crate) struct RmaIov {
    pub(crate) addr: u64,
    pub(crate) len: usize,
    pub(crate) key: u64,
}

/// An operation; whole.
#[repr(C)]
pub(crate) struct MsgRma {
    pub(crate) msg_iov: *const Iovec,
    pub(crate) desc: *mut *mut c_void,
    pub(crate) iov_count: usize,
    pub(crate) addr: u64,
    pub(crate) rma_iov: *const RmaIov,
    pub(crate) rma_iov_count: usize,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
}

/// Endpoint, operation, flags.
pub(crate) type RmaCall = unsafe extern "C" fn(*mut EpFid, *const MsgRma, u64) -> isize;

/// Calls for remote memory.
#[repr(C)]
pub(crate) struct RmaOps {
    pub(crate) size: usize,
    pub(crate) read: *const c_void,
    pub(crate) readv: *const c_void,
    pub(crate) readmsg: Option<RmaCall>,
    pub(crate) write: *const c_void,
    pub(crate) writev: *const c_void,
    pub(crate) writemsg: Option<RmaCall>,
}
