//! `forebay dashboard`: its server over HTTP, beside `forebay status`. Its page in a browser: `page`;
//! an instance on several hosts: `hosts`; jobs that disturb each other: `interference`.

mod hosts;
mod interference;
mod page;

use super::support::{Instance, TIMEOUT, profile, text, wait_for};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

const OPTIONS: [&str; 6] = ["--local", "2", "--memory", "256MiB", "--ssd", "0"];
const WRITE: &str = "dd if=/dev/zero of=/forebay/a.dat bs=512 count=3000 2>/dev/null";

/// A dashboard that runs.
struct Dashboard {
    child: Child,
    /// Host and port.
    at: String,
    token: String,
}

impl Dashboard {
    fn start(instance: &Instance, options: &[&str]) -> Dashboard {
        let mut command = instance.command("dashboard");
        command.args(options);
        Dashboard::of(command)
    }

    /// The dashboard that a command begins.
    fn of(mut command: Command) -> Dashboard {
        command.stdout(Stdio::piped());
        let mut child = command.spawn().expect("forebay runs");
        let mut line = String::new();
        let output = child.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let rest = line.trim_end().strip_prefix("http://").expect("an address");
        let (at, token) = rest.split_once("/?token=").expect("a token");
        Dashboard { child, at: at.to_owned(), token: token.to_owned() }
    }

    fn url(&self) -> String {
        format!("http://{}/?token={}", self.at, self.token)
    }

    /// The whole answer to a request; empty: the connection was closed.
    fn say(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(&self.at).expect("a connection");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
        let mut answer = Vec::new();
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.read_to_end(&mut answer);
        text(&answer)
    }

    fn get(&self, path: &str) -> String {
        self.say(&format!("GET {path}token={} HTTP/1.1\r\nHost: a\r\n\r\n", self.token))
    }

    /// The figures at a path that ends with `?` or `&`.
    fn figures(&self, path: &str) -> Value {
        let answer = self.get(path);
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        serde_json::from_str(body).expect("JSON")
    }

