"""Executes commands on files and their locks: reads one command per line and answers each with a line, its
result. Works in the directory given as argument.

Its output is compared with that on a local file system (crates/tests/tests/it/locks/cases.rs)."""
import errno, fcntl, json, os, signal, struct, sys

KINDS = {'r': fcntl.F_RDLCK, 'w': fcntl.F_WRLCK, 'u': fcntl.F_UNLCK, 'bad': 7}
FROM = {'set': os.SEEK_SET, 'cur': os.SEEK_CUR, 'end': os.SEEK_END, 'bad': 7}
RANGES = {
    'lock': fcntl.F_SETLK, 'lockw': fcntl.F_SETLKW, 'test': fcntl.F_GETLK,
    'ofd': fcntl.F_OFD_SETLK, 'ofdw': fcntl.F_OFD_SETLKW, 'ofdtest': fcntl.F_OFD_GETLK,
}
WHOLE = {'r': fcntl.LOCK_SH, 'w': fcntl.LOCK_EX, 'u': fcntl.LOCK_UN}
LOCKF = {'lock': os.F_TLOCK, 'test': os.F_TEST, 'unlock': os.F_ULOCK}
OPEN = {'r': os.O_RDONLY, 'w': os.O_WRONLY, 'rw': os.O_RDWR}
MAX = (1 << 63) - 1
# Open files by name; forked processes: the pipes of their commands and of their answers; their process ids.
files, children, pids = {}, {}, {}
closed_at_run = set()


def number(word):
    return MAX - int(word[4:] or 0) if word.startswith('max') else int(word)


def ranges(command, name, kind, whence, start, length, pid='0'):
    request = struct.pack('hhqqi4x', KINDS[kind], FROM[whence], number(start), number(length), int(pid))
    reply = fcntl.fcntl(files[name], RANGES[command], request)
    if 'test' not in command:
        return 'ok'
    kind, whence, start, length, pid = struct.unpack('hhqqi4x', reply)
    if kind == fcntl.F_UNLCK:
        return 'free'
    return f'{"rw"[kind == fcntl.F_WRLCK]} from {whence} {start} {length} of {"an open file" if pid == -1 else pid}'


def fork(name, *_):
    (requests, send), (receive, answers) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(send)
        os.close(receive)
        for other, answered in children.values():
            os.close(other)
            answered.close()
        children.clear()
        serve(os.fdopen(requests), os.fdopen(answers, 'w'))
        os._exit(0)
    os.close(requests)
    os.close(answers)
    children[name] = send, os.fdopen(receive)
    pids[name] = child
    return f'forked {child}'


def to(name, *words):
    send, receive = children[name]
    os.write(send, (' '.join(words) + '\n').encode())
    return receive.readline().strip()


def end(name, how='end'):
    send, receive = children.pop(name)
    if how == 'kill':
        os.kill(pids[name], signal.SIGKILL)
    os.close(send)
    os.waitpid(pids.pop(name), 0)
    receive.close()
    return 'ok'


def run(*_):
    """Replaces the process by another program, with its open files."""
    inherited = {name: file for name, file in files.items() if file not in closed_at_run}
    for file in inherited.values():
        os.set_inheritable(file, True)
    os.execv(sys.executable, [sys.executable, '-B', sys.argv[0], '.', json.dumps(inherited)])


def alarmed(*words):
    """Runs a command that a signal interrupts while it waits."""
    def interrupt(*_):
        raise InterruptedError(errno.EINTR, 'interrupted')
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        return do(*words)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def reset(*_):
    for name in list(children):
        end(name)
    for file in files.values():
        os.close(file)
    files.clear()
    closed_at_run.clear()
    return 'ok'


def do(what, *words):
    if what in RANGES:
        return ranges(what, *words)
    if what in OTHERS:
        return OTHERS[what](*words)
    name, words = words[0], words[1:]
    if what == 'open':
        files[name] = os.open(words[0], OPEN[words[1]] | os.O_CREAT, 0o666)
        if 'cloexec' in words:
            closed_at_run.add(files[name])
    elif what == 'close':
        os.close(files.pop(name))
    elif what == 'dup':
        files[words[0]] = os.dup(files[name])
    elif what in ('flock', 'flockw'):
        fcntl.flock(files[name], WHOLE[words[0]] | (fcntl.LOCK_NB if what == 'flock' else 0))
    elif what == 'lockf':
        os.lockf(files[name], LOCKF[words[0]], int(words[1]))
    elif what == 'seek':
        return str(os.lseek(files[name], int(words[0]), os.SEEK_SET))
    elif what == 'size':
        return str(os.fstat(files[name]).st_size)
    elif what == 'write':
        return str(os.pwrite(files[name], words[1].encode(), int(words[0])))
    elif what == 'read':
        return 'read ' + os.pread(files[name], int(words[1]), int(words[0])).decode()
    elif what == 'truncate':
        os.ftruncate(files[name], int(words[0]))
    elif what == 'unlink':
        os.unlink(name)
    elif what == 'rename':
        os.rename(name, words[0])
    elif what == 'link':
        os.link(name, words[0])
    elif what == 'mkdir':
        os.mkdir(name)
    elif what == 'cd':
        os.chdir(name)
    return 'ok'


def then(first, *words):
    """Waits for a lock of a whole file by the call `first`, and returns the contents of the file then."""
    name = words[0]
    ranges(first, name, words[1], 'set', '0', '0') if first in RANGES else do(first, *words)
    return do('read', name, '0', '20')


OTHERS = {'fork': fork, 'to': to, 'end': end, 'run': run, 'alarmed': alarmed, 'reset': reset, 'then': then}


def serve(requests, answers):
    while line := requests.readline():
        try:
            result = do(*line.split())
        except OSError as error:
            result = errno.errorcode[error.errno]
        print(result, file=answers, flush=True)


os.chdir(sys.argv[1])
files.update(json.loads(sys.argv[2]) if len(sys.argv) > 2 else {})
print('ready', os.getpid(), flush=True)
serve(sys.stdin, sys.stdout)
