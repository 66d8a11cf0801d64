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
 * Real time  keel_read_float() and keel_look(), with or without _ns, make no system call, take no lock that others hold
 *            for long, and allocate nothing where values are shared (KEEL_SHARED). Putting makes one system call and
 *            never waits for the node.
 * Pointers   must be valid for the length of the call. NULL is refused with KEEL_INVALID except where it is said.
 *            Names and texts end with a zero.
 */


#ifndef KEEL_H
#define KEEL_H

#include <stddef.h>
#include <stdint.h>

// The call succeeded.
#define KEEL_OK 0

// The operating system, or the node's device, failed; trying again may help.
#define KEEL_IO -1

// Bytes are damaged.
#define KEEL_CORRUPT -2

// No space: in the node's store, or for another key.
#define KEEL_FULL -3

// Not in time: the node has not answered, or the reading of a ticket is not durable yet. Or an instance of a firm task
// was late, or its puts reached the node too late.
#define KEEL_LATE -4

// The handle belongs to the parent of this process.
#define KEEL_STALE -5

// A limit is reached, such as that of open handles or of puts in flight; or another thread runs the task.
#define KEEL_BUSY -6

// The call is invalid: NULL, an impossible name or number, or a value that is not a handle.
#define KEEL_INVALID -7

// Not permitted.
#define KEEL_DENIED -8

// The handle has been closed, or the node has ended or closed the connection.
#define KEEL_GONE -9

// The value has another type, or the node does not know the request.
#define KEEL_UNSUPPORTED -10

// The key does not exist or has no value yet, or there is no node.
#define KEEL_NOT_FOUND -11

// The node dropped the reading and did not store it: the configuration demands this for its key while fewer updates
// are admitted.
#define KEEL_SHED -13

// A signal interrupted the wait; call again.
#define KEEL_INTERRUPTED -99

// A defect of the library.
#define KEEL_INTERNAL -100

// Values are read in place, where the node writes them. Without this flag each read asks the node through its socket.
#define KEEL_SHARED 1

// The node was alive at the last check; the library checks every 100 ms. If values are not shared: it answers now.
#define KEEL_LIVE 2

// A double: keel_value.number.
#define KEEL_FLOAT 1

// A signed integer: keel_value.integer.
#define KEEL_INTEGER 2

// An unsigned integer: keel_value.natural.
#define KEEL_UNSIGNED 3

// A truth value: keel_value.truth, 0 or 1.
#define KEEL_BOOLEAN 4

// UTF-8 text in the buffer, followed by a zero byte: keel_value.bytes does not count the zero.
#define KEEL_TEXT 5

// Bytes without a type, in the buffer: keel_value.bytes.
#define KEEL_BYTES 6

// Readings are expected continuously; KEEL_FRESH is meaningful only then.
#define KEEL_TEMPORAL 1

// The age of the value is within validity_ms.
#define KEEL_FRESH 2

// The node's clock gave the time, not the sensor.
#define KEEL_NODE_TIME 4

// The node's clock was trusted when the reading arrived.
#define KEEL_CLOCK_TRUSTED 8

// The reading arrived since this machine started.
#define KEEL_THIS_BOOT 16

// A broker had kept the reading for an unknown time before it arrived.
#define KEEL_RETAINED 32

// A value of `time_ms` and `time_ns`: the node's clock gives the time.
#define KEEL_NOW INT64_MIN

// The task is firm: a late instance is aborted, and none of its puts is stored. All puts of an instance, at most 128
// readings, are sent in one request at its end. The node checks the deadline again: it stores all of them or none, and
// none after the deadline. Without this flag a late instance finishes and is counted.
#define KEEL_FIRM 1

// The instance ended within the deadline. The puts of a firm instance may still reach the node too late;
// keel_counts() then shows this.
#define KEEL_IN_TIME 1

// The instance ended after the deadline.
#define KEEL_TOO_LATE 2

