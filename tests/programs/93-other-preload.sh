#!/usr/bin/env bash
# Programs that are started with libraries of their own to be preloaded, by every way to say so, see the same
# files, and their libraries are loaded.
# Programs with an `LD_PRELOAD` of their own.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need gcc
cat >"$T/said.c" <<'END'
#include <unistd.h>
__attribute__((constructor)) static void start(void) { write(2, "loaded\n", 7); }
END
gcc -shared -fPIC -o "$T/said.so" "$T/said.c"
seen() {
    equal "$(cat "$D/in/$1" 2>&1)" text "$1"
    if [ -e "$T/host/$1" ]; then fail "$1 was made on the host"; fi
}
mkdir "$D/in" "$T/host"
cd "$T/host"
(cd "$D/in" && LD_PRELOAD=$T/said.so /bin/sh -c 'echo text >one') 2>"$T/one"
seen one
grep -q loaded "$T/one" || fail "the program's own library is not loaded"
(cd "$D/in" && LD_PRELOAD='' /bin/sh -c 'echo text >two') && seen two
(cd "$D/in" && export LD_PRELOAD="$T/said.so $T/said.so" && sh -c 'sh -c "echo text >three"') 2>/dev/null && seen three
(cd "$D/in" && LD_PRELOAD=$T/said.so${LD_PRELOAD:+:$LD_PRELOAD} sh -c 'echo text >four') 2>/dev/null && seen four
(cd "$D/in" && env -i sh -c 'echo text >five') && seen five
(cd "$D/in" && env -i LD_PRELOAD="$T/said.so" sh -c 'echo text >six') 2>/dev/null && seen six
(cd "$D/in" && env -u LD_PRELOAD sh -c 'echo text >seven') && seen seven
if command -v python3 >/dev/null; then
    python3 - "$D/in" "$T/said.so" <<'END'
import os, subprocess, sys
for name, variables in (("eight", {"LD_PRELOAD": sys.argv[2]}), ("nine", {})):
    subprocess.run(["/bin/sh", "-c", f"echo text >{name}"], cwd=sys.argv[1], env=variables,
                   check=True, stderr=subprocess.DEVNULL)
END
    seen eight
    seen nine
fi
# Nothing is written to the environment that a program did not ask for.
equal "$(cd "$D/in" && LD_PRELOAD=$T/said.so sh -c 'echo "$LD_PRELOAD"' 2>/dev/null | tr ': ' '\n' | tail -n 1)" "$T/said.so"
