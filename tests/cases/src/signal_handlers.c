// The handler of a timer writes to files while the program is inside calls on files. It starts the timer again at
// its end, so that the program gets on however slow the file system is.
#include "../../programs/src/check.h"
#include <sys/time.h>

static int ticked;
static volatile sig_atomic_t ticks, is_over;

static void start(void) {
    struct itimerval soon = {.it_value = {0, 300}};
    setitimer(ITIMER_REAL, &soon, NULL);
}

static void on_tick(int number) {
    int before = errno;
    ticks++;
    CHECK(write(ticked, "tick\n", 5) == 5);
    struct stat status;
    CHECK(stat("main", &status) == 0);
    int fd = open("handler", O_WRONLY | O_CREAT | O_APPEND, 0644);
    CHECK(fd >= 0 && write(fd, "h", 1) == 1 && close(fd) == 0);
    if (!is_over) start();
    errno = before;
}

int main(int count, char **arguments) {
    static char block[100000];
    enter(count, arguments);
    ticked = open("ticked", O_WRONLY | O_CREAT | O_APPEND, 0644);
    int file = make("main", "");
    MUST(ticked >= 0);
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    start();
    for (int round = 0; round < 400; round++) {
        char name[16];
        snprintf(name, sizeof name, "r%d", round % 7);
        MUST(write(file, block, sizeof block) == sizeof block);
        int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0644);
        MUST(fd >= 0 && close(fd) == 0);
        MUST(rename(name, "renamed") == 0 && unlink("renamed") == 0);
        if (round % 100 == 99) MUST(ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0);
    }
    // The last tick may be on its way.
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    MUST(sigprocmask(SIG_BLOCK, &alarm, NULL) == 0);
    is_over = 1;
    CHECK(ticks > 0 && size_of("ticked") == 5L * ticks && size_of("handler") == ticks);
    CHECK(write(file, "on", 2) == 2);
    return finish();
}
