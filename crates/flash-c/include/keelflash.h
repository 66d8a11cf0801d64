/*
 * libkeelflash: a power-loss-safe flat file store in an image file or on a block device.
 *
 * Link with -lkeelflash. docs/c-interface.md shows how to build it, and examples/log_readings.c how to use it.
 *
 * Answers    A function that can fail answers KEELFLASH_OK (0) or a negative code; keelflash_last_error() then says
 *            in words what is wrong and what to do. What an output pointer leads to is written on success only.
 * Durable    means: on the device, also after a power cut at any moment. Every change is durable when its function
 *            returns, but for the functions that end in _nosync. Changes to names are atomic in any case.
 * Handles    of stores and files are opaque and never looked into: one that has been closed, or is none, is refused
 *            (KEELFLASH_GONE, KEELFLASH_INVALID). Closing a store closes its files.
 * Threads    Any function may be called by any thread at any time. Calls on one store, and on its files, take turns.
 *            The text of keelflash_last_error() belongs to the thread. A process that forks keeps its stores: in the
 *            child every call with one of them is refused, with KEELFLASH_INVALID.
 * Pointers   must be valid for the length of the call, for as many bytes as is said. NULL is refused with
 *            KEELFLASH_INVALID, except where no bytes are to be moved. Names and paths end with a zero.
 * Names      are UTF-8 without '/', other than "." and ".."; how long they may be is chosen when the store is made, 255
 *            bytes at most.
 */


#ifndef KEELFLASH_H
#define KEELFLASH_H

#include <stddef.h>
#include <stdint.h>

// The call succeeded.
#define KEELFLASH_OK 0

// A device or the operating system failed; trying again may help.
#define KEELFLASH_IO -1

// Stored bytes are damaged; none of the damaged bytes was returned.
#define KEELFLASH_CORRUPT -2

// No space: there are no free blocks, or the name table has no room for the name.
#define KEELFLASH_FULL -3

// The store is in use elsewhere or by the calling visitor, or the maximum number of files or stores is open.
#define KEELFLASH_BUSY -6

// The call is invalid: NULL, an impossible name or size, a value that is not a handle, or a handle from before fork().
#define KEELFLASH_INVALID -7

// Not permitted: the store is open read-only, or the operating system denies access.
#define KEELFLASH_DENIED -8

// The handle has been closed, or its file was deleted or replaced.
#define KEELFLASH_GONE -9

// Not a store, or a store in a format that this library does not know.
#define KEELFLASH_UNSUPPORTED -10

// The file does not exist.
#define KEELFLASH_NOT_FOUND -11

// The file exists already, or existing content would be overwritten.
#define KEELFLASH_EXISTS -12

// A defect of the library. The affected store refuses every further call except closing.
#define KEELFLASH_INTERNAL -100

// For keelflash_format: overwrite existing content. Without this flag, keelflash_format accepts only a new or empty
// file, or a device that begins with zeros and holds no known format. A file or device that is in use or mounted is
// never overwritten.
#define KEELFLASH_OVERWRITE 1

// For keelflash_format and keelflash_grow: do not write the whole image file now. The disk below it may then be full,
// or slower, when the store needs the space.
#define KEELFLASH_SPARSE 2

// For keelflash_open: open read-only and change nothing. Several programs may read a store at the same time while no
// program writes to it.
#define KEELFLASH_READ_ONLY 4

// The block number that means: no block.
#define KEELFLASH_NO_BLOCK 18446744073709551615ull

// Maximum size of an atomic append, in bytes: after a power cut the file has all of its bytes or none.
#define KEELFLASH_APPEND_ATOMIC_BYTES_MAX 11712

// Maximum size of an atomic overwrite within a file, in bytes.
#define KEELFLASH_OVERWRITE_ATOMIC_BYTES_MAX 7809

// Bytes of a file in one block. A damaged block loses this number of bytes, starting at a multiple of it in the file.
#define KEELFLASH_BLOCK_DATA_BYTES 3904

// The handle of an open file. Opaque. Opening a file again returns another handle; each handle must be closed.
typedef struct keelflash_file keelflash_file;

