/**
 * offload/pages.h: the memory that is read into and written from, in pages as large as can be had.
 *
 * On virtual disks a transfer from pages of 4 KiB takes three times as long as one from pages of
 * 2 MiB, because each page is a descriptor in a short ring. So this memory is made of huge pages:
 * reserved ones (hugetlbfs), else transparent ones, else plain ones; which it was is looked up, not
 * believed. All *local*.
 *
 * Points of base/fault.h: pages.reserved, pages.transparent (each attempt, never an error),
 * pages.map (ENOMEM).
 */
#ifndef OFFLOAD_PAGES_H
#define OFFLOAD_PAGES_H

#include "base/error.h"

enum off_page_kind { OFF_PAGES_RESERVED, OFF_PAGES_TRANSPARENT, OFF_PAGES_PLAIN };

struct off_pages {
    void *memory; /**< a multiple of 2 MiB; zeroed, every page touched */
    size_t bytes; /**< a multiple of 2 MiB */
    enum off_page_kind kind;
    size_t huge_bytes; /**< of them in huge pages */
};

/** At least `bytes` bytes, near the calling thread. ZERO_E_NOMEM: all of *pages is zero. */
zero_result off_pages_create(struct off_pages *pages, size_t bytes, struct base_error *error);

/** Bytes that all processes of this user together may lock, and so register with io_uring;
 * UINT64_MAX: as many as there are. *Local.* */
uint64_t off_lock_limit(void);

/** "2 MiB pages (reserved)" and the like. */
const char *off_pages_text(enum off_page_kind kind);

/** Gives it back, and makes it all zero; accepts such. */
void off_pages_destroy(struct off_pages *pages);

#endif
