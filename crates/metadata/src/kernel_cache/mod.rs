//! Invalidation of what kernels behind mounts remember: names and attributes of mounts of this host
//! (`local`) and of other hosts (`remote`), pages (`page_cache`), and removed files that such a
//! kernel may still open (`grace`).

pub(crate) mod grace;
pub(crate) mod local;
pub(crate) mod notices;
pub(crate) mod page_cache;
pub(crate) mod remote;

use grace::GraceFiles;
use notices::LocalMounts;
use page_cache::PageCaches;
use remote::RemoteMounts;
use wire::Errno;

use crate::core::context::Context;
use crate::core::job::{Call, Step, Stop};

/// State of the invalidation of kernel caches, of mounts of this host and of others.
#[derive(Default)]
pub(crate) struct KernelCaches {
    /// Notices to mounts of this host.
    pub(crate) local: LocalMounts,
    /// Mounts of other hosts.
    pub(crate) remote: RemoteMounts,
    /// Pages of files.
    pub(crate) pages: PageCaches,
    /// Replaced files that a kernel may be about to open.
    pub(crate) grace: GraceFiles,
}

impl KernelCaches {
    /// A mount of this host waits for notices, and has carried out all up to `done`.
    pub(crate) fn notices(&mut self, cx: &mut Context, call: &Call<'_>, done: u64) -> Step<()> {
        let mount = call.header.mount;
        if mount == 0 || call.header.host != cx.config.host {
            return Err(Stop::Refused(Errno::EINVAL));
        }
        cx.note_mounts();
        self.local.carried_out(mount, done);
        self.remote.relayed_up_to(mount, done, &mut cx.io);
        self.pages_dropped(cx, call.host_view, mount, done);
        self.local.await_notices(cx, call);
        Ok(())
    }
}
