"""Results of calls on files: run by root in an empty directory, prints each result.

Its output is compared with that on a local file system (crates/tests/tests/it/mount/local_rights.rs, and
90-files.sh for preloaded programs). The argument selects the calls: `zero`, FALLOC_FL_ZERO_RANGE only, which
tmpfs does not support; `files`, all others; `preloaded`, all others without access times."""
import ctypes, errno, mmap, os, stat, sys, time

libc = ctypes.CDLL(None, use_errno=True)
LONG = ctypes.c_long
KEEP, PUNCH, NO_HIDE, COLLAPSE, ZERO, INSERT, UNSHARE = 1, 2, 4, 8, 16, 32, 64


def outcome(call, *arguments, **more):
    try:
        return call(*arguments, **more)
    except OSError as error:
        return errno.errorcode[error.errno]


def t(what, call, *arguments, **more):
    print(what, outcome(call, *arguments, **more))


def system(name, *arguments):
    answer = getattr(libc, name)(*arguments)
    if answer < 0:
        raise OSError(ctypes.get_errno(), name)
    return answer


def fallocate(fd, mode, offset, length):
    return system('fallocate', fd, mode, LONG(offset), LONG(length))


def renameat2(old, new, flags):
    return system('renameat2', -100, old, -100, new, flags)


def contents(fd):
    """Size, and runs of equal bytes."""
    size = os.fstat(fd).st_size
    data = os.pread(fd, size, 0) if size < 1 << 20 else b''
    runs, start = [], 0
    for end in range(1, len(data) + 1):
        if end == len(data) or data[end] != data[start]:
            runs.append((data[start], end - start))
            start = end
    return size, runs


def fresh(size=40000):
    fd = os.open('f', os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o644)
    os.write(fd, b'a' * size)
    return fd


os.umask(0)
RANGES = ((0, 4096), (4096, 8192), (100, 5000), (36864, 8192), (50000, 4096), (0, 0), (-1, 10), (0, -1),
          (2**62, 2**62), (2**63 - 1, 1))
if sys.argv[1] == 'zero':
    modes = (ZERO, ZERO | KEEP)
else:
    modes = (0, KEEP, PUNCH, PUNCH | KEEP, NO_HIDE, COLLAPSE, INSERT, UNSHARE, PUNCH | ZERO | KEEP, COLLAPSE | KEEP,
             256)
for mode in modes:
    for offset, length in RANGES:
        fd = fresh()
        answer = outcome(fallocate, fd, mode, offset, length)
        print('fallocate', mode, offset, length, answer, contents(fd))
        os.close(fd)
if sys.argv[1] == 'zero':
    sys.exit()

# Other descriptors that cannot be allocated.
os.mkdir('d')
os.mkfifo('p')
for path, flags in ('f', os.O_RDONLY), ('d', os.O_RDONLY), ('p', os.O_RDWR):
    fd = os.open(path, flags)
    t(f'fallocate {path}', fallocate, fd, 0, 0, 10)
    os.close(fd)
fd = os.open('f', os.O_WRONLY | os.O_APPEND)
t('punch with O_APPEND', fallocate, fd, PUNCH | KEEP, 0, 10)
os.close(fd)

# Holes, as far as file systems agree on their position.
fd = fresh(0)
os.pwrite(fd, b'x' * 65536, 0)
os.pwrite(fd, b'y' * 262144, 262144)
os.ftruncate(fd, 700000)
for offset in (0, 1, 50000, 65535, 65536, 100000, 262143, 262144, 300000, 524287, 524288, 600000, 699999,
               700000, 700001, -1):
    t(f'data {offset}', os.lseek, fd, offset, os.SEEK_DATA)
    t(f'hole {offset}', os.lseek, fd, offset, os.SEEK_HOLE)
for offset, whence in (0, 2), (-1, 0), (2**63 - 1, 0), (1, 1), (0, 9):
    t(f'seek {offset} {whence}', os.lseek, fd, offset, whence)
os.close(fd)

