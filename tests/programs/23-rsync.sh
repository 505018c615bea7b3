#!/usr/bin/env bash
# rsync -a copies a tree; the second run transfers nothing; changes and deletions follow.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need rsync
make_tree "$T/tree"
tree_of "$T/tree" >"$T/expected"
rsync -aH "$T/tree/" "$D/copy/"
tree_of "$D/copy" | diff "$T/expected" -
equal "$(rsync -aH --itemize-changes "$T/tree/" "$D/copy/")" "" "second run"
rsync -aH "$D/copy/" "$D/copy2/"
equal "$(rsync -aHc --itemize-changes "$D/copy/" "$D/copy2/")" "" "within, by checksum"
bytes 100 >>"$T/tree/a/file-300000"
rm -r "$T/tree/many"
rsync -aH --delete --no-whole-file --inplace "$T/tree/" "$D/copy/"
tree_of "$T/tree" >"$T/expected"
tree_of "$D/copy" | diff "$T/expected" -
rsync -a "$D/copy/a/file-300000" "$T/back"
cmp "$T/back" "$T/tree/a/file-300000"
