"""File handles on two mounts of an instance and one of another: run by root, prints what each comes to.

A handle that one mount gave is opened through the other, whose kernel never heard of the file."""
import ctypes, errno, os, random, sys, time

one, two, other = sys.argv[1:4]
libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, ROOM = -100, 128


def check(answer):
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer


def handle_of(path):
    """Its length, its kind and its bytes."""
    handle = ctypes.create_string_buffer(ROOM.to_bytes(4, 'little') + bytes(4 + ROOM))
    mount = ctypes.c_int()
    check(libc.name_to_handle_at(AT_FDCWD, path.encode(), handle, ctypes.byref(mount), 0))
    return handle.raw[:8 + int.from_bytes(handle.raw[:4], 'little')]


def opened(mount, handle, flags=os.O_RDONLY):
    at = os.open(mount, os.O_RDONLY)
    try:
        return check(libc.open_by_handle_at(at, handle, flags))
    finally:
        os.close(at)


def said(call, *arguments):
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
place = opened(two, directory, os.O_RDONLY | os.O_DIRECTORY)
print('directory:', os.listdir(place), os.path.relpath(os.readlink(f'/proc/self/fd/{place}'), two))
print('root:', os.listdir(opened(two, handle_of(one), os.O_RDONLY)))
numbers = [os.stat(f'{mount}/d').st_ino for mount in (one, other)]
print('same number:', numbers[0] == numbers[1])
print('another instance:', said(contents, other, file), said(opened, other, handle_of(f'{one}/d')))
numbers = random.Random(1)
outcomes = set()
for round in range(2000):
    # Kind and length stay; a bit of the rest, or all of it, is another.
    body = bytearray(file[8:])
    if round % 2:
        body[numbers.randrange(len(body))] ^= 1 << numbers.randrange(8)
    else:
        body = numbers.randbytes(len(body))
    outcomes.add(said(opened, two, file[:8] + bytes(body)))
print('invented:', sorted(map(str, outcomes)))
os.rename(f'{one}/d/e/f', f'{one}/d/g')
print('moved:', contents(two, file))
held = opened(two, file)
os.unlink(f'{one}/d/g')
print('removed, and open:', contents(two, file), os.read(held, 100).decode())
os.close(held)
os.close(place)
os.rmdir(f'{one}/d/e')
# A mount may hold a file that it looked up for a moment longer.
until = time.monotonic() + 20
while said(contents, two, file) != 'ESTALE' and time.monotonic() < until:
    pass
print('removed:', said(contents, two, file), said(contents, one, file), said(opened, two, directory))
