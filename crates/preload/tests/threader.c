// A library whose constructor starts a thread that does I/O, ahead of the constructor under test.
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

static void *work(void *argument) {
    char byte;
    for (;;) {
        int file = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
        if (read(file, &byte, 1) != 1) _exit(3);
        close(file);
    }
    return argument;
}

__attribute__((constructor)) static void start(void) {
    static pthread_t thread;
    pthread_create(&thread, 0, work, 0);
    usleep(2000);
}
