// A power cut under recovery=durable: whenever it comes, the job goes on from the last step that
// all ranks had ended, or from the one under way; and so where a checkpoint is loaded in between.
//
// What is done to the files of the state is recorded, with what was flushed: of what was not,
// anything may be there after the cut, of a write any of its sectors. Each cut is one of many, some
// of the states that it may leave are made, and a job comes back at each.
#include "base/fault.h"
#include "base/hash.h"
#include "tests/ranks/saved.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    RANKS = 2,
    MOST_DEEDS = 5,
    OPERATIONS = 4096,
    FLUSHES = 512,
    MARKS = 64,
    FILE_BYTES = 4 << 20,
    SECTOR = 512,
    DRAWS = 3, // random states of a cut, beside those with nothing and with all
    LATE_US =
        200 // a write takes up to so much longer: what does not wait for it comes before its end
};

/* ------------------------------------------------------------------ what is recorded */

enum kind { NAMES, RESIZES, WRITES };

static const uint64_t never = UINT64_MAX;

// Moments are counted. A flush covers what had ended when it began.
struct operation {
    enum kind kind;
    int file;
    uint64_t begin, end;
    uint64_t offset, bytes; // or its length then
    unsigned char *data;
};

struct covering {
    int file; // -1: the directory, and so the names
    uint64_t begin, end;
};

static struct {
    pthread_mutex_t mutex;
    bool on;
    uint64_t now;
    char files[RANKS][256];
    struct operation operations[OPERATIONS];
    struct covering flushes[FLUSHES];
    struct {
        int rank, deed;
        uint64_t moment;
    } marks[MARKS]; // what a rank had ended
    int file_count, operation_count, flush_count, mark_count;
} record = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static struct temporary directory; // of state

static void forget_record(void)
{
    for (int i = 0; i < record.operation_count; i++)
        free(record.operations[i].data);
    record.now = 0;
    record.file_count = record.operation_count = record.flush_count = record.mark_count = 0;
}

// Number of a file of state, new ones too; -1: it is none.
static int number_of(const char *path)
{
    const size_t length = strlen(path), end = strlen(".slots");
    int i = 0;
    if (length < end || strcmp(path + length - end, ".slots") != 0)
        return -1;
    while (i < record.file_count && strcmp(record.files[i], path) != 0)
        i++;
    if (i == record.file_count) {
        if (i == RANKS || length >= sizeof record.files[i])
            abort();
        memcpy(record.files[record.file_count++], path, length + 1);
    }
    return i;
}

static void path_of(int fd, char path[256])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, 255);
    path[length > 0 ? length : 0] = '\0';
}

// Begins an operation; -1: it is on no file of state, or nothing is recorded.
static int begin(enum kind kind, const char *path, uint64_t offset, uint64_t bytes,
                 const void *data)
{
    int number = -1;
    pthread_mutex_lock(&record.mutex);
    const int file = record.on ? number_of(path) : -1;
    if (file >= 0) {
        number = record.operation_count++;
        if (number == OPERATIONS)
            abort();
        record.operations[number] = (struct operation){.kind = kind,
                                                       .file = file,
                                                       .begin = ++record.now,
                                                       .end = never,
                                                       .offset = offset,
                                                       .bytes = bytes,
                                                       .data = data ? malloc(bytes) : NULL};
        if (data)
            memcpy(record.operations[number].data, data, bytes);
    }
    pthread_mutex_unlock(&record.mutex);
    return number;
}

static void end(int number)
{
    pthread_mutex_lock(&record.mutex);
    if (number >= 0)
        record.operations[number].end = ++record.now;
    pthread_mutex_unlock(&record.mutex);
}

static int begin_flush(int fd)
{
    char path[256];
    int number = -1;
    path_of(fd, path);
    pthread_mutex_lock(&record.mutex);
    const bool names = strcmp(path, directory.directory) == 0;
    const int file = !record.on || names ? -1 : number_of(path);
    if (record.on && (names || file >= 0)) {
        number = record.flush_count++;
        if (number == FLUSHES)
            abort();
        record.flushes[number] =
            (struct covering){.file = file, .begin = ++record.now, .end = never};
    }
    pthread_mutex_unlock(&record.mutex);
    return number;
}

static void end_flush(int number)
{
    pthread_mutex_lock(&record.mutex);
    if (number >= 0)
        record.flushes[number].end = ++record.now;
    pthread_mutex_unlock(&record.mutex);
}

static void mark(int rank, int deed)
{
    pthread_mutex_lock(&record.mutex);
    record.marks[record.mark_count].rank = rank;
    record.marks[record.mark_count].deed = deed;
    record.marks[record.mark_count++].moment = ++record.now;
    if (record.mark_count == MARKS)
        abort();
    pthread_mutex_unlock(&record.mutex);
}

