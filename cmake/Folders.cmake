# One OBJECT library a folder, and the direction of includes.
#
# The sources say #include "base/log.h", relative to the repository, but the repository is no
# include directory: each folder gets a root of its own in the build tree that holds one symlink,
# include-roots/base/base -> <repository>/base, and a target sees only the roots of the folders it
# may include. `vocabulary` has the public headers every folder shares, `public` all public ones.

set(ZERO_PUBLIC_HEADERS zero.h model.h configuration.h checkpoint.h job.h schedule.h advanced.h
    diagnostics.h statistics.h tensors.h collectives.h optimizer.h types.h random.h trainer.h)
set(ZERO_VOCABULARY_HEADERS types.h random.h)
set(ZERO_MPI_HEADERS mpi.h) # public too, for programs that have an MPI: nothing here may include it
set(ZERO_INCLUDE_ROOTS ${PROJECT_BINARY_DIR}/include-roots)

# Sub-folders that are libraries of their own: each has an include root of its own, such as
# include-roots/collectives.comm, so that a lower one cannot include a higher one.
set(ZERO_SUBFOLDERS
    base/device base/hash
    checkpoint/codec checkpoint/directory checkpoint/entropy checkpoint/files checkpoint/manifest
    checkpoint/safetensors checkpoint/shard
    collectives/comm collectives/control collectives/gpu collectives/host collectives/liveness
    collectives/provider collectives/rendezvous collectives/tcp collectives/transport
    offload/io
    zero/api zero/budget zero/config zero/core zero/debug zero/exec zero/link zero/model zero/optim
    zero/param zero/plan zero/snapshot zero/step zero/store)

function(zero_make_include_roots)
  foreach(folder IN ITEMS base offload collectives checkpoint zero tools examples tests)
    file(MAKE_DIRECTORY ${ZERO_INCLUDE_ROOTS}/${folder})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${folder} ${ZERO_INCLUDE_ROOTS}/${folder}/${folder}
         SYMBOLIC)
  endforeach()
  foreach(subfolder IN LISTS ZERO_SUBFOLDERS)
    string(REPLACE "/" "." root ${subfolder})
    get_filename_component(folder ${subfolder} DIRECTORY)
    file(MAKE_DIRECTORY ${ZERO_INCLUDE_ROOTS}/${root}/${folder})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${subfolder} ${ZERO_INCLUDE_ROOTS}/${root}/${subfolder}
         SYMBOLIC)
  endforeach()
  # base/headers: those of base/ itself, without its sub-folders.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/base)
  file(GLOB headers RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/base/*.h)
  file(MAKE_DIRECTORY ${ZERO_INCLUDE_ROOTS}/base.headers/base)
  foreach(header IN LISTS headers)
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${header} ${ZERO_INCLUDE_ROOTS}/base.headers/${header}
         SYMBOLIC)
  endforeach()
  foreach(root IN ITEMS VOCABULARY PUBLIC)
    string(TOLOWER ${root} name)
    file(MAKE_DIRECTORY ${ZERO_INCLUDE_ROOTS}/${name}/zero)
    set(names ${ZERO_${root}_HEADERS})
    if(root STREQUAL "PUBLIC")
      list(APPEND names ${ZERO_MPI_HEADERS})
    endif()
    foreach(header IN LISTS names)
      file(CREATE_LINK ${PROJECT_SOURCE_DIR}/zero/${header}
           ${ZERO_INCLUDE_ROOTS}/${name}/zero/${header} SYMBOLIC)
    endforeach()
  endforeach()
endfunction()

zero_make_include_roots()

# zero_may_include(<target> <roots...>): lets a target include the headers of these roots only.
function(zero_may_include target)
  foreach(root IN LISTS ARGN)
    string(REPLACE "/" "." root ${root})
    target_include_directories(${target} PRIVATE ${ZERO_INCLUDE_ROOTS}/${root})
  endforeach()
endfunction()

# zero_folder(<target> MAY_INCLUDE <roots...> SOURCES <files...>
#             [BELOW <targets...>] [LIBRARIES <libraries...>])
#
# The OBJECT library of one folder. BELOW are the folder libraries it calls; a target that links its
# objects into a program needs theirs too (zero_link_folders() sees to it). LIBRARIES come from
# outside.
function(zero_folder target)
  cmake_parse_arguments(arg "" "" "MAY_INCLUDE;SOURCES;BELOW;LIBRARIES" ${ARGN})
  add_library(${target} OBJECT ${arg_SOURCES})
  set_property(TARGET ${target} PROPERTY ZERO_BELOW ${arg_BELOW})
  zero_may_include(${target} ${arg_MAY_INCLUDE})
  target_link_libraries(${target} PRIVATE ${arg_LIBRARIES})
  set_property(GLOBAL APPEND PROPERTY ZERO_FOLDER_TARGETS ${target})
  set_property(GLOBAL APPEND PROPERTY ZERO_LIBRARIES ${arg_LIBRARIES})
endfunction()

# zero_floor(<folder>/<sub-folder> SOURCES <files...> [MAY_INCLUDE <roots...>] [BELOW <targets...>]
#            [LIBRARIES <libraries...>])
#
# zero_folder() of zero_<sub-folder>, one of several in a CMakeLists.txt, the lowest first. It may
# include and call base, the floors before it, and what those may; and the vocabulary.
macro(zero_floor folder)
  cmake_parse_arguments(floor "" "" "MAY_INCLUDE;BELOW;LIBRARIES;SOURCES" ${ARGN})
  get_filename_component(name ${folder} NAME)
  list(TRANSFORM floor_SOURCES PREPEND ${name}/)
  list(APPEND floor_roots ${folder} ${floor_MAY_INCLUDE})
  zero_folder(zero_${name}
    MAY_INCLUDE ${floor_roots} base vocabulary
    BELOW ${floor_targets} ${floor_BELOW} zero_base
    LIBRARIES ${floor_LIBRARIES}
    SOURCES ${floor_SOURCES})
  list(APPEND floor_targets zero_${name})
endmacro()

# zero_link_folders(<program> <folder targets...>): links the objects of these folders and of all
# that stand below them.
function(zero_link_folders program)
  set(todo ${ARGN})
  set(linked)
  while(todo)
    list(POP_FRONT todo target)
    if(NOT target IN_LIST linked)
      list(APPEND linked ${target})
      get_target_property(below ${target} ZERO_BELOW)
      if(below)
        list(APPEND todo ${below})
      endif()
    endif()
  endwhile()
  target_link_libraries(${program} PRIVATE ${linked})
endfunction()
