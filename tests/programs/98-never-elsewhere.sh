#!/usr/bin/env bash
# Programs that this library cannot serve, by their limits, their user or their namespace, are started in a directory of
# the file system: what they do by relative names happens there or fails. It never happens in a directory of the host.
# Programs that the library cannot serve never reach the host's files by a relative name.
. "${BASH_SOURCE[0]%/*}/lib.sh"

mkdir "$D/in" "$T/host"
chmod 777 "$D/in" "$T/host" && chmod 755 "$D" && chmod 711 "$T" "$T/.."
echo of-the-host >"$T/host/which"
echo of-the-case >"$D/in/which"
cd "$T/host"
# check NAME STATUS: what was written is in its place, or there is an error.
check() {
    equal "$(ls "$T/host")" which "in the host's directory, by $1"
    if [ "$2" = 0 ]; then
        equal "$(cat "$D/in/$1" 2>&1)" text "$1"
        equal "$(cat "$T/read")" of-the-case "read by $1"
    fi
    rm -f "$T/read" "$D/in/$1"
}
# attempt NAME COMMAND...: runs a shell that writes and reads by relative names in a child.
attempt() {
    local name=$1 status=0
    shift
    export name
    (cd "$D/in" && "$@" sh -c 'cat which; cp which copy; rm copy; mkdir d && rmdir d; echo text >$name') >"$T/read" 2>"$T/errors" || status=$?
    check "$name" $status
}
attempt plain env
equal "$(cd "$D/in" && cat which)" of-the-case
limited() {
    ulimit "$1" "$2"
    shift 2
    "$@"
}
attempt space limited -v 100000
attempt descriptors limited -n 8
if command -v unshare >/dev/null && unshare --pid --fork true 2>/dev/null; then attempt pids unshare --pid --fork; fi
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
    attempt user setpriv --reuid 65534 --regid 65534 --clear-groups
    attempt user-of-script setpriv --reuid 65534 --regid 65534 --clear-groups env -i name=user-of-script
fi
if command -v python3 >/dev/null; then
    (cd "$D/in" && python - <<'END'
import os, resource, subprocess
def limit():
    resource.setrlimit(resource.RLIMIT_AS, (100 << 20, 100 << 20))
# By fork and by vfork, with the directory of the parent and with another one.
os.mkdir("sub")
subprocess.run(["/bin/sh", "-c", "echo text >python"], preexec_fn=limit)
subprocess.run(["/bin/sh", "-c", "ulimit -v 100000; sh -c 'echo text >../python'"], cwd="sub")
subprocess.run(["/bin/sh", "-c", "ulimit -v 100000; sh -c 'echo text >python'"], env={})
os.rmdir("sub")
END
    ) 2>"$T/errors"
    equal "$(ls "$T/host")" which "in the host's directory, by Python"
fi
