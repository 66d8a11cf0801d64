/* Adds up the bytes of a file of a region where they lie, without a copy: `lend FILE`. docs/mem.md builds and runs it. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "keelmem.h"

int main(int count, char **arguments)
{
    struct keel_mem_slice slice = {0};
    struct stat found;
    uint64_t moment = 0;
    uint64_t sum;
    int file;

    if (count != 2) {
        fputs("usage: lend FILE\n", stderr);
        return 2;
    }
    file = open(arguments[1], O_RDONLY);
    if (file < 0 || fstat(file, &found) != 0 || keel_mem_lend(file, 0, (size_t)found.st_size, &slice) != 0) {
        perror(arguments[1]);
        return 1;
    }
    /* Again where somebody has written meanwhile: what was read would be of two moments. */
    do {
        if (keel_mem_moment(&slice, &moment) != 0) {
            perror(arguments[1]);
            return 1;
        }
        sum = 0;
        for (size_t i = 0; i < slice.length; i++)
            sum += ((const unsigned char *)slice.bytes)[i];
    } while (!keel_mem_is_still(&slice, moment));
    printf("%zu bytes, sum %" PRIu64 "\n", slice.length, sum);
    keel_mem_release(&slice);
    return 0;
}
