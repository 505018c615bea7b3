#!/usr/bin/env bash
# python: fcntl record locks and flock exclude between processes and are freed by death.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need python3
python - "$D" <<'END'
import errno, fcntl, os, signal, sys, time
path = sys.argv[1] + "/lock"
open(path, "w").write("0")
for take in (fcntl.lockf, fcntl.flock):
    open(path, "w").write("0")
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            for _ in range(200):
                with open(path, "r+") as f:
                    take(f, fcntl.LOCK_EX)
                    n = int(f.read()); f.seek(0); f.write(str(n + 1)); f.flush()
                    take(f, fcntl.LOCK_UN)
            os._exit(0)
        children.append(pid)
    assert all(os.waitpid(c, 0)[1] == 0 for c in children)
    assert open(path).read() == "800", (take, open(path).read())
    # A child holds the lock; it is refused here, and free once the child is killed.
    r, w = os.pipe(); pid = os.fork()
    if pid == 0:
        f = open(path, "r+"); take(f, fcntl.LOCK_EX); os.write(w, b"x"); time.sleep(60); os._exit(0)
    os.read(r, 1)
    with open(path, "r+") as f:
        try: take(f, fcntl.LOCK_EX | fcntl.LOCK_NB); raise AssertionError("two holders")
        except OSError as e: assert e.errno in (errno.EAGAIN, errno.EACCES), e
        os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)
        end = time.monotonic() + 60
        while True:
            try: take(f, fcntl.LOCK_EX | fcntl.LOCK_NB); break
            except OSError: assert time.monotonic() < end, "not freed by death"; time.sleep(0.01)
f = open(path, "r+"); fcntl.lockf(f, fcntl.LOCK_EX, 10, 5)
if os.fork() == 0:
    g = open(path, "r+"); fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 0); fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 15)
    try: fcntl.lockf(g, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 14); os._exit(1)
    except OSError: os._exit(0)
assert os.wait()[1] == 0, "ranges"
END
