#include "base/hash/hash_functions.h"

const struct base_hash_long base_hash_long_avx2 = {"avx2", hash64, hash128};
