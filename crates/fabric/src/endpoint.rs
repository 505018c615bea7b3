//! An endpoint: memory that peers may access, and transfers between local and remote memory.
//!
//! One thread owns it. Nothing moves unless that thread calls `poll` or `wait` now and then, on
//! both sides: most providers serve a peer's access only then.

use crate::abi::{self, CONTEXT_WORDS, CqEntry, MrFid};
use crate::error::{Error, Result};
use crate::library::Library;
use crate::objects::{ADDRESS_BYTES_MAX, Objects, Post, Posted};
use crate::offer::{Infos, Offer, choose};
use crate::transfers::{Completion, Kind, Order, Transfers};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr::{self, NonNull};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::BorrowedFd;
use shm::segment::Segment;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Completions that one call reads.
const BATCH: usize = 32;
/// Transfers tried for posting in one round: a peer that accepts nothing blocks no other.
const TRIES: usize = 8;
/// Keys that are tried before registering fails: they are random, and one may be in use.
const KEY_TRIES: usize = 4;
/// Polls for a completion that only yield the processor, before any sleep.
const POLLS: u32 = 200;
/// Longest sleep with a descriptor: providers do some of their work only when they are polled.
const SLEEP_MAX: Duration = Duration::from_millis(50);
/// Sleeps without a descriptor: first, longest.
const SHORT_SLEEP: Duration = Duration::from_micros(20);
/// Of a longer time between two polls, no more counts as time in which a peer accepted nothing.
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// See `SHORT_SLEEP`.
const SHORT_SLEEP_MAX: Duration = Duration::from_micros(250);

/// Options for opening an endpoint.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The provider, or none for the best.
    pub provider: Option<String>,
    /// Only providers that reach other hosts.
    pub remote: bool,
    /// The address whose interface is used, if the provider has one there.
    pub address: Option<IpAddr>,
    /// Maximum number of transfers in flight.
    pub transfers_max: u32,
    /// Time that a peer may accept nothing before transfers not posted yet end in an error.
    pub timeout: Duration,
    /// Longest part of a transfer that is posted at once; a provider may have a smaller limit.
    pub part_bytes_max: u64,
}

/// Access of peers to a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// None.
    Own,
    /// Read it.
    Read,
    /// Read and write it.
    ReadWrite,
}

/// A peer of one endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer(u32);

/// Registered memory of one endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region(Handle);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Handle {
    index: u32,
    generation: u32,
}

/// A region as peers name it. By byte, little-endian: key 8, base 8, length 8.
///
/// Any peer that knows it can access the memory: where we choose keys they are random, and a grant
/// is sent to authenticated peers only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The key.
    pub key: u64,
    /// Address of the region's first byte, as peers give it.
    pub base: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// Length of an encoded `Grant`.
pub const GRANT_BYTES: usize = 24;

impl Grant {
    /// The encoded form.
    #[must_use]
    pub fn encode(&self) -> [u8; GRANT_BYTES] {
        let mut bytes = [0; GRANT_BYTES];
        let words = [self.key, self.base, self.length];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes it.
    #[must_use]
    pub fn decode(bytes: &[u8; GRANT_BYTES]) -> Grant {
        let mut words = bytes.chunks_exact(8).map(|word| {
            let mut eight = [0; 8];
            eight.copy_from_slice(word);
            u64::from_le_bytes(eight)
        });
        let mut next = || words.next().unwrap_or(0);
        Grant { key: next(), base: next(), length: next() }
    }
}

/// A part of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The region.
    pub region: Region,
    /// Offset in it.
    pub offset: u64,
}

/// A part of a peer's grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemotePlace {
    /// The peer.
    pub peer: Peer,
    /// Its grant.
    pub grant: Grant,
    /// Offset in the grant.
    pub offset: u64,
}

struct Entry<T> {
    generation: u32,
    /// Transfers in flight that use it.
    uses: u32,
    value: Option<T>,
}

struct Registered {
    mr: NonNull<MrFid>,
    /// Keeps it mapped.
    memory: Arc<Segment>,
    at: *mut u8,
    length: u64,
    grant: Grant,
}

/// The provider's words for an operation. It keeps their address and writes to them.
type Context = UnsafeCell<[usize; CONTEXT_WORDS]>;

