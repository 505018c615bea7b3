#!/usr/bin/env bash
# Programs that root's commands start as another user see the instance as file modes permit.
# A program that gives up the rights of root, and programs of other users.
# preload-only: refused: Permission denied
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

need setpriv
[ "$(id -u)" = 0 ] || { echo "not allowed: another user"; exit 77; }
cd "$D"
chmod 755 .
mkdir -m 1777 all
(umask 077; echo secret >secret)
as() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
as true 2>/dev/null || { echo "not allowed: another user"; exit 77; }
as sh -c 'echo text >all/file' || fail "a file of another user"
equal "$(stat -c '%u %g' all/file)" "65534 65534"
equal "$(as cat all/file)" text
refuses as cat secret
refuses as sh -c 'echo x >new'
refuses as chown 0 all/file
# An open file goes on, and so does a program that drops its rights.
exec 7<secret
equal "$(as cat <&7)" secret
exec 7<&-
python - <<'END'
import os
log = open("log", "w+")
log.write("one\n"); log.flush()
if os.fork() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    log.write("two\n"); log.flush()
    for path, flags in ("secret", os.O_RDONLY), ("new", os.O_WRONLY | os.O_CREAT):
        try:
            os.open(path, flags)
        except PermissionError:
            continue
        os._exit(1)
    with open("all/mine", "w") as mine:
        assert os.fstat(mine.fileno()).st_uid == 65534
    os._exit(0)
assert os.wait()[1] == 0
log.seek(0)
assert log.read() == "one\ntwo\n"
END
