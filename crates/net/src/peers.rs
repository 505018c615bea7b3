//! The peers file of an instance: a line `index address` for each daemon.
//!
//! It appears after all daemons told their addresses, and changes when one came back elsewhere; so
//! it is read at each dial.

use std::net::SocketAddr;
use std::path::Path;
use wire::DaemonIndex;

/// Longest peers file: 1024 daemons with a line of less than 64 bytes.
const PEERS_BYTES_MAX: u64 = 64 * 1024;

/// The address of `daemon`, `None` if the file does not tell.
pub(crate) fn address_of(file: &Path, daemon: DaemonIndex) -> Option<SocketAddr> {
    if std::fs::metadata(file).ok()?.len() > PEERS_BYTES_MAX {
        return None;
    }
    find(&std::fs::read_to_string(file).ok()?, daemon)
}

fn find(text: &str, daemon: DaemonIndex) -> Option<SocketAddr> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let index = words.next()?.parse::<u16>().ok()?;
        let address = words.next()?.parse().ok()?;
        (index == daemon.0).then_some(address)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_make_no_sense_are_passed_over() {
        let text = "0 127.0.0.1:1\nx\n1\n\n2 [::1]:3 more\n";
        assert_eq!(find(text, DaemonIndex(0)), "127.0.0.1:1".parse().ok());
        assert_eq!(find(text, DaemonIndex(1)), None);
        assert_eq!(find(text, DaemonIndex(2)), "[::1]:3".parse().ok());
    }
}