// The instance belongs to a firm task, and none of its puts was sent.
#define KEEL_ABORTED 3

// The handle of a key of a node. Opaque.
typedef struct keel_key keel_key;

// The handle of an attached node. Opaque.
typedef struct keel_node keel_node;

// The handle of a periodic task. Opaque.
typedef struct keel_task keel_task;

// The handle of a put in flight. Opaque.
typedef struct keel_ticket keel_ticket;

// The bytes of a value during a call of a keel_look_at function. Opaque.
typedef struct keel_view keel_view;

// Times and flags of a value.
typedef struct {
    // The reading's time, milliseconds since 1970-01-01 UTC, rounded down.
    int64_t time_ms;
    // Age of the reading in milliseconds; negative for a time in the future.
    int64_t age_ms;
    // Maximum age of a fresh value, in milliseconds.
    uint32_t validity_ms;
    // KEEL_TEMPORAL, KEEL_FRESH, KEEL_NODE_TIME, KEEL_CLOCK_TRUSTED, KEEL_THIS_BOOT and KEEL_RETAINED, as
    // they apply.
    uint32_t flags;
} keel_times;

// A value with its type.
typedef struct {
    // The double; for an integer the nearest double.
    double number;
    // The signed integer; 0 for other types.
    int64_t integer;
    // The unsigned integer; 0 for other types.
    uint64_t natural;
    // Number of bytes of text or bytes in the buffer; 0 for other types.
    size_t bytes;
    // The type: KEEL_FLOAT to KEEL_BYTES.
    int32_t kind;
    // The truth value; 0 for other types.
    int32_t truth;
} keel_value;

// A function that reads the bytes of a value. It is called again if a write changed them during the call, so it must
// start from the beginning each time. Only what it read in its last call is a value. It should be short, and must not
// use the view after it returns.
typedef void (*keel_look_at)(void *context, const keel_view *view);

// Times and flags of a value, with its exact time.
typedef struct {
    // The reading's time, nanoseconds since 1970-01-01 UTC.
    int64_t time_ns;
    // Age of the reading in milliseconds; negative for a time in the future.
    int64_t age_ms;
    // Maximum age of a fresh value, in milliseconds.
    uint32_t validity_ms;
    // As in keel_times.
    uint32_t flags;
} keel_times_ns;

// The parameters of a periodic task. Fill the structure with zeros first: later versions have more fields, and 0 in
// them means the behaviour without them.
typedef struct {
    // Name of the task, 1 to 64 bytes without control characters.
    const char *name;
    // Time between releases in nanoseconds, 1,000 (1 µs) to 3,600,000,000,000 (1 hour).
    uint64_t period_ns;
    // Maximum response time in nanoseconds, up to 1 hour.
    uint64_t deadline_ns;
    // Weight of the task in the figures that the node controls, up to 1000; 0 means 1.
    double weight;
    // Array of `cores_count` cores that the thread may run on; NULL with `cores_count` 0 means all cores.
    const uint16_t *cores;
    // Number of cores in `cores`.
    size_t cores_count;
    // Bytes of the thread's stack that are touched and locked in memory before the first release; 0 means none.
    size_t stack_bytes;
    // KEEL_FIRM or 0.
    uint32_t flags;
    // Real-time priority of the thread, 1 to 99 (SCHED_FIFO); 0 leaves the scheduling unchanged.
    uint32_t fifo_priority;
} keel_task_spec;

// Counts of the instances and reports of a task since it was created.
typedef struct {
    // Number of instances that ended, including late and aborted ones.
    uint64_t instances;
    // Number of these that ended after the deadline, or whose puts the node refused because they came after it.
    uint64_t deadline_misses;
    // Number of instances of a firm task of which no put was stored: the puts were not sent, or the node refused them.
    uint64_t aborted;
    // Number of releases that passed while an earlier instance ran.
    uint64_t releases_missed;
    // Number of reports that were sent to the node.
    uint64_t reports;
    // Number of reports that were dropped because no node could receive them.
    uint64_t reports_lost;
} keel_task_counts;

