"""Rights of other users: run by root in an empty directory, prints the result of each call.

Its output is compared with that on tmpfs (crates/tests/tests/it/mount/local_rights.rs)."""
import errno, os, stat, struct, sys

ANYONE = 0xFFFFFFFF
ACCESS, DEFAULT = 'system.posix_acl_access', 'system.posix_acl_default'


def acl(*entries):
    return struct.pack('<I', 2) + b''.join(struct.pack('<HHI', *one) for one in entries)


def listed(owner=7, users=(), group=0, groups=(), mask=7, other=0):
    return acl((1, owner, ANYONE), *((2, may, user) for user, may in users), (4, group, ANYONE),
               *((8, may, one) for one, may in groups), (16, mask, ANYONE), (32, other, ANYONE))


def outcome(call, *arguments, **more):
    try:
        return call(*arguments, **more)
    except OSError as error:
        return errno.errorcode[error.errno]


def as_user(user, group, groups, what, call):
    """Makes the call in a child that is another user, and prints its result."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setgroups(groups)
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
        print(f'{what} as {user}:{group}{groups}: {outcome(call)}')
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)


def opened(path, flags):
    def call():
        os.close(os.open(path, flags))
        return 'yes'
    return call


def make(path, mode=0o666, flags=os.O_CREAT | os.O_EXCL | os.O_WRONLY):
    def call():
        os.close(os.open(path, flags, mode))
        found = os.stat(path)
        os.unlink(path)
        return oct(found.st_mode), found.st_uid, found.st_gid
    return call


def mode(path):
    return oct(stat.S_IMODE(os.stat(path).st_mode))


PEOPLE = [(1, 1, []), (2, 2, []), (3, 9, []), (4, 4, [9]), (5, 5, [8, 9]), (6, 6, list(range(100, 140)) + [9])]

os.umask(0)
os.mkdir('lists')
for number, list_ in enumerate([
    listed(users=[(2, 6)], group=4, groups=[(8, 7)], other=1),
    listed(users=[(2, 6)], group=4, groups=[(8, 7)], mask=4, other=1),
    listed(users=[(1, 0), (4, 7)], group=7, other=7),
    listed(users=[(2, 7)], group=0, groups=[(9, 2), (8, 4)], mask=7, other=4),
    listed(users=[(2, 7)], group=7, mask=0, other=5),
]):
    path = f'lists/{number}'
    with open(path, 'w'):
        pass
    os.chown(path, 1, 9)
    os.setxattr(path, ACCESS, list_)
    for user in PEOPLE:
        for name, flags in ('read', os.O_RDONLY), ('write', os.O_WRONLY):
            as_user(*user, f'{name} {path}', opened(path, flags))
        as_user(*user, f'run {path}', lambda: os.access(path, os.X_OK))
    for user in PEOPLE[:3]:
        as_user(*user, f'set {path}', lambda: os.setxattr(path, ACCESS, list_))
        as_user(*user, f'get {path}', lambda: os.getxattr(path, ACCESS))

# Directories with access control lists: rights to list, create and remove.
for number, may in enumerate((7, 5, 3, 1)):
    path = f'directory{number}'
    os.mkdir(path, 0o700)
    with open(f'{path}/file', 'w'):
        pass
    os.setxattr(path, ACCESS, listed(users=[(2, may)]))
    for user in PEOPLE[:3]:
        as_user(*user, f'list {path}', lambda: os.listdir(path))
        as_user(*user, f'stat {path}', lambda: os.stat(f'{path}/file').st_size)
        as_user(*user, f'make {path}', make(f'{path}/new'))
        as_user(*user, f'move {path}', lambda: (os.rename(f'{path}/file', f'{path}/moved'), os.rename(f'{path}/moved', f'{path}/file')))

# A default list, used by another user with a umask.
os.mkdir('inherited')
os.setxattr('inherited', DEFAULT, listed(users=[(2, 6)], group=5, groups=[(9, 7)], other=5))
os.chmod('inherited', 0o777)


def inherit():
    os.umask(0o077)
    with open('inherited/f', 'w'):
        pass
    os.mkdir('inherited/d', 0o750)
    handle = os.open('inherited', os.O_TMPFILE | os.O_RDWR, 0o640)
    directory = os.open('inherited', os.O_RDONLY)
    os.link(f'/proc/self/fd/{handle}', 't', dst_dir_fd=directory, follow_symlinks=True)
    os.close(handle)
    return [(mode(path), sorted(os.listxattr(path))) for path in ('inherited/f', 'inherited/d', 'inherited/t')]


as_user(3, 3, [], 'inherit', inherit)
for user in PEOPLE:
    as_user(*user, 'read an inherited list', opened('inherited/f', os.O_RDONLY))
    as_user(*user, 'write with an inherited list', opened('inherited/t', os.O_WRONLY))

# Groups: a program in forty of them, directories whose group is inherited, and when the set-group-id bit stays.
os.mkdir('group')
os.chown('group', 0, 9)
os.chmod('group', 0o2770)
for user in PEOPLE:
    as_user(*user, 'make in a directory of the group', make('group/new', 0o2775))
    as_user(*user, 'make a directory there', lambda: (os.mkdir('group/sub', 0o775), mode('group/sub'), os.stat('group/sub').st_gid, os.rmdir('group/sub')))
for group in 9, 8:
    for user in PEOPLE:
        with open('owned', 'w'):
            pass
        os.chown('owned', user[0], group)
        as_user(*user, f'chmod g+s in group {group}', lambda: (os.chmod('owned', 0o2775), mode('owned')))
        os.chmod('owned', 0o2775)
        as_user(*user, 'set a list', lambda: (os.setxattr('owned', ACCESS, listed(users=[(2, 6)], group=5)), mode('owned')))
        as_user(*user, 'chown to a group', lambda: (os.chown('owned', -1, 9), os.stat('owned').st_gid, mode('owned')))
        as_user(*user, 'chown to a user', lambda: os.chown('owned', 99, -1))
        os.unlink('owned')

# Sticky directories.
os.mkdir('sticky')
os.chmod('sticky', 0o1777)
for user in PEOPLE[:3]:
    with open('sticky/1', 'w'):
        pass
    os.chown('sticky/1', 1, 1)
    as_user(*user, 'remove', lambda: os.unlink('sticky/1'))
    with open('sticky/1', 'a'):
        pass
    os.chown('sticky/1', 1, 1)
    as_user(*user, 'rename', lambda: os.rename('sticky/1', 'sticky/2'))
    as_user(*user, 'attribute of the directory', lambda: os.setxattr('sticky', 'user.a', b'1'))
    for path in 'sticky/1', 'sticky/2':
        if os.path.exists(path):
            os.unlink(path)

# Extended attributes and set-id bits of others.
with open('plain', 'w'):
    pass
os.chmod('plain', 0o604)
for name in 'user.a', 'trusted.a', 'security.a':
    os.setxattr('plain', name, b'1')
for user in PEOPLE[:2]:
    as_user(*user, 'names', lambda: sorted(os.listxattr('plain')))
    for name in 'user.a', 'trusted.a', 'security.a', 'system.a':
        as_user(*user, f'get {name}', lambda: os.getxattr('plain', name))
        as_user(*user, f'set {name}', lambda: os.setxattr('plain', name, b'2'))
        as_user(*user, f'remove {name}', lambda: os.removexattr('plain', name))
for what, call in (
    ('write', lambda: os.write(os.open('program', os.O_WRONLY), b'x')),
    ('append', lambda: os.write(os.open('program', os.O_WRONLY | os.O_APPEND), b'x')),
    ('truncate', lambda: os.truncate('program', 0)),
    ('truncate an open one', lambda: os.ftruncate(os.open('program', os.O_WRONLY), 100)),
    ('open with O_TRUNC', opened('program', os.O_WRONLY | os.O_TRUNC)),
    ('allocate', lambda: os.posix_fallocate(os.open('program', os.O_WRONLY), 0, 10000)),
    ('touch', lambda: os.utime('program')),
    ('set times', lambda: os.utime('program', (1, 1))),
    ('chmod', lambda: os.chmod('program', 0o777)),
    ('chown to its group', lambda: os.chown('program', -1, os.getgid())),
    ('link', lambda: (os.link('program', 'sticky/linked'), os.unlink('sticky/linked'))),
):
    # In the file's group by the first group, by another, and not.
    for user in (0, 0, []), (1, 1, []), (2, 1, []), (2, 2, [7, 1]), (2, 2, [7]), (1, 2, [7]):
        # Without group execution the set-group-id bit means something else.
        for bits in 0o6777, 0o6767, 0o2666:
            with open('program', 'w') as file:
                file.write('contents')
            os.chown('program', 1, 1)
            os.chmod('program', bits)
            as_user(*user, what, call)
            print(mode('program'), os.path.getsize('program'))
            os.unlink('program')
