/*
 * What a C program can do wrong, and what the library answers. Run by tests/c_programs.rs, also under the sanitizers
 * and from several threads.
 */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "keelflash.h"

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

static void null_everywhere(const char *image) {
    keelflash_store *store = NULL;
    keelflash_file *file = NULL;
    keelflash_file_stat stat;
    keelflash_store_statistics statistics;
    size_t bytes;
    uint64_t length;
    char byte = 0;

    EXPECT(keelflash_format(NULL, 1 << 23, 10, 0, 0, &store), KEELFLASH_INVALID);
    EXPECT(keelflash_format(image, 1 << 23, 10, 0, 0, NULL), KEELFLASH_INVALID);
    EXPECT(keelflash_open(NULL, 0, 0, &store), KEELFLASH_INVALID);
    EXPECT(keelflash_open(image, 0, 0, NULL), KEELFLASH_INVALID);
    EXPECT(keelflash_close(NULL), KEELFLASH_INVALID);
    EXPECT(keelflash_sync(NULL), KEELFLASH_INVALID);
    EXPECT(keelflash_replace(NULL, "a", &byte, 1), KEELFLASH_INVALID);
    EXPECT(keelflash_delete(NULL, "a"), KEELFLASH_INVALID);
    EXPECT(keelflash_rename(NULL, "a", "b"), KEELFLASH_INVALID);
    EXPECT(keelflash_stat(NULL, "a", &stat), KEELFLASH_INVALID);
    EXPECT(keelflash_list(NULL, NULL, NULL), KEELFLASH_INVALID);
    EXPECT(keelflash_bounds(NULL, NULL, NULL), KEELFLASH_INVALID);
    EXPECT(keelflash_statistics(NULL, &statistics, sizeof statistics), KEELFLASH_INVALID);
    EXPECT(keelflash_create_file(NULL, "a", &file), KEELFLASH_INVALID);
    EXPECT(keelflash_open_file(NULL, "a", &file), KEELFLASH_INVALID);
    EXPECT(keelflash_close_file(NULL), KEELFLASH_INVALID);
    EXPECT(keelflash_append(NULL, &byte, 1), KEELFLASH_INVALID);
    EXPECT(keelflash_append_nosync(NULL, &byte, 1), KEELFLASH_INVALID);
    EXPECT(keelflash_write_at(NULL, 0, &byte, 1), KEELFLASH_INVALID);
    EXPECT(keelflash_write_at_nosync(NULL, 0, &byte, 1), KEELFLASH_INVALID);
    EXPECT(keelflash_truncate(NULL, 0), KEELFLASH_INVALID);
    EXPECT(keelflash_read(NULL, 0, &byte, 1, &bytes), KEELFLASH_INVALID);
    EXPECT(keelflash_length(NULL, &length), KEELFLASH_INVALID);
    check(store == NULL && file == NULL, "a failed call has written its output");

    OK(keelflash_format(image, 1 << 23, 10, 20, 0, &store));
    OK(keelflash_create_file(store, "a", &file));
    EXPECT(keelflash_create_file(store, NULL, &file), KEELFLASH_INVALID);
    EXPECT(keelflash_create_file(store, "b", NULL), KEELFLASH_INVALID);
    EXPECT(keelflash_open_file(store, NULL, &file), KEELFLASH_INVALID);
    EXPECT(keelflash_open_file(store, "a", NULL), KEELFLASH_INVALID);
    EXPECT(keelflash_append(file, NULL, 1), KEELFLASH_INVALID);
    OK(keelflash_append(file, NULL, 0));
    EXPECT(keelflash_write_at(file, 0, NULL, 1), KEELFLASH_INVALID);
    EXPECT(keelflash_read(file, 0, NULL, 1, &bytes), KEELFLASH_INVALID);
    EXPECT(keelflash_read(file, 0, &byte, 1, NULL), KEELFLASH_INVALID);
    OK(keelflash_read(file, 0, NULL, 0, &bytes));
    EXPECT(keelflash_length(file, NULL), KEELFLASH_INVALID);
    EXPECT(keelflash_stat(store, "a", NULL), KEELFLASH_INVALID);
    EXPECT(keelflash_stat(store, NULL, &stat), KEELFLASH_INVALID);
    EXPECT(keelflash_replace(store, NULL, &byte, 1), KEELFLASH_INVALID);
    EXPECT(keelflash_replace(store, "a", NULL, 1), KEELFLASH_INVALID);
    EXPECT(keelflash_delete(store, NULL), KEELFLASH_INVALID);
    EXPECT(keelflash_rename(store, NULL, "b"), KEELFLASH_INVALID);
    EXPECT(keelflash_rename(store, "a", NULL), KEELFLASH_INVALID);
    EXPECT(keelflash_list(store, NULL, NULL), KEELFLASH_INVALID);
    EXPECT(keelflash_bounds(store, NULL, NULL), KEELFLASH_INVALID);
    EXPECT(keelflash_statistics(store, NULL, sizeof statistics), KEELFLASH_INVALID);
    EXPECT(keelflash_append(file, &byte, SIZE_MAX), KEELFLASH_INVALID);
    EXPECT(keelflash_read(file, 0, &byte, SIZE_MAX / 2 + 1, &bytes), KEELFLASH_INVALID);
    OK(keelflash_close(store));
}