// A function that is called with a text. The text is valid until the function returns.
typedef void (*keel_visit_text)(void *context, const char *text);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the reason of the last failed call of this thread, and the remedy: one line of UTF-8, empty if no call has
// failed. The pointer is valid until the next call of this thread fails, or until the thread ends.
const char *keel_last_error(void);

// Returns the name of a code: "not-found", "busy", ...; "unknown" if the number is not a code. The pointer is always
// valid.
const char *keel_error_name(int32_t code);

// Returns the version of the library: "1.2.3". The pointer is always valid.
const char *keel_version(void);

// Attaches to the node that serves `socket`. If the node ends and starts again, the library attaches to it again
// automatically.
int32_t keel_attach(const char *socket,
                    keel_node **node);

// Closes the handle of a node.
int32_t keel_detach(keel_node *node);

// Writes the state of the node to `flags`: KEEL_SHARED, KEEL_LIVE, both, or 0.
int32_t keel_node_state(keel_node *node, uint32_t *flags);

// Opens a handle of the key `name`. It has 1 to 255 bytes, no control or invisible characters, and no level that is
// `+` or `#` alone. The key need not exist yet.
int32_t keel_open_key(keel_node *node,
                      const char *name,
                      keel_key **key);

// Closes the handle of a key.
int32_t keel_close_key(keel_key *key);

// Reads the latest value if it is a double; otherwise returns KEEL_UNSUPPORTED. If values are shared (KEEL_SHARED),
// the value is read in place, where the node writes it. `times` may be NULL.
int32_t keel_read_float(keel_key *key,
                        double *value,
                        keel_times *times);

// Reads the latest value with its type. Text and bytes are copied into `buffer`, which has `buffer_bytes` bytes. If
// they do not fit, including the zero of a text, the call returns KEEL_INVALID. `buffer` may be NULL with
// `buffer_bytes` 0 for keys that have numbers. `times` may be NULL.
int32_t keel_read(keel_key *key,
                  keel_value *value,
                  void *buffer,
                  size_t buffer_bytes,
                  keel_times *times);

// Calls `look` with the stored bytes of the latest value, and passes `context` to it. If values are shared
// (KEEL_SHARED), `look` reads them in place, where the node writes them, without a copy. `times` may be NULL.
int32_t keel_look(keel_key *key,
                  keel_look_at look,
                  void *context,
                  keel_times *times);

// Like keel_read_float(), with the exact time.
int32_t keel_read_float_ns(keel_key *key, double *value, keel_times_ns *times);

// Like keel_read(), with the exact time.
int32_t keel_read_ns(keel_key *key,
                     keel_value *value,
                     void *buffer,
                     size_t buffer_bytes,
                     keel_times_ns *times);

// Like keel_look(), with the exact time.
int32_t keel_look_ns(keel_key *key, keel_look_at look, void *context, keel_times_ns *times);

// Returns the number of bytes of the value.
size_t keel_view_bytes(const keel_view *view);

// Returns eight bytes of the value, from byte 8 × `index` on; the first byte is the lowest. Bytes past the end are
// zeros.
uint64_t keel_view_word(const keel_view *view,
                        size_t index);

// Sends a reading to the node and does not wait for it. `time_ms`: the reading's time, milliseconds since 1970-01-01
// UTC, or KEEL_NOW. `ticket` may be NULL: the caller then does not learn the outcome of the put. Otherwise the caller
// must close the ticket.
int32_t keel_put_float(keel_key *key,
                       double value,
                       int64_t time_ms,
                       keel_ticket **ticket);

// Like keel_put_float(), with an integer. Up to 2^53 in magnitude it becomes a double.
int32_t keel_put_integer(keel_key *key, int64_t value, int64_t time_ms, keel_ticket **ticket);

