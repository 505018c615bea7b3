//! `forebay lend` and `forebay reclaim`: how much memory of the nodes an instance may use.

use crate::command_line::{with_json, with_settings};
use crate::commands::{human, print_json, table};
use crate::failure::{FAILED, Failure, Result, USAGE};
use crate::instance::cluster::{self, NodeMemory};
use crate::instance::lend::{AllowanceRequest, DaemonMemory};
use crate::state::job_group::{JobCgroup, LimitChange};
use crate::state::resources;
use crate::state::settings;
use clap::{Arg, ArgMatches, Command};
use config::Key;
use config::parse::{Amount, MemoryAmount, memory};
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

const LEND_EXAMPLES: &str = "\
Examples:
  forebay lend 4GiB node7       its daemons may use 4 GiB for files, together
  forebay lend auto             all daemons follow the idle memory of their nodes
  forebay lend 25% here --job-group /sys/fs/cgroup/memory/slurm/uid_1/job_7
                                and lower the limit of the job accordingly

Daemons never use more than they were started with (--memory). The amount stays in force until the next
'lend' or 'reclaim'. If it is less than the daemons use, they release memory at once, as for 'forebay
reclaim'.";

const RECLAIM_EXAMPLES: &str = "\
Examples:
  forebay reclaim all node7     all memory of node7: its files move to its SSD
  forebay reclaim 64GiB         this much in total, from the emptiest nodes first
  forebay reclaim all here --job-group /sys/fs/cgroup/memory/slurm/uid_1/job_7
                                and raise the limit of the job accordingly

Free memory is released at once; files in memory move to the SSD of their daemon, and with --replicas,
where that has no space, to other nodes. The command waits while more memory is being released, at most
--timeout. Exit code 1: some memory was not released; the daemons keep trying. 'forebay lend' lends it
again.";

fn nodes() -> Arg {
    Arg::new("nodes")
        .value_name("NODE")
        .num_args(0..)
        .help("Hosts as 'forebay status' shows them, 'here' for this host; default: all")
}

fn job_group() -> Arg {
    Arg::new("job-group")
        .long("job-group")
        .value_name("PATH")
        .value_parser(clap::value_parser!(PathBuf))
        .help("Control group of a job on this host (not the daemons'): its limit becomes the memory left")
}

fn amount(help: &'static str) -> Arg {
    Arg::new("amount").value_name("SIZE").required(true).help(help)
}

pub(crate) fn command() -> Command {
    let command =
        Command::new("lend").about("Set how much memory the instance may use on its nodes");
    let amount =
        amount("Size per node, percentage of what its daemons can hold (50%), all, or auto");
    let command = command.arg(amount).arg(nodes()).arg(job_group()).after_long_help(LEND_EXAMPLES);
    with_json(with_settings(command, &[Key::Name, Key::Timeout]))
}

pub(crate) fn reclaim_command() -> Command {
    let command = Command::new("reclaim").about("Give memory of the instance back to its nodes");
    let amount = amount("Size, per named node or in total; percentage (50%), or all");
    let command =
        command.arg(amount).arg(nodes()).arg(job_group()).after_long_help(RECLAIM_EXAMPLES);
    with_json(with_settings(command, &[Key::Name, Key::Timeout]))
}

/// An amount in bytes, relative to `whole`; `None` for `auto`.
fn bytes(text: &str, whole: u64) -> Result<Option<u64>> {
    let invalid = || {
        let why = "give a size such as 4GiB, a percentage such as 50%, all, or (to lend) auto";
        Failure::with_code(USAGE, format!("invalid amount of memory: {text}: {why}"))
    };
    match (text, memory(text)) {
        ("auto", _) => Ok(None),
        ("all", _) => Ok(Some(whole)),
        (_, Some(MemoryAmount { min: None, max: Amount::Bytes(bytes) })) => Ok(Some(bytes)),
        (_, Some(MemoryAmount { min: None, max: Amount::Percent(percent) })) => {
            Ok(Some((u128::from(whole) * u128::from(percent) / 100) as u64))
        }
        _ => Err(invalid()),
    }
}

/// The selected nodes, as they are now.
fn selected(given: &ArgMatches, all: Vec<NodeMemory>) -> Result<Vec<NodeMemory>> {
    let names: Vec<&String> = given.get_many("nodes").into_iter().flatten().collect();
    if let Some(name) = names.iter().find(|name| !all.iter().any(|node| node.name() == **name)) {
        let known: Vec<&str> = all.iter().map(NodeMemory::name).collect();
        return Err(Failure::at(
            "no such node",
            name,
            format!("the nodes are {}", known.join(", ")),
        ));
    }
    let is_selected =
        |node: &NodeMemory| names.is_empty() || names.iter().any(|name| *name == node.name());
    Ok(all.into_iter().filter(is_selected).collect())
}

