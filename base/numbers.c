#include "base/numbers.h"

#include "base/text.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

enum { MORE_BYTES = 48 }; // room for the word before the list, and for " and 4095 more" behind it

// Writes the run that is not yet in the text, if it fits.
static void write_run(struct base_numbers *numbers)
{
    assert(numbers->count > 0 && numbers->last >= numbers->first);
    char bytes[40] = "";
    struct base_text run = {bytes, sizeof bytes, 0};
    const size_t used = strlen(numbers->text);
    const int length = numbers->last - numbers->first + 1;
    base_text_add(&run, "%s %d", numbers->shown > 0 ? "," : "", numbers->first);
    if (length > 1)
        base_text_add(&run, "%s%d", length > 2 ? "-" : ", ", numbers->last);
    // Behind the first run that does not fit none is shown.
    if (numbers->shown + length != numbers->count ||
        used + run.used + MORE_BYTES > sizeof numbers->text)
        return;
    assert(used + run.used < sizeof numbers->text);
    memcpy(numbers->text + used, bytes, run.used + 1);
    numbers->shown = numbers->count;
}

void base_numbers_add(struct base_numbers *numbers, int number)
{
    assert(numbers->shown <= numbers->count);
    const bool goes_on = numbers->count > 0 && number == numbers->last + 1;
    if (numbers->count > 0 && !goes_on)
        write_run(numbers);
    if (!goes_on)
        numbers->first = number;
    numbers->last = number;
    numbers->count++;
}

const char *base_numbers_text(struct base_numbers *numbers, const char *one)
{
    char list[sizeof numbers->text];
    struct base_text text = {numbers->text, sizeof numbers->text, 0};
    if (numbers->count > 0)
        write_run(numbers);
    assert(numbers->shown >= 0 && numbers->shown <= numbers->count);
    memcpy(list, numbers->text, sizeof list);
    base_text_add(&text, "%s%s%s%s", numbers->count == 0 ? "no " : "", one,
                  numbers->count > 1 ? "s" : "", list);
    if (numbers->shown < numbers->count)
        base_text_add(&text, " and %d more", numbers->count - numbers->shown);
    return numbers->text;
}
