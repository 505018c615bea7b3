#!/usr/bin/env bash
# rm -r empties a tree; rmdir refuses a full directory; names are free again.
. "${BASH_SOURCE[0]%/*}/lib.sh"

make_tree "$D/tree"
refuses rmdir "$D/tree/a"
refuses rm "$D/tree/a"
rm -r "$D/tree"
refuses stat "$D/tree"
make_tree "$D/tree"
rm -rf "$D/tree/many" "$D/absent"
rmdir "$D/tree/empty"
mkdir -p "$D/x/y/z"
rmdir -p "$D/x/y/z" 2>/dev/null || true
equal "$(find "$D" -maxdepth 1 -mindepth 1 -printf '%f\n')" tree
rm -r "$D/tree"
equal "$(find "$D" -mindepth 1 | wc -l)" 0