    fn state(&self) -> Value {
        self.figures("/api/state?")
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that does not succeed: its exit code, and what it prints to standard error.
fn refused(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().expect("forebay runs");
    assert!(output.stdout.is_empty(), "{output:?}");
    (output.status.code(), text(&output.stderr))
}

/// The status without what changes by itself.
fn lasting(mut status: Value) -> Value {
    for daemon in status["daemons"].as_array_mut().expect("daemons") {
        daemon["resident"] = Value::Null;
        if let Some(state) = daemon["state"].as_object_mut() {
            ["uptime_s", "rss", "requests", "sessions", "reply_cache_entries", "memory_released"]
                .iter()
                .for_each(|key| drop(state.remove(*key)));
            state.remove("memory_release_us");
        }
    }
    status
}

#[test]
fn the_dashboard_has_the_figures_of_status_and_of_jobs() {
    let instance = Instance::start("shown", &OPTIONS);
    let ran = instance.program(&["sh", "-c", WRITE]).status().expect("forebay runs");
    assert!(ran.success());
    let dashboard = Dashboard::start(&instance, &["--interval", "100ms"]);
    wait_for("two looks", || dashboard.state()["last"].as_u64() > Some(1));
    wait_for("the same as status", || {
        lasting(dashboard.state()["status"].clone()) == lasting(instance.status())
    });
    let state = dashboard.state();
    let files: u64 =
        (0..2).filter_map(|at| state["status"]["daemons"][at]["state"]["files"].as_u64()).sum();
    assert_eq!(state["sums"]["files"], files);
    assert_eq!(state["jobs"][0]["bytes_written"], 3000 * 512, "{state}");
    // Its details are those of the report, and the page is asked for what is new alone.
    let job = state["jobs"][0]["job"].as_str().expect("a name");
    let details = dashboard.figures(&format!("/api/job?job={job}&"));
    assert_eq!(
        (&details["files"][0]["path"], &details["written"]),
        (&json!("/a.dat"), &json!(3000 * 512))
    );
    let advice = dashboard.figures("/api/advice?");
    let triggers = advice["jobs"][0]["findings"].as_array().expect("findings");
    assert!(triggers.iter().any(|one| one["trigger"] == "small-writes"), "{advice}");
    let later = dashboard.figures(&format!("/api/state?after={}&", u64::MAX));
    assert_eq!(later["points"], json!([]));
    for figure in state["heat_maps"].as_array().expect("figures") {
        let map =
            dashboard.figures(&format!("/api/heat?figure={}&", figure.as_str().expect("a word")));
        assert!(!map["rows"].as_array().expect("rows").is_empty(), "{map}");
    }
    assert!(dashboard.get("/api/heat?figure=none&").starts_with("HTTP/1.1 404 "));
    let none = dashboard.figures("/api/job?job=none&");
    assert_eq!(none["failure"], "there is no such job");
    // It records what it shows, and shows what was recorded.
    wait_for("the past", || dashboard.figures("/api/history?")["runs"][0]["job"] == job);
    let past = dashboard.figures("/api/history?minutes=60&");
    assert!(past["path"].as_str().is_some_and(|path| path.ends_with("history.db")), "{past}");
}

/// Prometheus scrapes with a token that stays, and finds a bounded number of series.
#[test]
fn metrics_need_the_token_of_the_file_and_have_the_busiest_jobs() {
    let instance = Instance::start("scraped", &OPTIONS);
    for (job, bytes) in [("one", 1000), ("two", 2000), ("three", 3000)] {
        let script = format!("head -c {bytes} /dev/zero >/forebay/{job}");
        let mut command = instance.command("run");
        command.args(["--job", job, "--quiet", "--", "sh", "-c", &script]);
        assert!(command.status().expect("forebay runs").success());
    }
    let file = instance.dir.path().join("token");
    let path = file.to_string_lossy().into_owned();
    let options = ["--token-file", &path, "--top-jobs", "2"];
    let token = Dashboard::start(&instance, &options).token.clone();
    let dashboard = Dashboard::start(&instance, &options);
    assert_eq!((&dashboard.token, &token), (&token, &dashboard.token), "it stays");
    let scrape = |token: &str| {
        let head = format!("Host: a\r\nAuthorization: Bearer {token}\r\n");
        dashboard.say(&format!("GET /metrics HTTP/1.1\r\n{head}\r\n"))
    };
    assert!(scrape("0".repeat(token.len()).as_str()).starts_with("HTTP/1.1 403 "));
    let answer = scrape(&token);
    assert!(answer.contains("Content-Type: text/plain; version=0.0.4"), "{answer}");
    let row = |answer: &str, job: &str| {
        let label = format!(
            "forebay_job_written_bytes{{instance=\"{}\",job_name=\"{job}\"}} ",
            instance.name
        );
        answer.lines().find_map(|line| line.strip_prefix(&label)).map(str::to_owned)
    };
    let all = ["three", "two", "one", "other"].map(|job| row(&answer, job));
    assert_eq!(
        all,
        [Some("3000".into()), Some("2000".into()), None, Some("1000".into())],
        "{answer}"
    );
    // `forebay status` prints the same.
    let mut status = instance.command("status");
    let output = status.args(["--prometheus", "--top-jobs", "0"]).output().expect("forebay runs");
    assert_eq!(row(&text(&output.stdout), "other").as_deref(), Some("6000"));
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .expect("a mode");
    let mut command = instance.command("dashboard");
    command.args(options);
    let (code, said) = refused(command);
    assert_eq!(
        (code, said.lines().count(), said.contains("chmod 600")),
        (Some(1), 1, true),
        "{said}"
    );
}

#[test]
fn a_daemon_that_dies_is_shown_and_so_is_the_end_of_the_instance() {
    let instance = Instance::start("dying", &OPTIONS);
    let dashboard = Dashboard::start(&instance, &["--interval", "100ms"]);
    wait_for("two looks", || dashboard.state()["last"].as_u64() > Some(1));
    // Daemon 0 is the home of this host's programs: their counters are not known then.
    instance.daemon(0).kill();
    wait_for("its death", || {
        let state = dashboard.state();
        let is_counted = state["is_counted"].as_bool() == Some(true);
        state["status"]["daemons"][0]["alive"] == false && !is_counted
    });
    let state = dashboard.state();
    assert_eq!((&state["status"]["healthy"], &state["failure"]), (&json!(false), &Value::Null));
    assert_eq!(state["status"]["daemons"][1]["alive"], true);
    assert!(state["jobs_failure"].as_str().is_some_and(|why| why.contains("daemon 0")), "{state}");
    assert!(state["events"].to_string().contains("daemon 0 is dead"), "{state}");
    let heat = dashboard.figures("/api/heat?figure=requests&");
    assert!(heat["rows"][0]["cells"].as_str().is_some_and(|cells| cells.contains('x')), "{heat}");
    instance.start_again();
    wait_for("its restart", || {
        dashboard.state()["events"].to_string().contains("daemon 0 is alive")
    });
    let name = instance.name.clone();
    let stopped = instance.command("stop").output().expect("forebay runs");
    assert!(stopped.status.success(), "{stopped:?}");
    wait_for("the end", || {
        let failure = dashboard.state()["failure"].clone();
        failure.as_str().is_some_and(|why| why.contains(&format!("no such instance: {name}")))
    });
    assert_eq!(dashboard.state()["name"], name, "the last figures stay");
    instance.start_again();
    wait_for("the next instance", || dashboard.state()["failure"].is_null());
}

#[test]
fn only_requests_with_the_token_are_answered() {
    let instance = Instance::start("secret", &OPTIONS);
    let dashboard = Dashboard::start(&instance, &[]);
    let page = dashboard.get("/?");
    assert!(
        page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("default-src 'none'"),
        "{page}"
    );
    assert!(!page.contains(&dashboard.token), "the page does not repeat the token");
    let wrong = "0".repeat(dashboard.token.len());
    for query in
        ["", "?", "?token=", &format!("?token={wrong}"), &format!("?x={}", dashboard.token)]
    {
        for path in ["/", "/api/state", "/api/job", "/favicon.ico"] {
            let answer = dashboard.say(&format!("GET {path}{query} HTTP/1.1\r\n\r\n"));
            assert!(answer.starts_with("HTTP/1.1 403 "), "{path}{query}: {answer}");
            let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
            assert_eq!((body.lines().count(), body.contains("token")), (1, true), "{body}");
        }
    }
    let post = format!("POST /?token={} HTTP/1.1\r\n\r\n", dashboard.token);
    assert!(dashboard.say(&post).starts_with("HTTP/1.1 405 "));
    assert!(dashboard.say("nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
    assert!(dashboard.get("/other?").starts_with("HTTP/1.1 404 "));
    // It listens on loopback alone, and its command line has no secret.
    assert!(dashboard.at.starts_with("127.0.0.1:"), "{}", dashboard.at);
    let line = fs::read(format!("/proc/{}/cmdline", dashboard.child.id())).expect("a process");
    assert!(!text(&line).contains(&dashboard.token));
}

#[test]
fn idle_connections_do_not_shut_others_out() {
    let instance = Instance::start("crowded", &OPTIONS);
    let dashboard = Dashboard::start(&instance, &[]);
    let idle: Vec<TcpStream> =
        (0..100).map(|_| TcpStream::connect(&dashboard.at).expect("a connection")).collect();
    // They may take all places, until each has had its time.
    wait_for("an answer", || dashboard.get("/api/state?").starts_with("HTTP/1.1 200 "));
    let threads = fs::read_dir(format!("/proc/{}/task", dashboard.child.id())).expect("threads");
    assert!(threads.count() < 40);
    drop(idle);
}

#[test]
fn a_dashboard_that_cannot_be_says_why_in_one_line() {
    let instance = Instance::start("twice", &OPTIONS);
    let dashboard = Dashboard::start(&instance, &[]);
    let port = dashboard.at.rsplit(':').next().expect("a port").to_owned();
    let cases: [(&[&str], i32, &str); 4] = [
        (&["--port", &port], 1, "another program uses it: give another --port"),
        (&["--address", "192.0.2.1"], 1, "this host has no such address"),
        (&["--interval", "1ms"], 2, "give a time from 100ms to 1h"),
        (&["--name", "no-such"], 3, "no such instance: no-such"),
    ];
    for (options, code, why) in cases {
        let mut command = instance.command("dashboard");
        if options[0] == "--name" {
            command = Command::new(profile().join("forebay"));
            command.arg("dashboard").env("XDG_RUNTIME_DIR", instance.dir.path());
        }
        command.args(options);
        let (found, said) = refused(command);
        assert_eq!(found, Some(code), "{options:?}: {said}");
        let last = said.lines().last().unwrap_or_default();
        assert!(last.starts_with("forebay dashboard: ") && last.contains(why), "{said}");
        // An address that is no loopback one has a warning before it.
        assert_eq!(said.lines().count(), if options[0] == "--address" { 2 } else { 1 }, "{said}");
    }
}
