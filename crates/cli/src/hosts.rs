//! The file of hosts: a line `host[:daemons] [address]` each, `#` begins a comment.

use crate::failure::{Failure, Result, USAGE};
use crate::records::Part;
use std::net::{IpAddr, ToSocketAddrs as _};
use wire::limits::DAEMON_COUNT_MAX;

/// Most daemons of one host. A client attaches directly to 64; the others it reaches through its home.
pub(crate) const LOCAL_COUNT_MAX: u16 = 256;

/// One line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Line {
    /// Name, as `ssh` takes it.
    pub(crate) host: String,
    /// Daemons there.
    pub(crate) count: u16,
    /// Where they listen, if the line says so.
    pub(crate) address: Option<IpAddr>,
}

/// Reads the text of the file `place`.
///
/// # Errors
/// A line that makes no sense, a host that is named twice, no host, too many daemons.
pub(crate) fn parse(text: &str, place: &str) -> Result<Vec<Line>> {
    let mut lines: Vec<Line> = Vec::new();
    for (index, raw) in text.lines().enumerate() {
        let content = raw.split('#').next().unwrap_or_default();
        let mut words = content.split_whitespace();
        let Some(first) = words.next() else { continue };
        let wrong = |why: String| {
            let text = format!("hosts file: {place} line {}: {why}", index + 1);
            Failure::with_code(USAGE, text)
        };
        let address = match words.next().map(str::parse) {
            None => None,
            Some(Ok(address)) => Some(address),
            Some(Err(_)) => return Err(wrong("the second word must be an IP address".into())),
        };
        if words.next().is_some() {
            return Err(wrong("more than 'host[:daemons] [address]'".into()));
        }
        let (host, count) = match first.split_once(':') {
            None => (first, Some(1)),
            Some((host, count)) => (host, count.parse::<u16>().ok()),
        };
        let count = count.filter(|count| (1..=LOCAL_COUNT_MAX).contains(count));
        let Some(count) = count else {
            return Err(wrong(format!("{first:?}: give 1 to {LOCAL_COUNT_MAX} daemons")));
        };
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"-._@".contains(&byte);
        // A leading dash would be an option of ssh.
        if host.is_empty() || host.starts_with('-') || !host.bytes().all(is_word) {
            return Err(wrong(format!("{host:?} is no name of a host")));
        }
        if lines.iter().any(|line| line.host == host) {
            return Err(wrong(format!("{host} stands there twice: write {host}:2")));
        }
        lines.push(Line { host: host.to_owned(), count, address });
    }
    let total: u32 = lines.iter().map(|line| u32::from(line.count)).sum();
    if total == 0 || total > u32::from(DAEMON_COUNT_MAX) {
        let text =
            format!("hosts file: {place}: {total} daemons, possible are 1 to {DAEMON_COUNT_MAX}");
        return Err(Failure::with_code(USAGE, text));
    }
    Ok(lines)
}

/// The hosts with their daemons' numbers and addresses. `listen` is for all if it is given.
///
/// # Errors
/// A host without an address that others reach.
pub(crate) fn parts(lines: &[Line], listen: Option<&str>) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    let mut first = 0;
    for line in lines {
        let given = line.address.map(|address| address.to_string());
        let address = match given.or_else(|| listen.map(str::to_owned)) {
            Some(address) => address,
            None => look_up(&line.host, lines.len() > 1)?,
        };
        parts.push(Part {
            host: line.host.clone(),
            listen: address,
            first,
            daemons: Vec::new(),
            count: line.count,
        });
        first += line.count;
    }
    Ok(parts)
}

fn look_up(host: &str, must_be_reachable: bool) -> Result<String> {
    let advice = "write its address behind its name in the hosts file";
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
        let why = format!("its name means this machine itself ({found:?}): {advice}");
        Failure::at("no address for other hosts", format!("host {host}"), why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_become_numbers_of_daemons() {
        let text = "# nodes\nc1:2 10.0.0.1\n\nuser@c2  # one\nc3:3 ::1\n";
        let lines = parse(text, "f").expect("right");
        let parts = parts(&lines, Some("10.9.9.9")).expect("addresses");
        let found: Vec<_> =
            parts.iter().map(|part| (&*part.host, part.first, part.count, &*part.listen)).collect();
        let wanted = [("c1", 0, 2, "10.0.0.1"), ("user@c2", 2, 1, "10.9.9.9"), ("c3", 3, 3, "::1")];
        assert_eq!(found, wanted);
    }

    #[test]
    fn wrong_lines_are_named() {
        let wrong = [
            ("", "0 daemons"),
            ("c1:0", "f line 1: \"c1:0\": give 1 to 256"),
            ("c1:257", "give 1 to 256"),
            ("c1:x", "give 1 to 256"),
            ("\n-oProxyCommand=x", "f line 2: \"-oProxyCommand=x\" is no name"),
            ("a;b", "is no name"),
            ("c1 c2", "must be an IP address"),
            ("c1 10.0.0.1 x", "more than"),
            ("c1\nc1", "c1 stands there twice: write c1:2"),
        ];
        for (text, what) in wrong {
            let failure = parse(text, "f").expect_err(text);
            assert!(failure.text().contains(what), "{text}: {}", failure.text());
            assert_eq!(failure.code(), USAGE);
        }
    }

    proptest! {
        #[test]
        fn no_file_breaks_it(text in "(.|\n){0,60}") {
            let _ = parse(&text, "f");
        }

        #[test]
        fn numbers_follow_each_other(counts in proptest::collection::vec(1u16..=64, 1..16)) {
            let text: String =
                counts.iter().enumerate().map(|(i, n)| format!("h{i}:{n} 10.0.0.1\n")).collect();
            let parts = parts(&parse(&text, "f").expect("right"), None).expect("addresses");
            let mut first = 0;
            for (part, count) in parts.iter().zip(counts) {
                prop_assert_eq!((part.first, part.count), (first, count));
                first += count;
            }
        }
    }
}