static void wrong_handles(const char *image) {
    keelflash_store *store, *second;
    keelflash_file *file, *again;
    char byte = 0;
    int not_a_store = 0;

    OK(keelflash_open(image, 0, 0, &store));
    EXPECT(keelflash_open(image, 0, 0, &second), KEELFLASH_BUSY);
    EXPECT(keelflash_open(image, 0, KEELFLASH_READ_ONLY, &second), KEELFLASH_BUSY);
    EXPECT(keelflash_format(image, 0, 10, 0, KEELFLASH_OVERWRITE, &second), KEELFLASH_BUSY);
    OK(keelflash_open_file(store, "a", &file));
    OK(keelflash_open_file(store, "a", &again));
    check(file != again, "two openings have one handle");
    OK(keelflash_close_file(again));
    EXPECT(keelflash_close_file(again), KEELFLASH_GONE);
    EXPECT(keelflash_append(again, &byte, 1), KEELFLASH_GONE);
    OK(keelflash_append(file, &byte, 1));
    /* A handle of the other kind, a pointer to something, a number. */
    EXPECT(keelflash_close_file((keelflash_file *)store), KEELFLASH_INVALID);
    EXPECT(keelflash_close((keelflash_store *)file), KEELFLASH_INVALID);
    EXPECT(keelflash_close((keelflash_store *)(void *)&not_a_store), KEELFLASH_INVALID);
    EXPECT(keelflash_sync((keelflash_store *)(uintptr_t)1234567), KEELFLASH_INVALID);
    OK(keelflash_delete(store, "a"));
    EXPECT(keelflash_append(file, &byte, 1), KEELFLASH_GONE);
    OK(keelflash_close_file(file));
    OK(keelflash_create_file(store, "a", &file));
    OK(keelflash_close(store));
    EXPECT(keelflash_close(store), KEELFLASH_GONE);
    EXPECT(keelflash_sync(store), KEELFLASH_GONE);
    EXPECT(keelflash_append(file, &byte, 1), KEELFLASH_GONE);
    EXPECT(keelflash_close_file(file), KEELFLASH_GONE);

    /* Another store in the same place of the table is not the old one. */
    OK(keelflash_open(image, 0, KEELFLASH_READ_ONLY, &second));
    check(second != store, "a new store has an old handle");
    EXPECT(keelflash_sync(store), KEELFLASH_GONE);
    EXPECT(keelflash_append(file, &byte, 1), KEELFLASH_GONE);
    EXPECT(keelflash_create_file(second, "b", &file), KEELFLASH_DENIED);
    EXPECT(keelflash_replace(second, "b", &byte, 1), KEELFLASH_DENIED);
    OK(keelflash_open(image, 0, KEELFLASH_READ_ONLY, &store));
    OK(keelflash_close(store));
    OK(keelflash_close(second));
}

static int visits;

static int count_visits(void *context, const char *name, const keelflash_file_stat *stat) {
    keelflash_store *store = context;
    keelflash_file_stat other;
    visits++;
    check(strlen(name) > 0 && stat->length_bytes == 0, "a wrong file is shown");
    /* Using the library here would wait for itself. */
    EXPECT(keelflash_stat(store, name, &other), KEELFLASH_BUSY);
    EXPECT(keelflash_close(store), KEELFLASH_BUSY);
    return visits == 2;
}

