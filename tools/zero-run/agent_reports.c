#include "tools/zero-run/agent.h"

#include "base/clock.h"

#include <string.h>

static struct run_agent *agent_of(struct run_job *job)
{
    return (struct run_agent *)job->span;
}

// Adding up a process's memory takes the kernel a while, and stops it meanwhile.
static const uint64_t memory_ns = UINT64_C(10000000000);

static void send_area(struct run_agent *agent, const struct run_rank *rank, bool looks)
{
    struct run_area now, *before = &agent->areas[rank - agent->job.ranks];
    if (!agent->job.watch.segment)
        return;
    run_area_read(&agent->job.watch.segment->ranks[rank->number], &now);
    now.memory = before->memory;
    now.resident = before->resident;
    if (looks && now.has_status)
        now.memory = run_progress_process("/proc", now.pid, &now.resident);
    if (!memcmp(&now, before, sizeof now))
        return;
    *before = now;
    now.now_ns = base_clock_ns();
    run_link_send_bytes(agent->link, RUN_FRAME_OUTPUT, RUN_TAG_AREA | (uint32_t)rank->number,
                        (const char *)&now, sizeof now);
}

void run_agent_send_areas(struct run_agent *agent)
{
    const uint64_t now = base_clock_ns();
    const bool looks = now >= agent->memory_ns;
    bool stepped = false;
    for (int i = 0; i < agent->job.count; i++) {
        send_area(agent, &agent->job.ranks[i], looks);
        stepped = stepped || agent->areas[i].has_status;
    }
    if (looks && stepped)
        agent->memory_ns = now + memory_ns;
}

void run_agent_send_records(struct run_agent *agent)
{
    static struct run_records records;
    const struct run_job *job = &agent->job;
    for (int i = 0; i < job->count; i++) {
        const int number = job->ranks[i].number;
        const size_t bytes =
            run_records_read(&job->watch.segment->ranks[number], base_clock_ns(), &records);
        run_link_send_bytes(agent->link, RUN_FRAME_OUTPUT, RUN_TAG_RECORDS | (uint32_t)number,
                            (const char *)&records, bytes);
    }
    run_link_send(agent->link, json_pack("{s:s}", "is", "blamed"));
}

void run_agent_noticed(struct run_job *job)
{
    run_agent_send_areas(agent_of(job));
}

void run_agent_ended(struct run_job *job, const struct run_rank *rank)
{
    struct run_agent *agent = agent_of(job);
    const bool killed = rank->end.si_code != CLD_EXITED && rank->end.si_status == SIGKILL;
    const int oom = killed ? (int)run_oom_check(&job->oom) : RUN_OOM_NOT;
    // What it has noticed of others comes before its end.
    run_agent_send_areas(agent);
    run_link_send(agent->link, json_pack("{s:s,s:i,s:i,s:i,s:b,s:i}", "is", "ended", "rank",
                                         rank->number, "code", rank->end.si_code, "number",
                                         rank->end.si_status, "well", (int)rank->well, "oom", oom));
}

void run_agent_say(struct run_job *job, const char *line)
{
    run_link_send(agent_of(job)->link,
                  json_pack("{s:s,s:o}", "is", "say", "text", run_span_string(line)));
}

void run_agent_came(struct run_job *job, int number)
{
    struct run_agent *agent = agent_of(job);
    if (agent->link->state == RUN_LINK_OPEN)
        run_link_send(agent->link, json_pack("{s:s,s:i}", "is", "signal", "number", number));
    else if (job->stop.signals++ > 0)
        run_kill(job);
}

void run_agent_send_ready(struct run_agent *agent, int status, const struct base_error *error)
{
    char client[RUN_AGENT_ADDRESS], server[RUN_AGENT_ADDRESS];
    run_agent_read_ssh(client, server);
    run_link_send(agent->link,
                  json_pack("{s:s,s:i,s:o,s:s,s:s,s:i,s:i}", "is", "ready", "status", status,
                            "text", run_span_string(error->message), "client", client, "server",
                            server, "ranks", agent->own.ranks, "hosts", agent->own.hosts));
}
