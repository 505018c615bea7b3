//! An instance as a mount: programs of all kinds work on it, preloaded programs see the same files
//! at the same time, a killed mount leaves nothing, and calls end in bounded time while a daemon is
//! gone.
//!
//! Each test runs with both request transports: `rings` needs a kernel that offers FUSE over
//! io_uring, or root to enable it. Needs `/dev/fuse`; without it the tests are skipped.

use crate::support::cases::run_cases;
use crate::support::mounted::{Mounted, UringEnabled, has_fuse, umount_idle};
use crate::support::{Instance, in_time, kill, text, wait_for};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes each of these functions a test over `/dev/fuse` and another over io_uring.
macro_rules! by_both {
    ($($name:ident),+ $(,)?) => {
        mod classic {
            $(#[test]
            fn $name() {
                if super::has_fuse() {
                    super::$name("classic");
                }
            })+
        }

        mod rings {
            $(#[test]
            fn $name() {
                if super::has_fuse() && super::UringEnabled::is_available() {
                    super::$name("rings");
                }
            })+
        }
    };
}

by_both!(
    programs_work_on_a_mount,
    a_mount_and_preloaded_programs_see_the_same_files,
    a_mount_sees_at_once_that_a_link_was_replaced,
    locks_hold_between_mounts_and_end_with_a_killed_mount,
    more_requests_wait_for_a_lock_than_there_are_threads,
    calls_end_in_bounded_time_while_the_daemon_is_gone_and_succeed_after,
    a_lock_is_free_once_its_file_is_closed,
    files_are_created_without_a_request_to_the_daemon,
);