static int count_bounds(void *context, const char *call, const keelflash_bound *bound) {
    (void)call;
    check(bound->reads + bound->writes + bound->flushes > 0, "a call that does nothing");
    ++*(int *)context;
    return 0;
}

static void names_and_sizes(const char *image) {
    keelflash_store *store;
    keelflash_file *file;
    keelflash_file_stat stat;
    keelflash_store_statistics statistics;
    static char endless[5000];
    char buffer[8] = "1234567";
    size_t bytes = 99;
    uint64_t length;
    int bounds = 0;

    memset(endless, 'x', sizeof endless);
    OK(keelflash_open(image, 3, 0, &store));
    EXPECT(keelflash_create_file(store, "", &file), KEELFLASH_INVALID);
    EXPECT(keelflash_create_file(store, ".", &file), KEELFLASH_INVALID);
    EXPECT(keelflash_create_file(store, "..", &file), KEELFLASH_INVALID);
    EXPECT(keelflash_create_file(store, "a/b", &file), KEELFLASH_INVALID);
    EXPECT(keelflash_create_file(store, "\xff\xfe", &file), KEELFLASH_INVALID);
    /* The store was made for names of 20 bytes; and what has no end is not read to it. */
    EXPECT(keelflash_create_file(store, "123456789012345678901", &file), KEELFLASH_INVALID);
    EXPECT(keelflash_create_file(store, endless, &file), KEELFLASH_INVALID);
    EXPECT(keelflash_open(endless, 0, 0, &store), KEELFLASH_INVALID);
    OK(keelflash_create_file(store, "12345678901234567890", &file));
    EXPECT(keelflash_create_file(store, "12345678901234567890", &file), KEELFLASH_EXISTS);
    OK(keelflash_close_file(file));
    EXPECT(keelflash_open_file(store, "nothing", &file), KEELFLASH_NOT_FOUND);
    check(strstr(keelflash_last_error(), "nothing: no such file") != NULL, keelflash_last_error());
    EXPECT(keelflash_delete(store, "nothing"), KEELFLASH_NOT_FOUND);
    EXPECT(keelflash_stat(store, "nothing", &stat), KEELFLASH_NOT_FOUND);
    EXPECT(keelflash_rename(store, "nothing", "b"), KEELFLASH_NOT_FOUND);

    OK(keelflash_replace(store, "b", NULL, 0));
    OK(keelflash_replace(store, "c", NULL, 0));
    OK(keelflash_list(store, count_visits, store));
    check(visits == 2, "the list did not end when it was told to");
    OK(keelflash_bounds(store, count_bounds, &bounds));
    check(bounds > 5, "too few bounds");

    OK(keelflash_open_file(store, "b", &file));
    OK(keelflash_append(file, "content", 7));
    OK(keelflash_read(file, 3, buffer, 2, &bytes));
    check(bytes == 2 && memcmp(buffer, "te34567", 7) == 0, "more was read than asked for");
    OK(keelflash_read(file, 5, buffer, sizeof buffer, &bytes));
    check(bytes == 2 && memcmp(buffer, "nt34567", 7) == 0, "more was read than there is");
    OK(keelflash_read(file, UINT64_MAX, buffer, sizeof buffer, &bytes));
    check(bytes == 0, "something behind the end");
    OK(keelflash_write_at(file, 2, "XX", 2));
    OK(keelflash_write_at_nosync(file, 10, "Y", 1));
    OK(keelflash_append_nosync(file, "Z", 1));
    OK(keelflash_sync(store));
    OK(keelflash_read(file, 4, buffer, sizeof buffer, &bytes));
    check(bytes == 8 && memcmp(buffer, "ent\0\0\0YZ", 8) == 0, "other bytes than were written");
    OK(keelflash_truncate(file, 3));
    OK(keelflash_length(file, &length));
    check(length == 3, "not cut");
    check(keelflash_truncate(file, UINT64_MAX) != KEELFLASH_OK, "a file of 2^64 bytes");
    OK(keelflash_rename(store, "b", "c"));
    OK(keelflash_append(file, "d", 1));
    OK(keelflash_stat(store, "c", &stat));
    check(stat.length_bytes == 4, "a renamed file has other bytes");

    OK(keelflash_statistics(store, &statistics, sizeof statistics));
    check(statistics.files == 3 && statistics.device_flushes > 0, "wrong figures");
    EXPECT(keelflash_statistics(store, &statistics, sizeof statistics - 1), KEELFLASH_INVALID);
    EXPECT(keelflash_statistics(store, &statistics, 0), KEELFLASH_INVALID);
    OK(keelflash_statistics(store, &statistics, sizeof statistics + 8));

    keelflash_file *second, *third, *fourth;
    OK(keelflash_create_file(store, "d", &second));
    OK(keelflash_create_file(store, "e", &third));
    EXPECT(keelflash_open_file(store, "12345678901234567890", &fourth), KEELFLASH_BUSY);
    OK(keelflash_close(store));

    EXPECT(keelflash_open(image, 0, 1 << 9, &store), KEELFLASH_INVALID);
    EXPECT(keelflash_format(image, 0, 10, 0, 1 << 9, &store), KEELFLASH_INVALID);
    EXPECT(keelflash_format(image, 0, 10, 256, KEELFLASH_OVERWRITE, &store), KEELFLASH_INVALID);
    EXPECT(keelflash_format(image, 0, 10, 70000, KEELFLASH_OVERWRITE, &store), KEELFLASH_INVALID);
    EXPECT(keelflash_format(image, 0, 0, 0, KEELFLASH_OVERWRITE, &store), KEELFLASH_INVALID);
    EXPECT(keelflash_format(image, 0, UINT64_MAX, 0, KEELFLASH_OVERWRITE, &store), KEELFLASH_INVALID);
    EXPECT(keelflash_open(image, UINT32_MAX, 0, &store), KEELFLASH_INVALID);
    EXPECT(keelflash_format(image, 0, 10, 0, 0, &store), KEELFLASH_EXISTS);
    EXPECT(keelflash_open("/dev/null", 0, 0, &store), KEELFLASH_IO);
    EXPECT(keelflash_open("/", 0, 0, &store), KEELFLASH_IO);
    EXPECT(keelflash_open("/nonexistent/x", 0, 0, &store), KEELFLASH_NOT_FOUND);
    /* All of it is there still. */
    OK(keelflash_open(image, 0, KEELFLASH_READ_ONLY, &store));
    OK(keelflash_stat(store, "c", &stat));
    OK(keelflash_close(store));
    check(strcmp(keelflash_error_name(KEELFLASH_FULL), "full") == 0, "the name of a code");
    check(strcmp(keelflash_error_name(42), "unknown") == 0, "the name of no code");
    check(strlen(keelflash_version()) >= 5 && keelflash_format_version() > 0, "the version");
}

