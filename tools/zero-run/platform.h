/**
 * tools/zero-run/platform.h: zero-run where a platform has started it once on each host of a job.
 */
#ifndef TOOLS_ZERO_RUN_PLATFORM_H
#define TOOLS_ZERO_RUN_PLATFORM_H

#include "collectives/rendezvous/hosts_of_job.h"
#include "tools/zero-run/run.h"

/** Ranks of each host, and in words why: what the platform says, -n, GPUs, or cores. *Local.* */
int run_platform_ranks(const struct run_options *options, const struct boot_hosts *hosts,
                       const char **source);

/** Runs the job, or this host's part of it; returns the exit status, and if it says why in
 * *error. The status is the job's on each host. */
int run_platform(const struct run_options *options, const struct boot_hosts *hosts,
                 struct base_error *error);

#endif
