//! The choice between libfabric and TCP: one door for the daemon, whatever is behind it.

use super::mover::{Mover, NOT_HERE, STREAM};
use crate::endpoint::{Endpoint, Settings};
use crate::error::Error;
use crate::library::Library;
use core::str::FromStr;
use net::bulk::queue::{Command, Queue};
use net::bulk::{Ends, Fabric, Lane, Tcp, Transfer, Visit};
use net::handshake::Proven;
use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

/// Accesses that are under way: of visits, as many as there are slots.
const TRANSFERS_MAX: u32 = 128;
/// How long a peer may take nothing before an access that was not posted goes by TCP.
const PATIENCE: Duration = Duration::from_secs(3);

/// What moves the bytes of files between daemons.
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

/// The door to whatever moves the bytes.
pub struct Doors<E: Ends> {
    tcp: Arc<Tcp<E>>,
    mover: Option<Arc<Queue<E>>>,
}

/// What has to run, each on a thread of its own.
pub struct Lanes<E: Ends> {
    /// The streams of TCP.
    pub tcp: Vec<Lane<E>>,
    /// libfabric, if it was chosen and is there.
    pub mover: Option<Mover<E>>,
}

impl<E: Ends + 'static> Doors<E> {
    /// The door, and `count` lanes of TCP, which carry what libfabric can not. If libfabric was
    /// chosen and is not there, a line of log says so.
    ///
    /// # Errors
    /// What the operating system says of the lanes.
    pub fn new(
        count: usize,
        settings: &net::Settings,
        choice: &Choice,
    ) -> io::Result<(Doors<E>, Lanes<E>)> {
        let (tcp, lanes) = Tcp::new(count, settings)?;
        let tcp = Arc::new(tcp);
        let mut doors = Doors { tcp, mover: None };
        let mut lanes = Lanes { tcp: lanes, mover: None };
        if let Choice::Libfabric { provider } = choice {
            let fallback: Arc<dyn Fabric<E>> = Arc::<Tcp<E>>::clone(&doors.tcp);
            match open(settings, provider.clone(), fallback) {
                Ok((queue, mover)) => {
                    doors.mover = Some(queue);
                    lanes.mover = Some(mover);
                }
                Err(error) => tracing::warn!(%error, "no libfabric: bytes go by TCP"),
            }
        }
        Ok((doors, lanes))
    }

    /// Takes a stream that a peer dialled.
    pub fn accepted(&self, from: Proven, stream: TcpStream) {
        match &self.mover {
            _ if from.stream != STREAM => self.tcp.accepted(from, stream),
            Some(mover) => mover.push(Command::Accepted(from, stream)),
            None => {
                let _ = (&stream).write(&NOT_HERE);
            }
        }
    }

    /// Ends all lanes. What is under way then is lost.
    pub fn stop(&self) {
        if let Some(mover) = &self.mover {
            mover.stop();
        }
        self.tcp.stop();
    }
}

type Opened<E> = (Arc<Queue<E>>, Mover<E>);

fn open<E: Ends + 'static>(
    settings: &net::Settings,
    provider: Option<String>,
    fallback: Arc<dyn Fabric<E>>,
) -> Result<Opened<E>, Error> {
    let address = settings.listen.ip();
    let wanted = Settings {
        provider,
        far: !address.is_loopback(),
        address: (!address.is_unspecified()).then_some(address),
        transfers_max: TRANSFERS_MAX,
        patience: PATIENCE,
        part_bytes_max: u64::MAX,
    };
    let endpoint = Endpoint::open(Library::load()?, &wanted)?;
    let offer = endpoint.offer();
    if !endpoint.writes() {
        let name = &offer.provider;
        return Err(Error::Absent(format!("{name} does not tell when bytes have arrived")));
    }
    let (provider, domain) = (&offer.provider, &offer.domain);
    tracing::info!(provider, domain, "bytes go by libfabric");
    Mover::new(settings.clone(), endpoint, fallback)
}

impl<E: Ends + 'static> Fabric<E> for Doors<E> {
    fn start(&self, transfer: Transfer<E::Memory, E::Token>) {
        match &self.mover {
            Some(mover) => mover.push(Command::Start(transfer)),
            None => self.tcp.start(transfer),
        }
    }

    fn answer(&self, visit: Visit, word: E::Word) {
        match (visit.number_elsewhere(), &self.mover) {
            (Some(number), Some(mover)) => mover.push(Command::Answer(number, word)),
            _ => self.tcp.answer(visit, word),
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
