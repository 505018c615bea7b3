//! Threads that receive notices of changes and make the kernel forget (`kernel_cache::watches`).
//!
//! The kernel forgets a name under the lock of its directory, which another request of the same
//! kernel may hold while it waits for the notice of another mount. So names are invalidated by a
//! thread of their own. If that takes long, the kernel is told to look up all names again, which
//! takes no lock. So it is when a file gets another owner: in `chmod`, `utimensat` and their like the
//! kernel compares the owner that it learned with a name, although it was told to forget it.

use fuse::notice::Notice as Kernels;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use wire::ShardIndex;
use wire::codec::Field as _;
use wire::codec::Reader;
use wire::limits::SHARD_COUNT;
use wire::watch::{Notice, what};

use crate::kernel_cache::watches::{Invalidation, VALID};
use crate::ops::page_cache;
use crate::server::Server;

/// How long the invalidation of a name may take before all names are invalidated.
const NAME_INVALIDATION_TIMEOUT: Duration = Duration::from_millis(3);

/// First minor version of FUSE with `notify::INC_EPOCH`.
const EPOCHS_SINCE: u32 = 44;

/// Starts the threads that receive notices of all services of this host until the mount ends.
pub(crate) fn watch_services(server: &Arc<Server>) -> Vec<std::thread::JoinHandle<()>> {
    let (mut services, mut shards) = (Vec::new(), vec![false; usize::from(SHARD_COUNT)]);
    server.client.each_local_shard(&mut |shard, is_first| {
        services.extend(is_first.then_some(shard));
        shards.get_mut(usize::from(shard.0)).into_iter().for_each(|is_local| *is_local = true);
    });
    let (forget, names) = channel();
    server.watches.begin(shards, forget.clone());
    let mut threads = Vec::new();
    let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
    let invalidates = Arc::clone(server);
    threads.extend(named("names").spawn(move || run_invalidations(&invalidates, &names)));
    for shard in services {
        let (server, forget) = (Arc::clone(server), forget.clone());
        threads.extend(named("notices").spawn(move || take_notices(&server, shard, &forget)));
    }
    threads
}

fn take_notices(server: &Server, shard: ShardIndex, forget: &Sender<Invalidation>) {
    let mut done = 0;
    // One that leaves this host for good has no notices here any more.
    while !server.watches.stopped().load(SeqCst) && !server.client.is_remote(shard) {
        let taken =
            server.client.await_notices(shard, done, server.watches.stopped(), <[u8]>::to_vec);
        match taken {
            Ok(bytes) => {
                if let Some(last) = apply_notices(server, &bytes, forget) {
                    done = last;
                }
            }
            // The daemon is gone; the call has waited for it, and the daemon repeats its
            // notices when it is back.
            Err(error) => tracing::debug!(shard = shard.0, %error, "no notices"),
        }
    }
}

/// Applies notices to the kernel; returns the number of the last notice.
fn apply_notices(server: &Server, bytes: &[u8], forget: &Sender<Invalidation>) -> Option<u64> {
    let (mut reader, mut all) = (Reader::new(bytes), Vec::new());
    while !reader.rest().is_empty() {
        let Ok(notice) = Notice::take(&mut reader) else { break };
        let bucket = shm::host::watches::bucket_of(notice.watch());
        all.push((notice, server.client.watch_now(bucket)));
    }
    let last = all.last()?.0.number;
    server.watches.invalidate_lookups();
    let (did, done) = channel();
    let (mut names, mut has_owner) = (0, false);
    for (notice, _) in &all {
        let node = server.node_of(notice.inode);
        match notice.what {
            what::NAME => {
                names += 1;
                let name = notice.name.to_vec();
                let _ = forget.send(Invalidation::Name(notice.inode, name, did.clone()));
            }
            what::BYTES => page_cache::drop_pages(server, notice.inode),
            _ => {
                has_owner |= notice.what == what::OWNER;
                page_cache::notify(server, &Kernels::Inode { node, offset: -1, length: 0 });
            }
        }
    }
    let has_epochs = server.agreed.minor >= EPOCHS_SINCE;
    let is_late = (0..names).any(|_| done.recv_timeout(NAME_INVALIDATION_TIMEOUT).is_err());
    if has_epochs && (is_late || has_owner) {
        page_cache::notify(server, &Kernels::AllNames);
    } else if is_late {
        // Until the entries in the kernel have expired.
        let _ = (0..names).try_for_each(|_| done.recv_timeout(VALID));
    }
    for (notice, before) in all {
        server.watches.unwatch(server.client, notice.watch(), before);
    }
    Some(last)
}

fn run_invalidations(server: &Server, names: &Receiver<Invalidation>) {
    while let Ok(one) = names.recv() {
        match one {
            Invalidation::Name(directory, name, did) => {
                let directory = server.node_of(directory);
                page_cache::notify(server, &Kernels::Entry { directory, name: &name });
                let _ = did.send(());
            }
            Invalidation::Pages(range, number) => {
                page_cache::drop_requested_pages(server, range);
                if server.watches.page_drops.note_done(number) {
                    server.client.wake_for_waits();
                }
            }
            Invalidation::Stop => return,
        }
    }
}
