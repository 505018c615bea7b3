#!/usr/bin/env bash
# git: init, add, commit, branch, merge, rebase, stash, tag, status, on a tree.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need git
export HOME=$T GIT_CONFIG_NOSYSTEM=1
git config --global user.name Test
git config --global user.email test@example.org
git config --global init.defaultBranch main
make_tree "$D/repo"
cd "$D/repo"
git init -q .
git add -A
git commit -q -m first
equal "$(git status --porcelain)" ""
git checkout -q -b side
echo side >>many/entry-1
git commit -q -am side
git checkout -q main
equal "$(cat many/entry-1)" "entry 1"
echo main >>many/entry-2
git rm -q -r 'with space'
git commit -q -am main
git merge -q -m merge side
equal "$(cat many/entry-1 many/entry-2 | tr '\n' ' ')" "entry 1 side entry 2 main "
git mv many lots
git commit -q -m move
echo dirty >>zero
git stash -q
equal "$(git status --porcelain)" ""
git stash pop -q
equal "$(git status --porcelain)" " M zero"
git checkout -q -- zero
git checkout -q -b topic HEAD~1
echo t >topic && git add topic && git commit -q -m topic
git rebase -q main
equal "$(git log --oneline | wc -l)" 6
git tag -a -m tag v1
git worktree add -q ../tree v1
equal "$(git -C ../tree rev-parse HEAD)" "$(git rev-parse topic)"
git fsck --strict --no-dangling
