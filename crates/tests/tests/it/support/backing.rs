//! A backing directory with a tree in it, and an instance over it.

use super::{Instance, text};
use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use testkit::content;

/// All attributes of each name, without the size of directories, which depends on the file system.
pub(crate) const LIST: &str = "find . -mindepth 1 -type d -printf '%P %y %m %U %G %T@\\n' -o -mindepth 1 \
                    -printf '%P %y %m %U %G %s %T@ %l\\n' | LC_ALL=C sort";
/// Checksums of all files but the longest.
pub(crate) const SUMS: &str =
    "find . -type f -size -100M -print0 | LC_ALL=C sort -z | xargs -0 sha256sum";

/// A directory with a tree in it.
pub(crate) struct Backing {
    pub(crate) dir: tempfile::TempDir,
}

impl Backing {
    pub(crate) fn new() -> Backing {
        Backing { dir: tempfile::tempdir().expect("a directory") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn text(&self) -> String {
        self.dir.path().to_str().expect("a path of letters").to_owned()
    }

    pub(crate) fn file(&self, name: &str, seed: u64, length: u64) {
        fs::write(self.path(name), content(seed, 0, length)).expect("written");
    }

    /// All kinds of files: deep, long, many, linked, with odd names and modes.
    pub(crate) fn with_all_kinds() -> Backing {
        let backing = Backing::new();
        for directory in ["a/b/c/d/e/f", "many", "empty", "odd"] {
            fs::create_dir_all(backing.path(directory)).expect("made");
        }
        for (number, length) in [0, 1, 4095, 4096, 4097, 70_000, 5_000_000].into_iter().enumerate()
        {
            backing.file(&format!("a/{length}"), number as u64 + 1, length);
        }
        backing.file("a/b/c/d/e/f/deep", 20, 9_000_001);
        (0..1200).for_each(|number| backing.file(&format!("many/f{number}"), number, number % 97));
        backing.file(&format!("odd/{}", "n".repeat(255)), 30, 10);
        backing.file("odd/new\nline \\ and \u{fc}", 31, 10);
        backing.file("odd/private", 32, 10);
        let mode = |name: &str, mode| {
            fs::set_permissions(backing.path(name), fs::Permissions::from_mode(mode)).expect("set");
        };
        mode("odd/private", 0o600);
        mode("many", 0o2775);
        symlink("../a/4096", backing.path("odd/link")).expect("linked");
        symlink("/etc/hostname", backing.path("odd/out")).expect("linked");
        symlink("nowhere", backing.path("odd/dangling")).expect("linked");
        fs::hard_link(backing.path("a/4097"), backing.path("odd/second name")).expect("linked");
        let sparse = fs::File::create(backing.path("sparse")).expect("made");
        sparse.set_len(1 << 40).expect("long");
        shell(backing.dir.path(), "mkfifo odd/pipe && touch -d '2001-02-03 04:05:06.789' a/1");
        backing
    }
}

pub(crate) fn printed(output: Output, what: &str) -> String {
    assert!(output.status.success(), "{what}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

pub(crate) fn shell(dir: &Path, script: &str) -> String {
    let mut command = Command::new("bash");
    printed(command.args(["-ec", script]).current_dir(dir).output().expect("bash runs"), script)
}

pub(crate) fn start(name: &str, daemons: &str, backing: &str) -> Instance {
    let options = ["--local", daemons, "--memory", "96MiB", "--ssd", "64MiB", "--backing", backing];
    Instance::start(name, &options)
}

/// Replaces the bytes of a file in place, such that revalidation does not notice it: inode number,
/// size and modification time stay. A reader of the new bytes has read the backing store.
pub(crate) fn replace_unnoticed(path: &Path) {
    let file = fs::File::options().read(true).write(true).open(path).expect("opened");
    let modified = file.metadata().and_then(|it| it.modified()).expect("its time");
    let other: Vec<u8> = fs::read(path).expect("read").iter().map(|byte| !byte).collect();
    file.write_all_at(&other, 0).expect("written");
    file.set_modified(modified).expect("set back");
}

/// Runs a script in the root of the instance.
pub(crate) fn in_instance(instance: &Instance, script: &str) -> String {
    let script = format!("cd /forebay; {script}");
    printed(instance.program(&["bash", "-ec", &script]).output().expect("forebay runs"), &script)
}

/// Each line changes something and is carried out in the instance and in a copy of the tree.
pub(crate) const CHANGES: [&str; 16] = [
    "echo more >> a/4097; echo some > a/1; echo new > a/new",
    "printf x | dd of=a/70000 bs=1 seek=66000 conv=notrunc status=none",
    "printf x | dd of=a/4096 bs=1 seek=100000 conv=notrunc status=none",
    "truncate -s 3000000 a/5000000; truncate -s 6000000 a/5000000",
    "truncate -s 0 odd/private; truncate -s 20 odd/private",
    "fallocate -p -o 1000000 -l 2000000 a/b/c/d/e/f/deep",
    "fallocate -p -o 5000 -l 100 a/b/c/d/e/f/deep",
    "rm many/f7 many/f1*; rm -r empty; mkdir empty; echo here > empty/file",
    "mv a/b/c/d/e moved; mv moved/f/deep deep; rmdir a/b/c/d; mv many/f20 many/f21",
    "rm -r a/b; mkdir -p a/b/c; echo again > a/b/c/again",
    "ln a/4095 twice; rm a/4095; chmod 711 twice; ln -s twice odd/twice",
    "mv -T --exchange a many 2>/dev/null || { mv a x; mv many a; mv x many; }",
    "cp -a a copied; tar cf all.tar copied odd; rm -r copied; tar xf all.tar; rm all.tar",
    "sed -i s/1/2/ a/f9*",
    "python3 -c 'import os; os.setxattr(\"deep\", \"user.name\", b\"value\")'; touch -d 2002-02-02 deep",
    "head -c 3000000 /dev/zero | cat deep - > both; cat both >> deep; rm both sparse",
];
