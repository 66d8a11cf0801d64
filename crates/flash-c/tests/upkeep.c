/*
 * Checking, mending and enlarging stores from C, and what a child process may do with those of its parent. Run by
 * tests/c_programs.rs, also under the sanitizers.
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keelflash.h"

#define BLOCK_BYTES 4096
#define CONTENT_BYTES 20000

static int failures;

#define EXPECT(call, code)                                                                              \
    do {                                                                                                \
        int32_t got = (call);                                                                           \
        if (got != (code)) {                                                                            \
            fprintf(stderr, "line %d: %s: %s (%s), not %s\n", __LINE__, #call, keelflash_error_name(got), \
                    keelflash_last_error(), keelflash_error_name(code));                                \
            failures++;                                                                                 \
        }                                                                                               \
    } while (0)

#define OK(call) EXPECT(call, KEELFLASH_OK)

static void check(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        failures++;
    }
}

/* Bytes without a pattern, so that no block of them looks like another. */
static void fill(unsigned char *bytes, size_t count) {
    uint32_t state = 1;
    for (size_t index = 0; index < count; index++) {
        state = state * 1664525u + 1013904223u;
        bytes[index] = (unsigned char)(state >> 24);
    }
}

/* Changes a byte in every block that holds `part`, but for the first `spared` of them; answers how many those were. */
static int damage(const char *image, const void *part, size_t length, int spared) {
    unsigned char block[BLOCK_BYTES];
    int damaged = 0;
    FILE *file = fopen(image, "r+b");
    for (long number = 0; fseek(file, number * BLOCK_BYTES, SEEK_SET) == 0 &&
                          fread(block, 1, sizeof block, file) == sizeof block;
         number++) {
        int found = 0;
        for (size_t at = 0; at + length <= sizeof block && !found; at++) {
            found = memcmp(block + at, part, length) == 0;
        }
        if (found && spared-- <= 0) {
            block[100] ^= 0xff;
            fseek(file, number * BLOCK_BYTES, SEEK_SET);
            check(fwrite(block, 1, sizeof block, file) == sizeof block, "cannot damage the image");
            damaged++;
        }
    }
    fclose(file);
    return damaged;
}

struct seen {
    int problems;
    int mended;
    int lost;
    int ends_after;
    char file[100];
    keelflash_store *store;
};

static int see(void *context, const keelflash_problem *problem) {
    struct seen *seen = context;
    keelflash_file_stat stat;
    seen->problems++;
    seen->mended += (int)problem->is_mended;
    seen->lost += (int)problem->is_data_lost;
    check(strlen(problem->text) > 10, "a problem without words");
    check(problem->block == KEELFLASH_NO_BLOCK || problem->block < 4096, "a block that is not in the store");
    if (problem->file != NULL) {
        snprintf(seen->file, sizeof seen->file, "%s", problem->file);
    }
    if (seen->store != NULL) {
        EXPECT(keelflash_stat(seen->store, "a", &stat), KEELFLASH_BUSY);
    }
    return seen->problems == seen->ends_after;
}

