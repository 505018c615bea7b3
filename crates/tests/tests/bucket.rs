//! An instance over a bucket (`--backing s3://BUCKET/PREFIX`): its objects are seen as files, and a store
//! that is busy, says no, breaks off, or has something else meanwhile gives no wrong byte and no hang.

mod store;
mod support;

use std::fs;
use std::process::{Command, Output};
use std::time::Duration;
use store::{BUCKET, Fault, Store};
use support::{Instance, text};
use tests::content;

/// Of a command's environment.
type Variables = Vec<(&'static str, String)>;

fn instance(store: &Store, name: &str, daemons: &str) -> Instance {
    over(&format!("s3://{BUCKET}/in/put"), store, name, daemons)
}

fn over(bucket: &str, store: &Store, name: &str, daemons: &str) -> Instance {
    let options = ["--local", daemons, "--memory", "96MiB", "--ssd", "64MiB", "--backing", bucket];
    let options: Vec<_> = options.into_iter().chain(["--write-back", "never"]).collect();
    let instance = Instance::unstarted(name, &options, &store.variables());
    instance.start_again();
    instance
}

fn try_above(instance: &Instance, script: &str) -> Output {
    let script = format!("cd /forebay; {script}");
    instance.program(&["bash", "-ec", &script]).output().expect("forebay runs")
}

fn above(instance: &Instance, script: &str) -> String {
    support::below::above(instance, script)
}

/// What a script in the instance says when it fails.
fn refused(instance: &Instance, script: &str) -> String {
    let output = try_above(instance, &format!("export LC_ALL=C; {script}"));
    assert!(!output.status.success(), "{script}: {}", text(&output.stdout));
    text(&output.stderr)
}

/// Objects are seen as files by their keys, with the attributes that their metadata tell.
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
        assert_eq!(above(&instance, "ls -A"), "a\nbig\nempty\nlink\nodd\n");
        let stat = "stat -c '%n %F %a %s %Y' big empty a link";
        let uid = above(&instance, "stat -c %u:%g empty");
        let said = "big regular file 600 9000001 1615892351\nempty regular empty file 444 0 \
                    1600000004\na directory 750 0 1000000000\nlink symbolic link 777 10 1600000007\n";
        // The size of a directory is the instance's own.
        let seen = above(&instance, stat);
        let same = |line: &str| line.replace("directory 750 0", "directory 750");
        let cut = |text: &str| text.lines().map(same).collect::<Vec<_>>();
        let seen: Vec<_> = cut(&seen).into_iter().map(without_size_of_directory).collect();
        assert_eq!(seen, cut(said), "{daemons} daemons");
        assert_eq!(uid, "12:34\n");
        assert_eq!(above(&instance, "cat link a/b/c/deep; readlink link"), "deepdeepa/b/c/deep\n");
        assert_eq!(above(&instance, "cat odd/*; ls odd | wc -l"), "oddmore3\n");
        let place = tempfile::tempdir().expect("a directory");
        let to = place.path().join("big");
        above(&instance, &format!("cp big {}", to.display()));
        assert!(fs::read(&to).expect("copied") == big, "{daemons} daemons");
        assert_eq!(above(&instance, "tail -c +8999990 big | wc -c; wc -c < empty"), "12\n0\n");
        // What is made here stays here.
        above(&instance, "echo mine > new; echo more >> a/b/c/deep; rm link; cat new a/b/c/deep");
        assert_eq!(
            above(&instance, "ls; cat new a/b/c/deep"),
            "a\nbig\nempty\nnew\nodd\nmine\ndeepmore\n"
        );
        let flushed = instance.command("flush").output().expect("forebay runs");
        assert!(flushed.status.success(), "it is not to be: {}", text(&flushed.stderr));
    }
    assert_eq!(store.asked("PUT") + store.asked("DELETE") + store.asked("POST"), 0);
}

fn without_size_of_directory(line: String) -> String {
    let Some((start, rest)) = line.split_once("directory 750 ") else { return line };
    match rest.split_once(' ') {
        Some((_, time)) => format!("{start}directory 750 {time}"),
        None => line,
    }
}

/// A listing goes on over pages, several names are asked for at once, and a name that can be none is left
/// out; of an object and a directory of one name the directory is seen.
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
    assert_eq!(above(&instance, "ls -A many | wc -l; cat many/f/in"), "2301\nf/in");
    assert_eq!(above(&instance, "cat many/f-* | wc -c"), "2300\n");
    let log = instance.daemon_log(0) + &instance.daemon_log(1);
    assert!(log.contains("can be no files are not shown"), "{log}");
}

/// What the store does not answer, answers half, or not now is asked for again, and only what is missing.
#[test]
fn a_store_that_fails_now_and_then_is_asked_again() {
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
        // Longer than an answer is waited for.
        ("GET small", Fault::Silence(Duration::from_secs(9))),
    ] {
        store.fault(words, fault);
    }
    assert_eq!(above(&instance, "cat d/small"), "small");
    let place = tempfile::tempdir().expect("a directory");
    let to = place.path().join("big");
    above(&instance, &format!("cp d/big {}", to.display()));
    assert!(fs::read(&to).expect("copied") == big);
    assert_eq!(store.faults_left(), 0, "all were met");
}

