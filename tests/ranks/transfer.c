/* zero_export() and zero_import(): the same file from anywhere, the same weights everywhere, and
 * nothing changed by what fails. */
#include "tests/ranks/toy.h"
#include "tests/unit/temporary.h"

#include "base/bfloat16.h"
#include "base/fault.h"
#include "checkpoint/safetensors/safetensors.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmocka.h>

enum { MOST_RANKS = 5, MESSAGE = 512 };

struct place {
    int world, stage, prefetch;
};

/** What every rank does, in this order; what isn't wanted is NULL or 0. */
struct job {
    struct toy toy;
    struct place place;
    const char *import_first, *prefix;
    int steps;
    const char *export_to;
    const char *import_again;
    int more_steps;
    uint8_t digest[MOST_RANKS][16]; /**< at the end */
};

static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16};

static struct temporary directory;

/** directory/name, for as long as the program runs. */
static const char *path_of(const char *name)
{
    static char paths[32][256];
    for (int i = 0; i < 32; i++) {
        if (!*paths[i])
            snprintf(paths[i], sizeof paths[i], "%s", temporary_path(&directory, name));
        if (strcmp(paths[i] + strlen(directory.directory) + 1, name) == 0)
            return paths[i];
    }
    fail_msg("too many paths");
    return NULL;
}

static struct toy toy_of(zero_dtype dtype, uint64_t salt)
{
    struct toy toy = toy_odd;
    toy.dtype = dtype;
    toy.salt = salt;
    return toy;
}

static void set_place(struct team_rank *rank, const struct place *place)
{
    rank->config.stage = place->stage;
    rank->config.prefetch_units = place->prefetch;
    rank->config.live_bytes = place->prefetch == 1 ? 30000 : 0;
}

/** At one stage state is in files, and so are sums, which values are read into elsewhere. */
static void set_files(struct team_rank *rank)
{
    if (rank->config.stage != 2)
        return;
    rank->config.offload_optimizer = rank->config.offload_grads = "nvme";
    rank->config.nvme_dir = directory.directory;
    rank->config.tile_bytes = 65536;
}

/** Gathers every unit, so that copies are resident. */
static bool gather_all(struct team_rank *rank, const struct toy *toy)
{
    for (zero_unit u = 0; u < toy->unit_count; u++) {
        TEAM_OK(rank, zero_gather(rank->z, u, NULL));
        TEAM_OK(rank, zero_release(rank->z, u, NULL));
    }
    return true;
}

static bool do_job(struct team_rank *rank, void *user)
{
    struct job *job = user;
    set_place(rank, &job->place);
    set_files(rank);
    if (!toy_open(rank, &job->toy))
        return false;
    if (job->import_first)
        TEAM_OK(rank, zero_import(rank->z, job->import_first, job->prefix));
    if (!toy_train(rank, &job->toy, job->steps))
        return false;
    if (job->export_to)
        TEAM_OK(rank, zero_export(rank->z, job->export_to));
    if (job->import_again) {
        if (!gather_all(rank, &job->toy))
            return false;
        TEAM_OK(rank, zero_import(rank->z, job->import_again, NULL));
    }
    if (!toy_train(rank, &job->toy, job->more_steps))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, job->digest[rank->rank]));
    return true;
}

/** Runs a job; the ranks must agree on the fingerprint, and on `expected` if not NULL. */
static void run_job(struct job *job, const uint8_t *expected)
{
    const struct place *place = &job->place;
    if (!team_run(team_threads(place->world), place->world, do_job, job))
        fail_msg("world %d, stage %d, prefetch %d", place->world, place->stage, place->prefetch);
    for (int r = 0; r < place->world; r++)
        if (memcmp(job->digest[r], expected ? expected : job->digest[0], 16) != 0)
            fail_msg("world %d, stage %d, prefetch %d: another fingerprint on rank %d",
                     place->world, place->stage, place->prefetch, r);
}

/** Every world, stage and depth of prefetch that is tried. */
static bool next_place(struct place *place)
{
    static const int depths[] = {2, ZERO_OFF, 1};
    if (++place->stage == 4) {
        place->stage = 0;
        place->world++;
    }
    place->prefetch = depths[(place->stage + place->world) % 3];
    return place->world <= MOST_RANKS;
}

