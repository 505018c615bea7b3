//! Damaged files of daemons: a start names them and refuses, `forebay check` lists what is lost and
//! changes nothing, and after `forebay start --salvage` everything else is as it was.

use crate::support::damage::flip;
use crate::support::{Instance, Worker, text, wait_for};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use testkit::{Random, rounds, seed};
use testkit::{content, digest};

const DAEMONS: usize = 3;
const OPTIONS: [&str; 10] =
    ["--local", "3", "--memory", "16MiB", "--ssd", "64MiB", "--workers", "2", "--scrub-rate", "0"];
const FILES: u64 = 90;

/// Length of a file: some in the log, most on devices, together more than the memory.
fn length_of(number: u64) -> u64 {
    if number.is_multiple_of(3) { 100 + number } else { (1 << 20) + number * 977 }
}

fn path_of(number: u64) -> String {
    format!("/d{}/e{}/f{number}", number % 5, number % 2)
}

/// The answer for a file that is well.
fn right_of(number: u64) -> String {
    let length = length_of(number);
    format!("ok {length} {}", digest(&content(number, 0, length)))
}

fn write_all(instance: &Instance) {
    let mut worker = instance.worker();
    for directory in 0..5 {
        for path in
            [format!("/d{directory}"), format!("/d{directory}/e0"), format!("/d{directory}/e1")]
        {
            let made = worker.ask(&format!("mkdir /forebay{path}"));
            assert!(made == "ok" || made == "err 17", "{path}: {made}");
        }
    }
    for number in 0..FILES {
        let put = format!("put /forebay{} {number} {}", path_of(number), length_of(number));
        assert_eq!(worker.ask(&put), "ok", "{}", path_of(number));
    }
}

fn end_daemons(instance: &Instance) {
    let daemons: Vec<_> = (0..DAEMONS).map(|index| instance.daemon(index)).collect();
    daemons.iter().for_each(|daemon| daemon.kill());
    daemons.iter().for_each(|daemon| daemon.wait());
}

/// All files of a directory with their contents.
fn files_below(directory: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        match entry.file_type().expect("its type").is_dir() {
            true => files_below(&entry.path(), found),
            false => drop(found.insert(entry.path(), fs::read(entry.path()).expect("read"))),
        }
    }
}

fn all_files(instance: &Instance) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    (0..DAEMONS).for_each(|index| files_below(&instance.data(index), &mut found));
    found
}

/// The newest log of a worker.
fn log_of(instance: &Instance, daemon: usize, worker: u64) -> PathBuf {
    let found = fs::read_dir(instance.data(daemon).join(format!("log{worker}")));
    let found = found.expect("a directory").flatten().map(|entry| entry.path());
    let is_log = |path: &PathBuf| {
        path.file_name().is_some_and(|it| it.to_string_lossy().starts_with("log-"))
    };
    found.filter(is_log).max().expect("a log")
}

/// The result of `forebay check` or `lost`, and its exit code.
fn listed(instance: &Instance, command: &str) -> (Value, Option<i32>) {
    let output = instance.command(command).arg("--json").output().expect("forebay runs");
    let list = serde_json::from_slice(&output.stdout);
    let list = list.unwrap_or_else(|_| panic!("{command}: {}", text(&output.stderr)));
    (list, output.status.code())
}

/// Paths of the files that a list has, with what is lost of each.
fn lost_in(list: &Value) -> BTreeSet<(String, String)> {
    let files = list["lost"].as_array().expect("a list");
    let word = |file: &Value, field: &str| file[field].as_str().expect("a word").to_owned();
    let path = |file: &Value| match word(file, "path") {
        path if path.is_empty() => file["inode"].to_string(),
        path => path,
    };
    files.iter().map(|file| (word(file, "what"), path(file))).collect()
}

/// Salvages, and checks that nothing was lost in silence; returns the list of what was.
fn salvage(instance: &Instance, what: &str) -> Value {
    let before = all_files(instance);
    let (list, code) = listed(instance, "check");
    assert_eq!((code, &list["whole"]), (Some(4), &Value::Bool(false)), "{what}: {list}");
    assert!(all_files(instance) == before, "{what}: a check changed a file");
    let salvaged =
        instance.command("start").args(["--salvage", "--json"]).output().expect("it runs");
    assert!(salvaged.status.success(), "{what}: {}", text(&salvaged.stderr));
    let start: Value = serde_json::from_slice(&salvaged.stdout).expect("JSON");
    assert_eq!(lost_in(&start["salvaged"]), lost_in(&list), "{what}: {start}");
    list
}

