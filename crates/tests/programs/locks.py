"""Locks of ranges by three processes, of processes and of open files, at random: run in an empty directory,
prints what each call comes to.

The output is compared with that of the same on tmpfs (crates/tests/tests/locals.rs)."""
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
        # What a child inherits is not its own, and its closing ends nothing of its parent's.
        child = os.fork()
        if child == 0:
            for file in files.values():
                os.close(file)
            os._exit(0)
        os.waitpid(child, 0)
    else:
        kind, start, length = words
        asked = struct.pack('hhqqi4x', KINDS[kind], os.SEEK_SET, start, length, 0)
        told = struct.unpack('hhqqi4x', fcntl.fcntl(files[name], COMMANDS[what], asked))
        return 'free' if told[0] == fcntl.F_UNLCK else 'said'
    return 'done'


def serve(requests, answers):
    for line in requests:
        if line == 'end\n':
            return
        words = [int(word) if word.lstrip('-').isdigit() else word for word in line.split()]
        try:
            said = do(*words)
        except KeyError:
            said = 'closed'
        except OSError as error:
            said = errno.errorcode[error.errno]
        print(said, file=answers, flush=True)


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
        # Others have copies of the pipe.
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
            # All of a process's go with it.
            processes[number].end()
            processes[number] = Process()
    for process in processes:
        process.end()

# A child that has the file open holds no lock of its parent's when that ends.
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
        asked = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 100, 1, 0)
        print(how, struct.unpack('hhqqi4x', fcntl.fcntl(file, fcntl.F_GETLK, asked))[0] == fcntl.F_UNLCK)
        os.close(go)