static const struct place before_first = {.world = 1, .stage = -1};

/* ------------------------------------------------------------------ files */

struct content {
    unsigned char *bytes;
    size_t size;
};

static struct content read_file(const char *path)
{
    struct content content = {0};
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    content.size = (size_t)ftell(file);
    rewind(file);
    content.bytes = malloc(content.size + 1);
    assert_non_null(content.bytes);
    assert_int_equal(fread(content.bytes, 1, content.size, file), content.size);
    fclose(file);
    return content;
}

static void write_file(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void same_content(const char *path, const struct content *expected)
{
    struct content content = read_file(path);
    assert_int_equal(content.size, expected->size);
    assert_memory_equal(content.bytes, expected->bytes, content.size);
    free(content.bytes);
}

/** A value that f32, bf16 and f16 all have. */
static float coarse(uint64_t element)
{
    return (float)((int)(element % 255) - 127) / 64;
}

/** How a file differs from what toy_odd exports. */
struct variation {
    enum ckpt_dtype dtype;
    const char *prefix;
    const char *without; /**< this tensor is missing, */
    const char *longer;  /**< this one has an element more, */
    const char *flat;    /**< and this one another number of dimensions */
    bool extra;          /**< two tensors more */
};

static void describe_tensor(struct ckpt_tensor *entry, const struct toy_tensor *tensor,
                            const struct variation *vary)
{
    const bool flat = vary->flat && strcmp(vary->flat, tensor->name) == 0;
    *entry = (struct ckpt_tensor){.dtype = vary->dtype};
    entry->ndim = tensor->slices > 1 && !flat ? 2 : 1;
    entry->shape[0] = (uint64_t)tensor->slices * (flat ? tensor->numel : 1);
    if (!flat)
        entry->shape[entry->ndim - 1] = tensor->numel;
    if (vary->longer && strcmp(vary->longer, tensor->name) == 0)
        entry->shape[entry->ndim - 1]++;
}

/** Writes a file of coarse() values by the writer's own means. */
static void write_variation(const char *path, const struct variation *vary)
{
    struct ckpt_tensor table[16] = {0};
    char names[16][64];
    float values[8192];
    size_t count = 0;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        values[i] = coarse(i);
    for (int p = 0; p < toy_odd.tensor_count; p++) {
        const struct toy_tensor *tensor = &toy_odd.tensors[p];
        if (vary->without && strcmp(vary->without, tensor->name) == 0)
            continue;
        describe_tensor(&table[count], tensor, vary);
        snprintf(names[count], sizeof names[0], "%s%s", vary->prefix ? vary->prefix : "",
                 tensor->name);
        table[count].name = names[count];
        count++;
    }
    for (int i = 0; vary->extra && i < 2; i++)
        table[count++] = (struct ckpt_tensor){
            .name = i ? "zz.extra" : "a.extra", .dtype = CKPT_F32, .ndim = 1, .shape = {3}};
    struct ckpt_safetensors_writer *writer;
    struct base_error error = {0};
    assert_int_equal(ckpt_safetensors_create(&writer, path, table, count, NULL, &error), ZERO_OK);
    for (size_t i = 0; i < count; i++) {
        const uint64_t numel = table[i].shape[0] * (table[i].ndim > 1 ? table[i].shape[1] : 1);
        assert_int_equal(ckpt_safetensors_write(writer, i, 0, numel, values, &error), ZERO_OK);
    }
    assert_int_equal(ckpt_safetensors_finish(writer, &error), ZERO_OK);
}

/* ------------------------------------------------------------------ what works */

static void the_file_is_the_same_from_everywhere(void **state)
{
    (void)state;
    const char *first = path_of("first");
    const char *other = path_of("other");
    for (size_t d = 0; d < 2; d++) {
        struct job job = {.toy = toy_of(dtypes[d], 0), .steps = 3, .more_steps = 2};
        struct place place = before_first;
        struct content expected = {0};
        uint8_t digest[16];
        while (next_place(&place)) {
            job.place = place;
            job.export_to = expected.bytes ? other : first;
            run_job(&job, expected.bytes ? digest : NULL);
            if (expected.bytes) {
                same_content(other, &expected);
                continue;
            }
            expected = read_file(first);
            memcpy(digest, job.digest[0], sizeof digest);
        }
        // Exporting changes nothing: the same job without it.
        job.place = (struct place){.world = 2, .stage = 3};
        job.export_to = NULL;
        run_job(&job, digest);
        free(expected.bytes);
        assert_int_equal(remove(first), 0);
        assert_int_equal(remove(other), 0);
        assert_int_equal(temporary_entries(&directory), 0);
    }
}

/** One tensor of a file against what a function says it holds, and its description. */
static void compare_tensor(const struct ckpt_safetensors *file, const struct toy *toy, int p)
{
    const struct toy_tensor *tensor = &toy->tensors[p];
    const struct ckpt_tensor *found = ckpt_safetensors_find(file, tensor->name);
    assert_non_null(found);
    assert_ptr_equal(found, ckpt_safetensors_at(file, (size_t)p));
    assert_int_equal(found->dtype, CKPT_F32);
    assert_int_equal(found->ndim, tensor->slices > 1 ? 2 : 1);
    assert_int_equal(found->shape[found->ndim - 1], tensor->numel);
    assert_int_equal(found->count, tensor->numel * (uint64_t)tensor->slices);
    float values[8192];
    struct base_error error = {0};
    assert_int_equal(ckpt_safetensors_read_f32(file, found, 0, found->count, values, &error),
                     ZERO_OK);
    for (uint64_t i = 0; i < found->count; i++) {
        const int slice = (int)(i / tensor->numel);
        const float value = toy_value(toy, tensor->name, slice, i % tensor->numel);
        if (base_f32_bits(values[i]) != base_f32_bits(value))
            fail_msg("%s, element %u: %.9g, not %.9g", tensor->name, (unsigned)i, (double)values[i],
                     (double)value);
    }
}

static void the_file_has_the_masters(void **state)
{
    (void)state;
    const char *path = path_of("masters");
    for (size_t d = 0; d < 2; d++)
        for (int world = 1; world <= 3; world += 2)
            for (int stage = 0; stage <= 3; stage++) {
                struct job job = {.toy = toy_of(dtypes[d], 7),
                                  .place = {.world = world, .stage = stage},
                                  .export_to = path};
                run_job(&job, NULL);
                struct ckpt_safetensors *file;
                struct base_error error = {0};
                assert_int_equal(ckpt_safetensors_open(&file, path, &error), ZERO_OK);
                assert_int_equal(ckpt_safetensors_count(file), job.toy.tensor_count);
                for (int p = 0; p < job.toy.tensor_count; p++)
                    compare_tensor(file, &job.toy, p);
                ckpt_safetensors_close(file);
            }
    assert_int_equal(remove(path), 0);
}

static void import_gives_every_world_the_same_weights(void **state)
{
    (void)state;
    const char *source = path_of("source");
    const char *copy = path_of("copy");
    for (size_t d = 0; d < 2; d++) {
        struct job maker = {.toy = toy_of(dtypes[d], 0),
                            .place = {.world = 3, .stage = 2},
                            .steps = 3,
                            .export_to = source};
        run_job(&maker, NULL);
        struct content expected = read_file(source);
        struct place place = before_first;
        uint8_t digest[16];
        bool have = false;
        while (next_place(&place)) {
            // Other first values everywhere: what isn't overwritten shows.
            const uint64_t salt = (uint64_t)(place.world * 4 + place.stage + 1);
            struct job job = {.toy = toy_of(dtypes[d], salt),
                              .place = place,
                              .import_first = source,
                              .export_to = copy,
                              .more_steps = 3};
            run_job(&job, have ? digest : NULL);
            same_content(copy, &expected);
            memcpy(digest, job.digest[0], sizeof digest);
            have = true;
        }
        free(expected.bytes);
    }
    assert_int_equal(remove(source), 0);
    assert_int_equal(remove(copy), 0);
}

/** Into a model that has trained: copies that are resident, on their way or ahead are replaced,
 * moments are not. */
static void import_between_steps_keeps_the_moments(void **state)
{
    (void)state;
    const char *source = path_of("source");
    const char *own = path_of("own");
    for (size_t d = 0; d < 2; d++) {
        struct job maker = {.toy = toy_of(dtypes[d], 99), .place = {.world = 2, .stage = 1}};
        maker.export_to = source;
        run_job(&maker, NULL);
        struct job undisturbed = {.toy = toy_of(dtypes[d], 0), .place = {.world = 1}, .steps = 4};
        run_job(&undisturbed, NULL);
        struct place place = before_first;
        uint8_t digest[16];
        bool have = false;
        while (next_place(&place)) {
            struct job job = {.toy = toy_of(dtypes[d], 0),
                              .place = place,
                              .steps = 2,
                              .import_again = source,
                              .more_steps = 2};
            run_job(&job, have ? digest : NULL);
            memcpy(digest, job.digest[0], sizeof digest);
            have = true;
            // One's own weights change nothing.
            job.export_to = job.import_again = own;
            run_job(&job, undisturbed.digest[0]);
        }
        assert_memory_not_equal(digest, undisturbed.digest[0], sizeof digest);
    }
    assert_int_equal(remove(source), 0);
    assert_int_equal(remove(own), 0);
}

static void other_dtypes_prefixes_and_tensors_are_read(void **state)
{
    (void)state;
    const char *source = path_of("source");
    const char *copy = path_of("copy");
    const struct variation plain = {.dtype = CKPT_F32};
    write_variation(source, &plain);
    struct content expected = read_file(source);
    const struct variation variations[] = {
        {.dtype = CKPT_BF16},
        {.dtype = CKPT_F16, .extra = true},
        {.dtype = CKPT_F32, .prefix = "transformer."},
        {.dtype = CKPT_BF16, .prefix = "transformer.", .extra = true},
    };
    for (size_t i = 0; i < sizeof variations / sizeof *variations; i++) {
        write_variation(source, &variations[i]);
        struct job job = {.toy = toy_of(dtypes[i % 2], 3),
                          .place = {.world = 1 + (int)i, .stage = 3 - (int)i},
                          .import_first = source,
                          .prefix = i == 0 ? NULL : "transformer.", // it may stand before a name
                          .export_to = copy};
        run_job(&job, NULL);
        same_content(copy, &expected);
    }
    free(expected.bytes);
    assert_int_equal(remove(source), 0);
    assert_int_equal(remove(copy), 0);
}

/* ------------------------------------------------------------------ what fails */

/** One call that must fail on every rank and change nothing. */
struct refusal {
    struct toy toy;
    struct place place;
    bool export;
    const char *paths[MOST_RANKS]; /**< of each rank */
    const char *fault;             /**< set for the time of the call */
    rlim_t file_limit;             /**< bytes a file may have meanwhile, 0 any number */
    zero_result result[MOST_RANKS];
    char message[MOST_RANKS][MESSAGE];
    uint64_t fired; /**< how often the fault has struck */
    uint8_t digest[MOST_RANKS][16];
};

static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes ? bytes : limit.rlim_max;
    setrlimit(RLIMIT_FSIZE, &limit);
}

