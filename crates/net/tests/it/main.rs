//! Tests of the transport between daemons over loopback, with real and with fake peers.

mod fake;
mod hostile;

mod bulk;
mod transport;