// The handle of an open store. Opaque.
typedef struct keelflash_store keelflash_store;

// Properties of a file that are known without reading it.
typedef struct {
    // Length of the file in bytes.
    uint64_t length_bytes;
    // Number of blocks of 4 KiB that hold these bytes.
    uint64_t blocks;
    // Number of blocks that the file owns, including those reserved for appends.
    uint64_t blocks_owned;
    // Identity of the content: a replaced file gets a new one.
    uint64_t file_id;
} keelflash_file_stat;

// A function that is called with each file. A return value other than 0 ends the list. The function must not call the
// library, and must return: no longjmp, no exception. `name` and `stat` are valid until it returns.
typedef int (*keelflash_visit_file)(void *context, const char *name, const keelflash_file_stat *stat);

// Statistics of an open store. A later version may have more fields at the end.
typedef struct {
    // Number of blocks of 4 KiB that files may own.
    uint64_t blocks_total;
    // Number of these blocks that no file owns.
    uint64_t blocks_free;
    // Number of files in the store.
    uint64_t files;
    // Number of files that the name table was sized for.
    uint64_t files_max;
    // Number of times the store has been opened for writing.
    uint64_t mounts;
    // Read requests to the device since the store was opened.
    uint64_t device_reads;
    // Blocks in these read requests.
    uint64_t device_blocks_read;
    // Write requests to the device since the store was opened, each one contiguous range.
    uint64_t device_writes;
    // Blocks in these write requests.
    uint64_t device_blocks_written;
    // Flushes of the device since the store was opened.
    uint64_t device_flushes;
    // Blocks of the name table whose other copy was used since the store was opened: one copy was damaged or outdated.
    uint64_t table_blocks_healed;
    // Memory of the open store in bytes.
    uint64_t memory_bytes;
} keelflash_store_statistics;

// The maximum number of device operations of one call, independent of the content of the store.
typedef struct {
    // Read requests.
    uint64_t reads;
    // Blocks of 4 KiB in these read requests.
    uint64_t blocks_read;
    // Write requests, each one contiguous range.
    uint64_t writes;
    // Blocks of 4 KiB in these write requests.
    uint64_t blocks_written;
    // Flushes of the device.
    uint64_t flushes;
} keelflash_bound;

// A function that is called with each kind of call and the bound of its device operations. A return value other than 0
// ends the list. The function must not call the library, and must return. `call` and `bound` are valid until it
// returns.
typedef int (*keelflash_visit_bound)(void *context, const char *call, const keelflash_bound *bound);

// One problem of a store.
typedef struct {
    // Name of the affected file; NULL if no file is known.
    const char *file;
    // Number of the block in which the problem was found, or KEELFLASH_NO_BLOCK.
    uint64_t block;
    // What is wrong and what it means; after a repair also what was done about it.
    const char *text;
    // 1 if the problem is repaired, 0 if it is not.
    uint32_t is_mended;
    // 1 if bytes or the name of a file are lost because of it, else 0.
    uint32_t is_data_lost;
} keelflash_problem;

// A function that is called with each problem. A return value other than 0 ends the list. The function must not call
// the library, and must return: no longjmp, no exception. `problem` and its strings are valid until it returns.
typedef int (*keelflash_visit_problem)(void *context, const keelflash_problem *problem);

// The result of a check or a repair. A later version may have more fields at the end.
typedef struct {
    // Number of files in the store.
    uint64_t files;
    // Number of intact blocks of files.
    uint64_t blocks_verified;
    // Number of blocks that no file owns.
    uint64_t blocks_free;
    // Number of all problems found; the visitor function is called with the first 1000 of them, and
    // after a repair also with each restored file.
    uint64_t problems;
    // After a check: equal to `problems`. After a repair: number of problems that a check finds afterwards.
    uint64_t problems_left;
    // Number of blocks that a repair wrote; 0 if there was nothing to repair.
    uint64_t blocks_written;
    // Number of files that a repair restored as `lost-NUMBER-NAME`, because their names are lost.
    uint64_t files_renamed;
    // 1 if bytes or names of files are lost, else 0. A check looks at the first 1000 problems for it.
    uint64_t is_data_lost;
} keelflash_check_report;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the reason of the last failed call of this thread, and the remedy: one line of UTF-8, empty if no call has
// failed. The pointer is valid until the next call of this thread fails, or until the thread ends.
const char *keelflash_last_error(void);

