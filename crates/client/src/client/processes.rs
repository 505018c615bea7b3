//! The process: attaching, its descriptor table, and waits without a slot.

use core::ffi::CStr;
use core::sync::atomic::Ordering::Relaxed;
use shm::activity::{ActivitySegment, BlockIndex, Lane, OpClass, OwnCalls, Tags};
use wire::errno::{Errno, Result};
use wire::{Credentials, Inode};

use crate::lookup::find;
use crate::lookup::path::{At, Follow, Outcome, PathBuffer};
use crate::lookup::result::LookupMode;
use crate::open::descriptors;
use crate::transport::activity::CallTimer;
use crate::transport::attach::FIRST_WAIT_MICROS;
use crate::{Client, Descriptor, OfdIndex, ProcessIndex};

impl Client {
    /// Creates a table for this process.
    ///
    /// # Errors
    /// `ENFILE` if the host has too many processes.
    pub fn register(&self, pid: u32, started: u64) -> Result<ProcessIndex> {
        descriptors::register(self.files.transport(), pid, started)
    }

    /// The table that this process had before exec.
    #[must_use]
    pub fn find_process(&self, pid: u32, started: u64) -> Option<ProcessIndex> {
        descriptors::find_process(self.files.transport(), pid, started)
    }

    /// The open file of a descriptor, and whether exec closes it.
    #[must_use]
    #[inline]
    pub fn fd_get(&self, process: ProcessIndex, fd: u32) -> Option<(OfdIndex, bool)> {
        descriptors::fd_get(self.files.transport(), process, fd)
    }

