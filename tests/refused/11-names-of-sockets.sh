#!/usr/bin/env bash
# Sockets and pipes with names in the file system: bound and found by absolute and relative names, by every call that
# takes a name, and reported by the names that programs gave. Programs that cannot be preloaded meet them.
# preload-only: refused: getsockname:
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

need python3
cd "$D"
python - "$D" <<'END'
import array, errno, os, socket, stat, sys, threading
root = sys.argv[1]
def fails(number, call, *words):
    try:
        call(*words)
    except OSError as error:
        assert error.errno == number, (call, words, error)
        return
    raise AssertionError(("succeeded", call, words))
UNIX, STREAM, DGRAM, PACKET = socket.AF_UNIX, socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET
os.makedirs("a/b")
for kind in STREAM, PACKET:
    for name, other in ("listens", f"{root}/listens"), (f"{root}/a/absolute", "a/absolute"), ("a/b/../up", "a/up"):
        server = socket.socket(UNIX, kind)
        server.bind(name)
        assert server.getsockname() == name, f"getsockname: {server.getsockname()!r}, bound to {name!r}"
        assert stat.S_ISSOCK(os.lstat(name).st_mode)
        client = socket.socket(UNIX, kind)
        fails(errno.ECONNREFUSED, client.connect, name)
        server.listen()
        client.connect(other)
        assert client.getpeername() == name, client.getpeername()
        assert client.getsockname() == ""
        there, address = server.accept()
        client.sendall(b"to and fro")
        assert there.recv(99) == b"to and fro"
        fails(errno.EADDRINUSE, socket.socket(UNIX, kind).bind, other)
        with open("/proc/net/unix") as shown:
            assert any(line.rstrip("\n").endswith(f" {name}") for line in shown), name
        moved = name + "-moved"
        os.rename(name, moved)
        fails(errno.ENOENT, socket.socket(UNIX, kind).connect, name)
        socket.socket(UNIX, kind).connect(moved)
        os.remove(moved)
        fails(errno.ENOENT, socket.socket(UNIX, kind).connect, moved)
        fails(errno.ENXIO, lambda: os.open(other, os.O_RDONLY)) if os.path.exists(other) else None
# Messages with the name of the receiver, and of the sender.
one, two = socket.socket(UNIX, DGRAM), socket.socket(UNIX, DGRAM)
one.bind("one")
two.bind(f"{root}/two")
assert two.sendto(b"by sendto", "one") == 9
assert one.recvfrom(99) == (b"by sendto", f"{root}/two")
assert one.sendmsg([b"by ", b"sendmsg"], [], 0, "two") == 10
assert two.recvmsg(99)[0::3] == (b"by sendmsg", "one")
two.connect("one")
assert two.getpeername() == "one"
two.send(b"connected")
assert one.recv(99) == b"connected"
fails(errno.ENOENT, one.sendto, b"x", "nobody")
fails(errno.EPROTOTYPE, socket.socket(UNIX, STREAM).connect, "one")
# An open file in a message with a name.
with open("sent", "w+") as sent:
    sent.write("text")
    sent.flush()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sent.fileno()]))]
    two.sendmsg([b"x"], rights, 0, f"{root}/one")
    _, [(_, _, data)], _, _ = one.recvmsg(9, socket.CMSG_SPACE(4))
    assert os.pread(array.array("i", data)[0], 9, 0) == b"text"
# From other directories, by links, and without rights.
os.chdir("a/b")
fails(errno.ENOENT, two.sendto, b"x", "one")
assert two.sendto(b"up", "../../one") == 2 and one.recv(9) == b"up"
os.symlink("../../one", "link")
assert two.sendto(b"link", "link") == 4 and one.recv(9) == b"link"
fails(errno.EADDRINUSE, socket.socket(UNIX, DGRAM).bind, "link")
os.chdir(root)
open("file", "w").close()
fails(errno.ECONNREFUSED, socket.socket(UNIX, STREAM).connect, "file")
fails(errno.ENOTDIR, socket.socket(UNIX, STREAM).bind, "file/x")
fails(errno.ENOENT, socket.socket(UNIX, STREAM).bind, "missing/x")
fails(errno.EADDRINUSE, socket.socket(UNIX, STREAM).bind, "a")
fails(errno.ENXIO, os.open, "one", os.O_RDONLY)
before = os.umask(0o077)
limited = socket.socket(UNIX, STREAM)
limited.bind("limited")
os.umask(before)
assert stat.S_IMODE(os.stat("limited").st_mode) == 0o700
# Names without a file are not touched.
abstract = socket.socket(UNIX, DGRAM)
abstract.bind(f"\0{os.getpid()}-case")
assert two.sendto(b"abstract", abstract.getsockname()) == 8 and abstract.recv(9) == b"abstract"
END
# Programs that cannot be preloaded meet the others at pipes and sockets.
compile relay.c -static
mkfifo pipe
cat pipe >from-static &
"$T/program" say through >pipe
wait $!
equal "$(cat from-static)" through "from a static program"
echo "to the static one" >pipe &
equal "$("$T/program" line <pipe)" "to the static one"
wait
