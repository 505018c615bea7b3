//! The hosts file: one `host[:daemons] [address]` per line; `#` begins a comment.

use crate::failure::{Failure, Result, USAGE};
use crate::state::records::HostEntry;
use std::net::{IpAddr, ToSocketAddrs as _};
use wire::limits::DAEMON_COUNT_MAX;

/// Most daemons of one host. A client attaches directly to 64 and reaches the others through its
/// home daemon.
pub(crate) const LOCAL_COUNT_MAX: u16 = 256;

/// One line of the hosts file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HostLine {
    /// Name of the host, as `ssh` expects it.
    pub(crate) host: String,
    /// Number of daemons.
    pub(crate) count: u16,
    /// Address on which they listen, if the line gives one.
    pub(crate) address: Option<IpAddr>,
}

/// Reads the text of the hosts file `path`.
///
/// # Errors
/// An invalid line, a duplicate host, no host, too many daemons.
pub(crate) fn parse(text: &str, path: &str) -> Result<Vec<HostLine>> {
    let mut lines: Vec<HostLine> = Vec::new();
    for (index, raw) in text.lines().enumerate() {
        let content = raw.split('#').next().unwrap_or_default();
        let mut words = content.split_whitespace();
        let Some(first) = words.next() else { continue };
        let invalid = |why: String| {
            let text = format!("hosts file: {path} line {}: {why}", index + 1);
            Failure::with_code(USAGE, text)
        };
        let line = host_line(first, words).map_err(invalid)?;
        let host = &line.host;
        if lines.iter().any(|line| line.host == *host) {
            return Err(invalid(format!("{host} is listed twice: write {host}:2")));
        }
        lines.push(line);
    }
    let total: u32 = lines.iter().map(|line| u32::from(line.count)).sum();
    if total == 0 || total > u32::from(DAEMON_COUNT_MAX) {
        let text = format!(
            "hosts file: {path}: {total} daemons, but 1 to {DAEMON_COUNT_MAX} are possible"
        );
        return Err(Failure::with_code(USAGE, text));
    }
    Ok(lines)
}

/// The words of a line.
fn host_line<'a>(
    first: &str,
    mut words: impl Iterator<Item = &'a str>,
) -> std::result::Result<HostLine, String> {
    let address = match words.next().map(str::parse) {
        None => None,
        Some(Ok(address)) if IpAddr::is_unspecified(&address) => {
            let what = "is no address of a host: give that of the interface to listen on";
            return Err(format!("{address} {what}"));
        }
        Some(Ok(address)) => Some(address),
        Some(Err(_)) => return Err("the second word must be an IP address".into()),
    };
    if words.next().is_some() {
        return Err("expected 'host[:daemons] [address]'".into());
    }
    let (host, count) = match first.split_once(':') {
        None => (first, Some(1)),
        Some((host, count)) => (host, count.parse::<u16>().ok()),
    };
    let count = count.filter(|count| (1..=LOCAL_COUNT_MAX).contains(count));
    let Some(count) = count else {
        return Err(format!("{first:?}: give 1 to {LOCAL_COUNT_MAX} daemons"));
    };
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"-._@".contains(&byte);
    // ssh would take a leading dash for an option.
    if host.is_empty() || host.starts_with('-') || !host.bytes().all(is_word) {
        return Err(format!("{host:?} is not a host name"));
    }
    Ok(HostLine { host: host.to_owned(), count, address })
}

/// The host that an option names as a line of the hosts file does, with the address on which its daemons
/// listen. It runs as many daemons as that in whose place it comes, so it names no number.
///
/// # Errors
/// It is no such line.
pub(crate) fn spare(text: &str) -> Result<HostLine> {
    let invalid = |why: String| Failure::with_code(USAGE, format!("spare host {text:?}: {why}"));
    let mut words = text.split_whitespace();
    let first = words.next().unwrap_or_default();
    if first.contains(':') {
        return Err(invalid("it runs as many daemons as the lost host: give no number".into()));
    }
    host_line(first, words).map_err(invalid)
}

/// The address of a host, which others must reach.
///
/// # Errors
/// It has none.
pub(crate) fn address_of(line: &HostLine) -> Result<String> {
    match line.address {
        Some(address) => Ok(address.to_string()),
        None => resolve(&line.host, true),
    }
}

