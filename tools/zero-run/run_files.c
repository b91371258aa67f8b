// The files that zero-run writes: logs, and whether two of all its files are one.

#include "tools/zero-run/run.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

zero_result run_files_make_directory(const struct run_options *options, struct base_error *error)
{
    const char *dir = options->log_dir;
    if (dir && mkdir(dir, 0777) && errno != EEXIST)
        return zero_fail_errno(error, ZERO_E_IO, errno, "cannot create '%.200s'", dir);
    return ZERO_OK;
}

/* ------------------------------------------------------------------ one file, two uses */

// Two paths lead to one file if their identities are equal. All zero: no file is meant.
struct identity {
    dev_t device;
    ino_t inode;         // of the file; of its directory if it is not there yet,
    char name[NAME_MAX]; // and then its name there
};

// A use of a file, as messages have it.
struct use {
    char what[64];
    struct identity is;
};

static void set_identity(struct identity *is, const struct stat *status)
{
    is->device = status->st_dev;
    is->inode = status->st_ino;
}

static void identify(struct identity *is, const char *path)
{
    struct stat status;
    *is = (struct identity){.inode = 0};
    if (stat(path, &status) == 0) {
        // A terminal, /dev/null and other devices take what several writers write.
        if (S_ISREG(status.st_mode) || S_ISFIFO(status.st_mode))
            set_identity(is, &status);
        return;
    }
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char directory[PATH_MAX];
    const int length = slash ? (int)(slash - path) + 1 : 1;
    if (snprintf(directory, sizeof directory, "%.*s", length, slash ? path : ".") >= PATH_MAX ||
        strlen(name) >= sizeof is->name || stat(directory, &status))
        return; // opening it says what is wrong
    set_identity(is, &status);
    strcpy(is->name, name);
}

static bool is_one(const struct identity *one, const struct identity *other)
{
    return one->inode && one->inode == other->inode && one->device == other->device &&
           !strcmp(one->name, other->name);
}

static void use_path(struct use *use, const char *option, const char *path)
{
    snprintf(use->what, sizeof use->what, "%s %.40s", option, path);
    identify(&use->is, path);
}

static void use_standard(struct use *use, int fd, const char *name)
{
    struct stat status;
    snprintf(use->what, sizeof use->what, "standard %s", name);
    // Lines of metrics may go among others into a pipe, by the name /dev/stdout.
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode))
        set_identity(&use->is, &status);
}

static zero_result log_path(char path[PATH_MAX], const char *dir, int rank,
                            struct base_error *error)
{
    const int length = snprintf(path, PATH_MAX, "%s/rank-%d.log", dir, rank);
    return length > 0 && length < PATH_MAX
               ? ZERO_OK
               : zero_fail(error, ZERO_E_INVALID, "--log-dir: the path is too long");
}

// Fails if a file is one of the `count` uses.
static zero_result compare(const struct use *uses, int count, const struct use *other,
                           struct base_error *error)
{
    for (int i = 0; i < count; i++)
        if (is_one(&uses[i].is, &other->is))
            return zero_fail(error, ZERO_E_INVALID,
                             "%s and %s are the same file, which one of them would spoil: give "
                             "each a file of its own",
                             other->what, uses[i].what);
    return ZERO_OK;
}

// The logs against all others.
static zero_result compare_logs(const struct run_options *options, const struct use *uses,
                                int count, struct base_error *error)
{
    zero_result result = ZERO_OK;
    for (int rank = 0; options->log_dir && rank < options->ranks && !result; rank++) {
        char path[PATH_MAX];
        struct use log = {.what = ""};
        result = log_path(path, options->log_dir, rank, error);
        if (result)
            break;
        snprintf(log.what, sizeof log.what, "rank-%d.log in --log-dir", rank);
        identify(&log.is, path);
        result = compare(uses, count, &log, error);
    }
    return result;
}

zero_result run_files_check(const struct run_options *options, struct base_error *error)
{
    struct use uses[5] = {{.what = ""}};
    int count = 3;
    use_standard(&uses[0], STDIN_FILENO, "input");
    use_standard(&uses[1], STDOUT_FILENO, "output");
    use_standard(&uses[2], STDERR_FILENO, "error");
    const struct {
        const char *option, *path;
    } files[] = {{"--metrics", options->metrics}, {"--trace", options->trace}};
    zero_result result = ZERO_OK;
    for (size_t i = 0; i < sizeof files / sizeof *files && !result; i++) {
        if (!files[i].path)
            continue;
        use_path(&uses[count], files[i].option, files[i].path);
        result = compare(uses, count, &uses[count], error);
        count++;
    }
    return result ? result : compare_logs(options, uses, count, error);
}

/* ------------------------------------------------------------------ logs */

struct stale {
    const char *dir;
    int ranks;  // of this job
    bool empty; // logs of its ranks are emptied
};

// The rank whose log has the name; -1: it is no log's.
static int rank_of_log(const char *name)
{
    int rank = -1;
    char own[32];
    if (sscanf(name, "rank-%d.log", &rank) != 1 || rank < 0)
        return -1;
    snprintf(own, sizeof own, "rank-%d.log", rank); // neither "rank-07.log" nor "rank-7.log.gz"
    return !strcmp(own, name) ? rank : -1;
}

static zero_result remove_stale(void *user, const char *name, enum base_entry_kind kind,
                                struct base_error *error)
{
    const struct stale *stale = user;
    const int rank = rank_of_log(name);
    char path[PATH_MAX];
    if (kind != BASE_ENTRY_FILE || rank < 0 || (rank < stale->ranks && !stale->empty) ||
        snprintf(path, sizeof path, "%s/%s", stale->dir, name) >= PATH_MAX)
        return ZERO_OK;
    if (rank < stale->ranks)
        return truncate(path, 0) && errno != ENOENT
                   ? zero_fail_errno(error, ZERO_E_IO, errno, "emptying '%.200s'", path)
                   : ZERO_OK;
    const zero_result result = base_unlink(path, error);
    return result == ZERO_NOT_FOUND ? ZERO_OK : result;
}

void run_files_clear_logs(struct run_job *job, int ranks, bool empty)
{
    struct stale stale = {.dir = job->options->log_dir, .ranks = ranks, .empty = empty};
    struct base_error left = {.result = ZERO_OK};
    if (stale.dir && base_list(stale.dir, remove_stale, &stale, &left))
        run_say(job, "logs of an earlier job may be left: %s", left.message);
}

zero_result run_files_open_logs(struct run_job *job, struct base_error *error)
{
    const char *dir = job->options->log_dir;
    const int first = job->span || job->restarts.count ? 0 : O_TRUNC;
    if (!dir)
        return ZERO_OK;
    for (int i = 0; i < job->count; i++) {
        char path[PATH_MAX];
        zero_result result = log_path(path, dir, job->at.first + i, error);
        if (!result)
            result = base_open(&job->ranks[i].log_fd, path, O_WRONLY | O_CREAT | O_APPEND | first,
                               0666, error);
        if (result)
            return result;
    }
    if (!job->span)
        run_files_clear_logs(job, job->at.first_world, false);
    return ZERO_OK;
}