# Offsets near the maximum.
fd = fresh(10)
t('write there', os.pwrite, fd, b'x', 2**63 - 1)
t('write before it', os.pwrite, fd, b'xy', 2**63 - 2)
t('read there', os.pread, fd, 10, 2**63 - 1)
t('read before it', os.pread, fd, 10, 2**63 - 2)
t('as long', os.ftruncate, fd, 2**63 - 1)
t('size', lambda: os.fstat(fd).st_size)
t('negative', os.ftruncate, fd, -1)
os.close(fd)
os.unlink('f')

# Direct I/O.
fd = os.open('f', os.O_CREAT | os.O_RDWR | os.O_DIRECT)
room = mmap.mmap(-1, 8192)
room[:] = b'z' * 8192
t('direct write', os.write, fd, room)
t('direct read', os.preadv, fd, [room], 4096)
os.close(fd)

# The file system.
s = os.statvfs('.')
print('space', s.f_namemax, s.f_blocks > 0, s.f_bfree <= s.f_blocks, s.f_bavail <= s.f_bfree, s.f_files > 0,
      s.f_ffree <= s.f_files, s.f_bsize > 0, s.f_frsize > 0, s.f_flag & os.ST_RDONLY)

# Renames.
for name in 'a', 'b':
    with open(name, 'w') as file:
        file.write(name)
t('no replace', renameat2, b'a', b'b', 1)
t('exchange', renameat2, b'a', b'b', 2)
print(open('a').read(), open('b').read())
t('both flags', renameat2, b'a', b'b', 3)
t('no such flag', renameat2, b'a', b'c', 8)
t('exchange with nothing', renameat2, b'a', b'nope', 2)
t('no replace, nothing there', renameat2, b'b', b'c', 1)
t('exchange with a directory', renameat2, b'c', b'd', 2)
t('and back', renameat2, b'c', b'd', 2)
os.makedirs('x/y/z')
for old, new in (('x', 'x/y/z/w'), ('x/y', 'x/y'), ('x/y/z', 'x'), ('x/.', 'q'), ('x/..', 'q'), ('a', 'x'), ('x', 'a'),
                 ('d', 'x'), ('a', 'n/'), ('d/', 'dd/')):
    t(f'rename {old} {new}', os.rename, old, new)
t('exchange with what is below', renameat2, b'x', b'x/y', 2)
t('exchange with what is above', renameat2, b'x/y', b'x', 2)

# Files without a name.
directory = os.open('.', os.O_RDONLY)


def name_it(fd, name):
    os.link(f'/proc/self/fd/{fd}', name, dst_dir_fd=directory, follow_symlinks=True)
    return open(name).read(), os.fstat(fd).st_nlink


for flags in 0, os.O_EXCL:
    fd = os.open('.', os.O_TMPFILE | os.O_RDWR | flags, 0o600)
    os.write(fd, b'contents')
    t('nameless', lambda: os.fstat(fd).st_nlink)
    t('gets a name', name_it, fd, f'named{flags}')
    os.close(fd)
t('nameless to read', os.open, '.', os.O_TMPFILE | os.O_RDONLY, 0o600)
t('nameless in a file', os.open, 'named0', os.O_TMPFILE | os.O_RDWR, 0o600)
fd = os.open('g', os.O_CREAT | os.O_RDWR)
os.unlink('g')
t('a removed one gets a name', name_it, fd, 'again')
os.close(fd)

# Nodes of all kinds.
for kind in (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFDIR, stat.S_IFLNK):
    t(f'node {kind:o}', os.mknod, f'n{kind:o}', kind | 0o640, os.makedev(300, 70000))
    if os.path.lexists(f'n{kind:o}'):
        s = os.lstat(f'n{kind:o}')
        print(oct(s.st_mode), os.major(s.st_rdev), os.minor(s.st_rdev), s.st_size, s.st_nlink)

