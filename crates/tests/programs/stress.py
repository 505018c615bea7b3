# One of several programs on all hosts that append, replace names and count under locks, at random from a seed;
# its counts are in `result`. Run by the agents of crates/tests/tests/it/soak/stress.rs, which replace the words in
# capitals by values.
import ctypes, fcntl, json, os, random, struct

me, rounds = ME, ROUNDS
numbers = random.Random(SEED * 100 + me)
libc = ctypes.CDLL(None, use_errno=True)
EXCHANGE, HERE = 2, -100
DIRECTORIES = ['d0', 'd1', 'd2']
COUNTERS = 4
logs = {d: os.open(f'{d}/log', os.O_WRONLY | os.O_APPEND) for d in DIRECTORIES}
counters = {(d, how): os.open(f'{d}/{how}', os.O_RDWR) for d in DIRECTORIES for how in ('process', 'file', 'whole')}
done = {'log': {d: 0 for d in DIRECTORIES}, 'count': {}, 'replaced': 0, 'exchanged': 0, 'looks': 0}
# The last version seen, by name and by the program that replaced it.
seen, replaced = {}, {}


def append(d):
    length = numbers.choice([40, 100, 1000, 5000, 13000])
    head = b'[%02d %06d %06d ' % (me, done['log'][d], length)
    record = head + b'%d' % (me % 10) * (length - len(head) - 1) + b']'
    wrote = os.write(logs[d], record)
    assert wrote == length, f'{wrote} of {length}'
    done['log'][d] += 1


def replace(d):
    """Replaces a name by a file that was created in any directory."""
    made, name = f'{numbers.choice(DIRECTORIES)}/made{me}', f'{d}/name'
    number = replaced[name] = replaced.get(name, 0) + 1
    with open(made, 'wb') as file:
        file.write(b'whole %d %d ' % (me, number) + b'x' * numbers.choice([0, 100, 9000]) + b'.')
    os.rename(made, name)
    done['replaced'] += 1


def exchange():
    one, two = numbers.sample(DIRECTORIES, 2)
    failed = libc.renameat2(HERE, f'{one}/token'.encode(), HERE, f'{two}/token'.encode(), EXCHANGE)
    assert failed == 0, f'{one} and {two}: {os.strerror(ctypes.get_errno())}'
    done['exchanged'] += 1


def look(d):
    """A name that others replace always exists, is whole, and is never stale."""
    with open(f'{d}/name', 'rb') as file:
        data = file.read()
    word, writer, number, rest = data.split(b' ', 3)
    assert word == b'whole' and rest.strip(b'x') == b'.', f'{d}: {data[:60]}'
    key = d, int(writer)
    assert int(number) >= seen.get(key, 0), f'{d}: {data[:20]} after {seen[key]}'
    seen[key] = int(number)
    with open(f'{d}/token', 'rb') as file:
        token = file.read()
    assert token in (b'd0', b'd1', b'd2'), f'{d}: {token}'
    assert os.stat(f'{numbers.choice(DIRECTORIES)}/name').st_size >= 10
    done['looks'] += 1


def count(d, how):
    """Increments one counter or several, under a lock."""
    file, first = counters[d, how], numbers.randrange(COUNTERS)
    last = first if numbers.randrange(4) else numbers.randrange(first, COUNTERS)
    start, length = 8 * first, 8 * (last - first + 1)

    def lock(kind, waits):
        words = struct.pack('hhqqi4x', kind, os.SEEK_SET, start, length, 0)
        calls = {'process': (fcntl.F_SETLKW, fcntl.F_SETLK), 'file': (fcntl.F_OFD_SETLKW, fcntl.F_OFD_SETLK)}
        fcntl.fcntl(file, calls[how][0 if waits else 1], words)

    try:
        waits = numbers.randrange(3) != 0
        if how == 'whole':
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        else:
            lock(fcntl.F_WRLCK, waits)
    except BlockingIOError:
        return
    values = struct.unpack(f'{length // 8}q', os.pread(file, length, start))
    assert os.pwrite(file, struct.pack(f'{length // 8}q', *[value + 1 for value in values]), start) == length
    if how == 'whole':
        fcntl.flock(file, fcntl.LOCK_UN)
    else:
        lock(fcntl.F_UNLCK, False)
    for one in range(first, last + 1):
        key = f'{d}/{how} {one}'
        done['count'][key] = done['count'].get(key, 0) + 1


for _ in range(rounds):
    directory, what = numbers.choice(DIRECTORIES), numbers.randrange(20)
    if what < 5:
        append(directory)
    elif what < 8:
        replace(directory)
    elif what < 9:
        exchange()
    elif what < 14:
        look(directory)
    else:
        count(directory, numbers.choice(['process', 'file', 'whole']))
for file in [*logs.values(), *counters.values()]:
    os.close(file)
result = json.dumps(done)
