//! A device of `--dir` that others have filled: what needs a record of the log is refused, everything
//! else goes on, and everything can be removed.

use crate::support::tier::Small;
use crate::support::{Instance, skip, text, wait_for};
use std::fs::File;
use std::io::Write as _;
use std::process::Output;
use std::time::Instant;

/// Makes files with long names until there is no space; prints how many.
const MAKE: &str = r"
import errno, os
os.mkdir('/forebay/many')
count = 0
try:
    while count < 400000:
        os.close(os.open(f'/forebay/many/a-name-as-long-as-those-of-a-job-that-numbers-its-files-{count}',
                         os.O_CREAT | os.O_WRONLY))
        count += 1
except OSError as error:
    assert error.errno == errno.ENOSPC, error
print(count)
";

/// Reads, lists and truncates; makes nothing.
const READ: &str = r"
import errno, os
assert open('/forebay/first').read() == 'first\n'
assert len(open('/forebay/big', 'rb').read()) == 8000000
assert 'many' in os.listdir('/forebay')
names = os.listdir('/forebay/many')
for name in names[:1000]: os.stat('/forebay/many/' + name)
assert os.path.getsize('/forebay/big') == 8000000
try: open('/forebay/new', 'w'); raise SystemExit('a file was made')
except OSError as error: assert error.errno == errno.ENOSPC, error
print(len(names))
";

/// Removes files, and makes others as far as there is space.
const CHURN: &str = r"
import errno, os
for name in os.listdir('/forebay/many')[:400]:
    os.unlink('/forebay/many/' + name)
    try: os.close(os.open('/forebay/many/new-' + name, os.O_CREAT | os.O_WRONLY))
    except OSError as error: assert error.errno == errno.ENOSPC, error
";

fn run(instance: &Instance, words: &[&str]) -> Output {
    instance.program(words).output().expect("forebay runs")
}

fn printed(instance: &Instance, words: &[&str]) -> String {
    let output = run(instance, words);
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout).trim().to_owned()
}

/// "A full device refuses creates, and nothing else" (docs/semantics/durability.md).
#[test]
fn a_full_device_refuses_creates_and_nothing_else() {
    let Some(disk) = Small::new("96m") else {
        return skip("mounting is not permitted here");
    };
    let place = disk.path().display().to_string();
    let tiers = ["--local", "1", "--memory", "64MiB", "--ssd", "0", "--dir", &place];
    let instance = Instance::start("full", &tiers);
    let make = "echo first >/forebay/first; head -c 8000000 /dev/zero >/forebay/big";
    printed(&instance, &["sh", "-c", make]);
    let hog = disk.path().join("hog");
    let mut file = File::create(&hog).expect("made");
    while file.write_all(&vec![7; 1 << 16]).is_ok() {}
    let made: u64 = printed(&instance, &["python3", "-c", MAKE]).parse().expect("a number");
    assert!((1000..400_000).contains(&made), "{made}");
    for round in 0..2 {
        assert_eq!(printed(&instance, &["python3", "-c", READ]), made.to_string(), "{round}");
        let status = instance.command("status").output().expect("forebay runs");
        assert!(text(&status.stdout).contains("device full"), "{}", text(&status.stdout));
        let daemon = instance.daemon(0);
        daemon.kill();
        daemon.wait();
        instance.start_again();
    }
    printed(&instance, &["python3", "-c", CHURN]);
    let truncate =
        "import os; os.truncate('/forebay/big', 5); print(os.path.getsize('/forebay/big'))";
    assert_eq!(printed(&instance, &["python3", "-c", truncate]), "5");
    assert_eq!(
        printed(&instance, &["sh", "-c", "rm -r /forebay/many /forebay/big; ls /forebay"]),
        "first"
    );
    // A line for each start, and not for each file.
    let lines = instance.daemon_log(0).matches("no space for the log").count();
    assert!((1..=4).contains(&lines), "{lines} lines");
    std::fs::remove_file(&hog).expect("removed");
    let again = "echo again >/forebay/again; cat /forebay/first /forebay/again";
    assert_eq!(printed(&instance, &["sh", "-c", again]), "first\nagain");
    let status = instance.command("status").output().expect("forebay runs");
    assert!(!text(&status.stdout).contains("device full"), "{}", text(&status.stdout));
}

/// Writes files of 1 MiB until nothing is left, and then 20 that are refused.
const WRITE: &str = r"
import errno
refused, number = 0, 0
while refused < 20:
    number += 1
    assert number < 1000
    try:
        with open(f'/forebay/{number}', 'wb') as file: file.write(bytes([number % 256]) * (1 << 20))
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
        refused += 1
print(number - refused)
";

/// Each write that a full device refuses asks for space: the log has few lines of that.
#[test]
fn refused_writes_do_not_fill_the_log() {
    let Some(disk) = Small::new("100m") else {
        return skip("mounting is not permitted here");
    };
    let place = disk.path().display().to_string();
    let tiers =
        ["--local", "1", "--memory", "64MiB", "--ssd", "64MiB", "--timeout", "6s", "--dir", &place];
    let instance = Instance::start("refused", &tiers);
    let mut file = File::create(disk.path().join("hog")).expect("made");
    while file.write_all(&vec![7; 1 << 16]).is_ok() {}
    let begun = Instant::now();
    let written: u64 = printed(&instance, &["python3", "-c", WRITE]).parse().expect("a number");
    assert!((8..128).contains(&written), "{written}");
    // One a minute, and one of the minute before.
    let most = 2 + usize::try_from(begun.elapsed().as_secs() / 60).expect("minutes");
    let lines = instance.daemon_log(0).matches("cannot provision space").count();
    assert!((1..=most).contains(&lines), "{lines} lines");
}

/// A device that is read-only when daemons start: the start names it, removes nothing, and everything is
/// there when it can be written again.
#[test]
fn a_read_only_device_is_named_and_nothing_is_lost() {
    let Some(disk) = Small::new("160m") else {
        return skip("mounting is not permitted here");
    };
    let place = disk.path().display().to_string();
    let tiers = ["--local", "1", "--memory", "16MiB", "--ssd", "96MiB", "--dir", &place];
    let instance = Instance::start("readonly", &tiers);
    let make = "echo first >/forebay/first; head -c 40000000 /dev/zero >/forebay/big";
    printed(&instance, &["sh", "-c", make]);
    let daemon = instance.daemon(0);
    daemon.kill();
    daemon.wait();
    // Its threads may hold the files a moment longer.
    wait_for("a read-only device", || disk.mount(&["-o", "remount,ro"]));
    let refused = instance.try_start();
    let errors = text(&refused.stderr);
    assert!(disk.mount(&["-o", "remount,rw"]), "not read-only");
    assert!(!refused.status.success() && errors.contains("EROFS"), "{errors}");
    instance.start_again();
    let read = "cat /forebay/first; head -c 40000000 /dev/zero | cmp - /forebay/big && echo same";
    assert_eq!(printed(&instance, &["sh", "-c", read]), "first\nsame");
}
