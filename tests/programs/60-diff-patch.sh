#!/usr/bin/env bash
# diff -r, patch, patch -R, cmp; a tree turned into another by its difference.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need diff patch
make_tree "$D/old"
cp -a "$D/old" "$D/new"
cd "$D"
sed -i 's/entry/ENTRY/' new/many/entry-1*
seq 1000 >new/many/added
rm new/many/entry-2
rm -r old/a new/a
status=0; diff -ruN old new >change.diff || status=$?
equal $status 1
cp -a old work
patch -s -d work -p1 <change.diff
diff -r work new
patch -s -R -d work -p1 <change.diff
diff -r work old
patch -s -b -d work -p1 <change.diff
cmp work/many/entry-1.orig old/many/entry-1
equal "$(diff -rq old new | grep -c differ)" 111
equal "$(diff3 -m old/zero old/zero new/zero | wc -c)" 0