/* ------------------------------------------------------------------ the system's calls */

int __real_open(const char *path, int flags, ...);
ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t offset);
int __real_ftruncate(int fd, off_t bytes);
int __real_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __wrap_open(const char *path, int flags, ...);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset);
int __wrap_ftruncate(int fd, off_t bytes);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __wrap_fdatasync(int fd);
int __wrap_fsync(int fd);

int __wrap_open(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0600;
    va_end(list);
    const int number = flags & O_CREAT ? begin(NAMES, path, 0, 0, NULL) : -1;
    const int fd = __real_open(path, flags, mode);
    end(number);
    return fd;
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    static _Atomic uint64_t draws;
    char path[256];
    path_of(fd, path);
    const int number = begin(WRITES, path, (uint64_t)offset, bytes, data);
    const ssize_t moved = __real_pwrite(fd, data, bytes, offset);
    if (number >= 0)
        usleep((unsigned)(base_hash64(NULL, 0, draws++) % LATE_US));
    end(number);
    return moved;
}

int __wrap_ftruncate(int fd, off_t bytes)
{
    char path[256];
    path_of(fd, path);
    const int number = begin(RESIZES, path, 0, (uint64_t)bytes, NULL);
    const int result = __real_ftruncate(fd, bytes);
    end(number);
    return result;
}

// Of an empty file, which it gives its length.
int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    char path[256];
    path_of(fd, path);
    const int number = begin(RESIZES, path, 0, (uint64_t)bytes, NULL);
    const int result = __real_fallocate(fd, mode, offset, bytes);
    end(number);
    return result;
}

// Nothing is flushed: there is no power cut, and a disk would take its time.
int __wrap_fdatasync(int fd)
{
    end_flush(begin_flush(fd));
    return 0;
}

int __wrap_fsync(int fd)
{
    end_flush(begin_flush(fd));
    return 0;
}

/* ------------------------------------------------------------------ states after a cut */

struct image {
    bool named;
    uint64_t bytes;
    unsigned char contents[FILE_BYTES];
};
static struct image images[RANKS];

static bool is_durable(const struct operation *operation, uint64_t cut)
{
    const int of = operation->kind == NAMES ? -1 : operation->file;
    for (int i = 0; i < record.flush_count; i++) {
        const struct covering *flush = &record.flushes[i];
        if (flush->file == of && flush->end <= cut && operation->end < flush->begin)
            return true;
    }
    return false;
}

static uint64_t draw(uint64_t *random)
{
    return *random = base_hash64(random, sizeof *random, 1);
}

static void apply(const struct operation *operation, bool torn, uint64_t *random)
{
    struct image *image = &images[operation->file];
    const uint64_t behind = operation->offset + operation->bytes;
    if (behind > FILE_BYTES)
        abort();
    if (operation->kind == NAMES)
        image->named = true;
    else if (operation->kind == RESIZES)
        image->bytes = operation->bytes;
    for (uint64_t at = 0; operation->kind == WRITES && at < operation->bytes; at += SECTOR)
        if (!torn || draw(random) % 2)
            memcpy(image->contents + operation->offset + at, operation->data + at, SECTOR);
    if (operation->kind == WRITES && behind > image->bytes)
        image->bytes = behind;
}

// Makes a state: 0: with nothing that was not durable, 1: with all of it, else with some. Returns
// how much was not.
static int make_images(uint64_t cut, int which)
{
    uint64_t random = cut * (DRAWS + 2) + (uint64_t)which;
    int loose = 0;
    memset(images, 0, sizeof images);
    for (int i = 0; i < record.operation_count; i++) {
        const struct operation *operation = &record.operations[i];
        if (operation->begin > cut)
            continue;
        const bool durable = is_durable(operation, cut);
        loose += !durable;
        if (durable || which == 1)
            apply(operation, false, NULL);
        else if (which > 1 && draw(&random) % 2)
            apply(operation, draw(&random) % 4 == 0, &random);
    }
    return loose;
}

static uint64_t hash_images(uint64_t hash)
{
    for (int i = 0; i < record.file_count; i++) {
        const struct image *image = &images[i];
        const uint64_t bytes = image->named ? image->bytes : never;
        hash = base_hash64(&bytes, sizeof bytes, hash);
        hash = image->named ? base_hash64(image->contents, image->bytes, hash) : hash;
    }
    return hash;
}

static void mount_images(void)
{
    for (int i = 0; i < record.file_count; i++) {
        const struct image *image = &images[i];
        unlink(record.files[i]);
        if (!image->named)
            continue;
        const int fd = open(record.files[i], O_CREAT | O_WRONLY, 0600);
        assert_true(fd >= 0);
        assert_int_equal(pwrite(fd, image->contents, image->bytes, 0), (ssize_t)image->bytes);
        close(fd);
    }
}

