# How a test is declared.
#
# tutti_test(name sources... [LIBRARIES targets...] [LABELS labels...] [TIMEOUT seconds] [JOBS n] [PROCESSES] [HOSTS])
#   A Criterion program test_<name>, linked with tutti_static and tests/support, run in the build folder. PROCESSES:
#   each test in it needs ranks as processes; the thread sanitizer cannot observe those, so it is disabled there.
#   HOSTS: it makes network namespaces; where that is not permitted it is skipped. JOBS: this number of its tests run at
#   a time, since they mostly wait.
# tutti_script_test(name [LABELS labels...] [TIMEOUT seconds] COMMAND command...)
#   A command that exits with 0, or with 77 for a skip (its last line is the reason).
# tutti_test_program(name sources...)
#   A program that tests start: <build>/tests/<name>, like the tests themselves, whichever folder declares it.
#
# Without Criterion, or with TUTTI_TESTS_SHIM=ON, they run on the small part of it in tests/support/criterion_shim.
option(TUTTI_TESTS_SHIM "Run the tests without Criterion" OFF)
find_package(PkgConfig QUIET)
if(PKG_CONFIG_FOUND AND NOT TUTTI_TESTS_SHIM)
  pkg_check_modules(CRITERION QUIET IMPORTED_TARGET criterion)
endif()
if(CRITERION_FOUND AND NOT TUTTI_TESTS_SHIM)
  set(TUTTI_CRITERION PkgConfig::CRITERION)
else()
  message(STATUS "tests: on tests/support/criterion_shim, not on Criterion (Debian: libcriterion-dev)")
  set(TUTTI_CRITERION criterion_shim)
endif()
add_library(criterion_shim STATIC EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/support/criterion_shim/runner.c)
target_include_directories(criterion_shim SYSTEM INTERFACE ${PROJECT_SOURCE_DIR}/tests/support/criterion_shim)

set(TUTTI_TEST_TIMEOUT 120)
if(TUTTI_SANITIZE)
  set(TUTTI_TEST_TIMEOUT 300)
endif()

# A finding ends the process that has it. Criterion does not check how a test's process ends after the test has passed,
# so the text of a report also fails the test.
set(TUTTI_TEST_FINDINGS "ERROR: (Address|Leak)Sanitizer" "runtime error: " "WARNING: ThreadSanitizer")
set(TUTTI_TEST_ENVIRONMENT
    "UBSAN_OPTIONS=print_stacktrace=1"
    "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1"
    "TUTTI_BUILD=${PROJECT_BINARY_DIR}"
    "TUTTI_SOURCE=${PROJECT_SOURCE_DIR}")

if(TUTTI_SANITIZE MATCHES thread)
  list(APPEND TUTTI_TEST_ENVIRONMENT "UCX_MEM_MMAP_HOOK_MODE=none") # UCX and the sanitizer both patch mmap
endif()

function(tutti_test_properties name timeout labels)
  if(NOT timeout)
    set(timeout ${TUTTI_TEST_TIMEOUT})
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} LABELS "${labels}" SKIP_RETURN_CODE 77
                       ENVIRONMENT "${TUTTI_TEST_ENVIRONMENT}")
  if(TUTTI_SANITIZE)
    set_tests_properties(${name} PROPERTIES FAIL_REGULAR_EXPRESSION "${TUTTI_TEST_FINDINGS}")
  endif()
endfunction()

function(tutti_test_program name)
  add_executable(${name} ${ARGN})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
endfunction()

function(tutti_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "PROCESSES;HOSTS" "TIMEOUT;JOBS" "LIBRARIES;LABELS")
  if(NOT arg_JOBS)
    set(arg_JOBS 1)
  endif()
  tutti_test_program(test_${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(test_${name} PRIVATE tutti_test_support ${arg_LIBRARIES} ${TUTTI_CRITERION})
  if(TUTTI_SANITIZE MATCHES thread)
    target_sources(test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/support/thread_sanitizer.c)
  endif()
  set(with)
  if(arg_HOSTS)
    set(with ${PROJECT_SOURCE_DIR}/tests/support/with_hosts)
  endif()
  add_test(NAME ${name} COMMAND ${with} $<TARGET_FILE:test_${name}> --jobs ${arg_JOBS} WORKING_DIRECTORY ${PROJECT_BINARY_DIR})
  if(arg_PROCESSES)
    list(APPEND arg_LABELS processes)
    if(TUTTI_SANITIZE MATCHES thread)
      set_tests_properties(${name} PROPERTIES DISABLED TRUE)
    endif()
  endif()
  tutti_test_properties(${name} "${arg_TIMEOUT}" "${arg_LABELS}")
endfunction()

function(tutti_script_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "COMMAND;LABELS")
  add_test(NAME ${name} COMMAND ${arg_COMMAND} ${arg_UNPARSED_ARGUMENTS} WORKING_DIRECTORY ${PROJECT_BINARY_DIR})
  tutti_test_properties(${name} "${arg_TIMEOUT}" "script;${arg_LABELS}")
endfunction()
