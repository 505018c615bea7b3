//! Between hostile users: a stranger in the place of a dead daemon, the sockets between the daemons of
//! a host, and a log that is full. Attacks on the bytes of a connection are in
//! `crates/net/tests/it/hostile.rs`.

use crate::support::cases::on_instances;
use crate::support::{Instance, in_time, skip, text, wait_for};
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

fn run_directory(instance: &Instance) -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    instance.dir.path().join(format!("forebay-{user}/{}", instance.name))
}

/// The daemons of one host talk through sockets that only their owner reaches. A stranger that binds
/// the port of a dead one gets no connection.
#[test]
fn a_stranger_at_the_port_of_a_dead_daemon_gets_nothing() {
    let instance = Instance::start("port", &["--local", "2"]);
    let run = run_directory(&instance);
    let mode = std::fs::metadata(&run).expect("a run directory").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    for daemon in 0..2 {
        let socket = std::fs::symlink_metadata(run.join(format!("d{daemon}.peer")));
        assert!(socket.expect("a socket").file_type().is_socket());
    }
    let peers = std::fs::read_to_string(run.join("peers")).expect("the addresses");
    let address = peers.lines().find_map(|line| line.strip_prefix("0 ")).expect("an address");
    let connections = || instance.daemon_log(0).matches("peer connected").count();
    let before = connections();
    let daemon = instance.daemon(0);
    daemon.kill();
    daemon.wait();
    let mut stranger = None;
    wait_for("the port is free", || {
        stranger = TcpListener::bind(address).ok();
        stranger.is_some()
    });
    let stranger = stranger.expect("bound");
    stranger.set_nonblocking(true).expect("set");
    instance.start_again();
    wait_for("the daemons are connected again", || connections() > before);
    let nobody = stranger.accept().map(|(_, from)| from).map_err(|error| error.kind());
    assert_eq!(nobody, Err(std::io::ErrorKind::WouldBlock), "daemons use the socket of the host");
}

/// A full log becomes the old one, in place of an earlier old one, and the daemon goes on in a new one.
#[test]
fn a_full_log_is_replaced() {
    let instance = Instance::start("log", &[]);
    let log = run_directory(&instance).join("d0.log");
    let daemon = instance.daemon(0);
    daemon.kill();
    daemon.wait();
    std::fs::write(log.with_extension("log.old"), "earlier\n").expect("written");
    std::fs::write(&log, "a line\n".repeat(1_200_000)).expect("written");
    instance.start_again();
    let old = std::fs::read_to_string(log.with_extension("log.old")).expect("the old log");
    assert!(old.len() >= 8 << 20 && old.starts_with("a line\n"), "{} bytes", old.len());
    let new = std::fs::metadata(&log).expect("a log");
    assert!(new.len() < 100_000 && new.permissions().mode() & 0o777 == 0o600);
    assert!(instance.daemon_log(0).contains("ready"), "it goes on there");
}

/// A program that cuts the arena by a stray call ends the instance, and nothing is read as zeros.
#[test]
fn an_arena_that_is_cut_is_an_error_and_not_zeros() {
    let instance = Instance::start("cut", &[]);
    assert_eq!(instance.worker().ask("put /forebay/f 1 300000"), "ok");
    let user = rustix::process::geteuid().as_raw();
    let arena = format!("/dev/shm/forebay-{user}-{}/h0/d0.arena", instance.name);
    let daemon = instance.daemon(0);
    let file = std::fs::OpenOptions::new().write(true).open(&arena).expect("the arena");
    file.set_len(4096).expect("cut");
    daemon.wait();
    let status = text(&instance.command("status").output().expect("forebay runs").stdout);
    assert!(status.contains("cut"), "{status}");
    let refused = instance.try_start();
    let errors = text(&refused.stderr);
    assert!(!refused.status.success() && errors.contains("truncated or replaced"), "{errors}");
}

