#include "tools/zero-ckpt/tool.h"

#include "base/arena.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ------------------------------------------------------------------ short texts */

struct tool_text tool_size(uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    struct tool_text out;
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1000 && unit < 4) {
        value /= 1024;
        unit++;
    }
    const int digits = unit == 0 || value >= 99.95 ? 0 : 1;
    snprintf(out.text, sizeof out.text, "%.*f%s", digits, value, units[unit]);
    return out;
}

struct tool_text tool_age(const char *created)
{
    struct tool_text out = {"-"};
    struct tm utc = {0};
    const char *end = strptime(created, "%Y-%m-%dT%H:%M:%SZ", &utc);
    const long long age = end && !*end ? (long long)time(NULL) - (long long)timegm(&utc) : -1;
    if (age < 0)
        return out;
    if (age < 120)
        snprintf(out.text, sizeof out.text, "%llds", age);
    else if (age < 120 * 60)
        snprintf(out.text, sizeof out.text, "%lldm", age / 60);
    else if (age < 48 * 3600)
        snprintf(out.text, sizeof out.text, "%lldh", age / 3600);
    else
        snprintf(out.text, sizeof out.text, "%lldd", age / 86400);
    return out;
}

struct tool_text tool_ratio(uint64_t plain, uint64_t stored)
{
    struct tool_text out = {"-"};
    if (plain && stored)
        snprintf(out.text, sizeof out.text, "%.2f", (double)plain / (double)stored);
    return out;
}

struct tool_text tool_hex(const uint8_t *bytes, size_t count)
{
    struct tool_text out;
    for (size_t i = 0; i < count; i++)
        snprintf(out.text + 2 * i, 3, "%02x", bytes[i]);
    return out;
}

struct tool_text tool_sum(struct base_hash128 sum)
{
    uint8_t bytes[16];
    base_hash128_bytes(sum, bytes);
    return tool_hex(bytes, sizeof bytes);
}

const char *tool_dtype(enum ckpt_dtype dtype)
{
    static const char *const names[] = {"f32", "bf16", "f16", "default"};
    return names[dtype];
}

size_t tool_dtype_bytes(enum ckpt_dtype dtype)
{
    return dtype == CKPT_F32 ? 4 : 2;
}

static char *format_list(const char *format, va_list list)
{
    va_list again;
    va_copy(again, list);
    const int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    char *text = length < 0 ? NULL : base_calloc((size_t)length + 1, 1);
    if (text)
        vsnprintf(text, (size_t)length + 1, format, list);
    return text;
}

char *tool_format(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    char *text = format_list(format, list);
    va_end(list);
    return text;
}

/* ------------------------------------------------------------------ tables */

struct tool_row {
    enum tool_color color;
    char *cells;
};

bool tool_colors(const struct tool_options *options)
{
    return option_color(options->color, isatty(STDOUT_FILENO));
}

static bool reserve_row(struct tool_table *table)
{
    if (table->count < table->room)
        return true;
    const size_t room = table->room ? 2 * table->room : 16;
    struct tool_row *rows = base_calloc(room, sizeof *rows);
    if (!rows)
        return false;
    if (table->count)
        memcpy(rows, table->rows, table->count * sizeof *rows);
    base_free(table->rows);
    table->rows = rows;
    table->room = room;
    return true;
}

// Ends a cell at each of the first tabs; what else could move a terminal's cursor is harmless then.
static void split(char *cells, int columns)
{
    for (char *at = cells; *at; at++) {
        const unsigned char byte = (unsigned char)*at;
        if (byte == '\t' && columns > 1) {
            columns--;
            *at = '\n';
        } else if (byte < ' ' || byte == 0x7f)
            *at = '?';
        else if (byte == 0xc2 && (unsigned char)at[1] >= 0x80 && (unsigned char)at[1] < 0xa0)
            at[0] = at[1] = '?';
    }
}

void tool_table_add(struct tool_table *table, enum tool_color color, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    char *cells = format_list(format, list);
    va_end(list);
    if (!cells || !reserve_row(table)) {
        base_free(cells);
        table->failed = true;
        return;
    }
    split(cells, table->columns);
    table->rows[table->count++] = (struct tool_row){color, cells};
}

