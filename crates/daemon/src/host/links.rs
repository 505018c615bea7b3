//! The host segment, and the ways to the shards of its files.

use crate::shared::inbox::Inboxes;
use crate::shared::network::Network;
use shm::host::HostSegment;

/// The host segment, and the ways to the shards of its files.
#[derive(Clone, Copy)]
pub(crate) struct HostLinks<'a> {
    pub(crate) segment: &'a HostSegment,
    pub(crate) net: &'a Network,
    pub(crate) inboxes: &'a Inboxes,
}
