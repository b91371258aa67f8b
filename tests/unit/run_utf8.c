// Texts that zero-run cuts, or that are no UTF-8.
#include "tools/zero-run/rank_output.h"
#include "tools/zero-run/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

// "\303\274" and "\342\202\254" are characters of two bytes and three.
static void cut_texts_have_whole_characters(void **state)
{
    (void)state;
    static struct run_tail tail;
    char line[RUN_TAIL_BYTES + 3];
    memset(line, 'x', sizeof line);
    memcpy(line + RUN_TAIL_BYTES - 1, "\303\274\n", 3);
    run_tail_add(&tail, 0, line, RUN_TAIL_BYTES + 2, 0, 1);
    assert_int_equal(run_tail_line(&tail, 0)->used, RUN_TAIL_BYTES - 1);
    static const struct {
        const char *text, *clean;
    } cases[] = {
        {"", ""},
        {"a\303\274\342\202\254\360\237\230\200", "a\303\274\342\202\254\360\237\230\200"},
        {"a\303", "a"},
        {"a\342\202", "a"},
        {"a\360\237\230", "a"},
        {"\303a", "?a"},
        {"a\200\200\200\200", "a????"},
        {"\300\257\355\240\200\364\220\200\200\377", "??????????"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[32];
        strcpy(text, cases[i].text);
        run_utf8_clean(text);
        assert_string_equal(text, cases[i].clean);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cut_texts_have_whole_characters)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
