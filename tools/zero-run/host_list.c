#include "tools/zero-run/host_list.h"

#include "base/arena.h"
#include "base/file.h"
#include "collectives/rendezvous/rendezvous.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { MOST_FILE_BYTES = 1 << 20 };

static const char digits[] = "0123456789";
static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
static const char blanks[] = " \t\r";

// What is left to read of a list or of a line.
struct reader {
    struct run_hosts *hosts;
    const char *where; // "--hosts", or the file
    int line;          // 0: there are none
    const char *at, *end;
    struct base_error *error;
};

static zero_result fail_at(const struct reader *reader, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static zero_result fail_at(const struct reader *reader, const char *format, ...)
{
    char text[320], place[16] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (reader->line)
        snprintf(place, sizeof place, ":%d", reader->line);
    return zero_fail(reader->error, ZERO_E_INVALID, "%.150s%s: %s", reader->where, place, text);
}

/* ------------------------------------------------------------------ pieces */

static bool is_one_of(char c, const char *set)
{
    return c && strchr(set, c);
}

// Passes what consists of these characters, and returns how many there are.
static size_t pass_all(struct reader *reader, const char *set)
{
    const char *begin = reader->at;
    while (reader->at < reader->end && is_one_of(*reader->at, set))
        reader->at++;
    return (size_t)(reader->at - begin);
}

static bool pass_one(struct reader *reader, char c)
{
    const bool there = reader->at < reader->end && *reader->at == c;
    reader->at += there;
    return there;
}

// A number of ranks.
static zero_result read_count(struct reader *reader, const char *what, int *count)
{
    const char *begin = reader->at;
    *count = 0;
    pass_all(reader, digits);
    for (const char *at = begin; at < reader->at && *count <= BOOT_HOST_RANKS_MAX; at++)
        *count = 10 * *count + (*at - '0');
    while (reader->at < reader->end && !is_one_of(*reader->at, " \t\r,"))
        reader->at++; // what belongs to it, and is shown
    const int length = (int)(reader->at - begin);
    if (*count < 1 || *count > BOOT_HOST_RANKS_MAX || strspn(begin, digits) < (size_t)length)
        return fail_at(reader, "%.40s takes a number from 1 to %d, not '%.*s'", what,
                       BOOT_HOST_RANKS_MAX, length < 60 ? length : 60, begin);
    return ZERO_OK;
}

/* ------------------------------------------------------------------ a host */

// A name that is safe on a command line.
static bool is_name(const char *name)
{
    const size_t length = strlen(name);
    size_t good = 0;
    while (name[good] && (is_one_of(name[good], letters) || is_one_of(name[good], digits) ||
                          is_one_of(name[good], "._-")))
        good++;
    return length > 0 && good == length && !is_one_of(*name, ".-");
}

const char *run_host_address(const struct run_host *host)
{
    const char *at = strrchr(host->name, '@');
    return at ? at + 1 : host->name;
}

// Whether the address behind the user's name, if there is one, is one of IPv6. Then it is written
// in the one way that IPv6 addresses are compared in.
static bool make_v6(char *address, size_t room)
{
    unsigned char bytes[16];
    return inet_pton(AF_INET6, address, bytes) == 1 &&
           inet_ntop(AF_INET6, bytes, address, (socklen_t)room);
}

static zero_result check_host(const struct reader *reader, struct run_host *host, bool bracketed)
{
    char *address = host->name + (run_host_address(host) - host->name);
    char user[RUN_HOST_BYTES] = "";
    if (address > host->name)
        memcpy(user, host->name, (size_t)(address - host->name) - 1);
    if (address > host->name && !is_name(user))
        return fail_at(reader, "'%.80s' is no user's name", user);
    if (bracketed || strchr(address, ':'))
        return make_v6(address, sizeof host->name - (size_t)(address - host->name))
                   ? ZERO_OK
                   : fail_at(reader, "'%.80s' is no IPv6 address%s", address,
                             bracketed ? ", which brackets are for" : "");
    unsigned char bytes[4];
    if (strspn(address, "0123456789.") == strlen(address) && *address)
        return inet_pton(AF_INET, address, bytes) == 1
                   ? ZERO_OK
                   : fail_at(reader, "'%.80s' is no IPv4 address", address);
    return is_name(address) ? ZERO_OK : fail_at(reader, "'%.80s' is no host's name", address);
}

// Whether there are two colons, as in an IPv6 address.
static bool has_colons(const char *text, const char *end)
{
    const char *colon = memchr(text, ':', (size_t)(end - text));
    return colon && memchr(colon + 1, ':', (size_t)(end - colon - 1));
}

// Where the name ends of a host that begins here, without brackets. In a file an IPv6 address needs
// none: its number of ranks stands elsewhere.
static const char *end_of_name(const struct reader *reader, const char *end)
{
    const char *colon = memchr(reader->at, ':', (size_t)(end - reader->at));
    return colon && !has_colons(reader->at, end) ? colon : end;
}

// user@[address], or user@name, of which `end` is the end.
static zero_result read_name(struct reader *reader, const char *end, struct run_host *host,
                             bool *bracketed)
{
    const char *bracket = memchr(reader->at, '[', (size_t)(end - reader->at));
    const char *stop;
    *bracketed = bracket && (bracket == reader->at || bracket[-1] == '@');
    if (*bracketed)
        stop = memchr(bracket, ']', (size_t)(end - bracket));
    else
        stop = end_of_name(reader, end);
    if (!stop)
        return fail_at(reader, "a '[' has no ']'");
    if (!*bracketed && !reader->line && has_colons(reader->at, end))
        return fail_at(reader, "an IPv6 address stands in brackets: [fd00::4]:2");
    const size_t before = *bracketed ? (size_t)(bracket - reader->at) : 0;
    const char *rest = *bracketed ? bracket + 1 : reader->at;
    const size_t length = (size_t)(stop - rest);
    // What an IPv6 address is written as may be longer than it was.
    if (before + length + INET6_ADDRSTRLEN > sizeof host->name)
        return fail_at(reader, "a host's name has at most %d characters",
                       RUN_HOST_BYTES - INET6_ADDRSTRLEN);
    memcpy(host->name, reader->at, before);
    memcpy(host->name + before, rest, length);
    host->name[before + length] = '\0';
    reader->at = stop + *bracketed;
    return ZERO_OK;
}

static zero_result read_host(struct reader *reader, struct run_host *host)
{
    const char *end = reader->at;
    bool bracketed;
    while (end < reader->end && !is_one_of(*end, " \t\r,"))
        end++;
    if (end == reader->at)
        return fail_at(reader, "a host is missing%s",
                       reader->line               ? ""
                       : reader->at < reader->end ? " before a ','"
                                                  : " at the end");
    zero_result result = read_name(reader, end, host, &bracketed);
    if (!result)
        result = check_host(reader, host, bracketed);
    if (result)
        return result;
    char what[64];
    snprintf(what, sizeof what, "'%.40s:'", host->name);
    if (pass_one(reader, ':'))
        result = read_count(reader, what, &host->slots);
    return result;
}

static zero_result add_host(const struct reader *reader, const struct run_host *host)
{
    struct run_hosts *hosts = reader->hosts;
    const char *address = run_host_address(host);
    for (int i = 0; i < hosts->count; i++) {
        if (strcasecmp(run_host_address(&hosts->list[i]), address))
            continue;
        if (reader->line)
            return fail_at(reader,
                           "host '%.80s' is there already, in line %d: slots=N there is the number "
                           "of its ranks",
                           address, hosts->list[i].line);
        return fail_at(reader,
                       "host '%.80s' is there twice: the number behind its name is that of its "
                       "ranks, %.80s:2",
                       address, address);
    }
    if (hosts->count == RUN_HOSTS_MAX)
        return fail_at(reader, "there are more than %d hosts", RUN_HOSTS_MAX);
    hosts->list[hosts->count++] = *host;
    return ZERO_OK;
}

/* ------------------------------------------------------------------ lists and files */

static zero_result make_list(struct run_hosts *hosts, struct base_error *error)
{
    *hosts = (struct run_hosts){.list = base_calloc(RUN_HOSTS_MAX, sizeof *hosts->list)};
    return hosts->list ? ZERO_OK : zero_fail(error, ZERO_E_NOMEM, "no memory for a list of hosts");
}

void run_hosts_free(struct run_hosts *hosts)
{
    base_free(hosts->list);
    *hosts = (struct run_hosts){.list = NULL};
}

zero_result run_hosts_parse(struct run_hosts *hosts, const char *list, struct base_error *error)
{
    zero_result result = make_list(hosts, error);
    struct reader reader = {
        .hosts = hosts, .where = "--hosts", .at = list, .end = list + strlen(list), .error = error};
    bool more = true;
    while (!result && more) {
        struct run_host host = {.slots = 0};
        pass_all(&reader, blanks);
        result = read_host(&reader, &host);
        pass_all(&reader, blanks);
        more = pass_one(&reader, ',');
        if (!result && !more && reader.at < reader.end)
            result = fail_at(&reader, "a ',' is missing before '%.60s'", reader.at);
        if (!result)
            result = add_host(&reader, &host);
    }
    if (result)
        run_hosts_free(hosts);
    return result;
}

// slots=4, max_slots=4: there may be blanks around the '='.
static zero_result read_setting(struct reader *reader, struct run_host *host)
{
    static const struct {
        const char *name;
        bool most;
    } settings[] = {{"slots", false}, {"max_slots", true}, {"max-slots", true}};
    const char *begin = reader->at;
    char word[32] = "";
    pass_all(reader, letters);
    while (pass_one(reader, '_') || pass_one(reader, '-'))
        pass_all(reader, letters);
    const size_t length = (size_t)(reader->at - begin);
    if (length < sizeof word)
        memcpy(word, begin, length);
    pass_all(reader, blanks);
    const bool given = pass_one(reader, '=');
    pass_all(reader, blanks);
    for (size_t i = 0; given && i < sizeof settings / sizeof *settings; i++) {
        if (strcmp(word, settings[i].name))
            continue;
        int *value = settings[i].most ? &host->most : &host->slots;
        return *value ? fail_at(reader, "the %s of host '%.80s' are there twice",
                                settings[i].most ? "max_slots" : "slots", host->name)
                      : read_count(reader, settings[i].name, value);
    }
    const int rest = (int)strcspn(begin, " \t\r\n");
    return fail_at(reader, "'%.*s' is neither slots=N nor max_slots=N", rest < 60 ? rest : 60,
                   begin);
}

static zero_result read_line(struct reader *reader)
{
    struct run_host host = {.line = reader->line};
    pass_all(reader, blanks);
    if (reader->at == reader->end)
        return ZERO_OK;
    zero_result result = read_host(reader, &host);
    pass_all(reader, blanks);
    while (!result && reader->at < reader->end) {
        result = read_setting(reader, &host);
        pass_all(reader, blanks);
    }
    if (!result && host.most && host.slots > host.most)
        result = fail_at(reader, "host '%.80s' has slots=%d, but max_slots=%d", host.name,
                         host.slots, host.most);
    return result ? result : add_host(reader, &host);
}

// Lines end with a newline or a zero: no setting is read beyond the text.
static zero_result read_lines(struct reader *reader, const char *text, size_t bytes)
{
    static const char mark[] = "\xef\xbb\xbf"; // which editors of Windows write first
    const char *end = text + bytes;
    zero_result result = ZERO_OK;
    if (bytes >= 3 && !memcmp(text, mark, 3))
        text += 3;
    while (!result && text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        const char *stop = newline ? newline : end;
        const char *comment = memchr(text, '#', (size_t)(stop - text));
        reader->line++;
        reader->at = text;
        reader->end = comment ? comment : stop;
        result = memchr(text, '\0', (size_t)(stop - text)) ? fail_at(reader, "it is no text")
                                                           : read_line(reader);
        text = stop + 1;
    }
    return result;
}

zero_result run_hosts_parse_file(struct run_hosts *hosts, const char *text, size_t bytes,
                                 const char *path, struct base_error *error)
{
    struct reader reader = {.hosts = hosts, .where = path, .error = error};
    zero_result result = make_list(hosts, error);
    assert(text[bytes] == '\0');
    if (!result)
        result = read_lines(&reader, text, bytes);
    if (!result && hosts->count == 0)
        result = zero_fail(error, ZERO_E_INVALID, "%.150s: there is no host in it", path);
    if (result)
        run_hosts_free(hosts);
    return result;
}

static zero_result read_whole(char *text, size_t *used, const char *path, struct base_error *error)
{
    int fd = -1;
    ssize_t count = 1;
    zero_result result = base_open(&fd, path, O_RDONLY, 0, error);
    while (!result && count && *used <= MOST_FILE_BYTES) {
        count = read(fd, text + *used, MOST_FILE_BYTES + 1 - *used);
        if (count > 0)
            *used += (size_t)count;
        else if (count < 0 && errno != EINTR)
            result = zero_fail_errno(error, ZERO_E_IO, errno, "reading '%.150s'", path);
    }
    base_close(&fd, path, NULL);
    if (!result && *used > MOST_FILE_BYTES)
        result =
            zero_fail(error, ZERO_E_INVALID, "%.150s: more than %d bytes, this is no list of hosts",
                      path, MOST_FILE_BYTES);
    return result;
}

zero_result run_hosts_read(struct run_hosts *hosts, const char *path, struct base_error *error)
{
    size_t used = 0;
    char *text = base_calloc(MOST_FILE_BYTES + 2, 1);
    *hosts = (struct run_hosts){.list = NULL};
    if (!text)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for '%.150s'", path);
    zero_result result = read_whole(text, &used, path, error);
    if (!result)
        text[used] = '\0';
    if (!result)
        result = run_hosts_parse_file(hosts, text, used, path, error);
    base_free(text);
    return result;
}
