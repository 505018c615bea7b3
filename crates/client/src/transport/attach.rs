//! Attachments of this process: which daemons of the host it is attached to, and when it attaches
//! or replaces one.
//!
//! In this module: the pool of attachments, the home, attaching on demand, and re-attaching to a
//! restarted daemon. Elsewhere: the handshake (`attachment`) and requests (`request`). A daemon with
//! another host segment than the first one is of a node in the place of this process's, which is
//! lost: what this process has open is in the segment that it knows, so it gets EIO from then on, at
//! once. The daemon
//! attached first is the *home*; requests for daemons of other hosts go through it. Other daemons
//! of this host are attached on first use.
//!
//! An attachment is never torn down, because another thread may be copying through it: a restarted
//! daemon gets an additional one. Descriptors that stay open (the socket, whose closing tells the
//! daemon that this process ended, and the SSD file) are moved to high numbers, away from those of
//! the application.

use core::ffi::CStr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};
use core::time::Duration;
use shm::once::Once;
use shm::wait;
use wire::codec::Writer;
use wire::errno::{Errno, Result};
use wire::limits::{PATH_BYTES_MAX, SHARD_COUNT};
use wire::{DaemonIndex, Inode, ShardIndex};

use crate::transport::Transport;
use crate::transport::attachment::{Attachment, connect};
use crate::transport::clock::sleep_micros;
use crate::transport::service::Service;

impl Transport {
    /// The number of the mount that this process serves, or 0.
    pub(crate) fn mount(&self) -> u8 {
        self.mount.load(Relaxed)
    }
}

/// Most daemons of a host that are attached directly; the others are reached through the home.
pub(crate) const LOCAL_MAX: usize = 64;
const _: () = assert!(LOCAL_MAX <= u64::BITS as usize, "a word has a bit for each");
/// Most attachments in the lifetime of a process: one per daemon, plus one per restart of a daemon.
const ATTACHMENTS_MAX: usize = 256;
/// Size of `sun_path` of a Unix socket, NUL included.
const SOCKET_PATH_BYTES: usize = 108;
/// How long the first attachment retries when the socket exists but refuses connections, as it does
/// while the daemon restarts.
pub(crate) const FIRST_WAIT_MICROS: u64 = 10_000_000;
/// Location of the instance as configured for this process.
pub(crate) struct Settings {
    rundir: [u8; SOCKET_PATH_BYTES],
    rundir_length: usize,
    prefix: [u8; PATH_BYTES_MAX],
    prefix_length: usize,
    home: u16,
}

impl Settings {
    /// Copies the paths.
    ///
    /// # Errors
    /// `ENAMETOOLONG` if one does not fit.
    fn new(rundir: &CStr, prefix: &[u8], home: u16) -> Result<Settings> {
        let rundir = rundir.to_bytes();
        let mut settings = Settings {
            rundir: [0; SOCKET_PATH_BYTES],
            rundir_length: rundir.len(),
            prefix: [0; PATH_BYTES_MAX],
            prefix_length: prefix.len(),
            home,
        };
        let to = settings.rundir.get_mut(..rundir.len()).ok_or(Errno::ENAMETOOLONG)?;
        to.copy_from_slice(rundir);
        let to = settings.prefix.get_mut(..prefix.len()).ok_or(Errno::ENAMETOOLONG)?;
        to.copy_from_slice(prefix);
        Ok(settings)
    }

    fn prefix(&self) -> &[u8] {
        self.prefix.get(..self.prefix_length).unwrap_or(&[])
    }

    /// `RUNDIR/d<daemon>.sock` with its NUL.
    fn socket_path(&self, daemon: u16) -> Result<[u8; SOCKET_PATH_BYTES]> {
        let mut path = [0; SOCKET_PATH_BYTES];
        let mut writer = Writer::new(&mut path);
        writer.raw(self.rundir.get(..self.rundir_length).unwrap_or(&[]));
        writer.raw(b"/d");
        let mut divisor = 10_000;
        let mut begun = false;
        while divisor > 0 {
            let digit = daemon / divisor % 10;
            begun |= digit != 0 || divisor == 1;
            if begun {
                writer.u8(b'0'.wrapping_add(digit as u8));
            }
            divisor /= 10;
        }
        writer.raw(b".sock\0");
        writer.finish().map_err(|_| Errno::ENAMETOOLONG)?;
        Ok(path)
    }
}