// Returns the name of a code: "not-found", "full", ...; "unknown" if the number is not a code. The pointer is always
// valid.
const char *keelflash_error_name(int32_t code);

// Returns the version of the library: "1.2.3". The pointer is always valid.
const char *keelflash_version(void);

// Returns the version of the format of the stores that the library creates and reads.
uint32_t keelflash_format_version(void);

// Creates an empty store in the image file or on the block device at `path`, and opens it for writing.
//
// `size_bytes`: size of the image file; 0 for a device, which has its own size, and for a file that must keep its
// size. A file that is already longer always keeps its size. `files_max`: number of files for which the name table is
// sized; not a limit. `name_bytes_max`: maximum name length in bytes, at most 255; 0 means 255. `flags`:
// KEELFLASH_OVERWRITE, KEELFLASH_SPARSE, both, or 0.
int32_t keelflash_format(const char *path,
                         uint64_t size_bytes,
                         uint64_t files_max,
                         uint32_t name_bytes_max,
                         uint32_t flags,
                         keelflash_store **store);

// Opens the store at `path`, and recovers it if a power cut interrupted a change. With KEELFLASH_READ_ONLY nothing is
// written, and the store is read as if it were recovered.
//
// `open_files_max`: maximum number of files that are open at one time; their memory is allocated now; 0 means 64.
// `flags`: KEELFLASH_READ_ONLY or 0.
int32_t keelflash_open(const char *path,
                       uint32_t open_files_max,
                       uint32_t flags,
                       keelflash_store **store);

// Closes a store and its files. If the device fails, the call returns an error, but the handle is closed all the same,
// and nothing that was durable is lost.
int32_t keelflash_close(keelflash_store *store);

// Makes all earlier writes to the store durable.
int32_t keelflash_sync(keelflash_store *store);

// Replaces the whole content of the file `name` with `length` bytes from `data`; creates a file that does not exist.
// Durable and atomic: after a power cut the file has the old content or the new one. Handles of the old file become
// invalid (KEELFLASH_GONE).
int32_t keelflash_replace(keelflash_store *store,
                          const char *name,
                          const void *data,
                          size_t length);

// Deletes the file `name`. Durable and atomic. Handles of the file become invalid (KEELFLASH_GONE).
int32_t keelflash_delete(keelflash_store *store, const char *name);

// Renames the file `from` to `to`; replaces the file `to` if it exists. Durable and atomic. Handles of the renamed
// file stay valid. Handles of a replaced file become invalid (KEELFLASH_GONE).
int32_t keelflash_rename(keelflash_store *store,
                         const char *from,
                         const char *to);

// Writes the properties of the file `name` to `stat`.
int32_t keelflash_stat(keelflash_store *store, const char *name, keelflash_file_stat *stat);

// Calls `visit` for every file, in no particular order. `context` is passed to `visit`. If a part of the name table is
// damaged, `visit` is still called for all files that can be read, and the call returns KEELFLASH_CORRUPT.
int32_t keelflash_list(keelflash_store *store,
                       keelflash_visit_file visit,
                       void *context);

// Writes the statistics of the store to `statistics`. `statistics_bytes` is sizeof(keelflash_store_statistics) in the
// caller's header.
int32_t keelflash_statistics(keelflash_store *store,
                             keelflash_store_statistics *statistics,
                             size_t statistics_bytes);

// Calls `visit` with the maximum number of device operations that each call can need on this store. A text describes
// the call. `context` is passed to `visit`.
int32_t keelflash_bounds(keelflash_store *store,
                         keelflash_visit_bound visit,
                         void *context);

// Reads every block of the store and reports all damage; changes nothing. Calls `visit` for each problem and passes
// `context` to it; `visit` may be NULL. `report` may be NULL too. If it is not, `report_bytes` is
// sizeof(keelflash_check_report) in the caller's header.
//
// KEELFLASH_OK means that the store is intact. KEELFLASH_CORRUPT means that it is damaged: everything has been read,
// `visit` has been called for the problems, and the report is written. The call takes as long as reading the whole
// store. It needs two bytes of memory for each block of the store, and more for a long file.
int32_t keelflash_check(keelflash_store *store,
                        keelflash_visit_problem visit,
                        void *context,
                        keelflash_check_report *report,
                        size_t report_bytes);

