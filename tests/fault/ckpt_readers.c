// Readers beside an owner who saves, prunes and recycles files, each in its own
// process: a reader finds whole checkpoints, which stay as long as it reads, and never another
// save's bytes under a checkpoint's name.
//
// With "many" as its argument more of everything.
#include "base/arena.h"
#include "base/clock.h"
#include "tests/fault/toy_checkpoint.h"
#include "tests/unit/temporary.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

// They read the oldest, which go first, and come again at once.
enum {
    READERS = 3,
    WORLD = 2,
    KEEP = 2,
    MOST_READ = 3,
    LEAST_SAVED = 20,
    PAUSE_US = 1000,
    THE_ONE = 10
};

static const struct ckpt_store *const store = &ckpt_store_posix;
static size_t rounds = 100; // files recycled
static const double longest_s = 500;

/** What all processes see. */
struct board {
    atomic_bool over;
    _Atomic uint64_t acknowledged; /**< newest step, or version */
    _Atomic uint64_t begun;        /**< newest version that may be there */
    _Atomic uint64_t visits, read; /**< of readers, and checkpoints they have read */
    _Atomic uint64_t lost;         /**< and could not read, as they were replaced meanwhile */
};

static struct board *board;
static char path[96];

static void sleep_us(unsigned us)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)us * 1000}, NULL);
}

static bool complain(const char *what, uint64_t step, const struct base_error *error)
{
    fprintf(stderr, "step %" PRIu64 " %s: %s\n", step, what, error ? error->message : "");
    return false;
}

/** Reads a checkpoint, whose version is its step once more. */
static bool read_one(uint64_t step)
{
    struct base_error error = {0};
    uint64_t version = 0;
    if (toy_load(store, path, step, &version, &error))
        return complain("is not whole", step, &error);
    atomic_fetch_add(&board->read, 1);
    return version == step || complain("is another save's", step, NULL);
}

/** Whatever is there when a reader comes stays, and is whole, until it goes. */
static bool visit(unsigned *seed)
{
    struct ckpt_file *lock;
    struct base_error error = {0};
    uint64_t *steps;
    size_t count;
    if (ckpt_reader_enter(store, path, &lock, &error))
        return complain("", 0, &error);
    if (!lock) // the owner has not opened it yet: what comes from now on is not held on to
        return true;
    const uint64_t acknowledged = atomic_load(&board->acknowledged);
    bool good = ckpt_list(store, path, &steps, &count, &error) == ZERO_OK;
    if (good && acknowledged && (count == 0 || steps[count - 1] < acknowledged))
        good = complain("was acknowledged and is not there", acknowledged, NULL);
    for (size_t i = 0; good && i < count && i < MOST_READ; i++) {
        sleep_us((unsigned)rand_r(seed) % PAUSE_US);
        good = read_one(steps[i]);
    }
    base_free(steps);
    ckpt_reader_leave(store, &lock);
    atomic_fetch_add(&board->visits, 1);
    return good;
}

/** A step that is saved again and again: the old one, the new one, or an error. */
static bool visit_the_one(unsigned *seed)
{
    struct ckpt_file *lock;
    struct base_error error = {0};
    uint64_t version = 0;
    if (ckpt_reader_enter(store, path, &lock, &error))
        return complain("", 0, &error);
    sleep_us((unsigned)rand_r(seed) % PAUSE_US);
    const uint64_t acknowledged = atomic_load(&board->acknowledged);
    const zero_result r = toy_load(store, path, THE_ONE, &version, &error);
    const uint64_t begun = atomic_load(&board->begun);
    ckpt_reader_leave(store, &lock);
    atomic_fetch_add(&board->visits, 1);
    atomic_fetch_add(r == ZERO_OK ? &board->read : &board->lost, acknowledged > 0);
    if (r == ZERO_OK && (version < acknowledged || version > begun))
        return complain("is of another time", version, NULL);
    if (r == ZERO_NOT_FOUND && acknowledged && strstr(error.message, "manifest"))
        return complain("is gone for a while", THE_ONE, &error);
    return true;
}

static bool read_on(bool (*visit_it)(unsigned *seed), unsigned seed)
{
    while (!atomic_load(&board->over))
        if (!visit_it(&seed))
            return false;
    return true;
}

/** What the owner has done. */
struct deeds {
    size_t saved, removed, recycled, waited;
};

static bool was_recycled(void)
{
    char file[128];
    snprintf(file, sizeof file, "%s/pool/shard-00000.zst", path);
    return access(file, F_OK) == 0;
}