/// An open endpoint.
///
/// If transfers are in flight when it is dropped, the library keeps what they need, their memory
/// included, for the life of the process.
pub struct Endpoint {
    library: Library,
    offer: Offer,
    address: Vec<u8>,
    writes: bool,
    objects: Objects,
    regions: Vec<Entry<Registered>>,
    /// Mappings of regions that were removed: a provider may have begun to receive a peer's write
    /// there, and continues when more of it arrives.
    retired: Vec<Arc<Segment>>,
    peers: Vec<u64>,
    transfers: Transfers,
    timeout: Duration,
    /// Time of the last poll, if transfers waited to be posted then.
    blocked_at: Option<Instant>,
    contexts: Vec<Context>,
    polls: u32,
    /// How often the descriptor was readable with nothing to do.
    idle_polls: u32,
}

// SAFETY: the library's objects may be used by any one thread; pointers lead to memory that
// `regions` keep mapped, and to `contexts`, which is ours alone.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// Opens an endpoint.
    ///
    /// # Errors
    /// `Absent` if there is no such provider; errors of the library.
    pub fn open(library: Library, settings: &Settings) -> Result<Endpoint> {
        let found = |infos: Option<Infos>| {
            let infos = infos?;
            let offers = infos.offers();
            let place = choose(&offers, settings.provider.as_deref(), settings.address)?;
            Some((infos.copy(place), offers.into_iter().nth(place)?))
        };
        // Without delivery completion a write may end before the bytes are there: such providers
        // are only read from.
        let (writes, (info, offer)) = match found(Infos::ask(&library, true, settings.remote)?) {
            Some(found) => (true, found),
            None => match found(Infos::ask(&library, false, settings.remote)?) {
                Some(found) => (false, found),
                None => {
                    let name = settings.provider.as_deref().unwrap_or("at all");
                    let remote = if settings.remote { " for other hosts" } else { "" };
                    let text = format!("libfabric has no provider {name} here{remote}");
                    return Err(Error::Absent(text));
                }
            },
        };
        let info = info?;
        let most = settings.transfers_max.max(1);
        // SAFETY: the library made it whole.
        let (tx_max, part_max) = unsafe {
            let info = info.as_ref();
            ((*info.tx_attr).size, (*info.ep_attr).max_msg_size as u64)
        };
        let parts = u32::try_from(tx_max).unwrap_or(most).clamp(1, most);
        // Twice the operations: space for completions of peers' operations.
        let objects = Objects::open(library, info, 2 * parts as usize)?;
        let part_bytes_max = part_max.min(settings.part_bytes_max);
        Ok(Endpoint {
            library,
            offer,
            address: objects.address()?,
            writes,
            objects,
            regions: Vec::new(),
            retired: Vec::new(),
            peers: Vec::new(),
            transfers: Transfers::new(most, parts, part_bytes_max),
            timeout: settings.timeout,
            blocked_at: None,
            contexts: (0..parts).map(|_| UnsafeCell::new([0; CONTEXT_WORDS])).collect(),
            polls: 0,
            idle_polls: 0,
        })
    }

    /// The chosen offer.
    #[must_use]
    pub const fn offer(&self) -> &Offer {
        &self.offer
    }

    /// The local address, for a peer's `add_peer`.
    #[must_use]
    pub fn address(&self) -> &[u8] {
        &self.address
    }

    /// True if writes are possible: the provider reports when their bytes have arrived.
    #[must_use]
    pub const fn writes(&self) -> bool {
        self.writes
    }

    /// True if `wait` sleeps until something happens; otherwise it polls now and then.
    #[must_use]
    pub const fn sleeps(&self) -> bool {
        self.objects.has_descriptor()
    }

    /// Adds a peer by its address, for the life of the endpoint. Nothing is sent.
    ///
    /// # Errors
    /// `OutOfRange` if no address has this length; errors of the library.
    pub fn add_peer(&mut self, address: &[u8]) -> Result<Peer> {
        if address.is_empty() || address.len() >= ADDRESS_BYTES_MAX {
            return Err(Error::OutOfRange);
        }
        let number = self.objects.insert(address)?;
        let place = u32::try_from(self.peers.len()).map_err(|_| Error::OutOfRange)?;
        self.peers.push(number);
        Ok(Peer(place))
    }

    /// Registers a part of a mapping. It stays mapped until the endpoint is dropped, and each of
    /// its pages gets memory if the provider pins them.
    ///
    /// # Errors
    /// `OutOfRange`, `Refused` if the mapping is read-only; errors of the library.
    pub fn register(
        &mut self,
        memory: Arc<Segment>,
        offset: u64,
        length: u64,
        reach: Reach,
    ) -> Result<Region> {
        let base = memory.writable().ok_or(Error::Refused)?;
        let end = offset.checked_add(length).filter(|&end| end <= memory.len() as u64);
        let (Some(_), true) = (end, length > 0) else { return Err(Error::OutOfRange) };
        let (offset, bytes) = (to_usize(offset)?, to_usize(length)?);
        // SAFETY: `domain_attr` is a part of what the library made whole.
        let (mode, key_size) = unsafe {
            let attr = self.objects.info().domain_attr;
            ((*attr).mr_mode, (*attr).mr_key_size)
        };
        if mode & abi::MR_ALLOCATED != 0 {
            memory.populate(offset, bytes);
        }
        let access = abi::READ | abi::WRITE;
        let access = match reach {
            Reach::Own => access,
            Reach::Read => access | abi::REMOTE_READ,
            Reach::ReadWrite => access | abi::REMOTE_READ | abi::REMOTE_WRITE,
        };
        let at = base.wrapping_add(offset);
        let mut tries = KEY_TRIES;
        let mr = loop {
            let preferred = if mode & abi::MR_PROV_KEY == 0 { random_key(key_size)? } else { 0 };
            // SAFETY: in range of the mapping, which `memory` keeps until the region is closed; a
            // segment is used by atomics and raw copies alone.
            match unsafe { self.objects.register(at, bytes, access, preferred) } {
                Ok(mr) => break mr,
                Err(abi::ERROR_KEY) if tries > 1 => tries -= 1,
                Err(code) => return Err(self.library.failed("fi_mr_reg", code)),
            }
        };
        // SAFETY: the region is open.
        let key = unsafe { mr.as_ref().key };
        if key == abi::KEY_NOTAVAIL {
            self.objects.unregister(mr)?;
            return Err(Error::Refused);
        }
        let base = if mode & abi::MR_VIRT_ADDR != 0 { at.addr() as u64 } else { 0 };
        let grant = Grant { key, base, length };
        Ok(Region(insert(&mut self.regions, Registered { mr, memory, at, length, grant })))
    }

    /// The grant by which peers name a region.
    ///
    /// # Errors
    /// `Unknown`.
    pub fn grant(&self, region: Region) -> Result<Grant> {
        Ok(value(&self.regions, region.0)?.grant)
    }

    /// Removes a region: operations that peers begin later end in errors. Some bytes of operations
    /// begun before may still arrive, into the same mapping.
    ///
    /// # Errors
    /// `Unknown`, `Busy`, or errors of the library; it stays registered then.
    pub fn unregister(&mut self, region: Region) -> Result<()> {
        let mr = value(&self.regions, region.0)?.mr;
        idle(&self.regions, region.0)?;
        self.objects.unregister(mr)?;
        if let Some(registered) = remove(&mut self.regions, region.0)
            && !self.retired.iter().any(|other| Arc::ptr_eq(other, &registered.memory))
        {
            self.retired.push(registered.memory);
        }
        Ok(())
    }

    /// Begins to read `length` bytes of a peer's memory. It ends with a completion with `token`;
    /// until then the local bytes may change at any time.
    ///
    /// # Errors
    /// `OutOfRange`, `Unknown`, or `Full`; nothing was begun then.
    pub fn read(&mut self, to: Place, from: RemotePlace, length: u64, token: u64) -> Result<()> {
        self.begin(Kind::Read, to, from, length, token)
    }

    /// Begins to write `length` bytes to a peer's memory. When it ends the peer can see them.
    ///
    /// # Errors
    /// As `read`, and `Refused` if the provider does not report arrival.
    pub fn write(&mut self, from: Place, to: RemotePlace, length: u64, token: u64) -> Result<()> {
        if !self.writes {
            return Err(Error::Refused);
        }
        self.begin(Kind::Write, from, to, length, token)
    }

    fn begin(
        &mut self,
        kind: Kind,
        own: Place,
        other: RemotePlace,
        length: u64,
        token: u64,
    ) -> Result<()> {
        let registered = value(&self.regions, own.region.0)?;
        let peer = other.peer.0;
        self.peers.get(peer as usize).ok_or(Error::Unknown)?;
        let fits = |offset: u64, of: u64| {
            offset
                .checked_add(length)
                .is_some_and(|end| end <= of)
                .then_some(())
                .ok_or(Error::OutOfRange)
        };
        fits(own.offset, registered.length)?;
        fits(other.offset, other.grant.length)?;
        let last = other.grant.base.checked_add(other.grant.length);
        let place =
            last.and(other.grant.base.checked_add(other.offset)).ok_or(Error::OutOfRange)?;
        let region = own.region.0.index;
        let (within, key) = (own.offset, other.grant.key);
        let order = Order { kind, region, within, length, peer, place, key };
        self.transfers.begin(order, token, Instant::now())?;
        count(&mut self.regions, region, 1);
        self.post();
        Ok(())
    }

    /// Posts as many parts as possible.
    fn post(&mut self) {
        let mut tries = TRIES;
        while tries > 0 {
            let Some((part, order)) = self.transfers.next() else { return };
            match self.post_part(part, &order) {
                Posted::Yes => self.transfers.posted(Instant::now()),
                Posted::Later => {
                    self.transfers.postponed();
                    tries -= 1;
                }
                Posted::No(error) => self.transfers.refused(error),
            }
        }
    }

    fn post_part(&mut self, part: u32, order: &Order) -> Posted {
        let registered = self.regions.get(order.region as usize).and_then(|one| one.value.as_ref());
        let peer = self.peers.get(order.peer as usize).copied();
        let context = self.contexts.get(part as usize);
        let (Some(registered), Some(peer), Some(context)) = (registered, peer, context) else {
            return Posted::No(Error::Unknown);
        };
        let post = Post {
            kind: order.kind,
            // Both fit: `begin` compared them with the region's length.
            local: registered.at.wrapping_add(order.within as usize).cast(),
            length: order.length as usize,
            region: registered.mr,
            peer,
            place: order.place,
            key: order.key,
            context: context.get().cast(),
        };
        // SAFETY: the bytes are in the region, as `begin` checked. Region and peer are not removed
        // while the transfer is in flight (`uses`), the context is the part's until it ends, and
        // `drop` closes the endpoint before either is freed.
        unsafe { self.objects.post(&post) }
    }

    /// Polls once: advances transfers in flight, and takes the next completion.
    ///
    /// # Errors
    /// Errors of the queue itself: the endpoint is unusable.
    pub fn poll(&mut self) -> Result<Option<Completion>> {
        if let Some(completion) = self.ended() {
            return Ok(Some(completion));
        }
        let mut entries = [CqEntry { op_context: ptr::null_mut() }; BATCH];
        let mut failed = None;
        let found = self.objects.completions(&mut entries, &mut failed)?;
        match failed {
            Some((context, error)) => self.part_ended(context, Err(error)),
            None => {
                for entry in entries.iter().take(found) {
                    self.part_ended(entry.op_context, Ok(()));
                }
            }
        }
        self.post();
        self.expire();
        if found > 0 {
            (self.polls, self.idle_polls) = (0, 0);
        }
        self.polls = self.polls.saturating_add(1);
        Ok(self.ended())
    }

    fn part_ended(&mut self, context: *mut c_void, outcome: Result<()>) {
        let bytes = context.addr().wrapping_sub(self.contexts.as_ptr().addr());
        let part = u32::try_from(bytes / size_of::<Context>()).unwrap_or(u32::MAX);
        if !self.transfers.part_ended(part, outcome) {
            tracing::debug!(part, "libfabric ended an operation that is none of ours");
        }
    }

    /// Gives up transfers of which nothing was accepted for the timeout. Time in which this process
    /// itself did not run is not the peer's: of a pause between two polls little counts.
    fn expire(&mut self) {
        if !self.transfers.any_waiting() {
            self.blocked_at = None;
            return;
        }
        let now = Instant::now();
        let pause = self.blocked_at.replace(now).map_or(Duration::ZERO, |last| now - last);
        self.transfers.excuse(pause.saturating_sub(PAUSE_MAX));
        if let Some(before) = now.checked_sub(self.timeout) {
            self.transfers.expire(before, &self.library.failed("post", libc::ETIMEDOUT));
        }
    }

    fn ended(&mut self) -> Option<Completion> {
        let (order, completion) = self.transfers.take_ended()?;
        count(&mut self.regions, order.region, -1);
        Some(completion)
    }

    /// Waits for the end of a transfer until `deadline`; `None` if there was none. Operations of
    /// peers are served meanwhile.
    ///
    /// A transfer that did not end in time is still in flight: its bytes may change until its
    /// completion comes or the endpoint is dropped.
    ///
    /// # Errors
    /// As `poll`.
    pub fn wait(&mut self, deadline: Instant) -> Result<Option<Completion>> {
        loop {
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
            let now = Instant::now();
            if now >= deadline {
                return Ok(None);
            }
            self.pause(deadline - now);
        }
    }

    /// The descriptor that becomes readable when there is something to do, if the provider has one;
    /// to be slept on for at most the time that `sleep_time_max` returns.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.objects.descriptor()
    }

    /// Maximum time that the owner may sleep on the descriptor before it polls again, if peers or
    /// transfers are busy.
    pub fn sleep_time_max(&mut self) -> Duration {
        if self.transfers.any_waiting() || !self.objects.has_descriptor() {
            SHORT_SLEEP_MAX
        } else if self.objects.sleep_on().is_some() {
            SLEEP_MAX
        } else {
            Duration::ZERO
        }
    }

    /// Yields, and sleeps after many polls that found nothing.
    fn pause(&mut self, most: Duration) {
        let Some(more) = self.polls.checked_sub(POLLS) else {
            std::thread::yield_now();
            return;
        };
        // A transfer that waits to be posted is tried again soon: nothing signals when it would be
        // accepted.
        let is_blocked = self.transfers.any_waiting();
        // In 1.17 the descriptor of `net` stays readable, or it may never be slept on.
        if self.objects.has_descriptor() && self.idle_polls < POLLS {
            let mut found = true;
            if let Some(fd) = self.objects.sleep_on() {
                let longest = if is_blocked { SHORT_SLEEP_MAX } else { SLEEP_MAX };
                let time = rustix::event::Timespec::try_from(most.min(longest)).ok();
                let mut polled = [PollFd::new(&fd, PollFlags::IN)];
                found = rustix::event::poll(&mut polled, time.as_ref()) != Ok(0);
            }
            self.idle_polls = if found { self.idle_polls + 1 } else { 0 };
        } else {
            std::thread::sleep((SHORT_SLEEP * (more / 16 + 1)).min(SHORT_SLEEP_MAX).min(most));
        }
    }
}

