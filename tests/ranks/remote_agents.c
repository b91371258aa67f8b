// A coordinator and its agents without ranks: starts itself as the agent of each host, by a remote
// shell, and says what has become of them.
//
//     remote_agents <rsh> <milliseconds of silence> <host>...
//
// Each agent sends eight megabytes, which are counted, and says where it is. Then both sides wait:
// the coordinator until its standard input ends, an agent for the end of its link.
#include "base/clock.h"
#include "tools/zero-run/remote_shell.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_HOSTS = 8, BYTES = 8 << 20, PATIENCE_S = 60 };

/* ------------------------------------------------------------------ an agent */

static void report(struct run_link *link)
{
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    run_link_send(link, json_pack("{s:s,s:i}", "host", host, "pid", (int)getpid()));
}

static int be_agent(void)
{
    static const struct run_self self = {.side = RUN_SIDE_AGENT, .host = -1};
    static struct run_link link;
    static char bytes[RUN_FRAME_BYTES];
    struct run_frame frame;
    struct base_error error = {.result = ZERO_OK};
    size_t sent = 0;
    if (run_link_adopt(&link, &self, &error)) {
        fprintf(stderr, "%s\n", error.message);
        return 2;
    }
    while (link.state != RUN_LINK_ENDED) {
        struct pollfd polls[RUN_LINK_POLLS];
        run_link_poll(&link, polls);
        poll(polls, RUN_LINK_POLLS, 50);
        run_link_turn(&link);
        for (; link.state == RUN_LINK_OPEN && !run_link_full(&link) && sent < BYTES;
             sent += sizeof bytes) {
            run_link_send_bytes(&link, RUN_FRAME_OUTPUT, 0, bytes, sizeof bytes);
            if (sent + sizeof bytes == BYTES)
                report(&link);
        }
        while (run_link_next(&link, &frame))
            json_decref(frame.object);
    }
    return 0;
}

/* ------------------------------------------------------------------ the coordinator */

struct agent {
    struct run_shell shell;
    size_t bytes;
    bool told;
};

static struct agent agents[MOST_HOSTS];
static struct run_hosts hosts;

static void turn(struct agent *agent)
{
    struct run_frame frame;
    struct run_shell *shell = &agent->shell;
    char line[256];
    run_link_turn(&shell->link);
    while (run_link_next(&shell->link, &frame)) {
        agent->bytes += frame.count;
        if (frame.type == RUN_FRAME_CONTROL)
            printf("host %s: %s, process %d, %zu bytes\n", shell->host->name,
                   json_string_value(json_object_get(frame.object, "host")),
                   (int)json_integer_value(json_object_get(frame.object, "pid")), agent->bytes);
        json_decref(frame.object);
    }
    run_shell_turn(shell);
    while (run_shell_line(shell, line, sizeof line))
        printf("host %s says: %s\n", shell->host->name, line);
}

// Waits for all of them; false: the standard input has ended.
static bool wait_for(uint64_t silence_ns)
{
    struct pollfd polls[1 + MOST_HOSTS * (RUN_LINK_POLLS + RUN_SHELL_POLLS)];
    nfds_t count = 1;
    polls[0] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    for (int i = 0; i < hosts.count; i++) {
        agents[i].shell.link.silence_ns = silence_ns;
        run_link_poll(&agents[i].shell.link, polls + count);
        run_shell_poll(&agents[i].shell, polls + count + RUN_LINK_POLLS);
        count += RUN_LINK_POLLS + RUN_SHELL_POLLS;
    }
    poll(polls, count, 50);
    return !polls[0].revents;
}

static int coordinate(uint64_t silence_ns)
{
    const double deadline = base_clock_s() + PATIENCE_S;
    char why[1024];
    int failed = 0;
    while (base_clock_s() < deadline && wait_for(silence_ns) && failed < hosts.count)
        for (int i = 0; i < hosts.count; i++) {
            turn(&agents[i]);
            if (agents[i].told || !run_shell_is_gone(&agents[i].shell))
                continue;
            run_shell_why(&agents[i].shell, why, sizeof why);
            printf("%s\n", why);
            agents[i].told = true;
            failed++;
        }
    for (int i = 0; i < hosts.count; i++)
        run_shell_close(&agents[i].shell);
    return failed;
}

int main(int argc, char **argv)
{
    struct run_shell_way way;
    struct base_error error = {.result = ZERO_OK};
    char list[MOST_HOSTS * RUN_HOST_BYTES] = "";
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 2 && !strcmp(argv[1], "--agent"))
        return be_agent();
    if (argc < 4 || argc > 3 + MOST_HOSTS)
        return 2;
    for (int i = 3; i < argc; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i > 3 ? "," : "",
                 argv[i]);
    zero_result result = run_hosts_parse(&hosts, list, &error);
    if (!result)
        result = run_shell_prepare(&way, argv[1], &error);
    for (int i = 0; !result && i < hosts.count; i++)
        result = run_shell_start(&agents[i].shell, &hosts.list[i], &way, &error);
    if (result) {
        printf("%s\n", error.message);
        return 3;
    }
    return coordinate(strtoull(argv[2], NULL, 10) * UINT64_C(1000000)) ? 1 : 0;
}
