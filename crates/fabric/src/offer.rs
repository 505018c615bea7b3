//! The library's offers on this host, and the choice among them.

use crate::abi::{self, Info};
use crate::error::{Error, Result};
use crate::library::Library;
use core::ffi::{CStr, c_char};
use core::ptr::{self, NonNull};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const FAMILY_IN: u16 = libc::AF_INET as u16;
const FAMILY_IN6: u16 = libc::AF_INET6 as u16;
/// `-FI_ENODATA`: nothing of the kind.
const NOTHING: i32 = -libc::ENODATA;

/// A provider on a device or interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The provider: `verbs;ofi_rxm`, `cxi`, `tcp` ..
    pub provider: String,
    /// The device or interface.
    pub domain: String,
    /// The local IP address, if it has one.
    pub address: Option<IpAddr>,
}

impl Offer {
    /// True if `name` is the provider's: whole, or the part before a `;`, which names the device's
    /// provider under a utility.
    #[must_use]
    pub fn is_named(&self, name: &str) -> bool {
        let own = self.provider.as_str();
        own == name || own.split(';').next() == Some(name)
    }

    /// Rank of the offer, less is better: the interface of `preferred` first, another that leaves
    /// this host next.
    fn distance(&self, preferred: Option<IpAddr>) -> u8 {
        match (self.address, preferred) {
            (Some(own), Some(preferred)) if own == preferred => 0,
            (Some(IpAddr::V6(own)), _) if own.is_unicast_link_local() => 2,
            (Some(own), _) if own.is_loopback() => 3,
            _ => 1,
        }
    }
}

/// The index in `offers` of the one to use: of `provider`, or without one of the provider that the
/// library lists first, as the best.
#[must_use]
pub fn choose(
    offers: &[Offer],
    provider: Option<&str>,
    preferred: Option<IpAddr>,
) -> Option<usize> {
    let first = offers.iter().find(|offer| match provider {
        Some(name) => offer.is_named(name),
        None => true,
    })?;
    let alike = |(_, offer): &(usize, &Offer)| offer.provider == first.provider;
    let nearest = |(_, offer): &(usize, &Offer)| offer.distance(preferred);
    offers.iter().enumerate().filter(alike).min_by_key(nearest).map(|(place, _)| place)
}

/// The answer of `fi_getinfo`.
pub(crate) struct Infos {
    library: Library,
    head: NonNull<Info>,
}

impl Infos {
    /// Asks for reliable endpoints with remote memory access. With `delivered`, writes complete
    /// when their bytes are visible at the target; with `remote`, for other hosts. (The library's
    /// unrestricted list differs: 1.17 omits most of its providers there.)
    pub(crate) fn ask(library: &Library, delivered: bool, remote: bool) -> Result<Option<Infos>> {
        // SAFETY: null asks for a new structure with all its parts, which is freed below.
        let hints = NonNull::new(unsafe { (library.dupinfo)(ptr::null()) });
        let hints = hints.ok_or_else(|| library.failed("fi_dupinfo", libc::ENOMEM))?.as_ptr();
        let mut head = ptr::null_mut();
        // SAFETY: the structure and its parts were made by the library and are ours alone; the
        // result is a list of ours, or nothing was stored.
        let code = unsafe {
            // The capabilities that providers with RDMA document for such endpoints; messages are
            // not used.
            (*hints).caps = abi::CAP_MSG | abi::CAP_RMA;
            if remote {
                (*hints).caps |= abi::CAP_REMOTE_COMM;
            }
            (*hints).mode = abi::MODE_CONTEXT | abi::MODE_CONTEXT2;
            (*(*hints).ep_attr).kind = abi::EP_RDM;
            (*(*hints).domain_attr).threading = abi::THREAD_DOMAIN;
            (*(*hints).domain_attr).mr_mode = abi::MR_LOCAL
                | abi::MR_VIRT_ADDR
                | abi::MR_ALLOCATED
                | abi::MR_PROV_KEY
                | abi::MR_ENDPOINT;
            if delivered {
                (*(*hints).tx_attr).op_flags = abi::DELIVERY_COMPLETE;
            }
            let (node, service) = (ptr::null(), ptr::null());
            let version = abi::API_VERSION;
            let code = (library.getinfo)(version, node, service, 0, hints, &raw mut head);
            (library.freeinfo)(hints);
            code
        };
        match (code, NonNull::new(head)) {
            (0, Some(head)) => Ok(Some(Infos { library: *library, head })),
            (0 | NOTHING, _) => Ok(None),
            (code, _) => Err(library.failed("fi_getinfo", code)),
        }
    }

