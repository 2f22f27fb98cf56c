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

foreach(objects tutti_objects tutti_ops_objects tutti_trainer_objects)
  target_include_directories(${objects} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR})
endforeach()

tutti_library(tutti tutti_objects tutti)
target_link_libraries(tutti PRIVATE Threads::Threads)
target_link_options(tutti PRIVATE -Wl,--no-undefined)
target_link_libraries(tutti_static PUBLIC Threads::Threads)

# The operators' library and the trainer's. Without their dependencies (cmake/Trainer.cmake) nothing of them is built.
if(TUTTI_HAVE_TRAINER)
  target_link_libraries(tutti_ops_objects PRIVATE tutti_cblas)
  tutti_library(tutti_ops tutti_ops_objects tutti_ops)
  target_link_libraries(tutti_ops PUBLIC tutti PRIVATE tutti_cblas m)
  target_link_options(tutti_ops PRIVATE -Wl,--no-undefined -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/tutti_ops.map)
  set_target_properties(tutti_ops PROPERTIES LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/tutti_ops.map)
  target_link_libraries(tutti_ops_static PUBLIC tutti_static tutti_cblas m)
  set(onednn $<$<BOOL:${TUTTI_HAVE_ONEDNN}>:tutti_onednn>)
  target_link_libraries(tutti_trainer_objects PRIVATE tutti_cblas ${onednn} ZLIB::ZLIB)
  tutti_library(tutti_trainer tutti_trainer_objects tutti_trainer)
  target_link_libraries(tutti_trainer PUBLIC tutti PRIVATE tutti_cblas ${onednn} ZLIB::ZLIB m)
  target_link_options(tutti_trainer PRIVATE -Wl,--no-undefined
                      -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/tutti_trainer.map)
  set_target_properties(tutti_trainer PROPERTIES LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/tutti_trainer.map)
  target_link_libraries(tutti_trainer_static PUBLIC tutti_static tutti_cblas ${onednn} ZLIB::ZLIB m)
else()
  set_target_properties(tutti_trainer_objects tutti_ops_objects PROPERTIES EXCLUDE_FROM_ALL TRUE)
endif()
