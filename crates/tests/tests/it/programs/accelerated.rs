//! Preloaded programs on an instance that is mounted where they see it: the library accelerates, and
//! what it does not intercept reaches the same files through the kernel. The cases of
//! `tests/accelerated`.
//!
//! Needs `/dev/fuse`; without it the tests are skipped.

use crate::support::Instance;
use crate::support::cases;
use crate::support::mounted::has_fuse;

#[test]
fn what_is_not_intercepted_reaches_the_same_files_through_the_mount() {
    if !has_fuse() {
        return;
    }
    let instance = Instance::start_to_mount("accelerated", &["--memory", "512MiB", "--ssd", "0"]);
    let mut command = instance.program_by_default(&["bash"]);
    command.arg(cases::script()).arg("--cases").arg(cases::root().join("tests/accelerated"));
    cases::check_cases(command.arg(instance.prefix()));
}
