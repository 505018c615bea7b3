#!/usr/bin/env bash
# cp -a keeps contents, modes, times and links, into the file system, within it and out of it.
. "${BASH_SOURCE[0]%/*}/lib.sh"

make_tree "$T/in"
cp -a "$T/in" "$D/one"
cp -a "$D/one" "$D/two"
cp -a "$D/two" "$T/out"
tree_of "$T/in" >"$T/expected"
for copy in "$D/one" "$D/two" "$T/out"; do
    tree_of "$copy" >"$T/got"
    diff "$T/expected" "$T/got" || fail "$copy differs"
done
