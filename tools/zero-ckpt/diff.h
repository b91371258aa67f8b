/**
 * The command diff: what is compared, by diff.c; byte by byte what the program attached, by
 * diff_blobs.c, and element by element by diff_values.c.
 */
#ifndef TOOLS_ZERO_CKPT_DIFF_H
#define TOOLS_ZERO_CKPT_DIFF_H

#include "tools/zero-ckpt/tool.h"

/** What is under way: A and B. */
struct comparison {
    const struct tool_options *options;
    struct tool_place places[2];
    struct ckpt_loader *loaders[2];
    const struct ckpt_manifest *manifests[2];
    size_t differences; /**< between the manifests, which are in one of these */
    struct tool_table table;
    json_t *array;
    struct tool_table values; /**< a row for each field of the tensors that differ */
    json_t *values_array;
    struct tool_progress progress;
};

/** Reads blobs that both have, those of ranks if both have as many, and enters in which bytes they
 * differ. */
zero_result tool_diff_blobs(struct comparison *comparison, struct base_error *error);

/** Reads those tensors whose sums differ, and enters in what their elements do. */
zero_result tool_diff_values(struct comparison *comparison, struct base_error *error);

#endif
