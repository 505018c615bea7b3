//! The load of metadata services is shown and made even, by exchanges of two services, while programs use
//! them; `forebay grow` waits for services.

use super::followers::wait_until_all_have_copies;
use super::grow::{CHURN, FOLLOWED, await_presences, directories, kill, owners};
use super::replicas::{await_rounds, end, python};
use super::{presences, status};
use crate::support::agent::{Agent, signal};
use crate::support::world::{SPARE, World};
use crate::support::{text, wait_for};
use serde_json::{Value, json};

/// Services of the instance: that of worker 1 of daemon 0 is the fifth.
const HOT: [usize; 2] = [0, 4];

fn balance(world: &World) -> Value {
    let text = world.ok("a", &["balance", "--json"]);
    serde_json::from_str(&text).expect("an object")
}

/// The state of each service, by its number.
fn states(balance: &Value) -> Vec<&str> {
    let services = balance["services"].as_array().expect("services").iter();
    services.map(|one| one["state"].as_str().expect("a word")).collect()
}

/// Number of services of each daemon.
fn counts(balance: &Value) -> Vec<u64> {
    let daemons = balance["daemons"].as_array().expect("daemons").iter();
    daemons.map(|one| one["services"].as_u64().expect("a number")).collect()
}

/// The only line of a refusal, and its exit code.
fn refused(world: &World, words: &[&str]) -> (String, Option<i32>) {
    let output = world.on("a", words);
    let answer = text(&output.stderr).trim().to_owned();
    assert!(!output.status.success() && answer.lines().count() == 1, "{words:?}: {answer}");
    (answer, output.status.code())
}

