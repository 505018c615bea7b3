"""COUNT processes wait for one lock, in a known order; two later ones wait for each other; some of the first
are killed or interrupted. Then the lock is released for the rest.

Prints the results, one word and number a line. Arguments: directory, COUNT, `fcntl` or `flock`, the number
of the system call in which a waiter sleeps.
"""
import errno
import fcntl
import os
import select
import signal
import sys
import time

TIMEOUT = 30
where, count, how, call = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]


class Interrupted(Exception):
    pass


def interrupted(*_):
    raise Interrupted


def lock(file, by=how):
    (fcntl.lockf if by == "fcntl" else fcntl.flock)(file, fcntl.LOCK_EX)


def opened(name):
    return open(os.path.join(where, name), "r+")


def child(do):
    pid = os.fork()
    if pid == 0:
        signal.alarm(4 * TIMEOUT)
        try:
            do()
        finally:
            os._exit(0)
    return pid


def waits(pid):
    """Returns when a process waits."""
    end = time.monotonic() + TIMEOUT
    while not open(f"/proc/{pid}/syscall").read().startswith(call + " "):
        if time.monotonic() > end:
            sys.exit(f"{pid} does not wait: " + open(f"/proc/{pid}/syscall").read())
        time.sleep(0.0005)


def words(pipe, expected):
    """The words of `expected` lines, or of those that came in time."""
    received = b""
    end = time.monotonic() + TIMEOUT
    while received.count(b"\n") < expected:
        if not select.select([pipe], [], [], max(0, end - time.monotonic()))[0]:
            break
        received += os.read(pipe, 4096)
    return received.decode().split()


for name in "ABC":
    open(os.path.join(where, name), "w").close()
held = opened("A")
lock(held)
out, into = os.pipe()


def waiter(number):
    signal.signal(signal.SIGUSR1, interrupted)
    file = opened("A")
    try:
        lock(file)
        os.write(into, b"%d\n" % number)
    except Interrupted:
        os.write(into, b"interrupted\n")


waiters = []
for number in range(count):
    waiters.append(child(lambda: waiter(number)))
    waits(waiters[-1])


def player(mine, other, send, receive):
    own, second = opened(mine), opened(other)
    lock(own, "fcntl")
    os.write(send, b"x")
    os.read(receive, 1)
    try:
        lock(second, "fcntl")
        os.write(into, b"got\n")
    except OSError as error:
        os.write(into, b"EDEADLK\n" if error.errno == errno.EDEADLK else b"%d\n" % error.errno)


first, second = os.pipe(), os.pipe()
players = [child(lambda: player("B", "C", first[1], second[0])),
           child(lambda: player("C", "B", second[1], first[0]))]
print("deadlock", *sorted(words(out, 2)))
for number in range(20):
    made = os.path.join(where, f"made{number}")
    open(made, "w").close()
    os.unlink(made)
killed = waiters[3::5]
for pid in killed:
    os.kill(pid, signal.SIGKILL)
for pid in waiters[4::5]:
    os.kill(pid, signal.SIGUSR1)
print("interrupted", words(out, len(waiters[4::5])).count("interrupted"))
ended = 0
end = time.monotonic() + TIMEOUT
while ended < len(killed) + len(waiters[4::5]) + 2 and time.monotonic() < end:
    ended += os.waitpid(-1, os.WNOHANG)[0] != 0
print("ended", ended)
(fcntl.lockf if how == "fcntl" else fcntl.flock)(held, fcntl.LOCK_UN)
left = [number for number in range(count) if number % 5 < 3]
got = [int(word) for word in words(out, len(left))]
print("got", len(got))
print("passed", max(abs(left.index(number) - position) for position, number in enumerate(got)))
for pid in waiters:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass
again = opened("A")
(fcntl.lockf if how == "fcntl" else fcntl.flock)(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("free")
