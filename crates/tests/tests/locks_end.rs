//! Locks whose shard is away when they are to end, in an instance of four daemons on one host: of
//! programs
//! that are killed, also while they close, with the home daemon after them, and of programs that live and
//! have waited for their close as long as the instance's timeout. They end when the shard's daemon is
//! back,
//! and take nothing with them that was locked since.

mod support;

use support::agent::Agent;
use support::{Instance, wait_for};

const DAEMONS: usize = 4;
const WAYS: [&str; 3] = ["lock", "ofd", "flock"];

fn instance(name: &str, options: &[&str]) -> Instance {
    let count = DAEMONS.to_string();
    let all = [&["--local", &count, "--memory", "16MiB", "--ssd", "0"], options].concat();
    let instance = Instance::start(name, &all);
    // Directories in the root are of one shard after the other, and so of one daemon after the other.
    let mut worker = instance.worker();
    for number in 0..DAEMONS {
        assert_eq!(worker.ask(&format!("mkdir /forebay/d{number}")), "ok");
        for how in WAYS {
            assert_eq!(worker.ask(&format!("put /forebay/d{number}/{how} 1 100")), "ok");
        }
    }
    instance
}

/// Kills all daemons but the first, which is everybody's home.
fn kill_others(instance: &Instance) {
    let others: Vec<_> = (1..DAEMONS).map(|index| instance.daemon(index)).collect();
    others.iter().for_each(support::Daemon::kill);
    others.iter().for_each(support::Daemon::wait);
}

/// What an agent is to be told to lock a file of each daemon, or to try.
fn locking(how: &str, number: usize) -> String {
    let range = if how == "flock" { "" } else { " 0 0" };
    format!("{how} {how}{number} d{number}/{how} w{range}")
}

fn lock_all(agent: &mut Agent, how: &str) {
    for number in 0..DAEMONS {
        agent.ok(&locking(how, number));
    }
}

/// All of these come to their end.
fn assert_free(instance: &Instance, ways: &[&str]) {
    let mut other = Agent::of(instance, "another");
    for how in ways {
        for number in 0..DAEMONS {
            let what = format!("the end of the lock by {how} of a file of daemon {number}");
            wait_for(&what, || other.ask(&locking(how, number)) == "ok");
        }
    }
}

/// Descriptors of a process that the host knows; `None`: it is not known, dead and taken apart.
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

/// Nothing is to be told to a shard any more.
fn is_all_told(instance: &Instance) -> bool {
    let mut count = 0;
    // Nobody is taken for dead, so nothing is taken from the daemon.
    instance.host().release_list(&|_| false, &mut |_| count += 1);
    count == 0
}

#[test]
fn locks_of_who_is_killed_end_though_his_home_dies_before_their_daemon_is_back() {
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
        wait_for("the home daemon to take note", taken_apart);
    }
    home.kill();
    home.wait();
    instance.start_again();
    assert_free(&instance, &WAYS);
    wait_for("the end of what is to be told", || is_all_told(&instance));
}

/// As above, but he is killed when nobody is there to take note.
#[test]
fn locks_of_who_is_killed_while_no_daemon_is_there_end() {
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
fn locks_of_who_is_killed_in_a_close_that_waits_for_their_daemon_end() {
    let instance = instance("inclose", &[]);
    let mut agents = WAYS.map(|how| Agent::of(&instance, how));
    for (agent, how) in agents.iter_mut().zip(WAYS) {
        lock_all(agent, how);
    }
    // Somebody uses the instance all the time: what was counted and is nobody's stays counted.
    let stays = Agent::of(&instance, "one who stays");
    kill_others(&instance);
    for (agent, how) in agents.iter_mut().zip(WAYS) {
        let before = descriptors(&instance, agent.pid).expect("it is known");
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
fn locks_that_were_given_back_in_vain_end_when_their_daemon_is_back() {
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
    // Who gave them back lives on, and so does the home daemon.
    instance.start_again();
    assert_free(&instance, &WAYS);
    wait_for("the end of what is to be told", || is_all_told(&instance));
    drop(agents);
}

/// A process is one owner for all of its life: what is told late of its old locks must not end its new
/// ones.
#[test]
fn a_lock_that_is_taken_after_one_that_was_given_back_in_vain_stays() {
    let instance = instance("again", &["--timeout", "2s"]);
    let (mut first, mut other) = (Agent::of(&instance, "first"), Agent::of(&instance, "other"));
    for round in 0..3 {
        lock_all(&mut first, "lock");
        let stopped: Vec<_> = (1..DAEMONS).map(|index| instance.daemon(index)).collect();
        stopped.iter().for_each(support::Daemon::stop);
        for number in 1..DAEMONS {
            first.ok(&format!("close lock{number}"));
        }
        assert!(!is_all_told(&instance), "round {round}: they were given back in vain");
        stopped.iter().for_each(support::Daemon::go_on);
        for number in 1..DAEMONS {
            first.ok(&format!("lock lock{number} d{number}/lock w 10 10"));
        }
        wait_for("the end of what is to be told", || is_all_told(&instance));
        for number in 1..DAEMONS {
            let file = format!("lock{number} d{number}/lock");
            assert_eq!(other.ok(&format!("test {file} w 0 0")), "w 10 10", "round {round}");
            first.ok(&format!("close lock{number}"));
        }
    }
}
