# Language, flags, and where things are built.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release or Debug" FORCE)
endif()

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)

add_compile_definitions(_GNU_SOURCE)
add_compile_options("$<$<CONFIG:Debug>:-fno-omit-frame-pointer>")
if(ZERO_SANITIZE) # whose reports name lines, and whose tests take long
  add_compile_options(-g1 -O2)
else()
  add_compile_options(-g "$<$<CONFIG:Debug>:-O1>")
endif()

# The same bits from every compiler and at every level of optimisation: no contraction of a * b + c
# but where the source says fma().
add_compile_options(-ffp-contract=off)

add_compile_options(-Wall -Wextra -Wconversion -Wshadow -Wvla
                    "$<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes;-Wmissing-prototypes>")
if(ZERO_WERROR)
  add_compile_options(-Werror)
endif()

if(ZERO_FAULT_POINTS)
  add_compile_definitions(ZERO_FAULT_POINTS)
endif()

# A comment or a header states what cannot happen; asserts look at it wherever tests run.
if(ZERO_ASSERTS)
  add_compile_options(-UNDEBUG) # after the -DNDEBUG of CMake's optimised builds
endif()

if(ZERO_SANITIZE)
  if(CMAKE_C_COMPILER_ID STREQUAL "GNU") # loses track of lengths in instrumented code
    add_compile_options(-Wno-format-truncation)
  endif()
  add_compile_options(-fsanitize=${ZERO_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${ZERO_SANITIZE})
  add_compile_definitions(ZERO_FEW_LOOPS) # sum_loop.h, which takes minutes otherwise
endif()

# Tests are some hundred programs with much of the library each: this linker needs a third of the
# time for them. It cannot read what GCC writes for optimisation at link time.
if(ZERO_TESTS AND NOT CMAKE_INTERPROCEDURAL_OPTIMIZATION AND NOT CMAKE_C_FLAGS MATCHES "-flto")
  find_program(ZERO_LLD ld.lld)
  mark_as_advanced(ZERO_LLD)
  if(ZERO_LLD)
    add_link_options(-fuse-ld=lld)
  endif()
endif()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  set(ZERO_X86_64 ON)
endif()
set(ZERO_AVX2_OPTIONS -mavx2 -mfma -mf16c)
set(ZERO_AVX512_OPTIONS -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma)
set(ZERO_AVX2_BMI2_OPTIONS ${ZERO_AVX2_OPTIONS} -mbmi2)

# zero_isa_sources(<options list> <sources...>): per-ISA files get the flags of their instruction
# set, and nothing else does. Call it only under if(ZERO_X86_64).
function(zero_isa_sources options)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${${options}}")
endfunction()
