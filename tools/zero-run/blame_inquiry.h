/**
 * tools/zero-run/blame_inquiry.h: what the ranks' flight recorders say of each communicator, and
 * how blame.c puts records into words.
 */
#ifndef TOOLS_ZERO_RUN_BLAME_INQUIRY_H
#define TOOLS_ZERO_RUN_BLAME_INQUIRY_H

#include "tools/zero-run/segment_view.h"

enum { BLAME_MOST_COMMS = 64 };

/** Where a rank is in a communicator. Records by their number in the rank's area, 0: none. */
struct blame_place {
    bool member;
    uint64_t begun;   /**< ordered operations so far */
    uint64_t newest;  /**< record of the newest of them */
    uint64_t open;    /**< record of the oldest one that is under way, */
    uint64_t open_at; /**< and its sequence */
    uint64_t message; /**< record of the oldest message under way */
};

struct blame_comm {
    char name[sizeof((struct control_record *)0)->comm];
    uint32_t ranks, first;
    struct blame_place *places; /**< of every rank of the job */
};

/** What has been found out so far, and where it goes. */
struct blame_inquiry {
    const struct control_segment *segment;
    int world;
    uint64_t now_ns;
    struct blame_comm comms[BLAME_MOST_COMMS];
    int count;
    run_line_fn line;
    void *user;
};

/** Reads all recorders into inquiry->comms, whose places the caller frees. */
void blame_read_recorders(struct blame_inquiry *inquiry);

/** Reads one record; false: there is none, or it is overwritten. */
bool blame_read_record(const struct blame_inquiry *inquiry, int rank, uint64_t number,
                       struct control_record *record);

/** Nanoseconds from then to now, 0 if it is later. */
uint64_t blame_since(const struct blame_inquiry *inquiry, uint64_t then_ns);

/** Adds the ranks for which `chosen` is set, as "rank 3" or "ranks 0-2,5". */
void blame_add_ranks(struct base_text *text, const bool *chosen, int world);

void blame_add_duration(struct base_text *text, uint64_t ns);

/** Adds ", unit 17 (h.4)". */
void blame_add_unit(struct base_text *text, const struct control_record *record);

/** Adds ", in context "main"", where there are several; a group has fewer ranks than the job. */
void blame_add_comm(struct base_text *text, const struct blame_inquiry *inquiry, const char *name,
                    uint32_t ranks);

/** Adds "reduce-scatter #1233, unit 16 (h.3)". */
void blame_add_operation(struct base_text *text, const struct blame_inquiry *inquiry,
                         const struct control_record *record);

#endif
