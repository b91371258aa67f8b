// The id of a job: the same for all of its ranks, another one for every other job.

#include "collectives/rendezvous/launcher_survey.h"
#include "collectives/rendezvous/launcher_variables.h"
#include "collectives/rendezvous/mesh_internal.h"

#include "base/hash.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// Ids may hold anything, of any length; what doesn't fit or isn't printable is hashed. The user
// tells apart what meets on one host; ranks on several hosts may have different numbers there.
static void job_finish(char job[BOOT_JOB_BYTES], const char *kind, const char *id, bool of_user)
{
    struct base_text text = {job, BOOT_JOB_BYTES, 0};
    if (of_user)
        base_text_add(&text, "%ju.", (uintmax_t)getuid());
    base_text_add(&text, "%s.", kind);
    bool plain = strlen(id) < text.size - text.used;
    for (const char *byte = id; *byte; byte++)
        plain = plain && *byte > ' ' && *byte <= '~';
    if (plain)
        base_text_add(&text, "%s", id);
    else
        base_text_add(&text, "%016" PRIx64, base_hash64(id, strlen(id), 0));
}

static void join_words(char *job)
{
    for (; *job; job++)
        if (*job == ' ')
            *job = '-';
}

static bool job_of_family(char job[BOOT_JOB_BYTES], int family, char *const *environment,
                          bool of_user)
{
    char id[4096] = "";
    struct base_text text = {id, sizeof id, 0};
    if (!boot_families[family].job || !boot_families[family].job(&text, environment))
        return false;
    job_finish(job, boot_families[family].launcher, id, of_user);
    join_words(job);
    return true;
}

// Ranks that a user started by hand have the process in common that started them.
static void job_of_parent(char job[BOOT_JOB_BYTES])
{
    char id[32];
    struct base_text text = {id, sizeof id, 0};
    const pid_t parent = getppid();
    base_text_add(&text, "%jd", (intmax_t)(parent > 1 ? parent : getsid(0)));
    job_finish(job, parent > 1 ? "parent" : "session", id, true);
}

// ZERO_JOB first, then the winner's own id, then that of an outer launcher with the same answer:
// srun has one where PMI has none.
static bool job_of_launchers(char job[BOOT_JOB_BYTES], const struct boot_survey *survey,
                             char *const *environment, bool of_user)
{
    if (job_of_family(job, BOOT_ZERO, environment, of_user))
        return true;
    for (int i = survey->winner; i >= 0 && i < BOOT_FAMILIES; i++)
        if (survey->families[i].present &&
            boot_readings_agree(&survey->families[i], &survey->families[survey->winner]) &&
            job_of_family(job, i, environment, of_user))
            return true;
    return false;
}

void boot_job_of_survey(char job[BOOT_JOB_BYTES], const struct boot_survey *survey,
                        char *const *environment)
{
    if (!job_of_launchers(job, survey, environment, true))
        job_of_parent(job);
}

void boot_job(char job[BOOT_JOB_BYTES], char *const *environment)
{
    struct boot_survey survey;
    boot_survey_read(&survey, environment, NULL);
    boot_job_of_survey(job, &survey, environment);
}

// Ids of batch jobs that reach all ranks of some launchers without an id of their own: mpiexec of
// MPICH hands its environment on, and jsrun's ranks have LSF's.
static const char *batch_of(const struct boot_survey *survey, char *const *environment)
{
    static const char *const names[] = {"PBS_JOBID", "LSB_JOBID", "SLURM_JOB_ID"};
    const char *name;
    if (survey->winner != BOOT_PMI && survey->winner != BOOT_JSM)
        return NULL;
    return boot_first_variable(&name, names, 3, environment);
}

void boot_job_at(char job[BOOT_JOB_BYTES], const struct boot_master *master,
                 char *const *environment)
{
    struct boot_survey survey;
    char id[BOOT_ADDRESS_BYTES + 80] = "";
    struct base_text text = {id, sizeof id, 0};
    boot_survey_read(&survey, environment, NULL);
    if (job_of_launchers(job, &survey, environment, false))
        return;
    base_text_add(&text, "%s:%d", master->address, master->port);
    const char *batch = batch_of(&survey, environment);
    if (batch)
        base_text_add(&text, ":%.60s", batch);
    // Two users of one host may have taken the same port, as an example has it.
    unsigned char address[MESH_ADDRESS_BYTES];
    job_finish(job, "at", id, mesh_names_loopback(master, address));
}

bool boot_job_of_platform(char job[BOOT_JOB_BYTES], const struct boot_survey *survey,
                          const struct boot_nodes *nodes, char *const *environment)
{
    *job = '\0';
    if (job_of_launchers(job, survey, environment, false))
        return true;
    if (!nodes->present || !nodes->job || !*nodes->job)
        return false;
    assert(nodes->platform);
    // AWS Batch gives each host "id#number".
    char id[4096];
    snprintf(id, sizeof id, "%.*s", (int)strcspn(nodes->job, "#"), nodes->job);
    job_finish(job, nodes->platform, id, false);
    join_words(job);
    return true;
}
