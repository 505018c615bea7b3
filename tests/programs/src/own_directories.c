// Threads that stop sharing working directory and umask with others (unshare) have their own, and a root that
// was changed is the one that paths begin at.
#include "check.h"
#include <pthread.h>
#include <sched.h>

static pthread_barrier_t barrier;

static void *work(void *argument) {
    const char *name = argument;
    MUST(unshare(CLONE_FS) == 0);
    umask(name[0] == '1' ? 077 : 022);
    MUST(chdir(name) == 0);
    pthread_barrier_wait(&barrier);
    int file = open("here", O_WRONLY | O_CREAT, 0666);
    CHECK(file >= 0 && write(file, name, 1) == 1);
    close(file);
    pthread_barrier_wait(&barrier);
    return NULL;
}

int main(int count, char **arguments) {
    enter(count, arguments);
    pthread_t threads[3];
    char *names[] = {"1", "2", "3"};
    pthread_barrier_init(&barrier, NULL, 4);
    for (int i = 0; i < 3; i++) {
        MUST(mkdir(names[i], 0755) == 0);
        pthread_create(&threads[i], NULL, work, names[i]);
    }
    pthread_barrier_wait(&barrier);
    CHECK(!exists("here"));
    close(open("main", O_WRONLY | O_CREAT, 0666));
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    CHECK(holds("1/here", "1") && holds("2/here", "2") && holds("3/here", "3"));
    struct stat status;
    CHECK(stat("1/here", &status) == 0 && (status.st_mode & 0777) == 0600);
    CHECK(stat("2/here", &status) == 0 && (status.st_mode & 0777) == 0644);
    CHECK(exists("main") && !exists("1/main"));
    if (geteuid() == 0) {
        CHILD(
            CHECK(chroot("1") == 0);
            CHECK(exists("here") == 0 && exists("2"));
            CHECK(exists("/here") && !exists(arguments[1]));
            CHECK(chdir("/") == 0 && exists("here") && !exists("../2")));
        CHECK(exists("2") && exists(arguments[1]));
    }
    return finish();
}
