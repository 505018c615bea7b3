//! An instance over a bucket (`--backing s3://BUCKET/PREFIX`): its objects appear as files, and a
//! store that is busy, refuses, breaks off or changes an object in between causes no wrong byte and
//! no hang.

use super::store::{BUCKET, Fault, Store};
use crate::support::{Instance, text};
use std::fs;
use std::process::{Command, Output};
use std::time::Duration;
use testkit::content;

/// Environment variables of a command.
type Variables = Vec<(&'static str, String)>;

fn instance(store: &Store, name: &str, daemons: &str) -> Instance {
    over(&format!("s3://{BUCKET}/in/put"), store, name, daemons)
}

fn over(bucket: &str, store: &Store, name: &str, daemons: &str) -> Instance {
    let options = ["--local", daemons, "--memory", "96MiB", "--ssd", "64MiB", "--backing", bucket];
    let options: Vec<_> = options.into_iter().chain(["--writeback", "never"]).collect();
    let instance = Instance::unstarted(name, &options, &store.variables());
    instance.start_again();
    instance
}

fn try_in_instance(instance: &Instance, script: &str) -> Output {
    let script = format!("cd /forebay; {script}");
    instance.program(&["bash", "-ec", &script]).output().expect("forebay runs")
}

fn in_instance(instance: &Instance, script: &str) -> String {
    crate::support::backing::in_instance(instance, script)
}

/// Standard error of a script in the instance that must fail.
fn refused(instance: &Instance, script: &str) -> String {
    let output = try_in_instance(instance, &format!("export LC_ALL=C; {script}"));
    assert!(!output.status.success(), "{script}: {}", text(&output.stdout));
    text(&output.stderr)
}

/// Objects appear as files by their keys, with the attributes stored in their metadata.
#[test]
fn objects_are_seen_as_files() {
    let store = Store::start();
    let big = content(7, 0, 9_000_001);
    store.put("outside", b"not here", &[]);
    store.put("in/put", b"nor this", &[]);
    store.put("in/put/big", &big, &[("mode", "33152"), ("mtime", "1615892351.25")]);
    store.put("in/put/empty", b"", &[("mode", "0100444"), ("uid", "12"), ("gid", "34")]);
    store.put("in/put/a/b/c/deep", b"deep", &[]);
    store.put("in/put/a/", b"", &[("mode", "16872"), ("mtime", "1000000000")]);
    store.put("in/put/link", b"a/b/c/deep", &[("mode", "41471")]);
    store.put("in/put/odd/ +%&?=#\u{fc}\n\u{1}", b"odd", &[]);
    store.put("in/put/odd/quote\"<>'", b"more", &[]);
    for daemons in ["1", "2"] {
        let instance = instance(&store, &format!("seen{daemons}"), daemons);
        assert_eq!(in_instance(&instance, "ls -A"), "a\nbig\nempty\nlink\nodd\n");
        let stat = "stat -c '%n %F %a %s %Y' big empty a link";
        let uid = in_instance(&instance, "stat -c %u:%g empty");
        let printed = "big regular file 600 9000001 1615892351\nempty regular empty file 444 0 \
                    1600000004\na directory 750 0 1000000000\nlink symbolic link 777 10 1600000007\n";
        // The instance chooses the size of a directory.
        let seen = in_instance(&instance, stat);
        let same = |line: &str| line.replace("directory 750 0", "directory 750");
        let cut = |text: &str| text.lines().map(same).collect::<Vec<_>>();
        let seen: Vec<_> = cut(&seen).into_iter().map(without_size_of_directory).collect();
        assert_eq!(seen, cut(printed), "{daemons} daemons");
        assert_eq!(uid, "12:34\n");
        assert_eq!(
            in_instance(&instance, "cat link a/b/c/deep; readlink link"),
            "deepdeepa/b/c/deep\n"
        );
        assert_eq!(in_instance(&instance, "cat odd/*; ls odd | wc -l"), "oddmore3\n");
        let dir = tempfile::tempdir().expect("a directory");
        let to = dir.path().join("big");
        in_instance(&instance, &format!("cp big {}", to.display()));
        assert!(fs::read(&to).expect("copied") == big, "{daemons} daemons");
        assert_eq!(
            in_instance(&instance, "tail -c +8999990 big | wc -c; wc -c < empty"),
            "12\n0\n"
        );
        // Changes stay in the instance.
        in_instance(
            &instance,
            "echo mine > new; echo more >> a/b/c/deep; rm link; cat new a/b/c/deep",
        );
        assert_eq!(
            in_instance(&instance, "ls; cat new a/b/c/deep"),
            "a\nbig\nempty\nnew\nodd\nmine\ndeepmore\n"
        );
        let flushed = instance.command("flush").output().expect("forebay runs");
        assert!(flushed.status.success(), "it must not exist: {}", text(&flushed.stderr));
    }
    assert_eq!(store.requests("PUT") + store.requests("DELETE") + store.requests("POST"), 0);
}

fn without_size_of_directory(line: String) -> String {
    let Some((start, rest)) = line.split_once("directory 750 ") else { return line };
    match rest.split_once(' ') {
        Some((_, time)) => format!("{start}directory 750 {time}"),
        None => line,
    }
}

/// A listing continues over pages, several names are looked up in one request, and an impossible
/// name is left out; where an object and a directory have the same name, the directory is shown.
#[test]
fn a_listing_of_many_pages_is_whole() {
    let store = Store::start();
    for number in 0..2300 {
        store.put(&format!("in/put/many/f-{number:04}"), b"x", &[]);
    }
    for key in ["f", "f/in", "/x", "./y", "../z"] {
        store.put(&format!("in/put/many/{key}"), key.as_bytes(), &[]);
    }
    store.put(&format!("in/put/many/{}", "n".repeat(256)), b"", &[]);
    let instance = instance(&store, "many", "2");
    assert_eq!(in_instance(&instance, "ls -A many | wc -l; cat many/f/in"), "2301\nf/in");
    // Of each page some, in a long run all.
    let (names, count) =
        if testkit::is_long() { ("many/f-*", "2300\n") } else { ("many/f-*7", "230\n") };
    assert_eq!(in_instance(&instance, &format!("cat {names} | wc -c")), count);
    let log = instance.daemon_log(0) + &instance.daemon_log(1);
    assert!(log.contains("can be no files are not shown"), "{log}");
}

/// A request that gets no answer, half an answer or a temporary error is retried, for the missing
/// bytes only.
#[test]
fn failed_reads_from_a_bucket_are_retried() {
    let store = Store::start();
    let big = content(3, 0, 20_000_000);
    store.put("in/put/d/big", &big, &[]);
    store.put("in/put/d/small", b"small", &[]);
    store.fault("GET list-type=2", Fault::Status(503));
    let instance = instance(&store, "again", "2");
    for fault in [Fault::Status(503), Fault::Status(500), Fault::Status(429), Fault::Cut(100)] {
        store.fault("GET list-type=2 put%2Fd", fault);
    }
    store.fault("HEAD small", Fault::Status(503));
    store.fault("HEAD big", Fault::Status(502));
    for (words, fault) in [
        ("GET big", Fault::Cut(1_500_000)),
        ("GET big", Fault::Cut(0)),
        ("GET big", Fault::Status(503)),
        ("GET big", Fault::Cut(70_000)),
        ("GET small", Fault::Cut(2)),
        // Longer than the client waits for an answer.
        ("GET small", Fault::Silence(Duration::from_secs(9))),
    ] {
        store.fault(words, fault);
    }
    assert_eq!(in_instance(&instance, "cat d/small"), "small");
    let dir = tempfile::tempdir().expect("a directory");
    let to = dir.path().join("big");
    in_instance(&instance, &format!("cp d/big {}", to.display()));
    assert!(fs::read(&to).expect("copied") == big);
    assert_eq!(store.faults_left(), 0, "every fault was met");
}

/// A forbidden or missing object is refused at once with the right reason; the rest can be read.
#[test]
fn unreadable_files_are_refused_with_the_reason() {
    let store = Store::start();
    for name in ["closed", "gone", "open", "unseen"] {
        store.put(&format!("in/put/{name}"), name.as_bytes(), &[]);
    }
    store.put("in/put/shut/in", b"in", &[]);
    let instance = instance(&store, "refused", "1");
    store.fault("HEAD unseen", Fault::Status(403));
    assert_eq!(
        in_instance(&instance, "stat -c %s-%a unseen; cat unseen open"),
        "6-644\nunseenopen"
    );
    store.fault("GET closed", Fault::Status(403));
    assert!(refused(&instance, "cat closed").contains("Permission denied"));
    assert_eq!(in_instance(&instance, "cat closed"), "closed", "the next one sends a request");
    store.fault("GET list-type=2 shut", Fault::Status(403));
    assert!(refused(&instance, "ls shut").contains("Permission denied"));
    assert_eq!(in_instance(&instance, "ls shut"), "in\n");
    store.remove("in/put/gone");
    assert!(refused(&instance, "cat gone").contains("Input/output error"));
    let log = instance.daemon_log(0);
    assert!(log.contains("the store says 403") && log.contains("path=\"closed\""), "{log}");
}

/// `start` reports in one line what is wrong with a bucket.
#[test]
fn start_reports_a_bucket_that_cannot_be_used() {
    let store = Store::start();
    let printed = |bucket: &str, change: &dyn Fn(&mut Variables)| {
        let mut variables = store.variables();
        change(&mut variables);
        let dir = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(crate::support::profile().join("forebay"));
        command.args(["run", "--name", "wrong", "--local", "1", "--memory", "96MiB", "--ssd", "0"]);
        command.args(["--backing", bucket, "--", "true"]).envs(variables);
        command.env("XDG_RUNTIME_DIR", dir.path()).env("FOREBAY_DIR", dir.path());
        let output = command.output().expect("forebay runs");
        assert!(!output.status.success(), "{bucket}");
        text(&output.stderr)
    };
    let none = |_: &mut Variables| {};
    assert!(
        printed("s3://other/x", &none).contains("404 NoSuchBucket"),
        "{}",
        printed("s3://other", &none)
    );
    let text = printed("s3://data/../x", &none);
    assert!(text.contains("no name of a file"), "{text}");
    let wrong_key = |variables: &mut Variables| {
        variables.push(("AWS_SECRET_ACCESS_KEY", "another".to_owned()));
    };
    let text = printed("s3://data", &wrong_key);
    assert!(text.contains("403 SignatureDoesNotMatch"), "{text}");
    let away = |variables: &mut Variables| {
        variables.push(("AWS_ENDPOINT_URL", "http://127.0.0.1:1".to_owned()));
    };
    let text = printed("s3://data", &away);
    assert!(text.contains("use the bucket s3://data"), "{text}");
    let without = |variables: &mut Variables| {
        variables.retain(|(name, _)| *name != "AWS_ACCESS_KEY_ID");
        variables.push(("HOME", "/nonexistent".to_owned()));
    };
    let text = printed("s3://data", &without);
    assert!(text.contains("no credentials for the bucket"), "{text}");
    // A program that prints credentials and does not end, and invalid credential files.
    let home = tempfile::tempdir().expect("a directory");
    let in_home = |name: &str| home.path().join(name).to_str().expect("letters").to_owned();
    let program = "[default]\ncredential_process = sh -c exit${IFS}3\n";
    fs::write(home.path().join("config"), program).expect("written");
    let made = Command::new("mkfifo").arg(in_home("pipe")).status().expect("mkfifo runs");
    assert!(made.success());
    let elsewhere = |variables: &mut Variables| {
        without(variables);
        variables.push(("AWS_CONFIG_FILE", in_home("config")));
        variables.push(("AWS_SHARED_CREDENTIALS_FILE", in_home("pipe")));
    };
    let text = printed("s3://data", &elsewhere);
    assert!(text.contains("the program sh failed with status 3"), "{text}");
    assert!(text.contains("pipe: it is a pipe and not a file"), "{text}");
}

/// When an object is replaced while it is read, no new byte is mixed with old ones: neither between
/// two range requests nor where a request resumes after a broken connection.
#[test]
fn bytes_of_a_replaced_object_are_never_mixed() {
    let store = Store::start();
    let (old, new) = (content(1, 0, 20_000_000), content(2, 0, 20_000_000));
    for name in ["between", "within"] {
        store.put(&format!("in/put/{name}"), &old, &[]);
    }
    let instance = instance(&store, "mixed", "1");
    let dir = tempfile::tempdir().expect("a directory");
    let part = |name: &str, skip: usize| {
        let to = dir.path().join("part");
        let script =
            format!("dd if={name} of={} bs=4M skip={skip} count=1 status=none", to.display());
        let output = try_in_instance(&instance, &format!("export LC_ALL=C; {script}"));
        match output.status.success() {
            true => Ok(fs::read(&to).expect("copied")),
            false => Err(text(&output.stderr)),
        }
    };
    // Readahead sends requests, too, so it is open which request is refused.
    store.fault("GET between", Fault::Cut(usize::MAX));
    store.fault("GET between", Fault::Replace(new.clone()));
    let mut refused = 0;
    for skip in 0..5 {
        match part("between", skip) {
            Ok(bytes) => {
                assert!(old[skip << 22..].starts_with(&bytes) && !bytes.is_empty(), "part {skip}");
            }
            Err(text) => {
                assert!(text.contains("Input/output error"), "{text}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
    store.fault("GET within", Fault::Cut(1_000_000));
    store.fault("GET within", Fault::Replace(new.clone()));
    let first = part("within", 0).map(|bytes| bytes.len()).expect_err("it is another");
    assert!(first.contains("Input/output error"), "{first}");
    assert_eq!(store.faults_left(), 0);
    assert!(instance.daemon_log(0).contains("is missing or has changed"));
}

/// Credentials and the endpoint may come from the user's profile; no secret appears in an argument,
/// a log or a file of the instance at any log level; and killed daemons continue.
#[test]
fn credentials_come_from_a_profile_and_secrets_stay_hidden() {
    let store = Store::start();
    let home = tempfile::tempdir().expect("a directory");
    fs::create_dir(home.path().join(".aws")).expect("made");
    for (name, content) in store.profile() {
        fs::write(home.path().join(".aws").join(name), content).expect("written");
    }
    let variables = [
        ("HOME", home.path().to_str().expect("letters").to_owned()),
        ("AWS_PROFILE", "site".to_owned()),
        ("FOREBAY_LOG", "trace".to_owned()),
    ];
    store.put("file", &content(1, 0, 9_000_000), &[]);
    let options = ["--local", "1", "--memory", "96MiB", "--ssd", "64MiB", "--backing", "s3://data"];
    let instance = Instance::unstarted("profile", &options, &variables);
    instance.start_again();
    assert_eq!(in_instance(&instance, "head -c 1000 file | wc -c"), "1000\n");
    let pid = instance.status()["daemons"][0]["pid"].as_i64().expect("a pid");
    let line = fs::read(format!("/proc/{pid}/cmdline")).expect("it runs");
    let daemon = instance.daemon(0);
    daemon.kill();
    daemon.wait();
    instance.start_again();
    assert_eq!(in_instance(&instance, "cat file | wc -c"), "9000000\n");
    let dir = instance.dir.path().to_str().expect("letters");
    let [(_, credentials), _] = store.profile();
    let secret = credentials.rsplit(" = ").next().expect("a secret").trim();
    let mut grep = Command::new("grep");
    let found = grep.args(["-rlF", "-e", secret, dir]).output().expect("grep runs");
    assert_eq!(found.status.code(), Some(1), "{}{}", text(&found.stdout), text(&found.stderr));
    assert!(!text(&line).contains(secret), "{}", text(&line));
}
