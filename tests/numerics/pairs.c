#include "tests/numerics/pairs.h"

#include <string.h>

// Counts up; false after the last one.
static bool count_up(const struct pairs *pairs, int *choice)
{
    for (int d = pairs->dims - 1; d >= 0; d--) {
        if (++choice[d] < pairs->sizes[d])
            return true;
        choice[d] = 0;
    }
    return false;
}

void pairs_begin(const struct pairs *pairs, int *choice)
{
    memset(choice, 0, PAIRS_DIMS * sizeof *choice);
    choice[pairs->dims - 1] = -1;
}

bool pairs_each(const struct pairs *pairs, int *choice)
{
    while (count_up(pairs, choice))
        if (pairs->possible(choice))
            return true;
    return false;
}

static int meetings(const struct pairs *pairs, const int *choice)
{
    int count = 0;
    for (int a = 0; a < pairs->dims; a++)
        for (int b = a + 1; b < pairs->dims; b++)
            count += !pairs->met[a][choice[a]][b][choice[b]];
    return count;
}

bool pairs_next(struct pairs *pairs, int *choice)
{
    int candidate[PAIRS_DIMS] = {0}, most = 0;
    do {
        const int count = pairs->possible(candidate) ? meetings(pairs, candidate) : 0;
        if (count > most) {
            most = count;
            memcpy(choice, candidate, sizeof candidate);
        }
    } while (count_up(pairs, candidate));
    for (int a = 0; a < pairs->dims && most > 0; a++)
        for (int b = a + 1; b < pairs->dims; b++)
            pairs->met[a][choice[a]][b][choice[b]] = true;
    return most > 0;
}
