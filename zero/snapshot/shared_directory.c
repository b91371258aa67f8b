// A directory that ranks of several hosts write to, or read, is to be the same for all of them.

#include "zero/core/api_call.h"
#include "zero/snapshot/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/** Rank 0 leaves a mark. */
static void leave(const char *path, struct base_error *error)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        zero_fail_errno(error, ZERO_E_IO, errno, "creating %.300s", path);
    else
        close(fd);
}

/** The others look for it. */
static void look(const zero_ctx *z, const char *directory, const char *path,
                 struct base_error *error)
{
    if (access(path, F_OK))
        zero_fail_errno(error, ZERO_E_IO, errno,
                        "what rank 0 (host %s) has written to %.200s is not there: checkpoints of "
                        "several hosts need a directory that all of them share",
                        coll_host(z->comm, 0), directory);
}

zero_result eng_shared_check(zero_ctx *z, const char *directory, const uint8_t id[16],
                             const char *call)
{
    char path[PATH_MAX];
    struct base_error error = {0};
    uint64_t name[2];
    if (!z->config.by_network)
        return ZERO_OK;
    memcpy(name, id, sizeof name);
    snprintf(path, sizeof path, "%s/.zero-shared-%016" PRIx64 "%016" PRIx64, directory, name[0],
             name[1]);
    if (z->config.rank == 0)
        leave(path, &error);
    zero_result r = eng_agree_on_file(z, &error, call);
    if (!r && z->config.rank > 0)
        look(z, directory, path, &error);
    if (!r)
        r = eng_agree_on_file(z, &error, call);
    if (z->config.rank == 0)
        unlink(path);
    return r;
}

zero_result eng_shared_place(zero_ctx *z, const char *directory, const char *path, const char *call)
{
    char first[CKPT_MAX_PATH] = "", saving[CKPT_PATH_BYTES];
    struct base_error error = {0};
    snprintf(first, sizeof first, "%s", path);
    const zero_result sent = coll_broadcast(z->comm, first, sizeof first, 0);
    if (sent)
        return eng_comm_failed(z, sent);
    snprintf(saving, sizeof saving, "%s/saving-%08" PRIu64, path, z->step);
    const bool near = strcmp(coll_host(z->comm, 0), coll_host(z->comm, z->config.rank)) == 0;
    if (near && strcmp(first, path) != 0 && access(saving, F_OK))
        zero_fail(
            &error, ZERO_E_IO,
            "%.100s is %.300s on rank 0 and %.300s on rank %d, which does not see what rank 0 "
            "has made: their working directories differ; give an absolute path",
            directory, first, path, z->config.rank);
    return eng_agree_on_file(z, &error, call);
}
