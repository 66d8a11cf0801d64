/*
 * libkeel: a node's latest values, puts with tickets, and periodic tasks, for programs on the same machine.
 *
 * Link with -lkeel. docs/client-c.md shows how to build it, and examples/valve.c how to use it.
 *
 * Answers    A function that can fail answers KEEL_OK (0) or a negative code; keel_last_error() then says in words what
 *            is wrong and what to do. What an output pointer leads to is written on success only.
 * Handles    are opaque and never looked into: one that has been closed, or is none, is refused (KEEL_GONE,
 *            KEEL_INVALID). They may be closed in any order; a node is detached from when its last handle, keys
 *            and tasks included, has been closed; tickets that still wait then end with KEEL_GONE.
 * Threads    Any function may be called by any thread at any time; only a task belongs to the thread that runs it, and
 *            refuses others meanwhile (KEEL_BUSY). keel_attach() starts one thread of its own, which takes no signals.
 *            After fork() the child must attach anew: handles of its parent are refused (KEEL_STALE).
 * Real time  keel_read_float() and keel_look() make no system call, take no lock that others hold for long, and allocate
 *            nothing where values are shared (KEEL_SHARED). Putting makes one system call and never waits for the node.
 * Pointers   must be valid for the length of the call. NULL is refused with KEEL_INVALID except where it is said.
 *            Names and texts end with a zero.
 */


#ifndef KEEL_H
#define KEEL_H

#include <stddef.h>
#include <stdint.h>

// It is done.
#define KEEL_OK 0

// The operating system, or the node's device, failed; trying again may help.
#define KEEL_IO -1

// Bytes are damaged.
#define KEEL_CORRUPT -2

// No room: in the node's store, or for another key.
#define KEEL_FULL -3

// Not in time: the node has not answered, a ticket is not kept yet, or an instance of a firm task was late, or what it
// has put was when it came to the node.
#define KEEL_LATE -4

// The handle is of the parent of this process.
#define KEEL_STALE -5

// As many things are open or on their way as may be, or another thread has the task.
#define KEEL_BUSY -6

// The call makes no sense: NULL, a name or a number that cannot be, something that is no handle.
#define KEEL_INVALID -7

// Not permitted.
#define KEEL_DENIED -8

// The handle has been closed, or the node has ended or closed the connection.
#define KEEL_GONE -9

// The value has another type, or the node does not know the request.
#define KEEL_UNSUPPORTED -10

// There is no such key or no value of it yet, or no node.
#define KEEL_NOT_FOUND -11

// The reading was thrown away, as the configuration says of its key while fewer updates are admitted; it is not
// stored.
#define KEEL_SHED -13

// A signal has interrupted the waiting; to be called again.
#define KEEL_INTERRUPTED -99

// The library itself is at fault.
#define KEEL_INTERNAL -100

// Values are read where the node writes them. Otherwise each read asks the node through its socket.
#define KEEL_SHARED 1

// The node lived a tenth of a second ago; where values are not shared, it answers now.
#define KEEL_LIVE 2

// A double: keel_value.number.
#define KEEL_FLOAT 1

// A signed integer: keel_value.integer.
#define KEEL_INTEGER 2

// An unsigned integer: keel_value.natural.
#define KEEL_UNSIGNED 3

// A truth value: keel_value.truth, 0 or 1.
#define KEEL_BOOLEAN 4

// Text of UTF-8, in the buffer, with a zero behind it: keel_value.bytes without the zero.
#define KEEL_TEXT 5

// Bytes of no type, in the buffer: keel_value.bytes.
#define KEEL_BYTES 6

// Readings are expected all the time, so that KEEL_FRESH means something.
#define KEEL_TEMPORAL 1

// The age is within validity_ms.
#define KEEL_FRESH 2

// The node's clock gave the time, not the sensor.
#define KEEL_NODE_TIME 4

// That clock was trusted when the reading arrived.
#define KEEL_CLOCK_TRUSTED 8

// The reading arrived since this machine started.
#define KEEL_THIS_BOOT 16

// As a time: the node's clock gives it.
#define KEEL_NOW INT64_MIN

// An instance that is late is aborted: none of its puts is stored. What it puts is sent in one request at its end, 128
// readings at most, and the node looks at the deadline again: it stores all of it or nothing, and nothing after that.
// Without this an instance finishes and is counted.
#define KEEL_FIRM 1

// The instance ended within the deadline. What a firm one has put may still reach the node too late, which
// keel_counts() tells.
#define KEEL_IN_TIME 1

// It ended after the deadline.
#define KEEL_TOO_LATE 2

// It is of a firm task, and none of its puts was sent.
#define KEEL_ABORTED 3

// A key of a node.
typedef struct keel_key keel_key;

