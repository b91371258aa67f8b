// Bytes that loads read, and jobs that are killed.
#include "tests/bench/bench.h"
#include "tests/bench/bench_save.h"
#include "tests/bench/local_update.h"
#include "zero/snapshot/snapshot.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* ------------------------------------------------------------------ what a load reads */

// Two units, of which each of up to 5 ranks has at least 10 times 64 Ki elements.
enum { UNITS = 2, UNIT_ELEMENTS = 53 * 65536, SAVED_WORLD = 2, MOST_RANKS = 5 };

struct load {
    const char *directory;
    bool saves;
    double file_bytes;
    double ratio[MOST_RANKS]; // of what a rank reads to its share
};

static zero_result fill(void *user, const char *name, int32_t slice, uint64_t first, uint64_t count,
                        float *out)
{
    (void)user, (void)name, (void)slice;
    for (uint64_t i = 0; i < count; i++)
        out[i] = 1e-3f * (float)((first + i) * 2654435761u % 65537);
    return ZERO_OK;
}

bool save_commit(struct team_rank *rank, int units, uint64_t unit_elements, zero_fill_fn values)
{
    zero_param_desc desc = zero_param_default();
    TEAM_OK(rank, zero_add_group(rank->z, NULL, NULL));
    desc.name = "weights";
    desc.ndim = 2;
    desc.shape[0] = (uint64_t)units;
    desc.shape[1] = unit_elements;
    desc.unit_count = units;
    desc.fill = values;
    TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
    TEAM_OK(rank, zero_commit(rank->z));
    return true;
}

static bool save_state(struct team_rank *rank, struct load *load)
{
    zero_save_info info = {.struct_size = sizeof info};
    TEAM_OK(rank, zero_save(rank->z, load->directory, NULL));
    TEAM_OK(rank, zero_save_wait(rank->z));
    TEAM_OK(rank, zero_save_poll(rank->z, &info));
    if (rank->rank == 0)
        load->file_bytes = (double)info.file_bytes;
    return true;
}

static bool load_state(struct team_rank *rank, struct load *load)
{
    char path[SAVE_PATH];
    zero_load_result result = {.struct_size = sizeof result};
    snprintf(path, sizeof path, "%s/step-00000000", load->directory);
    TEAM_OK(rank, zero_load(rank->z, path, NULL, &result));
    double all = 0;
    for (int r = 0; r < rank->world; r++)
        all += (double)eng_save_load(rank->z, r).bytes;
    const double own = (double)eng_save_load(rank->z, rank->rank).bytes;
    load->ratio[rank->rank] = (double)result.read_bytes / (load->file_bytes * own / all);
    return true;
}

static bool save_or_load(struct team_rank *rank, void *user)
{
    struct load *load = user;
    rank->config.stage = 3;
    rank->config.micro_batches = SAVED_WORLD;
    if (!team_open(rank) || !save_commit(rank, UNITS, UNIT_ELEMENTS, fill))
        return false;
    return load->saves ? save_state(rank, load) : load_state(rank, load);
}

// A share that neither begins nor ends where a block does reads one block more than it has on
// average, and two at worst.
static void print_reads(const struct load *load, int world)
{
    static const double most = 1.1;
    double worst = 0, sum = 0;
    for (int r = 0; r < world; r++) {
        worst = load->ratio[r] > worst ? load->ratio[r] : worst;
        sum += load->ratio[r];
    }
    printf("bytes read at a load, %d ranks of %d %23.3f of a share at most, %.3f on average, "
           "target %.1f: %s\n",
           world, SAVED_WORLD, worst, sum / world, most, worst <= most ? "met" : "missed");
}

bool save_print_reads(const char *directory)
{
    struct load load = {.directory = directory, .saves = true};
    bool good = team_run("threads", SAVED_WORLD, save_or_load, &load);
    load.saves = false;
    for (int world = 1; good && world <= MOST_RANKS; world++) {
        good = team_run(team_threads(world), world, save_or_load, &load);
        if (good)
            print_reads(&load, world);
    }
    return good;
}

/* ------------------------------------------------------------------ from a death to a step */

enum { SMALL = 5000, SAVE_AT = 3, DEATH_AT = 5, LAST = 8, ROUNDS = 5 };

