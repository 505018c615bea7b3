//! Files of a mount by handles (`open_by_handle_at`), as an NFS server uses them: files that the
//! kernel has forgotten are found by their inode number; removed files and those of another
//! instance are not.
//!
//! Needs root and `/dev/fuse`; without them the test is skipped.

use crate::support::mounted::{Mounted, UringEnabled, has_fuse};
use crate::support::{Instance, text};
use std::path::Path;
use std::process::Command;

#[test]
fn a_handle_finds_its_file_and_no_other() {
    if !has_fuse() || !rustix::process::geteuid().is_root() {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/handles.py");
    let transports: &[&str] =
        if UringEnabled::is_available() { &["classic", "rings"] } else { &["classic"] };
    for transport in transports {
        let instance = Instance::start(&format!("handles-{transport}"), &["--memory", "64MiB"]);
        let again = Instance::start(&format!("again-{transport}"), &["--memory", "64MiB"]);
        let [one, two] = ["m", "n"].map(|name| Mounted::by(&instance, name, transport));
        let other = Mounted::by(&again, "m", transport);
        let places = [&one.at, &two.at, &other.at];
        let output = Command::new("python3").arg("-B").arg(&script).args(places).output();
        let output = output.expect("python3 runs");
        let expected = "file: of one\nwritten: by one\ndirectory: ['f'] d/e\nroot: ['d']\n\
            same number: True\nanother instance: ESTALE ESTALE\ninvented: ['ESTALE']\n\
            moved: by one\nremoved, and open: by one by one\nremoved: ESTALE ESTALE ESTALE\n";
        assert_eq!(text(&output.stdout), expected, "{transport}: {}", text(&output.stderr));
    }
}