/// Divides the allowance of a node among its daemons; none gets more than its arena.
fn divide(daemons: &[DaemonMemory], bytes: u64) -> Vec<AllowanceRequest> {
    let mut left = bytes;
    let count = daemons.len() as u64;
    let shares = (0..).zip(daemons).map(|(index, daemon)| {
        let share = left.div_ceil(count - index).min(daemon.max);
        left -= share;
        AllowanceRequest { index: daemon.index, bytes: Some(share) }
    });
    shares.collect()
}

/// Requests that make the nodes release `bytes`: nodes with the fewest bytes in files first, so
/// that little data moves.
fn emptiest_first(nodes: &[NodeMemory], bytes: u64) -> Vec<Vec<AllowanceRequest>> {
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_by_key(|&index| nodes.get(index).map_or(0, NodeMemory::used));
    let mut requests = vec![Vec::new(); nodes.len()];
    let mut left = bytes;
    for index in order {
        let Some(node) = nodes.get(index) else { continue };
        let (back, allowance) = (left.min(node.allowance()), node.allowance());
        left -= back;
        // A node that still holds more than its allowance is waited for, too.
        let is_beyond = node.daemons.iter().any(|daemon| daemon.excess() > 0);
        if (back > 0 || is_beyond)
            && let Some(requests) = requests.get_mut(index)
        {
            *requests = scale_down(&node.daemons, allowance - back);
        }
    }
    requests
}

/// Requests that scale the allowances of daemons down to `bytes` in total.
fn scale_down(daemons: &[DaemonMemory], bytes: u64) -> Vec<AllowanceRequest> {
    let all: u64 = daemons.iter().map(|daemon| daemon.allowance).sum();
    let part = |allowance: u64| {
        (u128::from(allowance) * u128::from(bytes) / u128::from(all.max(1))) as u64
    };
    let request = |daemon: &DaemonMemory| AllowanceRequest {
        index: daemon.index,
        bytes: Some(part(daemon.allowance)),
    };
    daemons.iter().map(request).collect()
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let text = given.get_one::<String>("amount").map_or("", String::as_str);
    bytes(text, 0)?;
    apply(given, |nodes| {
        let requests = nodes.iter().map(|node| {
            let whole = node.daemons.iter().map(|daemon| daemon.max).sum();
            let auto =
                |daemon: &DaemonMemory| AllowanceRequest { index: daemon.index, bytes: None };
            Ok(match bytes(text, whole)? {
                Some(bytes) => divide(&node.daemons, bytes),
                None => node.daemons.iter().map(auto).collect(),
            })
        });
        requests.collect()
    })
}

pub(crate) fn run_reclaim(given: &ArgMatches) -> Result<u8> {
    let text = given.get_one::<String>("amount").map_or("", String::as_str);
    let is_each = given.get_many::<String>("nodes").is_some_and(|nodes| nodes.len() > 0);
    if bytes(text, 0)?.is_none() {
        return Err(Failure::with_code(USAGE, "auto is only for 'forebay lend'"));
    }
    apply(given, |nodes| {
        if !is_each {
            let whole = nodes.iter().map(NodeMemory::allowance).sum();
            return Ok(emptiest_first(nodes, bytes(text, whole)?.unwrap_or(whole)));
        }
        let requests = nodes.iter().map(|node| {
            let whole = node.allowance();
            let back = bytes(text, whole)?.unwrap_or(whole).min(whole);
            Ok(scale_down(&node.daemons, whole - back))
        });
        requests.collect()
    })
}

fn apply(
    given: &ArgMatches,
    plan: impl FnOnce(&[NodeMemory]) -> Result<Vec<Vec<AllowanceRequest>>>,
) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let begun = Instant::now();
    let nodes = selected(given, cluster::memory(name, settings.timeout())?)?;
    let requests = plan(&nodes)?;
    let group = group_of(given, &nodes)?;
    let before = taken(&nodes);
    let after: Option<u64> = requests.iter().flatten().map(|request| request.bytes).sum();
    let mut changed = None;
    if let Some(group) = &group {
        let after = after.ok_or_else(|| usage("a job's limit cannot follow 'auto'"))?;
        // Lower the job's limit before the daemons may use more, and raise it after they use less.
        changed = (after >= before).then(|| group.shift(before, after)).transpose()?;
    }
    let nodes = cluster::lend(name, nodes, &requests, settings.timeout())?;
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
            Some(LimitChange::Set(bytes)) => json!(bytes),
            Some(LimitChange::Unchanged(why)) => json!({ "unchanged": why }),
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
                let excess = human(Some(daemon.excess()));
                outln!("daemon {} on {} still holds {excess}: {why}", daemon.index, node.name());
            }
        }
        match changed {
            Some(LimitChange::Set(bytes)) => outln!("limit of the job: {}", human(Some(bytes))),
            Some(LimitChange::Unchanged(why)) => outln!("the limit of the job is unchanged: {why}"),
            None => {}
        }
    }
    Ok(if is_whole { 0 } else { FAILED })
}

