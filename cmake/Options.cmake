# Build type, language, warnings, sanitizers and output folders.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

set(CMAKE_C_STANDARD 17)
set(CMAKE_C_EXTENSIONS ON) # Linux calls: memfd, futex, pidfd
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}") # installed programs find the library beside them

option(TUTTI_TESTS "Build the tests (on Criterion, if it is installed)" ${PROJECT_IS_TOP_LEVEL})
set(TUTTI_TRAINER AUTO CACHE STRING "The bundled trainer (needs CBLAS and zlib): AUTO, ON or OFF")
set(TUTTI_ONEDNN AUTO CACHE STRING "oneDNN for the trainer's convolutions: AUTO, ON or OFF")
set(TUTTI_SANITIZE "" CACHE STRING "Value of -fsanitize=, for example address,undefined or thread")
option(TUTTI_WERROR "Warnings are errors" OFF)
set(TUTTI_LTO AUTO CACHE STRING "Link-time optimization of libtutti: AUTO (GCC, without a sanitizer or Debug), ON or OFF")

# -ffp-contract=off: a reduction gives the same bits on every machine and instruction set.
add_compile_options(-Wall -Wextra -Wshadow "$<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes;-Wmissing-prototypes>" -ffp-contract=off)
add_compile_definitions(_GNU_SOURCE)
if(TUTTI_WERROR)
  add_compile_options(-Werror)
endif()
if(TUTTI_SANITIZE)
  add_compile_options(-fsanitize=${TUTTI_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TUTTI_SANITIZE})
endif()
# The order of locks (bootstrap/base/lock.h) is checked where speed does not count.
if(TUTTI_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Debug")
  add_compile_definitions(TUTTI_CHECK_LOCKS)
endif()
find_package(Threads REQUIRED)
