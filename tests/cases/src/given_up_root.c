// A program that gives up root for good keeps nothing of the instance's memory, by whichever call: it is then a program of
// another user. One that can return to root keeps what it has.
// usage: program DIRECTORY; prints nothing and ends with 0, or with 77 where the caller may not change users.
#include "check.h"
#include <grp.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { NOBODY = 65534 };

// Mappings of memory that is shared with other processes, and descriptors of files and sockets of the instance.
static int kept(void) {
    char line[4096], link[64], target[4096];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    MUST(maps != NULL);
    while (fgets(line, sizeof line, maps)) {
        count += strstr(line, "/dev/shm/") != NULL || strstr(line, "/memfd:") != NULL;
    }
    fclose(maps);
    for (int fd = 3; fd < 5000; fd++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, target, sizeof target - 1);
        if (length < 0) continue;
        target[length] = 0;
        count += !strncmp(target, "/dev/shm/", 9) || !strncmp(target, "/memfd:", 7) || !strncmp(target, "socket:", 7);
    }
    return count;
}

// Makes the library map more than it does for one file: its tables grow with the number of files, and
// memory of a file longer than all that it maps at a time.
static void use_much(const char *directory) {
    enum { FILES = 16000, MEBIBYTES = 40 };
    static char block[1 << 20];
    char name[4096];
    struct stat status;
    for (int round = 0; round < 2; round++) {
        for (int number = 0; number < FILES; number++) {
            snprintf(name, sizeof name, "%s/%d", directory, number);
            if (round == 0) MUST(close(open(name, O_WRONLY | O_CREAT, 0600)) == 0);
            MUST(stat(name, &status) == 0);
        }
    }
    snprintf(name, sizeof name, "%s/long", directory);
    int file = open(name, O_RDWR | O_CREAT, 0600);
    MUST(file >= 0);
    for (int number = 0; number < MEBIBYTES; number++) MUST(write(file, block, sizeof block) == sizeof block);
    for (off_t at = 0; at < MEBIBYTES << 20; at += sizeof block) MUST(pread(file, block, sizeof block, at) == sizeof block);
    close(file);
}

// How root is given up.
static int by_setuid(void) { return setuid(NOBODY); }
static int by_setresuid(void) { return setresuid(NOBODY, NOBODY, NOBODY); }
static int by_setreuid(void) { return setreuid(NOBODY, NOBODY); }
static int with_groups(void) { return setgroups(0, NULL) || setgid(NOBODY) || setuid(NOBODY); }
static int in_two_steps(void) { return setresuid(-1, NOBODY, -1) || setresuid(NOBODY, -1, NOBODY); }
static int by_fork(void) {
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) return setuid(NOBODY);
    int status;
    MUST(waitpid(child, &status, 0) == child);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
}

static void give_up(int (*way)(void), const char *secret) {
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        char byte;
        int open_before = open(secret, O_RDWR | O_CLOEXEC);
        MUST(open_before >= 0);
        CHECK(pread(open_before, &byte, 1, 0) == 1 && byte == 's');
        CHECK(pwrite(open_before, "t", 1, 1) == 1);
        CHECK(kept() > 0);
        MUST(way() == 0);
        CHECK(kept() == 0);
        CHECK(getuid() == NOBODY && setuid(0) == -1);
        CHECK(open(secret, O_RDONLY) == -1);
        // Over a mount the file stays open; without one nothing of it is read.
        ssize_t count = pread(open_before, &byte, 1, 0);
        CHECK(count == -1 || (count == 1 && byte == 's'));
        struct stat status;
        CHECK(stat("/proc/self/status", &status) == 0);
        _exit(failures != 0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int count, char **arguments) {
    MUST(count == 2);
    if (getuid() != 0) return 77;
    char secret[4096], byte;
    snprintf(secret, sizeof secret, "%s/secret", arguments[1]);
    int file = open(secret, O_RDWR | O_CREAT, 0600);
    MUST(file >= 0 && write(file, "s.", 2) == 2);
    use_much(arguments[1]);
    int (*ways[])(void) = {by_setuid, by_setresuid, by_setreuid, with_groups, in_two_steps, by_fork};
    for (size_t index = 0; index < sizeof ways / sizeof *ways; index++) give_up(ways[index], secret);
    CHECK(pread(file, &byte, 1, 1) == 1 && byte == 't');
    // What would end or be lost in silence is refused, and the process goes on as root.
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    CHECK(fcntl(file, F_SETLK, &lock) == 0);
    int errors = dup(2), nothing = open("/dev/null", O_WRONLY);
    MUST(errors >= 0 && dup2(nothing, 2) == 2);
    int outcome = setuid(NOBODY), why = errno;
    MUST(dup2(errors, 2) == 2);
    CHECK(outcome == -1 && why == EPERM);
    CHECK(getuid() == 0 && pread(file, &byte, 1, 0) == 1 && byte == 's');
    // A process that can return to root goes on as before.
    CHECK(seteuid(NOBODY) == 0 && kept() > 0 && open(secret, O_RDONLY) == -1);
    CHECK(seteuid(0) == 0 && pread(file, &byte, 1, 0) == 1 && byte == 's');
    return failures != 0;
}