#[test]
fn an_instance_without_services_that_can_move_is_refused() {
    let Some(world) = World::new() else { return };
    for word in [&[][..], &["now"], &["on"]] {
        let (answer, _) = refused(&world, &[&["balance"], word].concat());
        assert!(answer.contains("no such instance"), "{word:?}: {answer}");
    }
    world.ok("a", &["start", "--local", "2"]);
    let alone = refused(&world, &["balance"]);
    assert!(alone.0.contains("runs on one host alone") && alone.1 == Some(2), "{alone:?}");
    assert_eq!(refused(&world, &["balance", "now"]), alone);
    world.ok("a", &["stop"]);
    world.start();
    let single = refused(&world, &["balance"]);
    assert!(single.0.contains("have no followers") && single.1 == Some(2), "{single:?}");
    assert_eq!(refused(&world, &["balance", "on"]), single);
    let output = world.on("a", &["balance", "sometimes"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    world.end();
}

/// The instance with a program on host b that uses two services of daemon 0.
fn hot() -> Option<(World, Agent)> {
    let world = World::started(&FOLLOWED)?;
    await_presences(&world, 4);
    wait_until_all_have_copies(&world);
    let all = directories(&world);
    let hot = HOT.map(|service| all[service].as_str());
    let churn = python(&world, "b", CHURN, &[&["b"], &hot[..]].concat());
    Some((world, churn))
}

#[test]
fn a_busy_daemon_exchanges_a_service_while_programs_use_it() {
    let Some((world, mut churn)) = hot() else { return };
    let before = owners(&world);
    wait_for("a look would move one of the two hot services", || {
        let now = balance(&world);
        let could = now["exchanges"].as_array().expect("exchanges");
        could.len() == 1 && could[0]["service"] == json!(HOT[1])
    });
    let shown = balance(&world);
    assert_eq!((&shown["on"], counts(&shown)), (&json!(false), vec![2; 4]));
    assert_eq!(states(&shown)[..4], ["stays"; 4]);
    let table = world.ok("a", &["balance"]);
    assert!(table.contains("stays, the first of its daemon"), "{table}");

    let moved = world.ok("a", &["balance", "now", "--json"]);
    let moved: Value = serde_json::from_str(&moved).expect("an object");
    let moved = moved["moved"].as_array().expect("a list").clone();
    // Loads are those of the moment: one exchange, or more that meet.
    assert!(moved.iter().any(|it| it["service"] == 4 && it["from"] == 0), "{moved:?}");
    let ends = |end: &str| {
        let mut daemons: Vec<u64> = moved.iter().filter_map(|it| it[end].as_u64()).collect();
        daemons.sort_unstable();
        daemons
    };
    assert_eq!(ends("from"), ends("to"), "each daemon gets as many as it gives");
    let after = owners(&world);
    for (service, owner) in (0_u64..).zip(&after) {
        let went = moved.iter().find(|it| it["service"] == service);
        let place = went.map_or(before[service as usize], |it| it["to"].as_u64());
        assert_eq!(*owner, place, "service {service}: {moved:?}");
    }
    await_rounds(&mut churn);
    let shown = balance(&world);
    assert_eq!(counts(&shown), [2; 4]);
    assert_eq!(shown["services"][4]["first_owner"], 0);
    assert_ne!(shown["services"][4]["home"], 0);

    // It is even now, and stays so when daemons die and return.
    wait_for("a look moves nothing more", || {
        world.ok("a", &["balance", "now"]).contains("no exchange of metadata services")
    });
    let after = owners(&world);
    for host in ["a", "c"] {
        wait_until_all_have_copies(&world);
        kill(&world, host);
        wait_for("the death is agreed on", || presences(&world).iter().any(|it| it == "down"));
        let (answer, code) = refused(&world, &["balance", "now", "--timeout", "1s"]);
        assert!(answer.contains("daemon") || answer.contains("no majority"), "{answer}");
        assert_eq!(code, Some(1));
        world.start();
        await_presences(&world, 4);
        wait_for("services are at home", || owners(&world) == after);
        await_rounds(&mut churn);
    }
    end(&mut churn);
    drop(churn);
    world.end();
}

#[test]
fn the_setting_outlives_leaders_and_starts() {
    let Some((world, mut churn)) = hot() else { return };
    let answer = world.ok("a", &["balance", "on"]);
    assert!(answer.contains("move for an even load"), "{answer}");
    assert_eq!(balance(&world)["on"], true);
    world.ok("a", &["balance", "on"]);
    // That of a leader, unless it is on host b with the program.
    let is_leader =
        |one: &&Value| one["state"]["membership"]["leads"] == true && one["host"] != "b";
    let known = status(&world);
    let leader = known["daemons"].as_array().expect("daemons").iter().find(is_leader);
    if let Some(pid) = leader.and_then(|one| one["pid"].as_u64()) {
        signal(u32::try_from(pid).expect("a process"), "-KILL");
        wait_for("another one leads", || {
            let output = world.on("a", &["balance", "--json"]);
            let known = serde_json::from_str::<Value>(&text(&output.stdout));
            known.is_ok_and(|known| known["on"] == true)
        });
        world.start();
        await_presences(&world, 4);
    }
    await_rounds(&mut churn);
    end(&mut churn);
    drop(churn);
    wait_until_all_have_copies(&world);
    for host in ["a", "b", "c"] {
        kill(&world, host);
    }
    wait_for("all daemons are dead", || {
        let (answer, code) = refused(&world, &["balance", "--timeout", "3s"]);
        code == Some(1) && answer.contains("no daemon is alive")
    });
    let (answer, code) = refused(&world, &["balance", "off"]);
    assert!(answer.contains("no daemon is alive") && code == Some(1), "{answer}");
    world.start();
    wait_for("all daemons take part", || presences(&world) == ["up"; 4]);
    assert_eq!(balance(&world)["on"], true);
    let answer = world.ok("a", &["balance", "off"]);
    assert!(answer.contains("stay where they are"), "{answer}");
    assert_eq!(balance(&world)["on"], false);
    world.end();
}

#[test]
fn growth_ends_when_services_are_at_new_daemons() {
    let Some((world, mut churn)) = hot() else { return };
    assert!(world.add_host(SPARE, 4), "a fourth host");
    await_rounds(&mut churn);
    let answer = world.ok("a", &["grow", "d:2 10.79.0.4"]);
    assert!(answer.contains("has 6 daemons now: new daemons 4, 5"), "{answer}");
    let known = owners(&world);
    assert!([4, 5].iter().all(|daemon| known.contains(&Some(*daemon))), "{known:?}");
    let shown = balance(&world);
    assert_eq!((&shown["to_move"], counts(&shown).iter().max()), (&json!(0), Some(&2)));
    await_rounds(&mut churn);
    end(&mut churn);
    drop(churn);
    world.end();
}
