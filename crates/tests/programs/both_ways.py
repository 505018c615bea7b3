"""One of several processes that write numbers to a file and check those of the others, by calls and
by a mapping. Arguments: the file, the log, the number of this process, of all, and a seed.

The log is shared memory of the test: for each process the number that it began to write, the last
that it has written, and its process number; then a word that ends all. A number that was written is
never missed by a reader that begins later, whatever was killed meanwhile."""

import mmap
import os
import random
import struct
import sys
import time

PATH, LOG, ME, ALL, SEED = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
PAGE = mmap.PAGESIZE
PATIENCE = 60
log = mmap.mmap(os.open(LOG, os.O_RDWR), 0)


def logged(at):
    return struct.unpack_from('<Q', log, 8 * at)[0]


def note(at, value):
    # One store: this process may be killed at any moment.
    log[8 * at:8 * at + 8] = struct.pack('<Q', value)


def begun(process):
    return logged(3 * process)


def written(process):
    return logged(3 * process + 1)


def patiently(attempt):
    """Repeats what fails while a daemon or the mount is away."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return attempt()
        except OSError as error:
            if time.monotonic() > until:
                sys.exit(f'process {ME}: {error}')
            forget()


opened = {}


def forget():
    """The next use opens the file again, on the mount that is there then."""
    fd = opened.pop('fd', None)
    opened.clear()
    if fd is not None:
        try:
            os.close(fd)
        except OSError:
            pass


def mount():
    return logged(3 * ALL + 1)


def file():
    if not opened:
        before = mount()
        fd = os.open(PATH, os.O_RDWR)
        opened.update(fd=fd, map=mmap.mmap(fd, ALL * PAGE), mount=before)
    return opened


def write(value):
    data = struct.pack('<Q', value)
    if chance.random() < 0.5:
        os.pwrite(file()['fd'], data, ME * PAGE)
    else:
        shared = file()['map']
        shared[ME * PAGE:ME * PAGE + 8] = data
        shared.flush(ME * PAGE, PAGE)


def read():
    if chance.random() < 0.5:
        found = [os.pread(file()['fd'], 8, each * PAGE) for each in range(ALL)]
    else:
        found = [file()['map'][each * PAGE:each * PAGE + 8] for each in range(ALL)]
    if mount() % 2 or mount() != file()['mount']:
        raise OSError('the mount was killed')
    return [struct.unpack('<Q', data)[0] for data in found]


value = begun(ME)
chance = random.Random(SEED * 1000003 + value)
note(3 * ME + 2, os.getpid())
while not logged(3 * ALL):
    value += 1
    note(3 * ME, value)
    patiently(lambda: write(value))
    note(3 * ME + 1, value)
    low = [written(each) for each in range(ALL)]
    found = patiently(read)
    high = [begun(each) for each in range(ALL)]
    for each in range(ALL):
        if not low[each] <= found[each] <= high[each]:
            sys.exit(f'process {ME}: {found[each]} of process {each}: not {low[each]} to {high[each]}')
