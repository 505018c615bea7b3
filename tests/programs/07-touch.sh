#!/usr/bin/env bash
# touch -d, -r, -m, -a and -h set the times asked for, to the nanosecond.
. "${BASH_SOURCE[0]%/*}/lib.sh"

touch -d '2011-12-13 14:15:16.123456789 UTC' "$D/file"
equal "$(TZ=UTC stat -c %y "$D/file")" "2011-12-13 14:15:16.123456789 +0000"
touch -r "$D/file" "$D/other"
equal "$(stat -c %y "$D/other")" "$(stat -c %y "$D/file")"
touch -m -d '1999-01-01 UTC' "$D/file"
equal "$(stat -c %Y "$D/file")" 915148800
touch -d '1970-01-01 UTC' "$D/old"
equal "$(stat -c %Y "$D/old")" 0
touch -d '2100-01-01 UTC' "$D/far"
equal "$(stat -c %Y "$D/far")" 4102444800
ln -s file "$D/link"
touch -h -d '2005-05-05 UTC' "$D/link"
equal "$(stat -c %Y "$D/link")" 1115251200
equal "$(stat -c %Y "$D/file")" 915148800 "the target's time"
touch -c "$D/absent"
refuses stat "$D/absent"
touch -d '2003-03-03 UTC' "$D"
equal "$(stat -c %Y "$D")" 1046649600
