//! What a process leaves that was killed: its open files, their locks, sizes that nobody told.
//!
//! The home daemon of the host looks through the processes in the host segment when a session ends
//! and once a second while there are any; a process counts by number and start time.
//!
//! A process that was killed between counting a file in and noting it in its table, or between
//! taking it out and counting it out, leaves a count that nobody answers for. Mappings hold counts
//! that are in no table either, so the two can not be told apart while there are processes. Once
//! two looks find none, what was counted at the first belongs to nobody.
//!
//! This daemon may be killed as well. What a dead process had locked is noted in the host segment
//! (`releases`) while the descriptor is still in the table, which is found again.

use crate::reply::ReplyTo;
use crate::shared::Shared;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use shm::host::owners::{LOCKED_BY_OPEN_FILE, LOCKED_BY_PROCESS};
use shm::host::{HostSegment, OfdIndex, Tenant, VnodeIndex};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use wire::{Inode, Request};

/// Which processes are there, and which are not any more.
#[derive(Default)]
pub(crate) struct Reaper {
    /// Tables without a child at the last look, by row and generation: a fork may be on its way.
    suspects: BTreeSet<(u32, u32)>,
    /// Files that a killed process had written to. Their rows stay until the bytes have arrived and
    /// the shard knows the size, which only the row does until then.
    held: Vec<(Inode, VnodeIndex)>,
    /// What was counted at the last look, if it found no process.
    counted: Option<Counted>,
    /// There is something left of dead processes, or locks that are to end.
    has_more: bool,
}

/// What is counted in the host segment.
#[derive(Default)]
struct Counted {
    /// Open files: row, inode, how often it is open.
    vnodes: Vec<(VnodeIndex, Inode, u32)>,
    /// Open file descriptions: row, generation.
    files: Vec<(OfdIndex, u32)>,
}

impl Reaper {
    /// Looks through all processes, takes apart what is left of dead ones. Returns how many live.
    pub(crate) fn reap(&mut self, shared: &Shared) -> usize {
        let host = &shared.host;
        let (mut dead, mut suspects, mut living) = (Vec::new(), BTreeSet::new(), 0);
        host.process_list(&mut |tenant| {
            if is_alive(tenant.pid, tenant.started) {
                living += 1;
                return;
            }
            let name = (tenant.process.0, tenant.generation);
            if !tenant.is_adopted && !self.suspects.contains(&name) {
                suspects.insert(name);
                living += 1;
            } else {
                dead.push(tenant);
            }
        });
        self.suspects = suspects;
        // What the kernel of a dead mount remembers, it asks nobody about.
        host.mount_list(&mut |mount, pid, started| {
            // Without a start it is just being noted, or was when its process ended.
            let lives = if started == 0 { exists(pid) } else { is_alive(pid, started) };
            if !lives {
                host.give_mount(mount);
            }
        });
        let held = std::mem::take(&mut self.held);
        held.into_iter().for_each(|(inode, vnode)| self.count_out(shared, inode, vnode));
        self.has_more = false;
        for tenant in dead {
            tracing::debug!(tenant.pid, "process is gone");
            self.has_more |= !self.release(shared, tenant);
        }
        let before = self.counted.take();
        if living == 0 && self.held.is_empty() && !self.has_more {
            match before {
                Some(before) => before.release(shared),
                None => self.counted = Counted::of(host),
            }
        }
        self.has_more |= shared.releases.tell(shared, &is_gone);
        living
    }

    /// True if there is something to do at the next look, even if no process lives.
    pub(crate) const fn goes_on(&self) -> bool {
        self.counted.is_some() || !self.held.is_empty() || self.has_more
    }

    /// Takes the table of a dead process apart. False: there is more than can be noted at a time.
    fn release(&mut self, shared: &Shared, tenant: Tenant) -> bool {
        let host = &shared.host;
        let (process, generation) = (tenant.process, tenant.generation);
        if host.process_take_over(process, generation).is_err() {
            return true;
        }
        let owner = host.owner_of_tenant(shared.host_number, tenant);
        let mut is_whole = true;
        host.process_each(process, &mut |fd, file, _| {
            let inode =
                host.file(file).map_or(Inode::NONE, |words| Inode(words.inode.load(Relaxed)));
            let is_noted = inode.is_none() || leave_locks(shared, file, inode, owner);
            is_whole &= is_noted;
            if is_noted && host.process_take(process, fd).is_some() && !inode.is_none() {
                self.release_file(shared, file, inode);
            }
        });
        // Nobody else has this use of the row.
        is_whole && host.process_free(process, generation).is_ok()
    }

