#!/usr/bin/env bash
# cpio: copy-out, copy-in and pass-through, with links and times.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need cpio
make_tree "$T/tree"
tree_of "$T/tree" >"$T/expected"
cp -a "$T/tree" "$D/tree"
cd "$D"
find tree -depth -print0 | cpio --quiet -0 -o -H newc >all.cpio
mkdir out pass
(cd out && cpio --quiet -idm <../all.cpio)
tree_of out/tree | diff "$T/expected" -
find tree -depth -print0 | cpio --quiet -0 -pdm pass
tree_of pass/tree | diff "$T/expected" -
equal "$(cpio --quiet -t <all.cpio | wc -l)" "$(find tree | wc -l)"
