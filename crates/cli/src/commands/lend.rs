//! `forebay lend` and `forebay reclaim`: how much memory of the nodes an instance may hold.

use crate::command_line::{with_json, with_settings};
use crate::commands::{human, print_json, table};
use crate::failure::{FAILED, Failure, Result, USAGE};
use crate::instance::{self, Node};
use crate::job_group::{Changed, JobGroup};
use crate::lend::{Lent, Order};
use crate::{resources, settings};
use clap::{Arg, ArgMatches, Command};
use config::Key;
use config::parse::{Amount, memory};
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

const LEND_EXAMPLES: &str = "\
Examples:
  forebay lend 4GiB node7       its daemons may hold 4 GiB for files, together
  forebay lend auto             all daemons follow what their nodes leave idle
  forebay lend 25% here --job-group /sys/fs/cgroup/memory/slurm/uid_1/job_7
                                the job can not have it: its limit is so much less

More than the daemons were started with (--memory) is never held. What is lent holds until it is said
otherwise; less than is held is given back at once, as by 'forebay reclaim'.";

const RECLAIM_EXAMPLES: &str = "\
Examples:
  forebay reclaim all node7     all memory of node7: its files move to its SSD
  forebay reclaim 64GiB         so much in all, of the emptiest nodes first
  forebay reclaim all here --job-group /sys/fs/cgroup/memory/slurm/uid_1/job_7
                                and the job may have it

What is free is given back at once, files move to the SSD of their daemon. It waits for that as long as
more comes, --timeout at most. Exit code 1: some could not be given back; the daemons go on trying.
'forebay lend' lends it again.";

fn nodes() -> Arg {
    Arg::new("nodes")
        .value_name("NODE")
        .num_args(0..)
        .help("Hosts as 'forebay status' shows them, 'here' for one without a name; without: all")
}

fn job_group() -> Arg {
    Arg::new("job-group")
        .long("job-group")
        .value_name("PATH")
        .value_parser(clap::value_parser!(PathBuf))
        .help("Control group of a job on this host, not the daemons': it can have the rest of the memory")
}

fn amount(help: &'static str) -> Arg {
    Arg::new("amount").value_name("SIZE").required(true).help(help)
}

pub(super) fn command() -> Command {
    let command = Command::new("lend").about("Let an instance hold so much memory of its nodes");
    let amount =
        amount("Size on each node, percent of what its daemons can hold (50%), all, or auto");
    let command = command.arg(amount).arg(nodes()).arg(job_group()).after_help(LEND_EXAMPLES);
    with_json(with_settings(command, &[Key::Name, Key::Timeout]))
}

pub(super) fn reclaim_command() -> Command {
    let command = Command::new("reclaim").about("Take memory of nodes back from an instance");
    let amount = amount("Size, of each node that is named or else in all; percent (50%), or all");
    let command = command.arg(amount).arg(nodes()).arg(job_group()).after_help(RECLAIM_EXAMPLES);
    with_json(with_settings(command, &[Key::Name, Key::Timeout]))
}

/// So much of `whole`; `None`: as much as is idle.
fn bytes(text: &str, whole: u64) -> Result<Option<u64>> {
    let wrong = || {
        let why = "give a size such as 4GiB, a part such as 50%, all, or, to lend, auto";
        Failure::with_code(USAGE, format!("no amount of memory: {text}: {why}"))
    };
    match (text, memory(text)) {
        ("auto", _) => Ok(None),
        ("all", _) => Ok(Some(whole)),
        (_, Some(config::parse::Memory { least: None, most: Amount::Bytes(bytes) })) => {
            Ok(Some(bytes))
        }
        (_, Some(config::parse::Memory { least: None, most: Amount::Percent(percent) })) => {
            Ok(Some((u128::from(whole) * u128::from(percent) / 100) as u64))
        }
        _ => Err(wrong()),
    }
}

/// The nodes that are asked for, as they are now.
fn asked(given: &ArgMatches, all: Vec<Node>) -> Result<Vec<Node>> {
    let names: Vec<&String> = given.get_many("nodes").into_iter().flatten().collect();
    if let Some(name) = names.iter().find(|name| !all.iter().any(|node| node.name() == **name)) {
        let known: Vec<&str> = all.iter().map(Node::name).collect();
        return Err(Failure::at("no such node", name, format!("there are {}", known.join(", "))));
    }
    let is_asked = |node: &Node| names.is_empty() || names.iter().any(|name| *name == node.name());
    Ok(all.into_iter().filter(is_asked).collect())
}