/// All attachments of the process.
pub(crate) struct Attachments {
    pool: [Once<Attachment>; ATTACHMENTS_MAX],
    used: AtomicU32,
    /// Number of the home's attachment: its index in the pool plus one; 0 if there is none.
    home: AtomicU32,
    /// The same for each daemon of this host.
    local: [AtomicU32; LOCAL_MAX],
    /// A bit for each daemon of this host for whose memory or descriptors this process has no room:
    /// it is reached through the home.
    without_room: AtomicU64,
    /// Owner of the right to attach: process in the upper half, thread in the lower; 0 if nobody.
    attaching: AtomicU64,
    /// Lowest descriptor number of ours, so that most descriptors are ruled out by one comparison.
    lowest: AtomicI32,
    /// Incremented whenever `home` or `local` changes; validates cached attachment numbers.
    generation: AtomicU32,
    /// Cached service of each shard: the generation in the upper half, then worker and attachment
    /// number, 16 bits each. Finding it through the instance map costs a fifth of a `stat`.
    services: [AtomicU64; SHARD_COUNT as usize],
}

impl Attachments {
    #[expect(clippy::large_stack_arrays, reason = "evaluated at compile time, into a static")]
    pub(crate) const fn new() -> Attachments {
        Attachments {
            pool: [const { Once::new() }; ATTACHMENTS_MAX],
            used: AtomicU32::new(0),
            home: AtomicU32::new(0),
            local: [const { AtomicU32::new(0) }; LOCAL_MAX],
            without_room: AtomicU64::new(0),
            attaching: AtomicU64::new(0),
            lowest: AtomicI32::new(i32::MAX),
            generation: AtomicU32::new(0),
            services: [const { AtomicU64::new(0) }; SHARD_COUNT as usize],
        }
    }

    #[inline]
    fn get(&self, cell: &AtomicU32) -> Option<&Attachment> {
        self.by_number(cell.load(Acquire))
    }

    /// The attachment with this number (index in the pool plus one).
    #[inline]
    pub(crate) fn by_number(&self, number: u32) -> Option<&Attachment> {
        self.pool.get((number as usize).checked_sub(1)?)?.get()
    }

    /// Generation of the attachments: changes whenever another attachment serves something.
    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Acquire)
    }

    fn bump_generation(&self) {
        self.generation.fetch_add(1, AcqRel);
    }

    /// The service of a shard, for `served_by`, if it was cached in this generation.
    #[inline]
    pub(crate) fn cached_service(&self, shard: ShardIndex, generation: u32) -> Option<u32> {
        let word = self.services.get(usize::from(shard.0))?.load(Relaxed);
        ((word >> 32) as u32 == generation).then_some(word as u32)
    }

    /// Attachment and worker of a packed service number.
    #[inline]
    pub(crate) fn served_by(&self, name: u32) -> Option<(&Attachment, usize)> {
        Some((self.by_number(name & 0xffff)?, (name >> 16) as usize))
    }

    /// The version of the directories of the service with a packed number.
    #[inline]
    pub(crate) fn directory_version_of(&self, name: u32) -> Option<u64> {
        let (by, worker) = self.served_by(name)?;
        Service::of(by, worker, name)?.directory_version()
    }

    /// Caches the service of a shard as it was found after `generation` was read. Returns the
    /// packed number for `served_by`.
    pub(crate) fn cache_service(
        &self,
        shard: ShardIndex,
        generation: u32,
        by: &Attachment,
        worker: usize,
    ) -> Option<u32> {
        let number = self
            .pool
            .iter()
            .position(|cell| cell.get().is_some_and(|attachment| core::ptr::eq(attachment, by)))?;
        let name = (worker as u32) << 16 | (number as u32).saturating_add(1);
        self.services
            .get(usize::from(shard.0))?
            .store(u64::from(generation) << 32 | u64::from(name), Relaxed);
        Some(name)
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = &Attachment> {
        let used = (self.used.load(Acquire) as usize).min(ATTACHMENTS_MAX);
        self.pool.iter().take(used).filter_map(Once::get)
    }

    /// Stores an attachment for good. Returns its number.
    fn add(&self, attachment: Attachment) -> Result<u32> {
        for fd in attachment.descriptors() {
            self.lowest.fetch_min(fd, AcqRel);
        }
        let index = self.used.fetch_add(1, AcqRel);
        let Some(cell) = self.pool.get(index as usize) else {
            self.used.fetch_sub(1, AcqRel);
            return Err(Errno::ENFILE);
        };
        cell.set(attachment).map_err(|_| Errno::EIO)?;
        Ok(index.saturating_add(1))
    }

    /// Acquires the right to attach. Returns false if another thread attached meanwhile.
    fn begin(&self, done: impl Fn() -> bool) -> Result<bool> {
        let process = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
        let me = u64::from(process) << 32 | u64::from(wait::thread_id());
        let deadline = wait::now_micros().saturating_add(FIRST_WAIT_MICROS);
        loop {
            if done() {
                return Ok(false);
            }
            match self.attaching.compare_exchange(0, me, AcqRel, Acquire) {
                Ok(_) => return Ok(true),
                // A signal handler that interrupted this thread's own attempt cannot wait for it.
                Err(holder) if holder == me => return Err(Errno::EIO),
                Err(holder) if is_not_ours(holder, me) => {
                    let taken = self.attaching.compare_exchange(holder, me, AcqRel, Acquire);
                    if taken.is_ok() {
                        return Ok(true);
                    }
                }
                Err(_) => {}
            }
            if wait::now_micros() >= deadline {
                return Err(Errno::EIO);
            }
            sleep_micros(50);
        }
    }

    fn end(&self) {
        self.attaching.store(0, Release);
    }

    /// Ends an attempt of the calling thread to attach, from which it did not return.
    fn end_abandoned(&self) {
        let holder = self.attaching.load(Acquire);
        if holder as u32 == wait::thread_id() {
            let _ = self.attaching.compare_exchange(holder, 0, AcqRel, Relaxed);
        }
    }
}

