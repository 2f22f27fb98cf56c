# CUDA: nvcc, its static runtime, the headers of NCCL and cuBLAS, and how kernels are compiled. nvcc is run by custom
# commands: all that is asked of it is that it is there, wherever its runtime lies, and no GPU or driver is needed to build.
#
# tutti_find_cuda()            sets TUTTI_CUDA_LEFT_OUT ("" where the module is built), _INCLUDE, _LIBRARY
# tutti_find_cuda_package(name header how)  the same for headers: TUTTI_NCCL_LEFT_OUT, _INCLUDE, TUTTI_CUBLAS_...
# tutti_cuda_object(variable file.cu [FLAGS flags...])   adds the compiled file to the list `variable`
set(TUTTI_CUDA AUTO CACHE STRING "The module for GPUs of NVIDIA's: AUTO, ON or OFF")
set(TUTTI_CUDA_ARCHITECTURES auto CACHE STRING
    "Numbers such as 80;90, or auto: those of this machine's GPUs, else 75;80;90;100;120 as nvcc allows; all-major; all")
set(TUTTI_CUDA_PACKAGES ${PROJECT_SOURCE_DIR}/.cuda CACHE PATH
    "Where packages of PyPI's with NCCL and cuBLAS are unpacked (their folder nvidia; scripts/test fetches them)")

# A folder of the toolkit, from what nvcc says that it would do: links and wrappers do not mislead it.
function(tutti_cuda_toolkit top_out)
  execute_process(COMMAND ${TUTTI_NVCC} -dryrun -x cu /dev/null OUTPUT_VARIABLE said ERROR_VARIABLE said)
  string(REGEX MATCH "TOP=([^\n]+)" line "${said}")
  set(${top_out} "${CMAKE_MATCH_1}" PARENT_SCOPE)
endfunction()

