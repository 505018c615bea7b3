#!/usr/bin/env bash
# Programs whose environment was emptied on the way to them still see the files.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need python3 perl setsid setpriv
echo seen >"$D/f"
seen() { equal "$("$@" 2>&1 </dev/null)" seen "$*"; }
seen env -i /bin/cat "$D/f"
seen env -u LD_PRELOAD cat "$D/f"
seen python3 -c 'import subprocess, sys; subprocess.run(["/bin/cat", sys.argv[1]], env={})' "$D/f"
seen python3 -c 'import os, sys; os.posix_spawn("/bin/cat", ["cat", sys.argv[1]], {}); os.wait()' "$D/f"
seen perl -e 'delete $ENV{LD_PRELOAD}; %ENV = (); exec "/bin/cat", $ARGV[0]' "$D/f"
seen setsid -w nohup env -i sh -c "/bin/cat '$D/f'"
LD_PRELOAD='' seen sh -c "/bin/cat '$D/f'"
seen setpriv --no-new-privs cat "$D/f"
if [ "$(id -u)" = 0 ] && [ "$(su root -s /bin/sh -c 'echo well' 2>/dev/null)" = well ]; then
    seen su root -s /bin/sh -c "/bin/cat '$D/f'"
fi
