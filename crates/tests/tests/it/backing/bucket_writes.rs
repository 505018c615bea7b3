//! Files that are created, changed, renamed and removed in an instance over a bucket are written
//! back as objects, each complete or not at all. While a store refuses, breaks off, does not answer
//! or is away, dirty data stays in the instance and is reported. The writer is killed and others
//! change objects meanwhile.

use super::store::{BUCKET, Checksums, Conditions, Damage, Fault, Store};
use crate::support::backing::{in_instance, printed};
use crate::support::{Instance, text, wait_for};
use std::collections::BTreeMap;
use std::fs;
use std::process::Output;
use testkit::content;

fn start(store: &Store, name: &str, more: &[&str]) -> Instance {
    let backing = format!("s3://{BUCKET}/in/put");
    let options = ["--local", "2", "--memory", "96MiB", "--ssd", "64MiB", "--backing", &backing];
    let options: Vec<_> = options.iter().chain(more).copied().collect();
    let instance = Instance::unstarted(name, &options, &store.variables());
    instance.start_again();
    instance
}

fn flush(instance: &Instance) -> Output {
    instance.command("flush").args(["--timeout", "40s"]).output().expect("forebay runs")
}

fn flushed(instance: &Instance) {
    printed(flush(instance), "flush");
}

fn refused(output: &Output, reason: &str) {
    let printed = text(&output.stderr);
    assert!(!output.status.success() && printed.contains(reason), "{reason}: {printed}");
}

/// Objects under the prefix by name, without directories.
fn objects(store: &Store) -> BTreeMap<String, Vec<u8>> {
    let keys = store.keys().into_iter().filter(|key| !key.ends_with('/'));
    keys.map(|key| {
        let bytes = store.get(&key).expect("it is there").0;
        (key.strip_prefix("in/put/").unwrap_or(&key).to_owned(), bytes)
    })
    .collect()
}

fn names(store: &Store) -> Vec<String> {
    objects(store).into_keys().collect()
}

fn writer(instance: &Instance) -> i32 {
    let user = rustix::process::geteuid().as_raw();
    let run = instance.dir.path().join(format!("forebay-{user}/{}", instance.name));
    let record = fs::read(run.join("writeback.json")).expect("a record");
    let record: serde_json::Value = serde_json::from_slice(&record).expect("JSON");
    i32::try_from(record["process"]["pid"].as_i64().expect("a pid")).expect("a pid")
}