static bool do_refusal(struct team_rank *rank, void *user)
{
    struct refusal *job = user;
    const int r = rank->rank;
    set_place(rank, &job->place);
    if (!toy_open(rank, &job->toy) || !toy_train(rank, &job->toy, 2))
        return false;
    TEAM_OK(rank, zero_barrier(rank->z));
    if (r == 0) {
        TEAM_CHECK(base_fault_set(job->fault, NULL) == ZERO_OK);
        limit_files(job->file_limit);
    }
    TEAM_OK(rank, zero_barrier(rank->z));
    job->result[r] = job->export ? zero_export(rank->z, job->paths[r])
                                 : zero_import(rank->z, job->paths[r], NULL);
    snprintf(job->message[r], MESSAGE, "%s", zero_last_error(rank->z));
    TEAM_OK(rank, zero_barrier(rank->z));
    if (r == 0) {
        job->fired = base_fault_fired();
        base_fault_set(NULL, NULL);
        limit_files(0);
    }
    TEAM_OK(rank, zero_barrier(rank->z));
    if (!toy_train(rank, &job->toy, 2))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, job->digest[r]));
    return true;
}

/** The message without who says it. */
static const char *essence(const char *message)
{
    const char *rank = strstr(message, ": rank ");
    const char *colon = rank ? strchr(rank + 2, ':') : strchr(message, ':');
    return colon ? colon : message;
}

