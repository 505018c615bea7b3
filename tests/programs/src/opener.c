// Opens libraries by dlopen that make system calls of their own, calls them, and closes them again. Arguments: the
// directory under test, "threads" if there are others meanwhile, or "alone", and the libraries.
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>

static volatile int over;
static void *wait_for_end(void *unused) {
    while (!over) usleep(1000);
    return 0;
}

static int maps(void) {
    char line[1000];
    int lines = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, file)) lines++;
    fclose(file);
    return lines;
}

int main(int count, char **arguments) {
    pthread_t thread;
    char directory[PATH_MAX];
    int has_threads = strcmp(arguments[2], "threads") == 0, before = 0;
    if (has_threads) MUST(pthread_create(&thread, 0, wait_for_end, 0) == 0);
    for (int round = 0; round < 30; round++) {
        char *inner[] = {arguments[0], directory, 0};
        snprintf(directory, sizeof directory, "%s/round-%d", arguments[1], round);
        MUST(mkdir(directory, 0755) == 0);
        // Each the first now and then, so that one may be where another has been.
        const char *library = arguments[3 + round % (count - 3)];
        void *opened = dlopen(library, RTLD_NOW);
        if (!opened) fprintf(stderr, "%s\n", dlerror());
        MUST(opened);
        int (*run)(int, char **) = (int (*)(int, char **))dlsym(opened, "run");
        MUST(run && run(2, inner) == 0);
        MUST(dlclose(opened) == 0 && chdir("/") == 0);
        if (round == 9) before = maps();
    }
    CHECK(maps() <= before + 5);
    over = 1;
    if (has_threads) MUST(pthread_join(thread, 0) == 0);
    return failures != 0;
}
