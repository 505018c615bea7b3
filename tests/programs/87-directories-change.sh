#!/usr/bin/env bash
# python: processes that query files in a directory again and again see at once that it is renamed, replaced,
# removed or closed to them.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need python3
cat >"$T/program.py" <<'END'
import errno, os, random, sys
top = sys.argv[1]
seed = int.from_bytes(os.urandom(4), "big")
dice = random.Random(seed)
class Other:
    """A process that answers with the inode number of a path, or with the error of its open."""
    def __init__(self, uid=None):
        (requests, self.requests), (self.replies, replies) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.requests); os.close(self.replies)
            if uid is not None: os.seteuid(uid)
            for line in os.fdopen(requests):
                if line == "\n": os._exit(0)
                os.write(replies, (look(line[:-1]) + "\n").encode())
            os._exit(1)
        os.close(requests); os.close(replies)
        self.replies = os.fdopen(self.replies)
    def look(self, path):
        os.write(self.requests, (path + "\n").encode())
        return self.replies.readline()[:-1]
    def end(self):
        os.write(self.requests, b"\n"); os.close(self.requests)
        assert os.waitpid(self.pid, 0)[1] == 0
def look(path):
    try:
        name = str(os.stat(path).st_ino)
        os.close(os.open(path, os.O_RDONLY))
        return name
    except OSError as error:
        return errno.errorcode[error.errno]
def check(others, path, expected):
    for _ in range(2):
        for one in (look, *(other.look for other in others)):
            assert one(path) == expected, (seed, path, one(path), expected)
os.makedirs(top + "/a/b/c"); open(top + "/a/b/c/f", "w").close()
f = look(top + "/a/b/c/f")
others = [Other(), Other()]
check(others, top + "/a/b/c/f", f)
# Directories of the path are renamed, and renamed back.
os.rename(top + "/a/b", top + "/a/x")
check(others, top + "/a/b/c/f", "ENOENT"); check(others, top + "/a/x/c/f", f)
os.mkdir(top + "/a/b"); check(others, top + "/a/b/c/f", "ENOENT")
os.rmdir(top + "/a/b"); os.rename(top + "/a/x", top + "/a/b"); check(others, top + "/a/b/c/f", f)
# A link, a file and another directory replace a directory.
os.rename(top + "/a/b/c", top + "/a/d"); os.symlink("../d", top + "/a/b/c")
check(others, top + "/a/b/c/f", f)
os.remove(top + "/a/b/c"); open(top + "/a/b/c", "w").close()
check(others, top + "/a/b/c/f", "ENOTDIR")
os.remove(top + "/a/b/c"); os.mkdir(top + "/a/b/c"); open(top + "/a/b/c/f", "w").close()
g = look(top + "/a/b/c/f"); assert g != f
check(others, top + "/a/b/c/f", g); check(others, top + "/a/d/f", f)
os.remove(top + "/a/b/c/f"); check(others, top + "/a/b/c/f", "ENOENT")
os.rename(top + "/a/d", top + "/a/b/c"); check(others, top + "/a/b/c/f", f)
# Times and link count of a cached directory are current, by every name.
os.symlink(".", top + "/a/b/dot"); look(top + "/a/b/c"); look(top + "/a/b/dot")
for number in range(3):
    before = os.stat(top + "/a/b")
    os.mkdir(f"{top}/a/b/new{number}")
    now, again = os.stat(top + "/a/b/dot"), os.stat(top + "/a/b")
    assert now.st_nlink == again.st_nlink == before.st_nlink + 1, (now, before)
    assert now.st_mtime_ns == again.st_mtime_ns > before.st_mtime_ns, (now, before)
for number in range(3): os.rmdir(f"{top}/a/b/new{number}")
os.remove(top + "/a/b/dot")
# Relative to a descriptor of a directory that is renamed.
here = os.open(top + "/a", os.O_RDONLY)
assert str(os.stat("b/c/f", dir_fd=here).st_ino) == f
os.rename(top + "/a", top + "/z"); check(others, top + "/a/b/c/f", "ENOENT")
assert str(os.stat("b/c/f", dir_fd=here).st_ino) == f
os.rename(top + "/z", top + "/a"); os.close(here)
os.chmod(top, 0o755)
stranger = Other(uid=65534) if os.geteuid() == 0 else None
if stranger and stranger.look(top) == look(top):
    check([stranger], top + "/a/b/c/f", f)
    for name in ("a", "a/b", "a/b/c"):
        os.chmod(f"{top}/{name}", 0o700)
        assert stranger.look(top + "/a/b/c/f") == "EACCES", name
        check(others, top + "/a/b/c/f", f)
        os.chmod(f"{top}/{name}", 0o755)
        assert stranger.look(top + "/a/b/c/f") == f, name
    # A process that changes its user keeps no cached rights.
    os.chmod(top + "/a/b", 0o700)
    assert look(top + "/a/b/c/f") == f
    os.seteuid(65534); assert look(top + "/a/b/c/f") == "EACCES"
    os.seteuid(0); assert look(top + "/a/b/c/f") == f
    os.chmod(top + "/a/b", 0o755)
if stranger: stranger.end()
# All of these at random, many times: the program knows where each directory is.
places = {}
for number in range(12):
    os.mkdir(f"{top}/p{number}"); os.mkdir(f"{top}/p{number}/q"); open(f"{top}/p{number}/q/f", "w").close()
    places[number] = look(f"{top}/p{number}/q/f")
for _ in range(400):
    one, two = dice.randrange(12), dice.randrange(12)
    if places[one] and not places[two] and one != two:
        os.rename(f"{top}/p{one}/q", f"{top}/p{two}/q")
        places[two], places[one] = places[one], None
    elif places[one]:
        os.rename(f"{top}/p{one}", f"{top}/r"); check(others[:1], f"{top}/p{one}/q/f", "ENOENT")
        os.rename(f"{top}/r", f"{top}/p{one}")
    if dice.random() < 0.2 and places[two]:
        os.remove(f"{top}/p{two}/q/f"); os.rmdir(f"{top}/p{two}/q"); places[two] = None
        lost = next(number for number in places if not places[number])
        check(others[:1], f"{top}/p{lost}/q/f", "ENOENT")
        os.mkdir(f"{top}/p{lost}/q"); open(f"{top}/p{lost}/q/f", "w").close()
        places[lost] = look(f"{top}/p{lost}/q/f")
    for number in {one, two, dice.randrange(12)}:
        check(others[dice.randrange(2):][:1], f"{top}/p{number}/q/f", places[number] or "ENOENT")
for other in others: other.end()
END
python "$T/program.py" "$D"