struct worker {
    keelflash_store *store;
    int number;
    pthread_t thread;
};

static void *work(void *argument) {
    struct worker *worker = argument;
    keelflash_file *file;
    char name[20], byte;
    size_t bytes;
    snprintf(name, sizeof name, "thread %d", worker->number);
    OK(keelflash_create_file(worker->store, name, &file));
    for (int step = 0; step < 50; step++) {
        byte = (char)step;
        OK(keelflash_append(file, &byte, 1));
        OK(keelflash_read(file, (uint64_t)step, &byte, 1, &bytes));
        check(bytes == 1 && byte == (char)step, "another thread's byte");
        /* The text is this thread's own. */
        EXPECT(keelflash_open_file(worker->store, name + 7, &file), KEELFLASH_NOT_FOUND);
        check(keelflash_last_error()[0] == name[7], keelflash_last_error());
    }
    return NULL;
}

static void threads(const char *image) {
    keelflash_store *store;
    struct worker workers[4];
    OK(keelflash_open(image, 0, 0, &store));
    for (int number = 0; number < 4; number++) {
        workers[number].store = store;
        workers[number].number = number;
        check(pthread_create(&workers[number].thread, NULL, work, &workers[number]) == 0, "no thread");
    }
    for (int number = 0; number < 4; number++) {
        pthread_join(workers[number].thread, NULL);
    }
    OK(keelflash_close(store));
}

int main(int argc, char **argv) {
    if (argc != 2) {
        return 2;
    }
    null_everywhere(argv[1]);
    wrong_handles(argv[1]);
    names_and_sizes(argv[1]);
    threads(argv[1]);
    if (failures == 0) {
        printf("all answers are right\n");
    }
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
