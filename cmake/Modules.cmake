# Modules: libtutti_<name>.so, beside libtutti and opened by it when first needed (bootstrap/module.h). They hold what
# needs a library that libtutti must load without. Each has an option AUTO (built if its library is found), ON or OFF.
#
# tutti_module(name LIBRARY file INCLUDE folder SOURCES sources...)
# tutti_find_hwloc()   sets TUTTI_HWLOC_LEFT_OUT: why there is no such module, "" where there is one
set(TUTTI_HWLOC AUTO CACHE STRING "The module that reads the topology with hwloc: AUTO, ON or OFF")

# The way from the programs' folder to the libraries'.
file(RELATIVE_PATH TUTTI_LIBRARIES_FROM_PROGRAMS "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_LIBDIR}")

function(tutti_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LIBRARY;INCLUDE" "SOURCES")
  add_library(tutti_${name} MODULE ${arg_SOURCES})
  target_include_directories(tutti_${name} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR})
  target_include_directories(tutti_${name} SYSTEM PRIVATE ${arg_INCLUDE})
  target_link_libraries(tutti_${name} PRIVATE ${arg_LIBRARY})
  target_link_options(tutti_${name} PRIVATE -Wl,--no-undefined)
  set_target_properties(tutti_${name} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS tutti_${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()

# hwloc 2 or later: before, NUMA nodes stood elsewhere.
function(tutti_find_hwloc)
  set(lacks "")
  if(TUTTI_HWLOC STREQUAL "OFF")
    set(lacks "TUTTI_HWLOC=OFF")
  else()
    find_path(TUTTI_HWLOC_INCLUDE hwloc.h)
    find_library(TUTTI_HWLOC_LIBRARY NAMES hwloc)
    set(version 0)
    if(TUTTI_HWLOC_INCLUDE)
      file(STRINGS ${TUTTI_HWLOC_INCLUDE}/hwloc.h version REGEX "define HWLOC_API_VERSION")
      string(REGEX REPLACE ".*0x000*([0-9a-f]+)[0-9a-f][0-9a-f][0-9a-f][0-9a-f].*" "\\1" version "${version}")
    endif()
    if(NOT TUTTI_HWLOC_INCLUDE OR NOT TUTTI_HWLOC_LIBRARY)
      set(lacks "hwloc was not found (Debian: libhwloc-dev)")
    elseif(version LESS 2)
      set(lacks "hwloc in ${TUTTI_HWLOC_INCLUDE} is older than 2.0")
    endif()
  endif()
  if(TUTTI_HWLOC STREQUAL "ON" AND lacks)
    message(FATAL_ERROR "TUTTI_HWLOC=ON: ${lacks}")
  elseif(lacks)
    message(STATUS "hwloc: left out: ${lacks}")
  else()
    message(STATUS "hwloc: yes, with ${TUTTI_HWLOC_LIBRARY}")
  endif()
  set(TUTTI_HWLOC_LEFT_OUT "${lacks}" PARENT_SCOPE)
endfunction()

tutti_find_hwloc()
