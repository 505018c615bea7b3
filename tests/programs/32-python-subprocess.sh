#!/usr/bin/env bash
# python: subprocess with files of the file system as stdin, stdout, stderr and cwd.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need python3
python - "$D" <<'END'
import os, subprocess, sys
d = sys.argv[1]
with open(d + "/out", "wb") as out, open(d + "/err", "wb") as err:
    out.write(b"first\n"); out.flush()
    subprocess.run(["sh", "-c", "echo out; echo err >&2; pwd -P"], stdout=out, stderr=err, cwd=d, check=True)
    out.write(b"last\n")
assert open(d + "/out").read() == f"first\nout\n{os.path.realpath(d)}\nlast\n", open(d + "/out").read()
assert open(d + "/err").read() == "err\n"
open(d + "/in", "w").write("".join(f"{i}\n" for i in range(5000)))
with open(d + "/in") as f: assert subprocess.run(["tail", "-n", "1"], stdin=f, capture_output=True, text=True).stdout == "4999\n"
with open(d + "/in") as f:
    f.buffer.raw.seek(10)
    assert subprocess.check_output(["head", "-c", "2"], stdin=f) == b"5\n"
fd = os.open(d + "/passed", os.O_CREAT | os.O_RDWR)
subprocess.run(["sh", "-c", f"echo child >&{fd}"], pass_fds=[fd], check=True)
assert os.lseek(fd, 0, os.SEEK_CUR) == 6, "the offset is shared with the child"
hidden = subprocess.run(["sh", "-c", f"echo child >&{fd}"], stderr=subprocess.DEVNULL)
assert hidden.returncode != 0, "a descriptor that was not passed is closed"
os.close(fd)
procs = [subprocess.Popen(["sh", "-c", f"echo {i} >> log"], cwd=d) for i in range(8)]
assert all(p.wait() == 0 for p in procs) and sorted(open(d + "/log").read().split()) == [str(i) for i in range(8)]
END
