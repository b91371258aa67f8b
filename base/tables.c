#include "base/tables.h"

#include "base/arena.h"

#include <assert.h>

void *base_tables_add(struct base_tables *tables, size_t count, size_t size)
{
    assert(tables->made < BASE_MOST_TABLES);
    tables->bytes += count * size;
    if (tables->counts)
        return NULL;
    void *table = base_calloc(count, size);
    tables->failed = tables->failed || !table;
    tables->table[tables->made++] = table;
    return table;
}

void base_tables_free(struct base_tables *tables)
{
    while (tables->made > 0)
        base_free(tables->table[--tables->made]);
    *tables = (struct base_tables){0};
}