// Like keel_put_integer(), with an unsigned integer.
int32_t keel_put_unsigned(keel_key *key, uint64_t value, int64_t time_ms, keel_ticket **ticket);

// Like keel_put_float(), with a truth value: 0 is false.
int32_t keel_put_boolean(keel_key *key, int32_t value, int64_t time_ms, keel_ticket **ticket);

// Like keel_put_float(), with a text of UTF-8.
int32_t keel_put_text(keel_key *key, const char *value, int64_t time_ms, keel_ticket **ticket);

// Like keel_put_float(), with the time in nanoseconds since 1970-01-01 UTC, or KEEL_NOW.
int32_t keel_put_float_ns(keel_key *key, double value, int64_t time_ns, keel_ticket **ticket);

// Like keel_put_integer(), with the time in nanoseconds since 1970-01-01 UTC, or KEEL_NOW.
int32_t keel_put_integer_ns(keel_key *key, int64_t value, int64_t time_ns, keel_ticket **ticket);

// Like keel_put_unsigned(), with the time in nanoseconds since 1970-01-01 UTC, or KEEL_NOW.
int32_t keel_put_unsigned_ns(keel_key *key, uint64_t value, int64_t time_ns, keel_ticket **ticket);

// Like keel_put_boolean(), with the time in nanoseconds since 1970-01-01 UTC, or KEEL_NOW.
int32_t keel_put_boolean_ns(keel_key *key, int32_t value, int64_t time_ns, keel_ticket **ticket);

// Like keel_put_text(), with the time in nanoseconds since 1970-01-01 UTC, or KEEL_NOW.
int32_t keel_put_text_ns(keel_key *key, const char *value, int64_t time_ns, keel_ticket **ticket);

// Waits until the reading is on flash, at most `timeout_ms`. After the timeout the call returns KEEL_LATE, and the
// caller may wait again. Any other error is final and says why the reading is not known to be on flash: KEEL_SHED if
// the node dropped it on purpose. KEEL_LATE is final too if an instance of a firm task was late: keel_last_error()
// says which case it is. On KEEL_OK the reading's number in the log is written to `lsn`; on any other code `lsn` is
// left unchanged. `lsn` may be NULL.
int32_t keel_wait(keel_ticket *ticket,
                  uint32_t timeout_ms,
                  uint64_t *lsn);

// Closes a ticket. The put continues.
int32_t keel_close_ticket(keel_ticket *ticket);

// Creates a periodic task. It starts with the first keel_next(). `spec_bytes` is sizeof(keel_task_spec).
int32_t keel_make_task(keel_node *node,
                       const keel_task_spec *spec,
                       size_t spec_bytes,
                       keel_task **task);

// Ends the running instance, and waits for the next release; the first release is immediate. Returns KEEL_INTERRUPTED
// if a signal comes first: the next call waits for the same release. Returns KEEL_STALE in a child after fork(): the
// child must attach again.
int32_t keel_next(keel_task *task);

// Ends the running instance without waiting for the next release. Writes KEEL_IN_TIME, KEEL_TOO_LATE or KEEL_ABORTED
// to `outcome`, or 0 if no instance was running. `outcome` may be NULL. Returns KEEL_STALE in a child after fork(),
// where nothing is sent.
int32_t keel_end(keel_task *task,
                 int32_t *outcome);

// Marks the start of a data access of the instance, which lasts until keel_data_end(). Reads of keys belong between
// these two calls, many reads in one pair.
int32_t keel_data_begin(keel_task *task);

// Marks the end of the data access of keel_data_begin().
int32_t keel_data_end(keel_task *task);

// Like keel_put_float(), but over the task's own connection, and counted as data time. In a firm task the reading is
// buffered until the instance ends. It is stored together with the other readings of the instance, or not at all. If
// the instance was late, or its puts reached the node after the deadline, the ticket ends with KEEL_LATE, and none of
// them is stored. After KEEL_IO and KEEL_GONE some of them may be stored; after any other error none is. KEEL_BUSY
// means that the instance puts too much.
int32_t keel_task_put_float(keel_task *task,
                            keel_key *key,
                            double value,
                            int64_t time_ms,
                            keel_ticket **ticket);