/// Assigns daemon numbers and addresses to the hosts. `listen`, if given, is the address of hosts
/// without one.
///
/// # Errors
/// A host has no address that the others can reach.
pub(crate) fn assign(lines: &[HostLine], listen: Option<&str>) -> Result<Vec<HostEntry>> {
    let mut entries = Vec::new();
    let mut first = 0;
    for line in lines {
        let given = line.address.map(|address| address.to_string());
        let address = match given.or_else(|| listen.map(str::to_owned)) {
            Some(address) => address,
            None => resolve(&line.host, lines.len() > 1)?,
        };
        entries.push(HostEntry::new(&line.host, &address, first, line.count));
        first += line.count;
    }
    Ok(entries)
}

fn resolve(host: &str, must_be_reachable: bool) -> Result<String> {
    let advice = "write its address after its name in the hosts file";
    let name = host.rsplit('@').next().unwrap_or(host);
    let found: Vec<_> = (name, 0)
        .to_socket_addrs()
        .map_err(|error| {
            Failure::at("no address", format!("host {host}"), format!("{error}: {advice}"))
        })?
        .map(|address| address.ip())
        .collect();
    let usable = found.iter().find(|address| !must_be_reachable || !address.is_loopback());
    usable.map(ToString::to_string).ok_or_else(|| {
        let why = format!("its name resolves to this host itself ({found:?}): {advice}");
        Failure::at("no address for other hosts", format!("host {host}"), why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn daemons_are_numbered_in_the_order_of_the_hosts() {
        let text = "# nodes\nc1:2 10.0.0.1\n\nuser@c2  # one\nc3:3 ::1\n";
        let lines = parse(text, "f").expect("right");
        let entries = assign(&lines, Some("10.9.9.9")).expect("addresses");
        let found: Vec<_> = entries
            .iter()
            .map(|host| (&*host.host, host.first, host.count, &*host.listen))
            .collect();
        let expected =
            [("c1", 0, 2, "10.0.0.1"), ("user@c2", 2, 1, "10.9.9.9"), ("c3", 3, 3, "::1")];
        assert_eq!(found, expected);
    }

    #[test]
    fn invalid_lines_are_reported_by_number() {
        let wrong = [
            ("", "0 daemons"),
            ("c1:0", "f line 1: \"c1:0\": give 1 to 256"),
            ("c1:257", "give 1 to 256"),
            ("c1:x", "give 1 to 256"),
            ("\n-oProxyCommand=x", "f line 2: \"-oProxyCommand=x\" is not a host name"),
            ("a;b", "is not a host name"),
            ("c1 c2", "must be an IP address"),
            ("c1 10.0.0.1 x", "expected 'host[:daemons]"),
            ("c1\nc1", "c1 is listed twice: write c1:2"),
        ];
        for (text, what) in wrong {
            let failure = parse(text, "f").expect_err(text);
            assert!(failure.text().contains(what), "{text}: {}", failure.text());
            assert_eq!(failure.code(), USAGE);
        }
    }

    #[test]
    fn a_spare_is_a_host_and_perhaps_its_address() {
        let line = spare(" user@d 10.0.0.4 ").expect("right");
        let address = address_of(&line).expect("it is given");
        assert_eq!((&*line.host, &*address), ("user@d", "10.0.0.4"));
        for (text, what) in [
            ("", "\"\" is not a host name"),
            ("d:2 10.0.0.4", "give no number"),
            ("-oProxyCommand=x 10.0.0.4", "is not a host name"),
            ("d 0.0.0.0", "is no address of a host"),
            ("d e", "the second word must be an IP address"),
            ("d 10.0.0.4 x", "expected 'host[:daemons] [address]'"),
        ] {
            let failure = spare(text).expect_err(text);
            assert!(failure.text().contains(what), "{text}: {}", failure.text());
            assert_eq!(failure.code(), USAGE);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(text in "(.|\n){0,60}") {
            let _ = parse(&text, "f");
        }

        #[test]
        fn daemon_numbers_are_consecutive(counts in proptest::collection::vec(1u16..=64, 1..16)) {
            let text: String =
                counts.iter().enumerate().map(|(i, n)| format!("h{i}:{n} 10.0.0.1\n")).collect();
            let entries = assign(&parse(&text, "f").expect("right"), None).expect("addresses");
            let mut first = 0;
            for (entry, count) in entries.iter().zip(counts) {
                prop_assert_eq!((entry.first, entry.count), (first, count));
                first += count;
            }
        }
    }
}