# Names and paths of the maximum length, and longer.
t('255 bytes', os.mkdir, 'n' * 255)
t('256 bytes', os.mkdir, 'n' * 256)
t('look at 256 bytes', os.stat, 'n' * 256)
t('path of 4095 bytes', lambda: os.stat('./' * 2047 + 'a').st_size)
t('path of 4097 bytes', os.stat, './' * 2048 + 'a')
t('link of 4095 bytes', os.symlink, 'y' * 4095, 'long')
t('its length', lambda: (len(os.readlink('long')), os.lstat('long').st_size))
t('link of 4096 bytes', os.symlink, 'y' * 4096, 'longer')
t('link to nothing', os.symlink, '', 'empty')
t('bytes that are no text', os.mkdir, b'\xff\xfe\n')
t('no name', os.mkdir, '')

# Access times, by the rules of relatime.


def accessed(what, path, act):
    """Whether access time follows what is done, and the other two stay."""
    if sys.argv[1] == 'preloaded':
        return act()
    time.sleep(0.02)
    before = os.lstat(path)
    act()
    after = os.lstat(path)
    print('accessed', what, after.st_atime_ns > before.st_atime_ns, after.st_mtime_ns == before.st_mtime_ns,
          after.st_ctime_ns == before.st_ctime_ns)


def read():
    with open('r') as file:
        file.read()


def read_quietly():
    fd = os.open('r', os.O_RDONLY | os.O_NOATIME)
    os.read(fd, 10)
    os.close(fd)


def read_mapped():
    fd = os.open('r', os.O_RDONLY)
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
        mapped[0]
    os.close(fd)


def write(path='r'):
    with open(path, 'a') as file:
        file.write('more')


DAY = 24 * 3600 * 10**9
for what, before in (
    ('first', lambda: write()),
    ('second', lambda: None),
    ('after a write', lambda: write()),
    ('after a chmod', lambda: os.chmod('r', 0o600)),
    ('after a chmod, again', lambda: None),
    ('of yesterday', lambda: os.utime('r', ns=(time.time_ns() - 2 * DAY, time.time_ns() - 3 * DAY))),
    ('of yesterday, again', lambda: None),
):
    before()
    accessed(what, 'r', read)
write()
accessed('quietly', 'r', read_quietly)
accessed('by a stat', 'r', lambda: os.stat('r'))
accessed('at last', 'r', read)
write()
accessed('mapped', 'r', read_mapped)
os.mkdir('listed')
for round in range(3):
    write(f'listed/{round // 2}')
    accessed(f'listing {round}', 'listed', lambda: os.listdir('listed'))
os.symlink('r', 'link')
for round in range(2):
    accessed(f'link {round}', 'link', lambda: os.readlink('link'))
open('nothing', 'w').close()
accessed('nothing in it', 'nothing', lambda: open('nothing').read())

# Times move forward with every change.
os.mkdir('times')
last, goes_forward = 0, True
with open('times/f', 'w') as file:
    for round in range(300):
        os.chmod('times/f', 0o600 + round % 8)
        changed = os.stat('times/f').st_ctime_ns
        goes_forward &= changed >= last
        file.write('x')
        file.flush()
        s = os.stat('times/f')
        goes_forward &= s.st_ctime_ns >= changed and s.st_mtime_ns <= s.st_ctime_ns
        last = s.st_ctime_ns
print('forward', goes_forward)
before = os.stat('times').st_mtime_ns
for given in 1, 2**61:
    os.utime('times', ns=(given, given))
    write(f'times/{given}')
    s = os.stat('times')
    print('one more name', before <= s.st_mtime_ns < 2**61, s.st_ctime_ns >= before)
t('before 1970', os.utime, 'times/f', ns=(-5, -10**11))
print(os.stat('times/f').st_mtime_ns, os.stat('times/f').st_atime_ns)

# Link counts of directories.
os.mkdir('many')
links = [os.stat('many').st_nlink]
for number in range(5):
    os.mkdir(f'many/{number}')
    links.append(os.stat('many').st_nlink)
os.rmdir('many/0')
links.append(os.stat('many').st_nlink)
os.rename('many/1', 'listed/d')
print('links', links, os.stat('many').st_nlink, os.stat('listed').st_nlink)