    /// The table entry of a descriptor, for callers that read it more than once.
    #[must_use]
    #[inline]
    pub fn fd_word(&self, process: ProcessIndex, fd: u32) -> Option<Descriptor<'_>> {
        descriptors::fd_word(self.files.transport(), process, fd)
    }

    /// Takes the open file out of a descriptor's entry. Its reference passes to the caller: of two
    /// threads that close a descriptor at the same time only one gets it.
    #[must_use]
    #[inline]
    pub fn fd_take(&self, process: ProcessIndex, fd: u32) -> Option<OfdIndex> {
        descriptors::fd_take(self.files.transport(), process, fd)
    }

    /// Sets the open file of a descriptor and returns the previous one. It does not count
    /// references: `retain` and `close` do.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`.
    pub fn fd_set(
        &self,
        process: ProcessIndex,
        fd: u32,
        to: Option<(OfdIndex, bool)>,
    ) -> Result<Option<(OfdIndex, bool)>> {
        descriptors::fd_set(self.files.transport(), process, fd, to)
    }

    /// Sets whether exec closes a descriptor.
    ///
    /// # Errors
    /// `EBADF` if it has no open file.
    pub fn fd_mark(&self, process: ProcessIndex, fd: u32, close_on_exec: bool) -> Result<()> {
        descriptors::fd_mark(self.files.transport(), process, fd, close_on_exec)
    }

    /// Before a fork: copies the table for the child and takes a reference of every open file.
    ///
    /// # Errors
    /// `ENFILE` if there are too many processes or descriptors, `ENOSPC` if there is no memory, `EIO`
    /// if the parent has no table any more.
    pub fn fork_copy(&self, parent: ProcessIndex) -> Result<ProcessIndex> {
        descriptors::fork_copy(self.files.transport(), parent)
    }

    /// In the child: makes the copy this process's table.
    ///
    /// # Errors
    /// `EIO` for a number without a table.
    pub fn adopt(&self, process: ProcessIndex, pid: u32, started: u64) -> Result<()> {
        descriptors::adopt(self.files.transport(), process, pid, started)
    }

    /// Closes every descriptor of a table and frees it: at exit, or when a fork failed.
    ///
    /// # Errors
    /// The first error of a close; the table is freed all the same.
    pub fn release_process(&self, process: ProcessIndex) -> Result<()> {
        descriptors::release_process(self.files.transport(), process)
    }

    /// As `release_process`, for a process whose other threads may still use open files: those for
    /// which `is_used` is true stay in the table, for the daemon to close.
    ///
    /// # Errors
    /// As `release_process`.
    pub fn release_process_but(
        &self,
        process: ProcessIndex,
        is_used: &dyn Fn(OfdIndex) -> bool,
    ) -> Result<()> {
        descriptors::release_process_but(self.files.transport(), process, is_used)
    }

    /// Calls `with` for each descriptor: number, open file, close-on-exec.
    pub fn for_each_fd(&self, process: ProcessIndex, with: &mut dyn FnMut(u32, OfdIndex, bool)) {
        descriptors::for_each_fd(self.files.transport(), process, with)
    }

    /// Attaches the process to the instance whose sockets are in `rundir` and whose files appear
    /// below `prefix` (absolute, without a trailing slash). `home` is the first daemon to try.
    ///
    /// # Errors
    /// `ECONNREFUSED` or `ENOENT` if no daemon answers, `EPROTO` for another protocol version,
    /// `EOPNOTSUPP` if the daemon is in another PID namespace, `ENAMETOOLONG`, or the errno with
    /// which a daemon refuses.
    pub fn attach(&self, rundir: &CStr, prefix: &[u8], home: u16) -> Result<()> {
        self.files.transport().attach(rundir, prefix, home, FIRST_WAIT_MICROS)
    }

    /// As `attach`, but does not wait for a daemon that restarts.
    ///
    /// # Errors
    /// As `attach`.
    pub fn attach_at_once(&self, rundir: &CStr, prefix: &[u8], home: u16) -> Result<()> {
        self.files.transport().attach(rundir, prefix, home, 0)
    }

    /// A daemon did not answer an earlier program of this process or its parent in time: waits for it are
    /// short until it does.
    pub fn note_gone(&self) {
        self.files.transport().timeouts.note_gone();
    }

    /// Gives back what calls of the calling thread hold that ended without returning, because a
    /// signal handler left them by a jump. Nothing else of the thread is in a call.
    pub fn end_abandoned_calls(&self) {
        self.files.transport().end_abandoned_calls();
    }

    /// As `end_abandoned_calls`, for what such a call holds of the open file that it used.
    pub fn end_abandoned_use(&self, file: OfdIndex) {
        descriptors::end_abandoned_use(self.files.transport(), file);
    }

    /// The process is an application that this crate is a guest of: little memory of the instance
    /// stays mapped. Before `attach`.
    pub fn be_a_guest(&self) {
        self.files.transport().is_guest.store(true, Relaxed);
    }

    /// Largest size that this process may give a file (`RLIMIT_FSIZE`); beyond it calls fail with
    /// `EFBIG`.
    pub fn set_size_limit(&self, bytes: u64) {
        self.files.transport().set_size_limit(bytes);
        shm::extents::set_write_limit(bytes);
    }

    /// True if the process may not make files as large as the instance could hold.
    #[must_use]
    pub fn has_size_limit(&self) -> bool {
        self.files.transport().size_limit() < wire::limits::FILE_BYTES_MAX
    }

    /// Sees nothing of the instance any more, for good, in a process that gave up the right to: its
    /// memory is replaced by zeros, and `close` is called with each descriptor. No call of the client
    /// is in progress, and none may follow.
    pub fn detach(&self, close: &dyn Fn(i32)) {
        self.files.transport().detach(close);
    }

    /// True once `attach` succeeded.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.files.transport().is_attached()
    }

    /// The directory below which the instance's files appear; empty before `attach`.
    #[must_use]
    pub fn prefix(&self) -> &[u8] {
        self.files.transport().prefix()
    }

    /// True for a descriptor that this crate needs: the application must not close it.
    #[must_use]
    pub fn is_own_descriptor(&self, fd: i32) -> bool {
        self.files.transport().is_own_descriptor(fd)
    }

    /// False if `fd` is below all descriptors of this crate and those that were noted.
    #[must_use]
    #[inline]
    pub fn may_be_own_descriptor(&self, fd: i32) -> bool {
        self.files.transport().may_be_own_descriptor(fd)
    }

    /// Notes a descriptor of the caller for `may_be_own_descriptor`.
    pub fn note_own_descriptor(&self, fd: i32) {
        self.files.transport().note_own_descriptor(fd);
    }

    /// True if all daemons of the instance are on this host.
    #[must_use]
    pub fn has_one_host(&self) -> bool {
        self.files.transport().has_one_host()
    }

    /// Begins to count what this process does, once it is attached, and attributes it to these tags.
    pub fn begin_activity(&self, process: (u32, u64), tags: Tags) {
        self.files.transport().activity.begin(process, tags);
    }

    /// As `begin_activity` in a forked child, with the tags of its parent.
    pub fn begin_child_activity(&self, pid: u32, started: u64) {
        self.files.transport().activity.begin_in_child(pid, started);
    }

    /// In a forked child: what its parent counted in is no longer its own.
    pub fn reset_after_fork(&self) {
        self.files.transport().activity.reset_after_fork();
        shm::extents::reset_windows_after_fork();
    }

    /// The process is about to have a second thread.
    pub fn note_threads(&self) {
        self.files.transport().activity.note_threads();
    }

    /// Where a call that begins is to be counted, if it succeeds; `None`: by `begin_call`, which most are
    /// not.
    #[inline(always)]
    #[must_use]
    pub fn untimed_calls(&self) -> Option<OwnCalls<'_>> {
        self.files.transport().activity.untimed_calls()
    }

    /// Counts a call that failed.
    #[cold]
    pub fn note_failed_call(&self, class: OpClass, errno: Errno) {
        self.files.transport().activity.failed(class, errno);
    }

    /// Begins a call that is to be counted.
    #[inline]
    #[must_use]
    pub fn begin_call(&self) -> CallTimer<'_> {
        self.files.transport().activity.begin_call()
    }

    /// Counts a call with its result: a value, or a negative errno. Reads and writes count
    /// themselves. True if it was timed, which one call of many is.
    #[inline]
    pub fn end_call(&self, timer: CallTimer<'_>, class: OpClass, result: i64) -> bool {
        let transport = self.files.transport();
        let is_timed = transport.activity.end_call(timer, class, result);
        if is_timed {
            transport.bound_footprint();
        }
        is_timed
    }

    /// True for one timed call with a path of several: `note_directory_of` is to be told its path.
    #[cold]
    pub fn is_directory_due(&self) -> bool {
        self.files.transport().activity.is_directory_due()
    }

    /// Counts the directory of a path for the calls of this process that were not looked at. A directory
    /// that cannot be found is not counted.
    #[cold]
    pub fn note_directory_of(&self, at: At<'_>, caller: &Credentials, buffer: &mut PathBuffer) {
        let lookup = (Follow::Never, LookupMode::IndexOnly);
        let walked = find::with_walked(self.files.paths(), at, lookup, caller, buffer, |walk| {
            Ok(walk.parent.inode)
        });
        if let Ok(Outcome::Done(directory)) = walked {
            self.files.transport().activity.count_directory(directory);
        }
    }

    /// As `note_directory_of`, of a directory that is known.
    #[cold]
    pub fn note_directory(&self, directory: Inode) {
        self.files.transport().activity.count_directory(directory);
    }

    /// Has the calling thread count in this lane from now on: a mount that works for another
    /// process.
    pub fn count_in(&self, lane: Lane) {
        self.files.transport().activity.count_in(lane);
    }

    /// The block in which the calling thread counts; `None`: it counts for nobody.
    #[must_use]
    pub fn counted_block(&self) -> Option<BlockIndex> {
        self.files.transport().activity.block()
    }

    /// The activity segment of this host, once this process is attached.
    #[must_use]
    pub fn activity(&self) -> Option<&ActivitySegment> {
        self.files.transport().activity.segment()
    }

    /// Count of replies that arrived, for `sleep_for_waits`. With `asks` it also tests whether the
    /// daemon is alive.
    #[must_use]
    pub fn answered_waits(&self, asks: bool) -> u32 {
        self.files.transport().answered_waits(asks)
    }

    /// Sleeps briefly, at most until a reply beyond the counted ones arrives or `wake_for_waits` is
    /// called.
    pub fn sleep_for_waits(&self, answered: u32) {
        self.files.transport().sleep_for_waits(answered)
    }

    /// As `sleep_for_waits`, for at most `micros`.
    pub fn sleep_long_for_waits(&self, answered: u32, micros: u64) {
        self.files.transport().sleep_long_for_waits(answered, micros)
    }

    /// Ends a `sleep_for_waits`.
    pub fn wake_for_waits(&self) {
        self.files.transport().wake_for_waits()
    }

    /// True if the shard of a file is on this host, so that opening it costs no message.
    #[must_use]
    pub fn is_of_this_host(&self, inode: Inode) -> bool {
        self.files.transport().is_of_this_host(inode)
    }
}