fn usage(text: &str) -> Failure {
    Failure::with_code(USAGE, text)
}

/// Bytes that daemons hold or may hold.
fn taken(nodes: &[NodeMemory]) -> u64 {
    let all = nodes.iter().flat_map(|node| &node.daemons);
    all.map(|daemon| daemon.allowance.max(daemon.held)).sum()
}

fn group_of(given: &ArgMatches, nodes: &[NodeMemory]) -> Result<Option<JobCgroup>> {
    let Some(path) = given.get_one::<PathBuf>("job-group") else { return Ok(None) };
    if !matches!(nodes, [node] if node.host.is_empty()) {
        return Err(usage(
            "--job-group needs a control group of this host: give the node 'here' only",
        ));
    }
    JobCgroup::open(path, resources::memory_of_host()).map(Some)
}

fn as_table(nodes: &[NodeMemory]) -> String {
    let head = ["node", "daemon", "allowed", "held", "in files", "released"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for node in nodes {
        for daemon in &node.daemons {
            rows.push(vec![
                node.name().to_owned(),
                daemon.index.to_string(),
                human(Some(daemon.allowance)),
                human(Some(daemon.held)),
                human(Some(daemon.used)),
                human(Some(daemon.released)),
            ]);
        }
    }
    table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn node(host: &str, daemons: &[(u64, u64)]) -> NodeMemory {
        let memory = |(index, &(allowance, used)): (u16, &(u64, u64))| DaemonMemory {
            index,
            max: 4 * GIB,
            allowance,
            held: used,
            used,
            reason: "set".to_owned(),
            released: 0,
            why: None,
        };
        NodeMemory { host: host.to_owned(), daemons: (0..).zip(daemons).map(memory).collect() }
    }

    fn sizes(requests: &[AllowanceRequest]) -> Vec<Option<u64>> {
        requests.iter().map(|request| request.bytes.map(|bytes| bytes / GIB)).collect()
    }

    #[test]
    fn memory_is_reclaimed_from_the_emptiest_nodes_first() {
        let nodes = [
            node("a", &[(4 * GIB, 3 * GIB)]),
            node("b", &[(4 * GIB, GIB)]),
            node("", &[(4 * GIB, 0)]),
        ];
        let requested = |bytes| -> Vec<_> {
            emptiest_first(&nodes, bytes).iter().map(|requests| sizes(requests)).collect()
        };
        assert_eq!(requested(3 * GIB), [vec![], vec![], vec![Some(1)]]);
        assert_eq!(requested(6 * GIB), [vec![], vec![Some(2)], vec![Some(0)]]);
        assert_eq!(requested(99 * GIB), [vec![Some(0)], vec![Some(0)], vec![Some(0)]]);
        assert_eq!(requested(0), [vec![], vec![], vec![]]);
    }

    #[test]
    fn an_amount_is_divided_among_the_daemons_of_a_node() {
        let two = node("a", &[(4 * GIB, 0), (2 * GIB, 0)]);
        assert_eq!(sizes(&divide(&two.daemons, 6 * GIB)), [Some(3), Some(3)]);
        assert_eq!(sizes(&divide(&two.daemons, 99 * GIB)), [Some(4), Some(4)]);
        assert_eq!(sizes(&scale_down(&two.daemons, 3 * GIB)), [Some(2), Some(1)]);
    }

    #[test]
    fn an_amount_is_a_size_a_percentage_or_a_word() {
        assert_eq!(bytes("all", 8).ok(), Some(Some(8)));
        assert_eq!(bytes("auto", 8).ok(), Some(None));
        assert_eq!(bytes("25%", 8).ok(), Some(Some(2)));
        assert_eq!(bytes("2GiB", 8).ok(), Some(Some(2 * GIB)));
        for wrong in ["", "x", "1GiB..2GiB", "-1"] {
            assert_eq!(bytes(wrong, 8).map_err(|failure| failure.code()), Err(USAGE));
        }
    }
}
