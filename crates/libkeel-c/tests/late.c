/*
 * What an instance of a firm task has put in time and the node takes too late is stored nowhere, and is counted. The
 * node is stopped for as long as that takes. Judges itself.
 *
 *   late SOCKET PROCESS
 */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "keel.h"

#define KEYS 2
#define TRIES_MAX 20

static keel_key *keys[KEYS];
static int wrong_answers = 0;

static void expect(int line, const char *what, int code, int wanted) {
    if (code != wanted) {
        fprintf(stderr, "line %d: %s: %s instead of %s: %s\n", line, what, keel_error_name(code),
                keel_error_name(wanted), keel_last_error());
        wrong_answers++;
    }
}

#define EXPECT(call, wanted) expect(__LINE__, #call, (call), (wanted))
#define CHECK(truth) expect(__LINE__, #truth, (truth) ? KEEL_OK : KEEL_INTERNAL, KEEL_OK)

/* Runs one instance that puts a number to both keys; again where this machine was too slow for its deadline. */
static void run(keel_task *task, double number, keel_ticket **tickets) {
    int32_t outcome = 0;
    for (int turn = 0; turn < TRIES_MAX && outcome != KEEL_IN_TIME; turn++) {
        EXPECT(keel_next(task), KEEL_OK);
        for (int at = 0; at < KEYS; at++) {
            if (tickets[at] != NULL) {
                EXPECT(keel_close_ticket(tickets[at]), KEEL_OK);
            }
            EXPECT(keel_task_put_float(task, keys[at], number, KEEL_NOW, &tickets[at]), KEEL_OK);
        }
        EXPECT(keel_end(task, &outcome), KEEL_OK);
    }
    CHECK(outcome == KEEL_IN_TIME);
}

static void close_all(keel_ticket **tickets) {
    for (int at = 0; at < KEYS; at++) {
        EXPECT(keel_close_ticket(tickets[at]), KEEL_OK);
        tickets[at] = NULL;
    }
}

int main(int arguments_count, char **arguments) {
    keel_node *node = NULL;
    keel_task *task = NULL;
    keel_ticket *tickets[KEYS] = {NULL};
    keel_task_spec spec;
    keel_task_counts before, after;
    struct timespec wait = {1, 0};
    pid_t process = 0;
    double number = 0;
    if (arguments_count != 3 || (process = (pid_t)atol(arguments[2])) <= 1) {
        return 2;
    }
    memset(&spec, 0, sizeof spec);
    spec.name = "late";
    spec.period_ns = 1500000000;
    spec.deadline_ns = 1000000000;
    spec.flags = KEEL_FIRM;
    EXPECT(keel_attach(arguments[1], &node), KEEL_OK);
    EXPECT(keel_open_key(node, "late/one", &keys[0]), KEEL_OK);
    EXPECT(keel_open_key(node, "late/two", &keys[1]), KEEL_OK);
    EXPECT(keel_make_task(node, &spec, sizeof spec, &task), KEEL_OK);
    if (wrong_answers != 0) {
        return EXIT_FAILURE;
    }
    int code = KEEL_LATE;
    for (int turn = 0; turn < TRIES_MAX && code == KEEL_LATE; turn++) {
        run(task, 1, tickets);
        code = keel_wait(tickets[0], 60000, NULL);
    }
    CHECK(code == KEEL_OK);
    EXPECT(keel_wait(tickets[1], 60000, NULL), KEEL_OK);
    close_all(tickets);
    CHECK(kill(process, SIGSTOP) == 0);
    run(task, 2, tickets);
    /* Those that were too slow here, before the one that was not. */
    EXPECT(keel_counts(task, &before, sizeof before), KEEL_OK);
    EXPECT(keel_wait(tickets[0], 0, NULL), KEEL_LATE);
    CHECK(strstr(keel_last_error(), "deadline") == NULL);
    nanosleep(&wait, NULL);
    CHECK(kill(process, SIGCONT) == 0);
    for (int at = 0; at < KEYS; at++) {
        EXPECT(keel_wait(tickets[at], 60000, NULL), KEEL_LATE);
        CHECK(strstr(keel_last_error(), "the deadline has passed: nothing was stored") != NULL);
        EXPECT(keel_wait(tickets[at], 0, NULL), KEEL_LATE);
    }
    close_all(tickets);
    EXPECT(keel_counts(task, &after, sizeof after), KEEL_OK);
    CHECK(after.instances == before.instances);
    CHECK(after.deadline_misses == before.deadline_misses + 1);
    CHECK(after.aborted == before.aborted + 1);
    for (int at = 0; at < KEYS; at++) {
        EXPECT(keel_read_float(keys[at], &number, NULL), KEEL_OK);
        CHECK(number == 1);
        EXPECT(keel_close_key(keys[at]), KEEL_OK);
    }
    EXPECT(keel_close_task(task), KEEL_OK);
    EXPECT(keel_detach(node), KEEL_OK);
    if (wrong_answers == 0) {
        printf("all answers are right\n");
    }
    return wrong_answers == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
