#!/usr/bin/env bash
# install with modes and directories; mktemp makes distinct files and directories.
. "${BASH_SOURCE[0]%/*}/lib.sh"

bytes 5000 >"$T/file"
install -D -m 640 "$T/file" "$D/deep/er/file"
cmp "$T/file" "$D/deep/er/file"
equal "$(stat -c %a "$D/deep/er/file")" 640
install -d -m 711 "$D/new/dir"
equal "$(stat -c %a "$D/new/dir")" 711
install -p -b -m 755 "$T/file" "$D/deep/er/file"
equal "$(stat -c %a "$D/deep/er/file")" 755
cmp "$D/deep/er/file~" "$T/file"
for _ in 1 2 3 4 5 6 7 8; do mktemp -p "$D" name-XXXX; done >"$T/names"
equal "$(sort -u "$T/names" | wc -l)" 8
equal "$(stat -c %a "$(head -1 "$T/names")")" 600
directory=$(mktemp -d -p "$D")
equal "$(stat -c '%F %a' "$directory")" "directory 700"
TMPDIR=$D mktemp >/dev/null
equal "$(find "$D" -maxdepth 1 -type f | wc -l)" 9