/// Output of a preloaded program.
fn seen(instance: &Instance, command: &str) -> String {
    let output = instance.program(&["sh", "-c", command]).output().expect("forebay runs");
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

fn programs_work_on_a_mount(transport: &str) {
    let instance = Instance::start(&format!("cases-{transport}"), &["--memory", "2GiB"]);
    let mounted = Mounted::by(&instance, "m", transport);
    // Each case runs preloaded in every run; on mounts, a tenth of them by each transport unless the
    // run is long.
    let tenth = if transport == "classic" { "?0-*" } else { "?5-*" };
    let sample: &[&str] = if testkit::is_long() { &[] } else { &["--only", tenth] };
    run_cases(|command| command.args(sample).arg(&mounted.at));
}

fn a_mount_and_preloaded_programs_see_the_same_files(transport: &str) {
    let instance =
        Instance::start(&format!("same-{transport}"), &["--local", "2", "--memory", "64MiB"]);
    let mounted = Mounted::by(&instance, "m", transport);
    let other = Mounted::by(&instance, "n", transport);
    std::fs::write(mounted.path("a"), "by the mount").expect("written");
    assert_eq!(seen(&instance, "cat /forebay/a"), "by the mount");
    assert_eq!(std::fs::read_to_string(other.path("a")).expect("read"), "by the mount");
    assert_eq!(
        seen(&instance, "printf longer-than-before >/forebay/a; mv /forebay/a /forebay/b"),
        ""
    );
    assert!(!mounted.path("a").exists(), "the old name is gone at once");
    assert_eq!(std::fs::read_to_string(mounted.path("b")).expect("read"), "longer-than-before");
    // Another program extends an open file, and the new part is read.
    let mut open = std::fs::File::open(mounted.path("b")).expect("open");
    assert_eq!(seen(&instance, "printf more >>/forebay/b"), "");
    assert_eq!(open.metadata().expect("stat").len(), 22);
    open.seek(SeekFrom::Start(18)).expect("sought");
    let mut more = String::new();
    open.read_to_string(&mut more).expect("read");
    assert_eq!(more, "more");
    // A file without a name lives while it is open.
    let mut gone = std::fs::File::options()
        .create_new(true)
        .read(true)
        .write(true)
        .open(mounted.path("gone"))
        .expect("made");
    assert_eq!(seen(&instance, "rm /forebay/gone; ls /forebay"), "b\n");
    gone.write_all(b"still here").expect("written");
    gone.rewind().expect("rewound");
    let mut held = String::new();
    gone.read_to_string(&mut held).expect("read");
    assert_eq!((&*held, gone.metadata().expect("stat").nlink()), ("still here", 0));
}

/// A file and its second name may be on two daemons, and so may the file that replaces either.
fn a_mount_sees_at_once_that_a_link_was_replaced(transport: &str) {
    let instance = Instance::start(&format!("links-{transport}"), &["--local", "2"]);
    let mounted = Mounted::by(&instance, "m", transport);
    let directories = ["a", "b", "c"].map(|name| mounted.path(name));
    directories.iter().for_each(|path| std::fs::create_dir(path).expect("made"));
    for from in &directories {
        for to in &directories {
            let (file, link, other) = (from.join("file"), to.join("link"), from.join("other"));
            std::fs::write(&file, "x").expect("written");
            std::fs::write(&other, "y").expect("written");
            std::fs::hard_link(&file, &link).expect("linked");
            let links = || std::fs::metadata(&file).expect("there").nlink();
            assert_eq!(links(), 2);
            let seen_at = |path: &Path| {
                let backing = path.strip_prefix(&mounted.at).expect("inside it");
                Path::new("/forebay").join(backing).to_string_lossy().into_owned()
            };
            let moved = format!("mv -T {} {}", seen_at(&other), seen_at(&link));
            assert_eq!(seen(&instance, &moved), "");
            assert_eq!(links(), 1, "{moved}");
            std::fs::remove_file(&file).and_then(|()| std::fs::remove_file(&link)).expect("gone");
        }
    }
}

fn locks_hold_between_mounts_and_end_with_a_killed_mount(transport: &str) {
    let instance = Instance::start(&format!("locks-{transport}"), &["--memory", "64MiB"]);
    let other = Mounted::by(&instance, "n", transport);
    let mounted = Mounted::by(&instance, "m", transport);
    std::fs::write(mounted.path("f"), "x").expect("written");
    let open =
        |path: PathBuf| std::fs::File::options().read(true).write(true).open(path).expect("open");
    let held = open(mounted.path("f"));
    held.try_lock().expect("free");
    let locked = "python3 -c 'import fcntl
f = open(\"/forebay/f\", \"r+\")
try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print(\"free\")
except BlockingIOError: print(\"locked\")'";
    assert_eq!(seen(&instance, locked), "locked\n");
    let waiting = open(other.path("f"));
    assert!(waiting.try_lock().is_err(), "another mount holds it");
    // The waiter gets the lock when the mount of the holder, which also has files open, is killed.
    let waiter = std::thread::spawn(move || waiting.lock().map(|()| waiting));
    std::fs::remove_file(other.path("f")).expect("removed");
    kill(mounted.pid);
    let waiting = waiter.join().expect("no panic").expect("locked");
    assert!(waiting.as_raw_fd() >= 0);
    drop(held);
    let files = std::fs::read_dir(&other.at).expect("listed").count();
    assert_eq!(files, 0);
    drop(waiting);
    wait_for("the space of the removed file", || instance.used() == 0);
}

fn more_requests_wait_for_a_lock_than_there_are_threads(transport: &str) {
    const WAITERS: usize = 24;
    let instance = Instance::start(&format!("waiters-{transport}"), &["--memory", "64MiB"]);
    let mounted = Mounted::by(&instance, "m", transport);
    let held = std::fs::File::create(mounted.path("f")).expect("made");
    held.lock().expect("free");
    let (sender, receiver) = std::sync::mpsc::channel();
    let waiters: Vec<_> = (0..WAITERS)
        .map(|_| {
            let (path, sender) = (mounted.path("f"), sender.clone());
            std::thread::spawn(move || {
                sender
                    .send(std::fs::read_link("/proc/thread-self").expect("a link"))
                    .expect("heard");
                let own = std::fs::File::options().write(true).open(path).expect("open");
                own.lock().expect("locked");
            })
        })
        .collect();
    for thread in receiver.iter().take(WAITERS) {
        // The number of the system call in which the thread sleeps.
        let call = Path::new("/proc").join(thread).join("syscall");
        let flock = format!("{} ", libc::SYS_flock);
        wait_for("a thread to wait for the lock", || {
            std::fs::read_to_string(&call).is_ok_and(|call| call.starts_with(&flock))
        });
    }
    for number in 0..100 {
        let path = mounted.path(&number.to_string());
        std::fs::write(&path, "served").expect("written");
        std::fs::remove_file(path).expect("removed");
    }
    drop(held);
    for waiter in waiters {
        waiter.join().expect("no panic");
    }
    // The server may take longer to end: another mount namespace of this host may have a copy
    // (`ends`).
    assert!(umount_idle(&instance, &mounted.at).status.success(), "no program uses it");
}

fn calls_end_in_bounded_time_while_the_daemon_is_gone_and_succeed_after(transport: &str) {
    let instance =
        Instance::start(&format!("gone-{transport}"), &["--memory", "64MiB", "--timeout", "2s"]);
    let mounted = Mounted::by(&instance, "m", transport);
    let mut held = std::fs::File::options()
        .create_new(true)
        .read(true)
        .write(true)
        .open(mounted.path("held"))
        .expect("made");
    held.write_all(&vec![b'a'; 3_000_000]).expect("written");
    let daemon = instance.daemon(0);
    daemon.kill();
    daemon.wait();
    let [made, listed] = in_time("a mount without a daemon", || {
        let made = std::fs::write(mounted.path("new"), "x");
        let listed = std::fs::read_dir(&mounted.at).and_then(|mut all| all.next().transpose());
        [made.map(drop), listed.map(drop)]
    });
    for errno in [made.expect_err("no daemon"), listed.expect_err("no daemon")] {
        assert_eq!(errno.raw_os_error(), Some(5), "{errno}");
    }
    // The short time limit of the instance also holds for its start, which a busy machine may exceed.
    wait_for("the daemon", || instance.try_start().status.success());
    wait_for("the mount to reconnect", || std::fs::write(mounted.path("new"), "x").is_ok());
    held.rewind().expect("rewound");
    let mut all = Vec::new();
    held.read_to_end(&mut all).expect("read");
    assert!(all.len() == 3_000_000 && all.iter().all(|&byte| byte == b'a'));
}

fn a_lock_is_free_once_its_file_is_closed(transport: &str) {
    let instance = Instance::start(&format!("closed-{transport}"), &["--memory", "64MiB"]);
    let mounted = Mounted::by(&instance, "m", transport);
    let at = mounted.path("file");
    std::fs::write(&at, "x").expect("written");
    // In a process of its own: other tests of this process may be between fork and exec and hold
    // the files open.
    let rounds = "use Fcntl ':flock';
        for my $round (1 .. 3000) {
            open(my $one, '+<', $ARGV[0]) or die; open(my $two, '+<', $ARGV[0]) or die;
            flock($one, LOCK_EX | LOCK_NB) or die \"round $round: it is not free\";
            flock($two, LOCK_EX | LOCK_NB) and die \"round $round: two have it\";
        }";
    let ends = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Others keep the serving threads busy, so that requests overtake each other.
        let is_over = &ends;
        for number in 0..4 {
            let other = mounted.path(&format!("other{number}"));
            scope.spawn(move || {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    std::fs::write(&other, [0; 4096]).expect("written");
                }
            });
        }
        let output = Command::new("perl").args(["-e", rounds]).arg(&at).output();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        let output = output.expect("perl runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
    });
}

fn files_are_created_without_a_request_to_the_daemon(transport: &str) {
    const FILES: u64 = 300;
    let instance = Instance::start(&format!("made-{transport}"), &["--memory", "64MiB"]);
    let mounted = Mounted::by(&instance, "m", transport);
    let requests = || {
        let status = instance.status();
        status["daemons"][0]["state"]["requests"].as_u64().expect("a number")
    };
    let each = |what: &dyn Fn(&Path)| {
        let before = requests();
        (0..FILES).for_each(|number| what(&mounted.path(&format!("f{number}"))));
        requests() - before
    };
    let made = each(&|at| {
        let file = std::fs::File::create_new(at).expect("made");
        assert_eq!(file.metadata().expect("stat").len(), 0);
        assert_eq!(at.metadata().expect("stat").nlink(), 1);
    });
    let removed = each(&|at| std::fs::remove_file(at).expect("removed"));
    // A few requests are sent where a daemon was about to change something.
    assert!(made < FILES / 2 && removed < FILES / 2, "{made} and {removed} for {FILES} files");
}

#[test]
fn set_id_bits_go_when_an_ordinary_user_writes() {
    if !has_fuse() || !rustix::process::geteuid().is_root() {
        return;
    }
    let instance = Instance::start("bits", &["--memory", "64MiB"]);
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(instance.dir.path(), open).expect("chmod");
    let mounted = Mounted::new(&instance, "m");
    let changes = [
        ": >$0",
        "echo x >$0",
        "echo x >>$0",
        "truncate -s 3 $0",
        "echo x 1<>$0",
        "fallocate -l 10000 $0",
    ];
    for change in changes {
        let file = mounted.path("f");
        let made = "echo hello >$0 && chown 65534:0 $0 && chmod 6755 $0 && stat -c %a $0 &&
            setpriv --reuid 65534 --regid 65534 --clear-groups sh -c \"$1\" $0 && stat -c %a $0";
        let output = Command::new("sh").args(["-c", made]).arg(&file).arg(change).output();
        let output = output.expect("sh runs");
        let printed = text(&output.stdout);
        assert_eq!(printed, "6755\n755\n", "{change}: {}", text(&output.stderr));
        assert_eq!(seen(&instance, "stat -c %a /forebay/f; rm /forebay/f"), "755\n", "{change}");
    }
}