/** Runs it; every rank must have the same result and say the same, and go on undisturbed. */
static void run_refusal(struct refusal *job)
{
    struct job undisturbed = {.toy = job->toy, .place = {.world = 1}, .steps = 4};
    run_job(&undisturbed, NULL);
    const struct place *place = &job->place;
    if (!team_run(team_threads(place->world), place->world, do_refusal, job))
        fail_msg("%s: not usable afterwards", job->message[0]);
    for (int r = 0; r < place->world; r++) {
        assert_int_equal(job->result[r], job->result[0]);
        assert_string_equal(essence(job->message[r]), essence(job->message[0]));
        if (memcmp(job->digest[r], undisturbed.digest[0], 16) != 0)
            fail_msg("stage %d, rank %d: \"%s\" has changed something", place->stage, r,
                     job->message[r]);
    }
}

static void says(const struct refusal *job, const char *text)
{
    for (int r = 0; r < job->place.world; r++)
        if (!strstr(job->message[r], text))
            fail_msg("rank %d: \"%s\" does not say \"%s\"", r, job->message[r], text);
}

struct bad_import {
    const char *path;
    const char *fault;
    int only; /**< the only rank that has this path, -1 all */
    zero_result result;
    const char *text;
};

/** Files that are wrong in one way each, beside one that is right. */
static void write_bad_files(void)
{
    const struct variation variations[] = {
        {.dtype = CKPT_F32},
        {.dtype = CKPT_F32, .without = "small"},
        {.dtype = CKPT_BF16, .longer = "stacked"},
        {.dtype = CKPT_F32, .flat = "stacked"},
        {.dtype = CKPT_F32, .prefix = "transformer."},
    };
    static const char *const names[] = {"good", "missing", "shape", "flat", "prefixed"};
    for (size_t i = 0; i < sizeof variations / sizeof *variations; i++)
        write_variation(path_of(names[i]), &variations[i]);
    struct content good = read_file(path_of("good"));
    write_file(path_of("cut"), good.bytes, good.size - 1);
    write_file(path_of("empty"), "", 0);
    char *dtype = strstr((char *)good.bytes + 8, "\"F32\"");
    assert_non_null(dtype);
    memcpy(dtype, "\"I32\"", 5);
    write_file(path_of("integers"), good.bytes, good.size);
    good.bytes[9] = 0xff;
    write_file(path_of("damaged"), good.bytes, good.size);
    free(good.bytes);
}

