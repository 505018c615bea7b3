// stdio on files: modes, positions, buffering, re-opening, temporary files.
#include "check.h"

static void modes(void) {
    FILE *f;
    CHECK(!fopen("absent", "r") && errno == ENOENT);
    CHECK(!fopen("absent", "r+") && errno == ENOENT);
    MUST(f = fopen("f", "w"));
    CHECK(fputs("hello\nworld\n", f) >= 0 && fclose(f) == 0);
    MUST(f = fopen("f", "r+"));
    CHECK(fgetc(f) == 'h' && fseek(f, 0, SEEK_CUR) == 0 && fputc('E', f) == 'E' && fclose(f) == 0);
    CHECK(holds("f", "hEllo\nworld\n"));
    MUST(f = fopen("f", "a+"));
    char line[32];
    CHECK(fseek(f, 0, SEEK_SET) == 0 && fgets(line, sizeof line, f) && !strcmp(line, "hEllo\n"));
    rewind(f);
    CHECK(fputs("end\n", f) >= 0 && fflush(f) == 0 && ftell(f) == 16 && fclose(f) == 0);
    CHECK(holds("f", "hEllo\nworld\nend\n"));
    CHECK(!fopen("f", "wx") && errno == EEXIST);
    MUST(f = fopen("new", "w+x"));
    CHECK(fprintf(f, "%d %s", 42, "words") == 8 && fseek(f, 0, SEEK_SET) == 0);
    int number = 0;
    CHECK(fscanf(f, "%d %31s", &number, line) == 2 && number == 42 && !strcmp(line, "words") && fclose(f) == 0);
    MUST(f = fopen("f", "re"));
    CHECK(fcntl(fileno(f), F_GETFD) == FD_CLOEXEC && fputc('x', f) == EOF && errno == EBADF && fclose(f) == 0);
}

static void positions(void) {
    FILE *f;
    MUST(f = fopen("positions", "w+"));
    for (int i = 0; i < 20000; i++) fprintf(f, "%05d\n", i);
    CHECK(fseeko(f, 6 * 12345, SEEK_SET) == 0);
    char line[16];
    CHECK(fgets(line, sizeof line, f) && atoi(line) == 12345);
    CHECK(ungetc('Q', f) == 'Q' && fgetc(f) == 'Q' && fgets(line, sizeof line, f) && atoi(line) == 12346);
    fpos_t here;
    CHECK(fgetpos(f, &here) == 0 && fseek(f, -6, SEEK_END) == 0 && fgets(line, sizeof line, f) && atoi(line) == 19999);
    CHECK(fgetc(f) == EOF && feof(f) && !ferror(f));
    clearerr(f);
    CHECK(fsetpos(f, &here) == 0 && fgets(line, sizeof line, f) && atoi(line) == 12347);
    CHECK(fseek(f, 200000, SEEK_SET) == 0 && fputc('!', f) == '!' && fflush(f) == 0 && size_of("positions") == 200001);
    CHECK(fseek(f, 150000, SEEK_SET) == 0 && fgetc(f) == 0);
    char *text = NULL;
    size_t room = 0;
    rewind(f);
    CHECK(getline(&text, &room, f) == 6 && getdelim(&text, &room, '9', f) == 6 * 8 + 5 && text[52] == '9');
    free(text);
    CHECK(fclose(f) == 0);
}

static void buffers(void) {
    FILE *f;
    static char own[100];
    MUST(f = fopen("unbuffered", "w"));
    CHECK(setvbuf(f, NULL, _IONBF, 0) == 0 && fputs("now", f) >= 0 && holds("unbuffered", "now") && fclose(f) == 0);
    MUST(f = fopen("lines", "w"));
    CHECK(setvbuf(f, NULL, _IOLBF, 4096) == 0 && fputs("part", f) >= 0 && size_of("lines") == 0);
    CHECK(fputs("ial\n", f) >= 0 && holds("lines", "partial\n") && fclose(f) == 0);
    MUST(f = fopen("full", "w"));
    CHECK(setvbuf(f, own, _IOFBF, sizeof own) == 0);
    for (int i = 0; i < 1000; i++) fputc('a' + i % 26, f);
    CHECK(fflush(f) == 0 && size_of("full") == 1000 && fclose(f) == 0);
    MUST(f = fopen("full", "r"));
    static char big[2000];
    CHECK(fread(big, 1, sizeof big, f) == 1000 && big[999] == 'a' + 999 % 26 && feof(f) && fclose(f) == 0);
}

static void reopened(void) {
    FILE *f;
    MUST(f = fopen("first", "w"));
    fputs("one", f);
    MUST(f = freopen("second", "w", f));
    CHECK(fputs("two", f) >= 0 && fclose(f) == 0 && holds("first", "one") && holds("second", "two"));
    int fd = open("second", O_RDWR | O_APPEND);
    MUST(f = fdopen(fd, "a"));
    CHECK(fputs("three", f) >= 0 && fclose(f) == 0 && holds("second", "twothree"));
    FAILS(EBADF, close(fd));
    CHILD({
        CHECK(freopen("third", "w", stdout) != NULL);
        CHECK(printf("to a file\n") == 10 && fflush(stdout) == 0);
        CHECK(system("echo by a shell") == 0);
    });
    CHECK(holds("third", "to a file\nby a shell\n"));
    MUST(f = popen("cat >piped", "w"));
    CHECK(fputs("through", f) >= 0 && pclose(f) == 0 && holds("piped", "through"));
}

static void temporary(void) {
    FILE *f;
    MUST(f = tmpfile());
    CHECK(fputs("x", f) >= 0 && fflush(f) == 0 && fclose(f) == 0);
    char name[] = "tmp-XXXXXX";
    char directory[] = "dir-XXXXXX";
    int fd = mkostemp(name, O_CLOEXEC);
    CHECK(fd >= 0 && size_of(name) == 0 && close(fd) == 0 && remove(name) == 0);
    CHECK(mkdtemp(directory) && remove(directory) == 0 && !exists(directory));
    char *unique = tempnam(NULL, "t");
    CHECK(unique && !exists(unique));
    free(unique);
    static char memory[64];
    MUST(f = fmemopen(memory, sizeof memory, "w+"));
    CHECK(fputs("memory", f) >= 0 && fclose(f) == 0 && !strcmp(memory, "memory"));
}

int main(int count, char **arguments) {
    enter(count, arguments);
    modes();
    positions();
    buffers();
    reopened();
    temporary();
    return finish();
}
