#!/usr/bin/env bash
# du counts what was written; df and df -i show a file system with free space.
. "${BASH_SOURCE[0]%/*}/lib.sh"

mkdir "$D/sub"
bytes 1000000 >"$D/sub/a"
bytes 50000 >"$D/b"
equal "$(du -b "$D/sub/a" | cut -f1)" 1000000
equal "$(du --apparent-size -B1 "$D/b" | cut -f1)" 50000
used=$(du -k -s "$D" | cut -f1)
[ "$used" -ge 1025 ] && [ "$used" -le 4096 ] || fail "du -s prints $used KiB"
ln "$D/b" "$D/c"
equal "$(du -k -s "$D" | cut -f1)" "$used" "a hard link counts once"
read -r size available < <(df -B1 --output=size,avail "$D" | tail -1)
[ "$size" -gt 1050000 ] && [ "$available" -gt 0 ] || fail "df prints $size, $available"
df -i "$D" >/dev/null
df -T "$D" | tail -1 | grep . >/dev/null
equal "$(du -a "$D" | wc -l)" 4
