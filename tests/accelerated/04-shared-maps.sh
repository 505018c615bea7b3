#!/usr/bin/env bash
# A shared mapping sees what the file is, also when other processes cut, grow, punch or replace it, and what a program
# stores by it is seen by every process at once.
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

compile shared_maps.c
"$T/program" "$D"
# By a program that cannot be preloaded.
compile kernel_view.c -static
cd "$D"
echo text >file
python - "$T/program" <<'END'
import mmap, subprocess, sys
with open("file", "r+b") as file:
    with mmap.mmap(file.fileno(), 0) as memory:
        memory[0] = ord("T")
        assert file.read() == b"Text\n"
        seen = subprocess.run([sys.argv[1], "file"], capture_output=True).stdout
        assert seen.endswith(b" 5 Text\n\n"), seen
        with open("file", "r+b") as other:
            other.write(b"t")
        assert memory[0] == ord("t")
assert open("file").read() == "text\n"
END
