// Which link a context has.

#include "zero/link/links.h"

void eng_link_choose(zero_ctx *z)
{
    z->link = z->config.resident ? &eng_link_gpu : &eng_link_host;
}
