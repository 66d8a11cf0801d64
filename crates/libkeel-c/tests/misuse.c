/*
 * Every wrong call is answered with a code and a line; every right one with its result. Judges itself.
 *
 *   misuse SOCKET
 */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keel.h"

static int wrong_answers = 0;

static void expect(int line, const char *what, int code, int wanted) {
    if (code != wanted || (code != KEEL_OK && keel_last_error()[0] == 0)) {
        fprintf(stderr, "line %d: %s: %s instead of %s: %s\n", line, what, keel_error_name(code),
                keel_error_name(wanted), keel_last_error());
        wrong_answers++;
    }
}

#define EXPECT(call, wanted) expect(__LINE__, #call, (call), (wanted))
#define CHECK(truth) expect(__LINE__, #truth, (truth) ? KEEL_OK : KEEL_INTERNAL, KEEL_OK)

struct seen {
    int times;
    size_t bytes;
    uint64_t first;
    uint64_t behind;
};

static void look(void *context, const keel_view *view) {
    struct seen *seen = context;
    seen->times++;
    seen->bytes = keel_view_bytes(view);
    seen->first = keel_view_word(view, 0);
    seen->behind = keel_view_word(view, 1);
}

static void count(void *context, const char *text) {
    if (text[0] != 0) {
        ++*(int *)context;
    }
}