    /// A descriptor of a dead process stands for the open file no longer.
    fn release_file(&mut self, shared: &Shared, file: OfdIndex, inode: Inode) {
        let host = &shared.host;
        let Ok(words) = host.file(file) else { return };
        let vnode = VnodeIndex(words.vnode.load(Relaxed));
        tell_size(shared, inode, vnode);
        // Who had it, too, may have closed it since the locks were noted. If there is no room now, the
        // row
        // stays until nobody uses the instance.
        if host.file_release(file) == Ok(true) && leave_locks_of_file(shared, file, inode) {
            let _ = host.file_free(file);
            self.count_out(shared, inode, vnode);
        }
    }

    /// The last descriptor of an open file is gone.
    fn count_out(&mut self, shared: &Shared, inode: Inode, vnode: VnodeIndex) {
        let row = shared.host.vnode(vnode);
        let row = row.ok().filter(|row| row.inode.load(SeqCst) == inode.0);
        let is_untold = row.as_ref().is_some_and(|row| row.dirty_end.load(SeqCst) != 0)
            && shared.is_on_host(inode.shard());
        if is_untold {
            tell_size(shared, inode, vnode);
        }
        if is_untold || row.is_some_and(|row| row.has_pending()) {
            self.held.push((inode, vnode));
        } else if shared.host.vnode_close(inode, vnode).is_ok_and(|closed| closed.last) {
            is_closed(shared, inode);
        }
    }
}

/// Notes that the locks end that a dead process, which is `owner`, had by a descriptor that is still in
/// its
/// table, and those of the open file if no other descriptor stands for it. False if there is no room.
fn leave_locks(shared: &Shared, file: OfdIndex, inode: Inode, owner: u64) -> bool {
    let host = &shared.host;
    let Ok(words) = host.file(file) else { return true };
    let row = host.vnode(VnodeIndex(words.vnode.load(Relaxed)));
    let may_be_locked = row.is_ok_and(|row| row.may_be_locked(LOCKED_BY_PROCESS));
    let is_last = words.refs.load(SeqCst) <= 1;
    (!may_be_locked || host.release_leave(inode, owner))
        && (!is_last || leave_locks_of_file(shared, file, inode))
}

/// The same of an open file's own.
fn leave_locks_of_file(shared: &Shared, file: OfdIndex, inode: Inode) -> bool {
    let host = &shared.host;
    let row = host.file(file).and_then(|file| host.vnode(VnodeIndex(file.vnode.load(Relaxed))));
    let may_be_locked = row.is_ok_and(|row| row.may_be_locked(LOCKED_BY_OPEN_FILE));
    !may_be_locked || host.release_leave(inode, host.owner_of_file(shared.host_number, file))
}

impl Counted {
    /// `None` if nothing is.
    fn of(host: &HostSegment) -> Option<Counted> {
        let mut counted = Counted::default();
        host.vnode_list(&mut |index, vnode| {
            let inode = Inode(vnode.inode.load(SeqCst));
            counted.vnodes.push((index, inode, vnode.opens()));
        });
        host.file_list(&mut |index, file| {
            counted.files.push((index, file.generation.load(SeqCst)));
        });
        let any = !counted.vnodes.is_empty() || !counted.files.is_empty();
        any.then_some(counted)
    }

    /// Takes back what is still there of it.
    fn release(self, shared: &Shared) {
        let host = &shared.host;
        for (index, generation) in self.files {
            let Ok(file) = host.file(index) else { continue };
            if file.generation.load(SeqCst) != generation {
                continue;
            }
            let inode = Inode(file.inode.load(SeqCst));
            // Without room for its locks it stays for the next time.
            if inode.is_none() || leave_locks_of_file(shared, index, inode) {
                let _ = host.file_free(index);
            }
        }
        for (index, inode, opens) in self.vnodes {
            if inode.is_none() {
                host.vnode_free_lost(inode, index);
                continue;
            }
            tell_size(shared, inode, index);
            let Ok(vnode) = host.vnode(index) else { continue };
            // A close that was posted has yet to tell its size, and counts out itself.
            let is_untold = vnode.dirty_end.load(SeqCst) != 0 && !host.vnode_is_deleted(index);
            if is_untold || vnode.has_pending() {
                continue;
            }
            match host.vnode_uncount(inode, index, opens) {
                Ok(closed) if closed.last => is_closed(shared, inode),
                Ok(_) => {}
                Err(_) => host.vnode_free_lost(inode, index),
            }
        }
    }
}

/// True unless process `pid` is known not to run, or not to be the one that began at `started`
/// (clock ticks, as `/proc` says). What can not be read says nothing: we may have no descriptor
/// left to read it with, and `/proc` may hide other users' processes.
fn is_alive(pid: u32, started: u64) -> bool {
    let Ok(text) = std::fs::read(format!("/proc/{pid}/stat")) else { return exists(pid) };
    let Some((state, threads, began)) = parse_stat(&text) else { return exists(pid) };
    // A leader that ended before its threads is a zombie with more than one thread.
    let is_gone = matches!(state, b'Z' | b'X') && threads <= 1;
    began == started && !is_gone
}