impl Endpoint {
    fn leave_memory(&mut self) {
        core::mem::forget(core::mem::take(&mut self.regions));
        core::mem::forget(core::mem::take(&mut self.retired));
        core::mem::forget(core::mem::take(&mut self.contexts));
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if self.transfers.any_under_way() {
            // 1.17 accesses freed memory when it closes an endpoint (`ofi_rxm`) in this state.
            tracing::warn!("libfabric has transfers under way; their memory is left to it");
            self.objects.leave();
            self.leave_memory();
            return;
        }
        let regions = self.regions.iter().filter_map(|one| one.value.as_ref());
        if !self.objects.close(regions.map(|one| one.mr)) {
            // A device may still write there: a leak is better than writes to reused memory.
            self.leave_memory();
        }
    }
}

fn insert<T>(table: &mut Vec<Entry<T>>, value: T) -> Handle {
    let free = table.iter().position(|entry| entry.value.is_none());
    let index = free.unwrap_or(table.len());
    if free.is_none() {
        table.push(Entry { generation: 0, uses: 0, value: None });
    }
    let mut generation = 0;
    if let Some(entry) = table.get_mut(index) {
        entry.value = Some(value);
        generation = entry.generation;
    }
    Handle { index: u32::try_from(index).unwrap_or(u32::MAX), generation }
}

