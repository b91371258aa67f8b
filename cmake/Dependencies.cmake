# What zero is built from. The library needs xxHash, jansson, zstd and liburing, and for GPUs the
# CUDA toolkit to be built with, for more than one of them NCCL's header, but nothing of CUDA to run
# without one; the program zero-run needs hwloc too; the GPT-2 example needs OpenBLAS, the tests
# need cmocka.

find_package(PkgConfig REQUIRED)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash>=0.8.0)
pkg_check_modules(jansson REQUIRED IMPORTED_TARGET jansson>=2.11)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd>=1.5.1)
pkg_check_modules(uring REQUIRED IMPORTED_TARGET liburing>=2.3)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc>=2.1)

# zero_find_for(<option> <result> <prefix> <module>): looks for the module that something optional
# needs, and says in <result> whether that is built. What an earlier configuration has found is in
# the cache, and does not switch anything on.
function(zero_find_for option result prefix module)
  if(${option} STREQUAL "AUTO")
    pkg_check_modules(${prefix} IMPORTED_TARGET GLOBAL ${module})
  elseif(${option})
    pkg_check_modules(${prefix} REQUIRED IMPORTED_TARGET GLOBAL ${module})
  endif()
  if(${option} AND ${prefix}_FOUND)
    set(${result} ON PARENT_SCOPE)
  else()
    set(${result} OFF PARENT_SCOPE)
  endif()
  set(${prefix}_VERSION ${${prefix}_VERSION} PARENT_SCOPE)
endfunction()

zero_find_for(ZERO_GPT2 ZERO_BUILD_GPT2 openblas openblas)
zero_find_for(ZERO_TESTS ZERO_BUILD_TESTS cmocka cmocka>=1.1.5)

# The toolkit's compiler and headers. It is found, never installed.
if(ZERO_CUDA STREQUAL "AUTO")
  find_package(CUDAToolkit 12.0 QUIET)
elseif(ZERO_CUDA)
  find_package(CUDAToolkit 12.0 REQUIRED)
endif()
if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE)
  set(ZERO_BUILD_CUDA ON)
  add_compile_definitions(ZERO_WITH_CUDA)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  mark_as_advanced(NCCL_INCLUDE_DIR)
endif()
if(ZERO_BUILD_CUDA AND NCCL_INCLUDE_DIR)
  file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h nccl_version REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9;]" "" nccl_version "${nccl_version}")
  string(REPLACE ";" "." NCCL_VERSION "${nccl_version}")
  if(NCCL_VERSION VERSION_GREATER_EQUAL 2.28)
    set(ZERO_BUILD_NCCL ON)
  endif()
endif()

function(zero_summary_line what built version)
  if(built)
    message(STATUS "  ${what} ${version}")
  else()
    message(STATUS "  ${what} not found or switched off; left out")
  endif()
endfunction()

function(zero_print_summary)
  message(STATUS "zero ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, "
                 "${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}")
  zero_summary_line("the library:    xxHash  " ON ${xxhash_VERSION})
  zero_summary_line("                jansson " ON ${jansson_VERSION})
  zero_summary_line("                zstd    " ON ${zstd_VERSION})
  zero_summary_line("                liburing" ON ${uring_VERSION})
  zero_summary_line("                CUDA    " "${ZERO_BUILD_CUDA}" "${CUDAToolkit_VERSION}")
  zero_summary_line("                NCCL    " "${ZERO_BUILD_NCCL}" "${NCCL_VERSION}")
  zero_summary_line("zero-run:       hwloc   " ON ${hwloc_VERSION})
  zero_summary_line("examples/gpt2:  OpenBLAS" "${ZERO_BUILD_GPT2}" "${openblas_VERSION}")
  zero_summary_line("tests:          cmocka  " "${ZERO_BUILD_TESTS}" "${cmocka_VERSION}")
endfunction()
