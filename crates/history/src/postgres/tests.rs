//! A real server, which each test starts in a directory of its own. It asks for passwords.

use super::*;
use crate::recorder::Recorder;
use postgres::NoTls;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

const KEEP: Retention = Retention { keep_ms: 30 * DAY_MS, bytes_max: 0 };
/// A whole minute, in the middle of a day.
const MINUTE: u64 = 1_800_000_000_000;
const PASSWORD: &str = "pass:word";

struct Server {
    directory: tempfile::TempDir,
    programs: PathBuf,
    port: u16,
}

impl Server {
    /// `None`: PostgreSQL is not installed.
    fn start() -> Option<Server> {
        let all = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let all = all.map(|version| version.path().join("bin"));
        let Some(programs) = all.filter(|bin| bin.join("initdb").exists()).max() else {
            testkit::skip("no PostgreSQL: 'scripts/install-deps.sh test' installs it");
            return None;
        };
        let directory = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = Server { directory, programs, port };
        let secret = server.path("secret");
        fs::write(&secret, format!("{PASSWORD}\n")).unwrap();
        if rustix::process::getuid().is_root() {
            for path in [server.directory.path(), Path::new(&secret)] {
                std::os::unix::fs::chown(path, Some(65_534), Some(65_534)).unwrap();
            }
        }
        let data = server.path("data");
        let words = ["-A", "scram-sha-256", "-U", "admin", "-N", "--pwfile", &secret, "-D", &data];
        ok(server.run("initdb", &words));
        server.control("start");
        server.sql("CREATE ROLE guest LOGIN PASSWORD 'guest'; CREATE DATABASE site OWNER admin;");
        Some(server)
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    /// Runs a program of the server, which refuses to be root.
    fn run(&self, program: &str, words: &[&str]) -> Output {
        let mut command = Command::new(self.programs.join(program));
        command.args(words).current_dir(self.directory.path()).stdin(Stdio::null());
        if rustix::process::getuid().is_root() {
            command.uid(65_534).gid(65_534);
        }
        // The server keeps what `pg_ctl` has as its output.
        if program == "pg_ctl" {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        command.output().unwrap()
    }

    fn control(&self, word: &str) {
        let (data, log, at) =
            (self.path("data"), self.path("log"), self.directory.path().display());
        let options = format!(
            "-c listen_addresses=127.0.0.1 -c port={} -c unix_socket_directories={at} -c fsync=off",
            self.port
        );
        let mut words = vec!["-w", "-t", "60", "-D", &data, "-m", "immediate"];
        if word == "start" {
            words = vec!["-w", "-t", "60", "-D", &data, "-l", &log, "-o", &options];
        }
        ok(self.run("pg_ctl", &[&words[..], &[word]].concat()));
    }

    fn sql(&self, sql: &str) {
        let address = format!("host=127.0.0.1 port={} user=admin dbname=postgres", self.port);
        let mut config: Config = address.parse().unwrap();
        let mut client = config.password(PASSWORD).connect(NoTls).unwrap();
        sql.split_inclusive(';').for_each(|one| client.batch_execute(one).unwrap());
    }

    fn address(&self, user: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/site", self.port)
    }

    fn passwords(&self) -> PathBuf {
        let path = self.directory.path().join("passwords");
        let text = "*:*:site:admin:pass\\:word\n127.0.0.1:*:*:guest:guest\n";
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn open(&self, user: &str) -> PostgresStore {
        PostgresStore::connect(&self.address(user), KEEP, Some(self.passwords())).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let data = self.path("data");
        let _ = self.run("pg_ctl", &["-D", &data, "-m", "immediate", "stop"]);
    }
}

fn ok(output: Output) {
    assert!(output.status.success(), "{output:?}");
}

fn run_of(job: &str, begin_ms: u64) -> JobRun {
    let advice = Advice { trigger: "t".into(), saves_seconds: Some(1.5), ..Advice::default() };
    JobRun {
        instance: "a".into(),
        job: job.into(),
        begin_ms,
        seconds: 2.5,
        bytes_read: u64::MAX,
        advice: vec![advice],
        profile: "{\"job\": \"\\u0000\"}".into(),
        ..JobRun::default()
    }
}

fn second(at_ms: u64, read: Option<f64>) -> Record {
    let mut figures = [None; FIGURES.len()];
    (figures[1], figures[8]) = (read, read);
    Record::Load(LoadSample {
        instance: "a".into(),
        job: String::new(),
        at_ms,
        figures,
        samples: 1,
    })
}

fn event(at_ms: u64, text: &str) -> EventRecord {
    EventRecord { instance: "a".into(), at_ms, kind: "warn".into(), text: text.into() }
}

fn query() -> Query {
    Query { rows: 100, ..Query::default() }
}

#[test]
fn a_server_keeps_what_a_file_keeps_and_shows_each_role_its_own() {
    let Some(server) = Server::start() else { return };
    let mut store = server.open("admin");
    let odd = "a tab\t, a line\n, a \\ and \\N";
    let records = [
        Record::Run(Box::new(run_of("j", MINUTE))),
        second(MINUTE, Some(10.0)),
        second(MINUTE + 1000, Some(30.0)),
        second(MINUTE + 2000, None),
        Record::Event(event(MINUTE, odd)),
    ];
    store.write(&records).unwrap();
    // The same second again, from a clock that was set back; and the same run with more in it.
    let later = JobRun { seconds: 9.0, ..run_of("j", MINUTE) };
    store.write(&[second(MINUTE, Some(99.0)), Record::Run(Box::new(later.clone()))]).unwrap();
    store.tidy(MINUTE + 60_000).unwrap();
    store.tidy(MINUTE + 61_000).unwrap();
    let expected = JobRun { bytes_read: i64::MAX as u64, profile: String::new(), ..later };
    assert_eq!(store.runs(&query()).unwrap(), [expected]);
    assert_eq!(store.profile("j", 0).unwrap(), Some(run_of("j", 0).profile));
    assert_eq!(store.profile("j", 1).unwrap(), None);
    assert_eq!(store.events(&query()).unwrap(), [event(MINUTE, odd)]);
    assert_eq!(store.load(Span::Second, &query()).unwrap().len(), 3);
    let minutes = store.load(Span::Minute, &query()).unwrap();
    let [minute] = minutes.as_slice() else { panic!("{minutes:?}") };
    assert_eq!((minute.at_ms, minute.samples), (MINUTE, 3));
    assert_eq!(
        (minute.figures[1], minute.figures[8], minute.figures[0]),
        (Some(20.0), Some(30.0), None)
    );

    // Another role writes beside it, and sees its own alone; the owner of the tables sees all.
    let mut guest = server.open("guest");
    guest
        .write(&[Record::Run(Box::new(run_of("g", MINUTE))), second(MINUTE + 3 * DAY_MS, None)])
        .unwrap();
    guest.tidy(MINUTE + 3 * DAY_MS).unwrap();
    let jobs = |store: &mut PostgresStore| -> Vec<String> {
        store.runs(&query()).unwrap().into_iter().map(|run| run.job).collect()
    };
    assert_eq!((jobs(&mut guest), jobs(&mut store).len()), (vec!["g".to_owned()], 2));
    let seconds = |store: &mut PostgresStore| store.load(Span::Second, &query()).unwrap().len();
    assert_eq!((seconds(&mut guest), seconds(&mut store)), (1, 4), "a guest drops no day");
    store.tidy(MINUTE + 3 * DAY_MS + 60_000).unwrap();
    assert_eq!(seconds(&mut store), 1, "the owner drops days that are over");
    store.tidy(MINUTE + 40 * DAY_MS).unwrap();
    assert_eq!((jobs(&mut store).len(), store.events(&query()).unwrap().len()), (0, 0));
}

/// A certificate of `localhost` that signs itself, and no connection without TLS.
fn encrypted(server: &Server) -> Option<String> {
    let [certificate, key] = ["root.crt", "server.key"].map(|name| server.path(name));
    let words = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
        "-keyout",
        &key,
        "-out",
        &certificate,
    ];
    let made = Command::new("openssl").args(words).output();
    if !made.is_ok_and(|made| made.status.success()) {
        testkit::skip("no certificate can be made here ('openssl' is needed)");
        return None;
    }
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    if rustix::process::getuid().is_root() {
        std::os::unix::fs::chown(&key, Some(65_534), Some(65_534)).unwrap();
    }
    let settings = [("ssl", "on"), ("ssl_cert_file", &certificate), ("ssl_key_file", &key)];
    for (name, value) in settings {
        server.sql(&format!("ALTER SYSTEM SET {name} = '{value}';"));
    }
    fs::write(server.path("data/pg_hba.conf"), "hostssl all all 127.0.0.1/32 scram-sha-256\n")
        .unwrap();
    server.control("stop");
    server.control("start");
    Some(certificate)
}

#[test]
fn rows_go_encrypted_to_a_server_whose_certificate_is_checked() {
    let Some(server) = Server::start() else { return };
    let Some(certificate) = encrypted(&server) else { return };
    let connect = |host: &str, query: &str| {
        let address = server.address("admin").replace("127.0.0.1", host) + query;
        let store = PostgresStore::connect(&address, KEEP, Some(server.passwords()));
        store.map_err(|error| error.to_string())
    };
    let roots = format!("&sslrootcert={certificate}");
    let verified = format!("?sslmode=verify-full{roots}");
    let mut store = connect("localhost", &verified).unwrap_or_else(|why| panic!("{why}"));
    store.write(&[Record::Event(event(MINUTE, "encrypted"))]).unwrap();
    for query in ["", "?sslmode=require"] {
        let mut store = connect("127.0.0.1", query).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(store.events(&self::query()).unwrap(), [event(MINUTE, "encrypted")]);
        let row = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        assert!(store.client.query_one(row, &[]).unwrap().get::<_, bool>(0));
    }
    let refused = |host: &str, query: &str| {
        let why = connect(host, query).err().expect("a refusal");
        assert_eq!(why.lines().count(), 1, "{why}");
        why
    };
    let why = refused("localhost", "?sslmode=disable");
    assert!(why.contains("no encryption"), "{why}");
    let why = refused("127.0.0.1", &verified);
    assert!(why.contains("certificate"), "the certificate is of another name: {why}");
    let other = server.path("other.crt");
    let words = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-subj",
        "/CN=other",
        "-keyout",
        "/dev/null",
        "-out",
        &other,
    ];
    assert!(Command::new("openssl").args(words).output().unwrap().status.success());
    let why = refused("localhost", &format!("?sslmode=verify-full&sslrootcert={other}"));
    assert!(why.contains("certificate"), "the authority is another: {why}");
    assert!(refused("localhost", "?sslmode=verify-ca").contains("verify-full"));
}

/// A server without TLS takes no connection that needs it.
#[test]
fn a_server_without_tls_is_refused_where_it_is_required() {
    let Some(server) = Server::start() else { return };
    let address = server.address("admin") + "?sslmode=require";
    let refused = PostgresStore::connect(&address, KEEP, Some(server.passwords()));
    let why = refused.err().expect("a refusal").to_string();
    assert!(why.contains("TLS"), "{why}");
}

#[test]
fn a_server_that_refuses_is_one_line_without_the_password() {
    let Some(server) = Server::start() else { return };
    let refused = |address: &str, passwords: Option<PathBuf>| {
        let failed = PostgresStore::connect(address, KEEP, passwords);
        let text = failed.err().expect("a refusal").to_string();
        assert!(
            text.lines().count() == 1 && !text.contains("word@") && !text.contains("s3cret"),
            "{text}"
        );
        text
    };
    let passwords = server.passwords();
    fs::write(&passwords, "*:*:*:*:s3cret").unwrap();
    let text = refused(&server.address("admin"), Some(passwords.clone()));
    assert!(text.contains("password authentication failed for user \"admin\""), "{text}");
    fs::set_permissions(&passwords, fs::Permissions::from_mode(0o640)).unwrap();
    let text = refused(&server.address("admin"), Some(passwords));
    assert!(text.ends_with("others can read it: chmod 600"), "{text}");
    assert!(refused(&server.address("admin"), None).contains("password missing"));
    let with = format!("postgres://admin:s3cret@127.0.0.1:{}/site", server.port);
    assert!(refused(&with, None).contains("belongs in ~/.pgpass"));
    assert!(refused("postgres://admin:s3cret@[::1/site", None).contains("no address"));
    assert_eq!(shown(&with), server.address("admin"));
    let elsewhere = format!("postgres://admin@127.0.0.1:{}/nowhere", server.port);
    let text = refused(&elsewhere, Some(server.passwords()));
    assert!(text.contains("password"), "the file has none for this database: {text}");
}

#[test]
fn records_are_counted_while_a_server_is_away_and_kept_when_it_is_back() {
    let Some(server) = Server::start() else { return };
    let (address, passwords) = (server.address("admin"), server.passwords());
    let lines = Arc::new(Mutex::new(Vec::new()));
    let said = Arc::clone(&lines);
    let start = || {
        let (address, passwords, said) = (address.clone(), passwords.clone(), Arc::clone(&said));
        let open = move || {
            let store = PostgresStore::connect(&address, KEEP, Some(passwords.clone()))?;
            Ok(Box::new(store) as Box<dyn Store>)
        };
        let say = move |line: &str| said.lock().unwrap().push(line.to_owned());
        Recorder::start(Box::new(open), Box::new(say), || MINUTE).unwrap()
    };
    let recorder = start();
    assert!(recorder.offer(Record::Event(event(MINUTE, "before"))));
    assert_eq!(recorder.finish(), 0);
    server.control("stop");
    let recorder = start();
    assert!(recorder.offer(Record::Event(event(MINUTE, "meanwhile"))));
    assert_eq!(recorder.finish(), 1);
    assert_eq!(lines.lock().unwrap().len(), 1);
    assert!(lines.lock().unwrap()[0].starts_with("history is not recorded: "));
    server.control("start");
    let recorder = start();
    assert!(recorder.offer(Record::Event(event(MINUTE, "after"))));
    assert_eq!(recorder.finish(), 0);
    let texts: Vec<String> =
        server.open("admin").events(&query()).unwrap().into_iter().map(|one| one.text).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(!texts.contains(&"meanwhile".to_owned()));
}

/// A server that accepts connections and says nothing is given up, and not asked again and again.
#[test]
fn a_silent_server_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("postgres://me@{}/site", listener.local_addr().unwrap());
    let open = || {
        let address = address.clone();
        let connect = move || PostgresStore::connect(&address, KEEP, None);
        BoundedStore::open(Duration::from_millis(50), connect)
    };
    for _ in 0..20 {
        let text = open().expect_err("nothing is said").to_string();
        assert_eq!(text, "the server does not answer in time");
    }
    // Most of them did not connect: the number of threads is bounded.
    listener.set_nonblocking(true).unwrap();
    let connections = std::iter::from_fn(|| listener.accept().ok()).count();
    assert!((1..=8).contains(&connections), "{connections}");
}
