// The options of gpt2: one table, from which the command line is read and the help is printed.
#ifndef GPT2_OPTION_TABLE_H
#define GPT2_OPTION_TABLE_H

#include "gpt2_options.h"

#include <stddef.h>

enum kind { INTEGER, SEED, NUMBER, BYTES, CHOICE, TEXT, SWITCH, PATHS };

// One option. `low` and `high` bound INTEGER and NUMBER; choices are separated by bars.
struct spec {
    const char *name;
    const char *argument;
    enum kind kind;
    size_t offset;
    double low, high;
    const char *fallback; // the default; NULL: none, or said in `help`
    const char *help;
};

#define AT(field) offsetof(struct options, field)
#define BELOW_ONE 0.999999999999

extern const struct spec specs[];
extern const int spec_count;

#endif
