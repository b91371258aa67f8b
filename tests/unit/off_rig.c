#include "tests/unit/off_rig.h"

#include "base/fault.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct temporary temporary;
struct base_error failure;
struct tiles tiles;

const struct tiles_config tiles_ways[TILES_WAYS] = {
    {.helpers = 0},
    {.helpers = 1, .encode = true},
    {.helpers = 0, .encode = true},
    {.helpers = 2, .encode = true},
    {.helpers = 2, .encode = true, .fill = true},
    {.helpers = 1, .fill = true},
    {.fill = true},
};

int rig_set_up(void **state)
{
    (void)state;
    base_error_clear(&failure);
    return temporary_make(&temporary) ? 0 : -1;
}

int rig_tear_down(void **state)
{
    (void)state;
    base_fault_set(NULL, NULL);
    tiles_close(&tiles, true);
    temporary_remove(&temporary);
    return 0;
}

void ok(zero_result result)
{
    if (result)
        fail_msg("%s: %s", base_result_text(result), failure.message);
}

void open_tiles(const struct tiles_config *handled, const struct off_io_engine *engine,
                size_t buffers)
{
    struct tiles_config config = *handled;
    config.path = temporary_path(&temporary, "slots");
    config.engine = engine;
    config.buffers = buffers;
    config.durable = buffers % 2;
    base_error_clear(&failure);
    ok(tiles_open(&tiles, &config, &failure));
}

void steps(int count)
{
    for (int i = 0; i < count; i++)
        ok(tiles_step(&tiles, &failure));
}
