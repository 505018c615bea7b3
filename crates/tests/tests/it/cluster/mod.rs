//! Daemons that agree on which of them are alive, follow each other's metadata services, and have copies
//! of each other's data, over hosts that are network namespaces.

/// A program in Python that does `turn()` again and again, in a thread. Its text defines that, the number
/// `rounds` of the first time, and the number `last()`. Commands: `rounds`, which answers with how often
/// that was done, and `end`, which answers with `last()` after the last time. Once something has failed
/// each answer says so.
macro_rules! in_rounds {
    ($program:literal) => {
        concat!(
            $program,
            r"
failed, ends = None, False
def work():
    global rounds, failed
    try:
        while not ends:
            turn()
            rounds += 1
    except BaseException as error: failed = repr(error)
thread = threading.Thread(target=work)
thread.start()
print('ready', os.getpid(), flush=True)
for line in sys.stdin:
    answer = rounds
    if line.strip() == 'end':
        ends = True
        thread.join()
        if not failed: answer = last()
    print('failed ' + failed if failed else answer, flush=True)
os._exit(0)
"
        )
    };
}

mod balance;
mod behind;
mod below;
mod damage;
mod faults;
mod followers;
mod given_back;
mod grow;
mod history;
mod membership;
mod one_copy;
mod replace;
mod replicas;
mod shrink;
mod soak;
mod steps;
mod two_copies;
mod widening;

use crate::support::agent::signal;
use crate::support::wait_for;
use crate::support::world::World;
use serde_json::Value;
use std::collections::BTreeSet;

/// The status of the instance, also if daemons are dead or do not answer.
fn status(world: &World) -> Value {
    let output = world.on("a", &["status", "--json", "--timeout", "3s"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}: {output:?}"))
}

/// Waits until one daemon of each host votes: those of one host alone are no majority then. While voters
/// change there are more, and a host with two of them could be needed.
fn wait_until_all_hosts_vote(world: &World) {
    wait_for("one daemon of each host votes", || {
        let status = status(world);
        let daemons = status["daemons"].as_array().expect("daemons").iter();
        let voters = daemons.filter(|one| one["state"]["membership"].is_object());
        let voters: Vec<(String, &Value)> = voters
            .map(|one| (one["host"].to_string(), &one["state"]["membership"]["epoch"]))
            .collect();
        let hosts: BTreeSet<&String> = voters.iter().map(|(host, _)| host).collect();
        (hosts.len(), voters.len()) == (3, 3) && voters.iter().all(|it| it.1 == voters[0].1)
    });
}

/// Ends both daemons of host c, of which no more than one is needed for a majority, and waits for the
/// agreement on their deaths.
fn kill_host_c(world: &World) {
    wait_until_all_hosts_vote(world);
    for pid in world.daemons("c").iter().filter_map(|one| one["pid"].as_u64()) {
        signal(u32::try_from(pid).expect("a process"), "-KILL");
    }
    wait_for("the deaths are agreed on", || presences(world) == ["up", "up", "down", "down"]);
}

/// The state of each daemon as the others see it.
fn presences(world: &World) -> Vec<String> {
    let members = status(world)["membership"]["members"].as_array().cloned().unwrap_or_default();
    members.iter().map(|one| one["presence"].as_str().expect("a word").to_owned()).collect()
}

/// The last start of each daemon that the others know.
fn starts(world: &World) -> Vec<u64> {
    let members = status(world)["membership"]["members"].as_array().cloned().unwrap_or_default();
    members.iter().map(|one| one["start"].as_u64().expect("a number")).collect()
}

fn wait_until_all_are_up(world: &World) {
    wait_for("all daemons take part", || {
        let status = status(world);
        let daemons = status["daemons"].as_array().expect("daemons");
        let leads = |one: &Value| one["state"]["membership"]["leads"] == true;
        let owners = status["membership"]["owners"].as_array().cloned().unwrap_or_default();
        daemons.iter().any(leads)
            && presences(world) == ["up"; 4]
            && owners.iter().all(Value::is_u64)
    });
}
