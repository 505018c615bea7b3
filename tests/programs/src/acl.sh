# shellcheck shell=bash
# Prints the results of setfacl and getfacl in an empty directory: 88-acl.sh compares them with those on tmpfs.
umask 022
say() { echo "== $*"; }
say plain
echo x >f; getfacl -c f; stat -c '%a %U' f
say named
setfacl -m u:daemon:rw,g:sys:r f; getfacl -c f; stat -c '%a' f; ls -l f | cut -c1-11
say chmod
chmod 640 f; getfacl -c f; chmod 777 f; getfacl -c f
say mask
setfacl -m m::r f; getfacl -c f; stat -c %a f
say remove
setfacl -b f; getfacl -c f; stat -c %a f
say equivalent
setfacl -m u:daemon:rw f; setfacl -x u:daemon,m f 2>&1; getfacl -c f; listxattr f 2>/dev/null
say default
mkdir d; setfacl -d -m u:daemon:rwx,g:sys:rx,o::- d; getfacl -c d; stat -c %a d; ls -ld d | cut -c1-11
(umask 077; touch d/f; mkdir d/s; mkfifo d/p; ln -s x d/l; mkdir -p d/s/t; echo y >d/s/t/g)
for f in d/f d/s d/p d/s/t d/s/t/g; do getfacl -c $f; stat -c '%a %n' $f; done
stat -c '%a %F' d/l
say default-as-mode
mkdir e; setfacl -d -m u::rwx,g::rx,o::r e; (umask 077; touch e/f; mkdir e/s); stat -c '%a' e/f e/s; getfacl -c e/f e/s
say copy
cp -a d d2; find d2 | sort | xargs getfacl -c
cp --preserve=mode d/s/t/g g2; getfacl -c g2
say rm-default
setfacl -k d; getfacl -c d; (umask 027; touch d/h); stat -c %a d/h
say errors
setfacl -d -m u:daemon:rw f 2>&1 | sed 's/.*: //'
setfacl -m u:daemon:rw d/l 2>&1 | sed 's/.*: //'; 
python3 - <<'P'
import os, struct, errno
def t(what, f, *a):
    try: print(what, f(*a))
    except OSError as e: print(what, errno.errorcode[e.errno])
acl=lambda *e: struct.pack('<I',2)+b''.join(struct.pack('<HHI',*x) for x in e)
A='system.posix_acl_access'; D='system.posix_acl_default'
N=0xffffffff
full=((1,7,N),(2,6,5),(4,4,N),(16,7,N),(32,1,N))
t('v1', os.setxattr,'f',A,struct.pack('<I',1))
t('short', os.setxattr,'f',A,b'\2\0')
t('empty', os.setxattr,'f',A,struct.pack('<I',2))
t('nomask', os.setxattr,'f',A,acl((1,7,N),(2,6,5),(4,4,N),(32,1,N)))
t('order', os.setxattr,'f',A,acl((4,7,N),(1,6,N),(32,1,N)))
t('perm', os.setxattr,'f',A,acl((1,15,N),(4,6,N),(32,1,N)))
t('get none', os.getxattr,'f',A)
t('full', os.setxattr,'f',A,acl(*full))
t('get', os.getxattr,'f',A)
t('list', os.listxattr,'f')
t('default on file', os.setxattr,'f',D,acl(*full))
t('default none on file', os.setxattr,'f',D,struct.pack('<I',2))
t('create flag', os.setxattr,'f',A,acl(*full),os.XATTR_CREATE)
t('remove', os.removexattr,'f',A)
t('remove again', os.removexattr,'f',A)
t('mode', lambda: oct(os.stat('f').st_mode))
t('ids', os.setxattr,'f',A,acl((1,7,3),(2,6,5),(4,4,9),(16,7,1),(32,1,2)))
t('get', os.getxattr,'f',A)
os.chmod('f',0o2771)
t('sgid', lambda: oct(os.stat('f').st_mode))
P
getfacl -c f
