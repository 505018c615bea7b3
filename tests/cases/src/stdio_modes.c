#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define MUST(x)                                                                                                        \
    do {                                                                                                               \
        if (!(x)) {                                                                                                    \
            printf("line %d: %s: %s\n", __LINE__, #x, strerror(errno));                                                \
            bad = 1;                                                                                                   \
        }                                                                                                              \
    } while (0)
static int bad;
static char d[300];
static char *at(const char *n) {
    static char b[8][400];
    static int i;
    i = (i + 1) % 8;
    snprintf(b[i], 400, "%s/%s", d, n);
    return b[i];
}
static FILE *late;
__attribute__((destructor)) static void end(void) {
    if (d[0]) {
        int f = open(at("destructor"), O_CREAT | O_WRONLY, 0644);
        write(f, "d", 1);
    }
}
static void tls(void *a) {
    int f = open(at("tls"), O_CREAT | O_WRONLY, 0644);
    write(f, "t", 1);
    close(f);
}
static pthread_key_t key;
static void *th(void *a) {
    pthread_setspecific(key, d);
    return 0;
}
static void ex(void) {
    FILE *f = fopen(at("atexit"), "w");
    fputs("x", f);
}
int main(int c, char **v) {
    strcpy(d, v[1]);
    char b[100] = {0};
    FILE *f = fopen(at("a"), "w");
    fputs("0123456789", f);
    fclose(f);
    f = fopen(at("a"), "rm");
    MUST(f && fread(b, 1, 99, f) == 10);
    fseek(f, 3, SEEK_SET);
    MUST(fgetc(f) == '3');
    ungetc('Q', f);
    MUST(fgetc(f) == 'Q' && fgetc(f) == '4');
    fclose(f);
    MUST(!fopen(at("a"), "wx") && errno == EEXIST);
    f = fopen(at("a"), "a+");
    MUST(fgetc(f) == '0');
    fputs("ab", f);
    rewind(f);
    MUST(fgetc(f) == '0');
    fseek(f, 0, SEEK_END);
    MUST(ftell(f) == 12);
    fclose(f);
    f = fopen(at("a"), "r+e");
    fseek(f, 2, SEEK_SET);
    fputc('X', f);
    fflush(f);
    MUST(fgetc(f) == '3');
    fclose(f);
    f = fopen(at("big"), "w");
    static char buf[1 << 20];
    setvbuf(f, buf, _IOFBF, sizeof buf);
    for (int i = 0; i < 300000; i++)
        fprintf(f, "%09d\n", i);
    MUST(ftello(f) == 3000000);
    MUST(fclose(f) == 0);
    f = fopen(at("big"), "rm");
    fseeko(f, 2999990, SEEK_SET);
    MUST(fgets(b, 99, f) && atoi(b) == 299999);
    f = freopen(at("a"), "r", f);
    MUST(f && fgetc(f) == '0');
    fclose(f);
    int g = open(at("a"), O_RDWR);
    f = fdopen(g, "r+");
    MUST(fileno(f) == g);
    fclose(f);
    char cmd[500];
    snprintf(cmd, 500, "cat >%s", at("pipe"));
    f = popen(cmd, "w");
    fputs("piped", f);
    MUST(pclose(f) == 0);
    f = fopen(at("pipe"), "r");
    MUST(fgets(b, 99, f) && !strcmp(b, "piped"));
    fclose(f);
    pthread_key_create(&key, tls);
    pthread_t t;
    pthread_create(&t, 0, th, 0);
    pthread_join(t, 0);
    MUST(access(at("tls"), F_OK) == 0);
    late = fopen(at("late"), "w");
    fputs("not flushed by hand", late);
    atexit(ex);
    setenv("TMPDIR", d, 1);
    char *n = tempnam(d, "x");
    MUST(n && !strncmp(n, d, strlen(d)));
    exit(bad);
}
