// The hosts of a job: the first byte says whether what follows is a list or a file. Whatever is
// accepted is safe on a command line, has no host twice, and means the same when it is written
// again.
#include "tools/zero-run/host_list.h"

#include "tests/fuzz/target.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void check_host(const struct run_host *host)
{
    const size_t length = strnlen(host->name, sizeof host->name);
    require(length > 0 && length < sizeof host->name);
    require(isalnum((unsigned char)*host->name) || strchr("_:", *host->name));
    for (size_t i = 0; i < length; i++)
        require(isalnum((unsigned char)host->name[i]) || strchr("._-@:", host->name[i]));
    require(host->slots >= 0 && host->most >= 0 && *run_host_address(host));
    require(*run_host_address(host) != '-');
}

static bool is_same(const struct run_hosts *one, const struct run_hosts *other)
{
    if (one->count != other->count)
        return false;
    for (int i = 0; i < one->count; i++)
        if (strcmp(one->list[i].name, other->list[i].name) != 0 ||
            one->list[i].slots != other->list[i].slots || one->list[i].most != other->list[i].most)
            return false;
    return true;
}

static void check_again(const struct run_hosts *hosts)
{
    const size_t room = (size_t)hosts->count * (RUN_HOST_BYTES + 64) + 1;
    char *text = malloc(room);
    size_t used = 0;
    struct run_hosts again;
    require(text != NULL);
    for (int i = 0; i < hosts->count; i++) {
        const struct run_host *host = &hosts->list[i];
        used += (size_t)snprintf(text + used, room - used, "%s", host->name);
        if (host->slots)
            used += (size_t)snprintf(text + used, room - used, " slots=%d", host->slots);
        if (host->most)
            used += (size_t)snprintf(text + used, room - used, " max_slots=%d", host->most);
        used += (size_t)snprintf(text + used, room - used, "\n");
    }
    require(run_hosts_parse_file(&again, text, used, "fuzz", NULL) == ZERO_OK);
    require(is_same(hosts, &again));
    run_hosts_free(&again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    struct run_hosts hosts;
    struct base_error error = {.result = ZERO_OK};
    require(text != NULL);
    if (size > 1)
        memcpy(text, data + 1, size - 1);
    const size_t length = size > 1 ? size - 1 : 0;
    text[length] = '\0';
    const bool file = size > 0 && *data == 'f';
    const zero_result result = file ? run_hosts_parse_file(&hosts, text, length, "fuzz", &error)
                                    : run_hosts_parse(&hosts, text, &error);
    free(text);
    if (result) {
        require(result == ZERO_E_INVALID && error.message[0] && !hosts.list && !hosts.count);
        return 0;
    }
    require(hosts.count > 0 && hosts.count <= RUN_HOSTS_MAX);
    for (int i = 0; i < hosts.count; i++) {
        check_host(&hosts.list[i]);
        for (int other = 0; other < i; other++)
            require(strcasecmp(run_host_address(&hosts.list[i]),
                               run_host_address(&hosts.list[other])) != 0);
    }
    check_again(&hosts);
    run_hosts_free(&hosts);
    return 0;
}