static void check_and_repair(const char *image) {
    static unsigned char content[CONTENT_BYTES], back[CONTENT_BYTES];
    keelflash_store *store;
    keelflash_file *file;
    keelflash_check_report report;
    struct seen seen;
    size_t bytes;

    fill(content, sizeof content);
    OK(keelflash_format(image, 1 << 23, 10, 0, 0, &store));
    OK(keelflash_replace(store, "a", content, sizeof content));
    OK(keelflash_create_file(store, "log", &file));
    /* What is not durable yet is no damage. */
    OK(keelflash_append_nosync(file, "x", 1));
    memset(&seen, 0, sizeof seen);
    OK(keelflash_check(store, see, &seen, &report, sizeof report));
    check(seen.problems == 0 && report.problems == 0 && report.files == 2 && report.is_data_lost == 0, "a whole store");
    check(report.blocks_verified == CONTENT_BYTES / KEELFLASH_BLOCK_DATA_BYTES + 2, "other blocks than there are");
    OK(keelflash_check(store, NULL, NULL, NULL, 0));
    EXPECT(keelflash_check(store, NULL, NULL, &report, sizeof report - 1), KEELFLASH_INVALID);
    EXPECT(keelflash_check(NULL, NULL, NULL, NULL, 0), KEELFLASH_INVALID);
    /* Nobody repairs or enlarges what is open. */
    EXPECT(keelflash_repair(image, NULL, NULL, NULL, 0), KEELFLASH_BUSY);
    EXPECT(keelflash_grow(image, 0, 0), KEELFLASH_BUSY);
    OK(keelflash_close(store));
    OK(keelflash_repair(image, see, &seen, &report, sizeof report));
    check(report.problems == 0 && report.blocks_written == 0 && report.files == 2, "a whole store was repaired");

    /* A block of a file: its bytes are gone, and only they. */
    check(damage(image, content + 10000, 32, 0) == 1, "no such block");
    OK(keelflash_open(image, 0, 0, &store));
    seen.store = store;
    EXPECT(keelflash_check(store, see, &seen, &report, sizeof report), KEELFLASH_CORRUPT);
    check(strstr(keelflash_last_error(), "file \"a\"") != NULL, keelflash_last_error());
    check(seen.problems == 1 && seen.lost == 1 && strcmp(seen.file, "a") == 0, "the problem of the file");
    check(report.problems == 1 && report.problems_left == 1 && report.is_data_lost == 1, "the report of the file");
    OK(keelflash_open_file(store, "a", &file));
    EXPECT(keelflash_read(file, 0, back, sizeof back, &bytes), KEELFLASH_CORRUPT);
    int unreadable = 0;
    for (size_t offset = 0; offset < sizeof content; offset += KEELFLASH_BLOCK_DATA_BYTES) {
        if (keelflash_read(file, offset, back, KEELFLASH_BLOCK_DATA_BYTES, &bytes) == KEELFLASH_OK) {
            check(memcmp(back, content + offset, bytes) == 0, "other bytes than were written");
        } else {
            unreadable++;
        }
    }
    check(unreadable == 1, "more is lost than was damaged");
    OK(keelflash_close(store));
    memset(&seen, 0, sizeof seen);
    EXPECT(keelflash_repair(image, see, &seen, &report, sizeof report), KEELFLASH_CORRUPT);
    check(strstr(keelflash_last_error(), "data lost") != NULL, keelflash_last_error());
    check(report.problems_left == 1 && report.is_data_lost == 1, "the report of what stays");

    /* One copy of the superblock: mended. (Opening for writing would have mended it, too.) */
    OK(keelflash_open(image, 0, 0, &store));
    OK(keelflash_delete(store, "a"));
    OK(keelflash_close(store));
    check(damage(image, "KEELFLSH", 8, 1) >= 1, "no second superblock");
    memset(&seen, 0, sizeof seen);
    OK(keelflash_repair(image, see, &seen, &report, sizeof report));
    check(seen.mended == seen.problems && seen.problems >= 1 && seen.lost == 0, "not mended");
    check(report.problems_left == 0 && report.blocks_written >= 1, "the report of what was mended");

    /* Both copies of a name: the file comes back under another one. */
    OK(keelflash_open(image, 0, 0, &store));
    OK(keelflash_replace(store, "precious.dat", content, sizeof content));
    OK(keelflash_close(store));
    check(damage(image, "precious.dat", 12, 0) >= 2, "no such name");
    memset(&seen, 0, sizeof seen);
    EXPECT(keelflash_repair(image, see, &seen, &report, sizeof report), KEELFLASH_CORRUPT);
    check(report.files_renamed >= 1 && report.problems_left <= 1, "the report of what came back");
    memset(&seen, 0, sizeof seen);
    seen.ends_after = 1;
    EXPECT(keelflash_repair("/nonexistent/x", see, &seen, NULL, 0), KEELFLASH_NOT_FOUND);
    EXPECT(keelflash_repair(NULL, NULL, NULL, NULL, 0), KEELFLASH_INVALID);
    check(seen.problems == 0, "a problem of nothing");
}