/// What is not permitted, or not there, is refused by its reason, at once; the rest is read.
#[test]
fn what_can_not_be_read_is_refused_by_its_reason() {
    let store = Store::start();
    for name in ["closed", "gone", "open", "unseen"] {
        store.put(&format!("in/put/{name}"), name.as_bytes(), &[]);
    }
    store.put("in/put/shut/in", b"in", &[]);
    let instance = instance(&store, "refused", "1");
    store.fault("HEAD unseen", Fault::Status(403));
    assert_eq!(above(&instance, "stat -c %s-%a unseen; cat unseen open"), "6-644\nunseenopen");
    store.fault("GET closed", Fault::Status(403));
    assert!(refused(&instance, "cat closed").contains("Permission denied"));
    assert_eq!(above(&instance, "cat closed"), "closed", "the next one asks again");
    store.fault("GET list-type=2 shut", Fault::Status(403));
    assert!(refused(&instance, "ls shut").contains("Permission denied"));
    assert_eq!(above(&instance, "ls shut"), "in\n");
    store.remove("in/put/gone");
    assert!(refused(&instance, "cat gone").contains("Input/output error"));
    let log = instance.daemon_log(0);
    assert!(log.contains("the store says 403") && log.contains("path=\"closed\""), "{log}");
}

/// What is wrong with a bucket is said when an instance is started, in one line.
#[test]
fn a_bucket_that_can_not_be_used_is_said_at_the_start() {
    let store = Store::start();
    let said = |bucket: &str, change: &dyn Fn(&mut Variables)| {
        let mut variables = store.variables();
        change(&mut variables);
        let place = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(support::profile().join("forebay"));
        command.args(["run", "--name", "wrong", "--local", "1", "--memory", "96MiB", "--ssd", "0"]);
        command.args(["--backing", bucket, "--", "true"]).envs(variables);
        command.env("XDG_RUNTIME_DIR", place.path()).env("FOREBAY_DIR", place.path());
        let output = command.output().expect("forebay runs");
        assert!(!output.status.success(), "{bucket}");
        text(&output.stderr)
    };
    let none = |_: &mut Variables| {};
    assert!(
        said("s3://other/x", &none).contains("404 NoSuchBucket"),
        "{}",
        said("s3://other", &none)
    );
    let text = said("s3://data/../x", &none);
    assert!(text.contains("no name of a file"), "{text}");
    let wrong_key = |variables: &mut Variables| {
        variables.push(("AWS_SECRET_ACCESS_KEY", "another".to_owned()));
    };
    let text = said("s3://data", &wrong_key);
    assert!(text.contains("403 SignatureDoesNotMatch"), "{text}");
    let away = |variables: &mut Variables| {
        variables.push(("AWS_ENDPOINT_URL", "http://127.0.0.1:1".to_owned()));
    };
    let text = said("s3://data", &away);
    assert!(text.contains("use the bucket s3://data"), "{text}");
    let without = |variables: &mut Variables| {
        variables.retain(|(name, _)| *name != "AWS_ACCESS_KEY_ID");
        variables.push(("HOME", "/nonexistent".to_owned()));
    };
    let text = said("s3://data", &without);
    assert!(text.contains("no credentials for the bucket"), "{text}");
    // A program that tells credentials and does not end, and files that are none.
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
    let text = said("s3://data", &elsewhere);
    assert!(text.contains("the program sh failed with status 3"), "{text}");
    assert!(text.contains("pipe: it is a pipe and not a file"), "{text}");
}

/// Of an object that is replaced while it is read no byte is mixed with the old ones: neither between two
/// requests for parts of it, nor where a request goes on after it was cut.
#[test]
fn an_object_that_is_replaced_is_never_mixed() {
    let store = Store::start();
    let (old, new) = (content(1, 0, 20_000_000), content(2, 0, 20_000_000));
    for name in ["between", "within"] {
        store.put(&format!("in/put/{name}"), &old, &[]);
    }
    let instance = instance(&store, "mixed", "1");
    let place = tempfile::tempdir().expect("a directory");
    let part = |name: &str, skip: usize| {
        let to = place.path().join("part");
        let script =
            format!("dd if={name} of={} bs=4M skip={skip} count=1 status=none", to.display());
        let output = try_above(&instance, &format!("export LC_ALL=C; {script}"));
        match output.status.success() {
            true => Ok(fs::read(&to).expect("copied")),
            false => Err(text(&output.stderr)),
        }
    };
    // Parts that come before they are asked for are among the requests, so which one is refused is open.
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
    assert!(instance.daemon_log(0).contains("changed since it was seen"));
}

/// Credentials and the endpoint come from the profile of the user, too; no secret is in an argument, a
/// log
/// or a file of the instance, whatever the level of logs; and killed daemons go on.
#[test]
fn a_profile_is_used_and_no_secret_is_told() {
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
    assert_eq!(above(&instance, "head -c 1000 file | wc -c"), "1000\n");
    let pid = instance.status()["daemons"][0]["pid"].as_i64().expect("a pid");
    let line = fs::read(format!("/proc/{pid}/cmdline")).expect("it runs");
    let daemon = instance.daemon(0);
    daemon.kill();
    daemon.wait();
    instance.start_again();
    assert_eq!(above(&instance, "cat file | wc -c"), "9000000\n");
    let place = instance.place.path().to_str().expect("letters");
    let [(_, credentials), _] = store.profile();
    let secret = credentials.rsplit(" = ").next().expect("a secret").trim();
    let mut grep = Command::new("grep");
    let found = grep.args(["-rlF", "-e", secret, place]).output().expect("grep runs");
    assert_eq!(found.status.code(), Some(1), "{}{}", text(&found.stdout), text(&found.stderr));
    assert!(!text(&line).contains(secret), "{}", text(&line));
}