/// Root sees the instances of all users, whatever these put into the place where it looks.
#[test]
fn root_sees_the_instances_of_all_users() {
    if !rustix::process::geteuid().is_root() {
        skip("instances of several users need root");
        return;
    }
    let (first, second) = (41_001, 41_002);
    let instance = Instance::start_as("several", &["--local", "2"], Some((first, first)));
    // Another user has made what is no instance: a lock that is a pipe, and one of a foreign process.
    let place = PathBuf::from(format!("/dev/shm/forebay-{second}-{}", instance.name));
    std::fs::create_dir_all(place.join("h0")).expect("made");
    let pipe = place.join("h0/d0.lock");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("it runs");
    assert!(made.success());
    let false_lock = std::fs::File::create(place.join("h0/d1.lock")).expect("made");
    let own = std::process::id();
    std::fs::write(
        place.join("h0/d1.lock"),
        format!("{{\"pid\":{own},\"run\":\"/\",\"data\":\"/\"}}"),
    )
    .expect("written");
    false_lock.lock().expect("locked");
    for path in [place.clone(), place.join("h0"), pipe, place.join("h0/d1.lock")] {
        std::os::unix::fs::chown(path, Some(second), Some(second)).expect("root may");
    }
    let forebay = || Command::new(crate::support::profile().join("forebay"));
    let listed = in_time("a list of all users", || {
        forebay().args(["ls", "--all-users", "--json"]).output().expect("it runs")
    });
    std::fs::remove_dir_all(place).expect("removed");
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let instances = listed["instances"].as_array().expect("a list").iter();
    let same = instances.filter(|one| one["name"] == *instance.name);
    let found: Vec<_> =
        same.map(|one| (&one["uid"], one["pids"].as_array().map(Vec::len))).collect();
    assert_eq!(found, [(&first.into(), Some(2))], "{listed}");
    // Nobody else does.
    let mut command = forebay();
    command.args(["ls", "--all-users"]).uid(second).gid(second).current_dir("/");
    let refused = command.output().expect("it runs");
    assert!(!refused.status.success(), "{}", text(&refused.stdout));
    assert!(text(&refused.stderr).contains("only root"), "{}", text(&refused.stderr));
}

/// A command without `--name`, in the directories of an instance.
fn plain(instance: &Instance) -> Command {
    let model = instance.command("status");
    let mut command = Command::new(model.get_program());
    for (key, value) in model.get_envs() {
        let _: &mut Command = match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    command.env("FOREBAY_NAME", &instance.name);
    command
}

/// Names and arguments that a command prints do not act on a terminal.
#[test]
fn no_command_prints_what_acts_on_a_terminal() {
    let instance = Instance::start("escapes", &[]);
    let evil = "a\u{1b}[31m\u{1b}]0;title\u{7}\u{9b}2J\r\u{202e}b\nroot: all is lost";
    let option = format!("--{evil}");
    let at = format!("/forebay/{evil}");
    let commands: [&[&str]; 12] = [
        &[evil],
        &["status", &option],
        &["status", "--name", evil],
        &["start", "--memory", evil],
        &["start", "--backing", evil],
        &["stage", evil, "/forebay/x"],
        &["layout", &at],
        &["pin", evil],
        &["flush", evil],
        &["quota", "get", "--user", evil],
        &["run", "--", evil],
        &["mount", evil],
    ];
    for words in commands {
        let output = plain(&instance).args(words).output().expect("forebay runs");
        let printed = text(&output.stdout) + &text(&output.stderr);
        assert!(!output.status.success() && !printed.is_empty(), "{words:?}");
        let acts = |one: char| (one.is_control() && one != '\n') || one == '\u{202e}';
        assert!(!printed.contains(acts), "{words:?}: {printed:?}");
        let begins = printed.lines().any(|line| line.starts_with("root:"));
        assert!(!begins, "{words:?}: a name begins a line: {printed}");
    }
    // Names of files, in the list of what could not be copied.
    let from = instance.dir.path().join("from");
    std::fs::create_dir(&from).expect("made");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        from.join(evil),
        rustix::fs::FileType::Socket,
        rustix::fs::Mode::RUSR,
        0,
    )
    .expect("a socket");
    let mut command = instance.command("stage");
    let output = command.arg(&from).arg("/forebay/to").output().expect("forebay runs");
    let printed = text(&output.stdout) + &text(&output.stderr);
    assert!(!printed.contains(['\u{1b}', '\u{9b}', '\u{7}', '\u{202e}']), "{printed:?}");
}

