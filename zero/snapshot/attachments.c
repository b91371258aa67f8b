#include "zero/core/api_call.h"
#include "zero/core/progress.h"
#include "zero/snapshot/recovery_point.h"
#include "zero/snapshot/snapshot.h"

#include "base/arena.h"
#include "checkpoint/tensor_digest.h"

#include <assert.h>
#include <string.h>

const struct eng_blob *eng_blob_find(const zero_ctx *z, const char *name, bool of_rank)
{
    for (size_t i = 0; i < eng_blob_count(z); i++) {
        const struct eng_blob *blob = &z->saving.blobs->list[i];
        if (strcmp(blob->name, name) == 0 && (blob->scope == ZERO_OF_RANK) == of_rank)
            return blob;
    }
    return NULL;
}

bool eng_has_rank_blobs(const zero_ctx *z)
{
    for (size_t i = 0; i < eng_blob_count(z); i++)
        if (z->saving.blobs->list[i].scope == ZERO_OF_RANK)
            return true;
    return false;
}

size_t eng_blob_count(const zero_ctx *z)
{
    return z->saving.blobs ? z->saving.blobs->count : 0;
}

struct base_hash128 eng_blob_hash(const zero_ctx *z)
{
    struct base_hash128 sum = {0, 0};
    for (size_t i = 0; i < eng_blob_count(z); i++) {
        const struct eng_blob *blob = &z->saving.blobs->list[i];
        if (blob->scope == ZERO_GLOBAL)
            sum = base_hash128_add(sum,
                                   ckpt_digest_blob(blob->name, blob->memory, (size_t)blob->bytes));
    }
    return sum;
}

uint64_t eng_blob_agreement(const zero_ctx *z, struct base_hash128 global)
{
    uint64_t hash = base_hash64(&global, sizeof global, 0);
    for (size_t i = 0; i < eng_blob_count(z); i++) {
        const struct eng_blob *blob = &z->saving.blobs->list[i];
        hash = base_hash64(blob->name, strlen(blob->name), hash + (uint64_t)blob->scope);
    }
    return hash;
}

static zero_result check(zero_ctx *z, const char *name, const void *memory, uint64_t bytes,
                         zero_scope scope)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    const size_t length = name ? strnlen(name, ENG_BLOB_NAME) : 0;
    if (length == 0 || length == ENG_BLOB_NAME || strspn(name, letters) != length)
        return eng_fail(z, ZERO_E_INVALID,
                        "zero_attach: a name has 1 to %d characters of [A-Za-z0-9_.-]",
                        ENG_BLOB_NAME - 1);
    if (scope != ZERO_GLOBAL && scope != ZERO_OF_RANK)
        return eng_fail(z, ZERO_E_INVALID, "zero_attach: %s has scope %d", name, (int)scope);
    if ((bytes > 0 && !memory) || bytes > SIZE_MAX / 2)
        return eng_fail(z, ZERO_E_INVALID, "zero_attach: %s has %llu bytes at %p", name,
                        (unsigned long long)bytes, memory);
    return eng_not_inside(z, "zero_attach");
}

/** The place of the blob called `name`, or the one behind them all. */
static struct eng_blob *place(struct eng_blobs *blobs, const char *name)
{
    for (size_t i = 0; i < blobs->count; i++)
        if (strcmp(blobs->list[i].name, name) == 0)
            return &blobs->list[i];
    return &blobs->list[blobs->count];
}

static zero_result attach(zero_ctx *z, const char *name, void *memory, uint64_t bytes,
                          zero_scope scope)
{
    const zero_result r = check(z, name, memory, bytes, scope);
    if (r)
        return r;
    // Local, and not on the step path: what fails here is not fatal.
    if (!z->saving.blobs)
        z->saving.blobs = base_calloc(1, sizeof *z->saving.blobs);
    base_error_clear(&z->error);
    if (!z->saving.blobs)
        return zero_fail(&z->error, ZERO_E_NOMEM, "zero_attach: no memory for %s", name);
    if (memory && eng_point_attach(z, name, bytes))
        return z->error.result;
    struct eng_blob *blob = place(z->saving.blobs, name);
    const bool is_new = blob == &z->saving.blobs->list[z->saving.blobs->count];
    if (!memory) {
        if (!is_new)
            *blob = z->saving.blobs->list[--z->saving.blobs->count];
        return ZERO_OK;
    }
    if (is_new && z->saving.blobs->count == ENG_MAX_BLOBS)
        return zero_fail(&z->error, ZERO_E_LIMIT, "zero_attach: %s would be one more than %d", name,
                         ENG_MAX_BLOBS);
    *blob = (struct eng_blob){.memory = memory, .bytes = bytes, .scope = scope};
    memcpy(blob->name, name, strlen(name));
    z->saving.blobs->count += is_new;
    assert(z->saving.blobs->count <= ENG_MAX_BLOBS);
    return ZERO_OK;
}

zero_result zero_attach(zero_ctx *z, const char *name, void *memory, uint64_t bytes,
                        zero_scope scope)
{
    zero_result r = eng_enter(z, ENG_ANY_PHASE, "zero_attach");
    if (!r && (r = attach(z, name, memory, bytes, scope)) != ZERO_OK && !z->call.committed)
        eng_remember_refusal(z, &z->error);
    return eng_leave(z, r);
}
