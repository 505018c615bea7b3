# shellcheck shell=bash
# Prints the results of calls on extended attributes in an empty directory: 89-xattr-names.sh compares them with
# those on ext4, within its size limits.
umask 022
: >f; mkdir d; ln -s f l; mkfifo p; mkdir s; chmod 1777 s
python3 -B - <<'P'
import errno, os

def t(what, call, *arguments, **more):
    try:
        result = call(*arguments, **more)
    except OSError as error:
        result = errno.errorcode[error.errno]
    print(what, result)

names = lambda path, **more: sorted(os.listxattr(path, **more))
t('empty', names, 'f')
for path in 'f', 'd', 's':
    for name in 'user.a', 'trusted.a', 'security.a', 'system.a', 'other.a', 'user.', 'user', '', 'user.' + 'n' * 250, 'user.' + 'n' * 251:
        t(f'set {path} {name}', os.setxattr, path, name, b'value')
        t(f'get {path} {name}', os.getxattr, path, name)
    t(f'names {path}', names, path)
t('create', os.setxattr, 'f', 'user.a', b'1', os.XATTR_CREATE)
t('replace', os.setxattr, 'f', 'user.b', b'1', os.XATTR_REPLACE)
t('both', os.setxattr, 'f', 'user.b', b'1', 3)
t('unknown flag', os.setxattr, 'f', 'user.b', b'1', 4)
t('replaced', os.setxattr, 'f', 'user.a', b'new', os.XATTR_REPLACE)
t('get', os.getxattr, 'f', 'user.a')
t('too big', os.setxattr, 'f', 'user.big', b'x' * 65537)
t('2 KiB', os.setxattr, 'f', 'user.big', b'x' * 2048)
t('big', lambda: len(os.getxattr('f', 'user.big')))
t('nothing', os.setxattr, 'f', 'user.none', b'')
t('nothing', os.getxattr, 'f', 'user.none')
for path in 'l', 'p':
    t(f'{path} user', os.setxattr, path, 'user.a', b'1', follow_symlinks=False)
    t(f'{path} get', os.getxattr, path, 'user.a', follow_symlinks=False)
    t(f'{path} trusted', os.setxattr, path, 'trusted.a', b'1', follow_symlinks=False)
    t(f'{path} names', names, path, follow_symlinks=False)
t('through the link', os.getxattr, 'l', 'user.a')
t('remove', os.removexattr, 'f', 'user.a')
t('remove', os.removexattr, 'f', 'user.a')
t('names', names, 'f')
before = os.stat('f')
os.setxattr('f', 'user.c', b'1')
after = os.stat('f')
print('time of change', after.st_ctime_ns > before.st_ctime_ns, after.st_mtime_ns == before.st_mtime_ns)
P
# Buffers that are too small: the system calls themselves.
python3 -B - <<'P'
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
room = ctypes.create_string_buffer(4)
for what, result in (
    ('get', libc.getxattr(b'f', b'user.big', room, 4)),
    ('get size', libc.getxattr(b'f', b'user.big', None, 0)),
    ('list', libc.listxattr(b'f', room, 4)),
    ('list size', libc.listxattr(b'f', None, 0)),
):
    print(what, result, errno.errorcode[ctypes.get_errno()] if result < 0 else '')
P
# A program loses its capabilities by a write, a truncation and a change of owner.
[ "$(id -u)" = 0 ] || exit 0
python3 -B - <<'P'
import errno, os, struct

CAPABILITY = struct.pack('<IIIII', 0x02000001, 1 << 10, 0, 0, 0)

def has(path):
    try:
        return len(os.getxattr(path, 'security.capability'))
    except OSError as error:
        return errno.errorcode[error.errno]

def write(path):
    with open(path, 'r+b') as file:
        file.write(b'x')

def held(path):
    with open(path, 'r+b') as file:
        file.seek(0, 2)
        file.write(b'y')
        file.flush()

for what in (write, held, lambda path: os.truncate(path, 1), lambda path: os.chown(path, 1, -1),
             lambda path: os.chmod(path, 0o700), lambda path: os.rename(path, path), lambda path: open(path).read()):
    with open('c', 'wb') as file:
        file.write(b'program')
    os.setxattr('c', 'security.capability', CAPABILITY)
    before = has('c')
    what('c')
    print(before, has('c'))
P
