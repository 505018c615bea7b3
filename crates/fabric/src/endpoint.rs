//! An endpoint: memory that peers may reach, and transfers from and to theirs.
//!
//! One thread owns it. Nothing moves unless that thread calls `look` or `wait` now and then, on both
//! sides: most providers serve a peer's access only then.

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

/// Completions that are read by one call.
const BATCH: usize = 32;
/// Transfers whose posting is tried in one round: a peer that takes nothing holds up no other.
const TRIES: usize = 8;
/// Keys that are tried before registering fails: they are random, and the table may know one.
const KEY_TRIES: usize = 4;
/// Looks for a completion that only yield the processor, before any sleep.
const LOOKS: u32 = 200;
/// Longest sleep with a descriptor: providers do some of their work only when they are asked.
const SLEEP_MAX: Duration = Duration::from_millis(50);
/// Sleeps without a descriptor: first, longest.
const NAP: Duration = Duration::from_micros(20);
/// See `NAP`.
const NAP_MAX: Duration = Duration::from_micros(250);

/// How an endpoint is opened.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The provider, or none for the best.
    pub provider: Option<String>,
    /// Only what reaches other hosts.
    pub far: bool,
    /// The address whose interface is taken, if the provider has one there.
    pub address: Option<IpAddr>,
    /// Most transfers that are under way.
    pub transfers_max: u32,
    /// How long a peer may take nothing before transfers that were not posted yet end in an error.
    pub patience: Duration,
    /// Longest part of a transfer that is posted at once; a provider may have a smaller limit.
    pub part_bytes_max: u64,
}

/// What peers may do with a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Nothing.
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
/// Who knows it can reach the memory: where keys are ours to choose they are random, and it is
/// to be sent to proven peers only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The key.
    pub key: u64,
    /// What the region's first byte is called.
    pub base: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// Bytes of an encoded `Grant`.
pub const GRANT_BYTES: usize = 24;