/// A file of 30 MB is a multipart upload, the others are single requests. Each object has its
/// attributes, and an empty directory is an object.
#[test]
fn new_files_become_objects_with_attributes() {
    let store = Store::start();
    store.put("in/put/there/old", b"old", &[]);
    let instance = start(&store, "made", &[]);
    let dir = tempfile::tempdir().expect("a directory");
    let big = content(9, 0, 30_000_001);
    fs::write(dir.path().join("big"), &big).expect("written");
    let from = dir.path().display();
    in_instance(
        &instance,
        &format!(
            "cp {from}/big there/big; printf x > small; chmod 4750 small; touch -d @1000000000.5 small; \
             : > empty; mkdir -p a/b; chmod 2755 a/b; ln -s a/b link; mkfifo pipe; chmod 600 empty"
        ),
    );
    flushed(&instance);
    let required = ["empty", "link", "pipe", "small", "there/big", "there/old"];
    assert_eq!(names(&store), required);
    assert!(objects(&store)["there/big"] == big);
    assert_eq!(store.uploads(), 0);
    let of = |name: &str, what: &str| {
        let (_, metadata) = store.get(&format!("in/put/{name}")).expect(name);
        metadata.get(what).cloned().unwrap_or_default()
    };
    let uid = rustix::process::geteuid().as_raw().to_string();
    assert_eq!((of("small", "mode"), of("small", "uid")), ("0104750".to_owned(), uid));
    assert_eq!(of("small", "mtime"), "1000000000.500000000");
    assert_eq!((of("empty", "mode"), of("pipe", "mode")), ("0100600".into(), "010644".into()));
    assert_eq!(of("link", "mode"), "0120777");
    assert_eq!((of("a/b/", "mode"), of("a/", "mode")), ("042755".into(), "040755".into()));
    let list = "find . -mindepth 1 ! -type d -printf '%P %y %m %s %T@ %l\\n' | LC_ALL=C sort; \
                stat -c '%n %a %Y' a a/b; cat small link/../../there/old; sha256sum < there/big";
    let seen = in_instance(&instance, list);
    // A change of attributes does not rewrite the contents.
    in_instance(&instance, "chmod 600 small; touch -d @1200000000 there/big");
    flushed(&instance);
    assert_eq!((of("small", "mode"), of("there/big", "mtime")), {
        ("0100600".to_owned(), "1200000000.000000000".to_owned())
    });
    assert!(objects(&store)["there/big"] == big);
    in_instance(&instance, "chmod 4750 small; touch -d @1000000000.5 small");
    flushed(&instance);
    drop(instance);
    // The next instance sees the same tree.
    let again = start(&store, "again", &[]);
    let now = in_instance(&again, list);
    let big_line = |text: &str| {
        text.lines().filter(|line| !line.contains("/big")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(big_line(&now), big_line(&seen));
}

/// Files and directories that are changed, renamed and removed over several rounds.
#[test]
fn changes_renames_and_removals_reach_the_bucket() {
    let store = Store::start();
    for number in 0..30 {
        store.put(
            &format!("in/put/d/e/f{number:02}"),
            format!("of {number}").as_bytes(),
            &[("other", "kept")],
        );
    }
    store.put("in/put/big", &content(5, 0, 9_000_000), &[]);
    let instance = start(&store, "changes", &[]);
    in_instance(
        &instance,
        "echo more >> d/e/f01; printf x | dd of=big bs=1 seek=5000000 conv=notrunc status=none",
    );
    flushed(&instance);
    assert_eq!(objects(&store)["d/e/f01"], b"of 1more\n");
    let mut big = content(5, 0, 9_000_000);
    big[5_000_000] = b'x';
    assert!(objects(&store)["big"] == big);
    in_instance(
        &instance,
        "mv d/e moved; mv moved/f02 two; rm moved/f03; mv big d/big; mv moved/f05 moved/f04",
    );
    flushed(&instance);
    let seen = objects(&store);
    assert!(seen["d/big"] == big && seen["two"] == b"of 2" && seen["moved/f04"] == b"of 5");
    assert_eq!(seen.len(), 29, "{:?}", seen.keys());
    assert!(
        !seen.keys().any(|name| name.starts_with("d/e") || name.contains("forebay")),
        "{:?}",
        seen.keys()
    );
    assert_eq!(store.get("in/put/two").expect("it is there").1["other"], "kept");
    // An unread file is read from and written to its current object.
    assert_eq!(
        in_instance(&instance, "cat moved/f10 moved/f01; tail -c 3 d/big | wc -c"),
        "of 10of 1more\n3\n"
    );
    in_instance(
        &instance,
        "mkdir x; mv moved x/in; echo new > x/in/f10; mv x y; rm y/in/f2*; mv -T y/in z; rmdir y",
    );
    flushed(&instance);
    let seen = objects(&store);
    assert_eq!((seen["z/f10"].as_slice(), seen.len()), (&b"new\n"[..], 19), "{:?}", seen.keys());
    // Tools write a new file and rename it over the old one.
    in_instance(
        &instance,
        "sed -i s/of/off/ z/f1*; cp z/f11 z/t; mv z/t z/f12; mv z q; mv d z; mv q d",
    );
    flushed(&instance);
    let seen = objects(&store);
    assert_eq!(in_instance(&instance, "ls d | wc -l; ls z"), "17\nbig\n");
    assert_eq!(seen.len(), 19, "{:?}", seen.keys());
    assert_eq!(
        (seen["d/f11"].as_slice(), seen["d/f12"].as_slice()),
        (&b"off 11"[..], &b"off 11"[..])
    );
    assert!(seen["z/big"] == big);
    in_instance(&instance, "rm -r d z two");
    flushed(&instance);
    assert_eq!(store.keys(), Vec::<String>::new(), "everything is gone");
}

/// A store that is busy, cuts answers, stays silent, or executes a request without answering it.
#[test]
fn failed_requests_of_the_writer_are_retried() {
    for conditions in [Conditions::Known, Conditions::Refused] {
        let store = Store::start();
        store.set_conditions(conditions);
        store.put("in/put/old", b"old", &[]);
        store.put("in/put/d/old", b"old", &[]);
        let instance = start(&store, &format!("faults{conditions:?}"), &[]);
        in_instance(&instance, "ls d >/dev/null");
        for words in
            ["PUT new", "PUT old", "POST big", "PUT big partNumber=2", "HEAD old", "DELETE old"]
        {
            for fault in [Fault::Status(503), Fault::Unheard, Fault::Cut(0)] {
                store.fault(words, fault);
            }
        }
        in_instance(
            &instance,
            "echo new > new; echo more >> old; head -c 20000000 /dev/zero > big; mv d/old d/moved",
        );
        flushed(&instance);
        let seen = objects(&store);
        let names: Vec<_> = seen.keys().cloned().collect();
        assert_eq!(names, ["big", "d/moved", "new", "old"]);
        assert_eq!(
            (seen["new"].as_slice(), seen["old"].as_slice()),
            (&b"new\n"[..], &b"oldmore\n"[..])
        );
        assert!(seen["big"].len() == 20_000_000 && seen["big"].iter().all(|&byte| byte == 0));
        assert_eq!(store.faults_left(), 0);
    }
}

/// Bytes that change on their way are refused by the store and sent again, whether it knows CRC-32C or
/// compares the signature alone.
#[test]
fn bytes_that_change_on_their_way_do_not_become_an_object() {
    for checksums in [Checksums::Kept, Checksums::Ignored, Checksums::Refused] {
        let store = Store::start();
        store.set_checksums(checksums);
        let instance = start(&store, &format!("flip{checksums:?}"), &[]);
        let dir = tempfile::tempdir().expect("a directory");
        let big = content(9, 0, 9_000_001);
        fs::write(dir.path().join("big"), &big).expect("written");
        // The first request of all, and later ones, when the store is known.
        for (turn, words) in
            ["PUT small0", "PUT small1", "PUT big2 partNumber=2"].iter().enumerate()
        {
            store.fault(words, Fault::Flip);
            let from = dir.path().join("big");
            let from = from.display();
            in_instance(&instance, &format!("echo some > small{turn}; cp {from} big{turn}"));
            flushed(&instance);
        }
        assert_eq!(store.faults_left(), 0, "{checksums:?}");
        for turn in 0..3 {
            let seen = objects(&store);
            assert_eq!(seen[&format!("small{turn}")], b"some\n", "{checksums:?}");
            assert!(seen[&format!("big{turn}")] == big, "{checksums:?}");
        }
    }
}

/// A store that keeps other bytes than it received and says so, by their checksum or by their length:
/// the flush names the file, which stays dirty, and is there when the store is whole again.
#[test]
fn what_a_store_keeps_otherwise_does_not_count_as_saved() {
    let store = Store::start();
    let instance = start(&store, "keeps", &["--writeback", "end"]);
    let damage = [
        ("PUT small", Damage::Flipped, "small: the backing store has other bytes"),
        ("PUT small", Damage::Cut, "small: the backing store has other bytes"),
        ("PUT big partNumber=2", Damage::Flipped, "big: the backing store has other bytes"),
        ("POST uploadId", Damage::Cut, "big: the backing store has 19999999 of the 20000000"),
    ];
    for (turn, (words, damage, reason)) in damage.into_iter().enumerate() {
        let name = if words.contains("small") { "small" } else { "big" };
        in_instance(
            &instance,
            &format!("yes {turn} | head -c 20000000 > big; echo {turn} > small"),
        );
        for _ in 0..100 {
            store.fault(words, Fault::Keep(damage));
        }
        refused(&flush(&instance), reason);
        refused(&instance.command("stop").output().expect("forebay runs"), "--discard");
        store.clear_faults();
        flushed(&instance);
        let seen = objects(&store);
        assert_eq!(seen["small"], format!("{turn}\n").as_bytes(), "{words}");
        assert_eq!(seen["big"].len(), 20_000_000, "{words}");
        let read = in_instance(&instance, &format!("sha256sum < {name}"));
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("object"), &seen[name]).expect("written");
        let object = dir.path().join("object");
        assert_eq!(in_instance(&instance, &format!("sha256sum < {}", object.display())), read);
        assert_eq!(seen.len(), 2, "{words}: {:?}", seen.keys());
        assert_eq!(store.uploads(), 0, "{words}");
    }
}

/// With `--writeback-verify contents` what a store keeps otherwise, and does not say, is found before the
/// object has its name: what was there before stays until the new contents are right.
#[test]
fn contents_in_a_bucket_are_read_back_before_they_have_their_name() {
    for checksums in [Checksums::Kept, Checksums::Ignored] {
        let store = Store::start();
        store.set_checksums(checksums);
        store.put("in/put/old", b"before", &[]);
        store.put("in/put/large", &content(5, 0, 9_000_000), &[]);
        let more = ["--writeback", "end", "--writeback-verify", "contents"];
        let instance = start(&store, &format!("compared{checksums:?}"), &more);
        let change = "printf after > old; echo new > new; head -c 9000000 /dev/zero > big; \
                      printf x | dd of=large bs=1 seek=5000000 conv=notrunc status=none; ln -s a link";
        in_instance(&instance, change);
        for damage in [Damage::Flipped, Damage::Cut] {
            for _ in 0..400 {
                store.fault("PUT aside", Fault::Keep(damage));
            }
            let failed = flush(&instance);
            for name in ["old", "new", "big", "large"] {
                refused(&failed, &format!("{name}: "));
            }
            let seen = objects(&store);
            assert_eq!(seen["old"], b"before", "{checksums:?}");
            assert!(seen["large"] == content(5, 0, 9_000_000), "{checksums:?}");
            assert!(!seen.contains_key("new") && !seen.contains_key("big"), "{:?}", seen.keys());
            refused(&instance.command("stop").output().expect("forebay runs"), "--discard");
            store.clear_faults();
        }
        flushed(&instance);
        let seen = objects(&store);
        assert_eq!((&*seen["old"], &*seen["new"]), (&b"after"[..], &b"new\n"[..]), "{checksums:?}");
        let mut large = content(5, 0, 9_000_000);
        large[5_000_000] = b'x';
        assert!(seen["large"] == large && seen["big"] == vec![0; 9_000_000], "{checksums:?}");
        assert_eq!(names(&store), ["big", "large", "link", "new", "old"], "{checksums:?}");
        assert_eq!(store.uploads(), 0);
    }
}

/// A writer that is killed before it has read an object back leaves one that nobody compared. The next
/// writer does not give it its name.
#[test]
fn an_object_that_was_not_read_back_never_gets_its_name() {
    let store = Store::start();
    store.set_checksums(Checksums::Ignored);
    let more = ["--writeback", "end", "--writeback-verify", "contents"];
    let instance = start(&store, "unread", &more);
    for (name, bytes) in [("big", 9_000_000), ("small", 1000)] {
        in_instance(&instance, &format!("head -c {bytes} /dev/zero > {name}"));
        store.fault("PUT aside", Fault::Keep(Damage::Flipped));
        store.fault("GET aside", Fault::Silence(std::time::Duration::from_secs(5)));
        let mut flushing = instance.command("flush").spawn().expect("forebay runs");
        wait_for("it is being read back", || store.faults_left() == 0);
        crate::support::kill(writer(&instance));
        let _ = flushing.wait();
        assert!(names(&store).iter().any(|name| name.contains("aside")), "{:?}", names(&store));
        flushed(&instance);
        assert!(objects(&store)[name] == vec![0; bytes], "{name}");
        assert!(!names(&store).iter().any(|name| name.contains("aside")), "{:?}", names(&store));
    }
}

/// Refused data stays in the instance and is reported, and `stop` does not drop it; it is written
/// back once the store accepts it.
#[test]
fn refused_writes_stay_dirty_and_are_reported_until_they_succeed() {
    let store = Store::start();
    let instance = start(&store, "refused", &[]);
    for _ in 0..1000 {
        store.fault("PUT in/put", Fault::Status(403));
    }
    in_instance(&instance, "echo kept > kept");
    let short = |words: &[&str]| {
        let mut command = instance.command(words[0]);
        command.args(&words[1..]).output().expect("forebay runs")
    };
    refused(&flush(&instance), "kept: the store says 403");
    refused(&short(&["stop"]), "--discard");
    let status = text(&short(&["status"]).stdout);
    assert!(status.contains("the store says 403"), "{status}");
    assert_eq!(in_instance(&instance, "cat kept"), "kept\n");
    store.clear_faults();
    flushed(&instance);
    assert_eq!(objects(&store)["kept"], b"kept\n");
    store.set_gone(true);
    in_instance(&instance, "echo more > more; rm kept");
    refused(&flush(&instance), "NoSuchBucket");
    refused(&short(&["stop"]), "--discard");
    store.set_gone(false);
    flushed(&instance);
    assert_eq!(names(&store), ["more"]);
    // Only names and links that cannot be objects are refused, each with its reason.
    in_instance(&instance, "ln more twice; echo x > $'\\xff'; echo fine > fine");
    let left = flush(&instance);
    refused(&left, "it is a hard link, which a bucket cannot store");
    refused(&left, "its name is not valid UTF-8");
    assert_eq!(objects(&store)["fine"], b"fine\n");
    refused(&short(&["stop"]), "--discard");
    in_instance(&instance, "rm twice $'\\xff'");
    flushed(&instance);
}

/// No object of another writer is overwritten: the instance's version is stored under another name.
#[test]
fn a_conflict_preserves_both_versions() {
    for conditions in [Conditions::Known, Conditions::Refused] {
        let store = Store::start();
        store.set_conditions(conditions);
        for name in ["changed", "removed", "moved"] {
            store.put(&format!("in/put/{name}"), b"first", &[]);
        }
        let instance = start(&store, &format!("others{conditions:?}"), &["--writeback", "end"]);
        let big = "head -c 20000000 /dev/zero > big";
        in_instance(
            &instance,
            &format!(
                "cat changed; echo ours > changed; echo ours > new; rm removed; {big}; mv moved to"
            ),
        );
        for name in ["changed", "removed", "new", "big", "to"] {
            store.put(&format!("in/put/{name}"), b"theirs", &[]);
        }
        flushed(&instance);
        let seen = objects(&store);
        for name in ["changed", "removed", "new", "big", "to"] {
            assert_eq!(seen[name], b"theirs", "{name}");
        }
        let beside = |name: &str| {
            let start = format!("{name}.forebay-conflict-");
            seen.iter().find(|(key, _)| key.starts_with(&start)).map(|(_, bytes)| bytes.clone())
        };
        assert_eq!(beside("changed").as_deref(), Some(&b"ours\n"[..]));
        assert_eq!(beside("new").as_deref(), Some(&b"ours\n"[..]));
        assert_eq!(beside("to").as_deref(), Some(&b"first"[..]));
        assert_eq!(beside("big").map(|bytes| bytes.len()), Some(20_000_000));
        assert_eq!(seen.len(), 9, "{:?}", seen.keys());
    }
    // The other writer comes between the check and the request.
    let store = Store::start();
    let instance = start(&store, "between", &["--writeback", "end"]);
    in_instance(&instance, "echo ours > new");
    store.fault("PUT in/put/new", Fault::Replace(b"theirs".to_vec()));
    flushed(&instance);
    let seen = objects(&store);
    assert_eq!((seen["new"].as_slice(), seen.len()), (&b"theirs"[..], 2));
}

/// An upload over a known object, which another writer replaces before the upload is complete: the
/// other object is not overwritten, and the flush does not fail for it.
#[test]
fn an_object_replaced_during_an_upload_is_not_overwritten() {
    for conditions in [Conditions::Known, Conditions::Refused] {
        for (turn, words) in ["PUT old partNumber=2", "POST old uploadId"].into_iter().enumerate() {
            if conditions == Conditions::Refused && words.starts_with("POST") {
                // Such a store has no conditional requests.
                continue;
            }
            let store = Store::start();
            store.set_conditions(conditions);
            store.put("in/put/old", b"first", &[]);
            let name = format!("replaced{conditions:?}{turn}");
            let instance = start(&store, &name, &["--writeback", "end"]);
            in_instance(&instance, "cat old");
            // Earlier rounds that had nothing to do do not count.
            for _ in 0..4 {
                flushed(&instance);
            }
            in_instance(&instance, "head -c 20000000 /dev/zero > big; mv big old");
            store.fault(words, Fault::Replace(b"theirs".to_vec()));
            flushed(&instance);
            assert_eq!(store.faults_left(), 0, "{words}");
            let seen = objects(&store);
            let beside: Vec<_> = seen.keys().filter(|name| name.contains("conflict")).collect();
            assert_eq!((beside.len(), seen.len()), (1, 2), "{words}: {:?}", seen.keys());
            assert!(seen["old"] == b"theirs", "{words}");
            assert!(seen[beside[0]] == vec![0; 20_000_000], "{words}");
            assert_eq!(in_instance(&instance, "wc -c < old"), "20000000\n");
        }
    }
}

/// A large object reaches a conflict name through a temporary name of the writer: a writer that is
/// killed in between leaves nothing under the temporary name.
#[test]
fn a_writer_killed_between_two_names_leaves_no_temporary_object() {
    for is_removed in [false, true] {
        let store = Store::start();
        let name = format!("between{is_removed}");
        let instance = start(&store, &name, &["--writeback", "end"]);
        in_instance(&instance, "head -c 20000000 /dev/zero > big");
        store.put("in/put/big", b"theirs", &[]);
        store.fault("PUT conflict", Fault::Silence(std::time::Duration::from_millis(700)));
        let mut flushing = instance.command("flush").spawn().expect("forebay runs");
        wait_for("it is under its own name", || store.faults_left() == 0);
        crate::support::kill(writer(&instance));
        let _ = flushing.wait();
        if is_removed {
            store.remove("in/put/big");
        }
        flushed(&instance);
        let seen = objects(&store);
        let ours = seen.iter().filter(|(_, bytes)| bytes.len() == 20_000_000);
        let ours: Vec<_> = ours.map(|(name, _)| name.as_str()).collect();
        assert_eq!((ours.len(), seen.len()), (1, 2 - usize::from(is_removed)), "{:?}", seen.keys());
        assert!(ours[0].starts_with("big") && !ours[0].contains("aside"), "{ours:?}");
        assert_eq!(in_instance(&instance, "wc -c < big"), "20000000\n");
    }
}

/// Another writer always wins the race: the flush reports a name and a reason, and nothing is lost.
#[test]
fn a_flush_that_always_loses_the_race_reports_it() {
    let store = Store::start();
    let instance = start(&store, "faster", &["--writeback", "end"]);
    in_instance(&instance, "echo ours > new");
    for _ in 0..200 {
        store.fault("PUT in/put/new", Fault::Replace(b"theirs".to_vec()));
    }
    refused(&flush(&instance), "new: it changed during writeback");
    store.clear_faults();
    flushed(&instance);
    let seen = objects(&store);
    assert_eq!(seen["new"], b"theirs");
    assert_eq!(seen.values().filter(|bytes| *bytes == b"ours\n").count(), 1);
}

/// Wherever the writer is killed, every file is stored once in the end and no upload is left.
#[test]
fn a_writer_killed_at_any_request_loses_nothing() {
    let store = Store::start();
    for number in 0..10 {
        store.put(&format!("in/put/d/f{number}"), b"old", &[]);
    }
    let instance = start(&store, "killed", &["--writeback", "end"]);
    let mut required = BTreeMap::new();
    for number in 0..10 {
        required.insert(format!("d/f{number}"), b"old".to_vec());
    }
    let mut directory = "d".to_owned();
    let stops = [
        "POST big uploads",
        "PUT big partNumber=3",
        "POST big uploadId",
        "PUT new",
        "PUT to",
        "DELETE f7",
    ];
    for (turn, words) in stops.into_iter().enumerate() {
        let to = format!("to{turn}");
        in_instance(
            &instance,
            &format!(
                "head -c 30000000 /dev/zero > big{turn}; echo {turn} > new; mv {directory} {to}"
            ),
        );
        required.insert(format!("big{turn}"), vec![0; 30_000_000]);
        required.insert("new".to_owned(), format!("{turn}\n").into_bytes());
        let moved = required.iter().map(|(name, bytes)| {
            let rest = name.strip_prefix(&format!("{directory}/"));
            (rest.map_or(name.clone(), |rest| format!("{to}/{rest}")), bytes.clone())
        });
        required = moved.collect();
        directory = to;
        // The writer is killed while it waits for an answer; the store may execute the request all
        // the same.
        store.fault(words, Fault::Silence(std::time::Duration::from_millis(700)));
        let mut flushing = instance.command("flush").spawn().expect("forebay runs");
        wait_for(words, || store.faults_left() == 0);
        crate::support::kill(writer(&instance));
        let _ = flushing.wait();
        flushed(&instance);
        let seen = objects(&store);
        assert!(seen.keys().eq(required.keys()), "{words}: {:?}", seen.keys());
        assert!(seen == required, "{words}");
        wait_for("uploads were left", || {
            store.uploads() == 0 || flush(&instance).status.success() && store.uploads() == 0
        });
    }
}

/// With writeback mode `through`: each line is printed when a close has returned.
#[test]
fn a_closed_file_is_in_the_bucket() {
    let store = Store::start();
    let instance = start(&store, "closes", &["--writeback", "through"]);
    let script = "
import os, sys
for line in sys.stdin:
    name = line.strip()
    if name == 'hello':
        print('ok', flush=True)
        continue
    os.makedirs(os.path.dirname(name), exist_ok=True)
    file = os.open(name, os.O_CREAT | os.O_WRONLY)
    os.write(file, name.encode() * 1000)
    try:
        os.close(file)
        print('closed', flush=True)
    except OSError as error:
        print(os.strerror(error.errno), flush=True)";
    let words = ["bash", "-ec", "cd /forebay; exec python3 -c \"$0\"", script];
    let mut worker = crate::support::Worker::spawn(instance.program(&words));
    for name in ["d/f", "d/g", "e/f/g"] {
        assert_eq!(worker.ask(name), "closed");
        assert!(objects(&store)[name] == name.repeat(1000).as_bytes());
    }
    for _ in 0..1000 {
        store.fault("PUT in/put", Fault::Status(403));
    }
    assert_eq!(worker.ask("d/refused"), "Input/output error");
    store.clear_faults();
    assert_eq!(worker.ask("d/h"), "closed");
    wait_for("writeback of the refused file", || store.get("in/put/d/refused").is_some());
}
/// An object that is too large to copy in one request is moved in parts, also when a part fails,
/// when the writer is killed, and when another writer puts an object there first. No upload is
/// left.
#[test]
fn an_object_moved_in_parts_is_complete_or_absent() {
    let store = Store::start();
    let size = (6_u64 << 30) + 5;
    store.put_large("in/put/huge0", b"front", 6 << 30);
    let instance = start(&store, "parts", &["--writeback", "end"]);
    let move_on = |turn: u32| in_instance(&instance, &format!("mv huge{turn} huge{}", turn + 1));
    let is_at = |name: &str| {
        assert_eq!(store.size(&format!("in/put/{name}")), Some(size), "{name}");
        assert_eq!(objects(&store)[name], b"front", "{name}");
    };
    move_on(0);
    store.fault("PUT huge1 partNumber=3", Fault::Status(403));
    flushed(&instance);
    is_at("huge1");
    assert_eq!((names(&store).len(), store.uploads(), store.faults_left()), (1, 0, 0));
    move_on(1);
    store.fault("PUT huge2 partNumber=2", Fault::Silence(std::time::Duration::from_millis(700)));
    let mut flushing = instance.command("flush").spawn().expect("forebay runs");
    wait_for("a part is in flight", || store.faults_left() == 0);
    crate::support::kill(writer(&instance));
    let _ = flushing.wait();
    flushed(&instance);
    is_at("huge2");
    assert_eq!((names(&store).len(), store.uploads()), (1, 0));
    move_on(2);
    store.fault("POST huge3 uploadId", Fault::Replace(b"theirs".to_vec()));
    flushed(&instance);
    assert_eq!(objects(&store)["huge3"], b"theirs");
    let all = names(&store);
    assert_eq!((all.len(), store.uploads()), (2, 0), "{all:?}");
    is_at(all.iter().find(|name| name.contains("conflict")).expect("beside it"));
}

/// An object that another writer puts at the destination after the check is not overwritten by the
/// copy.
#[test]
fn a_copy_overwrites_no_object_of_another_writer() {
    for conditions in [Conditions::Known, Conditions::Refused] {
        let store = Store::start();
        store.set_conditions(conditions);
        store.put("in/put/old", b"ours", &[]);
        let name = format!("copies{conditions:?}");
        let instance = start(&store, &name, &["--writeback", "end"]);
        in_instance(&instance, "mv old to");
        if conditions == Conditions::Known {
            store.fault("PUT in/put/to", Fault::Replace(b"theirs".to_vec()));
        }
        flushed(&instance);
        let seen = objects(&store);
        let ours = seen.values().filter(|bytes| *bytes == b"ours").count();
        assert_eq!((ours, store.faults_left()), (1, 0), "{:?}", seen.keys());
        let expected: &[u8] = if conditions == Conditions::Known { b"theirs" } else { b"ours" };
        assert_eq!(
            (seen["to"].as_slice(), seen.len()),
            (expected, if expected == b"ours" { 1 } else { 2 })
        );
    }
}