static void a_refused_import_changes_nothing(void **state)
{
    (void)state;
    write_bad_files();
    const struct bad_import cases[] = {
        {"missing", NULL, -1, ZERO_E_INVALID, "has no tensor small"},
        {"prefixed", NULL, -1, ZERO_E_INVALID, "has no tensor"},
        {"shape", NULL, -1, ZERO_E_INVALID, "stacked has another shape"},
        {"flat", NULL, -1, ZERO_E_INVALID, "stacked has another shape"},
        {"integers", NULL, -1, ZERO_E_INVALID, "neither F32"},
        {"cut", NULL, -1, ZERO_E_CORRUPT, "cut"},
        {"empty", NULL, -1, ZERO_E_CORRUPT, "empty"},
        {"damaged", NULL, -1, ZERO_E_CORRUPT, "damaged"},
        {"absent", NULL, -1, ZERO_E_IO, "absent"},
        {"", NULL, -1, ZERO_E_INVALID, "no regular file"},
        {"absent", NULL, 1, ZERO_E_IO, "absent"},
        {"damaged", NULL, 2, ZERO_E_CORRUPT, "damaged"},
        {"shape", NULL, 0, ZERO_E_INVALID, "stacked has another shape"},
        {"good", "io.open@2", -1, ZERO_E_IO, "good"},
        {"good", "io.read@1", -1, ZERO_E_IO, "good"},
        {"good", "io.read@9+", -1, ZERO_E_IO, "good"},
        {"good", "alloc@2", -1, ZERO_E_NOMEM, "no memory"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int stage = (int)i % 2; stage <= 3; stage += 2) {
            struct refusal job = {.toy = toy_of(dtypes[stage % 2], 0),
                                  .place = {.world = 3, .stage = stage},
                                  .fault = cases[i].fault};
            for (int r = 0; r < job.place.world; r++)
                job.paths[r] = temporary_path(
                    &directory, cases[i].only < 0 || cases[i].only == r ? cases[i].path : "good");
            run_refusal(&job);
            if (job.result[0] != cases[i].result)
                fail_msg("%s: result %d: %s", cases[i].path, job.result[0], job.message[0]);
            says(&job, cases[i].text);
        }
}

/** Every read of an import fails once, and every allocation. */
static void each_failure_of_an_import_is_told(void **state)
{
    (void)state;
    static const char *const points[] = {"io.open", "io.read", "alloc"};
    for (size_t p = 0; p < 3; p++) {
        struct refusal job = {.toy = toy_of(ZERO_BF16, 0), .place = {.world = 2, .stage = 3}};
        char fault[32];
        int failures = 0;
        for (int r = 0; r < 2; r++)
            job.paths[r] = path_of("absent");
        for (int n = 1;; n++) {
            snprintf(fault, sizeof fault, "%s@%d", points[p], n);
            job.fault = fault;
            // The values it would have had: an import that isn't hit changes nothing either.
            struct job maker = {.toy = job.toy, .place = {.world = 1}, .steps = 2};
            maker.export_to = path_of("same");
            if (n == 1)
                run_job(&maker, NULL);
            job.paths[0] = job.paths[1] = maker.export_to;
            run_refusal(&job);
            if (job.fired == 0)
                break;
            assert_int_equal(job.result[0], p < 2 ? ZERO_E_IO : ZERO_E_NOMEM);
            failures++;
        }
        assert_int_equal(job.result[0], ZERO_OK);
        assert_true(failures >= 2);
    }
}

struct bad_export {
    const char *path;
    const char *fault;
    rlim_t file_limit;
    zero_result result;
    const char *text;
};

static void a_refused_export_leaves_what_was_there(void **state)
{
    (void)state;
    const char *there = path_of("there");
    const struct bad_export cases[] = {
        {"nowhere/file", NULL, 0, ZERO_E_IO, "nowhere"},
        {"there/file", NULL, 0, ZERO_E_IO, "ENOTDIR"},
        {"folder", NULL, 0, ZERO_E_INVALID, "no regular file"},
        {"there", NULL, 20000, ZERO_E_IO, "EFBIG"},
        {"there", "io.write:enospc@1", 0, ZERO_E_IO, "ENOSPC"},
        {"there", "io.write:enospc@7+", 0, ZERO_E_IO, "ENOSPC"},
        {"there", "io.short@3+,io.write:edquot@9", 0, ZERO_E_IO, "EDQUOT"},
        {"there", "io.fsync@1", 0, ZERO_E_IO, "EIO"},
        {"there", "io.rename@1", 0, ZERO_E_IO, "EIO"},
        {"there", "io.close@1", 0, ZERO_E_IO, "EIO"},
        {"there", "io.open:emfile@1", 0, ZERO_E_IO, "EMFILE"},
    };
    assert_int_equal(mkdir(path_of("folder"), 0777), 0);
    write_file(there, "what was there before", 21);
    struct content before = read_file(there);
    const int entries = temporary_entries(&directory);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int stage = (int)i % 4;
        struct refusal job = {.toy = toy_of(dtypes[i % 2], 0),
                              .place = {.world = 1 + (int)i % 3, .stage = stage},
                              .export = true,
                              .fault = cases[i].fault,
                              .file_limit = cases[i].file_limit};
        for (int r = 0; r < job.place.world; r++)
            job.paths[r] = path_of(cases[i].path);
        run_refusal(&job);
        if (job.result[0] != cases[i].result)
            fail_msg("%s, %s: result %d: %s", cases[i].path, cases[i].fault, job.result[0],
                     job.message[0]);
        says(&job, cases[i].text);
        same_content(there, &before);
        assert_int_equal(temporary_entries(&directory), entries);
    }
    free(before.bytes);
}