// A rank leaves the time in a file of this name.
static bool leave_time(const char *directory, const char *name)
{
    char path[SAVE_PATH + 16];
    const double now = bench_now();
    snprintf(path, sizeof path, "%s.%s", directory, name);
    FILE *file = fopen(path, "w");
    const bool written = file && fwrite(&now, sizeof now, 1, file) == 1;
    return file && fclose(file) == 0 && written;
}

static bool take_time(const char *directory, const char *name, double *time)
{
    char path[SAVE_PATH + 16];
    snprintf(path, sizeof path, "%s.%s", directory, name);
    FILE *file = fopen(path, "r");
    const bool read = file && fread(time, sizeof *time, 1, file) == 1;
    if (file)
        fclose(file);
    remove(path);
    return read;
}

static bool small_step(struct team_rank *rank)
{
    const zero_step_args args = zero_step_args_for(&local_hyper, 1, 1.0, 0.0);
    for (int32_t i = 0; i < zero_micro_count(rank->z); i++) {
        TEAM_OK(rank, zero_micro_begin(rank->z, i, NULL));
        for (zero_unit unit = 0; unit < UNITS; unit++) {
            TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
            TEAM_OK(rank, zero_grad_open(rank->z, unit, NULL));
            TEAM_OK(rank, zero_grad_done(rank->z, unit, NULL));
            TEAM_OK(rank, zero_release(rank->z, unit, NULL));
        }
    }
    TEAM_OK(rank, zero_step(rank->z, &args, NULL));
    return true;
}

// Saves in time, and dies later, but if this is another start.
static bool train(struct team_rank *rank, const char *directory)
{
    zero_load_result loaded = {.struct_size = sizeof loaded};
    const zero_result r = zero_resume(rank->z, directory, NULL, &loaded);
    const bool first = r == ZERO_NOT_FOUND;
    TEAM_CHECK(first || team_ok(rank, r, "zero_resume"));
    for (uint64_t number = loaded.step; number < LAST; number++) {
        if (!small_step(rank))
            return false;
        if (!first && number == loaded.step && rank->rank == 0)
            TEAM_CHECK(leave_time(directory, "step"));
        if (number + 1 == SAVE_AT) {
            TEAM_OK(rank, zero_save(rank->z, directory, NULL));
            TEAM_OK(rank, zero_save_wait(rank->z));
        }
        if (first && number + 1 == DEATH_AT && rank->rank == 1) {
            TEAM_CHECK(leave_time(directory, "death"));
            raise(SIGKILL);
        }
    }
    return true;
}

int save_rank(const char *directory)
{
    struct team_rank rank = {.config = zero_config_default()};
    rank.config.stage = 3;
    if (!team_open(&rank))
        return 1;
    rank.rank = zero_rank(rank.z);
    rank.world = zero_world(rank.z);
    const bool good = save_commit(&rank, UNITS, SMALL, fill) && train(&rank, directory);
    team_close(&rank);
    return good ? 0 : 1;
}

// A job in a process of its own; what it says is not to be seen.
static bool run_job(const char *directory, const char *zero_run, const char *self)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        const int nowhere = open("/dev/null", O_WRONLY);
        dup2(nowhere, 1);
        dup2(nowhere, 2);
        execl(zero_run, zero_run, "-n", "2", "--max-restarts", "1", "--", self, "--rank", directory,
              (char *)NULL);
        _exit(127);
    }
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bool save_print_restarts(const char *directory, const char *zero_run, const char *self)
{
    static const double most = 2;
    double seconds[ROUNDS], death = 0, step = 0;
    for (int i = 0; i < ROUNDS; i++) {
        char place[SAVE_PATH];
        snprintf(place, sizeof place, "%s.%d", directory, i);
        if (!run_job(place, zero_run, self) || !take_time(place, "death", &death) ||
            !take_time(place, "step", &step))
            return false;
        seconds[i] = step - death;
    }
    qsort(seconds, ROUNDS, sizeof *seconds, ascending);
    printf(
        "death of a rank to the first new step %28.3f s     %.3f at most, of %d; target %g s: %s\n",
        seconds[ROUNDS / 2], seconds[ROUNDS - 1], ROUNDS, most,
        seconds[ROUNDS - 1] <= most ? "met" : "missed");
    return true;
}