/// An address of all interfaces is refused: other hosts could not reach it, and everybody else could.
#[test]
fn an_address_of_all_interfaces_is_refused() {
    let instance = Instance::unstarted("listen", &[], &[]);
    for address in ["0.0.0.0", "::"] {
        let mut command = instance.command("start");
        let refused = command.args(["--listen", address]).output().expect("forebay runs");
        let said = text(&refused.stderr);
        assert_eq!((refused.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains(address) && said.contains("network interface"), "{said}");
        let file = instance.dir.path().join("hosts");
        std::fs::write(&file, format!("localhost {address}\n")).expect("written");
        let mut command = instance.command("start");
        let refused = command.arg("--hosts").arg(&file).output().expect("forebay runs");
        let said = text(&refused.stderr);
        assert_eq!((refused.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains("line 1") && said.contains(address), "{said}");
    }
    instance.start_again();
}

/// A start for which there are too few processes fails with one line, whichever thread is missing.
#[test]
fn a_start_without_threads_is_refused_in_one_line() {
    if !rustix::process::geteuid().is_root() {
        return skip("root is missing");
    }
    // A user without processes: root has no limit.
    const USER: u32 = 64_123;
    let options = ["--workers", "4", "--memory", "16MiB", "--ssd", "0"];
    let mut instance = Instance::unstarted("threads", &options, &[]);
    std::os::unix::fs::chown(instance.dir.path(), Some(USER), Some(USER)).expect("root may");
    instance.owner = Some((USER, USER));
    let start = instance.command("start");
    let mut refusals = 0;
    for limit in 2..64 {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nproc={limit}")).arg(start.get_program()).args(start.get_args());
        command.args(options).uid(USER).gid(USER).current_dir(instance.dir.path());
        for (key, value) in start.get_envs() {
            let _: &mut Command = match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        let output = command.output().expect("prlimit runs");
        let said = text(&output.stderr);
        if output.status.success() {
            break;
        }
        refusals += 1;
        assert_eq!(output.status.code(), Some(1), "{limit}: {said}");
        assert!(!said.contains("panicked"), "{limit}: {said}");
        assert!(!said.contains("assertion"), "{limit}: {said}");
    }
    assert!(refusals > 3, "{refusals} limits were refused");
}

/// "An audit log tells which user attached, pinned, set quotas, changed the lent memory and stopped"
/// (docs/administrator-guide.md).
#[test]
fn the_audit_log_tells_the_user_of_each_event() {
    let instance = Instance::start("audit", &["--memory", "64MiB", "--ssd", "64MiB"]);
    let log = run_directory(&instance).join("d0.audit");
    let user = rustix::process::getuid().as_raw();
    let mut worker = instance.worker();
    assert_eq!(worker.ask("put /forebay/f 1 300000"), "ok");
    let attached = format!(" attach uid={user} pid={}", worker.pid());
    let read = || std::fs::read_to_string(&log).expect("an audit log");
    assert_eq!(read().lines().filter(|line| line.ends_with(&attached)).count(), 1, "{}", read());
    assert_eq!(std::fs::metadata(&log).expect("a file").permissions().mode() & 0o777, 0o600);
    let succeeds = |words: &[&str], more: &[&str]| {
        let output = plain(&instance).args(words).args(more).output().expect("forebay runs");
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    };
    succeeds(&["pin"], &["/forebay/f"]);
    succeeds(&["unpin"], &["/forebay/f"]);
    succeeds(&["quota", "set"], &["--user", "7", "--space-hard", "1GiB"]);
    succeeds(&["quota", "project"], &["--id", "7", "/forebay/f"]);
    succeeds(&["pool", "create"], &["fast", "--targets", "0"]);
    succeeds(&["qos", "set"], &["other", "jobid={other}", "bw=5M"]);
    succeeds(&["reclaim"], &["8MiB"]);
    // A second name, because the stop removes the first.
    let kept = instance.dir.path().join("kept");
    std::fs::hard_link(&log, &kept).expect("linked");
    succeeds(&["stop"], &[]);
    let lines = std::fs::read_to_string(&kept).expect("an audit log");
    let by_user = format!(" uid={user} pid=");
    let files = ["pin", "unpin", "set-project"];
    let instance_wide = ["set-quota", "set-pool", "set-rules", "set-memory", "stop"];
    for event in files.into_iter().chain(instance_wide) {
        let is_it = |line: &&str| line.contains(&format!("Z {event}{by_user}"));
        assert!(lines.lines().any(|line| is_it(&line)), "{event}: {lines}");
    }
    instance.start_again();
}

/// "A process that gives up root for good keeps nothing of the instance's memory"
/// (docs/semantics/access.md); over a mount the case is one of `programs::reported`.
#[test]
fn a_program_that_gives_up_root_keeps_nothing_of_the_memory() {
    on_instances("tests/cases", "preload", &["25-*"]);
}