static void grow(const char *image) {
    keelflash_store *store;
    keelflash_store_statistics before, after;
    unlink(image);
    OK(keelflash_format(image, 1 << 23, 10, 0, 0, &store));
    OK(keelflash_replace(store, "a", "content", 7));
    OK(keelflash_statistics(store, &before, sizeof before));
    OK(keelflash_close(store));
    OK(keelflash_grow(image, 0, 0));
    OK(keelflash_grow(image, 1 << 24, 0));
    OK(keelflash_grow(image, 20 << 20, KEELFLASH_SPARSE));
    EXPECT(keelflash_grow(image, 1 << 20, 0), KEELFLASH_INVALID);
    EXPECT(keelflash_grow(image, 1 << 25, KEELFLASH_OVERWRITE), KEELFLASH_INVALID);
    EXPECT(keelflash_grow(NULL, 0, 0), KEELFLASH_INVALID);
    EXPECT(keelflash_grow("/nonexistent/x", 1 << 24, 0), KEELFLASH_NOT_FOUND);
    OK(keelflash_open(image, 0, 0, &store));
    OK(keelflash_statistics(store, &after, sizeof after));
    check(after.blocks_total == before.blocks_total + (12 << 20) / BLOCK_BYTES, "not as large as it should be");
    OK(keelflash_check(store, NULL, NULL, NULL, 0));
    OK(keelflash_close(store));
    /* What is no store keeps its length. */
    FILE *file = fopen(image, "wb");
    fputs("letters", file);
    fclose(file);
    EXPECT(keelflash_grow(image, 1 << 20, 0), KEELFLASH_UNSUPPORTED);
    file = fopen(image, "rb");
    fseek(file, 0, SEEK_END);
    check(ftell(file) == 7, "a letter has grown");
    fclose(file);
}

static void children(const char *image) {
    keelflash_store *store, *other;
    keelflash_file *file;
    size_t bytes;
    char byte = 0;
    int status = -1;
    unlink(image);
    OK(keelflash_format(image, 1 << 23, 10, 0, 0, &store));
    OK(keelflash_create_file(store, "a", &file));
    pid_t child = fork();
    if (child == 0) {
        failures = 0;
        EXPECT(keelflash_append(file, "child", 5), KEELFLASH_INVALID);
        check(strstr(keelflash_last_error(), "after fork()") != NULL, keelflash_last_error());
        EXPECT(keelflash_read(file, 0, &byte, 1, &bytes), KEELFLASH_INVALID);
        EXPECT(keelflash_close_file(file), KEELFLASH_INVALID);
        EXPECT(keelflash_delete(store, "a"), KEELFLASH_INVALID);
        EXPECT(keelflash_sync(store), KEELFLASH_INVALID);
        EXPECT(keelflash_close(store), KEELFLASH_INVALID);
        EXPECT(keelflash_open(image, 0, 0, &other), KEELFLASH_BUSY);
        _exit(failures);
    }
    check(child > 0 && waitpid(child, &status, 0) == child, "no child");
    check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child got wrong answers");
    /* The parent has everything as before, and has it alone. */
    OK(keelflash_append(file, "parent", 6));
    EXPECT(keelflash_open(image, 0, 0, &other), KEELFLASH_BUSY);
    OK(keelflash_check(store, NULL, NULL, NULL, 0));
    OK(keelflash_close(store));
    OK(keelflash_open(image, 0, 0, &store));
    OK(keelflash_close(store));
}

int main(int argc, char **argv) {
    if (argc != 2) {
        return 2;
    }
    check_and_repair(argv[1]);
    grow(argv[1]);
    children(argv[1]);
    if (failures == 0) {
        printf("all answers are right\n");
    }
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
