#!/usr/bin/env bash
# mv renames files and trees, replaces a file, and moves between file systems.
. "${BASH_SOURCE[0]%/*}/lib.sh"

make_tree "$T/in"
tree_of "$T/in" >"$T/expected"
mv "$T/in" "$D/moved"
mkdir "$D/below"
mv "$D/moved" "$D/below/again"
tree_of "$D/below/again" | diff "$T/expected" -
echo old >"$D/target"
echo new >"$D/source"
mv "$D/source" "$D/target"
equal "$(cat "$D/target")" new
refuses stat "$D/source"
refuses stat "$D/moved"
echo kept >"$D/first"
echo other >"$D/second"
mv -n "$D/first" "$D/second"
equal "$(cat "$D/second")" other "mv -n"
mv -b "$D/first" "$D/second"
equal "$(cat "$D/second~")" other "backup"
refuses mv "$D/below" "$D/below/again/inside"
mv "$D/below/again" "$T/out"
tree_of "$T/out" | diff "$T/expected" -