enum { MOST_COLUMNS = 16 };

// Characters of the first `bytes` bytes of UTF-8.
static int width_of(const char *text, size_t bytes)
{
    int width = 0;
    for (size_t i = 0; i < bytes; i++)
        width += ((unsigned char)text[i] & 0xc0) != 0x80;
    return width;
}

static void print_row(const struct tool_table *table, const struct tool_row *row, const int *widths,
                      const bool *right)
{
    const char *cell = row->cells;
    for (int c = 0; c < table->columns; c++) {
        const size_t bytes = strcspn(cell, "\n");
        const char *text = row->color == TOOL_BOLD && *cell == '>' ? cell + 1 : cell;
        const size_t shown = bytes - (size_t)(text - cell);
        const int pad = widths[c] - width_of(text, shown);
        const bool last = c + 1 == table->columns;
        if (right[c])
            printf("%*s", pad, "");
        fwrite(text, 1, shown, stdout);
        if (!right[c] && !last)
            printf("%*s", pad, "");
        if (!last)
            fputs("  ", stdout);
        cell += bytes + (cell[bytes] != '\0');
    }
}

static void measure(const struct tool_table *table, int *widths, bool *right)
{
    for (size_t i = 0; i < table->count; i++) {
        const char *cell = table->rows[i].cells;
        for (int c = 0; c < table->columns; c++) {
            const size_t bytes = strcspn(cell, "\n");
            const bool mark = table->rows[i].color == TOOL_BOLD && *cell == '>';
            const int width = width_of(cell, bytes) - mark;
            right[c] |= mark;
            if (width > widths[c])
                widths[c] = width;
            cell += bytes + (cell[bytes] != '\0');
        }
    }
}

zero_result tool_table_print(struct tool_table *table, const struct tool_options *options,
                             struct base_error *error)
{
    static const char *const codes[] = {"", "\033[1m", "\033[31m", "\033[32m", "\033[33m"};
    const bool colors = tool_colors(options);
    int widths[MOST_COLUMNS] = {0};
    bool right[MOST_COLUMNS] = {false};
    measure(table, widths, right);
    for (size_t i = 0; i < table->count; i++) {
        const struct tool_row *row = &table->rows[i];
        if (!table->failed) {
            fputs(colors ? codes[row->color] : "", stdout);
            print_row(table, row, widths, right);
            fputs(colors && row->color != TOOL_PLAIN ? "\033[m\n" : "\n", stdout);
        }
    }
    const bool failed = table->failed;
    tool_table_free(table);
    return failed ? zero_fail(error, ZERO_E_NOMEM, "no memory for what is to be printed") : ZERO_OK;
}

void tool_table_free(struct tool_table *table)
{
    for (size_t i = 0; i < table->count; i++)
        base_free(table->rows[i].cells);
    base_free(table->rows);
    *table = (struct tool_table){.columns = table->columns};
}

/* ------------------------------------------------------------------ JSON */

zero_result tool_json_print(json_t *root, struct base_error *error)
{
    if (!root)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for what is to be printed");
    const int failed = json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    json_decref(root);
    if (failed)
        return zero_fail(error, ZERO_E_IO, "cannot write to standard output");
    fputc('\n', stdout);
    return ZERO_OK;
}

json_t *tool_json_set(json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) == 0)
        return object;
    json_decref(object);
    return NULL;
}

json_t *tool_json_append(json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) == 0)
        return array;
    json_decref(array);
    return NULL;
}

json_t *tool_json_text(const char *text)
{
    json_t *string = json_string(text);
    if (string)
        return string;
    // No UTF-8: a path may be anything.
    char *ascii = base_strdup(text);
    for (char *at = ascii; at && *at; at++)
        if ((unsigned char)*at >= 0x80)
            *at = '?';
    string = ascii ? json_string(ascii) : NULL;
    base_free(ascii);
    return string;
}

json_t *tool_json_root(const char *command)
{
    return json_pack("{s:s+, s:i}", "schema", "zero-ckpt-", command, "version", 1);
}

json_t *tool_json_number(uint64_t number)
{
    return number > CKPT_MAX_NUMBER ? json_null() : json_integer((json_int_t)number);
}
