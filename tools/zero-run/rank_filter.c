// Lists of ranks such as "0,4-7", read and written.

#include "tools/zero-run/run_options.h"

#include <stdlib.h>
#include <string.h>

// A number of a rank at *text, which moves behind it; -1: there is none below `ranks`.
static int take_rank(const char **text, int ranks)
{
    char *end;
    if (**text < '0' || **text > '9')
        return -1;
    const long rank = strtol(*text, &end, 10); // what is too large comes back as LONG_MAX
    *text = end;
    return rank < ranks ? (int)rank : -1;
}

zero_result run_only_parse(const char *list, int ranks, unsigned char *shown,
                           struct base_error *error)
{
    const char *at = list;
    for (;; at++) {
        const int first = take_rank(&at, ranks);
        int last = first;
        if (*at == '-') {
            at++;
            last = take_rank(&at, ranks);
        }
        if (first < 0 || last < first || (*at && *at != ','))
            return zero_fail(error, ZERO_E_INVALID,
                             "--only takes ranks from 0 to %d, such as 0 or 0,4-7, not '%.60s'",
                             ranks - 1, list);
        memset(shown + first, 1, (size_t)(last - first) + 1);
        if (!*at)
            return ZERO_OK;
    }
}

void run_only_show(struct base_text *text, const unsigned char *shown, int ranks, char pair)
{
    const char *separator = "";
    for (int rank = 0, last; rank < ranks; rank = last + 1) {
        last = rank;
        if (!shown[rank])
            continue;
        while (last + 1 < ranks && shown[last + 1])
            last++;
        base_text_add(text, "%s%d", separator, rank);
        if (last > rank)
            base_text_add(text, "%c%d", last > rank + 1 ? '-' : pair, last);
        separator = ",";
    }
}
