/**
 * checkpoint/safetensors/safetensors.h: tensors by name in Hugging Face's safetensors format.
 *
 * A file is an 8-byte little-endian length, a JSON object of that length (name -> dtype, shape,
 * data_offsets), and the tensors' bytes, little-endian, row-major, without gap or overlap. A large
 * model is several files and an index beside them (model.safetensors.index.json), which are read as
 * one. All functions are *local*.
 */
#ifndef CHECKPOINT_SAFETENSORS_SAFETENSORS_H
#define CHECKPOINT_SAFETENSORS_SAFETENSORS_H

#include "base/error.h"

#include <stdbool.h>

enum { CKPT_MAX_DIMS = 8 };

/** Element types of the format. Values of the first three can be read and written as fp32. */
enum ckpt_dtype {
    CKPT_F32,
    CKPT_BF16,
    CKPT_F16,
    CKPT_OTHER, /**< known to the format only: its bytes are checked to be there */
};

/** One tensor of a file. */
struct ckpt_tensor {
    const char *name; /**< UTF-8, without NUL */
    enum ckpt_dtype dtype;
    int ndim; /**< 0 (a scalar) .. CKPT_MAX_DIMS */
    uint64_t shape[CKPT_MAX_DIMS];
    uint64_t count;  /**< elements; given by the reader, computed by the writer */
    uint64_t offset; /**< of its first byte in the file; the same */
    uint64_t bytes;  /**< the same */
    size_t number;   /**< the reader's: ckpt_safetensors_at() of it is the tensor */
    size_t file;     /**< the reader's: which file of an index it is in, by name, from 0 */
};

/* ------------------------------------------------------------------ reading */

/** An open file, or all files of an index. Constant after open: any thread may read. */
struct ckpt_safetensors;

/**
 * Opens a file and checks its whole header: every length, type, shape and offset, and that the
 * tensors cover the file exactly; nothing in the file can make a later call go out of bounds.
 * On success *file is to be closed; after an error it is NULL.
 *
 * A path that ends in ".json" is an index: an object whose "weight_map" has the file of each
 * tensor, by name. All of these are opened, in the index's folder, and have exactly its tensors.
 *
 * ZERO_NOT_FOUND no such file (error has the message); ZERO_E_CORRUPT damaged or hostile, or
 * another tensor than the index says, none, or a file elsewhere (the message names tensor or
 * offset); ZERO_E_UNSUPPORTED an unknown dtype or more than CKPT_MAX_DIMS dimensions;
 * ZERO_E_INVALID no regular file; ZERO_E_IO; ZERO_E_NOMEM.
 */
zero_result ckpt_safetensors_open(struct ckpt_safetensors **file, const char *path,
                                  struct base_error *error);

/** Number of tensors. */
size_t ckpt_safetensors_count(const struct ckpt_safetensors *file);

/** Tensor number `index`, in the order of their bytes in the file, those of an index file by file;
 * NULL beyond the last. Belongs to the file. */
const struct ckpt_tensor *ckpt_safetensors_at(const struct ckpt_safetensors *file, size_t index);

/** The tensor called `name`, NULL if there is none. Belongs to the file. */
const struct ckpt_tensor *ckpt_safetensors_find(const struct ckpt_safetensors *file,
                                                const char *name);

/**
 * Reads elements first .. first+count-1 of a tensor of this file, widened to fp32 (exactly; NaNs
 * keep their payload). Contents of out are undefined after an error. ZERO_E_INVALID the range
 * leaves the tensor, or its dtype is CKPT_OTHER; ZERO_E_CORRUPT the file was cut since it was
 * opened; ZERO_E_IO. Allocates nothing.
 */
zero_result ckpt_safetensors_read_f32(const struct ckpt_safetensors *file,
                                      const struct ckpt_tensor *tensor, uint64_t first,
                                      uint64_t count, float *out, struct base_error *error);

/** Reads elements as they are stored, of any dtype but CKPT_OTHER. */
zero_result ckpt_safetensors_read(const struct ckpt_safetensors *file,
                                  const struct ckpt_tensor *tensor, uint64_t first, uint64_t count,
                                  void *out, struct base_error *error);

/** The text that the file has under a name beside its tensors; NULL if there is none, or the path
 * was an index's. Belongs to the file. */
const char *ckpt_safetensors_metadata(const struct ckpt_safetensors *file, const char *key);

/** Closes the file and frees what belongs to it; accepts NULL. */
void ckpt_safetensors_close(struct ckpt_safetensors *file);

/* ------------------------------------------------------------------ writing */

/** About what a writer takes beside its table. */
#define CKPT_WRITER_BYTES ((size_t)64 << 10)

/** A text beside tensors, both UTF-8. */
struct ckpt_metadata {
    const char *key;
    const char *text;
};

/** What a writer may be told beside its table. All zero is the default. */
struct ckpt_safetensors_options {
    const struct ckpt_metadata *metadata; /**< copied; `format` is always there */
    size_t metadata_count;
    bool never_replace; /**< a file that has the name is an error, also when it appears later */
};

/** A file being written, under a name of its own until it is complete. One thread at a time. */
struct ckpt_safetensors_writer;

/**
 * Starts a file that will be called `path`, with the tensors of `table` (name, dtype, ndim and
 * shape are used and copied), and writes its header to a temporary file beside it. `options` may be
 * NULL. *writer is to be given to finish or abort; after an error it is NULL and the temporary file
 * is gone.
 *
 * ZERO_E_INVALID a name that is empty, taken twice, "__metadata__" or no UTF-8, metadata that are
 * no UTF-8, a dtype that cannot be written, ndim or a size out of range, something at `path` that
 * is no regular file (a device, a link, a folder) or, where it is never to be replaced, anything;
 * ZERO_E_IO, ZERO_NOT_FOUND (no such directory); ZERO_E_NOMEM.
 */
zero_result ckpt_safetensors_create(struct ckpt_safetensors_writer **writer, const char *path,
                                    const struct ckpt_tensor *table, size_t tensors,
                                    const struct ckpt_safetensors_options *options,
                                    struct base_error *error);

/**
 * Writes elements first .. first+count-1 of tensor number `tensor` of the table, narrowed to its
 * dtype (to nearest even). Any order; each element once. ZERO_E_INVALID the range leaves the
 * tensor, or a finite value would be an infinity in its dtype; ZERO_E_IO: only abort is left.
 * Allocates nothing.
 */
zero_result ckpt_safetensors_write(struct ckpt_safetensors_writer *writer, size_t tensor,
                                   uint64_t first, uint64_t count, const float *values,
                                   struct base_error *error);

/** Writes elements that have the tensor's dtype, as they are. */
zero_result ckpt_safetensors_write_stored(struct ckpt_safetensors_writer *writer, size_t tensor,
                                          uint64_t first, uint64_t count, const void *elements,
                                          struct base_error *error);

/**
 * Syncs the file and gives it its name, durably; frees the writer in every case. On error a file
 * that had the name before is untouched and the temporary file is gone, but for a failed sync of
 * the directory: then the new file is complete and in place, and may only be lost again in a power
 * cut. ZERO_E_STATE: not every element was written (counted, not tracked); ZERO_E_IO.
 */
zero_result ckpt_safetensors_finish(struct ckpt_safetensors_writer *writer,
                                    struct base_error *error);

/** Gives the file up: removes the temporary one and frees the writer; accepts NULL. */
void ckpt_safetensors_abort(struct ckpt_safetensors_writer *writer);

#endif