/// Paths of everything below a directory, with the answers to reading them; of directories the path
/// alone.
fn all_below(worker: &mut Worker, directory: &str) -> BTreeMap<String, Option<String>> {
    let (mut found, mut waiting) = (BTreeMap::new(), vec![directory.to_owned()]);
    while let Some(directory) = waiting.pop() {
        let names = worker.ask(&format!("list /forebay{directory}"));
        for name in names.strip_prefix("ok ").unwrap_or_default().split_whitespace() {
            let path = format!("{directory}/{name}");
            // EISDIR.
            let read = Some(worker.ask(&format!("get /forebay{path}"))).filter(|it| it != "err 21");
            if read.is_none() {
                waiting.push(path.clone());
            }
            found.insert(path, read);
        }
    }
    found
}

/// Reads all files. Each is right, or in the list, or missing because a record of a log is lost.
/// `earlier`: names that a removal gave up, which are there again if its record is lost.
fn read_all(
    instance: &Instance,
    list: &Value,
    what: &str,
    earlier: &mut BTreeSet<String>,
) -> usize {
    let has_lost_records = !list["damage"].as_array().expect("a list").is_empty();
    let lost = lost_in(list);
    let is_listed = |word: &str, path: &str| lost.contains(&(word.to_owned(), path.to_owned()));
    let mut worker = instance.worker();
    // Files and directories in lost+found are listed, and are there, with all that is below them.
    let saved = all_below(&mut worker, "/lost+found");
    for (path, read) in &saved {
        if path.starts_with("/lost+found/#") && path.matches('/').count() == 2 {
            let is_known = is_listed("name", path) || earlier.contains(path);
            assert!(is_known, "{what}: {path}: {list}");
            earlier.insert(path.clone());
        }
        let is_known = match read.as_deref() {
            Some("err 5") => is_listed("bytes", path),
            Some(found) => !found.starts_with("err"),
            None => true,
        };
        assert!(is_known, "{what}: {path}: {read:?}: {list}");
    }
    let is_saved = |number| saved.values().flatten().any(|read| *read == right_of(number));
    let (mut whole, mut missing) = (0, 0);
    for number in 0..FILES {
        let path = path_of(number);
        let found = worker.ask(&format!("get /forebay{path}"));
        if found == right_of(number) || is_saved(number) {
            whole += 1;
            continue;
        }
        missing += usize::from(found == "err 2" && length_of(number) > 4096);
        let is_known = match found.as_str() {
            "err 5" => is_listed("bytes", &path),
            "err 2" => has_lost_records,
            _ if is_listed("size", &path) || is_listed("holes", &path) => true,
            found => has_lost_records && length_of(number) < 4096 && found.starts_with("ok 0 "),
        };
        assert!(is_known, "{what}: {path}: {found}: {list}");
    }
    // A file with data on devices is not missing without a line, of itself or of its rest in lost+found.
    let is_right = |read: &String| (0..FILES).any(|number| *read == right_of(number));
    let is_gone = |(word, path): &&(String, String)| match word.as_str() {
        "file" | "data" => true,
        "name" => false,
        _ => matches!(saved.get(path), Some(Some(read)) if !is_right(read)),
    };
    let gone = lost.iter().filter(is_gone).count();
    assert!(missing <= gone, "{what}: {missing} files are missing in silence: {list}");
    whole
}

/// Everything can be removed and written again, and a restart finds nothing wrong.
fn remove_and_refill(instance: &Instance, what: &str) {
    let script = "rm -r /forebay/* && ls -A /forebay | wc -l";
    let removed = instance.program(&["sh", "-c", script]).output().expect("forebay runs");
    let said = (text(&removed.stdout), text(&removed.stderr));
    assert_eq!((said.0.trim(), said.1.as_str()), ("0", ""), "{what}");
    // Each file on the devices has more than a megabyte.
    wait_for("the space of removed and of lost files is free", || instance.used() < 1 << 20);
    write_all(instance);
    end_daemons(instance);
    instance.start_again();
    let (list, code) = listed(instance, "check");
    assert_eq!(code, Some(0), "{what}: {list}");
    let whole = read_all(instance, &list, what, &mut BTreeSet::new());
    assert_eq!(whole, FILES as usize, "{what}");
}

/// Damages a log of an instance whose daemons have ended, at byte `at` of `end`, and salvages it.
fn salvage_damaged(
    instance: &Instance,
    (log, how): (&Path, &str),
    at: impl FnOnce(usize) -> usize,
    (round, earlier): (u64, &mut BTreeSet<String>),
) -> Value {
    let mut bytes = fs::read(log).expect("read");
    let at = at(bytes.iter().rposition(|byte| *byte != 0).expect("records"));
    match how {
        "flipped" => flip(&mut bytes, at),
        "cut" => bytes.truncate(at),
        _ => bytes.clear(),
    }
    match how {
        "missing" => fs::remove_file(log).expect("removed"),
        _ => fs::write(log, &bytes).expect("written"),
    }
    let what = format!("round {round}, {} {how} at {at}", log.display());
    let refused = instance.try_start();
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("--salvage"), "{what}: {said}");
    assert!(said.contains("log-0000"), "{what}: no file is named: {said}");
    let list = salvage(instance, &what);
    let named = list["damage"].to_string();
    assert!(named.contains(&*log.to_string_lossy()), "{what}: {named}");
    if how != "missing" {
        let copies = fs::read_dir(log.parent().expect("a directory")).expect("read").flatten();
        let is_copy = |path: PathBuf| fs::read(path).is_ok_and(|found| found == bytes);
        assert!(copies.map(|it| it.path()).any(is_copy), "{what}: the original is gone");
    }
    let whole = read_all(instance, &list, &what, earlier);
    assert!(whole > 0, "{what}: everything is lost");
    let (now, code) = listed(instance, "check");
    assert!(lost_in(&now).is_subset(&lost_in(&list)), "{what}: {now}: {list}");
    let (before, _) = listed(instance, "lost");
    assert!(lost_in(&list).is_subset(&lost_in(&before)), "{what}: {before}: {list}");
    assert!(code == Some(0) || code == Some(4), "{what}: {code:?}");
    remove_and_refill(instance, &what);
    list
}

