// Power cuts of a real file system: scripts of saves, prunes and restarts run on an ext4 whose
// block device is recorded. Of what the device was told since its last flush any part may be there,
// in pieces of 512 bytes; each such state is mounted, so that the file system mends itself, and
// looked at as in ckpt_crash.c. A protocol with a bug must be caught here, too.
#include "base/hash.h"
#include "tests/fault/crash_block.h"
#include "tests/fault/crash_script.h"
#include "tests/unit/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = 16 << 20, ACTIONS = 14, SECTOR = 512, SCRIPTS = 6, PENDING = 4096 };

static struct temporary temporary; // in memory
static unsigned char *fresh;       // an empty file system

/** A power cut's disk. */
static struct {
    unsigned char *bytes;
    int loop;
    char name[32];
} disk;

/** A script, and the device it has run on. */
struct rig {
    struct block_device device;
    struct script script;
    unsigned char *durable;  /**< what is on the disk whatever happens */
    size_t pending[PENDING]; /**< writes since the last flush */
    size_t count, states;
};

static const char *at(const char *name)
{
    return temporary_path(&temporary, name);
}

/* ------------------------------------------------------------------ the script */

static void mark(void *user, uint32_t event)
{
    struct rig *rig = user;
    block_mark(&rig->device, event);
}

static void run_script(struct rig *rig, const struct ckpt_store *store, uint64_t seed)
{
    struct script *script = &rig->script;
    char why[MOUNTS_WHY];
    script->store = store;
    script->path = "c";
    script->mark = mark;
    script->mark_user = rig;
    script->random = seed;
    script->step = 10;
    if (!block_begin(&rig->device, fresh, BYTES, at("recorded"), why) ||
        !mounts_ext4(rig->device.name, at("mounted"), why))
        fail_msg("%s", why);
    assert_int_equal(chdir(at("mounted")), 0);
    script_draw_world(script);
    assert_true(script_open(script));
    for (int i = 0; i < ACTIONS; i++)
        assert_true(script_act(script));
    script_close(script);
    assert_int_equal(chdir("/"), 0);
    assert_true(mounts_end(at("mounted")));
    block_stop(&rig->device);
}

/* ------------------------------------------------------------------ states */

// ext4 counts on the block of its superblock being written whole.
static void write_pieces(struct rig *rig, unsigned char *bytes, const struct block_op *op,
                         bool torn)
{
    const unsigned char *data = block_data(&rig->device, op);
    torn = torn && op->offset > 0;
    for (uint64_t piece = 0; piece < op->size; piece += SECTOR)
        if (!torn || script_draw(&rig->script, 2))
            memcpy(bytes + op->offset + piece, data + piece, SECTOR);
}

/** Which of the writes that need not be there are. */
enum pick { ALL, NONE, SOME, PIECES, PICKS };

static void cut_power(struct rig *rig, enum pick pick)
{
    memcpy(disk.bytes, rig->durable, BYTES);
    for (size_t i = 0; pick != NONE && i < rig->count; i++)
        if (pick == ALL || script_draw(&rig->script, 2))
            write_pieces(rig, disk.bytes, block_op(&rig->device, rig->pending[i]), pick == PIECES);
    rig->states++;
}

static void hear_nothing(void *user, uint32_t event)
{
    (void)user;
    (void)event;
}

/** The next job's life on what the power cut has left. */
static bool go_on(struct rig *rig)
{
    struct script *next = malloc(sizeof *next);
    char why[MOUNTS_WHY];
    assert_non_null(next);
    assert_int_equal(ioctl(disk.loop, BLKFLSBUF, 0), 0); // it has changed behind the kernel's back
    if (!mounts_ext4(disk.name, at("mounted"), why))
        fail_msg("state %zu: %s", rig->states, why);
    assert_int_equal(chdir(at("mounted")), 0);
    *next = rig->script;
    next->store = &ckpt_store_posix;
    next->mark = hear_nothing;
    next->event_count = 0;
    script_draw_world(next);
    const bool good = script_accepts_store(next) && script_go_on(next);
    script_close(next);
    memcpy(rig->script.problem, next->problem, sizeof rig->script.problem);
    assert_int_equal(chdir("/"), 0);
    assert_true(mounts_end(at("mounted")));
    free(next);
    return good;
}

static bool show(struct rig *rig)
{
    bool good = true;
    for (enum pick pick = ALL; good && pick < PICKS; pick++) {
        if (rig->count == 0 && pick != ALL)
            continue;
        cut_power(rig, pick);
        good = go_on(rig);
    }
    return good;
}

