/**
 * The plan: bytes a rank by purpose, and where every configuration value came from, as text.
 */
#ifndef ZERO_PLAN_H
#define ZERO_PLAN_H

#include "zero/config.h"
#include "zero/layout.h"
#include "zero/placement.h"

#define ENG_PLAN_ROWS 12

struct eng_plan_row {
    const char *purpose;
    const char *tier; /**< "host" */
    size_t bytes;
};

struct eng_plan {
    struct eng_plan_row rows[ENG_PLAN_ROWS];
    int row_count;
    size_t total;
    char *text;
};

/** What only the transport knows. All zero before there is one. */
struct eng_plan_host {
    const char *private_path; /**< coll_private_path() */
    size_t huge_bytes;        /**< of this rank's memory that peers read: in huge pages */
};

/** Adds up a placement of this configuration with `moments` moment arrays, the bytes of the
 * engine's tables and those of the transport. Sets rows and total. */
void eng_plan_count(struct eng_plan *plan, const struct eng_config *config,
                    const struct eng_placement *placement, int moments, size_t tables,
                    size_t transport);

/** Makes the text, which replaces one made before; `kernels` is the table in use. ZERO_E_NOMEM. */
zero_result eng_plan_write(struct eng_plan *plan, const struct eng_config *config,
                           const struct eng_kernels *kernels, const struct eng_model *model,
                           const struct eng_layout *layout, const struct eng_placement *placement,
                           const struct eng_plan_host *host, struct base_error *error);

void eng_plan_free(struct eng_plan *plan);

#endif
