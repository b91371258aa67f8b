# How tests are registered. Exit code 77 is a skip and names what the machine lacks. Programs go
# to <build>/bin/tests.
#
# Every test carries its folder's name (unit, ranks, fault, ...) as a label. Two more have a meaning:
# `slow` runs nightly only, `threads` also under the thread sanitizer.

# zero_test_part(<result> <file>): the objects of a file that several programs share.
function(zero_test_part result file)
  get_filename_component(path ${file} ABSOLUTE)
  file(RELATIVE_PATH part ${PROJECT_SOURCE_DIR} ${path})
  string(MAKE_C_IDENTIFIER ${part} part)
  if(NOT TARGET ${part})
    add_library(${part} OBJECT ${path})
    zero_may_include(${part} tests tools zero checkpoint offload collectives base)
    target_include_directories(${part} SYSTEM PRIVATE
                               $<TARGET_PROPERTY:PkgConfig::cmocka,INTERFACE_INCLUDE_DIRECTORIES>)
  endif()
  set(${result} ${part} PARENT_SCOPE)
endfunction()

# zero_test_program(<name> SOURCES <files...> [PARTS <files...>] [FOLDERS <folder targets...>]
#                   [LIBS <libraries...>])
#
# A program linked with internals: it may include every header of the tree as "folder/file.h", and
# tests' own as "tests/...". PARTS are files that other programs have too; they are compiled once.
# FOLDERS names the highest folder libraries it needs, such as zero_base; what stands below them
# comes along. Default: zero_api, that is everything.
function(zero_test_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;PARTS;FOLDERS;LIBS" ${ARGN})
  if(NOT arg_FOLDERS)
    set(arg_FOLDERS zero_api)
  endif()
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin/tests)
  zero_may_include(${name} tests tools zero checkpoint offload collectives base)
  foreach(file IN LISTS arg_PARTS ITEMS ${PROJECT_SOURCE_DIR}/tests/sweep.c)
    zero_test_part(part ${file})
    target_link_libraries(${name} PRIVATE ${part})
  endforeach()
  zero_link_folders(${name} ${arg_FOLDERS})
  target_link_libraries(${name} PRIVATE ${arg_LIBS})
endfunction()

# zero_built_for(<labels> <targets...>): the target programs.<label> is all that a label's tests run.
function(zero_built_for labels)
  foreach(label IN LISTS labels)
    if(NOT TARGET programs.${label})
      add_custom_target(programs.${label})
    endif()
    add_dependencies(programs.${label} ${ARGN})
  endforeach()
endfunction()

function(zero_set_test_properties name timeout processors labels)
  # Cost: what may take long is started first. What takes three times as long on a machine whose
  # neighbours take its time has not failed; with a sanitizer everything is slower.
  math(EXPR limit "3 * ${timeout}")
  if(ZERO_SANITIZE)
    math(EXPR limit "2 * ${limit}")
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${limit} COST ${timeout}
                       PROCESSORS ${processors} LABELS "${labels}" SKIP_RETURN_CODE 77)
endfunction()

# zero_seen_elsewhere(<tests...>): in other tests a sanitizer sees the code that these run. A build
# with a sanitizer has them among its slow tests, where ZERO_TESTS_WHOLE is off.
function(zero_seen_elsewhere)
  if(ZERO_SANITIZE AND NOT ZERO_TESTS_WHOLE)
    set_property(TEST ${ARGN} APPEND PROPERTY LABELS slow)
  endif()
endfunction()

# zero_wrap(<program> <functions...>): calls of a function go to the program's __wrap_<function>,
# which may call __real_<function>. GNU ld leaves calls within the function's own file alone, lld
# does not.
function(zero_wrap program)
  set(options ${ARGN})
  list(TRANSFORM options PREPEND -Wl,--wrap=)
  target_link_options(${program} PRIVATE ${options} -fuse-ld=bfd)
endfunction()

# zero_add_unit_test(<name> SOURCES <files...> [PARTS <files...>] [FOLDERS <folder targets...>]
#                    [LIBS <libraries...>] [ARGS <args...>] [LABELS <labels...>]
#                    [TIMEOUT <seconds>] [PROCESSORS <n>])
#
# A cmocka program, built as zero_test_program() does and run once. TIMEOUT is what it may take on
# an idle machine: default 60 s.
# PROCESSORS is how many it keeps busy: 1 (the default) for ranks that mostly wait or sleep.
function(zero_add_unit_test name)
  cmake_parse_arguments(arg "" "TIMEOUT;PROCESSORS" "SOURCES;PARTS;FOLDERS;LIBS;ARGS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  if(NOT arg_PROCESSORS)
    set(arg_PROCESSORS 1)
  endif()
  get_filename_component(kind ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  zero_test_program(${name} SOURCES ${arg_SOURCES} PARTS ${arg_PARTS} FOLDERS ${arg_FOLDERS}
                    LIBS PkgConfig::cmocka ${arg_LIBS})
  # What is tested is not in it, and compiling it takes longer than running it.
  target_compile_options(${name} PRIVATE -O1)
  zero_built_for("${kind};${arg_LABELS}" ${name})
  add_test(NAME ${name} COMMAND ${name} ${arg_ARGS})
  zero_set_test_properties(${name} ${arg_TIMEOUT} ${arg_PROCESSORS} "${kind};${arg_LABELS}")
endfunction()

# zero_add_rank_test(<name> PROGRAM <target> RANKS <n...> [ARGS <args...>] [RUN_ARGS <options...>]
#                    [LABELS <labels...>] [TIMEOUT <seconds>])
#
# Runs a program under `zero-run -n N RUN_ARGS -- program args`, once for every N, as <name>.nN.
# Passes when zero-run passes. TIMEOUT: as above, each.
function(zero_add_rank_test name)
  cmake_parse_arguments(arg "" "PROGRAM;TIMEOUT" "RANKS;ARGS;RUN_ARGS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  get_filename_component(kind ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  zero_built_for("${kind};${arg_LABELS}" zero-run ${arg_PROGRAM})
  foreach(ranks IN LISTS arg_RANKS)
    add_test(NAME ${name}.n${ranks}
             COMMAND $<TARGET_FILE:zero-run> -n ${ranks} ${arg_RUN_ARGS} --
                     $<TARGET_FILE:${arg_PROGRAM}> ${arg_ARGS})
    zero_set_test_properties(${name}.n${ranks} ${arg_TIMEOUT} ${ranks} "${kind};${arg_LABELS}")
  endforeach()
endfunction()
