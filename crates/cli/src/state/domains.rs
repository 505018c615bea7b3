//! Failure domains of the hosts of an instance: hosts that one fault may end together, such as those of
//! a rack, have the same. A file has `host domain` on each line; `#` begins a comment. Without one the
//! racks of Slurm are the domains if the hosts are in three or more, so that the loss of one leaves a
//! majority; else each host is one. Domains are named by people, and numbered for daemons in the order
//! of the hosts.

use crate::commands::plural;
use crate::failure::{Failure, Result, USAGE};
use crate::state::records::HostEntry;
use config::choice::SameDomain;
use config::{Key, Settings};
use std::collections::{BTreeMap, BTreeSet};

/// The value of `--domains` that names no file.
pub(crate) const AUTO: &str = "auto";
/// Racks with which they are the domains.
const RACKS_MIN: usize = 3;

/// Gives each host its domain: `auto`, or by the file of this name. `topology` gives the text of
/// `scontrol show topology`.
///
/// # Errors
/// The file cannot be read, a line of it is invalid, a host is not of the instance, or one has no
/// domain.
pub(crate) fn assign(
    domains: &str,
    hosts: &mut [HostEntry],
    topology: impl FnOnce() -> Option<String>,
) -> Result<()> {
    if domains != AUTO {
        let text = std::fs::read_to_string(domains).map_err(|error| {
            let text = format!("cannot read the domains file: {domains}: {error}");
            Failure::with_code(USAGE, text)
        })?;
        return assign_by(&text, domains, hosts);
    }
    let racks = topology().map_or_else(Vec::new, |text| racks(&text, hosts));
    let is_enough = racks.iter().collect::<BTreeSet<_>>().len() >= RACKS_MIN;
    let mut racks = racks.into_iter().filter(|_| is_enough);
    for entry in hosts {
        let own = if entry.host.is_empty() { "here" } else { &entry.host };
        entry.domain = racks.next().unwrap_or_else(|| own.to_owned());
    }
    Ok(())
}

/// As the text of the file `path` says.
fn assign_by(text: &str, path: &str, hosts: &mut [HostEntry]) -> Result<()> {
    let wrong = |what: String| Failure::with_code(USAGE, format!("domains file: {path}{what}"));
    let mut found = BTreeMap::new();
    for (index, raw) in text.lines().enumerate() {
        let content = raw.split('#').next().unwrap_or_default();
        let words: Vec<&str> = content.split_whitespace().collect();
        let invalid = |why: String| wrong(format!(" line {}: {why}", index + 1));
        let (host, domain) = match words.as_slice() {
            [] => continue,
            [host, domain] => (*host, *domain),
            _ => return Err(invalid("expected 'host domain'".into())),
        };
        if !hosts.iter().any(|entry| entry.host == host) {
            let advice = "remove the line, or add the host to the hosts file";
            return Err(invalid(format!("{host} is no host of this instance: {advice}")));
        }
        if found.insert(host, domain).is_some() {
            return Err(invalid(format!("{host} is listed twice")));
        }
    }
    for entry in hosts {
        let domain = found.get(entry.host.as_str());
        let domain = domain.ok_or_else(|| match entry.host.as_str() {
            "" => wrong(": it names hosts, which only --hosts has: give --domains auto".into()),
            host => wrong(format!(": host {host} has no domain: add a line '{host} DOMAIN'")),
        })?;
        entry.domain = (*domain).to_owned();
    }
    Ok(())
}

/// The rack of each host: the switch of the lowest level with its node; empty if one has none.
fn racks(topology: &str, hosts: &[HostEntry]) -> Vec<String> {
    let field = |line: &str, name: &str| {
        let value = line.split_whitespace().find_map(|word| word.strip_prefix(name));
        value.map(str::to_owned)
    };
    let lowest = topology.lines().filter(|line| field(line, "Level=").as_deref() == Some("0"));
    let switches: Vec<(String, String)> = lowest
        .filter_map(|line| Some((field(line, "SwitchName=")?, field(line, "Nodes=")?)))
        .collect();
    let rack = |entry: &HostEntry| {
        let host = entry.host.rsplit('@').next().unwrap_or_default();
        let node = host.split('.').next().unwrap_or_default();
        let own = switches.iter().find(|(_, nodes)| has_node(nodes, node));
        own.map(|(name, _)| name.clone())
    };
    hosts.iter().map(rack).collect::<Option<_>>().unwrap_or_default()
}

/// Whether a list of Slurm such as `login,n[1-3,07]` has a node.
fn has_node(list: &str, node: &str) -> bool {
    let mut depth = 0;
    let mut parts = list.split(|letter: char| {
        depth += i32::from(letter == '[') - i32::from(letter == ']');
        letter == ',' && depth == 0
    });
    parts.any(|pattern| is_node_of(pattern, node))
}

