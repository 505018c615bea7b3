//! Turns at the backing store (`--writeback-order sets`): the files of one job are written together, not
//! mixed with those of another one that waits, and all of them arrive.

use super::ok;
use crate::support::backing::{Backing, in_instance, printed};
use crate::support::{Instance, text};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

/// Says in which order files get their names in two directories, until a line comes: directories.
const WATCH: &str = r#"
import ctypes, os, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
events = libc.inotify_init1(0)
dirs = {}
for path in sys.argv[1:]:
    dirs[libc.inotify_add_watch(events, path.encode(), 0x80)] = os.path.basename(path)
assert events >= 0 and all(number >= 0 for number in dirs)
print('ready', flush=True)
def watch():
    while True:
        seen, at = os.read(events, 1 << 16), 0
        while at < len(seen):
            number, _, _, length = struct.unpack_from('iIII', seen, at)
            at += 16 + length
            print(dirs[number], flush=True)
threading.Thread(target=watch, daemon=True).start()
sys.stdin.readline()
"#;

#[test]
fn the_files_of_one_job_are_written_together() {
    const FILES: usize = 20;
    let backing = Backing::new();
    for directory in ["x", "y"] {
        std::fs::create_dir(backing.path(directory)).expect("made");
    }
    let options = [
        "--memory",
        "96MiB",
        "--ssd",
        "0",
        "--backing",
        &backing.text(),
        "--writeback",
        "end",
        "--writeback-order",
        "sets",
    ];
    let instance = Instance::start("turns", &options);
    // By turns, so that they are found by turns.
    in_instance(
        &instance,
        &format!("for n in $(seq {FILES}); do for d in x y; do echo $d$n >$d/$n; done; done"),
    );
    let paths = ["x", "y"].map(|directory| backing.path(directory));
    let mut watch = Command::new("python3");
    let watch = watch.args(["-c", WATCH]).args(paths).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut watch = watch.spawn().expect("python runs");
    let mut lines =
        BufReader::new(watch.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("ready"));
    printed(instance.command("flush").output().expect("forebay runs"), "flush");
    let order: Vec<String> = lines.by_ref().take(2 * FILES).collect();
    watch.stdin.take().expect("a pipe").write_all(b"\n").expect("written");
    assert!(watch.wait().expect("it ends").success());
    let changes = order.windows(2).filter(|two| two[0] != two[1]).count();
    assert_eq!(order.len(), 2 * FILES, "{order:?}");
    // A round may end between two files of a job. By turns it would be one less than the files.
    assert!(changes <= 3, "{order:?}");
    for name in [format!("x/{FILES}"), "y/1".to_owned()] {
        let there = text(&std::fs::read(backing.path(&name)).expect("written back"));
        assert_eq!(there, format!("{}\n", name.replace('/', "")));
    }
    // A word that is none is refused in one line.
    let refused = instance.command("start").args(["--writeback-order", "none"]).output();
    let refused = refused.expect("forebay runs");
    assert!(!refused.status.success() && text(&refused.stderr).contains("writeback-order"));
    ok(&instance, &["status"]);
}
