#!/usr/bin/env bash
# A descriptor sent to another process is the same file there, or the sending is refused; it is never
# another file.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need python3
python3 - "$D/file" <<'END'
import errno, os, socket, sys
ours, theirs = socket.socketpair(socket.AF_UNIX)
fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
os.write(fd, b'hello')
child = os.fork()
if child == 0:
    ours.close()
    _, descriptors, _, _ = socket.recv_fds(theirs, 10, 3)
    os._exit(0 if not descriptors or os.pread(descriptors[-1], 5, 0) == b'hello' else 1)
theirs.close()
refused = 0
try:
    socket.send_fds(ours, [b'm'], [0, fd])
except OSError as error:
    refused = error.errno
ours.close()
assert refused in (0, errno.EOPNOTSUPP), refused
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0, 'another file came out'
# A descriptor of the kernel is sent as usual.
one, two = socket.socketpair(socket.AF_UNIX)
socket.send_fds(one, [b'm'], [os.open('/dev/zero', os.O_RDONLY)])
assert os.read(socket.recv_fds(two, 10, 1)[1][0], 3) == bytes(3)
END