/// True for the refusal of a daemon's memory or descriptors by this process's own limits
/// (`RLIMIT_AS`, `RLIMIT_NOFILE`). To wait does not help.
fn is_lack_of_room(errno: Errno) -> bool {
    matches!(errno, Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE)
}

/// A daemon has another host segment than those before it.
const OTHER_HOST: Errno = Errno::ENODEV;

/// The errno of a call that could not attach, if to wait does not help.
pub(crate) fn final_errno(errno: Errno) -> Option<Errno> {
    match errno {
        OTHER_HOST => Some(Errno::EIO),
        errno => is_lack_of_room(errno).then_some(errno),
    }
}

/// True if the holder is dead, or is a thread of the process that forked this one.
fn is_not_ours(holder: u64, me: u64) -> bool {
    holder >> 32 != me >> 32 || wait::is_absent(holder as u32)
}

impl Transport {
    /// Attaches the process to the instance whose sockets are in `rundir` and whose files appear
    /// below `prefix` (absolute, without a trailing slash). `home` is the first daemon to try. A
    /// daemon that restarts is waited for, at most `micros`.
    pub(crate) fn attach(
        &self,
        rundir: &CStr,
        prefix: &[u8],
        home: u16,
        micros: u64,
    ) -> Result<()> {
        wait::trust_libc();
        if self.settings.get().is_none() {
            // Another thread that came first read the same environment, so its settings are equal.
            let _ = self.settings.set(Settings::new(rundir, prefix, home)?);
        }
        let deadline = wait::now_micros().saturating_add(micros);
        loop {
            match self.attach_to_home() {
                Ok(_) => return Ok(()),
                Err(Errno::ECONNREFUSED) if wait::now_micros() < deadline => {
                    sleep_micros(10_000);
                }
                Err(refused) => return Err(refused),
            }
        }
    }

    /// Gives back what calls of the calling thread hold that ended without returning.
    pub(crate) fn end_abandoned_calls(&self) {
        self.attachments.end_abandoned();
        for attachment in self.attachments.each() {
            attachment.hazards().end_abandoned();
            attachment.op_log.end_abandoned(attachment.welcome.session);
            let is_alive = || attachment.is_alive();
            attachment.session.end_abandoned(self.timeout_micros(), is_alive);
            attachment.session.bounce_buffers().end_abandoned();
        }
    }

    /// Sees nothing of the instance any more, for good: its memory is replaced by zeros, and `close` is
    /// called with each descriptor.
    pub(crate) fn detach(&self, close: &dyn Fn(i32)) {
        for attachment in self.attachments.each() {
            attachment.detach();
            attachment.descriptors().for_each(close);
        }
        if let Some(host) = self.host.get() {
            host.detach();
        }
        self.activity.detach();
    }

    /// True once `attach` succeeded.
    pub(crate) fn is_attached(&self) -> bool {
        self.host.get().is_some()
    }

    /// The directory below which the instance's files appear; empty before `attach`.
    pub(crate) fn prefix(&self) -> &[u8] {
        self.settings.get().map_or(&[], Settings::prefix)
    }

    /// True for a descriptor that this crate needs: the application must not close it.
    pub(crate) fn is_own_descriptor(&self, fd: i32) -> bool {
        self.may_be_own_descriptor(fd)
            && self
                .attachments
                .each()
                .any(|attachment| attachment.descriptors().any(|own| own == fd))
    }

