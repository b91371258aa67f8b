#include "data.h"

#include <errno.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zero/random.h>

// llm.c's header: 256 32-bit integers, the first three of them magic, version and tokens.
#define HEADER_BYTES 1024

// Files of tokens, of at most 65,536 kinds here. All magic numbers of llm.c are dates of its year,
// with a small version behind them: files that begin so with another one are no tokens.
static const struct format {
    uint32_t magic, version;
    size_t token_bytes;
} formats[] = {
    {20240520, 1, 2}, // GPT-2's
    {20240801, 7, 4}, // Llama 3's
};

enum {
    FORMATS = sizeof formats / sizeof *formats,
    FIRST_MAGIC = 20240101,
    LAST_MAGIC = 20241231,
    VERSIONS = 256,
};

struct loader {
    struct data *data;
    uint64_t vocab;
    struct reason *reason;
};

// The bytes of one file.
struct content {
    unsigned char *bytes;
    size_t size;
};

static bool read_stream(const struct loader *loader, const char *path, FILE *stream,
                        struct content *content)
{
    size_t room = 0;
    for (;;) {
        if (content->size == room) {
            room = room ? 2 * room : 1 << 16;
            unsigned char *bytes = realloc(content->bytes, room);
            if (!bytes)
                return refuse(loader->reason, "%s: no memory for %zu bytes", path, room);
            content->bytes = bytes;
        }
        const size_t got = fread(content->bytes + content->size, 1, room - content->size, stream);
        content->size += got;
        if (ferror(stream))
            return refuse(loader->reason, "cannot read %s: %s", path, strerror(errno));
        if (got == 0)
            return true;
    }
}

// content->bytes is the caller's to free, after an error too.
static bool read_file(const struct loader *loader, const char *path, struct content *content)
{
    *content = (struct content){0};
    FILE *stream = fopen(path, "rb");
    if (!stream)
        return refuse(loader->reason, "cannot open %s: %s", path, strerror(errno));
    const bool read = read_stream(loader, path, stream, content);
    fclose(stream);
    return read;
}

static bool reserve(const struct loader *loader, size_t more)
{
    struct data *data = loader->data;
    if (data->room - data->count >= more)
        return true;
    size_t room = data->room ? data->room : 1 << 16;
    while (room - data->count < more)
        room *= 2;
    uint16_t *token = realloc(data->token, room * sizeof *token);
    if (!token)
        return refuse(loader->reason, "no memory for %zu tokens", room);
    data->token = token;
    data->room = room;
    return true;
}

static bool add_bytes(const struct loader *loader, const char *path, const struct content *content)
{
    if (!reserve(loader, content->size))
        return false;
    uint16_t *token = loader->data->token + loader->data->count;
    for (size_t i = 0; i < content->size; i++) {
        token[i] = content->bytes[i];
        if (token[i] >= loader->vocab)
            return refuse(loader->reason,
                          "%s: byte %u at position %zu is beyond the vocabulary of %llu", path,
                          token[i], i, (unsigned long long)loader->vocab);
    }
    loader->data->count += content->size;
    return true;
}

// Which format the file's first number says; NULL: it has no header.
static bool find_format(const struct loader *loader, const char *path, const uint32_t header[3],
                        const struct format **format)
{
    *format = NULL;
    for (int i = 0; i < FORMATS; i++)
        if (header[0] == formats[i].magic)
            *format = &formats[i];
    if (!*format && header[0] >= FIRST_MAGIC && header[0] <= LAST_MAGIC && header[1] < VERSIONS)
        return refuse(loader->reason,
                      "%s begins with %u, as llm.c's files of something else than tokens do; those "
                      "of tokens begin with %u (16 bits) or %u (32 bits)",
                      path, header[0], formats[0].magic, formats[1].magic);
    if (*format && header[1] != (*format)->version)
        return refuse(loader->reason,
                      "%s: version %u of llm.c's header %u is not understood, only %u", path,
                      header[1], header[0], (*format)->version);
    return true;
}

// Finds the bytes of a token, and leaves only the tokens.
static bool skip_header(const struct loader *loader, const char *path, struct content *tokens,
                        size_t *token_bytes)
{
    uint32_t header[3] = {0};
    const struct format *format;
    const size_t there = tokens->size < sizeof header ? tokens->size : sizeof header;
    memcpy(header, tokens->bytes, there);
    if (!find_format(loader, path, header, &format))
        return false;
    *token_bytes = format ? format->token_bytes : sizeof(uint16_t);
    if (format) {
        if (tokens->size < HEADER_BYTES)
            return refuse(loader->reason, "%s: llm.c's header has %d bytes, the file only %zu",
                          path, HEADER_BYTES, tokens->size);
        tokens->bytes += HEADER_BYTES;
        tokens->size -= HEADER_BYTES;
        if (tokens->size != (size_t)header[2] * *token_bytes)
            return refuse(loader->reason,
                          "%s: the header says %u tokens of %zu bytes, but %zu bytes follow", path,
                          header[2], *token_bytes, tokens->size);
    }
    if (tokens->size % *token_bytes != 0)
        return refuse(loader->reason, "%s: %zu bytes are no whole number of 16-bit tokens", path,
                      tokens->size);
    return true;
}

static uint32_t token_at(const struct content *tokens, size_t bytes, size_t i)
{
    uint32_t token = 0;
    for (size_t b = 0; b < bytes; b++)
        token |= (uint32_t)tokens->bytes[bytes * i + b] << 8 * b;
    return token;
}

