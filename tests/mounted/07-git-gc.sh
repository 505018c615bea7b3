#!/usr/bin/env bash
# git: a history of many objects is packed, repacked, pruned, checked, cloned, and served to a clone.
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

need git python3
export HOME=$T GIT_CONFIG_NOSYSTEM=1
git config --global user.name Test
git config --global user.email test@example.org
git config --global init.defaultBranch main
git config --global gc.auto 0
git init -q "$D/repo"
cd "$D/repo"
# A stream of commits: each changes some of the files.
python - <<'END' | git fast-import --quiet
import sys
out = sys.stdout
for commit in range(120):
    out.write(f"commit refs/heads/main\ncommitter T <t@example.org> {1000000000 + commit} +0000\n")
    out.write(f"data 7\ncommit\n\n")
    for file in range(commit % 7, 200, 7):
        text = f"line {commit} of {file}\n" * (file + 1)
        out.write(f"M 100644 inline d{file % 10}/file{file}\ndata {len(text)}\n{text}\n")
out.write("done\n")
END
git reset -q --hard
for ((number = 0; number < 20; number++)); do
    echo "$number" >"loose$number"
    git add "loose$number"
    git commit -q -m "loose $number"
done
git branch side HEAD~10
git reset -q --hard HEAD~5
before=$(git rev-parse HEAD HEAD^{tree}; git rev-list --objects --all | sort | sha256sum)
git gc -q
equal "$(find .git/objects -name '*.pack' | wc -l)" 1 packs
git fsck --full --strict --no-dangling
git reflog expire --expire=now --all
git gc -q --aggressive --prune=now
git repack -q -a -d -f --depth=10 --write-bitmap-index
git multi-pack-index write --no-progress
git commit-graph write --reachable --no-progress
git commit-graph verify --no-progress
git fsck --full --strict --no-dangling
equal "$(git rev-parse HEAD HEAD^{tree}; git rev-list --objects --all | sort | sha256sum)" "$before"
git clone -q --no-local . "$D/clone"
git -C "$D/clone" fsck --full --strict
equal "$(git -C "$D/clone" rev-parse HEAD^{tree})" "$(git rev-parse HEAD^{tree})"
git status --porcelain | { ! grep .; }