    /// False if `fd` is below all descriptors that this crate needs, and those that were noted.
    #[inline]
    pub(crate) fn may_be_own_descriptor(&self, fd: i32) -> bool {
        fd >= self.attachments.lowest.load(Acquire)
    }

    /// Notes a descriptor for `may_be_own_descriptor`.
    pub(crate) fn note_own_descriptor(&self, fd: i32) {
        if fd >= 0 {
            self.attachments.lowest.fetch_min(fd, AcqRel);
        }
    }

    /// The home daemon; attaches to it if necessary.
    pub(crate) fn attach_to_home(&self) -> Result<&Attachment> {
        if let Some(home) = self.attachments.get(&self.attachments.home) {
            return Ok(home);
        }
        let settings = self.settings.get().ok_or(Errno::EIO)?;
        let attachments = &self.attachments;
        let is_done = || attachments.get(&attachments.home).is_some();
        if attachments.begin(is_done)? {
            let found = self.attach_home(settings);
            attachments.end();
            found?;
        }
        attachments.get(&attachments.home).ok_or(Errno::EIO)
    }

    /// The home daemon; waits for it if it is gone.
    ///
    /// # Errors
    /// `EIO` if it does not come back in time.
    #[inline]
    pub(crate) fn home(&self) -> Result<&Attachment> {
        match self.attached_home() {
            Some(home) => Ok(home),
            None => self.wait_for_home(),
        }
    }

    #[cold]
    fn wait_for_home(&self) -> Result<&Attachment> {
        let mut budget = self.reconnect_budget();
        loop {
            match self.attach_to_home() {
                Ok(home) => return Ok(home),
                Err(errno) => match final_errno(errno) {
                    Some(errno) => return Err(errno),
                    None => self.back_off(&mut budget)?,
                },
            }
        }
    }

    /// The home daemon if it is attached now.
    #[inline]
    pub(crate) fn attached_home(&self) -> Option<&Attachment> {
        self.attachments.get(&self.attachments.home)
    }

    /// Attaches to the configured home, or to the first daemon after it that answers.
    fn attach_home(&self, settings: &Settings) -> Result<()> {
        let mut answer = Errno::ENOENT;
        for further in 0..LOCAL_MAX as u16 {
            match self.attach_one(settings, settings.home.wrapping_add(further)) {
                Ok(cell) => {
                    self.attachments.home.store(cell, Release);
                    self.attachments.bump_generation();
                    return Ok(());
                }
                // No such daemon ever ran: the numbers of a host's daemons are consecutive.
                Err(Errno::ENOENT) if further > 0 => break,
                Err(Errno::ENOENT) => {}
                Err(refused) => answer = refused,
            }
        }
        Err(answer)
    }

    /// The attachment of `daemon` if it is on this host, attaching on first use; `None` if it is
    /// reached through the home: a daemon of another host, or one that this process has no room for.
    pub(crate) fn attach_local(&self, daemon: DaemonIndex) -> Result<Option<&Attachment>> {
        let home = self.attach_to_home()?;
        let Some(cell) = self.local_place(home, daemon) else { return Ok(None) };
        if let Some(attachment) = self.attachments.get(cell) {
            return Ok(Some(attachment));
        }
        let attachments = &self.attachments;
        let bit = 1 << (daemon.0.wrapping_sub(home.welcome.local_first) % LOCAL_MAX as u16);
        if attachments.without_room.load(Relaxed) & bit != 0 {
            return Ok(None);
        }
        let settings = self.settings.get().ok_or(Errno::EIO)?;
        if attachments.begin(|| attachments.get(cell).is_some())? {
            let attached = self.attach_one(settings, daemon.0);
            attachments.end();
            match attached {
                Err(errno) if is_lack_of_room(errno) => {
                    attachments.without_room.fetch_or(bit, Relaxed);
                    return Ok(None);
                }
                attached => drop(attached?),
            }
        }
        attachments.get(cell).map(Some).ok_or(Errno::EIO)
    }

    /// As `attach_local`, but never attaches: `None` unless the daemon is attached already.
    pub(crate) fn attached_local(&self, daemon: DaemonIndex) -> Option<&Attachment> {
        let home = self.attachments.get(&self.attachments.home)?;
        self.attachments.get(self.local_place(home, daemon)?)
    }

    /// The attachment number of a daemon of this host; 0 if it is not attached.
    pub(crate) fn attached_number(&self, daemon: DaemonIndex) -> u32 {
        let cell = self.attached_home().and_then(|home| self.local_place(home, daemon));
        cell.map_or(0, |cell| cell.load(Acquire))
    }

