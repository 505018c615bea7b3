// Queries about a descriptor that do not read it, and signals during file calls.
#include "check.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/vfs.h>

static volatile sig_atomic_t alarms;
static void on_alarm(int number) { (void)number; alarms++; }

// While a timer fires every millisecond, no file call fails or does half its work.
static void signals(void) {
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {0};
    static char block[100000];
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    char name[32];
    for (int i = 0; alarms < 200 && i < 100000; i++) {
        snprintf(name, sizeof name, "s-%d", i % 10);
        memset(block, i, sizeof block);
        int fd = open(name, O_CREAT | O_RDWR | O_TRUNC, 0600);
        CHECK(fd >= 0 && write(fd, block, sizeof block) == sizeof block && pread(fd, block, sizeof block, 0) == sizeof block);
        CHECK(block[0] == (char)i && block[sizeof block - 1] == (char)i && close(fd) == 0);
        if (failures) break;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    CHECK(alarms >= 200);
}

static void readiness(int fd) {
    int pipes[2];
    MUST(pipe(pipes) == 0);
    struct pollfd polled[2] = {{fd, POLLIN | POLLOUT, 0}, {pipes[0], POLLIN, 0}};
    CHECK(poll(polled, 2, 1000) == 1 && polled[0].revents == (POLLIN | POLLOUT) && polled[1].revents == 0);
    fd_set readers, writers;
    FD_ZERO(&readers);
    FD_ZERO(&writers);
    FD_SET(fd, &readers);
    FD_SET(pipes[0], &readers);
    FD_SET(fd, &writers);
    CHECK(select(FD_SETSIZE, &readers, &writers, NULL, &(struct timeval){1, 0}) == 2 && FD_ISSET(fd, &readers) && !FD_ISSET(pipes[0], &readers));
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    // A mount may not refuse it: the kernel lets files of every FUSE file system be watched, as always ready.
    struct statfs here;
    if (fstatfs(fd, &here) == 0 && here.f_type == 0x65735546) CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0 && epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL) == 0);
    else FAILS(EPERM, epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], &event) == 0 && write(pipes[1], "x", 1) == 1 && epoll_wait(epoll, &event, 1, 1000) == 1);
    int bytes = -1;
    CHECK(ioctl(fd, FIONREAD, &bytes) == 0 && bytes == 5);
    FAILS(ENOTTY, ioctl(fd, TIOCGWINSZ, &event));
    CHECK(ioctl(fd, FIOCLEX) == 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
    close(epoll), close(pipes[0]), close(pipes[1]);
}

// inotify reports a change within a second, or the watch is refused.
static void watches(void) {
    int fd = inotify_init1(IN_NONBLOCK);
    if (inotify_add_watch(fd, ".", IN_CREATE | IN_MOVED_TO) < 0) {
        CHECK(errno == ENOSYS || errno == EOPNOTSUPP || errno == ENOENT || errno == ENOSPC);
        return;
    }
    close(make("watched", ""));
    struct pollfd polled = {fd, POLLIN, 0};
    CHECK(poll(&polled, 1, 1000) == 1);
    close(fd);
}

int main(int count, char **arguments) {
    enter(count, arguments);
    int fd = make("f", "12345");
    readiness(fd);
    // A memory checker does not keep the signals blocked that a handler blocks for the code that it interrupts.
    if (getenv("MEMORY_IS_WATCHED") == NULL) signals();
    watches();
    return finish();
}
