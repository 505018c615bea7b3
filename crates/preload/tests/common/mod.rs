//! Helpers of the tests of this directory: the library's path, scratch directories, C programs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The shared library that this test run built.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().expect("path of the test");
    let path = test.parent().expect("deps").join("libpreload.so");
    assert!(path.exists(), "no library path={}", path.display());
    path
}

/// A directory that is removed on drop.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("scratch directory");
        Self(path)
    }

    #[allow(dead_code, reason = "as below")]
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[allow(dead_code, reason = "each test program compiles this module and not all use C")]
/// Compiles `tests/<name>.c`.
pub(crate) fn compile(name: &str, into: &Path) -> PathBuf {
    compile_with(name, into, &[])
}

/// As `compile`, with more options.
#[allow(dead_code, reason = "as above")]
pub(crate) fn compile_with(name: &str, into: &Path, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(format!("{name}.c"));
    let program = into.join(name);
    let done = Command::new("cc")
        .args(["-O2", "-pthread", "-o"])
        .args([&program, &source])
        .args(options)
        .status()
        .expect("cc");
    assert!(done.success(), "cc source={}", source.display());
    program
}