/// True if a thread is known not to run any more: also one whose process nobody waited for.
fn is_gone(thread: u32) -> bool {
    let text = std::fs::read(format!("/proc/{thread}/stat"));
    let state = text.ok().and_then(|text| parse_stat(&text)).map(|(state, ..)| state);
    matches!(state, Some(b'Z' | b'X')) || !exists(thread)
}

/// True if there is a process of this number, though maybe not ours to signal.
fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// State, number of threads and start of a process. Its name may hold anything, text or not; what
/// follows the last parenthesis is numbers.
fn parse_stat(text: &[u8]) -> Option<(u8, u32, u64)> {
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    let mut fields = std::str::from_utf8(text.get(name_end + 1..)?).ok()?.split_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let threads = fields.nth(16)?.parse().ok()?;
    Some((state, threads, fields.nth(1)?.parse().ok()?))
}

/// Tells the shard what the process had written and not told.
fn tell_size(shared: &Shared, inode: Inode, vnode: VnodeIndex) {
    let Ok(words) = shared.host.vnode(vnode) else { return };
    let size = words.dirty_end.load(SeqCst);
    if size != 0 && words.inode.load(SeqCst) == inode.0 {
        tell(shared, inode, &Request::Extend { inode, size });
    }
}

/// A file was counted out: it is open on this host no longer, unless somebody opened it since. The shard
/// knows whether the host was registered and whether the file has a name.
fn is_closed(shared: &Shared, inode: Inode) {
    shared.tell_if_closed(inode);
    tell(shared, inode, &Request::Reap { inode });
}

fn tell(shared: &Shared, inode: Inode, request: &Request<'_>) {
    shared.hand_in(&shared.own_header(inode.shard()), request, ReplyTo::Nobody);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, setrlimit};
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::process::{Child, Command, Stdio};

    /// A process of its own, whose limits and names are nobody else's.
    struct Waiting(Child);

    impl Waiting {
        fn of(program: &OsStr) -> Waiting {
            let mut command = Command::new(program);
            // It ends by itself when its input does.
            let command = command.args(["-c", "read line; true"]).stdin(Stdio::piped());
            Waiting(command.spawn().expect("a process"))
        }

        fn started(&self) -> u64 {
            let text = std::fs::read(format!("/proc/{}/stat", self.0.id())).expect("proc");
            parse_stat(&text).expect("numbers").2
        }
    }

    impl Drop for Waiting {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_process_lives_that_started_when_it_did() {
        let waiting = Waiting::of(OsStr::new("sh"));
        let (pid, started) = (waiting.0.id(), waiting.started());
        assert!(is_alive(pid, started));
        assert!(!is_alive(pid, started + 1));
        assert!(!is_alive(u32::MAX, started));
        assert!(!is_alive(0, started));
        drop(waiting);
        assert!(!is_alive(pid, started));
    }

    #[test]
    fn a_process_whose_name_is_no_text_lives() {
        let dir = tempfile::tempdir().expect("a directory");
        let program = dir.path().join(OsStr::from_bytes(b"\xff) Z 1 \xfe"));
        std::os::unix::fs::symlink("/bin/sh", &program).expect("a name for it");
        let waiting = Waiting::of(program.as_os_str());
        assert!(is_alive(waiting.0.id(), waiting.started()));
    }

    #[test]
    fn a_process_lives_also_if_no_descriptor_is_left_to_look_with() {
        const IN_CHILD: &str = "REAPER_TEST_WITHOUT_DESCRIPTORS";
        if let Some(parent) = std::env::var_os(IN_CHILD) {
            let parent: u32 = parent.to_str().and_then(|pid| pid.parse().ok()).expect("a number");
            let text = std::fs::read(format!("/proc/{parent}/stat")).expect("proc");
            let started = parse_stat(&text).expect("numbers").2;
            let none = Rlimit { current: Some(0), maximum: Some(0) };
            setrlimit(Resource::Nofile, none).expect("a limit");
            let read = std::fs::read(format!("/proc/{parent}/stat"));
            assert_eq!(read.map_err(|error| error.raw_os_error()), Err(Some(24)), "EMFILE");
            assert!(is_alive(parent, started));
            assert!(!is_alive(u32::MAX, started));
            return;
        }
        // The limit is the whole process's, and other tests run in this one.
        let name = "reaper::tests::a_process_lives_also_if_no_descriptor_is_left_to_look_with";
        let output = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", name])
            .env(IN_CHILD, std::process::id().to_string())
            .output()
            .expect("a process");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}
