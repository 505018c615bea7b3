//! Locks whose shard is away when they must be released, in an instance of four daemons on one
//! host: locks of programs that are killed, also while they close, followed by their home daemon,
//! and locks of living programs whose close timed out. They are released when the shard's daemon
//! restarts, and later locks are not affected.

use crate::support::agent::Agent;
use crate::support::{Instance, wait_for};

const DAEMONS: usize = 4;
const WAYS: [&str; 3] = ["lock", "ofd", "flock"];

fn instance(name: &str, options: &[&str]) -> Instance {
    let count = DAEMONS.to_string();
    let all = [&["--local", &count, "--memory", "16MiB", "--ssd", "0"], options].concat();
    let instance = Instance::start(name, &all);
    // Directories in the root are on the shards in turn, and so on the daemons in turn.
    let mut worker = instance.worker();
    for number in 0..DAEMONS {
        assert_eq!(worker.ask(&format!("mkdir /forebay/d{number}")), "ok");
        for how in WAYS {
            assert_eq!(worker.ask(&format!("put /forebay/d{number}/{how} 1 100")), "ok");
        }
    }
    instance
}

/// Kills all daemons but the first, which is the home of every program.
fn kill_others(instance: &Instance) {
    let others: Vec<_> = (1..DAEMONS).map(|index| instance.daemon(index)).collect();
    others.iter().for_each(crate::support::Daemon::kill);
    others.iter().for_each(crate::support::Daemon::wait);
}

/// The agent command that locks a file of each daemon, or tries to.
fn locking(how: &str, number: usize) -> String {
    let range = if how == "flock" { "" } else { " 0 0" };
    format!("{how} {how}{number} d{number}/{how} w{range}")
}

fn lock_all(agent: &mut Agent, how: &str) {
    for number in 0..DAEMONS {
        agent.ok(&locking(how, number));
    }
}

/// All of these locks can be taken, by each of the ways.
fn assert_free(instance: &Instance, ways: &[&str]) {
    let mut other = Agent::of(instance, "another");
    for how in ways {
        for number in 0..DAEMONS {
            let what = format!("the end of the lock by {how} of a file of daemon {number}");
            wait_for(&what, || other.ask(&locking(how, number)) == "ok");
        }
    }
}

/// Descriptors of a process in the host segment; `None` if the process is dead and cleaned up.
fn descriptors(instance: &Instance, pid: u32) -> Option<usize> {
    let (host, mut count) = (instance.host(), None);
    host.process_list(&mut |tenant| {
        if tenant.pid == pid {
            let mut descriptors = 0;
            host.process_each(tenant.process, &mut |_, _, _| descriptors += 1);
            count = Some(descriptors);
        }
    });
    count
}

/// True if no release is left to be reported to a shard.
fn is_all_reported(instance: &Instance) -> bool {
    let mut count = 0;
    // No process counts as dead here, so nothing is taken from the daemon.
    instance.host().release_list(&|_| false, &mut |_| count += 1);
    count == 0
}

#[test]
fn locks_of_a_killed_process_are_released_though_its_home_daemon_dies_too() {
    let instance = instance("home", &[]);
    let mut agents = WAYS.map(|how| Agent::of(&instance, how));
    for (agent, how) in agents.iter_mut().zip(WAYS) {
        lock_all(agent, how);
    }
    let home = instance.daemon(0);
    kill_others(&instance);
    agents.iter_mut().for_each(Agent::kill);
    for agent in &agents {
        let taken_apart = || descriptors(&instance, agent.pid).is_none();
        wait_for("the home daemon to notice it", taken_apart);
    }
    home.kill();
    home.wait();
    instance.start_again();
    assert_free(&instance, &WAYS);
    wait_for("all releases to be reported", || is_all_reported(&instance));
}

/// As above, but the process is killed while no daemon runs to notice it.
#[test]
fn locks_of_a_process_killed_while_no_daemon_runs_are_released() {
    let instance = instance("nobody", &[]);
    let mut agents = WAYS.map(|how| Agent::of(&instance, how));
    for (agent, how) in agents.iter_mut().zip(WAYS) {
        lock_all(agent, how);
    }
    let home = instance.daemon(0);
    kill_others(&instance);
    home.kill();
    home.wait();
    agents.iter_mut().for_each(Agent::kill);
    instance.start_again();
    assert_free(&instance, &WAYS);
}

#[test]
fn locks_of_a_process_killed_in_a_waiting_close_are_released() {
    let instance = instance("inclose", &[]);
    let mut agents = WAYS.map(|how| Agent::of(&instance, how));
    for (agent, how) in agents.iter_mut().zip(WAYS) {
        lock_all(agent, how);
    }
    // A program uses the instance all the time, so stale counts are not reset.
    let stays = Agent::of(&instance, "one that stays");
    kill_others(&instance);
    for (agent, how) in agents.iter_mut().zip(WAYS) {
        let before = descriptors(&instance, agent.pid).expect("it is found");
        agent.begin(&format!("close {how}1"));
        let is_closing = || descriptors(&instance, agent.pid) == Some(before - 1);
        wait_for("its close to begin", is_closing);
        agent.kill();
    }
    instance.start_again();
    assert_free(&instance, &WAYS);
    drop(stays);
}

#[test]
fn failed_unlocks_are_repeated_when_the_daemon_restarts() {
    let instance = instance("invain", &["--timeout", "2s"]);
    let mut agents = WAYS.map(|how| Agent::of(&instance, how));
    for (agent, how) in agents.iter_mut().zip(WAYS) {
        lock_all(agent, how);
    }
    kill_others(&instance);
    for (agent, how) in agents.iter_mut().zip(WAYS) {
        (0..DAEMONS).for_each(|number| {
            agent.ok(&format!("close {how}{number}"));
        });
    }
    // The process that released the locks lives, and so does the home daemon.
    instance.start_again();
    assert_free(&instance, &WAYS);
    wait_for("all releases to be reported", || is_all_reported(&instance));
    drop(agents);
}

/// A process is one lock owner for all of its life: a late release of its old locks must not
/// release its new ones.
#[test]
fn a_lock_taken_after_a_failed_unlock_survives() {
    let instance = instance("again", &["--timeout", "2s"]);
    let (mut first, mut other) = (Agent::of(&instance, "first"), Agent::of(&instance, "other"));
    for round in 0..3 {
        lock_all(&mut first, "lock");
        let stopped: Vec<_> = (1..DAEMONS).map(|index| instance.daemon(index)).collect();
        stopped.iter().for_each(crate::support::Daemon::stop);
        for number in 1..DAEMONS {
            first.ok(&format!("close lock{number}"));
        }
        assert!(!is_all_reported(&instance), "round {round}: the unlocks failed");
        stopped.iter().for_each(crate::support::Daemon::go_on);
        for number in 1..DAEMONS {
            let lock = format!("lock lock{number} d{number}/lock w 10 10");
            wait_for("the continued daemon", || first.ask(&lock) == "ok");
        }
        wait_for("all releases to be reported", || is_all_reported(&instance));
        for number in 1..DAEMONS {
            let file = format!("lock{number} d{number}/lock");
            assert_eq!(other.ok(&format!("test {file} w 0 0")), "w 10 10", "round {round}");
            first.ok(&format!("close lock{number}"));
        }
    }
}
