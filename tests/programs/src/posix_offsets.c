// One open file, many descriptors: which of them share the offset, and which exec leaves open.
#include "check.h"
#include <sys/syscall.h>

static char *self;

static void duplicates(void) {
    int fd = make("f", "0123456789");
    int second = dup(fd);
    char byte;
    CHECK(second > fd && read(fd, &byte, 1) == 1 && byte == '0' && read(second, &byte, 1) == 1 && byte == '1');
    CHECK(lseek(second, 0, SEEK_CUR) == 2);
    CHECK(dup2(fd, 100) == 100 && lseek(100, 5, SEEK_SET) == 5 && read(fd, &byte, 1) == 1 && byte == '5');
    CHECK(dup2(fd, fd) == fd && dup3(fd, 101, O_CLOEXEC) == 101 && fcntl(101, F_GETFD) == FD_CLOEXEC && fcntl(100, F_GETFD) == 0);
    FAILS(EINVAL, dup3(fd, fd, 0));
    FAILS(EBADF, dup2(9999, 5));
    FAILS(EBADF, dup(-1));
    int high = fcntl(fd, F_DUPFD, 200);
    CHECK(high >= 200 && fcntl(fd, F_DUPFD_CLOEXEC, 200) > high);
    CHECK(close(fd) == 0 && read(100, &byte, 1) == 1 && byte == '6');
    CHECK(fcntl(100, F_SETFL, O_APPEND) == 0 && (fcntl(second, F_GETFL) & O_APPEND));
    int again = open("f", O_RDONLY);
    CHECK(again == fd && "the lowest number is taken" && read(again, &byte, 1) == 1 && byte == '0');
    int other = make("other", "other");
    CHECK(dup2(other, 100) == 100 && read(100, &byte, 1) == 1 && byte == 'o' && read(second, &byte, 1) == 1 && byte == '7');
    int pipes[2];
    CHECK(pipe(pipes) == 0 && dup2(pipes[1], 100) == 100 && write(100, "p", 1) == 1 && read(pipes[0], &byte, 1) == 1 && byte == 'p');
    CHECK(dup2(second, pipes[0]) == pipes[0] && read(pipes[0], &byte, 1) == 1 && byte == '8');
    CHECK(syscall(SYS_close_range, 90, 300, 0) == 0);
    FAILS(EBADF, fcntl(100, F_GETFD));
    FAILS(EBADF, fcntl(high, F_GETFD));
    CHECK(read(second, &byte, 1) == 1 && byte == '9');
    int kept = fcntl(second, F_DUPFD, 500);
    CHECK(syscall(SYS_close_range, 500, 600, 4 /* CLOSE_RANGE_CLOEXEC */) == 0 && fcntl(kept, F_GETFD) == FD_CLOEXEC);
    closefrom(3);
}

static void forks(void) {
    int fd = make("f", "abcdefghij");
    char byte;
    CHILD({ CHECK(read(fd, &byte, 1) == 1 && byte == 'a' && lseek(fd, 2, SEEK_CUR) == 3); close(fd); });
    CHECK(lseek(fd, 0, SEEK_CUR) == 3 && read(fd, &byte, 1) == 1 && byte == 'd');
    CHILD({ CHILD({ CHECK(read(fd, &byte, 1) == 1 && byte == 'e'); }); CHECK(read(fd, &byte, 1) == 1 && byte == 'f'); });
    CHECK(read(fd, &byte, 1) == 1 && byte == 'g');
    CHILD({ int mine = open("f", O_RDONLY); CHECK(read(mine, &byte, 1) == 1 && byte == 'a'); });
    CHILD({ CHECK(unlink("f") == 0); });
    CHECK(read(fd, &byte, 1) == 1 && byte == 'h' && !exists("f"));
    close(fd);
    pid_t child = vfork();
    if (child == 0) _exit(0);
    CHECK(child > 0 && waitpid(child, NULL, 0) == child);
    // Two writers of one open file never overwrite each other.
    fd = open("both", O_CREAT | O_RDWR | O_TRUNC, 0600);
    pid_t writers[4];
    for (int w = 0; w < 4; w++) {
        if ((writers[w] = fork()) == 0) {
            for (int i = 0; i < 500; i++) if (write(fd, "0123456789", 10) != 10) _exit(1);
            _exit(0);
        }
    }
    for (int w = 0; w < 4; w++) { int status; CHECK(waitpid(writers[w], &status, 0) > 0 && status == 0); }
    CHECK(size_of("both") == 20000 && lseek(fd, 0, SEEK_CUR) == 20000);
    close(fd);
}

// The second half of `execs`: in the new program, 50 is open at its offset, 51 is closed.
static int executed(void) {
    char byte;
    CHECK(read(50, &byte, 1) == 1 && byte == 'c');
    FAILS(EBADF, read(51, &byte, 1));
    CHECK((fcntl(50, F_GETFL) & O_ACCMODE) == O_RDWR && write(50, "D", 1) == 1);
    char here[PATH_MAX];
    CHECK(getcwd(here, sizeof here) && exists("execs"));
    return finish();
}

static void execs(void) {
    int fd = make("execs", "abcdef");
    char byte;
    MUST(dup2(fd, 50) == 50 && dup3(fd, 51, O_CLOEXEC) == 51);
    CHECK(read(fd, &byte, 1) == 1 && read(51, &byte, 1) == 1 && byte == 'b');
    CHILD({ execl(self, self, "--executed", NULL); CHECK(!"exec"); });
    CHECK(holds("execs", "abcDef") && lseek(51, 0, SEEK_CUR) == 4);
    // A failed exec closes nothing.
    CHECK(execl("absent", "absent", NULL) == -1 && errno == ENOENT && lseek(51, 0, SEEK_SET) == 0);
    CHILD({ dup2(fd, 0); lseek(0, 0, SEEK_SET); execlp("cmp", "cmp", "-", "execs", NULL); });
    CHILD({ setenv("PATH", "/usr/bin:/bin", 1); char *none[] = {"PATH=/usr/bin:/bin", NULL}; char *words[] = {"sh", "-c", "test -e execs || test -e /", NULL}; execve("/bin/sh", words, none); });
    close(50), close(51), close(fd);
}

static void appends(void) {
    int fd = make("append", "start"), appender = open("append", O_WRONLY | O_APPEND);
    CHECK(write(appender, "A", 1) == 1 && lseek(appender, 0, SEEK_CUR) == 6);
    CHECK(lseek(appender, 0, SEEK_SET) == 0 && write(appender, "B", 1) == 1 && holds("append", "startAB"));
    CHECK(write(fd, "S", 1) == 1 && holds("append", "StartAB"));
    // Linux appends with pwrite too when O_APPEND is set, whatever the offset.
    CHECK(pwrite(appender, "C", 1, 0) == 1 && holds("append", "StartABC") && lseek(appender, 0, SEEK_CUR) == 7);
    CHECK(ftruncate(appender, 2) == 0 && write(appender, "D", 1) == 1 && holds("append", "StD"));
    struct iovec parts[2] = {{"12", 2}, {"34", 2}};
    CHECK(writev(appender, parts, 2) == 4 && holds("append", "StD1234"));
    close(fd), close(appender);
}

int main(int count, char **arguments) {
    if (count > 1 && !strcmp(arguments[1], "--executed")) return executed();
    static char path[PATH_MAX];
    MUST(self = realpath(arguments[0], path));
    enter(count, arguments);
    duplicates();
    forks();
    execs();
    appends();
    return finish();
}
