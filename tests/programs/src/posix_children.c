// Children share their parent's memory, or its descriptors, or neither; what a child changes of its own
// (directory, umask, user, descriptors) stays the child's. A fork beside another thread's first call works.
#include "check.h"
#include <pthread.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>

extern char **environ;
static char top[PATH_MAX];

static int ended(pid_t child) {
    int status = -1;
    MUST(waitpid(child, &status, 0) == child);
    return status;
}

static char *path(const char *name) {
    static char text[PATH_MAX + 32];
    snprintf(text, sizeof text, "%s/%s", top, name);
    return text;
}

static mode_t mode_of(const char *name) {
    struct stat status;
    return stat(name, &status) == 0 ? status.st_mode & 07777 : 0;
}

static void keeps_its_directory(void) {
    char before[PATH_MAX], after[PATH_MAX];
    MUST(mkdir("sub", 0755) == 0 && getcwd(before, sizeof before) != NULL);
    int sub = open("sub", O_RDONLY | O_DIRECTORY);
    for (int way = 0; way < 3; way++) {
        pid_t child = -1;
        if (way < 2) {
            child = vfork();
            if (child == 0) {
                if (way == 0 ? chdir("sub") : fchdir(sub)) _exit(1);
                int file = open("of-child", O_WRONLY | O_CREAT, 0644);
                _exit(file < 0 || close(file) != 0);
            }
        } else {
            posix_spawn_file_actions_t actions;
            posix_spawn_file_actions_init(&actions);
            posix_spawn_file_actions_addchdir_np(&actions, "sub");
            char *words[] = {"sh", "-c", "echo >of-child && [ \"$(pwd -P)\" = \"$0\" ]", NULL, NULL};
            char expected[PATH_MAX + 8];
            snprintf(expected, sizeof expected, "%s/sub", before);
            words[3] = expected;
            MUST(posix_spawnp(&child, "sh", &actions, NULL, words, environ) == 0);
        }
        CHECK(ended(child) == 0);
        CHECK(getcwd(after, sizeof after) != NULL && strcmp(before, after) == 0);
        CHECK(exists("sub/of-child") && !exists("of-child"));
        CHECK(unlink("sub/of-child") == 0);
    }
    CHILD(CHECK(chdir("sub") == 0); CHECK(exists("../sub")));
    CHECK(exists("sub"));
    close(sub);
}

static void keeps_its_umask(void) {
    umask(022);
    close(open("first", O_WRONLY | O_CREAT, 0666));
    pid_t child = vfork();
    if (child == 0) {
        umask(077);
        close(open("by-child", O_WRONLY | O_CREAT, 0666));
        _exit(0);
    }
    CHECK(ended(child) == 0);
    close(open("second", O_WRONLY | O_CREAT, 0666));
    CHECK(mode_of("first") == 0644 && mode_of("by-child") == 0600 && mode_of("second") == 0644);
}

static void keeps_its_user(void) {
    if (geteuid() != 0) return;
    close(open("secret", O_WRONLY | O_CREAT, 0600));
    pid_t child = vfork();
    if (child == 0) {
        if (syscall(SYS_setresuid, 65534, 65534, 65534)) _exit(1);
        _exit(open("secret", O_RDONLY) >= 0);
    }
    CHECK(ended(child) == 0);
    int secret = open("secret", O_RDWR);
    CHECK(secret >= 0);
    close(secret);
}

// A process whose first use of the file system is that of its vfork child.
static int first_use_by_child(void) {
    pid_t child = vfork();
    if (child == 0) {
        int file = open(path("first-child"), O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (file < 0 || dup2(file, 9) != 9) _exit(1);
        execlp("sh", "sh", "-c", "echo seen >&9", NULL);
        _exit(2);
    }
    CHECK(ended(child) == 0);
    CHECK(holds(path("first-child"), "seen\n"));
    int one = make(path("of-parent"), "text"), two = dup(one);
    CHECK(two >= 0 && size_of(path("of-parent")) == 4);
    CHECK(close(two) == 0 && close(one) == 0);
    return finish();
}

static volatile int go;

static void *use(void *name) {
    while (!go) continue;
    close(open(path(name), O_WRONLY | O_CREAT, 0644));
    return NULL;
}

// A process that forks while other threads make their first calls.
static int fork_beside_first_use(void) {
    pthread_t threads[3];
    char names[3][8];
    for (int i = 0; i < 3; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i);
        pthread_create(&threads[i], NULL, use, names[i]);
    }
    go = 1;
    for (int i = 0; i < 5; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(300);
            int file = open(path("forked"), O_WRONLY | O_CREAT | O_TRUNC, 0644);
            _exit(file < 0 || write(file, "x", 1) != 1);
        }
        CHECK(ended(child) == 0);
    }
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    return finish();
}

static void again(const char *program, const char *what) {
    pid_t child = fork();
    if (child == 0) {
        execl(program, program, top, what, NULL);
        _exit(9);
    }
    CHECK(ended(child) == 0);
}

// More processes with large tables of descriptors than there is room for: what does not fit is not forked, and no
// child closes a descriptor of its parent.
static void has_its_own_descriptors(void) {
    enum { BLOCK = 1024, CHILDREN_MAX = 480 };
    // Each is as large and slow as a memory checker makes it.
    int most = getenv("MEMORY_IS_WATCHED") == NULL ? CHILDREN_MAX : 16;
    struct rlimit limit = {64 * BLOCK, 64 * BLOCK};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
        MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
        limit.rlim_cur = limit.rlim_max;
        MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    }
    int fd = make("room", "abc"), pipes[2];
    for (rlim_t i = 1; i < limit.rlim_cur / BLOCK - 1; i++) MUST(dup2(fd, i * BLOCK) == (int)(i * BLOCK));
    MUST(pipe(pipes) == 0);
    pid_t children[CHILDREN_MAX];
    int made = 0;
    char byte;
    while (made < most && (children[made] = fork()) >= 0) {
        if (children[made] == 0) _exit(close(fd) || close(pipes[1]) || read(pipes[0], &byte, 1));
        made++;
    }
    CHECK(made == most || errno == EAGAIN);
    close(pipes[1]);
    for (int i = 0; i < made; i++) CHECK(ended(children[i]) == 0);
    CHECK(read(fd, &byte, 1) == 1 && byte == 'a');
    pid_t child = fork();
    if (child == 0) _exit(read(fd, &byte, 1) != 1 || byte != 'b');
    CHECK(child > 0 && ended(child) == 0);
    closefrom(3);
}

int main(int count, char **arguments) {
    MUST(count > 1 && realpath(arguments[1], top) != NULL);
    if (count > 2) return strcmp(arguments[2], "first") == 0 ? first_use_by_child() : fork_beside_first_use();
    again(arguments[0], "first");
    for (int i = 0; i < 30; i++) again(arguments[0], "beside");
    enter(count, arguments);
    keeps_its_directory();
    keeps_its_umask();
    keeps_its_user();
    has_its_own_descriptors();
    return finish();
}
