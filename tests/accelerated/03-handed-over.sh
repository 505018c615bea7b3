#!/usr/bin/env bash
# Programs that cannot be preloaded go on with the open files that they inherit or receive, where the program that
# opened them stopped, and it goes on behind them.
# Programs that cannot be preloaded go on with the open files that they inherit or receive.
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

compile relay.c -static
relay=$T/program
cd "$D"
# One offset.
{ echo one; "$relay" say two three; echo four; "$relay" say five; } >out
equal "$(tr '\n' ' ' <out)" "one two three four five " "written in turns"
printf '%s\n' 1 2 3 4 >in
equal "$({ "$relay" line; read -r line; echo "b$line"; "$relay" line; cat; } <in | tr '\n' ' ')" "1 b2 3 4 " "read in turns"
{ echo one; "$relay" at ONE; echo two; } >out
equal "$(tr '\n' ' ' <out)" "ONE two " "written at the beginning"
# Appends.
echo first >log
{ "$relay" say a; echo b; echo c >>log; "$relay" say d; } >>log
equal "$(tr '\n' ' ' <log)" "first a b c d " "appended in turns"
# Files without a name, and with another one.
echo text >gone
exec 7<gone
rm gone
equal "$("$relay" line <&7)" text "removed before"
echo text >old
exec 7<old
mv old new
echo other >old
equal "$("$relay" line <&7)" text "renamed before"
exec 7<&-
# Both, and errors.
{ "$relay" say said && "$relay" line; } <in >both 2>&1
equal "$(tr '\n' ' ' <both)" "said 1 "
"$relay" no-such-word 2>errors || true
grep -q relay.c errors || fail "no message in a file"
# Through programs that start others, scripts, and with an empty environment.
{ env -i "$relay" say a; nice "$relay" say b; timeout 9 "$relay" say c; printf 'd\n' | xargs "$relay" say; } >out
equal "$(tr '\n' ' ' <out)" "a b c d "
printf '#!%s say\n' "$relay" >"$T/script" && chmod +x "$T/script"
{ "$T/script" x; echo y; } >out
equal "$(tail -n 1 out)" y
equal "$(head -n 1 out)" "$T/script"
# Programs that are themselves files here.
cp "$relay" here && cp /bin/echo echo
{ ./here say a; ./echo b; echo c; } >out
equal "$(tr '\n' ' ' <out)" "a b c "
# Limits with which the library cannot attach.
(ulimit -v 200000; { cat in; echo more; } >out; cp out copy)
equal "$(tail -n 1 copy)" more "little address space"
(ulimit -n 12; { cat in; echo few; } >out; cp out copy)
equal "$(tail -n 1 copy)" few "few descriptors"
if command -v python3 >/dev/null; then
    python3 - "$relay" <<'END'
import os, socket, subprocess, sys
relay = sys.argv[1]
for close in (False, True):                    # fork, and vfork
    with open("out", "w") as out:
        out.write("one\n"); out.flush()
        subprocess.run([relay, "say", "two"], stdout=out, close_fds=close, check=True)
        out.write("three\n")
    assert open("out").read() == "one\ntwo\nthree\n", open("out").read()
os.posix_spawn(relay, [relay, "say", "spawned"], {},
               file_actions=[(os.POSIX_SPAWN_OPEN, 1, "out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)])
assert os.wait()[1] == 0 and open("out").read() == "spawned\n"
# Over sockets, to a program that cannot be preloaded and to one that can.
with open("sent", "w+") as sent:
    sent.write("sent text"); sent.flush(); sent.seek(5)
    os.remove("sent")
    number = os.fstat(sent.fileno()).st_ino
    directory = os.open(".", os.O_RDONLY)
    ours, theirs = socket.socketpair()
    receiver = subprocess.Popen([relay, "receive"], stdin=theirs, stdout=subprocess.PIPE)
    socket.send_fds(ours, [b"x"], [sent.fileno(), directory, 0])
    got = receiver.communicate()[0].decode().splitlines()
    assert got[0] == f"{number} text", got
    assert got[1] == f"{os.fstat(directory).st_ino} EISDIR", got
    socket.send_fds(ours, [b"x"], [sent.fileno()])
    received = socket.recv_fds(theirs, 1, 1)[1][0]
    assert os.fstat(received).st_ino == number and os.pread(received, 9, 0) == b"sent text"
    os.pwrite(received, b"SENT", 0)
    assert os.pread(sent.fileno(), 9, 0) == b"SENT text"
# A program by its open file.
program = os.open("here", os.O_RDONLY)
if os.fork() == 0:
    os.dup2(os.open("out", os.O_WRONLY | os.O_TRUNC), 1)
    os.execve(program, ["here", "say", "by descriptor"], {})
assert os.wait()[1] == 0 and open("out").read() == "by descriptor\n"
END
fi