    /// True if `daemon` is on this host.
    pub(crate) fn is_local_daemon(&self, daemon: DaemonIndex) -> Result<bool> {
        let welcome = &self.home()?.welcome;
        let cell = daemon.0.checked_sub(welcome.local_first);
        Ok(cell.is_some_and(|cell| cell < welcome.local_count))
    }

    fn local_place(&self, home: &Attachment, daemon: DaemonIndex) -> Option<&AtomicU32> {
        let cell = daemon.0.checked_sub(home.welcome.local_first)?;
        if cell >= home.welcome.local_count {
            return None;
        }
        self.attachments.local.get(usize::from(cell))
    }

    /// True if all daemons of the instance are on this host.
    pub(crate) fn has_one_host(&self) -> bool {
        self.attached_home().is_some_and(|home| home.welcome.local_count == home.map.daemon_count())
    }

    /// Forgets an attachment whose daemon is gone, so that the next request attaches again.
    pub(crate) fn drop_attachment(&self, attachment: &Attachment) {
        for cell in self.attachments.local.iter().chain([&self.attachments.home]) {
            let number = cell.load(Acquire);
            let current = self.attachments.get(cell);
            if current.is_some_and(|current| core::ptr::eq(current, attachment)) {
                let _ = cell.compare_exchange(number, 0, AcqRel, Relaxed);
            }
        }
        self.attachments.bump_generation();
    }

    /// Attaches to one daemon and records it. Returns the attachment's number.
    fn attach_one(&self, settings: &Settings, daemon: u16) -> Result<u32> {
        let path = settings.socket_path(daemon)?;
        let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::ENAMETOOLONG)?;
        let timeout = Duration::from_micros(self.handshake_micros());
        let connected = connect(path, self.is_guest.load(Relaxed), timeout);
        if connected.as_ref().is_err_and(|&errno| errno == Errno::EIO) {
            self.timeouts.note_gone();
        }
        let (attachment, host, activity) = connected?;
        let mut before = self.attachments.each();
        if before.next().is_some_and(|first| first.host_file != attachment.host_file) {
            return Err(OTHER_HOST);
        }
        let local = daemon.checked_sub(attachment.welcome.local_first).map(usize::from);
        if self.host.get().is_none() {
            let _ = self.host.set(host);
            self.activity.set_segment(activity);
        }
        self.timeouts.note_reached(attachment.welcome.timeout_micros);
        self.is_write_behind.store(attachment.welcome.write_behind != 0, Relaxed);
        self.readahead_enabled.store(attachment.welcome.readahead != 0, Relaxed);
        self.has_followers.store(attachment.welcome.has_followers != 0, Relaxed);
        self.copies.store(attachment.welcome.copies, Relaxed);
        let cell = self.attachments.add(attachment)?;
        if let Some(local) = local.and_then(|local| self.attachments.local.get(local)) {
            local.store(cell, Release);
        }
        self.attachments.bump_generation();
        Ok(cell)
    }

    /// Copies that the bytes of a file have, unless its number says otherwise.
    pub(crate) fn copies(&self) -> u8 {
        self.copies.load(Relaxed)
    }

    /// True if files have copies (`has_copies_of`).
    pub(crate) fn has_copies(&self) -> bool {
        self.copies() > 1
    }

    /// True if this file has copies: its bytes are asked for by messages, wherever they are. Files with
    /// one copy have it at their targets.
    pub(crate) fn has_copies_of(&self, inode: Inode) -> bool {
        self.has_copies() && !inode.is_single()
    }

    /// The attachment of a target on this host whose extents of a file this process may use; waits for
    /// its daemon if it is gone.
    pub(crate) fn attachment_of(
        &self,
        target: DaemonIndex,
        inode: Inode,
    ) -> Result<Option<&Attachment>> {
        if self.has_copies_of(inode) {
            return Ok(None);
        }
        if let Some(attachment) = self.attached_local(target) {
            return Ok(Some(attachment));
        }
        let mut budget = self.reconnect_budget();
        loop {
            match self.attach_local(target) {
                Ok(attachment) => return Ok(attachment),
                Err(errno) => match final_errno(errno) {
                    Some(errno) => return Err(errno),
                    None => self.back_off(&mut budget)?,
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_path_holds_the_daemon_number() {
        let settings = Settings::new(c"/run/x", b"/fb", 0).expect("short paths");
        let path = settings.socket_path(0).expect("fits");
        assert_eq!(CStr::from_bytes_until_nul(&path), Ok(c"/run/x/d0.sock"));
        let path = settings.socket_path(1070).expect("fits");
        assert_eq!(CStr::from_bytes_until_nul(&path), Ok(c"/run/x/d1070.sock"));
        assert_eq!(settings.prefix(), b"/fb");
    }
}
