#include "base/device/cuda_driver.h"

#include "base/library.h"

#include <dlfcn.h>

#define LIBRARY "libcuda.so.1"

static struct base_cuda_driver loaded;

const struct base_cuda_driver *base_cuda_loaded(void)
{
    return &loaded;
}

// <device_cuda.h> gives functions the names of their newest versions: as text, those of the
// symbols.
#define SYMBOL(function) #function

static zero_result find_functions(void *library, struct base_cuda_driver *driver,
                                  struct base_error *error)
{
    const struct base_symbol functions[] = {
#define FUNCTION(field, function) {SYMBOL(function), &driver->field},
        BASE_CUDA_FUNCTIONS(FUNCTION)
#undef FUNCTION
    };
    const char *missing =
        base_library_find(library, functions, sizeof functions / sizeof *functions);
    if (missing)
        return zero_fail(error, ZERO_E_UNSUPPORTED,
                         "the GPU driver, %s, has no %s: it is older than CUDA %d.%d needs",
                         LIBRARY, missing, CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
    return ZERO_OK;
}

static zero_result load(struct base_error *error)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) // its message has the library's name
        return zero_fail(error, ZERO_E_UNSUPPORTED, "no GPU driver here: %s", dlerror());
    struct base_cuda_driver driver;
    struct base_error inner = {.result = ZERO_OK};
    int count = 0;
    zero_result result = find_functions(library, &driver, error);
    if (result) {
        dlclose(library);
        return result;
    }
    loaded = driver; // whose words a failure has
    CUresult status = base_cuda_loaded()->init(0);
    if (status == CUDA_SUCCESS)
        status = base_cuda_loaded()->device_count(&count);
    if (status != CUDA_SUCCESS && status != CUDA_ERROR_NO_DEVICE)
        base_cuda_failed(status, "cuInit", "", &inner);
    if (count == 0)
        return zero_fail(error, ZERO_E_UNSUPPORTED, "the GPU driver finds no GPU%s%s",
                         inner.result ? ": " : "", inner.message);
    return ZERO_OK;
}

zero_result base_cuda_driver(const struct base_cuda_driver **driver, struct base_error *error)
{
    static struct base_load once = BASE_LOAD_ONCE;
    const zero_result result = base_load_once(&once, load, error);
    *driver = result ? NULL : &loaded;
    return result;
}

zero_result base_cuda_failed(CUresult status, const char *call, const char *what,
                             struct base_error *error)
{
    const char *name = NULL, *text = NULL;
    loaded.error_name(status, &name);
    loaded.error_text(status, &text);
    return zero_fail(error, status == CUDA_ERROR_OUT_OF_MEMORY ? ZERO_E_NOMEM : ZERO_E_DEVICE,
                     "%s%s%s: %s (%s, %d)", call, *what ? ", " : "", what, text ? text : "unknown",
                     name ? name : "unknown", (int)status);
}