static void values(keel_node *node) {
    keel_key *key = NULL;
    keel_ticket *ticket = NULL;
    keel_value value;
    keel_times times;
    char buffer[16];
    double number = 0;
    uint64_t lsn = 0;
    struct seen seen;
    char name[257];
    memset(name, 'k', 256);
    name[256] = 0;
    memset(&seen, 0, sizeof seen);
    EXPECT(keel_open_key(node, "c/value", NULL), KEEL_INVALID);
    EXPECT(keel_open_key(node, NULL, &key), KEEL_INVALID);
    EXPECT(keel_open_key(node, "", &key), KEEL_INVALID);
    EXPECT(keel_open_key(node, "c/#", &key), KEEL_INVALID);
    EXPECT(keel_open_key(node, "\xff", &key), KEEL_INVALID);
    EXPECT(keel_open_key((keel_node *)8, "c/value", &key), KEEL_INVALID);
    EXPECT(keel_open_key(node, name, &key), KEEL_INVALID);
    CHECK(key == NULL);
    name[255] = 0;
    EXPECT(keel_open_key(node, name, &key), KEEL_OK);
    EXPECT(keel_put_float(key, 255, KEEL_NOW, &ticket), KEEL_OK);
    EXPECT(keel_wait(ticket, 60000, NULL), KEEL_OK);
    EXPECT(keel_close_ticket(ticket), KEEL_OK);
    EXPECT(keel_read_float(key, &number, NULL), KEEL_OK);
    CHECK(number == 255);
    EXPECT(keel_close_key(key), KEEL_OK);
    number = 0;
    EXPECT(keel_open_key(node, "c/value", &key), KEEL_OK);
    EXPECT(keel_read_float(key, &number, NULL), KEEL_NOT_FOUND);
    EXPECT(keel_put_float(key, 0.0 / 0.0, KEEL_NOW, NULL), KEEL_INVALID);
    EXPECT(keel_put_text(key, NULL, KEEL_NOW, NULL), KEEL_INVALID);
    EXPECT(keel_put_float(key, 2.5, KEEL_NOW, &ticket), KEEL_OK);
    EXPECT(keel_wait(ticket, 60000, &lsn), KEEL_OK);
    EXPECT(keel_wait(ticket, 0, NULL), KEEL_OK);
    EXPECT(keel_close_ticket(ticket), KEEL_OK);
    EXPECT(keel_close_ticket(ticket), KEEL_GONE);
    EXPECT(keel_wait(ticket, 1, NULL), KEEL_GONE);
    EXPECT(keel_read_float(key, NULL, NULL), KEEL_INVALID);
    EXPECT(keel_read_float((keel_key *)ticket, &number, NULL), KEEL_INVALID);
    EXPECT(keel_read_float(key, &number, &times), KEEL_OK);
    CHECK(number == 2.5 && (times.flags & (KEEL_FRESH | KEEL_NODE_TIME)) == (KEEL_FRESH | KEEL_NODE_TIME));
    EXPECT(keel_look(key, NULL, NULL, NULL), KEEL_INVALID);
    EXPECT(keel_look(key, look, &seen, NULL), KEEL_OK);
    CHECK(seen.times > 0 && seen.bytes == 8 && seen.behind == 0 && memcmp(&seen.first, &number, 8) == 0);
    CHECK(keel_view_bytes(NULL) == 0 && keel_view_word(NULL, 5) == 0);
    EXPECT(keel_put_text(key, "open", KEEL_NOW, &ticket), KEEL_OK);
    EXPECT(keel_wait(ticket, 60000, NULL), KEEL_OK);
    EXPECT(keel_close_ticket(ticket), KEEL_OK);
    EXPECT(keel_read_float(key, &number, NULL), KEEL_UNSUPPORTED);
    EXPECT(keel_read(key, &value, buffer, 4, NULL), KEEL_INVALID);
    EXPECT(keel_read(key, &value, NULL, 16, NULL), KEEL_INVALID);
    EXPECT(keel_read(key, &value, buffer, sizeof buffer, &times), KEEL_OK);
    CHECK(value.kind == KEEL_TEXT && value.bytes == 4 && strcmp(buffer, "open") == 0);
    EXPECT(keel_put_boolean(key, 7, KEEL_NOW, &ticket), KEEL_OK);
    EXPECT(keel_wait(ticket, 60000, NULL), KEEL_OK);
    EXPECT(keel_close_ticket(ticket), KEEL_OK);
    EXPECT(keel_read(key, &value, NULL, 0, NULL), KEEL_OK);
    CHECK(value.kind == KEEL_BOOLEAN && value.truth == 1);
    /* Above 2^53 an integer keeps each digit; up to there it becomes a double. */
    EXPECT(keel_put_integer(key, INT64_MIN, KEEL_NOW, NULL), KEEL_OK);
    EXPECT(keel_put_integer(key, INT64_MAX, KEEL_NOW, &ticket), KEEL_OK);
    EXPECT(keel_wait(ticket, 60000, NULL), KEEL_OK);
    EXPECT(keel_close_ticket(ticket), KEEL_OK);
    EXPECT(keel_read(key, &value, NULL, 0, NULL), KEEL_OK);
    CHECK(value.kind == KEEL_INTEGER && value.integer == INT64_MAX);
    EXPECT(keel_put_unsigned(key, UINT64_MAX, KEEL_NOW, &ticket), KEEL_OK);
    EXPECT(keel_wait(ticket, 60000, NULL), KEEL_OK);
    EXPECT(keel_close_ticket(ticket), KEEL_OK);
    EXPECT(keel_read(key, &value, NULL, 0, NULL), KEEL_OK);
    CHECK(value.kind == KEEL_UNSIGNED && value.natural == UINT64_MAX);
    EXPECT(keel_put_integer(key, 7, KEEL_NOW, &ticket), KEEL_OK);
    EXPECT(keel_wait(ticket, 60000, NULL), KEEL_OK);
    EXPECT(keel_close_ticket(ticket), KEEL_OK);
    EXPECT(keel_read_float(key, &number, NULL), KEEL_OK);
    CHECK(number == 7);
    EXPECT(keel_put_float(key, 1, -5, &ticket), KEEL_OK);
    lsn = UINT64_MAX;
    EXPECT(keel_wait(ticket, 60000, &lsn), KEEL_INVALID);
    CHECK(lsn == UINT64_MAX);
    EXPECT(keel_close_ticket(ticket), KEEL_OK);
    EXPECT(keel_close_key(key), KEEL_OK);
    EXPECT(keel_close_key(key), KEEL_GONE);
    EXPECT(keel_put_float(key, 1, KEEL_NOW, NULL), KEEL_GONE);
    EXPECT(keel_put_float_ns(key, 1, KEEL_NOW, NULL), KEEL_GONE);
}