static zero_result save_one(struct ckpt_directory *directory, uint64_t step, struct deeds *deeds,
                            struct base_error *error)
{
    const struct ckpt_retention retention = {KEEP, 0};
    size_t removed;
    deeds->recycled += was_recycled();
    zero_result r = toy_save(directory, store, path, step, WORLD, step, error);
    if (r)
        return r;
    deeds->saved++;
    atomic_store(&board->acknowledged, step);
    r = ckpt_prune(directory, &retention, NULL, &removed, error);
    deeds->removed += removed;
    deeds->waited += r == ZERO_AGAIN;
    return r == ZERO_AGAIN ? ZERO_OK : r;
}

static void save_on(struct deeds *deeds)
{
    struct ckpt_directory *directory;
    struct base_error error = {0};
    const double end = base_clock_s() + longest_s;
    zero_result r = ckpt_directory_open(&directory, store, path, WORLD, &error);
    for (uint64_t step = 1; !r && deeds->recycled < rounds && base_clock_s() < end; step++)
        r = save_one(directory, step, deeds, &error);
    ckpt_directory_close(directory);
    atomic_store(&board->over, true);
    if (r)
        fail_msg("%s", error.message);
}

/** The owner of THE_ONE. */
static void save_again(struct deeds *deeds)
{
    struct ckpt_directory *directory;
    struct base_error error = {0};
    const double end = base_clock_s() + longest_s;
    zero_result r = ckpt_directory_open(&directory, store, path, WORLD, &error);
    for (uint64_t version = 1; !r && base_clock_s() < end &&
                               (atomic_load(&board->visits) < rounds || version <= LEAST_SAVED);
         version++) {
        atomic_store(&board->begun, version);
        r = toy_save(directory, store, path, THE_ONE, WORLD, version, &error);
        atomic_store(&board->acknowledged, version);
        deeds->saved++;
    }
    ckpt_directory_close(directory);
    atomic_store(&board->over, true);
    if (r)
        fail_msg("%s", error.message);
}

/** Both at the same time. */
static struct deeds beside_readers(void (*own)(struct deeds *deeds),
                                   bool (*visit_it)(unsigned *seed))
{
    struct temporary temporary;
    struct deeds deeds = {0};
    pid_t readers[READERS];
    bool good = true;
    memset((void *)board, 0, sizeof *board);
    strcpy(temporary.directory, "/dev/shm/zero-test-XXXXXX"); // where flushes don't wait for a disk
    assert_non_null(mkdtemp(temporary.directory));
    snprintf(path, sizeof path, "%s/c", temporary.directory);
    assert_true(temporary_folder(&temporary, "c"));
    for (int i = 0; i < READERS; i++) {
        readers[i] = fork();
        if (readers[i] == 0)
            _exit(read_on(visit_it, (unsigned)i + 1) ? 0 : 1);
        assert_true(readers[i] > 0);
    }
    own(&deeds);
    for (int i = 0; i < READERS; i++) {
        int status = -1;
        assert_int_equal(waitpid(readers[i], &status, 0), readers[i]);
        good = good && status == 0;
    }
    print_message("%zu saves into %zu recycled files, %zu removed, %zu prunes put off; %d visits, "
                  "%d checkpoints read, %d lost\n",
                  deeds.saved, deeds.recycled, deeds.removed, deeds.waited,
                  (int)atomic_load(&board->visits), (int)atomic_load(&board->read),
                  (int)atomic_load(&board->lost));
    assert_true(good);
    assert_true(atomic_load(&board->read) > 0);
    temporary_remove(&temporary);
    return deeds;
}

/** They overlap without end, and yet the owner gets round to prune. */
static void readers_read_what_they_find(void **state)
{
    (void)state;
    const struct deeds deeds = beside_readers(save_on, visit);
    assert_true(deeds.recycled >= rounds && deeds.waited <= deeds.saved / 10);
}

static void a_step_is_saved_again(void **state)
{
    (void)state;
    const struct deeds deeds = beside_readers(save_again, visit_the_one);
    assert_true(deeds.saved >= LEAST_SAVED);
    assert_true(atomic_load(&board->lost) <= atomic_load(&board->visits) / 10);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(readers_read_what_they_find),
        cmocka_unit_test(a_step_is_saved_again),
    };
    if (argc > 1 && strcmp(argv[1], "many") == 0)
        rounds = 20000;
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return board == MAP_FAILED ? 2 : cmocka_run_group_tests(tests, NULL, NULL);
}
