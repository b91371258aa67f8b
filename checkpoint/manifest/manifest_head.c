// The head of a manifest: step, sequence and run, read without parsing the tables. They are lines
// of their own, in a fixed order.

#include "checkpoint/manifest/manifest_parts.h"

#include <string.h>

// What of a text is still to be read.
struct rest {
    const char *at, *end;
};

// Goes on behind `begin`; false: something else is there.
static bool skip(struct rest *rest, const char *begin)
{
    const size_t length = strlen(begin);
    if ((size_t)(rest->end - rest->at) < length || memcmp(rest->at, begin, length) != 0)
        return false;
    rest->at += length;
    return true;
}

// Goes on behind the line that begins so.
static bool skip_line(struct rest *rest, const char *begin)
{
    if (!skip(rest, begin))
        return false;
    const char *end = memchr(rest->at, '\n', (size_t)(rest->end - rest->at));
    rest->at = end ? end + 1 : rest->end;
    return end;
}

// Reads a line with a number, and goes on behind it.
static bool number_line(struct rest *rest, const char *begin, uint64_t *value)
{
    if (!skip(rest, begin))
        return false;
    const char *const first = rest->at;
    *value = 0;
    for (; rest->at < rest->end && *rest->at >= '0' && *rest->at <= '9'; rest->at++)
        if (*value <= CKPT_MAX_NUMBER)
            *value = 10 * *value + (uint64_t)(*rest->at - '0');
    const bool plain = rest->at - first == 1 || (rest->at > first && *first != '0');
    return plain && *value <= CKPT_MAX_NUMBER && skip(rest, ",\n");
}

// Reads the line of the run, which follows that of the step.
static bool run_line(struct rest *rest, struct ckpt_run_id *run)
{
    if (!skip(rest, "\"run\": \"") || rest->end - rest->at < 32 ||
        !ckpt_unhex(rest->at, run->bytes, sizeof run->bytes))
        return false;
    rest->at += 32;
    return skip(rest, "\",\n");
}

// In these lines no string can look like a line: a line feed in a string is written as \n.
static bool read_head(struct ckpt_manifest_head *head, const char *text, size_t length)
{
    struct rest rest = {text, text + length};
    uint64_t format;
    return skip(&rest, "{\n") && number_line(&rest, "\"format\": ", &format) &&
           format == CKPT_FORMAT && skip_line(&rest, "\"library\": ") &&
           skip_line(&rest, "\"created\": ") && skip_line(&rest, "\"id\": ") &&
           skip_line(&rest, "\"job\": ") && number_line(&rest, "\"sequence\": ", &head->sequence) &&
           head->sequence > 0 && number_line(&rest, "\"step\": ", &head->step) &&
           run_line(&rest, &head->run);
}

zero_result ckpt_manifest_parse_head(struct ckpt_manifest_head *head, const char *text,
                                     size_t length, const char *path, struct base_error *error)
{
    zero_result result = ckpt_check_last_line(text, length, path, error);
    if (result || read_head(head, text, length))
        return result;
    struct ckpt_manifest manifest;
    result = ckpt_manifest_parse(&manifest, text, length, path, error);
    *head = (struct ckpt_manifest_head){manifest.state.step, manifest.sequence, manifest.run};
    ckpt_manifest_free(&manifest);
    return result;
}
