//! Files of a mount by handles (`open_by_handle_at`), as an NFS server has them: those that the kernel
//! has
//! forgotten are found by their number, those that are gone and those of another instance are not.
//!
//! Needs root and `/dev/fuse`; where there is none the test says so and ends.

mod support;

use std::path::Path;
use std::process::Command;
use support::mounted::{Mounted, Offered, has_fuse};
use support::{Instance, text};

#[test]
fn a_handle_finds_its_file_and_no_other() {
    if !has_fuse() || !rustix::process::geteuid().is_root() {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/handles.py");
    let transports: &[&str] = if Offered::can_be() { &["classic", "rings"] } else { &["classic"] };
    for transport in transports {
        let instance = Instance::start(&format!("handles-{transport}"), &["--memory", "64MiB"]);
        let again = Instance::start(&format!("again-{transport}"), &["--memory", "64MiB"]);
        let [one, two] = ["m", "n"].map(|name| Mounted::by(&instance, name, transport));
        let other = Mounted::by(&again, "m", transport);
        let places = [&one.at, &two.at, &other.at];
        let output = Command::new("python3").arg("-B").arg(&script).args(places).output();
        let output = output.expect("python3 runs");
        let wanted = "file: of one\nwritten: by one\ndirectory: ['f'] d/e\nroot: ['d']\n\
            same number: True\nanother instance: ESTALE ESTALE\ninvented: ['ESTALE']\n\
            moved: by one\nremoved, and open: by one by one\nremoved: ESTALE ESTALE ESTALE\n";
        assert_eq!(text(&output.stdout), wanted, "{transport}: {}", text(&output.stderr));
    }
}
