// Files of other jobs, or of this one with another configuration, which no process has open.

#include "zero/plan/plan_values.h"
#include "zero/store/nvme_tier.h"

#include "base/file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct others {
    const zero_ctx *z;
    int directory;
    uint64_t files, bytes;
    char name[NAME_MAX + 1]; /**< of one of them */
};

/** Whether a name is that of a file of state, and not of this job's. */
static bool is_other(const zero_ctx *z, const char *name)
{
    uint64_t job;
    int rank, end = 0;
    return sscanf(name, "zero-%16" SCNx64 "-rank-%d.slots%n", &job, &rank, &end) == 2 && end > 0 &&
           !name[end] && job != z->tier->job;
}

static zero_result count(void *user, const char *name, enum base_entry_kind kind,
                         struct base_error *error)
{
    struct others *others = user;
    struct stat status;
    (void)error;
    if (kind != BASE_ENTRY_FILE || !is_other(others->z, name))
        return ZERO_OK;
    const int fd = openat(others->directory, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return ZERO_OK;
    if (fstat(fd, &status) == 0 && base_lock(fd, false, name, NULL) == ZERO_OK) {
        base_unlock(fd);
        others->files++;
        others->bytes += (uint64_t)status.st_blocks * 512;
        snprintf(others->name, sizeof others->name, "%s", name);
    }
    close(fd);
    return ZERO_OK;
}

void eng_tier_tell_others(const zero_ctx *z)
{
    const char *directory = z->config.nvme_dir;
    struct others others = {.z = z, .directory = open(directory, O_DIRECTORY | O_CLOEXEC)};
    char bytes[32];
    if (others.directory < 0)
        return;
    base_list(directory, count, &others, NULL);
    close(others.directory);
    if (others.files > 0)
        base_logf(&z->config.log, ZERO_LOG_WARN, "io",
                  "%s has %" PRIu64
                  " file%s, %s, of another job, or of this one with another model, seed, V or "
                  "number of ranks, such as %s: this job takes nothing from them, and no process "
                  "has them open",
                  directory, others.files, others.files > 1 ? "s" : "",
                  eng_human(others.bytes, bytes), others.name);
}
