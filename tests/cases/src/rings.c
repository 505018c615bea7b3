#include "../../programs/src/check.h"
#include <liburing.h>

static struct io_uring ring;

// Submits what was prepared, and returns its result.
static int finished(void) {
    struct io_uring_cqe *done;
    MUST(io_uring_submit(&ring) == 1 && io_uring_wait_cqe(&ring, &done) == 0);
    int result = done->res;
    io_uring_cqe_seen(&ring, done);
    return result;
}

// Reads "contents" by the ring, writes "NEW" over its beginning, and reads that as usual. Errors are allowed.
static void use(int fd, const char *name) {
    char text[16] = "";
    io_uring_prep_read(io_uring_get_sqe(&ring), fd, text, sizeof text, 0);
    int got = finished();
    CHECK(got < 0 || (got == 8 && memcmp(text, "contents", 8) == 0));
    io_uring_prep_write(io_uring_get_sqe(&ring), fd, "NEW", 3, 0);
    if (finished() == 3) CHECK(holds(name, "NEWtents"));
    else CHECK(holds(name, "contents"));
}

int main(int count, char **arguments) {
    MUST(count > 1);
    int refused = io_uring_queue_init(8, &ring, 0);
    if (refused) {
        printf("refused: %s\n", strerror(-refused));
        return refused != -ENOSYS && refused != -EPERM;
    }
    int fd = make(arguments[1], "contents");
    use(fd, arguments[1]);
    close(make(arguments[1], "contents"));
    // Opened by the ring itself.
    io_uring_prep_openat(io_uring_get_sqe(&ring), AT_FDCWD, arguments[1], O_RDWR, 0);
    int own = finished();
    if (own >= 0) use(own, arguments[1]);
    return finish();
}