static void flush(struct rig *rig)
{
    for (size_t i = 0; i < rig->count; i++)
        write_pieces(rig, rig->durable, block_op(&rig->device, rig->pending[i]), false);
    rig->count = 0;
}

/** Goes through the record; false: something is wrong with a state. */
static bool explore(struct rig *rig)
{
    bool good = true;
    rig->script.expected_count = 0;
    for (size_t n = 0; good && n < block_count(&rig->device); n++) {
        const struct block_op *op = block_op(&rig->device, n);
        if (op->kind == BLOCK_FLUSH) {
            flush(rig);
            continue;
        }
        if (op->kind == BLOCK_MARK)
            script_hear(&rig->script, (uint32_t)op->offset);
        assert_true(rig->count < PENDING);
        if (op->kind == BLOCK_WRITE)
            rig->pending[rig->count++] = n;
        good = show(rig);
    }
    return good;
}

/** Runs a script and looks at its states: what is wrong with one, "" if nothing is. */
static const char *try(const struct ckpt_store *store, uint64_t seed, size_t *states)
{
    static char problem[sizeof((struct script *)0)->problem];
    struct rig *rig = calloc(1, sizeof *rig);
    assert_non_null(rig);
    run_script(rig, store, seed);
    rig->durable = malloc(BYTES);
    assert_non_null(rig->durable);
    memcpy(rig->durable, fresh, BYTES);
    const bool good = explore(rig);
    assert_int_equal(good, rig->script.problem[0] == '\0');
    strcpy(problem, rig->script.problem);
    *states += rig->states;
    free(rig->durable);
    block_free(&rig->device);
    free(rig);
    return problem;
}

static void no_power_cut_loses_a_checkpoint(void **state)
{
    (void)state;
    size_t states = 0;
    for (uint64_t seed = 1; seed <= SCRIPTS; seed++) {
        const char *problem = try(&ckpt_store_posix, seed, &states);
        if (*problem)
            fail_msg("script %d: %s", (int)seed, problem);
    }
    print_message("%zu states\n", states);
    assert_true(states > 1000);
}

static zero_result flush_nothing(void *user, const char *path, struct base_error *error)
{
    (void)user;
    (void)path;
    (void)error;
    return ZERO_OK;
}

static void a_bug_is_caught(void **state)
{
    (void)state;
    struct ckpt_store careless = ckpt_store_posix;
    size_t states = 0;
    careless.sync_directory = flush_nothing;
    const char *problem = try(&careless, 1, &states);
    print_message("no directory is flushed: %s\n", *problem ? problem : "nothing wrong");
    assert_true(*problem);
}

/* ------------------------------------------------------------------ what it takes */

static bool make_fresh(char why[MOUNTS_WHY])
{
    if (!mounts_make_ext4(at("fresh"), BYTES, why))
        return false;
    const int fd = open(at("fresh"), O_RDONLY | O_CLOEXEC);
    fresh = fd < 0 ? MAP_FAILED : mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, fd, 0);
    if (fd >= 0)
        close(fd);
    return fresh != MAP_FAILED;
}

static bool make_disk(char why[MOUNTS_WHY])
{
    const int fd = open(at("cut"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const bool sized = fd >= 0 && ftruncate(fd, BYTES) == 0;
    disk.bytes = sized ? mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    disk.loop = disk.bytes == MAP_FAILED ? -1 : mounts_loop(at("cut"), disk.name, why);
    return disk.loop >= 0;
}

/** Whether there are fuse, loop devices and ext4 at all. */
static bool can_record(char why[MOUNTS_WHY])
{
    struct block_device device;
    if (!block_begin(&device, fresh, BYTES, at("recorded"), why))
        return false;
    const bool mounted = mounts_ext4(device.name, at("mounted"), why) && mounts_end(at("mounted"));
    block_stop(&device);
    block_free(&device);
    return mounted;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_power_cut_loses_a_checkpoint),
        cmocka_unit_test(a_bug_is_caught),
    };
    char why[MOUNTS_WHY] = "no memory in /dev/shm";
    int status = 77;
    strcpy(temporary.directory, "/dev/shm/zero-test-XXXXXX");
    if (!mkdtemp(temporary.directory) || !temporary_folder(&temporary, "mounted") ||
        !temporary_write(&temporary, "recorded", ""))
        return 2;
    if (mounts_begin(why) && make_fresh(why) && make_disk(why) && can_record(why))
        status = cmocka_run_group_tests(tests, NULL, NULL);
    else
        printf("skipped: %s\n", why);
    temporary_remove(&temporary);
    return status;
}
