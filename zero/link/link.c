// Which link a context has.

#include "zero/link/links.h"

#include <assert.h>

void eng_link_choose(zero_ctx *z)
{
    z->link = z->config.resident ? &eng_link_gpu : &eng_link_host;
    assert(z->link->size == sizeof *z->link);
}
