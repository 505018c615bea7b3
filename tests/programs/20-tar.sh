#!/usr/bin/env bash
# tar packs and unpacks a tree with links, times and modes; append, extract one, compare.
. "${BASH_SOURCE[0]%/*}/lib.sh"

make_tree "$T/tree"
tree_of "$T/tree" >"$T/expected"
tar -C "$T" -cf "$D/one.tar" tree
tar -C "$D" -xpf "$D/one.tar"
tree_of "$D/tree" | diff "$T/expected" -
tar -C "$D" -czf "$D/two.tgz" tree
mkdir "$T/out"
tar -C "$T/out" -xpzf "$D/two.tgz"
tree_of "$T/out/tree" | diff "$T/expected" -
tar -C "$D" -df "$D/one.tar"
tar -C "$D" -rf "$D/one.tar" two.tgz
tar -xOf "$D/one.tar" two.tgz | cmp - "$D/two.tgz"
tar -tf "$D/one.tar" >"$T/list"
grep -q '^tree/a/b/soft' "$T/list"
tar -C "$D" --remove-files -cf "$T/last.tar" tree
refuses stat "$D/tree"
tar -C "$D" --sparse -cf "$D/sparse.tar" one.tar
mkdir "$D/again"
tar -C "$D/again" -xf "$D/sparse.tar"
cmp "$D/again/one.tar" "$D/one.tar"
