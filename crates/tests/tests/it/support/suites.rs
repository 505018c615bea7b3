//! Public test suites of others, run by the default way in a directory of an instance and, where
//! something fails there, on tmpfs: CPython's regression tests and the stressors of stress-ng.
//! A test that fails on both is not a fault of this file system.
//!
//! They come from Debian packages; without them, tests are skipped.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use super::mounted::has_fuse;
use super::{Instance, skip, text};

/// An instance that is mounted where its programs see it, and a directory of tmpfs beside it.
pub(crate) struct Suites {
    instance: Instance,
    tmpfs: tempfile::TempDir,
}

/// A test that may fail on an instance, and the reason.
pub(crate) type Known = (&'static str, &'static str);

/// Tests of CPython that ask for more than an instance promises (docs/semantics/limits.md).
pub(crate) const CPYTHON_KNOWN: &[Known] = &[("test_fcntl_64_bit", "F_NOTIFY is not offered")];

/// Stressors of the same kind.
pub(crate) const STRESSORS_KNOWN: &[Known] = &[
    ("dnotify", "F_NOTIFY is not offered"),
    ("inotify", "watches are not offered to preloaded programs"),
];

impl Suites {
    /// `None`: there is no `/dev/fuse`, or no tmpfs.
    pub(crate) fn new(name: &str, options: &[&str]) -> Option<Suites> {
        let tmpfs = tempfile::tempdir_in("/dev/shm");
        if tmpfs.is_err() {
            skip("/dev/shm is missing");
        }
        let tmpfs = tmpfs.ok().filter(|_| has_fuse())?;
        Some(Suites { instance: Instance::start_to_mount(name, options), tmpfs })
    }

    /// `words` after a directory that is created for them, which is the working directory and that of
    /// temporary files: on the instance.
    fn on_instance(&self, words: &[&str]) -> Output {
        let at = self.instance.prefix().join("suite");
        self.run(self.instance.program_by_default(&["sh"]), &at, words)
    }

    fn on_tmpfs(&self, words: &[&str]) -> Output {
        self.run(Command::new("sh"), &self.tmpfs.path().join("suite"), words)
    }

    fn run(&self, mut shell: Command, at: &Path, words: &[&str]) -> Output {
        let script = r#"mkdir -p "$TMPDIR" && cd "$TMPDIR" && exec "$@""#;
        shell.args(["-c", script, "suite"]).args(words).env("TMPDIR", at);
        shell.output().expect("a shell runs")
    }

    /// Runs CPython's regression tests of these modules.
    ///
    /// # Panics
    /// If a test fails on the instance only, and is not known to.
    pub(crate) fn cpython(&self, modules: &[&str], known: &[Known]) {
        // The system's own Python, which has the packaged tests.
        let python = "/usr/bin/python3";
        let has = Command::new(python).args(["-c", "import test.regrtest, test.test_os"]).output();
        if !has.is_ok_and(|output| output.status.success()) {
            skip("CPython's regression tests (libpython3.x-testsuite)");
            return;
        }
        // Processes of their own, so that a crash names its module. A test that hangs ends. VSOCK has
        // nothing to do with files, and its test hangs in some virtual machines.
        let options = ["-m", "test", "-j2", "--timeout", "1200", "-W", "-i", "*VSOCK*"];
        let fixed = [&[python], &options[..]].concat();
        let outcome = CpythonOutcome::of(&self.on_instance(&[&fixed[..], modules].concat()));
        println!("{}", outcome.printed);
        assert!(outcome.is_whole, "the tests do not end:\n{}", outcome.printed);
        let failed: Vec<&str> = outcome.modules.iter().map(String::as_str).collect();
        let mut failures = outcome.tests;
        if !failed.is_empty() {
            let there = CpythonOutcome::of(&self.on_tmpfs(&[&fixed[..], &failed].concat()));
            failures.retain(|test| !there.tests.contains(test));
        }
        failures.retain(|test| !known.iter().any(|(name, _)| test.contains(name)));
        assert!(failures.is_empty(), "not as on tmpfs: {failures:#?}\n{}", outcome.printed);
    }

    /// Runs stressors of stress-ng with their checks, each with a limit, for instance of time.
    ///
    /// # Panics
    /// If one fails on the instance only, and is not known to.
    pub(crate) fn stressors(&self, names: &[&str], limit: &[&str], known: &[Known]) {
        if !Command::new("stress-ng").arg("--version").output().is_ok_and(|it| it.status.success())
        {
            skip("stress-ng");
            return;
        }
        let mut faults = Vec::new();
        for name in names.iter().filter(|name| !known.iter().any(|(known, _)| known == *name)) {
            let stressor = format!("--{name}");
            // It neither ends nor says anything if it hangs.
            let words = ["timeout", "-k", "5", "300", "stress-ng", &stressor, "1", "--verify"];
            let words = [&words[..], &["--temp-path", "."], limit].concat();
            let here = self.on_instance(&words);
            let code = here.status.code();
            println!("{name}: {code:?}");
            // 3 and 4: it does not run here, for want of rights or support.
            if ![Some(0), Some(3), Some(4)].contains(&code)
                && self.on_tmpfs(&words).status.code() != code
            {
                let printed = text(&here.stdout) + &text(&here.stderr);
                faults.push(format!("{name}: {code:?}\n{printed}"));
            }
        }
        assert!(faults.is_empty(), "not as on tmpfs:\n{}", faults.join("\n"));
    }
}

/// A run of CPython's regression tests.
struct CpythonOutcome {
    printed: String,
    /// It came to its summary.
    is_whole: bool,
    /// Modules that failed.
    modules: BTreeSet<String>,
    /// Their failed tests; a module itself if it crashed or was ended.
    tests: BTreeSet<String>,
}

impl CpythonOutcome {
    fn of(output: &Output) -> CpythonOutcome {
        let printed = text(&output.stdout) + &text(&output.stderr);
        let mut modules = BTreeSet::new();
        let mut tests = BTreeSet::new();
        let mut lists_failed = false;
        for line in printed.lines() {
            if let Some(test) = line.strip_prefix("FAIL: ").or(line.strip_prefix("ERROR: ")) {
                tests.insert(test.to_owned());
            }
            if lists_failed && line.starts_with("    ") {
                modules.extend(line.split_whitespace().map(str::to_owned));
            } else {
                lists_failed = line.ends_with("test failed:") || line.ends_with("tests failed:");
            }
        }
        for module in &modules {
            // Tests are shown as `test_name (test.test_module.Class.test_name)`.
            if !tests.iter().any(|test| test.contains(&format!("test.{module}."))) {
                tests.insert(format!("{module} as a whole"));
            }
        }
        let is_whole = printed.contains("Tests result:");
        CpythonOutcome { printed, is_whole, modules, tests }
    }
}
