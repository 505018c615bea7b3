#!/usr/bin/env bash
# zip and unzip of a tree; adding to and deleting from an archive.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need zip unzip
make_tree "$T/tree"
rm "$T/tree/a/dangling"
cp -a "$T/tree" "$D/tree"
(cd "$D" && zip -q -r -y tree.zip tree && unzip -q -t tree.zip)
mkdir "$D/out"
unzip -q "$D/tree.zip" -d "$D/out"
sums() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum); }
sums "$T/tree" >"$T/expected"
sums "$D/out/tree" | diff "$T/expected" -
echo more >"$D/extra"
(cd "$D" && zip -q tree.zip extra && zip -q -d tree.zip 'tree/many/*')
equal "$(unzip -p "$D/tree.zip" extra)" more
equal "$(unzip -l "$D/tree.zip" | grep -c entry-)" 0