/* What is put at a time in ns is read at this time; in ms it is rounded down. */
static void exact_times(keel_node *node) {
    const int64_t time_ns = 1700000000123456789;
    keel_key *key = NULL;
    keel_ticket *ticket = NULL;
    keel_value value;
    keel_times times;
    keel_times_ns exact;
    char buffer[16];
    double number = 0;
    struct seen seen;
    memset(&seen, 0, sizeof seen);
    CHECK(sizeof times == 24 && sizeof exact == 24);
    EXPECT(keel_open_key(node, "c/exact", &key), KEEL_OK);
    EXPECT(keel_read_float_ns(key, &number, &exact), KEEL_NOT_FOUND);
    EXPECT(keel_put_text_ns(key, NULL, time_ns, NULL), KEEL_INVALID);
    EXPECT(keel_put_text_ns(key, "open", time_ns - 1, &ticket), KEEL_OK);
    EXPECT(keel_wait(ticket, 60000, NULL), KEEL_OK);
    EXPECT(keel_close_ticket(ticket), KEEL_OK);
    EXPECT(keel_read_ns(key, &value, buffer, 4, NULL), KEEL_INVALID);
    EXPECT(keel_read_ns(key, NULL, buffer, sizeof buffer, &exact), KEEL_INVALID);
    EXPECT(keel_read_ns(key, &value, buffer, sizeof buffer, &exact), KEEL_OK);
    CHECK(value.kind == KEEL_TEXT && strcmp(buffer, "open") == 0 && exact.time_ns == time_ns - 1);
    EXPECT(keel_put_float_ns(key, 2.5, time_ns, &ticket), KEEL_OK);
    EXPECT(keel_wait(ticket, 60000, NULL), KEEL_OK);
    EXPECT(keel_close_ticket(ticket), KEEL_OK);
    EXPECT(keel_read_float_ns(key, NULL, &exact), KEEL_INVALID);
    EXPECT(keel_read_float_ns(key, &number, &exact), KEEL_OK);
    CHECK(number == 2.5 && exact.time_ns == time_ns && (exact.flags & KEEL_NODE_TIME) == 0);
    EXPECT(keel_read_float(key, &number, &times), KEEL_OK);
    CHECK(times.time_ms == 1700000000123 && times.flags == exact.flags);
    exact.time_ns = 0;
    EXPECT(keel_look_ns(key, NULL, NULL, &exact), KEEL_INVALID);
    EXPECT(keel_look_ns(key, look, &seen, &exact), KEEL_OK);
    CHECK(seen.bytes == 8 && exact.time_ns == time_ns);
    EXPECT(keel_put_boolean_ns(key, 7, KEEL_NOW, &ticket), KEEL_OK);
    EXPECT(keel_wait(ticket, 60000, NULL), KEEL_OK);
    EXPECT(keel_close_ticket(ticket), KEEL_OK);
    EXPECT(keel_read_ns(key, &value, NULL, 0, &exact), KEEL_OK);
    CHECK(value.truth == 1 && (exact.flags & KEEL_NODE_TIME) != 0 && exact.time_ns > time_ns);
    /* A later time than that of the value before, so that it is the latest one. */
    const int64_t later_ns = exact.time_ns + 1000000001;
    EXPECT(keel_put_integer_ns(key, INT64_MIN, later_ns, NULL), KEEL_OK);
    EXPECT(keel_put_unsigned_ns(key, UINT64_MAX, later_ns + 1, &ticket), KEEL_OK);
    EXPECT(keel_wait(ticket, 60000, NULL), KEEL_OK);
    EXPECT(keel_close_ticket(ticket), KEEL_OK);
    EXPECT(keel_read_ns(key, &value, NULL, 0, &exact), KEEL_OK);
    CHECK(value.natural == UINT64_MAX && exact.time_ns == later_ns + 1);
    EXPECT(keel_put_float_ns(key, 1, -5, &ticket), KEEL_OK);
    EXPECT(keel_wait(ticket, 60000, NULL), KEEL_INVALID);
    EXPECT(keel_close_ticket(ticket), KEEL_OK);
    EXPECT(keel_close_key(key), KEEL_OK);
}

