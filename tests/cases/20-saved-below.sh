#!/usr/bin/env bash
# Files that are written back meanwhile: times and numbers stay, open files are renamed and written on, editors save by
# renaming, directories are renamed and made again, databases grow. CASES_FLUSH is a command that waits until all is
# written back, CASES_AT the path of the file system, and CASES_BELOW the backing directory.
. "${BASH_SOURCE[0]%/*}/lib.sh"

set -e
cd "$D"
# shellcheck disable=SC2086  # words
save() { ${CASES_FLUSH:-true} >/dev/null; }
identity() { stat -c '%.9Y %s %i' a; }
echo one >a
touch -d '2020-02-02 02:02:02.123456789' a
before=$(identity)
save
equal "$(identity)" "$before" "times and number after it was saved"
echo two >>a
save
equal "$(tr '\n' ' ' <a)" "one two " "appended to a saved file"
exec 8>temporary
echo part1 >&8
mv temporary final
echo part2 >&8
save
equal "$(tr '\n' ' ' <final)" "part1 part2 " "renamed while open"
echo part3 >&8
exec 8>&-
save
equal "$(tr '\n' ' ' <final)" "part1 part2 part3 " "written after the renaming"
echo v1 >doc
save
cp -p doc doc~
echo v2 >.doc.swp
mv .doc.swp doc
rm doc~
echo v3 >.4913
rm .4913
save
equal "$(cat doc)" v2 "saved by renaming"
mkdir d
for ((i = 1; i <= 50; i++)); do
    echo $i >d/t
    mv d/t d/current
done
save
equal "$(ls d) $(cat d/current)" "current 50" "renamed many times"
mkdir -p old/sub
echo x >old/sub/f
save
mv old new
echo y >new/sub/g
save
equal "$(cat new/sub/f new/sub/g | tr '\n' ' ')$(ls -d old 2>/dev/null)" "x y " "a renamed directory"
rm -r new
mkdir new
echo z >new/f
save
equal "$(ls new)" f "a directory that was made again"
bytes 24000000 >big
save
before=$(sum_of big)
# More bytes than one: one could be there by chance.
printf "these bytes" | dd of=big bs=1 seek=15000000 conv=notrunc status=none
[ "$(sum_of big)" != "$before" ] || fail "a change of a saved file"
truncate -s 20000000 big
save
if command -v sqlite3 >/dev/null; then
    sqlite3 base.db 'create table t(a); insert into t values(1),(2);'
    save
    sqlite3 base.db 'insert into t values(3);'
    equal "$(sqlite3 base.db 'select count(*) from t')" 3 sqlite
fi
tar -cf /dev/null . 2>"$T/said" || fail "tar: $(head -n 1 "$T/said")"
save
if [ -n "${CASES_BELOW:-}" ]; then
    tree_of . >"$T/here"
    tree_of "$CASES_BELOW${D#"$CASES_AT"}" | diff "$T/here" - || fail "the backing directory differs"
fi
