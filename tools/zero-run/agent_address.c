#include "tools/zero-run/agent.h"

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

zero_result run_agent_find_head(struct run_agent *agent, const json_t *start,
                                struct base_error *error)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    const char *name = run_span_text(start, "address"), *direct = run_span_text(start, "direct");
    struct addrinfo *list = NULL;
    const int failed = getaddrinfo(name, NULL, &hints, &list);
    if (list)
        freeaddrinfo(list);
    snprintf(agent->address, sizeof agent->address, "%s", failed && *direct ? direct : name);
    if (!failed || *direct)
        return ZERO_OK;
    return zero_fail(error, ZERO_E_IO,
                     "the first host's name '%.80s' is not known here (%s): put its address into "
                     "the list of hosts",
                     name, gai_strerror(failed));
}