static bool add_tokens(const struct loader *loader, const char *path, const struct content *content)
{
    struct content tokens = *content;
    size_t bytes;
    if (!skip_header(loader, path, &tokens, &bytes))
        return false;
    const size_t count = tokens.size / bytes;
    if (!reserve(loader, count))
        return false;
    uint16_t *to = loader->data->token + loader->data->count;
    for (size_t i = 0; i < count; i++) {
        const uint32_t token = token_at(&tokens, bytes, i);
        if (token >= loader->vocab)
            return refuse(loader->reason,
                          "%s: token %u at position %zu is beyond the vocabulary of %llu", path,
                          token, i, (unsigned long long)loader->vocab);
        to[i] = (uint16_t)token;
    }
    loader->data->count += count;
    return true;
}

static bool is_binary(const char *path)
{
    const size_t length = strlen(path);
    return length >= 4 && strcmp(path + length - 4, ".bin") == 0;
}

// A file that was named, or (`found`) met in a directory, where only text is wanted.
static bool add_file(const struct loader *loader, const char *path, bool found)
{
    if (found && is_binary(path)) {
        loader->data->binaries++;
        return true;
    }
    struct content content;
    bool added = read_file(loader, path, &content);
    if (added && content.size == 0 && !found)
        added = refuse(loader->reason, "%s is empty", path);
    const bool skipped = found && content.size > 0 && memchr(content.bytes, 0, content.size);
    loader->data->zeros += skipped;
    if (added && !skipped) {
        added = is_binary(path) ? add_tokens(loader, path, &content)
                                : add_bytes(loader, path, &content);
        loader->data->files++;
    }
    free(content.bytes);
    return added;
}

static bool add_entry(const struct loader *loader, FTS *walk, FTSENT *entry)
{
    const bool found = entry->fts_level > FTS_ROOTLEVEL;
    switch (entry->fts_info) {
    case FTS_F:
        if (found && entry->fts_name[0] == '.')
            return true;
        return add_file(loader, entry->fts_path, found);
    case FTS_D:
        if (found && entry->fts_name[0] == '.')
            fts_set(walk, entry, FTS_SKIP);
        return true;
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS:
        return refuse(loader->reason, "cannot read %s: %s", entry->fts_path,
                      strerror(entry->fts_errno));
    case FTS_DEFAULT:
    case FTS_SLNONE:
        if (!found)
            return refuse(loader->reason, "%s is neither a file nor a directory", entry->fts_path);
        return true;
    default:
        return true;
    }
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

static bool add_path(const struct loader *loader, const char *path)
{
    char *copy = strdup(path); // fts wants one it could write to
    if (!copy)
        return refuse(loader->reason, "out of memory");
    char *const roots[] = {copy, NULL};
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, by_name);
    bool added = walk != NULL;
    if (!walk)
        refuse(loader->reason, "cannot open %s: %s", path, strerror(errno));
    while (added) {
        errno = 0;
        FTSENT *entry = fts_read(walk);
        if (!entry) {
            if (errno)
                added = refuse(loader->reason, "cannot read %s: %s", path, strerror(errno));
            break;
        }
        added = add_entry(loader, walk, entry);
    }
    if (walk)
        fts_close(walk);
    free(copy);
    return added;
}

static bool too_few(const struct data *data, int context, struct reason *reason)
{
    char binaries[128] = "", zeros[96] = "";
    if (data->binaries > 0)
        snprintf(binaries, sizeof binaries,
                 "; .bin files of directories are left out, %zu here: name them (--data DIR/*.bin)",
                 data->binaries);
    if (data->zeros > 0)
        snprintf(zeros, sizeof zeros, "; files with a zero byte are left out, %zu here",
                 data->zeros);
    return refuse(reason, "the data has %zu tokens, but a context of %d needs %d at least%s%s",
                  data->count, context, context + 1, binaries, zeros);
}

bool data_load(struct data *data, const char *const *paths, int count, int vocab, int context,
               struct reason *reason)
{
    *data = (struct data){0};
    const struct loader loader = {data, (uint64_t)vocab, reason};
    for (int i = 0; i < count; i++)
        if (!add_path(&loader, paths[i]))
            return false;
    if (data->count <= (size_t)context)
        return too_few(data, context, reason);
    return true;
}

bool data_hold(struct data *data, int context, struct reason *reason)
{
    const size_t least = (size_t)context + 1, tenth = data->count / 10;
    const size_t held = tenth > least ? tenth : least;
    if (data->count < held + least)
        return refuse(
            reason,
            "--eval holds %zu of %zu tokens back, but a context of %d needs %zu to train on", held,
            data->count, context, least);
    data->held = held;
    data->count -= held;
    return true;
}

void data_free(struct data *data)
{
    free(data->token);
    *data = (struct data){0};
}

static void copy_window(const uint16_t *first, int context, uint16_t *token, uint16_t *target)
{
    memcpy(token, first, (size_t)context * sizeof *token);
    memcpy(target, first + 1, (size_t)context * sizeof *target);
}

void data_sample(const struct data *data, int context, bool shuffled, uint64_t seed, uint64_t k,
                 uint16_t *token, uint16_t *target)
{
    const uint64_t length = (uint64_t)context, windows = (data->count - 1) / length;
    uint64_t window = k % windows;
    if (shuffled)
        window = zero_random_permute(seed, zero_random_stream("gpt2.windows") + k / windows,
                                     windows, window);
    copy_window(data->token + window * length, context, token, target);
}

size_t data_held(const struct data *data, int context)
{
    return data->held ? (data->held - 1) / (size_t)context : 0;
}

void data_sample_held(const struct data *data, int context, uint64_t k, uint16_t *token,
                      uint16_t *target)
{
    const size_t windows = data_held(data, context);
    const uint64_t window = windows > 0 ? k % windows : 0;
    copy_window(data->token + data->count + window * (uint64_t)context, context, token, target);
}