/// Divides what a node may hold among its daemons, as far as each can.
fn divide(daemons: &[Lent], bytes: u64) -> Vec<Order> {
    let mut left = bytes;
    let count = daemons.len() as u64;
    let shares = (0..).zip(daemons).map(|(place, daemon)| {
        let share = left.div_ceil(count - place).min(daemon.most);
        left -= share;
        Order { index: daemon.index, bytes: Some(share) }
    });
    shares.collect()
}

/// Orders for the nodes to give `wanted` bytes back: those with the fewest bytes in files first, so that
/// little moves.
fn emptiest_first(nodes: &[Node], wanted: u64) -> Vec<Vec<Order>> {
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_by_key(|&place| nodes.get(place).map_or(0, Node::used));
    let mut orders = vec![Vec::new(); nodes.len()];
    let mut left = wanted;
    for place in order {
        let Some(node) = nodes.get(place) else { continue };
        let (back, allowance) = (left.min(node.allowance()), node.allowance());
        left -= back;
        // Some may be on its way still: that is waited for, too.
        let is_beyond = node.daemons.iter().any(|daemon| daemon.beyond() > 0);
        if (back > 0 || is_beyond)
            && let Some(orders) = orders.get_mut(place)
        {
            *orders = take(&node.daemons, allowance - back);
        }
    }
    orders
}

/// Orders for daemons that hold something to hold `bytes` together: of each the same part.
fn take(daemons: &[Lent], bytes: u64) -> Vec<Order> {
    let all: u64 = daemons.iter().map(|daemon| daemon.allowance).sum();
    let part = |allowance: u64| {
        (u128::from(allowance) * u128::from(bytes) / u128::from(all.max(1))) as u64
    };
    let order = |daemon: &Lent| Order { index: daemon.index, bytes: Some(part(daemon.allowance)) };
    daemons.iter().map(order).collect()
}

pub(super) fn run(given: &ArgMatches) -> Result<u8> {
    let text = given.get_one::<String>("amount").map_or("", String::as_str);
    bytes(text, 0)?;
    carry_out(given, |nodes| {
        let orders = nodes.iter().map(|node| {
            let whole = node.daemons.iter().map(|daemon| daemon.most).sum();
            let auto = |daemon: &Lent| Order { index: daemon.index, bytes: None };
            Ok(match bytes(text, whole)? {
                Some(bytes) => divide(&node.daemons, bytes),
                None => node.daemons.iter().map(auto).collect(),
            })
        });
        orders.collect()
    })
}

pub(super) fn run_reclaim(given: &ArgMatches) -> Result<u8> {
    let text = given.get_one::<String>("amount").map_or("", String::as_str);
    let is_each = given.get_many::<String>("nodes").is_some_and(|nodes| nodes.len() > 0);
    if bytes(text, 0)?.is_none() {
        return Err(Failure::with_code(USAGE, "auto is for 'forebay lend'"));
    }
    carry_out(given, |nodes| {
        if !is_each {
            let whole = nodes.iter().map(Node::allowance).sum();
            return Ok(emptiest_first(nodes, bytes(text, whole)?.unwrap_or(whole)));
        }
        let orders = nodes.iter().map(|node| {
            let whole = node.allowance();
            let back = bytes(text, whole)?.unwrap_or(whole).min(whole);
            Ok(take(&node.daemons, whole - back))
        });
        orders.collect()
    })
}

fn carry_out(
    given: &ArgMatches,
    plan: impl FnOnce(&[Node]) -> Result<Vec<Vec<Order>>>,
) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let begun = Instant::now();
    let nodes = asked(given, instance::memory(name, settings.timeout())?)?;
    let orders = plan(&nodes)?;
    let group = group_of(given, &nodes)?;
    let before = taken(&nodes);
    let wanted: Option<u64> = orders.iter().flatten().map(|order| order.bytes).sum();
    let mut changed = None;
    if let Some(group) = &group {
        let wanted = wanted.ok_or_else(|| usage("a job's limit can not follow 'auto'"))?;
        // Less for the job before there is more for the daemons, and more for it after there is less.
        changed = (wanted >= before).then(|| group.shift(before, wanted)).transpose()?;
    }
    let nodes = instance::lend(name, nodes, &orders, settings.timeout())?;
    if let (Some(group), None, true) = (&group, &changed, !nodes.is_empty()) {
        changed = Some(group.shift(before, taken(&nodes))?);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let is_whole = nodes.iter().flat_map(|node| &node.daemons).all(|daemon| daemon.why.is_none());
    if given.get_flag("json") {
        let nodes =
            nodes.iter().map(|node| json!({ "node": node.name(), "daemons": node.daemons }));
        let nodes: Vec<_> = nodes.collect();
        let limit = match &changed {
            None => json!(null),
            Some(Changed::To(bytes)) => json!(bytes),
            Some(Changed::Not(why)) => json!({ "not": why }),
        };
        print_json(
            &json!({ "name": name, "nodes": nodes, "seconds": seconds, "job_limit": limit }),
        );
    } else {
        out!("{}", as_table(&nodes));
        for (node, daemon) in
            nodes.iter().flat_map(|node| node.daemons.iter().map(move |d| (node, d)))
        {
            if let Some(why) = &daemon.why {
                let beyond = human(Some(daemon.beyond()));
                outln!("daemon {} on {} keeps {beyond} for now: {why}", daemon.index, node.name());
            }
        }
        match changed {
            Some(Changed::To(bytes)) => outln!("the job may have {}", human(Some(bytes))),
            Some(Changed::Not(why)) => outln!("the job's limit stays: {why}"),
            None => {}
        }
    }
    Ok(if is_whole { 0 } else { FAILED })
}

