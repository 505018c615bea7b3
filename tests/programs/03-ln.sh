#!/usr/bin/env bash
# ln makes hard and symbolic links; counts, targets and the last name's contents are right.
. "${BASH_SOURCE[0]%/*}/lib.sh"

bytes 10000 >"$T/file"
cp "$T/file" "$D/file"
ln "$D/file" "$D/hard"
ln -s file "$D/soft"
ln -s "$D/file" "$D/absolute"
equal "$(stat -c %h "$D/file")" 2 "link count"
equal "$(stat -c %i "$D/file")" "$(stat -c %i "$D/hard")" "inode"
equal "$(readlink "$D/soft")" file
equal "$(stat -c %s "$D/soft")" 4 "length of a symbolic link"
equal "$(stat -L -c %i "$D/absolute")" "$(stat -c %i "$D/file")"
echo more >>"$D/soft"
echo more >>"$T/file"
rm "$D/file"
cmp "$D/hard" "$T/file"
equal "$(stat -c %h "$D/hard")" 1 "link count after rm"
refuses cat "$D/soft"
ln -sfn hard "$D/soft"
cmp "$D/soft" "$T/file"
ln -s loop "$D/loop"
refuses cat "$D/loop"
refuses ln "$D/hard" "$D/soft"
ln -sr "$D/hard" "$D/relative"
equal "$(readlink "$D/relative")" hard
