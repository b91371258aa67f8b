# What zero is built from. The library needs xxHash and jansson; the GPT-2 example needs OpenBLAS
# and OpenMP, the tests cmocka: what is missing of these is left out, and the summary says so.

find_package(PkgConfig REQUIRED)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(OpenMP COMPONENTS C)

pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash>=0.8.0)
pkg_check_modules(jansson REQUIRED IMPORTED_TARGET jansson>=2.11)
pkg_check_modules(openblas IMPORTED_TARGET openblas)
pkg_check_modules(cmocka IMPORTED_TARGET cmocka>=1.1.5)

function(zero_summary_line name found detail)
  if(found)
    message(STATUS "  ${name}: ${detail}")
  else()
    message(STATUS "  ${name}: not found")
  endif()
endfunction()

function(zero_print_summary)
  message(STATUS "zero ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, "
                 "${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}")
  zero_summary_line("xxhash   (library)       " "${xxhash_FOUND}" "${xxhash_VERSION}")
  zero_summary_line("jansson  (library)       " "${jansson_FOUND}" "${jansson_VERSION}")
  zero_summary_line("openblas (examples/gpt2) " "${openblas_FOUND}" "${openblas_VERSION}")
  zero_summary_line("OpenMP   (examples/gpt2) " "${OpenMP_C_FOUND}" "${OpenMP_C_VERSION}")
  zero_summary_line("cmocka   (tests)         " "${cmocka_FOUND}" "${cmocka_VERSION}")
endfunction()
