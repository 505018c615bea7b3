#!/usr/bin/env bash
# stat shows type, size, mode, links, owner and consistent times; statfs answers.
. "${BASH_SOURCE[0]%/*}/lib.sh"

before=$(date +%s)
bytes 12345 >"$D/file"
mkdir -m 700 "$D/dir"
ln -s file "$D/link"
equal "$(stat -c '%F %s %a %h' "$D/file")" "regular file 12345 $(printf %o $((0666 & ~$(umask)))) 1"
equal "$(stat -c '%F %a' "$D/dir")" "directory 700"
equal "$(stat -c '%F %s' "$D/link")" "symbolic link 4"
equal "$(stat -c '%u %g' "$D/file")" "$(id -u) $(id -g)"
after=$(date +%s)
for time in $(stat -c '%Y %Z' "$D/file" "$D/dir"); do
    [ "$time" -ge $((before - 1)) ] && [ "$time" -le $((after + 1)) ] || fail "time $time not in $before..$after"
done
equal "$(stat -c %d "$D/file")" "$(stat -c %d "$D/dir")" "device"
blocks=$(stat -c %b "$D/file")
[ "$blocks" -ge 1 ] || fail "no blocks"
mkdir "$D/dir/sub"
[ "$(stat -c %h "$D/dir")" -ge 1 ] || fail "link count of a directory"
[ "$(stat -f -c %b "$D")" -gt 0 ] || fail "statfs shows no blocks"
sleep 0.02
first=$(stat -c %y "$D/file")
echo x >>"$D/file"
[ "$(stat -c %y "$D/file")" != "$first" ] || fail "a write left the modification time"
