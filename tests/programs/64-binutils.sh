#!/usr/bin/env bash
# ar, ranlib, nm, strip, objcopy, objdump, readelf, size on files of the file system.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need gcc ar ranlib nm strip objcopy readelf
cd "$D"
printf 'static int hidden = 7;\nint shown(void) { return hidden; }\n' >a.c
printf 'int shown(void);\nint main(void) { return shown() == 7 ? 0 : 1; }\n' >main.c
gcc -g -c a.c main.c
ar rc lib.a a.o
ar r lib.a main.o
ranlib lib.a
equal "$(ar t lib.a | tr '\n' ' ')" "a.o main.o "
ar d lib.a main.o
nm lib.a | grep ' T shown' >/dev/null
gcc -o program main.o lib.a
cp program full
strip program
./program
[ "$(stat -c %s program)" -lt "$(stat -c %s full)" ] || fail "strip took nothing away"
objcopy --only-keep-debug full full.debug
objcopy --strip-debug --add-gnu-debuglink=full.debug full
./full
readelf -S full | grep gnu_debuglink >/dev/null
objcopy --add-section .note.mine=a.c full
objcopy -O binary --only-section=.note.mine --set-section-flags .note.mine=alloc full dumped
cmp dumped a.c
objdump -d a.o | grep '<shown>' >/dev/null
strings -a full.debug | grep hidden >/dev/null
size full >/dev/null
./full
