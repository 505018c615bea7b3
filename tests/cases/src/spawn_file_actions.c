#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static char d[300];
static int bad(const char *s) {
    puts(s);
    exit(1);
}
int main(int c, char **v) {
    strcpy(d, v[1]);
    char p[400], b[64];
    snprintf(p, 400, "%s/parent", d);
    if (chdir(d))
        bad("chdir");
    int f = open(p, O_RDWR | O_CREAT, 0644);
    write(f, "parent", 6);
    mkdir("sub", 0755);
    for (int i = 0; i < 60; i++) {
        char o[400];
        snprintf(o, 400, "%s/out%d", d, i);
        posix_spawn_file_actions_t a;
        posix_spawn_file_actions_init(&a);
        posix_spawn_file_actions_addclose(&a, f);
        posix_spawn_file_actions_addopen(&a, 1, o, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        posix_spawn_file_actions_addopen(&a, f, "/dev/null", O_RDONLY, 0);
        posix_spawn_file_actions_addchdir_np(&a, "sub");
        char *av[] = {"sh", "-c", "echo child; echo x >in-sub", 0};
        pid_t k;
        int s;
        int e = posix_spawnp(&k, "sh", &a, 0, av, environ);
        if (e) {
            printf("spawn: %s\n", strerror(e));
            return 1;
        }
        waitpid(k, &s, 0);
        if (s)
            bad("child failed");
        if (pread(f, b, 63, 0) != 6 || memcmp(b, "parent", 6))
            bad("parent's descriptor is another file");
        char w[400];
        if (!getcwd(w, 400) || strcmp(w, d)) {
            char r[400];
            if (!realpath(d, r) || strcmp(w, r))
                bad("parent's directory changed");
        }
        int g = open(o, O_RDONLY);
        if (g < 0 || read(g, b, 63) != 6)
            bad("child's output");
        close(g);
        struct stat t;
        if (stat("sub/in-sub", &t))
            bad("child's directory");
        // By hand.

        k = vfork();
        if (!k) {
            int h = open(o, O_WRONLY | O_APPEND);
            dup2(h, 1);
            dup2(h, f);
            close(h);
            chdir("sub");
            execlp("echo", "echo", "again", (char *)0);
            _exit(9);
        }
        waitpid(k, &s, 0);
        if (s)
            bad("vfork child failed");
        if (pread(f, b, 63, 0) != 6 || memcmp(b, "parent", 6))
            bad("parent's descriptor after vfork");
        if (stat("sub", &t))
            bad("parent's directory after vfork");
        k = vfork();
        if (!k) {
            close(f);
            _exit(0);
        }
        waitpid(k, &s, 0);
        if (write(f, "", 0) < 0)
            bad("closed by the child");
    }
    return 0;
}
