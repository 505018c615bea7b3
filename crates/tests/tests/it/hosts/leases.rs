//! Directories of other hosts that are walked without a message: a change of one host is seen by
//! the others when the call returns ("Operations on one name or one file are atomic and seen at
//! once everywhere" of docs/semantics/sharing.md: one point in time for every client on every
//! daemon), also while daemons are stopped or killed and the network is cut.
//!
//! Network namespaces need root. Without it the tests are skipped.

use crate::support::world::{World, ip};
use std::process::Command;
use std::thread;

/// Common beginning of both scripts: words of memory outside the instance for the number of started
/// changes, of finished changes, the stop flag, and for each of three watchers the last change
/// seen.
const SHARED: &str = r#"
import os, sys, mmap, errno, time
with open(sys.argv[1], 'r+b') as file: words = memoryview(mmap.mmap(file.fileno(), 48)).cast('q')
"#;

/// Changes directories one after the other: renames, the group of one directory, and a directory
/// that it makes and removes. Arguments: file, first change, count.
const CHANGER: &str = r#"
first, count = int(sys.argv[2]), int(sys.argv[3])
if first == 0:
    os.makedirs('/forebay/r0')
    os.mkdir('/forebay/group')
    os.chmod('/forebay/group', 0o2777)
    open('/forebay/r0/file', 'w').close()
for k in range(first, first + count):
    os.mkdir(f'/forebay/gone{k}')
    words[0] = k + 1
    os.rename(f'/forebay/r{k}', f'/forebay/r{k + 1}')
    os.chown('/forebay/group', -1, k + 1)
    while True:
        try:
            os.rmdir(f'/forebay/gone{k}')
            break
        except OSError as error:
            if error.errno != errno.ENOTEMPTY: raise
    words[1] = k + 1
    # A watcher on a disconnected or stopped host sees nothing.
    begun = time.monotonic()
    while min(words[3], words[4], words[5]) <= k and time.monotonic() < begun + 0.2: time.sleep(0.001)
print('changed')
"#;

/// Watches what `CHANGER` changes until the stop flag is set. Where the daemon is stopped or cut
/// off it gets EIO and continues. Prints the number of checks, and of those that found the entry.
const WATCHER: &str = r#"
me = int(sys.argv[2])
looks = found = 0
def there(path):
    global looks, found
    while not words[2]:
        looks += 1
        try:
            os.stat(path)
            found += 1
            return True
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno != errno.EIO: raise
    return None
def make(path, known):
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        group = os.fstat(fd).st_gid
        os.close(fd)
        os.unlink(path)
        return group
    except FileNotFoundError:
        return None
    except OSError as error:
        # It may exist although the call failed: the next call that finds it removes it.
        if error.errno not in (errno.EIO, errno.EEXIST): raise
        try: os.unlink(path)
        except OSError: pass
        return known
while not words[2]:
    k = words[1]
    if k > 0:
        assert not there(f'/forebay/r{k - 1}/file'), f'r{k - 1} is there after it was renamed'
        made = make(f'/forebay/gone{k - 1}/{me}', None)
        assert made is None, f'a file was made in gone{k - 1}, which was removed'
    is_there = there(f'/forebay/r{k}/file')
    assert is_there is not False or words[0] > k, f'r{k} is not there'
    group = make(f'/forebay/group/{me}', k)
    assert group is None or k <= group <= words[0], f'group {group}, not {k}..{words[0]}'
    make(f'/forebay/gone{k}/{me}', None)
    if is_there: words[3 + me] = k
print(looks, found)
"#;

/// A file for `SHARED`.
fn words(world: &World) -> String {
    let path = world.path("words");
    std::fs::write(&path, [0; 48]).expect("written");
    path.to_string_lossy().into_owned()
}

fn end(words: &str) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().write(true).open(words).expect("it is there");
    file.write_all_at(&1u64.to_le_bytes(), 16).expect("written");
}

fn python(world: &World, host: &str, script: &str, words: &[&str]) -> String {
    let script = format!("{SHARED}{script}");
    world.ok(host, &[&["run", "--", "python3", "-c", &script], words].concat())
}