/// Whether a name is among those of a pattern, in which each pair of brackets has numbers and ranges. The
/// first number of a range has as many digits as each of its numbers at least.
fn is_node_of(pattern: &str, name: &str) -> bool {
    let Some((before, rest)) = pattern.split_once('[') else { return pattern == name };
    let Some((numbers, after)) = rest.split_once(']') else { return false };
    let Some(name) = name.strip_prefix(before) else { return false };
    let is_digit = |letter: char| letter.is_ascii_digit();
    let digits = name.find(|letter| !is_digit(letter)).unwrap_or(name.len());
    let (number, rest) = name.split_at(digits);
    let is_in = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let parsed = (number.parse::<u64>(), first.parse(), last.parse());
        let (Ok(number_is), Ok(first_is), Ok(last_is)) = parsed else { return false };
        let padded = format!("{number_is:0width$}", width = first.len());
        (first_is..=last_is).contains(&number_is) && padded == number
    };
    numbers.split(',').any(is_in) && is_node_of(after, rest)
}

/// The number of the domain of each daemon; empty: the instance has none.
pub(crate) fn numbers<'a>(hosts: impl IntoIterator<Item = &'a HostEntry>) -> Vec<u32> {
    let mut numbers = BTreeMap::new();
    let mut of_daemons = Vec::new();
    for entry in hosts.into_iter().filter(|entry| !entry.domain.is_empty()) {
        let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        let number = *numbers.entry(&entry.domain).or_insert(next);
        of_daemons.extend((0..entry.count).map(|_| number));
    }
    of_daemons
}

/// The first daemon of each daemon's host, where metadata services go on at followers of dead daemons;
/// empty: they stay. On one host there is no other on which a program could go on.
pub(crate) fn first_daemons<'a>(
    hosts: impl IntoIterator<Item = &'a HostEntry>,
    followers: u64,
) -> Vec<u16> {
    let hosts: Vec<&HostEntry> = hosts.into_iter().collect();
    if followers == 0 || hosts.len() < 2 {
        return Vec::new();
    }
    hosts.iter().flat_map(|entry| vec![entry.first; usize::from(entry.count)]).collect()
}

/// Whether these hosts, which have their domains, can have the followers that the settings ask for.
///
/// # Errors
/// Which setting does not fit the others, or the hosts.
pub(crate) fn check_followers(settings: &Settings, hosts: &[HostEntry]) -> Result<()> {
    let followers = settings.number(Key::Followers).unwrap_or(0);
    let refuse = |text: String| Err(Failure::with_code(USAGE, text));
    if followers == 0 {
        let given = |key| settings.is_given(key);
        return match (given(Key::MetadataSync), given(Key::SameDomain)) {
            (true, _) => refuse(format!(
                "--metadata-sync {} has no effect without followers: give --followers 1, or leave it \
                 out ({})",
                settings.word(Key::MetadataSync),
                settings.origin(Key::MetadataSync)
            )),
            (_, true) => refuse(format!(
                "--same-domain has no effect without followers: give --followers 1, or leave it out \
                 ({})",
                settings.origin(Key::SameDomain)
            )),
            _ => Ok(()),
        };
    }
    if settings.text(Key::Domains).is_none() {
        return refuse(format!(
            "--followers {followers} needs failure domains: give --domains auto or a file ({})",
            settings.origin(Key::Followers)
        ));
    }
    check_places(settings, hosts, &format!("--followers {followers}"), followers + 1)
}

/// Whether so many copies can be apart, as a setting asks.
fn check_places(settings: &Settings, hosts: &[HostEntry], asked: &str, copies: u64) -> Result<()> {
    let daemons: u64 = hosts.iter().map(|entry| u64::from(entry.count)).sum();
    let domains = hosts.iter().map(|entry| &entry.domain).collect::<BTreeSet<_>>().len() as u64;
    let is_allowed = settings.word(Key::SameDomain) == SameDomain::On.word();
    let (places, what, advice) = if is_allowed {
        (daemons, "daemon", "start more daemons")
    } else {
        (domains, "failure domain", "use hosts of more domains, or give --same-domain on")
    };
    if copies > places {
        let text = format!(
            "{asked} needs {}, and there {}: ask for fewer, {advice}",
            plural(copies, what),
            if places == 1 { "is 1".to_owned() } else { format!("are {places}") }
        );
        return Err(Failure::with_code(USAGE, text));
    }
    Ok(())
}