/// "A damaged log costs the changes that its damaged records describe" (docs/semantics/durability.md).
#[test]
fn a_salvage_loses_what_is_damaged_and_nothing_else() {
    let instance = Instance::start("salvage", &OPTIONS);
    write_all(&instance);
    let (list, code) = listed(&instance, "check");
    assert_eq!((code, lost_in(&list).len()), (Some(0), 0), "of a running instance: {list}");
    let (mut random, mut earlier) = (Random::new(seed(3)), BTreeSet::new());
    for round in 0..rounds(3) {
        let (daemon, worker) = (random.uniform(3) as usize, random.uniform(2));
        end_daemons(&instance);
        let log = log_of(&instance, daemon, worker);
        let how = ["flipped", "cut", "missing"][round as usize % 3];
        let at = |end| end / 2 + random.uniform(end as u64 / 2) as usize;
        salvage_damaged(&instance, (&log, how), at, (round, &mut earlier));
    }
}

/// "Files whose name is lost are in `/lost+found`", and so are directories, with all that is below them.
#[test]
fn directories_whose_name_is_lost_keep_what_is_below_them() {
    let instance = Instance::start("salvage-names", &OPTIONS);
    write_all(&instance);
    end_daemons(&instance);
    // The names of the root are on one service of the first daemon, and its log begins with them.
    let logs = [0, 1].map(|worker| log_of(&instance, 0, worker));
    let used =
        |log: &&PathBuf| fs::read(log).map_or(0, |it| it.iter().filter(|it| **it != 0).count());
    let log = logs.iter().max_by_key(used).expect("logs");
    let list = salvage_damaged(&instance, (log, "cut"), |end| end / 32, (0, &mut BTreeSet::new()));
    let names = lost_in(&list).into_iter().filter(|(word, _)| word == "name").count();
    assert!(names >= 3, "the top directories have their names: {list}");
}

/// "A part of the SSD file that is gone is an error for its readers" (docs/semantics/durability.md).
#[test]
fn lost_parts_of_an_ssd_are_listed_and_are_errors() {
    let instance = Instance::start("salvage-ssd", &OPTIONS);
    for how in ["flipped", "cut", "missing"] {
        write_all(&instance);
        end_daemons(&instance);
        let ssd = instance.data(1).join("ssd");
        let file = OpenOptions::new().read(true).write(true).open(&ssd).expect("opened");
        let length = file.metadata().expect("its length").len();
        let mut page = [0; 4096];
        let mut has_data = |at: u64| {
            file.read_exact_at(&mut page, at * 4096).expect("read");
            page.iter().any(|byte| *byte != 0)
        };
        let pages: Vec<u64> = (0..length / 4096 - 1).filter(|at| has_data(*at)).collect();
        assert!(pages.len() > 100, "{how}: nothing is on the SSD");
        let middle = pages[pages.len() / 2];
        match how {
            "flipped" => file.write_all_at(&[0x5a; 100], middle * 4096 + 50).expect("written"),
            "cut" => file.set_len(middle * 4096 + 1000).expect("cut"),
            _ => fs::remove_file(&ssd).expect("removed"),
        }
        drop(file);
        if how != "flipped" {
            let refused = instance.try_start();
            let said = text(&refused.stderr);
            assert!(!refused.status.success() && said.contains("--salvage"), "{how}: {said}");
        }
        let list = salvage(&instance, how);
        let lost: Vec<_> = lost_in(&list).into_iter().collect();
        assert!(!lost.is_empty() && lost.iter().all(|(word, _)| word == "bytes"), "{how}: {list}");
        let ranges = list["lost"][0]["ranges"].as_array().expect("ranges");
        assert!(!ranges.is_empty(), "{how}: {list}");
        let whole = read_all(&instance, &list, how, &mut BTreeSet::new());
        assert!(whole + lost.len() >= FILES as usize, "{how}: {whole} are whole: {list}");
        remove_and_refill(&instance, how);
    }
}