// A node that has been attached to.
typedef struct keel_node keel_node;

// A periodic task.
typedef struct keel_task keel_task;

// A put on its way.
typedef struct keel_ticket keel_ticket;

// The bytes of a value while a function looks at them.
typedef struct keel_view keel_view;

// What is known of a value beside itself.
typedef struct {
    // The reading's time, milliseconds since 1970-01-01 UTC.
    int64_t time_ms;
    // Time since then; negative for a time in the future.
    int64_t age_ms;
    // How old a value may be that still counts.
    uint32_t validity_ms;
    // KEEL_TEMPORAL and the following.
    uint32_t flags;
} keel_times;

// A value with its type.
typedef struct {
    // The double; of the other numbers the nearest one.
    double number;
    // The signed integer, or 0.
    int64_t integer;
    // The unsigned integer, or 0.
    uint64_t natural;
    // Bytes in the buffer.
    size_t bytes;
    // KEEL_FLOAT and the following.
    int32_t kind;
    // The truth value, or 0.
    int32_t truth;
} keel_value;

// A function that looks at the bytes of a value. It is called again when a write has disturbed them, so it must
// begin anew each time; only what it saw in its last call is a value. It should not take long, and must not use the
// view after it returns.
typedef void (*keel_look_at)(void *context, const keel_view *view);

// What a periodic task is. To be filled with zeros first: later versions have more fields, for which 0 means what it
// was without them.
typedef struct {
    // Its name, 1 to 64 bytes without control characters.
    const char *name;
    // Time between releases, 1,000 (1 µs) to 3,600,000,000,000 (an hour).
    uint64_t period_ns;
    // Response time allowed, up to an hour.
    uint64_t deadline_ns;
    // Its share in the figures that the node controls, up to 1000; 0 stands for 1.
    double weight;
    // Cores that the thread may run on, `cores_count` of them; all for NULL with 0.
    const uint16_t *cores;
    // How many cores are named.
    size_t cores_count;
    // Bytes of the thread's stack that are touched and locked in memory before the first release; 0: none.
    size_t stack_bytes;
    // KEEL_FIRM or 0.
    uint32_t flags;
    // Real-time priority of the thread, 1 to 99 (SCHED_FIFO); 0: as it is.
    uint32_t fifo_priority;
} keel_task_spec;

// Instances and reports of a task since it was made.
typedef struct {
    // Instances that ended, late and aborted ones among them.
    uint64_t instances;
    // Of them, those that ended after the deadline, or whose puts the node has refused because they came after it.
    uint64_t deadline_misses;
    // Instances of a firm task none of whose puts was stored: they were not sent, or the node has refused them.
    uint64_t aborted;
    // Releases that passed while an earlier instance ran.
    uint64_t releases_missed;
    // Reports that were sent to the node.
    uint64_t reports;
    // Reports that were given up because there was no node to take them.
    uint64_t reports_lost;
} keel_task_counts;

// A function that is shown a text, which is valid until it returns.
typedef void (*keel_visit_text)(void *context, const char *text);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What was wrong with the last call of this thread that failed, and what to do about it: one line of UTF-8, empty
// when none has failed. Valid until the next call of this thread that fails, or its end.
const char *keel_last_error(void);

// The name of a code: "not-found", "busy", ...; "unknown" for a number that is no code. Valid for ever.
const char *keel_error_name(int32_t code);

// The version of the library: "1.2.3". Valid for ever.
const char *keel_version(void);

// Attaches to the node that serves `socket`. A node that ends and starts again is attached to anew by itself.
int32_t keel_attach(const char *socket,
                    keel_node **node);

// Closes the handle of a node.
int32_t keel_detach(keel_node *node);

// How the node is attached to: KEEL_SHARED, KEEL_LIVE, both, or 0.
int32_t keel_node_state(keel_node *node, uint32_t *flags);

// A handle of the key `name`, of 1 to 64 bytes. It need not exist yet.
int32_t keel_open_key(keel_node *node, const char *name, keel_key **key);

// Closes the handle of a key.
int32_t keel_close_key(keel_key *key);

// The latest value where it is a double (else KEEL_UNSUPPORTED), read where the node writes it. `times` may be NULL.
int32_t keel_read_float(keel_key *key,
                        double *value,
                        keel_times *times);

// The latest value with its type. Text and bytes are copied into `buffer` of `buffer_bytes`, which may be NULL with 0
// for keys that have numbers; where they do not fit, with the zero of a text, the answer is KEEL_INVALID. `times` may
// be NULL.
int32_t keel_read(keel_key *key,
                  keel_value *value,
                  void *buffer,
                  size_t buffer_bytes,
                  keel_times *times);

