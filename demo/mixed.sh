#!/usr/bin/env bash
# A static busybox and programs of the C library on the same files at the same time.
#
#   mixed.sh STATIC OTHER COMMAND...    path for the static program, path for the others, command that runs these
#
# The static program unpacks sources, the others build them; a static and a dynamic program increment a number in
# one file under its locks; and both sides compute checksums of everything. Prints a checksum.
set -euo pipefail

static=$1/mixed other=$2/mixed
shift 2
busybox=$(command -v busybox)

"$busybox" mkdir "$static"
"$busybox" tar -xzf "$MATERIAL/source.tar.gz" -C "$static"
"$@" bash -c "cd '$other' && gcc -O1 -DHAVE_UNISTD_H -c */src/zlib/*.c && ar rcD libz.a *.o && rm *.o"

: >"$static/sum"
"$MATERIAL/count-static" "$static/sum" &
counter=$!
"$@" "$MATERIAL/count" "$other/sum"
wait $counter

sums="find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum"
# The same with applets of busybox.
applets=${sums//sha256sum/$busybox sha256sum}
applets=${applets//xargs/$busybox xargs}
applets=${applets//LC_ALL=C sort/LC_ALL=C $busybox sort}
seen=$(cd "$static" && "$busybox" sh -c "$busybox $applets")
same=$("$@" bash -c "cd '$other' && $sums")
[ "$seen" = "$same" ] || { echo "not the same: $seen, $same" >&2; exit 1; }
echo "$("$busybox" cat "$static/sum"), ${seen%% *}"
