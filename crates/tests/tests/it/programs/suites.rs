//! Parts of public test suites, in a directory of an instance by the default way; all that concern
//! files are in `soak::suites`.

use crate::support::suites::{CPYTHON_KNOWN, STRESSORS_KNOWN, Suites};

#[test]
fn some_of_cpythons_regression_tests_pass_as_on_tmpfs() {
    let Some(suites) = Suites::new("cpython", &["--memory", "512MiB", "--ssd", "0"]) else {
        return;
    };
    let modules =
        ["test_posix", "test_shutil", "test_tempfile", "test_mmap", "test_fcntl", "test_stat"];
    suites.cpython(&modules, CPYTHON_KNOWN);
}

#[test]
fn some_stressors_find_nothing_that_they_do_not_on_tmpfs() {
    let Some(suites) = Suites::new("stressors", &["--memory", "512MiB", "--ssd", "0"]) else {
        return;
    };
    let names = ["chmod", "copy-file", "dup", "fcntl", "getdent", "lockf", "rename", "xattr"];
    suites.stressors(&names, &["--timeout", "1"], STRESSORS_KNOWN);
}
