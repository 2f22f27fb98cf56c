# Checks whether the compiler has the C++ standard that PyTorch's headers need: one line here instead of a hundred
# errors in headers.

# tutti_torch_check_standard(STANDARD PYTORCH): STANDARD is 17 or 20, others are not checked; PYTORCH names it in
# the error.
function(tutti_torch_check_standard standard pytorch)
  # What the headers check (ATen.h), and what those of C++20 use: a compiler may have one without the other.
  set(macro_17 201703)
  set(macro_20 202002)
  set(headers_17 optional string_view variant)
  set(headers_20 bit compare concepts ranges)
  set(first_17 "g++ 9 or clang++ 9")
  set(first_20 "g++ 11 or clang++ 16")
  if(NOT DEFINED macro_${standard})
    return() # a later standard: the compiler reports an error
  endif()
  set(source "#if __cplusplus < ${macro_${standard}}L\n#error older\n#endif\n")
  foreach(header IN LISTS headers_${standard})
    string(APPEND source "#include <${header}>\n")
  endforeach()
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/standard)
  file(WRITE ${folder}/standard.cpp "${source}int main() { return 0; }\n")
  try_compile(compiles ${folder} ${folder}/standard.cpp COMPILE_DEFINITIONS -std=c++${standard})
  if(NOT compiles)
    message(FATAL_ERROR " torch_tutti: the headers of ${pytorch} are C++${standard}, which ${CMAKE_CXX_COMPILER} "
                        "(${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}) does not compile: ${first_${standard}} or "
                        "newer is needed; the environment variable CXX names another compiler")
  endif()
endfunction()
