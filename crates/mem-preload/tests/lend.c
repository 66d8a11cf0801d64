/* Reads a file of a region where it lies. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keelmem.h"

#define CHECK(condition)                                                  \
    do {                                                                  \
        if (!(condition)) {                                               \
            fprintf(stderr, "line %d: %s, errno %d\n", __LINE__, #condition, errno); \
            return 1;                                                     \
        }                                                                 \
    } while (0)

/* Whether another process finds the lock that this one has. */
static int is_locked(const char *path)
{
    int status = 1;
    pid_t child = fork();

    if (child == 0) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 1};
        int file = open(path, O_RDWR);

        if (file < 0 || fcntl(file, F_GETLK, &lock) != 0)
            _exit(2);
        _exit(lock.l_type == F_WRLCK && lock.l_pid == getppid() ? 0 : 1);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* Record locks go when the process closes any descriptor of the file; none is closed that the program did not open. */
static int keeps_locks(void)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 100};
    struct keel_mem_slice slice = {0};
    int file = open("/keel/locked", O_RDWR | O_CREAT | O_EXCL, 0644);

    CHECK(file >= 0 && ftruncate(file, 9 << 20) == 0);
    CHECK(keel_mem_lend(file, 0, 8 << 20, &slice) == 0);
    keel_mem_release(&slice);
    CHECK(fcntl(file, F_SETLK, &lock) == 0);
    CHECK(is_locked("/keel/locked"));
    CHECK(ftruncate(file, 50) == 0);
    CHECK(is_locked("/keel/locked"));
    CHECK(keel_mem_lend(file, 0, 10, &slice) == 0 && slice.length == 10);
    keel_mem_release(&slice);
    CHECK(is_locked("/keel/locked"));
    CHECK(unlink("/keel/locked") == 0 && close(file) == 0);
    return 0;
}

int main(void)
{
    struct keel_mem_slice slice = {0};
    struct keel_mem_slice other = {0};
    uint64_t moment = 0;
    int file = open("/keel/lent", O_RDWR | O_CREAT | O_EXCL, 0644);

    CHECK(file >= 0);
    CHECK(write(file, "hello, world", 12) == 12);
    CHECK(keel_mem_lend(file, 7, 100, &slice) == 0);
    CHECK(slice.length == 5 && memcmp(slice.bytes, "world", 5) == 0);
    CHECK(keel_mem_moment(&slice, &moment) == 0);
    CHECK(keel_mem_is_still(&slice, moment) == 1);
    CHECK(pwrite(file, "W", 1, 7) == 1);
    CHECK(memcmp(slice.bytes, "World", 5) == 0);
    CHECK(keel_mem_is_still(&slice, moment) == 0);

    CHECK(keel_mem_lend(file, 12, 5, &other) == 0 && other.length == 0 && other.bytes == NULL);
    keel_mem_release(&other);
    CHECK(keel_mem_lend(file, -1, 5, &other) == -1 && errno == EINVAL);
    CHECK(keel_mem_lend(file, 0, 5, NULL) == -1 && errno == EINVAL);
    CHECK(keel_mem_lend(0, 0, 5, &other) == -1 && errno == EBADF);
    CHECK(keel_mem_lend(-1, 0, 5, &other) == -1 && errno == EBADF);
    CHECK(keel_mem_moment(&other, &moment) == -1 && errno == EINVAL);

    /* Shorter, deleted, closed: it can be read still. */
    CHECK(ftruncate(file, 0) == 0);
    CHECK(unlink("/keel/lent") == 0);
    CHECK(close(file) == 0);
    CHECK(memcmp(slice.bytes, "World", 5) == 0);
    keel_mem_release(&slice);
    CHECK(slice.bytes == NULL && slice.length == 0);
    keel_mem_release(&slice);
    keel_mem_release(NULL);
    CHECK(keel_mem_moment(&slice, &moment) == -1 && errno == EINVAL);
    if (keeps_locks() != 0)
        return 1;
    puts("lent");
    return 0;
}
