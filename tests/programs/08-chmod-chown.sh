#!/usr/bin/env bash
# chmod by number and by letters, -R, the umask; chown to oneself.
. "${BASH_SOURCE[0]%/*}/lib.sh"

umask 027
: >"$D/file"
mkdir "$D/dir"
equal "$(stat -c %a "$D/file") $(stat -c %a "$D/dir")" "640 750"
chmod 4711 "$D/file"
equal "$(stat -c %a "$D/file")" 4711
chmod u-s,go=r "$D/file"
equal "$(stat -c %A "$D/file")" "-rwxr--r--"
chmod +t "$D/dir"
equal "$(stat -c %a "$D/dir")" 1750
make_tree "$D/tree"
chmod -R u=rwX,go= "$D/tree"
equal "$(find "$D/tree" -type f ! -perm 600 ! -perm 700 | wc -l)" 0
equal "$(find "$D/tree" -type d ! -perm 700 | wc -l)" 0
chown -R "$(id -u):$(id -g)" "$D/tree"
printf '#!/bin/sh\necho ran "$@"\n' >"$D/script"
refuses "$D/script"
chmod +x "$D/script"
equal "$("$D/script" well)" "ran well"
