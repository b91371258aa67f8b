// The same from C++: the headers compile, the names link.
#include <zero/random.h>
#include <zero/zero.h>

#include <cstdio>

int main()
{
    zero_config config = zero_config_default();
    zero_ctx *z = nullptr;
    if (zero_open(&z, &config) != ZERO_OK || zero_rank(z) != 0 || zero_world(z) != 1) {
        std::fprintf(stderr, "%s\n", zero_last_error(nullptr));
        return 1;
    }
    zero_close(z);
    std::printf("%s\n", zero_version());
    return 0;
}