fn signal(pid: u32, name: &str) {
    assert!(
        Command::new("kill").args([name, &pid.to_string()]).status().expect("kill runs").success()
    );
}

/// Changes on host a and watchers on b and c, while `disturb` runs; afterwards all continue.
fn watch_changes(disturb: impl Fn(&World, &dyn Fn(u32, u32))) {
    let Some(world) = World::started(&[("FOREBAY_TIMEOUT", "4s")]) else { return };
    let words = words(&world);
    let change = |first: u32, count: u32| {
        let (first, count) = (first.to_string(), count.to_string());
        assert_eq!(python(&world, "a", CHANGER, &[&words, &first, &count]), "changed\n");
    };
    change(0, 1);
    // The watchers must see the change before the next one.
    thread::scope(|scope| {
        let watchers: Vec<_> = [("b", "0"), ("b", "1"), ("c", "2")]
            .into_iter()
            .map(|(host, me)| {
                let (world, words) = (&world, &words);
                scope.spawn(move || python(world, host, WATCHER, &[words, me]))
            })
            .collect();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            disturb(&world, &change);
        }));
        end(&words);
        for watcher in watchers {
            let printed = watcher.join().expect("nothing stale is seen");
            let (looks, found) = printed.trim().split_once(' ').expect("two numbers");
            println!("looks {looks}, found {found}");
            assert!(found.parse::<u64>().expect("a number") > 10, "too few checks: {printed}");
        }
        if let Err(why) = outcome {
            std::panic::resume_unwind(why);
        }
    });
    world.end();
}

#[test]
fn changes_are_seen_at_once_on_all_hosts() {
    watch_changes(|_, change| change(1, 150));
}

#[test]
fn a_stopped_daemon_delays_a_change_and_its_clients_see_nothing_stale() {
    watch_changes(|world, change| {
        change(1, 20);
        let pid = world.pid("b");
        signal(pid, "-STOP");
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| change(21, 2)));
        signal(pid, "-CONT");
        assert!(outcome.is_ok(), "a change waits too long for a stopped daemon");
        change(23, 20);
    });
}

#[test]
fn a_disconnected_host_delays_a_change_and_sees_nothing_stale() {
    watch_changes(|world, change| {
        change(1, 20);
        let hub = format!("{}hub", world.prefix);
        assert!(ip(&format!("-n {hub} link set vb down")));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| change(21, 2)));
        assert!(ip(&format!("-n {hub} link set vb up")));
        assert!(outcome.is_ok(), "a change waits too long for a disconnected host");
        change(23, 20);
    });
}

#[test]
fn restarted_daemons_show_nothing_stale() {
    watch_changes(|world, change| {
        change(1, 10);
        // The daemon that granted the leases.
        signal(world.pid("a"), "-KILL");
        world.start();
        change(11, 10);
        // The daemon that holds the leases.
        signal(world.pid("b"), "-KILL");
        world.start();
        change(21, 10);
    });
}

/// Creates files in directories by full paths and queries them. Arguments: directory, count.
const WORK: &str = r#"
import os, sys
d, count = sys.argv[1], int(sys.argv[2])
for n in range(count):
    os.close(os.open(f'{d}/f{n}', os.O_CREAT | os.O_WRONLY))
for n in range(count): os.stat(f'{d}/f{n}')
for n in range(count): os.unlink(f'{d}/f{n}')
"#;

#[test]
fn work_in_a_local_directory_sends_few_messages_wherever_the_root_is() {
    let Some(world) = World::started(&[]) else { return };
    let work = |directory: &str, count: &str| {
        let requests = || world.requests("b");
        let before = requests();
        world.ok("b", &["run", "--", "python3", "-c", WORK, directory, count]);
        requests() - before
    };
    // Entries of directories in the root are on the daemons in round-robin order.
    let requests: Vec<u64> = (0..4)
        .map(|n| {
            let directory = format!("/forebay/work{n}");
            world.shell("b", "mkdir $1", &directory);
            work(&directory, "10");
            work(&directory, "400")
        })
        .collect();
    println!("requests for 1200 calls: {requests:?}");
    let least = requests.iter().min().expect("four");
    assert!(*least < 120, "messages for a local directory: {requests:?}");
    world.end();
}