// Like keel_task_put_float(), with an integer. Up to 2^53 in magnitude it becomes a double.
int32_t keel_task_put_integer(keel_task *task,
                              keel_key *key,
                              int64_t value,
                              int64_t time_ms,
                              keel_ticket **ticket);

// Like keel_task_put_integer(), with an unsigned integer.
int32_t keel_task_put_unsigned(keel_task *task,
                               keel_key *key,
                               uint64_t value,
                               int64_t time_ms,
                               keel_ticket **ticket);

// Like keel_task_put_float(), with a truth value: 0 is false.
int32_t keel_task_put_boolean(keel_task *task,
                              keel_key *key,
                              int32_t value,
                              int64_t time_ms,
                              keel_ticket **ticket);

// Like keel_task_put_float(), with a text of UTF-8.
int32_t keel_task_put_text(keel_task *task,
                           keel_key *key,
                           const char *value,
                           int64_t time_ms,
                           keel_ticket **ticket);

// Like keel_task_put_float(), with the time in nanoseconds since 1970-01-01 UTC, or KEEL_NOW.
int32_t keel_task_put_float_ns(keel_task *task,
                               keel_key *key,
                               double value,
                               int64_t time_ns,
                               keel_ticket **ticket);

// Like keel_task_put_integer(), with the time in nanoseconds since 1970-01-01 UTC, or KEEL_NOW.
int32_t keel_task_put_integer_ns(keel_task *task,
                                 keel_key *key,
                                 int64_t value,
                                 int64_t time_ns,
                                 keel_ticket **ticket);

// Like keel_task_put_unsigned(), with the time in nanoseconds since 1970-01-01 UTC, or KEEL_NOW.
int32_t keel_task_put_unsigned_ns(keel_task *task,
                                  keel_key *key,
                                  uint64_t value,
                                  int64_t time_ns,
                                  keel_ticket **ticket);

// Like keel_task_put_boolean(), with the time in nanoseconds since 1970-01-01 UTC, or KEEL_NOW.
int32_t keel_task_put_boolean_ns(keel_task *task,
                                 keel_key *key,
                                 int32_t value,
                                 int64_t time_ns,
                                 keel_ticket **ticket);

// Like keel_task_put_text(), with the time in nanoseconds since 1970-01-01 UTC, or KEEL_NOW.
int32_t keel_task_put_text_ns(keel_task *task,
                              keel_key *key,
                              const char *value,
                              int64_t time_ns,
                              keel_ticket **ticket);

// Writes 1 to `has_missed` if the deadline of the running instance has passed, else 0. The task may then stop early.
int32_t keel_has_missed(keel_task *task,
                        int32_t *has_missed);

// In a firm task: drops everything that this instance has put or will put; none of it is sent.
int32_t keel_give_up(keel_task *task);

// Writes the counts of instances and reports so far to `counts`. An instance that the node refused is counted when its
// tickets end. `counts_bytes` is sizeof(keel_task_counts).
int32_t keel_counts(keel_task *task,
                    keel_task_counts *counts,
                    size_t counts_bytes);

// Calls `visit` for each warning of a task, with one line of text, and passes `context` to it. The warnings are what
// the machine did not permit the thread (known from the first release on), and the last error between task and node.
// If there is no warning, there is no problem.
int32_t keel_task_warnings(keel_task *task,
                           keel_visit_text visit,
                           void *context);

// Ends the running instance, and closes the task. Sends the last report to the node; this takes up to 1 s if the node
// has not answered the declaration of the task yet. A program that ends without this call loses that report.
int32_t keel_close_task(keel_task *task);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KEEL_H */
