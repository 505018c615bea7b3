"""Random range locks by three processes, owned by processes and by open files: run in an empty directory,
prints the result of each call.

Its output is compared with that on tmpfs (crates/tests/tests/it/mount/local_rights.rs)."""
import errno, fcntl, os, random, struct, sys

KINDS = {'r': fcntl.F_RDLCK, 'w': fcntl.F_WRLCK, 'u': fcntl.F_UNLCK}
COMMANDS = {
    'lock': fcntl.F_SETLK, 'ofd': fcntl.F_OFD_SETLK, 'test': fcntl.F_GETLK, 'ofd-test': fcntl.F_OFD_GETLK,
}
HOW = {'r': os.O_RDONLY, 'w': os.O_WRONLY, 'rw': os.O_RDWR}
files = {}


def do(what, name, *words):
    if what == 'open':
        files[name] = os.open('file', HOW[words[0]])
    elif what == 'close':
        os.close(files.pop(name))
    elif what == 'dup':
        os.close(os.dup(files[name]))
    elif what == 'fork':
        # A child owns none of the inherited locks, and its close releases none of its parent's.
        child = os.fork()
        if child == 0:
            for file in files.values():
                os.close(file)
            os._exit(0)
        os.waitpid(child, 0)
    else:
        kind, start, length = words
        request = struct.pack('hhqqi4x', KINDS[kind], os.SEEK_SET, start, length, 0)
        reply = struct.unpack('hhqqi4x', fcntl.fcntl(files[name], COMMANDS[what], request))
        return 'free' if reply[0] == fcntl.F_UNLCK else 'held'
    return 'done'


def serve(requests, answers):
    for line in requests:
        if line == 'end\n':
            return
        words = [int(word) if word.lstrip('-').isdigit() else word for word in line.split()]
        try:
            result = do(*words)
        except KeyError:
            result = 'closed'
        except OSError as error:
            result = errno.errorcode[error.errno]
        print(result, file=answers, flush=True)


class Process:
    def __init__(self):
        (self.read, answers), (requests, self.write) = os.pipe(), os.pipe()
        sys.stdout.flush()
        self.child = os.fork()
        if self.child == 0:
            os.close(self.read)
            os.close(self.write)
            serve(os.fdopen(requests), os.fdopen(answers, 'w'))
            os._exit(0)
        os.close(answers)
        os.close(requests)
        self.answers = os.fdopen(self.read)

    def ask(self, *words):
        os.write(self.write, (' '.join(map(str, words)) + '\n').encode())
        return self.answers.readline().strip()

    def end(self):
        # Other processes have copies of the pipe.
        os.write(self.write, b'end\n')
        os.waitpid(self.child, 0)
        os.close(self.write)
        self.answers.close()


with open('file', 'w') as file:
    file.write('x' * 50)
for seed in range(12):
    numbers = random.Random(seed)
    processes = [Process(), Process(), Process()]
    for number, process in enumerate(processes):
        print(seed, number, process.ask('open', 'a', 'rw'), process.ask('lock', 'a', 'w', number, 1))
    for step in range(200):
        number = numbers.randrange(len(processes))
        what = numbers.choice(4 * ['open'] + ['close', 'dup', 'fork'] + 4 * ['lock', 'ofd'] + 2 * ['test', 'ofd-test'])
        words = [what, numbers.choice('abc')]
        if what == 'open' and processes[number].ask('close', words[1]):
            words.append(numbers.choice(list(HOW)))
        elif what in COMMANDS:
            kinds = 'rwu' if what in ('lock', 'ofd') else 'rw'
            words += [numbers.choice(kinds), numbers.randrange(60), numbers.randrange(12)]
        print(seed, step, number, *words, processes[number].ask(*words))
        if numbers.randrange(60) == 0:
            # The locks of a process end with it.
            processes[number].end()
            processes[number] = Process()
    for process in processes:
        process.end()

# A child that has the file open holds no lock of its parent after the parent's end.
with open('file', 'r+') as file:
    fcntl.lockf(file, fcntl.LOCK_EX, 50)
    for how in 'r', 'rw':
        holds, held = os.pipe()
        goes, go = os.pipe()
        parent = os.fork()
        if parent == 0:
            os.close(go)
            own = os.open('file', HOW[how])
            fcntl.fcntl(own, fcntl.F_SETLK, struct.pack('hhqqi4x', fcntl.F_RDLCK, 0, 100, 1, 0))
            if os.fork() == 0:
                os.read(goes, 1)
                os._exit(0)
            os._exit(0)
        os.waitpid(parent, 0)
        request = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 100, 1, 0)
        print(how, struct.unpack('hhqqi4x', fcntl.fcntl(file, fcntl.F_GETLK, request))[0] == fcntl.F_UNLCK)
        os.close(go)
