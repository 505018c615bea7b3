#!/usr/bin/env bash
# Trees by tar (sparse, incremental), rsync (in place, appended, sparse), cp, git with worktrees and clones, find, and a
# directory that is listed while it is emptied.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need git rsync python3
set -e
cd "$D"
mkdir -p t/a/b x y
for ((i = 1; i <= 300; i++)); do echo $i >t/a/f$i; done
ln t/a/f1 t/a/b/hard
ln -s ../f2 t/a/b/soft
truncate -s 20M t/sparse
printf x | dd of=t/sparse bs=1 seek=10000000 conv=notrunc status=none
tar -cf one.tar t 2>"$T/said"
tar -Scf two.tar t 2>>"$T/said"
[ ! -s "$T/said" ] || fail "tar says $(head -n 1 "$T/said")"
[ "$(stat -c %s two.tar)" -lt 9000000 ] || fail "tar -S stores the holes"
tar -xf one.tar -C x
tar -xf two.tar -C y
diff -r x/t y/t
[ x/t/a/f1 -ef x/t/a/b/hard ] || fail "hard link by tar"
tar -g "$T/snapshot" -cf full.tar t
# tar compares seconds.
touch -d '1 hour ago' t t/a t/a/b
tar -g "$T/snapshot-2" -cf full.tar t
echo new >t/a/new
tar -g "$T/snapshot-2" -cf part.tar t
equal "$(tar -tf part.tar | grep -v '/$' | tr '\n' ' ')" "t/a/new " "incremental"
rsync -aHAX --delete t/ r/
equal "$(rsync -aHAXi t/ r/)" "" "rsync once more"
echo more >>t/a/f5
rsync -a --inplace t/ r/
diff -r t r
bytes 3000000 >t/big
head -c 1000000 t/big >r/big
rsync -a --append-verify t/big r/big
cmp t/big r/big
rsync -aS t/sparse r/again
[ "$(du -k r/again | cut -f1)" -lt 9000 ] || fail "rsync -S fills holes"
cp -a t c
equal "$(find c -links 2 -type f | wc -l)" 2 "links by cp"
(
    mkdir g && cd g && git init -q . && git config user.email a@b && git config user.name n
    cp -r ../t/a . && git add . && git commit -qm 1
    for i in 1 2 3; do echo x$i >a/f$i && git commit -qam $i; done
    git gc -q --aggressive && git fsck --strict 2>/dev/null && git worktree add -q ../worktree
    cd .. && git clone -q --local g g2 && git clone -q --shared g g3 && cd g2
    equal "$(git status --porcelain)" "" "a clone" && git checkout -q HEAD~2
) >"$T/git" 2>&1 || fail "git: $(tail -n 1 "$T/git")"
mkdir many
python - <<'END'
import os
for number in range(4000):
    open(f"many/n{number}", "w").close()
assert len(os.listdir("many")) == 4000
count = 0
with os.scandir("many") as listing:
    for entry in listing:
        os.unlink(entry.path)
        count += 1
assert count == 4000, count
os.rmdir("many")
END
rm -rf t x y r c g g2 g3 worktree ./*.tar
equal "$(ls -A)" ""
