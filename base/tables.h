/**
 * base/tables.h: tables that one owner makes, counts and frees together. A plan calls the function
 * that lays them out, with `counts` set, to learn their bytes.
 */
#ifndef BASE_TABLES_H
#define BASE_TABLES_H

#include <stdbool.h>
#include <stddef.h>

enum { BASE_MOST_TABLES = 12 };

/** All zero is no tables. Used by one thread at a time. */
struct base_tables {
    bool counts;  /**< count bytes, and make none */
    bool failed;  /**< there was no memory for one */
    size_t bytes; /**< of all of them */
    size_t made;
    void *table[BASE_MOST_TABLES];
};

/** Adds a table of base_calloc(). NULL: it is only counted, or `failed` is set. *Local.* */
void *base_tables_add(struct base_tables *tables, size_t count, size_t size);

/** Frees those that were made; none are left. *Local.* */
void base_tables_free(struct base_tables *tables);

#endif