impl Grant {
    /// As it is sent.
    #[must_use]
    pub fn encode(&self) -> [u8; GRANT_BYTES] {
        let mut bytes = [0; GRANT_BYTES];
        let words = [self.key, self.base, self.length];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// As it came.
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

/// A part of what a peer granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemotePlace {
    /// The peer.
    pub peer: Peer,
    /// What it granted.
    pub grant: Grant,
    /// Offset in that.
    pub offset: u64,
}

struct Entry<T> {
    generation: u32,
    /// Transfers under way that use it.
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

/// The provider's words for an operation. It has the address of those and writes to them.
type Context = UnsafeCell<[usize; CONTEXT_WORDS]>;

/// An open endpoint.
///
/// If transfers are under way when it is dropped, the library keeps what they need, their memory
/// included, for as long as the process lives.
pub struct Endpoint {
    library: Library,
    offer: Offer,
    address: Vec<u8>,
    writes: bool,
    objects: Objects,
    regions: Vec<Entry<Registered>>,
    /// Mappings of regions that were removed: a provider may have begun to receive there what a
    /// peer writes, and goes on when more of it comes.
    retired: Vec<Arc<Segment>>,
    peers: Vec<u64>,
    transfers: Transfers,
    patience: Duration,
    contexts: Vec<Context>,
    looks: u32,
    /// How often the descriptor was readable without anything to look for.
    vain: u32,
}

// SAFETY: the library's objects may be used by any one thread; pointers lead to memory that `regions`
// keep mapped, and to `contexts`, which is ours alone.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// Opens one.
    ///
    /// # Errors
    /// `Absent` if there is no such provider, or what the library says.
    pub fn open(library: Library, settings: &Settings) -> Result<Endpoint> {
        let found = |infos: Option<Infos>| {
            let infos = infos?;
            let offers = infos.offers();
            let place = choose(&offers, settings.provider.as_deref(), settings.address)?;
            Some((infos.copy(place), offers.into_iter().nth(place)?))
        };
        // Without a word on delivery a write may end before the bytes are there: such providers
        // are read from.
        let (writes, (info, offer)) = match found(Infos::ask(&library, true, settings.far)?) {
            Some(found) => (true, found),
            None => match found(Infos::ask(&library, false, settings.far)?) {
                Some(found) => (false, found),
                None => {
                    let name = settings.provider.as_deref().unwrap_or("at all");
                    let far = if settings.far { " for other hosts" } else { "" };
                    let text = format!("libfabric has no provider {name} here{far}");
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
        // Twice the operations: room for ends of what peers do.
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
            patience: settings.patience,
            contexts: (0..parts).map(|_| UnsafeCell::new([0; CONTEXT_WORDS])).collect(),
            looks: 0,
            vain: 0,
        })
    }

    /// What was taken.
    #[must_use]
    pub const fn offer(&self) -> &Offer {
        &self.offer
    }

    /// The own address, for a peer's `add_peer`.
    #[must_use]
    pub fn address(&self) -> &[u8] {
        &self.address
    }

    /// True if writes are possible: the provider says when their bytes have arrived.
    #[must_use]
    pub const fn writes(&self) -> bool {
        self.writes
    }

    /// True if `wait` sleeps until something happens; otherwise it looks now and then.
    #[must_use]
    pub const fn sleeps(&self) -> bool {
        self.objects.has_descriptor()
    }

    /// Makes a peer known by its address, for as long as the endpoint lives. Nothing is sent.
    ///
    /// # Errors
    /// `OutOfRange` if that is no address's length, or what the library says.
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
    /// `OutOfRange`, `Refused` if the mapping is read-only, or what the library says.
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
            let wanted = if mode & abi::MR_PROV_KEY == 0 { random_key(key_size)? } else { 0 };
            // SAFETY: in range of the mapping, which `memory` keeps until the region is closed; a
            // segment is used by atomics and raw copies alone.
            match unsafe { self.objects.register(at, bytes, access, wanted) } {
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

    /// How peers name a region.
    ///
    /// # Errors
    /// `Unknown`.
    pub fn grant(&self, region: Region) -> Result<Grant> {
        Ok(value(&self.regions, region.0)?.grant)
    }

    /// Removes a region: what peers begin then ends in errors. Of what they had begun some bytes
    /// may still come, into the same mapping.
    ///
    /// # Errors
    /// `Unknown`, `Busy`, or what the library says; it stays registered then.
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

    /// Begins to read `length` bytes of a peer's memory. Its end is a completion with `token`;
    /// until then the local bytes may change at any time.
    ///
    /// # Errors
    /// `OutOfRange`, `Unknown`, or `Full`; nothing was begun then.
    pub fn read(&mut self, to: Place, from: RemotePlace, length: u64, token: u64) -> Result<()> {
        self.begin(Kind::Read, to, from, length, token)
    }

    /// Begins to write `length` bytes to a peer's memory. At its end the peer can see them.
    ///
    /// # Errors
    /// As `read`, and `Refused` if the provider does not tell when bytes have arrived.
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

    /// Posts what can be posted.
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
        // SAFETY: the bytes lie in the region, as `begin` checked. Region and peer are not removed
        // while the transfer is under way (`uses`), the context is the part's until it ends, and
        // `drop` closes the endpoint before either goes.
        unsafe { self.objects.post(&post) }
    }

    /// Looks once: moves on what is under way, and takes the next transfer that has ended.
    ///
    /// # Errors
    /// What the library says of the queue itself: the endpoint is good for nothing more.
    pub fn look(&mut self) -> Result<Option<Completion>> {
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
        if self.transfers.any_waiting()
            && let Some(before) = Instant::now().checked_sub(self.patience)
        {
            self.transfers.expire(before, &self.library.failed("post", libc::ETIMEDOUT));
        }
        if found > 0 {
            (self.looks, self.vain) = (0, 0);
        }
        self.looks = self.looks.saturating_add(1);
        Ok(self.ended())
    }

    fn part_ended(&mut self, context: *mut c_void, outcome: Result<()>) {
        let bytes = context.addr().wrapping_sub(self.contexts.as_ptr().addr());
        let part = u32::try_from(bytes / size_of::<Context>()).unwrap_or(u32::MAX);
        if !self.transfers.part_ended(part, outcome) {
            tracing::debug!(part, "libfabric ended an operation that is none of ours");
        }
    }

    fn ended(&mut self) -> Option<Completion> {
        let (order, completion) = self.transfers.take_ended()?;
        count(&mut self.regions, order.region, -1);
        Some(completion)
    }

    /// Waits for the end of a transfer until `deadline`; `None` if there was none. What peers ask
    /// for is served meanwhile.
    ///
    /// A transfer that did not end in time is still under way: its bytes may change until its
    /// completion comes or the endpoint is dropped.
    ///
    /// # Errors
    /// As `look`.
    pub fn wait(&mut self, deadline: Instant) -> Result<Option<Completion>> {
        loop {
            if let Some(completion) = self.look()? {
                return Ok(Some(completion));
            }
            let now = Instant::now();
            if now >= deadline {
                return Ok(None);
            }
            self.pause(deadline - now);
        }
    }

    /// The descriptor that becomes readable when there is something to look for, if the provider has
    /// one; to be slept on for as long as `rest` says.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.objects.descriptor()
    }

    /// How long the owner may sleep on the descriptor before it looks again, if peers or transfers
    /// are busy.
    pub fn rest(&mut self) -> Duration {
        if self.transfers.any_waiting() || !self.objects.has_descriptor() {
            NAP_MAX
        } else if self.objects.sleep_on().is_some() {
            SLEEP_MAX
        } else {
            Duration::ZERO
        }
    }

    /// Yields, and sleeps after many looks in vain.
    fn pause(&mut self, most: Duration) {
        let Some(more) = self.looks.checked_sub(LOOKS) else {
            std::thread::yield_now();
            return;
        };
        // What waits to be posted is tried again soon: nothing tells when it would be taken.
        let is_blocked = self.transfers.any_waiting();
        // Of `net` in 1.17 it stays readable, or it may never be slept on.
        if self.objects.has_descriptor() && self.vain < LOOKS {
            let mut found = true;
            if let Some(fd) = self.objects.sleep_on() {
                let longest = if is_blocked { NAP_MAX } else { SLEEP_MAX };
                let time = rustix::event::Timespec::try_from(most.min(longest)).ok();
                let mut polled = [PollFd::new(&fd, PollFlags::IN)];
                found = rustix::event::poll(&mut polled, time.as_ref()) != Ok(0);
            }
            self.vain = if found { self.vain + 1 } else { 0 };
        } else {
            std::thread::sleep((NAP * (more / 16 + 1)).min(NAP_MAX).min(most));
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
            // A device may still write there: better lost than someone else's.
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

/// A key that nobody guesses, of as many bytes as the provider has.
fn random_key(bytes: usize) -> Result<u64> {
    let mut key = [0; 8];
    let lost = |_| Error::Absent("the system has no random numbers".to_owned());
    getrandom::fill(key.get_mut(..bytes.min(8)).unwrap_or_default()).map_err(lost)?;
    Ok(u64::from_le_bytes(key))
}
