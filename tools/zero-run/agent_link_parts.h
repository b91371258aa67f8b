/**
 * tools/zero-run/agent_link_parts.h: what the files of a link share.
 */
#ifndef TOOLS_ZERO_RUN_AGENT_LINK_PARTS_H
#define TOOLS_ZERO_RUN_AGENT_LINK_PARTS_H

#include "tools/zero-run/agent_link.h"

/* ---- agent_link_bytes.c */

/** Takes bytes from the front away. */
void run_bytes_drop(struct run_bytes *bytes, size_t count);
void run_bytes_free(struct run_bytes *bytes);

/** Ends the link; the first reason counts. */
void run_link_fail(struct run_link *link, enum run_link_end end, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** Adds bytes to those that are to be sent; whatever fails ends the link. */
void run_link_add(struct run_link *link, const void *bytes, size_t count);
/** Writes what fits without blocking. */
void run_link_write(struct run_link *link);
/** Reads what is there, up to a bound. */
void run_link_read(struct run_link *link);

/* ---- agent_link_meeting.c */

/** Draws the nonce and sends the hello. ZERO_E_IO, ZERO_E_UNSUPPORTED. */
zero_result run_link_greet(struct run_link *link, struct base_error *error);
/** Goes on with the meeting as far as what has been received allows. */
void run_link_meet(struct run_link *link);

#endif
