# The libraries, from the object libraries that the folders have filled.
function(tutti_library name objects output)
  add_library(${name} SHARED $<TARGET_OBJECTS:${objects}>)
  add_library(${name}_static STATIC $<TARGET_OBJECTS:${objects}>)
  set_target_properties(${name} PROPERTIES OUTPUT_NAME ${output} VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR})
  set_target_properties(${name}_static PROPERTIES OUTPUT_NAME ${output})
  foreach(target ${name} ${name}_static)
    target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  endforeach()
endfunction()

foreach(objects tutti_objects tutti_ops_objects tutti_data_objects tutti_trainer_objects)
  target_include_directories(${objects} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR})
endforeach()

tutti_library(tutti tutti_objects tutti)
# A call passes through many small functions of several files: inlined, a barrier takes 30 % less. The objects contain
# both forms, and the static library keeps only the ordinary one, which any compiler can link.
if(TUTTI_LTO STREQUAL "AUTO")
  set(TUTTI_LTO OFF)
  if(CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_OBJCOPY AND NOT TUTTI_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
    include(CheckCSourceCompiles)
    set(CMAKE_REQUIRED_FLAGS -flto=auto) # some installations of GCC have no lto-wrapper
    check_c_source_compiles("int main(void) { return 0; }" TUTTI_CAN_LTO)
    unset(CMAKE_REQUIRED_FLAGS)
    if(TUTTI_CAN_LTO)
      set(TUTTI_LTO ON)
    endif()
  endif()
endif()
if(TUTTI_LTO)
  target_compile_options(tutti_objects PRIVATE -flto=auto -ffat-lto-objects)
  target_link_options(tutti PRIVATE -flto=auto)
  add_custom_command(TARGET tutti_static POST_BUILD VERBATIM
                     COMMAND ${CMAKE_OBJCOPY} --remove-section=.gnu.lto_* --remove-section=.gnu.debuglto_* $<TARGET_FILE:tutti_static>
                     COMMAND ${CMAKE_RANLIB} $<TARGET_FILE:tutti_static>)
endif()
# The library's calls of its own public functions need not be replaceable from outside: they are direct, or inlined.
include(CheckCCompilerFlag)
check_c_compiler_flag(-fno-semantic-interposition TUTTI_CAN_BIND_OWN)
if(TUTTI_CAN_BIND_OWN)
  target_compile_options(tutti_objects PRIVATE -fno-semantic-interposition)
endif()
target_link_options(tutti PRIVATE -Wl,-Bsymbolic-functions)
target_link_libraries(tutti PRIVATE Threads::Threads)
target_link_options(tutti PRIVATE -Wl,--no-undefined)
target_link_libraries(tutti_static PUBLIC Threads::Threads)

# The libraries of operators, data and the trainer. Without their dependencies (cmake/Trainer.cmake) none of them is
# built.
if(TUTTI_HAVE_TRAINER)
  target_link_libraries(tutti_ops_objects PRIVATE tutti_cblas)
  tutti_library(tutti_ops tutti_ops_objects tutti_ops)
  target_link_libraries(tutti_ops PUBLIC tutti PRIVATE tutti_cblas m)
  target_link_options(tutti_ops PRIVATE -Wl,--no-undefined -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/tutti_ops.map)
  set_target_properties(tutti_ops PROPERTIES LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/tutti_ops.map)
  target_link_libraries(tutti_ops_static PUBLIC tutti_static tutti_cblas m)
  target_link_libraries(tutti_data_objects PRIVATE ZLIB::ZLIB)
  tutti_library(tutti_data tutti_data_objects tutti_data)
  target_link_libraries(tutti_data PUBLIC tutti PRIVATE ZLIB::ZLIB Threads::Threads m)
  target_link_options(tutti_data PRIVATE -Wl,--no-undefined -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/tutti_data.map)
  set_target_properties(tutti_data PROPERTIES LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/tutti_data.map)
  target_link_libraries(tutti_data_static PUBLIC tutti_static ZLIB::ZLIB Threads::Threads m)
  set(onednn $<$<BOOL:${TUTTI_HAVE_ONEDNN}>:tutti_onednn>)
  target_link_libraries(tutti_trainer_objects PRIVATE tutti_cblas ${onednn})
  tutti_library(tutti_trainer tutti_trainer_objects tutti_trainer)
  target_link_libraries(tutti_trainer PUBLIC tutti_data PRIVATE tutti_cblas ${onednn} m)
  target_link_options(tutti_trainer PRIVATE -Wl,--no-undefined
                      -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/tutti_trainer.map)
  set_target_properties(tutti_trainer PROPERTIES LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/tutti_trainer.map)
  target_link_libraries(tutti_trainer_static PUBLIC tutti_data_static tutti_static tutti_cblas ${onednn} m)
else()
  set_target_properties(tutti_trainer_objects tutti_data_objects tutti_ops_objects PROPERTIES EXCLUDE_FROM_ALL TRUE)
endif()