/// Whether these hosts, which have their domains, can have the copies of files that the settings ask
/// for.
///
/// # Errors
/// Which setting does not fit the others, or the hosts.
pub(crate) fn check_replicas(settings: &Settings, hosts: &[HostEntry]) -> Result<()> {
    let replicas = settings.number(Key::Replicas).unwrap_or(1);
    if replicas < 2 {
        return Ok(());
    }
    let origin = settings.origin(Key::Replicas);
    let refuse = |why: &str| {
        Err(Failure::with_code(USAGE, format!("--replicas {replicas} {why} ({origin})")))
    };
    if settings.text(Key::Domains).is_none() {
        return refuse("needs failure domains: give --domains auto or a file");
    }
    check_places(settings, hosts, &format!("--replicas {replicas}"), replicas)?;
    let others = replicas - 1;
    if settings.number(Key::Followers).is_none_or(|followers| followers < others) {
        return refuse(&format!("needs as many copies of metadata: give --followers {others}"));
    }
    if settings.text(Key::Memory).is_some_and(|memory| memory.contains("..")) {
        return refuse("and a range as --memory exclude each other: give --memory one amount");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Sources;

    /// As the manual of Slurm's topology plugin for trees shows it.
    const TOPOLOGY: &str = "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=tux[0-3]\n\
        SwitchName=s1 Level=0 LinkSpeed=1 Nodes=tux[4-7]\n\
        SwitchName=s2 Level=0 LinkSpeed=1 Nodes=tux[8-11]\n\
        SwitchName=s3 Level=1 LinkSpeed=1 Nodes=tux[0-11] Switches=s[0-2]\n";

    fn hosts(names: &[(&str, u16)]) -> Vec<HostEntry> {
        let mut first = 0;
        let entry = |&(host, count): &(&str, u16)| {
            first += count;
            HostEntry::new(host, "", first - count, count)
        };
        names.iter().map(entry).collect()
    }

    #[test]
    fn daemons_have_the_domains_of_their_hosts() {
        let mut of_three = hosts(&[("a", 1), ("b", 2), ("c", 1)]);
        assert!(numbers(&of_three).is_empty());
        assign(AUTO, &mut of_three, || None).expect("always");
        assert_eq!(numbers(&of_three), [0, 1, 1, 2]);
        assign_by("c r1\n\nb r2 # far\na r1", "f", &mut of_three).expect("right");
        assert_eq!(numbers(&of_three), [0, 1, 1, 0]);
        assert_eq!(first_daemons(&of_three, 1), [0, 1, 1, 3]);
        assert!(first_daemons(&of_three, 0).is_empty(), "services stay");
        let mut alone = hosts(&[("", 2)]);
        assert!(first_daemons(&alone, 1).is_empty());
        assign(AUTO, &mut alone, || Some(TOPOLOGY.to_owned())).expect("always");
        assert_eq!((numbers(&alone), alone[0].domain.as_str()), (vec![0, 0], "here"));
    }

    #[test]
    fn three_racks_of_slurm_are_domains() {
        let domains = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name, 1)).collect();
            let mut hosts = hosts(&names);
            assign(AUTO, &mut hosts, || Some(TOPOLOGY.to_owned())).expect("always");
            hosts.into_iter().map(|entry| entry.domain).collect::<Vec<_>>()
        };
        assert_eq!(
            domains(&["tux1", "me@tux3.site.org", "tux4", "tux10"]),
            ["s0", "s0", "s1", "s2"]
        );
        assert_eq!(domains(&["tux1", "tux2", "tux7"]), ["tux1", "tux2", "tux7"]);
        assert_eq!(domains(&["tux1", "tux4", "tux8", "x"]), ["tux1", "tux4", "tux8", "x"]);
    }

    #[test]
    fn nodes_are_found_in_lists() {
        let list = "login,n[1-3,07,010-011],r[0-1]c[8-10]x,m2";
        for node in ["login", "n1", "n3", "n07", "n010", "n011", "r0c8x", "r1c10x", "m2"] {
            assert!(has_node(list, node), "{node}");
        }
        for node in ["", "n", "n0", "n4", "n7", "n11", "n01", "r2c8x", "r0c08x", "r0c8", "m", "n1x"]
        {
            assert!(!has_node(list, node), "{node}");
        }
        for broken in ["n[1-", "n[", "n]1[", "n[x-y]", "[-]", ",,"] {
            assert!(!has_node(broken, "n1"), "{broken}");
        }
    }

    #[test]
    fn a_file_that_does_not_fit_the_hosts_is_refused() {
        for (text, names, expected) in [
            ("a 1\nx 2", &["a"][..], "f line 2: x is no host of this instance"),
            ("a 1", &["a", "b"], "f: host b has no domain: add a line 'b DOMAIN'"),
            ("a 1\na 2", &["a"], "f line 2: a is listed twice"),
            ("a 1 2", &["a"], "f line 1: expected 'host domain'"),
            ("a", &["a"], "expected 'host domain'"),
            ("", &[""], "give --domains auto"),
        ] {
            let names: Vec<_> = names.iter().map(|name| (*name, 1)).collect();
            let failure = assign_by(text, "f", &mut hosts(&names)).expect_err(text);
            assert!(failure.text().contains(expected), "{text}: {}", failure.text());
            assert_eq!(failure.code(), USAGE);
        }
        let failure = assign("/nonexistent", &mut hosts(&[("a", 1)]), || None);
        let text = failure.expect_err("no file").text().to_owned();
        assert!(text.contains("cannot read the domains file: /nonexistent"), "{text}");
    }

    fn settings(options: &[(Key, &str)]) -> Settings {
        let options = options.iter().map(|&(key, text)| (key, text.to_owned())).collect();
        Settings::resolve(&Sources { options, ..Sources::default() }).expect("allowed")
    }

    #[test]
    fn replicas_need_places_followers_and_targets_that_stay() {
        let refused = |options: &[(Key, &str)], names: &[(&str, u16)]| {
            let mut hosts = hosts(names);
            assign(AUTO, &mut hosts, || None).expect("one domain for each host");
            match check_replicas(&settings(options), &hosts) {
                Ok(()) => String::new(),
                Err(error) => error.text().to_owned(),
            }
        };
        let (three, one) = ([("a", 1), ("b", 1), ("c", 2)], [("", 3)]);
        let (domains, same) = ((Key::Domains, AUTO), (Key::SameDomain, "on"));
        let [two, most] = ["2", "3"].map(|copies| (Key::Replicas, copies));
        let [follower, followers] = ["1", "2"].map(|count| (Key::Followers, count));
        assert_eq!(refused(&[], &one), "");
        assert_eq!(refused(&[(Key::Replicas, "1"), (Key::Backing, "/b")], &one), "");
        assert_eq!(refused(&[domains, follower, two, (Key::Memory, "1GiB")], &three[..2]), "");
        assert_eq!(refused(&[domains, followers, most], &three), "");
        assert_eq!(refused(&[domains, followers, most, (Key::Backing, "/b")], &three), "");
        assert_eq!(refused(&[domains, followers, most, same], &one), "");
        for (options, hosts, part) in [
            (&[two][..], &three[..], "--replicas 2 needs failure domains: give --domains auto"),
            (&[domains, two], &three[..], "give --followers 1"),
            (&[domains, follower, most], &three[..], "give --followers 2"),
            (&[domains, follower, two, (Key::Memory, "1GiB..50%")], &three[..], "one amount"),
            (&[domains, followers, most], &three[..2], "needs 3 failure domains, and there are 2"),
            (&[domains, follower, two], &one[..], "needs 2 failure domains, and there is 1"),
            (&[domains, followers, most, same], &[("", 2)][..], "needs 3 daemons, and there are 2"),
        ] {
            let text = refused(options, hosts);
            assert!(text.contains(part) && text.lines().count() == 1, "{text}");
        }
    }

    #[test]
    fn followers_need_places() {
        let refused = |options: &[(Key, &str)], names: &[(&str, u16)]| {
            let mut hosts = hosts(names);
            assign(AUTO, &mut hosts, || None).expect("one domain for each host");
            match check_followers(&settings(options), &hosts) {
                Ok(()) => String::new(),
                Err(error) => error.text().to_owned(),
            }
        };
        let (three, one) = ([("a", 1), ("b", 1), ("c", 2)], [("", 2)]);
        let domains = (Key::Domains, AUTO);
        assert_eq!(refused(&[], &one), "");
        assert_eq!(refused(&[domains, (Key::Followers, "2")], &three), "");
        let same = (Key::SameDomain, "on");
        assert_eq!(refused(&[domains, (Key::Followers, "1"), same], &one), "");
        for (options, hosts, part) in [
            (&[(Key::Followers, "1")][..], &three[..], "give --domains auto"),
            (&[domains, (Key::Followers, "2")], &three[..2], "needs 3 failure domains"),
            (&[domains, (Key::Followers, "1")], &one[..], "and there is 1"),
            (&[domains, (Key::Followers, "2"), same], &one[..], "needs 3 daemons, and there are 2"),
            (&[domains, (Key::MetadataSync, "always")], &three[..], "without followers"),
            (&[domains, same], &three[..], "--same-domain has no effect"),
        ] {
            let text = refused(options, hosts);
            assert!(text.contains(part) && text.lines().count() == 1, "{text}");
        }
    }
}