    fn each(&self) -> impl Iterator<Item = NonNull<Info>> + '_ {
        // SAFETY: the list is ours while `self` lives; its end is null.
        core::iter::successors(Some(self.head), |info| NonNull::new(unsafe { info.as_ref().next }))
    }

    pub(crate) fn offers(&self) -> Vec<Offer> {
        self.each()
            .map(|info| {
                // SAFETY: the library fills all parts of what it answers.
                unsafe {
                    let info = info.as_ref();
                    Offer {
                        provider: text((*info.fabric_attr).prov_name),
                        domain: text((*info.domain_attr).name),
                        address: address(info),
                    }
                }
            })
            .collect()
    }

    /// A copy of the one at index `place`, which the caller frees by `fi_freeinfo`.
    pub(crate) fn copy(&self, place: usize) -> Result<NonNull<Info>> {
        let info = self.each().nth(place).ok_or(Error::Unknown)?;
        // SAFETY: it is one of the list.
        let copy = unsafe { (self.library.dupinfo)(info.as_ptr()) };
        NonNull::new(copy).ok_or_else(|| self.library.failed("fi_dupinfo", libc::ENOMEM))
    }
}

impl Drop for Infos {
    fn drop(&mut self) {
        // SAFETY: the list is ours and nobody keeps a part of it.
        unsafe { (self.library.freeinfo)(self.head.as_ptr()) };
    }
}

impl Library {
    /// All offers of this host, in the library's order, best first.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn offers(&self) -> Result<Vec<Offer>> {
        Ok(Infos::ask(self, false, false)?.map(|infos| infos.offers()).unwrap_or_default())
    }
}

/// The text of a C string, empty for null.
///
/// # Safety
/// Null, or a C string.
unsafe fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: as this function demands.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

/// The local IP address, if it has one.
///
/// # Safety
/// `info` was made by the library.
unsafe fn address(info: &Info) -> Option<IpAddr> {
    let formats = [abi::FORMAT_SOCKADDR, abi::FORMAT_SOCKADDR_IN, abi::FORMAT_SOCKADDR_IN6];
    if info.src_addr.is_null() || !formats.contains(&info.addr_format) {
        return None;
    }
    // SAFETY: the library says how long its address is.
    let bytes = unsafe { core::slice::from_raw_parts(info.src_addr.cast(), info.src_addrlen) };
    parse(bytes)
}

/// The IP address within a `sockaddr`.
fn parse(bytes: &[u8]) -> Option<IpAddr> {
    let family = u16::from_ne_bytes(*bytes.first_chunk()?);
    match family {
        FAMILY_IN => Some(Ipv4Addr::from(*bytes.get(4..)?.first_chunk::<4>()?).into()),
        FAMILY_IN6 => Some(Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(provider: &str, address: Option<&str>) -> Offer {
        let address = address.map(|text| text.parse().expect("an address"));
        let domain = "device".to_owned();
        Offer { provider: provider.to_owned(), domain, address }
    }

    #[test]
    fn the_first_or_the_requested_provider_is_chosen_on_the_interface_of_the_address() {
        let offers = [
            offer("verbs;ofi_rxm", None),
            offer("shm", None),
            offer("tcp;ofi_rxm", Some("127.0.0.1")),
            offer("tcp;ofi_rxm", Some("fe80::1")),
            offer("tcp;ofi_rxm", Some("10.0.0.1")),
            offer("tcp;ofi_rxm", Some("10.1.0.1")),
        ];
        let preferred = |text: &str| Some(text.parse().expect("an address"));
        assert_eq!(choose(&offers, None, None), Some(0), "the best");
        assert_eq!(choose(&offers, Some("shm"), None), Some(1), "by its name");
        assert_eq!(choose(&offers, Some("tcp"), None), Some(4), "one that leaves the host");
        assert_eq!(choose(&offers, Some("tcp"), preferred("10.1.0.1")), Some(5));
        assert_eq!(choose(&offers, Some("tcp"), preferred("127.0.0.1")), Some(2));
        assert_eq!(choose(&offers, Some("tcp"), preferred("10.9.0.9")), Some(4), "not there");
        assert_eq!(choose(&offers, Some("tcp;ofi_rxm"), None), Some(4), "by its whole name");
        assert_eq!(choose(&offers, Some("verbs"), preferred("10.1.0.1")), Some(0));
        assert_eq!(choose(&offers, Some("cxi"), None), None);
        assert_eq!(choose(&offers[2..], None, preferred("10.1.0.1")), Some(3));
        assert_eq!(choose(&[], None, None), None);
    }

    #[test]
    fn a_socket_address_yields_its_ip_address() {
        let mut v4 = FAMILY_IN.to_ne_bytes().to_vec();
        v4.extend([0, 80, 10, 0, 0, 7]);
        assert_eq!(parse(&v4), Some("10.0.0.7".parse().expect("an address")));
        assert_eq!(parse(&v4[..7]), None);
        let mut v6 = FAMILY_IN6.to_ne_bytes().to_vec();
        v6.extend([0; 6]);
        v6.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(parse(&v6), Some("fd00::2".parse().expect("an address")));
        assert_eq!(parse(b"fi_shm://1"), None);
        assert_eq!(parse(&[]), None);
    }
}
