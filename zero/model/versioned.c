#include "zero/model/versioned.h"

#include <string.h>

zero_result eng_struct_copy(void *out, size_t known, const void *in, const char *what,
                            struct base_error *error)
{
    uint32_t given = 0;
    memset(out, 0, known);
    memcpy(&given, in, sizeof given);
    if (given < sizeof given || given > 65536)
        return zero_fail(error, ZERO_E_INVALID,
                         "%s.struct_size is %u: set it to sizeof the struct (%zu)", what, given,
                         known);
    const unsigned char *bytes = in;
    for (size_t i = known; i < given; i++)
        if (bytes[i])
            return zero_fail(error, ZERO_E_INVALID,
                             "%s has a value at byte %zu that this library (%zu bytes) does not "
                             "know",
                             what, i, known);
    memcpy(out, in, given < known ? given : known);
    return ZERO_OK;
}

void eng_struct_give(void *out, const void *full, size_t known)
{
    uint32_t given = 0;
    memcpy(&given, out, sizeof given);
    memcpy(out, full, given < known ? given : known);
    if (given > known)
        memset((unsigned char *)out + known, 0, given - known);
}
