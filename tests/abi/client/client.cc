// The same from C++: the headers compile, the names link.
#include <zero/collectives.h>
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

    zero_comm_config how = zero_comm_config_default();
    how.world = 1;
    zero_comm *all = nullptr;
    zero_request request = zero_request();
    int32_t value = 3;
    if (zero_comm_open(&all, &how) != ZERO_OK || zero_comm_barrier(all) != ZERO_OK ||
        zero_comm_all_reduce_start(all, &value, &value, 1, ZERO_I32, ZERO_MAX, &request) !=
            ZERO_OK ||
        zero_comm_wait(all, &request) != ZERO_OK || value != 3) {
        std::fprintf(stderr, "%s\n", zero_comm_error(all));
        return 1;
    }
    zero_comm_close(all);
    std::printf("%s\n", zero_version());
    return 0;
}
