//! The choice between libfabric and TCP: one interface for the daemon, whichever is used.

use super::mover::{Mover, NOT_HERE, STREAM};
use crate::endpoint::{Endpoint, Settings};
use crate::error::Error;
use crate::library::Library;
use core::str::FromStr;
use net::Channel;
use net::bulk::queue::{Command, CommandQueue};
use net::bulk::{BulkHandler, Fabric, Lane, Tcp, Transfer, Visit};
use net::handshake::PeerIdentity;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

/// Accesses in flight: for visits, as many as there are slots.
const TRANSFERS_MAX: u32 = 128;
/// Time that a peer may accept nothing before an access that was not posted goes by TCP.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The transport for the bytes of files between daemons.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Choice {
    /// Streams of TCP.
    Tcp,
    /// libfabric where both daemons have it, else TCP.
    Libfabric {
        /// The provider; none: the best that reaches other hosts.
        provider: Option<String>,
    },
}

impl FromStr for Choice {
    type Err = ();

    /// `tcp`, `libfabric` or `libfabric:PROVIDER`.
    fn from_str(text: &str) -> Result<Choice, ()> {
        match text.split_once(':') {
            None if text == "tcp" => Ok(Choice::Tcp),
            None if text == "libfabric" => Ok(Choice::Libfabric { provider: None }),
            Some(("libfabric", name)) if !name.is_empty() => {
                Ok(Choice::Libfabric { provider: Some(name.to_owned()) })
            }
            _ => Err(()),
        }
    }
}

/// The interface to the chosen transport.
pub struct BulkTransport<E: BulkHandler> {
    tcp: Arc<Tcp<E>>,
    mover: Option<Arc<CommandQueue<E>>>,
}

/// The parts that have to run, each on a thread of its own.
pub struct Lanes<E: BulkHandler> {
    /// The streams of TCP.
    pub tcp: Vec<Lane<E>>,
    /// libfabric, if it was chosen and is available.
    pub mover: Option<Mover<E>>,
}

impl<E: BulkHandler + 'static> BulkTransport<E> {
    /// The transport, and `count` lanes of TCP for transfers that libfabric cannot carry. If
    /// libfabric was chosen and is not available, this is logged in one line.
    ///
    /// # Errors
    /// Errors of the operating system for the lanes.
    pub fn new(
        count: usize,
        settings: &net::Settings,
        choice: &Choice,
    ) -> io::Result<(BulkTransport<E>, Lanes<E>)> {
        let (tcp, lanes) = Tcp::new(count, settings)?;
        let tcp = Arc::new(tcp);
        let mut transport = BulkTransport { tcp, mover: None };
        let mut lanes = Lanes { tcp: lanes, mover: None };
        if let Choice::Libfabric { provider } = choice {
            let fallback: Arc<dyn Fabric<E>> = Arc::<Tcp<E>>::clone(&transport.tcp);
            match open(settings, provider.clone(), fallback) {
                Ok((queue, mover)) => {
                    transport.mover = Some(queue);
                    lanes.mover = Some(mover);
                }
                Err(error) => tracing::warn!(%error, "no libfabric: bytes go by TCP"),
            }
        }
        Ok((transport, lanes))
    }

    /// Takes a stream that a peer dialled.
    pub fn accepted(&self, from: PeerIdentity, mut stream: Channel) {
        match &self.mover {
            _ if from.stream != STREAM => self.tcp.accepted(from, stream),
            Some(mover) => mover.push(Command::Accepted(from, stream)),
            None => {
                let _ = stream.write_all(&NOT_HERE).and_then(|()| stream.flush());
            }
        }
    }

    /// Stops all lanes. Transfers in flight are lost.
    pub fn stop(&self) {
        if let Some(mover) = &self.mover {
            mover.stop();
        }
        self.tcp.stop();
    }
}

type Opened<E> = (Arc<CommandQueue<E>>, Mover<E>);

fn open<E: BulkHandler + 'static>(
    settings: &net::Settings,
    provider: Option<String>,
    fallback: Arc<dyn Fabric<E>>,
) -> Result<Opened<E>, Error> {
    let address = settings.listen.ip();
    let preferred = Settings {
        provider,
        remote: !address.is_loopback(),
        address: (!address.is_unspecified()).then_some(address),
        transfers_max: TRANSFERS_MAX,
        timeout: TIMEOUT,
        part_bytes_max: u64::MAX,
    };
    let endpoint = Endpoint::open(Library::load()?, &preferred)?;
    let offer = endpoint.offer();
    if !endpoint.writes() {
        let name = &offer.provider;
        return Err(Error::Absent(format!("{name} does not tell when bytes have arrived")));
    }
    let (provider, domain) = (&offer.provider, &offer.domain);
    tracing::info!(provider, domain, "bytes go by libfabric");
    Mover::new(settings.clone(), endpoint, fallback)
}

impl<E: BulkHandler + 'static> Fabric<E> for BulkTransport<E> {
    fn start(&self, transfer: Transfer<E::Memory, E::Token>) {
        match &self.mover {
            Some(mover) => mover.push(Command::Start(transfer)),
            None => self.tcp.start(transfer),
        }
    }

    fn answer(&self, visit: Visit, decision: E::Decision) {
        match (visit.number_elsewhere(), &self.mover) {
            (Some(number), Some(mover)) => mover.push(Command::Answer(number, decision)),
            _ => self.tcp.answer(visit, decision),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_one_of_three_forms() {
        let libfabric =
            |name: Option<&str>| Choice::Libfabric { provider: name.map(str::to_owned) };
        assert_eq!("tcp".parse(), Ok(Choice::Tcp));
        assert_eq!("libfabric".parse(), Ok(libfabric(None)));
        assert_eq!("libfabric:cxi".parse(), Ok(libfabric(Some("cxi"))));
        assert_eq!("libfabric:tcp;ofi_rxm".parse(), Ok(libfabric(Some("tcp;ofi_rxm"))));
        for wrong in ["", "TCP", "tcp:x", "libfabric:", "verbs", ":tcp"] {
            assert_eq!(wrong.parse::<Choice>(), Err(()), "{wrong}");
        }
    }
}
