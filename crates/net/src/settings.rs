//! The settings of the connections of a daemon, and the daemons of its host.

use crate::handshake::Parties;
use crate::security::Protection;
use crate::security::secret::Secret;
use crate::socket::Place;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use wire::DaemonIndex;

/// Settings of the connections of a daemon.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Index of this daemon.
    pub me: DaemonIndex,
    /// Number of daemons of the instance.
    pub daemon_count: u16,
    /// Number of this daemon's start.
    pub start: u64,
    /// The instance's secret.
    pub secret: Secret,
    /// Address to listen on; port 0: any.
    pub listen: SocketAddr,
    /// File with the addresses of the other daemons; it may appear later.
    pub peers: PathBuf,
    /// Protection of connections to other hosts. Those within a host need none: the kernel keeps
    /// all but the owner and root from the directory of their sockets.
    pub protection: Protection,
    /// The daemons of this host, if they are known.
    pub host: Option<HostDaemons>,
    /// Counts of events, shared with the threads of bulk streams.
    pub counters: Arc<Counters>,
}

/// The daemons of one host, which talk through Unix sockets.
#[derive(Clone, Debug)]
pub struct HostDaemons {
    /// Index of the first.
    pub first: u16,
    /// Number of daemons.
    pub count: u16,
    /// The private directory of the sockets.
    pub directory: PathBuf,
}

impl HostDaemons {
    /// Path of the socket of a daemon; `None`: it is of another host.
    #[must_use]
    pub fn socket_of(&self, daemon: DaemonIndex) -> Option<PathBuf> {
        let place = daemon.0.checked_sub(self.first)?;
        (place < self.count).then(|| self.directory.join(format!("d{}.peer", daemon.0)))
    }
}

/// Counts of events that an administrator should see.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections that ended because a record did not verify.
    pub tampered: AtomicU64,
    /// Connections that ended because a record did not arrive whole.
    pub incomplete: AtomicU64,
    /// Connections that proved nothing.
    pub refused: AtomicU64,
}

impl Settings {
    /// Parameters of this daemon in a handshake at `place`.
    pub(crate) const fn parties(&self, place: Place) -> Parties {
        let protection = match place {
            Place::Tcp(_) => self.protection,
            Place::Host => Protection::Plain,
        };
        Parties { me: self.me, start: self.start, daemon_count: self.daemon_count, protection }
    }

    /// Path of the Unix socket by which `peer` is reached; `None`: it is of another host.
    pub(crate) fn host_socket_of(&self, peer: DaemonIndex) -> Option<PathBuf> {
        self.host.as_ref()?.socket_of(peer)
    }
}
