# The MPIs that are here, for programs that have one: examples/mpi, tests and benchmarks. Each program
# is built once with each of them; the library itself knows none. A compiler wrapper says which
# headers and libraries belong to its MPI, so that they are never mixed.

# zero_find_mpi(<library>): ZERO_MPI_<library> whether it is here, ZERO_MPI_<library>_INCLUDES, _LINKS.
function(zero_find_mpi library)
  find_program(ZERO_MPICC_${library} mpicc.${library})
  mark_as_advanced(ZERO_MPICC_${library})
  set(ZERO_MPI_${library} OFF PARENT_SCOPE)
  if(NOT ZERO_MPICC_${library})
    return()
  endif()
  execute_process(COMMAND ${ZERO_MPICC_${library}} -show OUTPUT_VARIABLE command
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(REGEX MATCHALL " -I[^ ]+" includes "${command}")
  string(REGEX MATCHALL " -(Wl,[^ ]+|L[^ ]+|l[^ ]+|pthread)" links "${command}")
  list(TRANSFORM includes REPLACE "^ -I" "")
  list(TRANSFORM links STRIP)
  list(GET includes 0 first_include)
  if(EXISTS ${first_include}/mpi.h) # else the compiler alone, without the library's headers
    set(ZERO_MPI_${library} ON PARENT_SCOPE)
    set(ZERO_MPI_${library}_INCLUDES ${includes} PARENT_SCOPE)
    set(ZERO_MPI_${library}_LINKS ${links} PARENT_SCOPE)
  endif()
endfunction()

set(ZERO_MPIS)
foreach(library IN ITEMS openmpi mpich)
  zero_find_mpi(${library})
  if(ZERO_MPI_${library})
    list(APPEND ZERO_MPIS ${library})
  endif()
endforeach()

# zero_use_mpi(<target> <library>): compiles and links with that MPI.
function(zero_use_mpi target library)
  target_include_directories(${target} SYSTEM PRIVATE ${ZERO_MPI_${library}_INCLUDES})
  target_link_libraries(${target} PRIVATE ${ZERO_MPI_${library}_LINKS})
endfunction()
