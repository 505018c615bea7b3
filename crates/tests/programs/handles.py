"""File handles on two mounts of an instance and on one of another instance: run by root, prints each result.

A handle from one mount is opened through the other, whose kernel has never seen the file."""
import ctypes, errno, os, random, sys, time

one, two, other = sys.argv[1:4]
libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, BYTES_MAX = -100, 128


def check(answer):
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer


def handle_of(path):
    """The length, the type and the bytes of the handle."""
    handle = ctypes.create_string_buffer(BYTES_MAX.to_bytes(4, 'little') + bytes(4 + BYTES_MAX))
    mount = ctypes.c_int()
    check(libc.name_to_handle_at(AT_FDCWD, path.encode(), handle, ctypes.byref(mount), 0))
    return handle.raw[:8 + int.from_bytes(handle.raw[:4], 'little')]


def opened(mount, handle, flags=os.O_RDONLY):
    at = os.open(mount, os.O_RDONLY)
    try:
        return check(libc.open_by_handle_at(at, handle, flags))
    finally:
        os.close(at)


def outcome(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]


def contents(mount, handle):
    with open(opened(mount, handle), 'rb') as file:
        return file.read().decode()


def make(mount, text):
    os.makedirs(f'{mount}/d/e')
    with open(f'{mount}/d/e/f', 'w') as file:
        file.write(text)


make(one, 'of one')
make(other, 'of the other')
file, directory = handle_of(f'{one}/d/e/f'), handle_of(f'{one}/d/e')
print('file:', contents(two, file))
with open(opened(two, file, os.O_RDWR), 'r+') as written:
    written.write('by')
print('written:', open(f'{one}/d/e/f').read())
opened_directory = opened(two, directory, os.O_RDONLY | os.O_DIRECTORY)
print('directory:', os.listdir(opened_directory), os.path.relpath(os.readlink(f'/proc/self/fd/{opened_directory}'), two))
print('root:', os.listdir(opened(two, handle_of(one), os.O_RDONLY)))
numbers = [os.stat(f'{mount}/d').st_ino for mount in (one, other)]
print('same number:', numbers[0] == numbers[1])
print('another instance:', outcome(contents, other, file), outcome(opened, other, handle_of(f'{one}/d')))
numbers = random.Random(1)
outcomes = set()
for round in range(2000):
    # Type and length stay; one bit of the rest, or all of it, changes.
    body = bytearray(file[8:])
    if round % 2:
        body[numbers.randrange(len(body))] ^= 1 << numbers.randrange(8)
    else:
        body = numbers.randbytes(len(body))
    outcomes.add(outcome(opened, two, file[:8] + bytes(body)))
print('invented:', sorted(map(str, outcomes)))
os.rename(f'{one}/d/e/f', f'{one}/d/g')
print('moved:', contents(two, file))
held = opened(two, file)
os.unlink(f'{one}/d/g')
print('removed, and open:', contents(two, file), os.read(held, 100).decode())
os.close(held)
os.close(opened_directory)
os.rmdir(f'{one}/d/e')
# A mount may hold a looked-up file a moment longer.
until = time.monotonic() + 20
while outcome(contents, two, file) != 'ESTALE' and time.monotonic() < until:
    pass
print('removed:', outcome(contents, two, file), outcome(contents, one, file), outcome(opened, two, directory))
