/*
 * Opens a valve the further the colder a boiler is, fifty times a second, and says in the end how that went.
 *
 *   valve SOCKET [INSTANCES]
 */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "keel.h"

/* Says what failed; the library knows why. */
static int failed(const char *what) {
    fprintf(stderr, "valve: %s: %s\n", what, keel_last_error());
    return EXIT_FAILURE;
}

static int run(keel_task *task, keel_key *celsius, keel_key *valve, uint64_t instances) {
    keel_ticket *last = NULL;
    uint64_t misread = 0;
    for (uint64_t instance = 0; instance < instances; instance++) {
        int code;
        do {
            code = keel_next(task);
        } while (code == KEEL_INTERRUPTED);
        if (code != KEEL_OK) {
            return failed("next");
        }
        double degrees = 0;
        keel_times times;
        /* Read where the node writes it: no copy, no lock, no system call. */
        keel_data_begin(task);
        code = keel_read_float(celsius, &degrees, &times);
        keel_data_end(task);
        if (code != KEEL_OK || (times.flags & KEEL_FRESH) == 0) {
            misread++;
            continue;
        }
        double opening = 100.0 - degrees;
        if (opening < 0) {
            opening = 0;
        }
        if (last != NULL) {
            keel_close_ticket(last);
            last = NULL;
        }
        /* On its way at once; the ticket tells when it is on flash. */
        if (keel_task_put_float(task, valve, opening, KEEL_NOW, &last) != KEEL_OK) {
            last = NULL;
        }
    }
    if (keel_end(task, NULL) != KEEL_OK) {
        return failed("end");
    }
    if (last != NULL) {
        uint64_t number = 0;
        if (keel_wait(last, 10000, &number) != KEEL_OK) {
            return failed("wait");
        }
        printf("boiler/valve is on flash as reading %" PRIu64 "\n", number);
        keel_close_ticket(last);
    }
    keel_task_counts counts;
    if (keel_counts(task, &counts, sizeof counts) != KEEL_OK) {
        return failed("counts");
    }
    printf("%" PRIu64 " instances, %" PRIu64 " late, %" PRIu64 " releases missed, %" PRIu64
           " without a fresh value",
           counts.instances, counts.deadline_misses, counts.releases_missed, misread);
    return EXIT_SUCCESS;
}

int main(int count, char **arguments) {
    char *end = NULL;
    unsigned long long instances = count > 2 ? strtoull(arguments[2], &end, 10) : 50;
    if (count < 2 || (end != NULL && *end != 0) || instances == 0) {
        fprintf(stderr, "valve: name the node's socket, and perhaps how often to run\n");
        return 2;
    }
    keel_node *node = NULL;
    keel_key *celsius = NULL;
    keel_key *valve = NULL;
    keel_task *task = NULL;
    keel_task_spec spec;
    memset(&spec, 0, sizeof spec);
    spec.name = "valve";
    spec.period_ns = 20 * 1000 * 1000;
    spec.deadline_ns = 10 * 1000 * 1000;
    if (keel_attach(arguments[1], &node) != KEEL_OK) {
        return failed("attach");
    }
    if (keel_open_key(node, "boiler/celsius", &celsius) != KEEL_OK ||
        keel_open_key(node, "boiler/valve", &valve) != KEEL_OK) {
        return failed("key");
    }
    if (keel_make_task(node, &spec, sizeof spec, &task) != KEEL_OK) {
        return failed("task");
    }
    int status = run(task, celsius, valve, instances);
    if (status == EXIT_SUCCESS) {
        uint32_t flags = 0;
        keel_node_state(node, &flags);
        printf(", values %s\n", (flags & KEEL_SHARED) != 0 ? "shared" : "asked for");
    }
    keel_close_task(task);
    keel_close_key(valve);
    keel_close_key(celsius);
    keel_detach(node);
    return status;
}
