# zero_cuda_image(<target> <source.cu> <source.c> <macro> [<options...>]): compiles kernels for all
# GPUs from compute capability 8.0 on, into one file that the C source includes as bytes: <macro> is
# its path. Newer GPUs than there is machine code for compile the PTX that is in it, too. Without
# options of its own, no multiplication is fused with an addition.
function(zero_cuda_image target kernels source macro)
  get_filename_component(name ${kernels} NAME_WE)
  set(image ${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin)
  get_target_property(roots ${target} INCLUDE_DIRECTORIES)
  list(TRANSFORM roots PREPEND -I)
  set(options -fmad=false)
  if(ARGN)
    set(options ${ARGN})
  endif()
  set(machines -gencode arch=compute_80,code=sm_80
      -gencode "arch=compute_90,code=[sm_90,compute_90]")
  if(ZERO_SANITIZE) # which sees what the host does; GPUs compile PTX themselves
    set(machines -gencode arch=compute_80,code=compute_80)
  endif()
  set(werror $<$<BOOL:${ZERO_WERROR}>:-Werror=all-warnings>)
  add_custom_command(
    OUTPUT ${image}
    COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -fatbin -std=c++17 -O3 ${options} "${werror}"
            ${machines} ${roots} -MD -MF ${image}.d -MT ${image}
            -o ${image} ${CMAKE_CURRENT_SOURCE_DIR}/${kernels}
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${kernels}
    DEPFILE ${image}.d
    COMMENT "Compiling ${kernels} for GPUs"
    COMMAND_EXPAND_LISTS VERBATIM)
  set_source_files_properties(${source} PROPERTIES
    OBJECT_DEPENDS ${image} COMPILE_DEFINITIONS "${macro}=\"${image}\"")
endfunction()
