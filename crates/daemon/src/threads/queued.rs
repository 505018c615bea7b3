//! Requests that wait at a worker: how they are kept, and of which kind they are. Which kind is served
//! next: `qos::kind_queue`.

use crate::sessions::client_session::ClientSession;
use crate::shared::inbox::WorkerMessage;
use crate::shared::reply::ReplyTo;
use qos::kind_queue::{KindQueue, RequestKind};
use qos::scheduler::OptionsError;
use std::sync::Arc;
use wire::Header;
use wire::codec::Reader;

/// A request that waits.
pub(super) enum QueuedRequest {
    /// In the slot of a session.
    Slot(Arc<ClientSession>, u16),
    /// Another thread has admitted and routed it.
    Admitted(Vec<u8>, ReplyTo),
    /// A message of another metadata service.
    Peer(Vec<u8>),
}

/// The kind of a request in the slot of a session, header first. The job that it names is not believed.
pub(super) fn kind_of(bytes: &[u8]) -> RequestKind {
    match Header::decode(&mut Reader::new(bytes)) {
        Ok(header) if header.shard == Header::TARGET => RequestKind::Data,
        _ => RequestKind::Metadata,
    }
}

/// The kind of a request whose job a daemon said, this one or another.
pub(super) fn kind_of_admitted(bytes: &[u8]) -> RequestKind {
    match Header::decode(&mut Reader::new(bytes)) {
        Ok(header) if header.job.is_urgent() => RequestKind::Urgent,
        _ => kind_of(bytes),
    }
}

/// The queue of a worker at which nothing waits.
pub(crate) struct WorkerQueue(pub(super) KindQueue<QueuedRequest>);

impl WorkerQueue {
    /// Metadata has this part of the worker's time while data waits, too.
    ///
    /// # Errors
    /// The configuration allows no such part.
    pub(crate) fn new(metadata_percent: u64) -> Result<WorkerQueue, OptionsError> {
        let percent = u32::try_from(metadata_percent).unwrap_or(u32::MAX);
        KindQueue::new(percent).map(WorkerQueue)
    }
}

/// Whether a message is about the end of senders of requests, or of what serves them.
pub(super) const fn ends_something(note: &WorkerMessage) -> bool {
    matches!(
        note,
        WorkerMessage::Closed(_)
            | WorkerMessage::ClientGone { .. }
            | WorkerMessage::Settle(_)
            | WorkerMessage::Withdrawn { .. }
            | WorkerMessage::Leave { .. }
            | WorkerMessage::HostGone { .. }
            | WorkerMessage::HostLost(_)
            | WorkerMessage::UnitsLost { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use gateway::{PeerCredentials, admit_from_peer, admit_from_session};
    use wire::codec::Writer;
    use wire::{Credentials, Inode, JobWord, Request};

    /// A session that claims urgency has none while it waits in its slot, nor when it is admitted.
    /// Daemons are believed.
    #[test]
    fn only_a_daemon_makes_a_request_urgent() {
        let header = Header {
            shard: Header::TARGET,
            daemon: 0,
            epoch: 1,
            client_id: 1,
            sequence: 1,
            host: 0,
            mount: 0,
            job: JobWord::URGENT,
            caller: Credentials::ROOT,
        };
        let request =
            Request::Read { inode: Inode(1 << 20), stripe_log2: 22, offset: 0, length: 4096 };
        let mut bytes = [0; 512];
        let mut writer = Writer::new(&mut bytes);
        header.encode(&mut writer);
        request.encode(&mut writer);
        let length = writer.finish().expect("it fits");
        let bytes = &bytes[..length];
        assert_eq!(kind_of(bytes), RequestKind::Data);
        let peer = PeerCredentials { uid: 0, gid: 0, pid: 1 };
        let of_session = admit_from_session(bytes, &peer, 0).expect("a request");
        assert_eq!(kind_of_admitted(&of_session.encode()), RequestKind::Data);
        let of_daemon = admit_from_peer(bytes).expect("a request");
        assert_eq!(kind_of_admitted(&of_daemon.encode()), RequestKind::Urgent);
    }
}