fn find<T>(table: &[Entry<T>], handle: Handle) -> Result<&Entry<T>> {
    let entry = table.get(handle.index as usize);
    entry.filter(|entry| entry.generation == handle.generation).ok_or(Error::Unknown)
}

fn value<T>(table: &[Entry<T>], handle: Handle) -> Result<&T> {
    find(table, handle)?.value.as_ref().ok_or(Error::Unknown)
}

fn idle<T>(table: &[Entry<T>], handle: Handle) -> Result<()> {
    if find(table, handle)?.uses == 0 { Ok(()) } else { Err(Error::Busy) }
}

fn remove<T>(table: &mut [Entry<T>], handle: Handle) -> Option<T> {
    let entry = table.get_mut(handle.index as usize)?;
    entry.generation = entry.generation.wrapping_add(1);
    entry.value.take()
}

fn count<T>(table: &mut [Entry<T>], index: u32, by: i32) {
    if let Some(entry) = table.get_mut(index as usize) {
        entry.uses = entry.uses.saturating_add_signed(by);
    }
}

fn to_usize(number: u64) -> Result<usize> {
    usize::try_from(number).map_err(|_| Error::OutOfRange)
}

/// A key that cannot be guessed, as long as the provider's keys.
fn random_key(bytes: usize) -> Result<u64> {
    let mut key = [0; 8];
    let lost = |_| Error::Absent("the system has no random numbers".to_owned());
    getrandom::fill(key.get_mut(..bytes.min(8)).unwrap_or_default()).map_err(lost)?;
    Ok(u64::from_le_bytes(key))
}
