#!/usr/bin/env bash
# git: clone over the file system, push, fetch, gc, repack, bundle, fsck.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need git
export HOME=$T GIT_CONFIG_NOSYSTEM=1
git config --global user.name Test
git config --global user.email test@example.org
git config --global init.defaultBranch main
git init -q --bare "$D/bare.git"
git clone -q "$D/bare.git" "$D/one" 2>/dev/null
cd "$D/one"
for i in {1..30}; do
    seq "$i" 500 >"file-$((i % 7))"
    git add -A
    git commit -q -m "change $i"
done
git push -q origin main
git clone -q "$D/bare.git" "$D/two"
git clone -q --no-hardlinks "file://$D/bare.git" "$T/local"
equal "$(git -C "$D/two" rev-parse HEAD)" "$(git rev-parse HEAD)"
git -C "$T/local" ls-tree -r HEAD | diff - <(git -C "$D/two" ls-tree -r HEAD)
(cd "$D/two" && echo x >x && git add x && git commit -q -m x && git push -q)
git pull -q --ff-only
equal "$(cat x)" x
git gc -q --aggressive --prune=now
git -C "$D/bare.git" repack -q -a -d -f
git fsck --full --strict
git -C "$D/bare.git" fsck --full
git bundle create -q "$D/all.bundle" main
git clone -q "$D/all.bundle" "$D/three" -b main
equal "$(git -C "$D/three" log --oneline | wc -l)" 31
git archive HEAD | tar -x -C "$T" -f -
cmp "$T/file-3" "$D/one/file-3"