static void tasks(keel_node *node) {
    keel_task *task = NULL;
    keel_key *key = NULL;
    keel_ticket *ticket = NULL;
    keel_task_spec spec;
    keel_task_counts counts;
    const uint16_t cores[] = {1023};
    keel_times_ns exact;
    double number = 0;
    int32_t flag = -1;
    int warnings = 0;
    memset(&spec, 0, sizeof spec);
    spec.period_ns = 5000000;
    spec.deadline_ns = 60000000000;
    EXPECT(keel_make_task(node, &spec, sizeof spec, &task), KEEL_INVALID);
    spec.name = "c";
    EXPECT(keel_make_task(node, NULL, sizeof spec, &task), KEEL_INVALID);
    EXPECT(keel_make_task(node, &spec, sizeof spec - 1, &task), KEEL_INVALID);
    spec.flags = 2;
    EXPECT(keel_make_task(node, &spec, sizeof spec, &task), KEEL_INVALID);
    spec.flags = KEEL_FIRM;
    spec.fifo_priority = 300;
    EXPECT(keel_make_task(node, &spec, sizeof spec, &task), KEEL_INVALID);
    spec.fifo_priority = 0;
    spec.cores_count = 1;
    EXPECT(keel_make_task(node, &spec, sizeof spec, &task), KEEL_INVALID);
    spec.cores = cores;
    CHECK(task == NULL);
    EXPECT(keel_make_task(node, &spec, sizeof spec, &task), KEEL_OK);
    EXPECT(keel_open_key(node, "c/task", &key), KEEL_OK);
    EXPECT(keel_end(task, &flag), KEEL_OK);
    CHECK(flag == 0);
    EXPECT(keel_next(task), KEEL_OK);
    EXPECT(keel_data_end(task), KEEL_OK);
    EXPECT(keel_data_begin(task), KEEL_OK);
    EXPECT(keel_data_begin(task), KEEL_OK);
    EXPECT(keel_data_end(task), KEEL_OK);
    EXPECT(keel_has_missed(task, &flag), KEEL_OK);
    CHECK(flag == 0);
    EXPECT(keel_task_put_float(task, key, 1, KEEL_NOW, &ticket), KEEL_OK);
    EXPECT(keel_wait(ticket, 0, NULL), KEEL_LATE);
    EXPECT(keel_give_up(task), KEEL_OK);
    EXPECT(keel_end(task, &flag), KEEL_OK);
    CHECK(flag == KEEL_ABORTED);
    EXPECT(keel_wait(ticket, 60000, NULL), KEEL_LATE);
    EXPECT(keel_close_ticket(ticket), KEEL_OK);
    EXPECT(keel_read_float(key, &number, NULL), KEEL_NOT_FOUND);
    EXPECT(keel_next(task), KEEL_OK);
    EXPECT(keel_task_put_integer(task, key, INT64_MAX, 1700000000122, NULL), KEEL_OK);
    EXPECT(keel_task_put_unsigned(task, key, UINT64_MAX, 1700000000123, NULL), KEEL_OK);
    EXPECT(keel_task_put_integer_ns(task, key, INT64_MIN, 1700000000123456786, NULL), KEEL_OK);
    EXPECT(keel_task_put_unsigned_ns(task, key, 7, 1700000000123456787, NULL), KEEL_OK);
    EXPECT(keel_task_put_text_ns(task, key, "1", 1700000000123456788, NULL), KEEL_OK);
    EXPECT(keel_task_put_boolean_ns(task, key, 1, 1700000000123456789, NULL), KEEL_OK);
    EXPECT(keel_task_put_float_ns(task, key, 2, 1700000000123456790, &ticket), KEEL_OK);
    EXPECT(keel_end(task, &flag), KEEL_OK);
    CHECK(flag == KEEL_IN_TIME);
    EXPECT(keel_wait(ticket, 60000, NULL), KEEL_OK);
    EXPECT(keel_close_ticket(ticket), KEEL_OK);
    EXPECT(keel_read_float_ns(key, &number, &exact), KEEL_OK);
    CHECK(number == 2 && exact.time_ns == 1700000000123456790);
    EXPECT(keel_task_put_float(task, key, 3, KEEL_NOW, &ticket), KEEL_OK);
    EXPECT(keel_wait(ticket, 60000, NULL), KEEL_OK);
    EXPECT(keel_close_ticket(ticket), KEEL_OK);
    EXPECT(keel_task_warnings(task, NULL, NULL), KEEL_INVALID);
    EXPECT(keel_task_warnings(task, count, &warnings), KEEL_OK);
    /* There is no core 1023. */
    CHECK(warnings > 0);
    EXPECT(keel_counts(task, &counts, 1), KEEL_INVALID);
    EXPECT(keel_counts(task, &counts, sizeof counts), KEEL_OK);
    CHECK(counts.instances == 2 && counts.aborted == 1);
    EXPECT(keel_close_task(task), KEEL_OK);
    EXPECT(keel_next(task), KEEL_GONE);
    EXPECT(keel_close_key(key), KEEL_OK);
}

