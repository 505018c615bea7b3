#!/usr/bin/env bash
# python: os, shutil, pathlib: walk, scandir, link, replace, chdir, dir_fd, copytree.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need python3
make_tree "$T/tree"
cp -a "$T/tree" "$D/tree"
python - "$D" <<'END'
import errno, os, pathlib, shutil, stat, sys
d = sys.argv[1]; t = d + "/tree"
names = sorted(e.name for e in os.scandir(t + "/many"))
assert len(names) == 200 and names == sorted(os.listdir(t + "/many"))
assert sum(len(f) for _, _, f in os.walk(t)) == 211
kinds = {e.name: (e.is_dir(), e.is_symlink(), e.stat(follow_symlinks=False).st_size) for e in os.scandir(t + "/a/b")}
assert kinds["c"][0] and kinds["soft"][1] and kinds["hard"][2] == 4097, kinds
assert len(list(pathlib.Path(t).rglob("entry-1*"))) == 111
assert sorted(p.name for p in pathlib.Path(t).glob("a/file-4*")) == ["file-4095", "file-4096", "file-4097"]
os.link(t + "/zero", t + "/zero2"); assert os.stat(t + "/zero").st_nlink == 2
open(d + "/x", "w").write("new"); open(d + "/y", "w").write("old")
os.replace(d + "/x", d + "/y"); assert open(d + "/y").read() == "new" and not os.path.exists(d + "/x")
for bad, code in [(lambda: os.rename(d + "/none", d + "/z"), errno.ENOENT), (lambda: os.mkdir(t), errno.EEXIST),
                  (lambda: os.rmdir(t), errno.ENOTEMPTY), (lambda: os.unlink(t), errno.EISDIR), (lambda: os.open(d + "/y/z", 0), errno.ENOTDIR),
                  (lambda: open(t), errno.EISDIR), (lambda: os.open(d + "/" + "n" * 256, os.O_CREAT), errno.ENAMETOOLONG)]:
    try: bad()
    except OSError as e: assert e.errno == code, (e, code)
    else: raise AssertionError(code)
copy = shutil.copytree(t, d + "/copy", symlinks=True)
assert sorted(os.listdir(copy)) == sorted(os.listdir(t))
assert os.stat(copy + "/a/file-4096").st_mtime == os.stat(t + "/a/file-4096").st_mtime
shutil.move(copy, d + "/moved"); shutil.rmtree(d + "/moved"); assert not os.path.exists(d + "/moved")
os.chdir(t); assert os.path.samefile(os.getcwd(), t) and os.path.exists("a/b/c")
fd = os.open("a", os.O_RDONLY | os.O_DIRECTORY)
assert os.stat("file-4095", dir_fd=fd).st_size == 4095 and "b" in os.listdir(fd)
os.mkdir("new", dir_fd=fd); os.rename("new", "newer", src_dir_fd=fd, dst_dir_fd=fd); os.rmdir("newer", dir_fd=fd)
os.fchdir(fd); assert os.path.exists("file-1"); os.close(fd)
os.utime("file-1", ns=(1, 1234567890123456789)); assert os.stat("file-1").st_mtime_ns == 1234567890123456789
os.truncate("file-1", 100); os.chmod("file-1", 0o400); assert stat.S_IMODE(os.stat("file-1").st_mode) == 0o400
usage = shutil.disk_usage(d); assert usage.total > 0 and usage.free > 0
assert os.access(t, os.R_OK | os.W_OK | os.X_OK) and not os.access(t + "/nope", os.F_OK)
assert shutil.copyfile(t + "/a/file-300000", d + "/c") and open(d + "/c", "rb").read() == open(t + "/a/file-300000", "rb").read()
END