// Lets `look` see the stored bytes of the latest value where the node writes them, without a copy. `times` may be
// NULL.
int32_t keel_look(keel_key *key,
                  keel_look_at look,
                  void *context,
                  keel_times *times);

// How many bytes the value has.
size_t keel_view_bytes(const keel_view *view);

// Eight bytes of it, from byte 8 × `index` on, the first one lowest; behind its end are zeros.
uint64_t keel_view_word(const keel_view *view, size_t index);

// Sends a reading to the node and does not wait for it. `time_ms`: the reading's time, milliseconds since 1970-01-01
// UTC, or KEEL_NOW. `ticket` may be NULL, then nobody learns what becomes of the reading; otherwise it must be closed.
int32_t keel_put_float(keel_key *key,
                       double value,
                       int64_t time_ms,
                       keel_ticket **ticket);

// The same with a truth value: 0 is false.
int32_t keel_put_boolean(keel_key *key, int32_t value, int64_t time_ms, keel_ticket **ticket);

// The same with a text of UTF-8.
int32_t keel_put_text(keel_key *key, const char *value, int64_t time_ms, keel_ticket **ticket);

// Waits until the reading is on flash, at most `timeout_ms`; then it is KEEL_LATE, and may be waited for again. Any
// other code says why it is not, and stays: KEEL_SHED where the node has thrown it away on purpose. KEEL_LATE stays,
// too, where an instance of a firm task was late: keel_last_error() says which it is. `lsn` may be NULL: the reading's
// number in the log; left alone unless the answer is KEEL_OK.
int32_t keel_wait(keel_ticket *ticket,
                  uint32_t timeout_ms,
                  uint64_t *lsn);

// Closes a ticket. The put goes on.
int32_t keel_close_ticket(keel_ticket *ticket);

// Makes a periodic task. It begins with the first keel_next(). `spec_bytes` is sizeof(keel_task_spec).
int32_t keel_make_task(keel_node *node,
                       const keel_task_spec *spec,
                       size_t spec_bytes,
                       keel_task **task);

// Ends the instance that runs, and waits for the next release; the first one is at once. KEEL_INTERRUPTED when a
// signal came first: the next call waits for the same release. KEEL_STALE in a child after fork(), which attaches for
// itself.
int32_t keel_next(keel_task *task);

// Ends the instance that runs, without waiting for the next. `outcome` may be NULL: KEEL_IN_TIME, KEEL_TOO_LATE or
// KEEL_ABORTED; 0 when none ran. KEEL_STALE in a child after fork(), where nothing is sent.
int32_t keel_end(keel_task *task,
                 int32_t *outcome);

// From here to keel_data_end() the instance accesses data: reads of keys belong in between, many at a time.
int32_t keel_data_begin(keel_task *task);

// The end of keel_data_begin().
int32_t keel_data_end(keel_task *task);

// keel_put_float() over the task's own connection, counted as data time. In a firm task the reading is kept aside
// until the instance ends, and stored with the others of the instance or not at all. Where the instance was late, or
// its puts came to the node after the deadline, the ticket says KEEL_LATE, and none of them is stored. After
// KEEL_IO and KEEL_GONE some of it may be; after any other code nothing is. KEEL_BUSY: the instance puts too much.
int32_t keel_task_put_float(keel_task *task,
                            keel_key *key,
                            double value,
                            int64_t time_ms,
                            keel_ticket **ticket);

// The same with a truth value: 0 is false.
int32_t keel_task_put_boolean(keel_task *task,
                              keel_key *key,
                              int32_t value,
                              int64_t time_ms,
                              keel_ticket **ticket);

// The same with a text of UTF-8.
int32_t keel_task_put_text(keel_task *task,
                           keel_key *key,
                           const char *value,
                           int64_t time_ms,
                           keel_ticket **ticket);

// Whether the deadline of the instance that runs has passed: 1 or 0. A body may stop early.
int32_t keel_has_missed(keel_task *task, int32_t *has_missed);

// Of a firm task: nothing that this instance has put or will put is sent.
int32_t keel_give_up(keel_task *task);

// Instances and reports so far; an instance that the node has refused is counted when its tickets end. `counts_bytes`
// is sizeof(keel_task_counts).
int32_t keel_counts(keel_task *task,
                    keel_task_counts *counts,
                    size_t counts_bytes);

// Shows `visit` what is to be known of a task, a line each: what the machine did not permit the thread (known from the
// first release on), and the last thing that went wrong between task and node. None means that all is well.
int32_t keel_task_warnings(keel_task *task,
                           keel_visit_text visit,
                           void *context);

// Ends the instance that runs, and the task; the node is told what it has not been told yet, which takes up to a
// second where it has only just heard of the task. A program that ends without it takes that along.
int32_t keel_close_task(keel_task *task);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KEEL_H */
