#!/usr/bin/env bash
# An open file is sent over a socket, by sendmsg and sendmmsg.
# preload-only: refused: Operation not supported
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

need python3
cd "$D"
echo "text" >file
python - <<'END'
import os, socket
ours, theirs = socket.socketpair()
with open("file") as file:
    socket.send_fds(ours, [b"x"], [file.fileno()])
received = socket.recv_fds(theirs, 1, 1)[1][0]
assert os.read(received, 9) == b"text\n"
END
