/* Reads a file of a region where it lies. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "keelmem.h"

#define CHECK(condition)                                                  \
    do {                                                                  \
        if (!(condition)) {                                               \
            fprintf(stderr, "line %d: %s, errno %d\n", __LINE__, #condition, errno); \
            return 1;                                                     \
        }                                                                 \
    } while (0)

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
    puts("lent");
    return 0;
}