// Repairs the store at `path` as far as that is possible without inventing data. No process may have the store open.
// The repair uses second copies, and rebuilds the name table and the list of free blocks from the blocks of the files.
// A file whose name is lost is restored as lost-NUMBER-NAME. Reading damaged bytes of a file still fails. If nothing
// is wrong, nothing is written. Copy the image first if you can. `visit`, `context`, `report` and `report_bytes` are
// as for keelflash_check.
//
// KEELFLASH_OK means that the store is intact and that nothing is lost. KEELFLASH_CORRUPT means one of two things.
// Either something is lost or still wrong. All that could be repaired is then repaired, `visit` has been called for
// the problems, and the report is written. Or all copies of the superblock are damaged. The repair could then not
// start, and the report is unchanged.
int32_t keelflash_repair(const char *path,
                         keelflash_visit_problem visit,
                         void *context,
                         keelflash_check_report *report,
                         size_t report_bytes);

// Enlarges the store at `path` to the whole of an image file or device that has become larger. No process may have the
// store open.
//
// `size_bytes`: new size of the image file; 0 for a device, and for an image file that keeps its current size.
// `flags`: KEELFLASH_SPARSE or 0. The call takes no longer for a full store than for an empty one. If it is
// interrupted, the store has the old size or the new one. The size of the name table does not change. A store cannot
// shrink.
int32_t keelflash_grow(const char *path,
                       uint64_t size_bytes,
                       uint32_t flags);

// Creates the empty file `name` and opens it. Durable and atomic.
int32_t keelflash_create_file(keelflash_store *store, const char *name, keelflash_file **file);

// Opens the file `name`, which must exist.
int32_t keelflash_open_file(keelflash_store *store, const char *name, keelflash_file **file);

// Closes a file. Writes nothing.
int32_t keelflash_close_file(keelflash_file *file);

// Appends `length` bytes from `data`. They are durable when the call returns. An append of up to
// KEELFLASH_APPEND_ATOMIC_BYTES_MAX bytes is atomic. Of a longer one, a power cut or a full store may leave only a
// prefix in the file.
int32_t keelflash_append(keelflash_file *file,
                         const void *data,
                         size_t length);

// Like keelflash_append, but the bytes are guaranteed to be durable only after keelflash_sync.
int32_t keelflash_append_nosync(keelflash_file *file, const void *data, size_t length);

// Writes `length` bytes from `data` at byte `offset`. They are durable when the call returns. A gap between the end of
// the file and `offset` is filled with zeros. A write of up to KEELFLASH_OVERWRITE_ATOMIC_BYTES_MAX bytes within the
// file is atomic. Of a longer write, or one that makes the file longer, a power cut may leave only a prefix.
int32_t keelflash_write_at(keelflash_file *file,
                           uint64_t offset,
                           const void *data,
                           size_t length);

// Like keelflash_write_at, but the bytes are guaranteed to be durable only after keelflash_sync.
int32_t keelflash_write_at_nosync(keelflash_file *file,
                                  uint64_t offset,
                                  const void *data,
                                  size_t length);

// Sets the length of the file to `file_length` bytes: cuts off its end, or extends it with zeros. Durable; also atomic
// if the file becomes shorter.
int32_t keelflash_truncate(keelflash_file *file,
                           uint64_t file_length);

// Reads up to `length` bytes, from byte `offset`, into `buffer`. Writes the number of bytes read to `bytes_read`:
// fewer than `length` only at the end of the file, 0 past the end.
int32_t keelflash_read(keelflash_file *file,
                       uint64_t offset,
                       void *buffer,
                       size_t length,
                       size_t *bytes_read);

// Writes the length of the file, in bytes, to `length_bytes`.
int32_t keelflash_length(keelflash_file *file, uint64_t *length_bytes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KEELFLASH_H */
