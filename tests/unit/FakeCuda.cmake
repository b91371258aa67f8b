# What is tested of CUDA without a GPU: with a driver in place of NVIDIA's (fake_cuda.h), which a
# test finds before any other.

# fake_driver(<name> [<definitions...>]): a libcuda.so.1 in a folder of its own.
function(fake_driver name)
  add_library(${name} SHARED fake_cuda.c)
  set_target_properties(${name} PROPERTIES OUTPUT_NAME cuda SOVERSION 1
                        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib/${name})
  target_compile_definitions(${name} PRIVATE ${ARGN})
  target_compile_options(${name} PRIVATE -Wno-missing-prototypes) # <cuda.h> has them
  target_include_directories(${name} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  zero_may_include(${name} tests)
endfunction()

fake_driver(fake-cuda)
fake_driver(fake-cuda-old FAKE_CUDA_OLD)

# add_cuda_test(<name> <driver> <program> [<arg>]): runs a program with that driver.
function(add_cuda_test name driver program)
  add_test(NAME ${name} COMMAND ${program} ${ARGN})
  zero_set_test_properties(${name} 60 1 unit)
  set_property(TEST ${name} PROPERTY
               ENVIRONMENT LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/lib/${driver})
  add_dependencies(${program} ${driver})
endfunction()

zero_add_unit_test(unit.base_cuda SOURCES base_cuda.c FOLDERS zero_base ARGS nothing)
target_include_directories(unit.base_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
add_cuda_test(unit.base_cuda_gpus fake-cuda unit.base_cuda gpus)
add_cuda_test(unit.base_cuda_old fake-cuda-old unit.base_cuda old)
add_cuda_test(unit.base_cuda_no_gpu fake-cuda unit.base_cuda no-gpu)
set_property(TEST unit.base_cuda_no_gpu APPEND PROPERTY ENVIRONMENT FAKE_CUDA_GPUS=0)
add_cuda_test(unit.base_device_cuda fake-cuda unit.base_device)
