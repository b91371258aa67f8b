#include "zero/zero.h"

#define STRING(x) #x
#define VERSION_TEXT(major, minor, patch) STRING(major) "." STRING(minor) "." STRING(patch)

const char *zero_version(void)
{
    return VERSION_TEXT(ZERO_VERSION_MAJOR, ZERO_VERSION_MINOR, ZERO_VERSION_PATCH);
}
