/*
 * libkeelflash: a power-loss-safe flat file store in an image file or on a block device.
 *
 * Link with -lkeelflash. docs/c-interface.md shows how to build it, and examples/log_readings.c how to use it.
 *
 * Answers    A function that can fail answers KEELFLASH_OK (0) or a negative code; keelflash_last_error() then says
 *            in words what is wrong and what to do. What an output pointer leads to is written on success only.
 * Durable    means: on the device, whatever the power does next. Every change is durable when its function returns,
 *            but for the functions that end in _nosync. Changes to names are atomic in any case.
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

// It is done.
#define KEELFLASH_OK 0

// A device or the operating system failed; trying again may help.
#define KEELFLASH_IO -1

// Stored bytes are damaged; nothing of them was returned.
#define KEELFLASH_CORRUPT -2

// No room: no free blocks, or no room for the name.
#define KEELFLASH_FULL -3

// Somebody else has the store, or as many files or stores are open as may be.
#define KEELFLASH_BUSY -6

// The call makes no sense: NULL, a name or a size that cannot be, something that is no handle.
#define KEELFLASH_INVALID -7

// Not permitted: the store is open for reading only, or the system forbids it.
#define KEELFLASH_DENIED -8

// The handle has been closed, or its file was deleted or replaced.
#define KEELFLASH_GONE -9

// Not a store, or one of a format that this library does not know.
#define KEELFLASH_UNSUPPORTED -10

// There is no such file.
#define KEELFLASH_NOT_FOUND -11

// There is such a file already, or something that would be overwritten.
#define KEELFLASH_EXISTS -12

// The library itself is at fault. The store in question takes no more calls but to be closed.
#define KEELFLASH_INTERNAL -100

// For keelflash_format: overwrite what is there. Without it only a new or empty file is formatted, or a device that
// holds nothing known and begins with zeros. What is in use or mounted is never overwritten.
#define KEELFLASH_OVERWRITE 1

// For keelflash_format: do not write the whole image file now. The disk below may then be full, and slower, when the
// store needs it.
#define KEELFLASH_SPARSE 2

// For keelflash_open: change nothing. Several programs may read a store at the same time while none writes to it.
#define KEELFLASH_READ_ONLY 4

// In the place of a block's number when there is none.
#define KEELFLASH_NO_BLOCK 18446744073709551615ull

// Bytes of one append that are atomic: after a power cut all of them are there or none.
#define KEELFLASH_APPEND_ATOMIC_BYTES_MAX 11712

// Bytes of one overwrite within a file that are atomic.
#define KEELFLASH_OVERWRITE_ATOMIC_BYTES_MAX 7809

// Bytes of a file in one block. Damage to a block costs as many, from a multiple of it on.
#define KEELFLASH_BLOCK_DATA_BYTES 3904

// An open file of a store. Opaque. Opening a file again gives another handle; each must be closed.
typedef struct keelflash_file keelflash_file;

// A store. Opaque.
typedef struct keelflash_store keelflash_store;

// What is known of a file without reading it.
typedef struct {
    // Bytes in the file.
    uint64_t length_bytes;
    // Blocks of 4 KiB that hold them.
    uint64_t blocks;
    // Blocks that the file owns, including those reserved for appends.
    uint64_t blocks_owned;
    // Identity of the content: a replaced file has a new one.
    uint64_t file_id;
} keelflash_file_stat;

// Is shown a file. Any answer but 0 ends the list. It must not use the library, and must return: no longjmp, no
// exception. `name` and `stat` are valid until it does.
typedef int (*keelflash_visit_file)(void *context, const char *name, const keelflash_file_stat *stat);

// Figures of an open store. A later version may have more at the end.
typedef struct {
    // Blocks of 4 KiB that files may own.
    uint64_t blocks_total;
    // Of these, blocks that no file owns.
    uint64_t blocks_free;
    // Files in the store.
    uint64_t files;
    // Files that the name table was sized for.
    uint64_t files_max;
    // How often the store has been opened for writing.
    uint64_t mounts;
    // Read requests to the device since the store was opened.
    uint64_t device_reads;
    // Blocks in them.
    uint64_t device_blocks_read;
    // Write requests to the device since the store was opened, each one contiguous range.
    uint64_t device_writes;
    // Blocks in them.
    uint64_t device_blocks_written;
    // Flushes of the device since the store was opened.
    uint64_t device_flushes;
    // Blocks of the name table that a second copy stood in for since the store was opened.
    uint64_t table_blocks_healed;
    // Memory of the open store in bytes.
    uint64_t memory_bytes;
} keelflash_store_statistics;

// Device operations of one call at most, whatever the store holds.
typedef struct {
    // Read requests.
    uint64_t reads;
    // Blocks of 4 KiB in them.
    uint64_t blocks_read;
    // Write requests, each one contiguous range.
    uint64_t writes;
    // Blocks in them.
    uint64_t blocks_written;
    // Flushes.
    uint64_t flushes;
} keelflash_bound;

// Is shown what a call may cost. Any answer but 0 ends the list. It must not use the library, and must return.
// `call` and `bound` are valid until it does.
typedef int (*keelflash_visit_bound)(void *context, const char *call, const keelflash_bound *bound);

// One thing that is not as it should be.
typedef struct {
    // The file that it concerns; NULL when none is known.
    const char *file;
    // The block it was found in, or KEELFLASH_NO_BLOCK.
    uint64_t block;
    // What is wrong and what it means, after a repair also what was done about it.
    const char *text;
    // 1 if it is wrong no more, 0 if it still is.
    uint32_t is_mended;
    // 1 if bytes or the name of a file are lost by it, or 0.
    uint32_t is_data_lost;
} keelflash_problem;

// Is shown a problem. Any answer but 0 ends the list. It must not use the library, and must return: no longjmp, no
// exception. What `problem` leads to is valid until it does.
typedef int (*keelflash_visit_problem)(void *context, const keelflash_problem *problem);

// What a check has found, or a repair has found and left. A later version may have more at the end.
typedef struct {
    // Files in the store.
    uint64_t files;
    // Blocks of files that are intact.
    uint64_t blocks_verified;
    // Blocks that no file owns.
    uint64_t blocks_free;
    // All problems found; a visitor is shown the first 1000 of them.
    uint64_t problems;
    // Of a check: the same. Of a repair: what a check finds afterwards.
    uint64_t problems_left;
    // Blocks that a repair has written; 0 when there was nothing to mend.
    uint64_t blocks_written;
    // Files that a repair has brought back as `lost-NUMBER-NAME`, because their names are lost.
    uint64_t files_renamed;
    // 1 if bytes or names of files are lost, or 0.
    uint64_t is_data_lost;
} keelflash_check_report;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What was wrong with the last call of this thread that failed, and what to do about it: one line of UTF-8, empty
// when none has failed. Valid until the next call of this thread that fails, or its end.
const char *keelflash_last_error(void);

// The name of a code: "not-found", "full", ...; "unknown" for a number that is no code. Valid for ever.
const char *keelflash_error_name(int32_t code);

// The version of the library: "1.2.3". Valid for ever.
const char *keelflash_version(void);

// The format of the stores that the library makes and reads.
uint32_t keelflash_format_version(void);

// Makes an empty store in the image file or on the block device at `path`, and opens it for writing.
//
// `size_bytes`: size of the image file; 0 for a device, which has its own size, and for a file that is to keep its
// size. A longer file keeps its size in any case. `files_max`: number of files to size the name table for; not a
// limit. `name_bytes_max`: longest name, at most 255; 0 stands for 255. `flags`: KEELFLASH_OVERWRITE,
// KEELFLASH_SPARSE, or both, or 0.
int32_t keelflash_format(const char *path,
                         uint64_t size_bytes,
                         uint64_t files_max,
                         uint32_t name_bytes_max,
                         uint32_t flags,
                         keelflash_store **store);

// Opens the store at `path`; what a power cut has interrupted is mended, or with KEELFLASH_READ_ONLY seen as mended.
//
// `open_files_max`: files that may be open at one time, whose memory is taken now; 0 stands for 64. `flags`:
// KEELFLASH_READ_ONLY or 0.
int32_t keelflash_open(const char *path,
                       uint32_t open_files_max,
                       uint32_t flags,
                       keelflash_store **store);

// Closes a store and its files. The handle is gone whatever the answer; a failure means that the device failed, and
// nothing that was durable is lost by it.
int32_t keelflash_close(keelflash_store *store);

// Makes durable everything that was written before.
int32_t keelflash_sync(keelflash_store *store);

// Replaces the whole content of the file `name`, making it if absent. Durable and atomic: after a power cut it is the
// old content or the new one. Handles of the old file are gone.
int32_t keelflash_replace(keelflash_store *store,
                          const char *name,
                          const void *data,
                          size_t length);

// Deletes the file `name`. Durable and atomic; handles of it are gone.
int32_t keelflash_delete(keelflash_store *store, const char *name);

// Gives the file `from` the name `to`, in place of a file of that name if there is one. Durable and atomic. Handles of
// the renamed file stay; those of one that it replaces are gone.
int32_t keelflash_rename(keelflash_store *store,
                         const char *from,
                         const char *to);

// What is known of the file `name`.
int32_t keelflash_stat(keelflash_store *store, const char *name, keelflash_file_stat *stat);

// Shows every file to `visit`, in no particular order. When a part of the name table is damaged, what can be read is
// shown all the same, and the answer is KEELFLASH_CORRUPT.
int32_t keelflash_list(keelflash_store *store,
                       keelflash_visit_file visit,
                       void *context);

// Figures of the store. `statistics_bytes` is sizeof(keelflash_store_statistics) as the caller knows it.
int32_t keelflash_statistics(keelflash_store *store,
                             keelflash_store_statistics *statistics,
                             size_t statistics_bytes);

// Shows the most device operations that each call can need on this store to `visit`, the calls in words.
int32_t keelflash_bounds(keelflash_store *store,
                         keelflash_visit_bound visit,
                         void *context);

// Reads every block of the store and names all damage; changes nothing. Each problem is shown to `visit`, which
// may be NULL. `report` may be NULL too; else `report_bytes` is sizeof(keelflash_check_report) as the caller knows it.
//
// KEELFLASH_OK means that the store is whole. KEELFLASH_CORRUPT means that it is not: everything has been read, the
// problems have been shown, and the report is written. Takes as long as reading the store takes, and memory of two
// bytes for each block of it.
int32_t keelflash_check(keelflash_store *store,
                        keelflash_visit_problem visit,
                        void *context,
                        keelflash_check_report *report,
                        size_t report_bytes);

// Mends the store at `path`, which nobody may have open, as far as that is possible without inventing data: from
// second copies, and the table of names and the list of free blocks from the blocks of the files. A file whose name
// is lost comes back as lost-NUMBER-NAME. Damaged bytes of a file stay an error to read. Where nothing is wrong,
// nothing is written. Copy the image first if you can. `visit` and `report` are as for keelflash_check.
//
// KEELFLASH_OK means that the store is whole and that nothing is lost. KEELFLASH_CORRUPT means that something is lost
// or still wrong: what could be mended has been, the problems have been shown, and the report is written; or that
// there was no beginning, because all copies of the superblock are damaged: then the report stays as it was.
int32_t keelflash_repair(const char *path,
                         keelflash_visit_problem visit,
                         void *context,
                         keelflash_check_report *report,
                         size_t report_bytes);

// Makes the store at `path`, which nobody may have open, use all of an image file or device that has become larger.
//
// `size_bytes`: size that the image file is to have; 0 for the one that it has, and for a device. `flags`:
// KEELFLASH_SPARSE or 0. Takes no longer for a full store than for an empty one. An interruption leaves the old
// size or the new one. The table of names stays as it was made. No store shrinks.
int32_t keelflash_grow(const char *path,
                       uint64_t size_bytes,
                       uint32_t flags);

// Creates the empty file `name` and opens it. Durable and atomic.
int32_t keelflash_create_file(keelflash_store *store, const char *name, keelflash_file **file);

// Opens the file `name`, which must be there.
int32_t keelflash_open_file(keelflash_store *store, const char *name, keelflash_file **file);

// Closes a file. Nothing is written.
int32_t keelflash_close_file(keelflash_file *file);

// Appends `length` bytes; when it returns they are durable. Up to KEELFLASH_APPEND_ATOMIC_BYTES_MAX bytes are atomic;
// of more a power cut, or a full store, may leave a part at the front.
int32_t keelflash_append(keelflash_file *file,
                         const void *data,
                         size_t length);

// As keelflash_append, but durable only after keelflash_sync.
int32_t keelflash_append_nosync(keelflash_file *file, const void *data, size_t length);

// Writes `length` bytes at byte `offset`; when it returns they are durable. A gap between the end of the file and
// `offset` is filled with zeros. Up to KEELFLASH_OVERWRITE_ATOMIC_BYTES_MAX bytes within the file are atomic; of more
// a power cut may leave a part at the front.
int32_t keelflash_write_at(keelflash_file *file,
                           uint64_t offset,
                           const void *data,
                           size_t length);

// As keelflash_write_at, but durable only after keelflash_sync.
int32_t keelflash_write_at_nosync(keelflash_file *file,
                                  uint64_t offset,
                                  const void *data,
                                  size_t length);

// Makes the file `file_length` bytes long, cutting its end off or filling it up with zeros. Durable and, when the file
// gets shorter, atomic.
int32_t keelflash_truncate(keelflash_file *file,
                           uint64_t file_length);

// Reads up to `length` bytes from byte `offset` on into `buffer`. `bytes_read` is how many there were: fewer than
// `length` only at the end of the file, 0 behind it.
int32_t keelflash_read(keelflash_file *file,
                       uint64_t offset,
                       void *buffer,
                       size_t length,
                       size_t *bytes_read);

// The length of the file in bytes.
int32_t keelflash_length(keelflash_file *file, uint64_t *length_bytes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KEELFLASH_H */