/* ------------------------------------------------------------------ jobs */

static void configure(zero_config *config, int stage)
{
    config->name = "power"; // another one would be another job
    config->stage = stage;
    config->micro_batches = toy_odd.micro_batches;
    config->log_level = ZERO_OFF;
    config->offload_optimizer = "nvme";
    config->nvme_dir = directory.directory;
    config->io = "threads";
    config->tile_bytes = 65536;
    config->compress = "off";
    config->recovery = "durable";
}

// What a job does is counted: its steps, and the checkpoint that it loads.
struct story {
    int world, stage;
    int deeds, loads; // so many, of which this one loads; 0: none
    const int *lives; // with which deed each ends, the last one with the last;
    bool fails;       // the first one dies in the record of the step behind that
    uint8_t digests[MOST_DEEDS + 1][16];
};

// One of them: dies when it has done what it does.
struct life {
    const struct story *story;
    int from, to; // comes back at, and ends with
    bool fails;
};

static bool do_deed(struct team_rank *rank, const struct story *story, int deed)
{
    char path[SAVED_PATH];
    if (deed != story->loads)
        return toy_train(rank, &toy_odd, 1);
    saved_path(path, temporary_path(&directory, "saved"), 1);
    TEAM_OK(rank, zero_load(rank->z, path, NULL, NULL));
    return true;
}

static bool come_back(struct team_rank *rank, const struct life *life)
{
    zero_load_result loaded = {.struct_size = sizeof loaded};
    TEAM_OK(rank, zero_resume(rank->z, NULL, NULL, &loaded));
    TEAM_CHECK(loaded.recovered);
    TEAM_STATE(rank, life->story->digests[life->from]);
    return true;
}

static bool live(struct team_rank *rank, void *user)
{
    const struct life *life = user;
    configure(&rank->config, life->story->stage);
    if (!toy_open(rank, &toy_odd) || (life->from > 0 && !come_back(rank, life)))
        return false;
    mark(rank->rank, life->from);
    for (int deed = life->from + 1; deed <= life->to; deed++) {
        if (!do_deed(rank, life->story, deed))
            return false;
        mark(rank->rank, deed);
    }
    if (life->fails) {
        for (int i = 0; i < zero_micro_count(rank->z); i++)
            if (!toy_micro(rank, &toy_odd, i, NULL, NULL))
                return false;
        if (!saved_fault(rank, "io.write@1"))
            return false;
        (void)toy_update(rank, &toy_odd);
    }
    (void)zero_barrier(rank->z); // no rank is in the last step any more
    zero_abort(rank->z, "for a test");
    while (zero_barrier(rank->z) == ZERO_OK)
        ;
    return true;
}

static void run_lives(const struct story *story)
{
    struct life life = {.story = story, .fails = story->fails};
    record.on = true;
    for (int i = 0; life.from < story->deeds; i++) {
        life.to = story->lives[i];
        assert_true(team_run(team_threads(story->world), story->world, live, &life));
        base_fault_set(NULL, NULL);
        life = (struct life){.story = story, .from = life.to};
    }
    record.on = false;
}

// The checkpoint has a step of the same number, and other bits.
static bool save_another(struct team_rank *rank, void *user)
{
    struct toy other = toy_odd;
    (void)user;
    other.salt = 1;
    rank->config.micro_batches = toy_odd.micro_batches;
    return toy_open(rank, &other) && toy_train(rank, &other, 1) &&
           saved_now(rank, temporary_path(&directory, "saved"), NULL);
}

// The same deeds, in memory.
static bool take_digests(struct team_rank *rank, void *user)
{
    struct story *story = user;
    rank->config.micro_batches = toy_odd.micro_batches;
    if (!toy_open(rank, &toy_odd))
        return false;
    for (int deed = 0; deed <= story->deeds; deed++) {
        if (deed > 0 && !do_deed(rank, story, deed))
            return false;
        TEAM_OK(rank, zero_fingerprint(rank->z, story->digests[deed]));
    }
    return true;
}

/* ------------------------------------------------------------------ what is promised */

/** What a job came back at. */
struct outcome {
    int stage;
    zero_result result;
    char message[512];
    uint64_t step;
    uint8_t digest[16];
};

static bool look(struct team_rank *rank, void *user)
{
    struct outcome *outcome = user;
    zero_load_result loaded = {.struct_size = sizeof loaded};
    uint8_t digest[16];
    configure(&rank->config, outcome->stage);
    rank->config.io = "sync";
    if (!team_open(rank) || !toy_register(rank, &toy_odd))
        return false;
    zero_result r = zero_commit(rank->z);
    if (!r)
        r = zero_resume(rank->z, NULL, NULL, &loaded);
    if (rank->rank == 0) {
        snprintf(outcome->message, sizeof outcome->message, "%s", zero_last_error(rank->z));
        outcome->result = r;
        outcome->step = loaded.step;
    }
    if (r && r != ZERO_NOT_FOUND)
        return true;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (rank->rank == 0)
        memcpy(outcome->digest, digest, sizeof digest);
    return true;
}

