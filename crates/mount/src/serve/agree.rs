//! Negotiation with the kernel: its first request, and whether requests will arrive by rings.

use client::Client;
use config::choice::RequestPath;
use fuse::abi::{IN_HEADER_BYTES, capability};
use fuse::init::Offer;
use fuse::request::Init;
use fuse::{Agreed, Header, Operation};
use rustix::fd::OwnedFd;
use std::sync::Arc;
use wire::errno::Errno;

use crate::device;
use crate::device::REQUEST_BYTES_MAX;
use crate::kernel_cache::access_times::AccessTimes;
use crate::kernel_cache::direct_io::DirectIoFiles;
use crate::kernel_cache::layouts::LayoutCache;
use crate::kernel_cache::lookup_cache::LookupCache;
use crate::kernel_cache::page_versions::PageVersions;
use crate::kernel_cache::pages::PageFills;
use crate::kernel_cache::watches::Watches;
use crate::kernel_cache::write_through::WriteThroughFiles;
use crate::rings::Prepared;
use crate::serve::answer::{refusal, reply_with};
use crate::server::Server;
use crate::server::handles::Handles;
use crate::server::lock_table::Locks;
use crate::server::quiesce::Quiesce;
use crate::server::serving_threads::ServingThreads;
use crate::settings::Settings;
use crate::users::activity::CallerActivity;
use crate::users::id_map::Owners;
use crate::users::own_limits::OwnLimits;

/// Maximum number of requests before `INIT`; the kernel sends none.
const STARTS_MAX: usize = 4;

/// A way of mounting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MountMode {
    /// How requests arrive.
    pub(crate) requests: RequestPath,
    /// The instance's root is a directory in the kernel's root.
    pub(crate) is_nested: bool,
}

/// Waits for the kernel's first request and answers it. If rings are agreed on, the kernel
/// sends nothing more before they are started.
///
/// # Errors
/// One line: the kernel is too old, or the device failed.
pub(crate) fn agree(
    client: &'static Client,
    handles: Handles,
    device: OwnedFd,
    settings: &Settings,
    mount_mode: MountMode,
) -> Result<(Server, Option<Prepared>), String> {
    let failed = |errno| format!("/dev/fuse: {errno}");
    let mut buffer = vec![0; REQUEST_BYTES_MAX];
    for _ in 0..STARTS_MAX {
        let request = device::receive_request(&device, &mut buffer).map_err(failed)?;
        let request = request.ok_or("it was unmounted at once")?;
        if request.is_empty() {
            continue;
        }
        let header = Header::parse(request).map_err(|error| error.to_string())?;
        let body = request.get(IN_HEADER_BYTES..).unwrap_or_default();
        let mut reply = [0; 128];
        let Ok(Operation::Init(init)) = Operation::parse(header.opcode, body, true) else {
            let length = refusal(&mut reply, header.unique, Errno::EIO);
            let _ = device::send_reply(&device, reply.get(..length).unwrap_or_default());
            continue;
        };
        let rings = rings_for(&init, settings, mount_mode.requests)?;
        let agreed = Agreed::of(&init, Offer { rings: rings.is_some(), passthrough: false });
        let agreed = agreed.map_err(|old| {
            format!("the kernel speaks FUSE {}.{}, 7.31 is needed", old.major, old.minor)
        })?;
        let length = reply_with(&mut reply, header.unique, |to| {
            agreed.write(to);
            Ok(())
        });
        let reply = reply.get(..length).unwrap_or_default();
        device::send_reply(&device, reply).map_err(failed)?;
        let server = Server {
            client,
            handles,
            agreed,
            owners: Owners::of(settings),
            callers: CallerActivity::of(settings),
            own_limits: OwnLimits::of(settings),
            locks: Locks::new(),
            lookup_cache: LookupCache::new(),
            access_times: AccessTimes::default(),
            quiesce: Quiesce::default(),
            serving: ServingThreads::new(rings.as_ref().map_or(1, Prepared::queue_count)),
            watches: Watches::new(),
            page_versions: PageVersions::new(),
            page_fills: PageFills::new(),
            direct_io: DirectIoFiles::new(),
            layouts: LayoutCache::new(),
            write_through: WriteThroughFiles::default(),
            device: Arc::new(device),
            is_nested: mount_mode.is_nested,
        };
        return Ok((server, rings));
    }
    Err("the kernel did not send INIT first".to_owned())
}

/// Prepares rings, if they are requested and possible.
fn rings_for(
    init: &Init,
    settings: &Settings,
    requests: RequestPath,
) -> Result<Option<Prepared>, String> {
    let is_offered = init.capabilities & capability::OVER_IO_URING != 0;
    let prepared = match requests {
        RequestPath::Classic => return Ok(None),
        _ if !is_offered => Err("the kernel does not offer them".to_owned()),
        _ => Prepared::new(settings.threads),
    };
    match prepared {
        Ok(prepared) => Ok(Some(prepared)),
        Err(why) if requests == RequestPath::Rings => Err(format!("rings are not possible: {why}")),
        Err(why) => {
            tracing::info!(why, "requests arrive by /dev/fuse, not by rings");
            Ok(None)
        }
    }
}
