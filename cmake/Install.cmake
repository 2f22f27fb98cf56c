# The files that `cmake --install` installs: headers, libraries, programs, the pkg-config file and the CMake package.
set(TUTTI_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)

install(DIRECTORY include/tutti DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS tutti tutti_static EXPORT tutti)
if(TUTTI_HAVE_TRAINER)
  install(TARGETS tutti_ops tutti_data tutti_trainer EXPORT tutti)
  install(TARGETS tutti_ops_static tutti_data_static tutti_trainer_static)
endif()

foreach(folder tools ddp/trainer/program data bench bench/kernels bench/tensor)
  get_directory_property(targets DIRECTORY ${folder} BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    get_target_property(left_out ${target} EXCLUDE_FROM_ALL)
    if(type STREQUAL "EXECUTABLE" AND NOT left_out)
      install(TARGETS ${target})
    endif()
  endforeach()
endforeach()

# CMake package: find_package(tutti), targets tutti::tutti, tutti::tutti_static and, with a CBLAS and zlib,
# tutti::tutti_ops, tutti::tutti_data and tutti::tutti_trainer.
install(EXPORT tutti FILE tuttiTargets.cmake NAMESPACE tutti:: DESTINATION ${TUTTI_CMAKE_DIR})
configure_package_config_file(cmake/tuttiConfig.cmake.in ${PROJECT_BINARY_DIR}/tuttiConfig.cmake
                              INSTALL_DESTINATION ${TUTTI_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tuttiConfig.cmake ${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
        DESTINATION ${TUTTI_CMAKE_DIR})

# pkg-config. Folders may have been given relative to the prefix or absolute; the prefix may be given at install time.
foreach(folder LIBDIR INCLUDEDIR)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${folder}}")
    set(TUTTI_PC_${folder} "${CMAKE_INSTALL_${folder}}")
  else()
    set(TUTTI_PC_${folder} "\${prefix}/${CMAKE_INSTALL_${folder}}")
  endif()
endforeach()
set(TUTTI_PC_NAMES tutti)
if(TUTTI_HAVE_TRAINER)
  list(APPEND TUTTI_PC_NAMES tutti_ops tutti_data tutti_trainer)
endif()
# Where the system's loader does not search by default, programs record the library's folder. The loader searches
# /usr/local/lib only after ldconfig.
install(CODE "
  set(PROJECT_DESCRIPTION \"${PROJECT_DESCRIPTION}\")
  set(PROJECT_VERSION \"${PROJECT_VERSION}\")
  set(TUTTI_PC_PREFIX \"\${CMAKE_INSTALL_PREFIX}\")
  set(TUTTI_PC_LIBDIR [[${TUTTI_PC_LIBDIR}]])
  set(TUTTI_PC_INCLUDEDIR [[${TUTTI_PC_INCLUDEDIR}]])
  set(TUTTI_PC_RPATH [[ -Wl,-rpath,\${libdir}]])
  string(REPLACE [[\${prefix}]] \"\${CMAKE_INSTALL_PREFIX}\" libdir \"\${TUTTI_PC_LIBDIR}\")
  if(libdir MATCHES [[^(/usr)?/lib(64|/${CMAKE_LIBRARY_ARCHITECTURE})?/?$]])
    set(TUTTI_PC_RPATH)
  endif()
  foreach(name ${TUTTI_PC_NAMES})
    configure_file(\"${PROJECT_SOURCE_DIR}/cmake/\${name}.pc.in\" \"${PROJECT_BINARY_DIR}/\${name}.pc\" @ONLY)
  endforeach()")
foreach(name IN LISTS TUTTI_PC_NAMES)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()

# The same for the build folder, without installing: PKG_CONFIG_PATH=build/lib/pkgconfig.
set(TUTTI_PC_PREFIX ${PROJECT_BINARY_DIR})
set(TUTTI_PC_LIBDIR ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
set(TUTTI_PC_INCLUDEDIR ${PROJECT_SOURCE_DIR}/include)
set(TUTTI_PC_RPATH " -Wl,-rpath,\${libdir}")
foreach(name IN LISTS TUTTI_PC_NAMES)
  configure_file(cmake/${name}.pc.in ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/pkgconfig/${name}.pc @ONLY)
endforeach()
