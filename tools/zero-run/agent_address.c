#include "tools/zero-run/agent.h"

#include "base/arena.h"
#include "base/clock.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static bool is_address(const char *text)
{
    unsigned char bytes[16];
    return inet_pton(AF_INET, text, bytes) == 1 || inet_pton(AF_INET6, text, bytes) == 1;
}

// SSH_CONNECTION is "client port server port".
void run_agent_read_ssh(char client[RUN_AGENT_ADDRESS], char server[RUN_AGENT_ADDRESS])
{
    const char *connection = getenv("SSH_CONNECTION");
    *client = *server = '\0';
    if (!connection || sscanf(connection, "%63s %*s %63s", client, server) != 2 ||
        !is_address(client) || !is_address(server))
        *client = *server = '\0';
}

/* ------------------------------------------------------------------ names */

// A look-up in a thread of the C library's, which reads this as long as it takes.
struct lookup {
    struct gaicb request;
    struct addrinfo hints;
    char name[256];
};

// How long name servers may take. Those that do not answer take the C library much longer.
static const uint64_t lookup_ns = UINT64_C(5000000000);

// The coordinator hears meanwhile that this host lives. EAI_INPROGRESS: there was no answer.
static int wait_for_lookup(const struct gaicb *request, struct run_link *link)
{
    const struct gaicb *const list[] = {request};
    const struct timespec turn = {.tv_nsec = 100000000};
    const uint64_t end = base_clock_ns() + lookup_ns;
    while (gai_error((struct gaicb *)(uintptr_t)request) == EAI_INPROGRESS &&
           base_clock_ns() < end) {
        gai_suspend(list, 1, &turn);
        run_link_turn(link);
    }
    return gai_error((struct gaicb *)(uintptr_t)request);
}

// Returns a number of getaddrinfo()'s; EAI_INPROGRESS: there was no answer in time.
static int look_up(const char *name, struct run_link *link)
{
    struct lookup *lookup = base_calloc(1, sizeof *lookup);
    if (!lookup)
        return EAI_MEMORY;
    snprintf(lookup->name, sizeof lookup->name, "%s", name);
    lookup->hints = (struct addrinfo){.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    lookup->request = (struct gaicb){.ar_name = lookup->name, .ar_request = &lookup->hints};
    struct gaicb *list[] = {&lookup->request};
    int failed = getaddrinfo_a(GAI_NOWAIT, list, 1, NULL);
    if (!failed)
        failed = wait_for_lookup(&lookup->request, link);
    if (failed == EAI_INPROGRESS && gai_cancel(&lookup->request) == EAI_NOTCANCELED)
        return failed; // its thread has the memory still
    if (lookup->request.ar_result)
        freeaddrinfo(lookup->request.ar_result);
    base_free(lookup);
    return failed;
}

zero_result run_agent_find_head(struct run_agent *agent, const json_t *start,
                                struct base_error *error)
{
    const char *name = run_span_text(start, "address"), *direct = run_span_text(start, "direct");
    const int failed = is_address(name) ? 0 : look_up(name, agent->link);
    snprintf(agent->address, sizeof agent->address, "%s", failed && *direct ? direct : name);
    if (!failed || *direct)
        return ZERO_OK;
    if (failed == EAI_INPROGRESS)
        return zero_fail(
            error, ZERO_E_IO,
            "name %.80s: no answer from the name servers in %d s: put the first host's "
            "address into the list of hosts",
            name, (int)(lookup_ns / UINT64_C(1000000000)));
    return zero_fail(error, ZERO_E_IO,
                     "the first host's name '%.80s' is not known here (%s): put its address into "
                     "the list of hosts",
                     name, gai_strerror(failed));
}