fn usage(text: &str) -> Failure {
    Failure::with_code(USAGE, text)
}

/// Bytes that daemons hold, or may.
fn taken(nodes: &[Node]) -> u64 {
    let all = nodes.iter().flat_map(|node| &node.daemons);
    all.map(|daemon| daemon.allowance.max(daemon.held)).sum()
}

fn group_of(given: &ArgMatches, nodes: &[Node]) -> Result<Option<JobGroup>> {
    let Some(path) = given.get_one::<PathBuf>("job-group") else { return Ok(None) };
    if !matches!(nodes, [node] if node.host.is_empty()) {
        return Err(usage("a job's control group is of this host: name 'here' alone"));
    }
    JobGroup::open(path, resources::memory_of_host()).map(Some)
}

fn as_table(nodes: &[Node]) -> String {
    let head = ["node", "daemon", "lent", "held", "files", "given back"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for node in nodes {
        for daemon in &node.daemons {
            rows.push(vec![
                node.name().to_owned(),
                daemon.index.to_string(),
                human(Some(daemon.allowance)),
                human(Some(daemon.held)),
                human(Some(daemon.used)),
                human(Some(daemon.given_back)),
            ]);
        }
    }
    table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn node(host: &str, daemons: &[(u64, u64)]) -> Node {
        let lent = |(index, &(allowance, used)): (u16, &(u64, u64))| Lent {
            index,
            most: 4 * GIB,
            allowance,
            held: used,
            used,
            reason: "set".to_owned(),
            given_back: 0,
            why: None,
        };
        Node { host: host.to_owned(), daemons: (0..).zip(daemons).map(lent).collect() }
    }

    fn sizes(orders: &[Order]) -> Vec<Option<u64>> {
        orders.iter().map(|order| order.bytes.map(|bytes| bytes / GIB)).collect()
    }

    #[test]
    fn the_emptiest_nodes_come_first() {
        let nodes = [
            node("a", &[(4 * GIB, 3 * GIB)]),
            node("b", &[(4 * GIB, GIB)]),
            node("", &[(4 * GIB, 0)]),
        ];
        let told = |wanted| -> Vec<_> {
            emptiest_first(&nodes, wanted).iter().map(|orders| sizes(orders)).collect()
        };
        assert_eq!(told(3 * GIB), [vec![], vec![], vec![Some(1)]]);
        assert_eq!(told(6 * GIB), [vec![], vec![Some(2)], vec![Some(0)]]);
        assert_eq!(told(99 * GIB), [vec![Some(0)], vec![Some(0)], vec![Some(0)]]);
        assert_eq!(told(0), [vec![], vec![], vec![]]);
    }

    #[test]
    fn daemons_of_a_node_share() {
        let two = node("a", &[(4 * GIB, 0), (2 * GIB, 0)]);
        assert_eq!(sizes(&divide(&two.daemons, 6 * GIB)), [Some(3), Some(3)]);
        assert_eq!(sizes(&divide(&two.daemons, 99 * GIB)), [Some(4), Some(4)]);
        assert_eq!(sizes(&take(&two.daemons, 3 * GIB)), [Some(2), Some(1)]);
    }

    #[test]
    fn amounts_are_sizes_or_parts() {
        assert_eq!(bytes("all", 8).ok(), Some(Some(8)));
        assert_eq!(bytes("auto", 8).ok(), Some(None));
        assert_eq!(bytes("25%", 8).ok(), Some(Some(2)));
        assert_eq!(bytes("2GiB", 8).ok(), Some(Some(2 * GIB)));
        for wrong in ["", "x", "1GiB..2GiB", "-1"] {
            assert_eq!(bytes(wrong, 8).map_err(|failure| failure.code()), Err(USAGE));
        }
    }
}
