#!/usr/bin/env bash
# A child between vfork and exec changes its directory, umask and user; its parent keeps its own.
. "${BASH_SOURCE[0]%/*}/lib.sh"
need python3 gcc
cd "$D"
mkdir sub outside
# The child is the first of its process to use the files.
(cd "$T" && python3 -I - "$D") <<'E2'
import os, subprocess, sys
place = sys.argv[1]
subprocess.run(['true'], cwd=place + '/sub', check=True)
assert os.getcwd() == os.path.realpath(os.getcwd()) and not os.path.exists('sub')
with open(place + '/first', 'w') as file:
    file.write('of the parent')
subprocess.run(['true'], cwd=place + '/sub', check=True)
assert open(place + '/first').read() == 'of the parent'
E2
python3 - <<'E2'
import os, subprocess
def shell(text, **options):
    return subprocess.run(['sh', '-c', text], check=True, capture_output=True, text=True, **options).stdout
before = os.getcwd()
held = open('held', 'w')
assert shell('pwd', cwd='sub').strip() == before + '/sub'
assert shell('echo child > made; cat made', cwd='sub') == 'child\n'
held.write('kept open')
held.close()
assert os.getcwd() == before
open('result', 'w').write('parent')
assert sorted(os.listdir('.')) == ['first', 'held', 'outside', 'result', 'sub'], os.listdir('.')
assert os.listdir('sub') == ['made'], os.listdir('sub')
assert open('held').read() == 'kept open'
# A child that leaves for a directory of another file system, and one whose directory is missing.
assert shell('pwd', cwd='/').strip() == '/'
assert os.path.exists('result') and os.getcwd() == before
try:
    shell('pwd', cwd='missing')
    raise SystemExit('a missing directory is none')
except FileNotFoundError:
    pass
assert os.path.exists('result') and os.getcwd() == before
os.umask(0o022)
shell('true', umask=0o077)
os.close(os.open('mode', os.O_CREAT | os.O_WRONLY, 0o666))
assert os.stat('mode').st_mode & 0o777 == 0o644, oct(os.stat('mode').st_mode)
if os.geteuid() == 0:
    open('private', 'w').write('secret')
    os.chmod('private', 0o600)
    shell('true', user=65534, group=65534, extra_groups=[])
    assert open('private').read() == 'secret'
    os.close(os.open('owner', os.O_CREAT | os.O_WRONLY, 0o600))
    assert os.stat('owner').st_uid == 0
E2
# Also where a vfork is written out, and fails in the child.
cat >"$T/vforks.c" <<'E2'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static int is(const char *name) { struct stat st; return stat(name, &st) == 0; }
int main(void) {
    pid_t child = vfork();
    if (child == 0) {
        if (chdir("sub") != 0) _exit(1);
        umask(0);
        execl("/no/such/program", "program", (char *)0);
        _exit(2);
    }
    int status;
    waitpid(child, &status, 0);
    if (WEXITSTATUS(status) != 2) { printf("the child ended with %d\n", status); return 1; }
    if (!is("result") || is("made")) { printf("the parent moved\n"); return 1; }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addchdir_np(&actions, "sub");
    posix_spawn_file_actions_addopen(&actions, 1, "spawned", O_CREAT | O_WRONLY | O_TRUNC, 0644);
    char *words[] = {"pwd", 0};
    if (posix_spawnp(&child, "pwd", &actions, 0, words, environ) != 0) return 1;
    waitpid(child, &status, 0);
    if (status != 0 || !is("sub/spawned") || is("spawned") || !is("result")) { printf("spawned in another directory\n"); return 1; }
    return 0;
}
E2
gcc -o "$T/vforks" "$T/vforks.c"
"$T/vforks"
[ "$(cat sub/spawned)" = "$D/sub" ] || fail "the child was in $(cat sub/spawned)"
