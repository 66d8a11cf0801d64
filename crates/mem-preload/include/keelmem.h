/* Reading files of a region where they lie, without a copy.
 *
 * For programs that run under `keel mem run`, or that are started with KEEL_MEM_REGION set and linked with -lkeelmem.
 * Everything else about such files is done by the C library's own calls.
 */
#ifndef KEELMEM_H
#define KEELMEM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A range of a file that stays where it is until it is released, also when the file becomes shorter or is deleted. */
struct keel_mem_slice {
    /* The first byte; nothing may be written through it. Others may change the bytes at any time. NULL when length is 0. */
    const void *bytes;
    /* How many there are: fewer than wanted where the file ends. */
    size_t length;
    /* The library's. */
    void *lender;
};

/* Lends `length` bytes from byte `offset` of the file behind `descriptor`, which may be closed then. The file gets memory
 * of its own for it, in whole pages of 2 MiB.
 * 0; or -1 with errno: EBADF not a file of a region, or not open for reading; EINVAL a bad range or pointer; EISDIR;
 * ENOSPC; EROFS a region attached for reading, and a file that was neither lent nor mapped before. */
int keel_mem_lend(int descriptor, off_t offset, size_t length, struct keel_mem_slice *slice);

/* Waits until no program writes the file, and stores a number of that moment.
 * 0; or -1 with errno: EINVAL not a slice that is lent; EUCLEAN the region is damaged. */
int keel_mem_moment(const struct keel_mem_slice *slice, uint64_t *moment);

/* 1 when no program has written the file since that moment: bytes read in between are of one moment. 0 otherwise.
 * Writers that have mapped the file are not seen. */
int keel_mem_is_still(const struct keel_mem_slice *slice, uint64_t moment);

/* Gives it back; the slice is empty then. NULL and a slice that was released are no error. */
void keel_mem_release(struct keel_mem_slice *slice);

#ifdef __cplusplus
}
#endif

#endif