/** Every write, sync and allocation of an export fails once; short writes are no failure. */
static void each_failure_of_an_export_is_told(void **state)
{
    (void)state;
    static const char *const points[] = {"io.write", "alloc", "io.short"};
    const char *there = path_of("there");
    struct content before = read_file(there);
    const int entries = temporary_entries(&directory);
    for (size_t p = 0; p < 3; p++) {
        struct refusal job = {.toy = toy_of(ZERO_F32, 0), .place = {.world = 2, .stage = 2}};
        char fault[32];
        int failures = 0;
        job.export = true;
        job.paths[0] = job.paths[1] = there;
        for (int n = 1;; n++) {
            snprintf(fault, sizeof fault, p < 2 ? "%s@%d" : "%s@%d+", points[p], n);
            job.fault = fault;
            run_refusal(&job);
            assert_int_equal(temporary_entries(&directory), entries);
            if (job.fired == 0 || p == 2)
                break;
            assert_int_equal(job.result[0], p == 0 ? ZERO_E_IO : ZERO_E_NOMEM);
            same_content(there, &before);
            failures++;
        }
        assert_int_equal(job.result[0], ZERO_OK);
        assert_true(p == 2 ? job.fired > 0 : failures >= 2);
        struct content now = read_file(there);
        assert_true(now.size > before.size);
        free(now.bytes);
        write_file(there, before.bytes, before.size);
    }
    free(before.bytes);
}

