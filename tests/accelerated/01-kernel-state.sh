#!/usr/bin/env bash
# Working directory, directory descriptors, device and inode numbers are the kernel's: a program that cannot be
# preloaded, started by one that is, finds the same.
# Promise 49, State that the kernel has is the same by both ways.
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

compile kernel_view.c -static
mkdir -p "$D/a/b"
echo text >"$D/a/f"
cd "$D/a"
equal "$("$T/program" cwd f "$D/a/f")" "$(stat -c '%d %i' .)
$(stat -c '%d %i' f) 5 text

$(stat -c '%d %i' f) 5 text" "numbers"
equal "$(readlink /proc/self/cwd)" "$D/a" "the kernel's working directory"
equal "$(cd b && cd .. && "$T/program" cwd)" "$(stat -c '%d %i' .)" "after a child's change"
# A renamed directory is the same one.
mv "$D/a" "$D/c"
equal "$("$T/program" cwd f)" "$(stat -c '%d %i' .)
$(stat -c '%d %i' f) 5 text" "renamed"
equal "$(pwd -P)" "$D/c" "name of a renamed directory"
echo new >g
equal "$(cat "$D/c/g")" new
# Out of the instance and back, by links and dots.
ln -s "$T" out
equal "$(cd out && "$T/program" cwd)" "$(stat -c '%d %i' "$T")" "outside"
equal "$(cd out && cd "$D/c/b/.." && "$T/program" cwd)" "$(stat -c '%d %i' .)" "back"
# A descriptor of a directory.
exec 7<"$D/c/b"
equal "$("$T/program" 7)" "$(stat -c '%d %i' "$D/c/b")" "directory descriptor"
equal "$(readlink "/proc/$$/fd/7")" "$D/c/b" "its name for others"
echo in >"/proc/$$/fd/7/in"
equal "$(cat "$D/c/b/in")" in "a file made below it"
exec 7<&-
# By another way to the same file.
refuses cp "$D/c/f" "$D/c/b/../f"
mkdir "$T/bound"
if mount --bind "$D/c" "$T/bound" 2>/dev/null; then
    refuses cp f "$T/bound/f"
    equal "$(cat f)" text "a file copied onto itself"
    equal "$(stat -c '%d %i' "$T/bound/f")" "$(stat -c '%d %i' f)" "numbers by a bind mount"
    umount "$T/bound"
fi