/** The last deed that all ranks had ended at the cut, and the last one that may have been begun. */
static void bounds_of(int world, uint64_t cut, int *least, int *most)
{
    int ended[RANKS] = {0};
    for (int i = 0; i < record.mark_count; i++)
        if (record.marks[i].moment <= cut)
            ended[record.marks[i].rank] = record.marks[i].deed;
    *least = *most = ended[0];
    for (int r = 1; r < world; r++) {
        *least = ended[r] < *least ? ended[r] : *least;
        *most = ended[r] > *most ? ended[r] : *most;
    }
    ++*most;
}

/** Whether a job came back at what one of these deeds had left. */
static bool is_one_of(const struct story *story, const struct outcome *outcome, int least, int most)
{
    if (outcome->result && (outcome->result != ZERO_NOT_FOUND || least > 0))
        return false;
    for (int deed = least; deed <= most && deed <= story->deeds; deed++)
        if (memcmp(outcome->digest, story->digests[deed], 16) == 0)
            return true;
    return false;
}

static void check_images(const struct story *story, uint64_t cut, int which)
{
    struct outcome outcome = {.stage = story->stage};
    int least, most;
    bounds_of(story->world, cut, &least, &most);
    mount_images();
    assert_true(team_run(team_threads(story->world), story->world, look, &outcome));
    if (!is_one_of(story, &outcome, least, most))
        fail_msg("stage %d, %d ranks, cut at %ju, state %d: step %ju is not what %d to %d left "
                 "(%s: %s)",
                 story->stage, story->world, (uintmax_t)cut, which, (uintmax_t)outcome.step, least,
                 most, zero_result_text(outcome.result), outcome.message);
}

static int compare_numbers(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/** Whether no state of this hash was looked at so far; the bounds are in the hash. */
static bool is_new(uint64_t hash)
{
    enum { MOST = 1 << 14 };
    static uint64_t seen[MOST];
    static size_t count;
    if (bsearch(&hash, seen, count, sizeof *seen, compare_numbers))
        return false;
    if (count == MOST)
        abort();
    seen[count++] = hash;
    qsort(seen, count, sizeof *seen, compare_numbers);
    return true;
}

static void cut_everywhere(struct story *story)
{
    int states = 0, taken = 0;
    assert_true(temporary_make(&directory) && temporary_folder(&directory, "saved"));
    assert_true(team_run("self", 1, save_another, NULL));
    assert_true(team_run("self", 1, take_digests, story));
    run_lives(story);
    for (uint64_t cut = 1; cut <= record.now; cut++) {
        int least, most;
        bounds_of(story->world, cut, &least, &most);
        for (int which = 0; which < 2 + DRAWS; which++) {
            const uint64_t bounds = (uint64_t)least << 32 ^ (uint64_t)most << 16 ^
                                    (uint64_t)(story->stage + 8 * story->world);
            const int loose = make_images(cut, which);
            if (which > 0 && loose == 0)
                break;
            if (!is_new(hash_images(bounds)))
                continue;
            if (!test_takes(states++))
                continue;
            taken++;
            check_images(story, cut, which);
        }
    }
    print_message("%d ranks: %ju moments, %d writes, %d flushes, %d of %d states\n", story->world,
                  (uintmax_t)record.now, record.operation_count, record.flush_count, taken, states);
    assert_true(states > 50);
    forget_record();
    temporary_remove(&directory);
}

static const int three_lives[] = {2, 4, 5}, one_life[] = {3};

static void one_rank_keeps_its_steps(void **state)
{
    (void)state;
    cut_everywhere(
        &(struct story){.world = 1, .stage = 1, .deeds = 5, .lives = three_lives, .fails = true});
}

static void all_ranks_keep_their_steps(void **state)
{
    (void)state;
    cut_everywhere(&(struct story){
        .world = RANKS, .stage = 2, .deeds = 5, .lives = three_lives, .fails = true});
}

// The step before stays until all that was loaded has taken its place.
static void a_load_takes_the_place_of_a_step(void **state)
{
    (void)state;
    for (int world = 1; world <= RANKS; world++)
        cut_everywhere(
            &(struct story){.world = world, .stage = 2, .deeds = 3, .loads = 2, .lives = one_life});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_keeps_its_steps),
        cmocka_unit_test(all_ranks_keep_their_steps),
        cmocka_unit_test(a_load_takes_the_place_of_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