static void a_directory_that_cannot_be_synced_has_the_new_file(void **state)
{
    (void)state;
    const char *there = path_of("there");
    struct refusal job = {.toy = toy_of(ZERO_F32, 0),
                          .place = {.world = 2, .stage = 1},
                          .export = true,
                          .paths = {there, there},
                          .fault = "io.fsync@2"};
    run_refusal(&job);
    assert_int_equal(job.result[0], ZERO_E_IO);
    struct ckpt_safetensors *file;
    struct base_error error = {0};
    assert_int_equal(ckpt_safetensors_open(&file, there, &error), ZERO_OK);
    ckpt_safetensors_close(file);
}

static void a_path_is_needed_and_a_step_must_be_over(void **state)
{
    (void)state;
    struct team_rank rank = {.config = zero_config_default(), .world = 1};
    rank.config.world = 1;
    rank.config.log_level = ZERO_OFF;
    assert_true(toy_open(&rank, &toy_odd));
    assert_int_equal(zero_export(rank.z, NULL), ZERO_E_INVALID);
    assert_int_equal(zero_export(rank.z, ""), ZERO_E_INVALID);
    assert_int_equal(zero_import(rank.z, NULL, NULL), ZERO_E_INVALID);
    assert_int_equal(zero_gather(rank.z, 0, NULL), ZERO_OK);
    assert_int_equal(zero_import(rank.z, path_of("good"), NULL), ZERO_E_STATE);
    assert_int_equal(zero_release(rank.z, 0, NULL), ZERO_OK);
    assert_true(toy_micro(&rank, &toy_odd, 0, NULL, NULL));
    assert_int_equal(zero_import(rank.z, path_of("good"), NULL), ZERO_E_STATE);
    assert_int_equal(zero_export(rank.z, path_of("no")), ZERO_E_STATE);
    team_close(&rank);
    assert_int_equal(zero_export(NULL, "x"), ZERO_E_INVALID);
    assert_int_equal(zero_import(NULL, "x", NULL), ZERO_E_INVALID);
}

static int make_directory(void **state)
{
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    return temporary_make(&directory) ? 0 : -1;
}

static int remove_directory(void **state)
{
    (void)state;
    temporary_remove(&directory);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_file_is_the_same_from_everywhere),
        cmocka_unit_test(the_file_has_the_masters),
        cmocka_unit_test(import_gives_every_world_the_same_weights),
        cmocka_unit_test(import_between_steps_keeps_the_moments),
        cmocka_unit_test(other_dtypes_prefixes_and_tensors_are_read),
        cmocka_unit_test(a_refused_import_changes_nothing),
        cmocka_unit_test(each_failure_of_an_import_is_told),
        cmocka_unit_test(a_refused_export_leaves_what_was_there),
        cmocka_unit_test(each_failure_of_an_export_is_told),
        cmocka_unit_test(a_directory_that_cannot_be_synced_has_the_new_file),
        cmocka_unit_test(a_path_is_needed_and_a_step_must_be_over),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
