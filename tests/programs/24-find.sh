#!/usr/bin/env bash
# find by -newer, -size, -type, -links, -perm, -name, -exec and -delete.
. "${BASH_SOURCE[0]%/*}/lib.sh"

make_tree "$D/t"
touch -d '2020-01-01' "$D/t/stamp"
cd "$D/t"
equal "$(find . -type f -size +64k -printf '%f\n' | sort | tr '\n' ' ')" "file-300000 file-65537 "
equal "$(find . -type f ! -newer stamp -printf '%f\n' | sort | tr '\n' ' ')" "file-4096 stamp zero "
equal "$(find . -type f -newer stamp | wc -l)" 207
equal "$(find . -links 2 -type f | wc -l)" 2
equal "$(find . -samefile a/b/hard | wc -l)" 2
equal "$(find . -type l | wc -l)" 2
equal "$(find -L . -type l 2>/dev/null | wc -l)" 1
equal "$(find . -empty -type d -printf '%f\n' | sort | tr '\n' ' ')" "c empty "
equal "$(find many -name 'entry-1?' -exec cat {} + | sort | head -1)" "entry 10"
equal "$(find many -name 'entry-9*' -exec grep -l 'y 9$' {} \;)" many/entry-9
find many -name 'entry-1*' -delete
equal "$(find many -type f | wc -l)" 89
equal "$(find . -depth -name b -prune -o -perm 600 -print)" ./a/file-1