static void children(keel_node *node) {
    keel_key *key = NULL;
    keel_key *once = NULL;
    keel_task *task = NULL;
    keel_ticket *ticket = NULL;
    keel_task_spec spec;
    int32_t flag = -1;
    memset(&spec, 0, sizeof spec);
    spec.name = "forking";
    spec.period_ns = 1000000;
    spec.deadline_ns = 60000000000;
    spec.flags = KEEL_FIRM;
    EXPECT(keel_open_key(node, "c/task", &key), KEEL_OK);
    EXPECT(keel_open_key(node, "c/once", &once), KEEL_OK);
    EXPECT(keel_make_task(node, &spec, sizeof spec, &task), KEEL_OK);
    EXPECT(keel_next(task), KEEL_OK);
    EXPECT(keel_task_put_float(task, once, 1, KEEL_NOW, &ticket), KEEL_OK);
    pid_t child = fork();
    if (child == 0) {
        double number = 0;
        EXPECT(keel_read_float(key, &number, NULL), KEEL_STALE);
        EXPECT(keel_put_float(key, 1, KEEL_NOW, NULL), KEEL_STALE);
        EXPECT(keel_task_put_float(task, once, 2, KEEL_NOW, NULL), KEEL_STALE);
        EXPECT(keel_end(task, &flag), KEEL_STALE);
        EXPECT(keel_next(task), KEEL_STALE);
        /* The instance is its parent's, which alone sends what it has put: whoever runs this counts the readings. */
        EXPECT(keel_close_task(task), KEEL_OK);
        /* Nor does closing all else take from the parent what it goes on with. */
        EXPECT(keel_close_ticket(ticket), KEEL_OK);
        EXPECT(keel_close_key(once), KEEL_OK);
        EXPECT(keel_close_key(key), KEEL_OK);
        EXPECT(keel_detach(node), KEEL_OK);
        _exit(wrong_answers == 0 ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(keel_end(task, &flag), KEEL_OK);
    CHECK(flag == KEEL_IN_TIME);
    EXPECT(keel_wait(ticket, 60000, NULL), KEEL_OK);
    EXPECT(keel_close_ticket(ticket), KEEL_OK);
    EXPECT(keel_next(task), KEEL_OK);
    EXPECT(keel_close_task(task), KEEL_OK);
    EXPECT(keel_put_float(key, 3, KEEL_NOW, &ticket), KEEL_OK);
    EXPECT(keel_wait(ticket, 60000, NULL), KEEL_OK);
    EXPECT(keel_close_ticket(ticket), KEEL_OK);
    EXPECT(keel_close_key(once), KEEL_OK);
    EXPECT(keel_close_key(key), KEEL_OK);
}

int main(int arguments_count, char **arguments) {
    keel_node *node = NULL;
    uint32_t flags = 0;
    if (arguments_count != 2) {
        return 2;
    }
    CHECK(strcmp(keel_error_name(KEEL_NOT_FOUND), "not-found") == 0);
    CHECK(strcmp(keel_error_name(5), "unknown") == 0);
    CHECK(keel_version()[0] != 0 && keel_last_error()[0] == 0);
    EXPECT(keel_attach(NULL, &node), KEEL_INVALID);
    EXPECT(keel_attach(arguments[1], NULL), KEEL_INVALID);
    EXPECT(keel_attach("/nonexistent/keel.sock", &node), KEEL_NOT_FOUND);
    EXPECT(keel_detach(NULL), KEEL_INVALID);
    EXPECT(keel_attach(arguments[1], &node), KEEL_OK);
    EXPECT(keel_node_state(node, &flags), KEEL_OK);
    CHECK((flags & KEEL_LIVE) != 0);
    values(node);
    exact_times(node);
    tasks(node);
    children(node);
    EXPECT(keel_detach(node), KEEL_OK);
    EXPECT(keel_detach(node), KEEL_GONE);
    EXPECT(keel_node_state(node, &flags), KEEL_GONE);
    if (wrong_answers == 0) {
        printf("all answers are right\n");
    }
    return wrong_answers == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
