// Agents that a platform has started call the coordinator. An agent may call while the link to the
// one before it still seems to be there: its platform has started it again, or two hosts have one
// number.

#include "tools/zero-run/coordinator.h"

#include "base/arena.h"
#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

// An agent that lives has sent a beat every second.
static const uint64_t quiet_ns = UINT64_C(3000000000);

zero_result run_far_open_port(struct run_coordinator *all, struct base_error *error)
{
    snprintf(all->job_id, sizeof all->job_id, "%.*s", RUN_LINK_NAME - 1, all->platform->job);
    const struct run_self self = {.side = RUN_SIDE_COORDINATOR,
                                  .host = 0,
                                  .job = all->job_id,
                                  .secret = all->platform->master.secret};
    const int port = all->platform->master.port;
    const zero_result result = run_listener_open(&all->listener, port, &self, error);
    return result != ZERO_AGAIN
               ? result
               : zero_fail(error, ZERO_E_IO,
                           "port %d, where the other hosts call, is in use on this one: give all "
                           "hosts of the job another MASTER_PORT, or this one its own NODE_RANK if "
                           "it is not host 0",
                           port);
}

// Tells an agent why it is not taken, and lets it go.
static void turn_away(struct run_link *link, json_t *words)
{
    run_link_send(link, words);
    run_link_farewell(link);
    run_link_turn(link);
    run_link_close(link);
    base_free(link);
}

static void refuse_number(struct run_coordinator *all, struct run_link *link)
{
    char text[256];
    const int host = link->theirs.host, last = all->count - 1;
    snprintf(text, sizeof text,
             "it says that it is host %d, and the job has the hosts 0 to %d, of which host 0 is "
             "here: give all hosts the same number of hosts, and each a number of its own",
             host, last);
    run_say(&all->job, "%.*s: %s", RUN_LINK_NAME, link->theirs.name, text);
    turn_away(link, json_pack("{s:s,s:i,s:s}", "is", "end", "status", (int)RUN_ENVIRONMENT, "text",
                              text));
}

static void put_off(struct run_coordinator *all, const struct run_far_host *far,
                    struct run_link *link)
{
    char text[512];
    const int host = link->theirs.host;
    snprintf(text, sizeof text,
             "host 0 has host %d already (%s); NODE_RANK may be wrong on one of the two", host,
             far->shell.link.theirs.name);
    if (all->put_off != host)
        run_say(&all->job, "host %s has called again: %s", far->name, text);
    all->put_off = host;
    turn_away(link, json_pack("{s:s,s:s}", "is", "wait", "text", text));
}

// Whether a host has an agent, or one that has called and is not needed yet.
static bool has_agent(const struct run_far_host *far)
{
    return far->shelled && !far->lost && far->shell.link.state == RUN_LINK_OPEN;
}

static bool is_quiet(const struct run_far_host *far)
{
    return base_clock_ns() - far->shell.link.heard_ns >= quiet_ns;
}

static void admit(struct run_coordinator *all, struct run_far_host *far, struct run_link *link)
{
    if (far->up) // its link has not ended
        run_far_lose(all, far, "its agent says nothing any more, and another one has called");
    run_far_drop(far);
    far->shell = (struct run_shell){.link = *link,
                                    .host = far->host,
                                    .way = &all->way,
                                    .called = true,
                                    .up = true,
                                    .ended = true,
                                    .pidfd = -1,
                                    .error_fd = -1};
    far->shelled = true;
    far->lost = far->answered = false;
    run_far_name(all, far, link->theirs.name);
    base_free(link);
}

static void take_call(struct run_coordinator *all, struct run_link *link)
{
    const int host = link->theirs.host;
    struct run_far_host *far = host > 0 && host < all->count ? &all->hosts[host] : NULL;
    if (!far)
        refuse_number(all, link);
    else if (has_agent(far) && !is_quiet(far))
        put_off(all, far, link);
    else
        admit(all, far, link);
}

void run_far_listen(struct run_coordinator *all)
{
    char text[512];
    struct run_link *link;
    if (all->listener.fd < 0)
        return;
    run_listener_turn(&all->listener);
    while ((link = run_listener_next(&all->listener)) != NULL)
        take_call(all, link);
    while (run_listener_refusals(&all->listener, all->closing, text, sizeof text))
        run_say(&all->job, "%s", text);
}