# nvcc needs a C++ compiler that it accepts; asked once.
function(tutti_cuda_try_nvcc)
  if(NOT DEFINED TUTTI_NVCC_WORKS)
    execute_process(COMMAND ${TUTTI_NVCC} -x cu -c /dev/null -o ${CMAKE_CURRENT_BINARY_DIR}/nvcc_works.o
                    RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
    if(failed)
      string(REGEX REPLACE "[\n\";\\]+" " " said "${said}")
      string(SUBSTRING "${said}" 0 200 said)
      set(TUTTI_NVCC_WORKS "nvcc cannot compile here: ${said}" CACHE INTERNAL "")
    else()
      set(TUTTI_NVCC_WORKS "" CACHE INTERNAL "")
    endif()
  endif()
endfunction()

function(tutti_find_cuda)
  set(lacks "")
  if(TUTTI_CUDA STREQUAL "OFF")
    set(lacks "TUTTI_CUDA=OFF")
  elseif(TUTTI_SANITIZE)
    set(lacks "CUDA and the sanitizers do not go together (TUTTI_SANITIZE)")
  else()
    find_program(TUTTI_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin PATHS /usr/local/cuda/bin)
    set(version 0)
    if(TUTTI_NVCC)
      execute_process(COMMAND ${TUTTI_NVCC} --version OUTPUT_VARIABLE version ERROR_QUIET)
      string(REGEX REPLACE ".*release ([0-9]+\\.[0-9]+).*" "\\1" version "${version}")
      tutti_cuda_toolkit(top)
      set(beside ${top} ${top}/targets/${CMAKE_SYSTEM_PROCESSOR}-linux ${top}/targets/sbsa-linux)
      find_path(TUTTI_CUDA_INCLUDE cuda_runtime_api.h HINTS ${beside} PATH_SUFFIXES include)
      find_library(TUTTI_CUDA_LIBRARY libcudart_static.a HINTS ${beside} PATH_SUFFIXES lib64 lib)
      tutti_cuda_try_nvcc()
    endif()
    if(NOT TUTTI_NVCC)
      set(lacks "nvcc was not found (on PATH or in /usr/local/cuda/bin)")
    elseif(version VERSION_LESS 12.0)
      set(lacks "${TUTTI_NVCC} is of CUDA ${version}, older than 12.0")
    elseif(NOT TUTTI_CUDA_INCLUDE OR NOT TUTTI_CUDA_LIBRARY)
      set(lacks "cuda_runtime_api.h or libcudart_static.a was not found beside ${TUTTI_NVCC} (in ${top})")
    else()
      set(lacks "${TUTTI_NVCC_WORKS}")
    endif()
  endif()
  tutti_judge_module(cuda "${lacks}")
  if(lacks STREQUAL "")
    tutti_cuda_choose_architectures()
  endif()
endfunction()

# ------------------------------------------------------------------------------------------------ architectures

# Compute capabilities of this machine's GPUs, as 90;75.
function(tutti_cuda_own_architectures list_out)
  find_program(TUTTI_NVIDIA_SMI nvidia-smi)
  set(own "")
  if(TUTTI_NVIDIA_SMI)
    execute_process(COMMAND ${TUTTI_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
                    RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_QUIET TIMEOUT 60)
    if(NOT failed)
      string(REGEX MATCHALL "[0-9]+\\.[0-9]" own "${said}")
      list(TRANSFORM own REPLACE "\\." "")
      list(REMOVE_DUPLICATES own)
    endif()
  endif()
  set(${list_out} ${own} PARENT_SCOPE)
endfunction()

# Machine code for each, and for later GPUs what their driver compiles: TUTTI_CUDA_CODE, flags of nvcc.
function(tutti_cuda_choose_architectures)
  execute_process(COMMAND ${TUTTI_NVCC} --list-gpu-arch OUTPUT_VARIABLE known)
  string(REGEX MATCHALL "[0-9]+" known "${known}")
  list(SORT known COMPARE NATURAL)
  if(TUTTI_CUDA_ARCHITECTURES MATCHES "^all")
    set(code -arch=${TUTTI_CUDA_ARCHITECTURES})
    set(chosen ${TUTTI_CUDA_ARCHITECTURES})
  else()
    set(wanted ${TUTTI_CUDA_ARCHITECTURES})
    if(wanted STREQUAL "auto")
      tutti_cuda_own_architectures(wanted)
      if(NOT wanted)
        set(wanted 75 80 90 100 120)
      endif()
    endif()
    set(chosen "")
    foreach(number IN LISTS wanted)
      if(number IN_LIST known)
        list(APPEND chosen ${number})
      elseif(NOT TUTTI_CUDA_ARCHITECTURES STREQUAL "auto")
        message(FATAL_ERROR "TUTTI_CUDA_ARCHITECTURES: ${TUTTI_NVCC} does not know ${number}, but ${known}")
      endif()
    endforeach()
    if(NOT chosen)
      list(GET known -1 chosen) # a GPU newer than nvcc
    endif()
    list(SORT chosen COMPARE NATURAL)
    list(GET chosen -1 last)
    set(code "")
    foreach(number IN LISTS chosen)
      list(APPEND code -gencode arch=compute_${number},code=sm_${number})
    endforeach()
    list(APPEND code -gencode arch=compute_${last},code=compute_${last})
  endif()
  message(STATUS "cuda: architectures ${chosen}")
  set(TUTTI_CUDA_CODE ${code} CACHE INTERNAL "")
endfunction()

# ------------------------------------------------------------------------------------------ NCCL and cuBLAS

# Headers only: the libraries are opened when a GPU is there.
function(tutti_find_cuda_package name header reason)
  string(TOUPPER ${name} upper)
  set(lacks "${TUTTI_CUDA_LEFT_OUT}")
  if(lacks STREQUAL "")
    file(GLOB unpacked ${TUTTI_CUDA_PACKAGES}/nvidia/*/include)
    find_path(TUTTI_${upper}_INCLUDE ${header} HINTS ${TUTTI_CUDA_INCLUDE} ${unpacked})
    if(NOT TUTTI_${upper}_INCLUDE)
      set(lacks "${header} was not found (${reason})")
    elseif(name STREQUAL "nccl")
      file(STRINGS ${TUTTI_NCCL_INCLUDE}/nccl.h version REGEX "define NCCL_(MAJOR|MINOR) ")
      string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]+([0-9]+).*" "\\1.\\2" version "${version}")
      if(version VERSION_LESS 2.18)
        set(lacks "NCCL in ${TUTTI_NCCL_INCLUDE} is ${version}, older than 2.18")
      endif()
    endif()
  endif()
  if(TUTTI_CUDA STREQUAL "ON" AND NOT lacks STREQUAL "")
    message(FATAL_ERROR "TUTTI_CUDA=ON: ${lacks}")
  elseif(NOT lacks STREQUAL "")
    message(STATUS "${name}: left out: ${lacks}")
  else()
    message(STATUS "${name}: yes, with ${TUTTI_${upper}_INCLUDE}/${header}")
  endif()
  set(TUTTI_${upper}_LEFT_OUT "${lacks}" PARENT_SCOPE)
endfunction()

# ---------------------------------------------------------------------------------------------------- compiling

# The host's part links without a C++ library.
function(tutti_cuda_object variable source)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "FLAGS")
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${source}.o)
  set(host -fPIC,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-fvisibility=hidden,-Wall,-Wextra)
  set(strict "")
  if(TUTTI_WERROR)
    set(strict -Werror all-warnings)
  endif()
  get_filename_component(folder ${object} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  add_custom_command(OUTPUT ${object}
      COMMAND ${TUTTI_NVCC} -O3 -std=c++17 ${TUTTI_CUDA_CODE} ${arg_FLAGS} ${strict} -Xcompiler ${host}
              -I ${PROJECT_SOURCE_DIR} -I ${PROJECT_SOURCE_DIR}/include -MD -MT ${object} -MF ${object}.d
              -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
      DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source} DEPFILE ${object}.d
      COMMENT "Compiling ${source} with nvcc" VERBATIM)
  set(${variable} ${${variable}} ${object} PARENT_SCOPE)
endfunction()

tutti_find_cuda()
tutti_find_cuda_package(nccl nccl.h "Debian: libnccl-dev; PyPI: nvidia-nccl-cu13")
tutti_find_cuda_package(cublas cublas_v2.h "Debian: libcublas-dev; PyPI: nvidia-cublas")
