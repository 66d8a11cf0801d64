/*
 * Appends readings to a file of a flash store, durably, and reads them back.
 *
 *   log_readings IMAGE [COUNT]
 *
 * Makes the store when there is no such image. Run it again and it goes on where it was, also after a power cut.
 */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "keelflash.h"

#define IMAGE_BYTES (8u << 20)
#define FILES 100
#define NAME "readings"

/* One reading. Records of one length make the file an array. */
struct reading {
    uint64_t number;
    double celsius;
};

/* Says what failed; the library knows why. */
static int failed(const char *what) {
    fprintf(stderr, "log_readings: %s: %s\n", what, keelflash_last_error());
    return EXIT_FAILURE;
}

static int open_store(const char *image, keelflash_store **store) {
    int code = keelflash_open(image, 0, 0, store);
    if (code == KEELFLASH_NOT_FOUND) {
        code = keelflash_format(image, IMAGE_BYTES, FILES, 0, 0, store);
    }
    return code;
}

static int open_log(keelflash_store *store, keelflash_file **file) {
    int code = keelflash_open_file(store, NAME, file);
    return code == KEELFLASH_NOT_FOUND ? keelflash_create_file(store, NAME, file) : code;
}

/* Each reading is on the device before the next one is taken. */
static int append_readings(keelflash_file *file, uint64_t first, uint64_t count) {
    for (uint64_t number = first; number < first + count; number++) {
        struct reading reading;
        memset(&reading, 0, sizeof reading);
        reading.number = number;
        reading.celsius = 20.0 + (double)(number % 50) / 10.0;
        if (keelflash_append(file, &reading, sizeof reading) != KEELFLASH_OK) {
            return failed("append");
        }
    }
    return EXIT_SUCCESS;
}

static int check_readings(keelflash_file *file, uint64_t count) {
    struct reading readings[64];
    uint64_t offset = 0;
    uint64_t number = 0;
    for (;;) {
        size_t bytes = 0;
        if (keelflash_read(file, offset, readings, sizeof readings, &bytes) != KEELFLASH_OK) {
            return failed("read");
        }
        if (bytes == 0) {
            break;
        }
        for (size_t index = 0; index < bytes / sizeof readings[0]; index++, number++) {
            if (readings[index].number != number) {
                fprintf(stderr, "log_readings: reading %" PRIu64 " is missing\n", number);
                return EXIT_FAILURE;
            }
        }
        offset += bytes;
    }
    if (number != count) {
        fprintf(stderr, "log_readings: %" PRIu64 " readings instead of %" PRIu64 "\n", number, count);
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}

static int print_file(void *context, const char *name, const keelflash_file_stat *stat) {
    (void)context;
    printf("%s: %" PRIu64 " bytes in %" PRIu64 " blocks\n", name, stat->length_bytes, stat->blocks);
    return 0;
}

static int run(keelflash_store *store, uint64_t count) {
    keelflash_file *file;
    uint64_t length;
    if (open_log(store, &file) != KEELFLASH_OK) {
        return failed(NAME);
    }
    if (keelflash_length(file, &length) != KEELFLASH_OK) {
        return failed("length");
    }
    uint64_t before = length / sizeof(struct reading);
    if (append_readings(file, before, count) != EXIT_SUCCESS) {
        return EXIT_FAILURE;
    }
    if (check_readings(file, before + count) != EXIT_SUCCESS) {
        return EXIT_FAILURE;
    }
    if (keelflash_close_file(file) != KEELFLASH_OK) {
        return failed("close file");
    }
    if (keelflash_list(store, print_file, NULL) != KEELFLASH_OK) {
        return failed("list");
    }
    keelflash_store_statistics statistics;
    if (keelflash_statistics(store, &statistics, sizeof statistics) != KEELFLASH_OK) {
        return failed("statistics");
    }
    printf("%" PRIu64 " readings more, %" PRIu64 " writes and %" PRIu64 " flushes of the device\n", count,
           statistics.device_writes, statistics.device_flushes);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
    uint64_t count = 100;
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: log_readings IMAGE [COUNT]\n");
        return 2;
    }
    if (argc == 3) {
        char *end;
        errno = 0;
        count = strtoull(argv[2], &end, 10);
        if (errno != 0 || *end != '\0' || end == argv[2]) {
            fprintf(stderr, "log_readings: %s is no count\n", argv[2]);
            return 2;
        }
    }
    keelflash_store *store;
    if (open_store(argv[1], &store) != KEELFLASH_OK) {
        return failed("open");
    }
    int status = run(store, count);
    if (keelflash_close(store) != KEELFLASH_OK && status == EXIT_SUCCESS) {
        status = failed("close");
    }
    return status;
}
