# Global tensors in CUDA memory, on stand-ins for GPUs; and on real ones, as <name>_gpu.
set(tensor ${CMAKE_CURRENT_SOURCE_DIR}/tensor)
tutti_cuda_test(tensor_cuda ${tensor}/test_tensor_cuda.c ${tensor}/both.c TIMEOUT 300 JOBS 2 LABELS sanitized)
tutti_cuda_test(tensor_stream ${tensor}/test_tensor_stream.c ${tensor}/both.c support/cuda_graph.c TIMEOUT 300 JOBS 3 LABELS quick)
tutti_cuda_test(tensor_dlpack_cuda ${tensor}/test_tensor_dlpack_cuda.c LABELS quick)
tutti_cuda_test(tensor_cuda_failure ${tensor}/test_tensor_cuda_failure.c ${tensor}/both.c TIMEOUT 300 JOBS 3 PROCESSES)
set_tests_properties(tensor_cuda_failure PROPERTIES RUN_SERIAL TRUE) # it measures times
foreach(test tensor_cuda tensor_stream tensor_cuda_failure tensor_dlpack_cuda)
  add_dependencies(test_${test} standin_nccl)
  set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT "TUTTI_NCCL_LIBRARY=$<TARGET_FILE:standin_nccl>")
  tutti_gpu_test(${test})
endforeach()

if(NOT TUTTI_SANITIZE)
  # One GPU for all ranks, one for each, and with one side in host memory: of these sums of floats are the host's.
  tutti_script_test(tensor_cases_cuda LABELS quick TIMEOUT 240 COMMAND ${run_model} 5 500)
  tutti_script_test(tensor_cases_nccl LABELS quick TIMEOUT 240 COMMAND ${run_model} 6 200)
  tutti_script_test(tensor_cases_staged LABELS quick TIMEOUT 240 COMMAND ${run_model} 7 200)
  tutti_script_test(tensor_cases_cuda_many LABELS longest TIMEOUT 3600 COMMAND ${run_model} 8 4000)
  tutti_script_test(tensor_cases_cuda_routes LABELS longest TIMEOUT 3600 COMMAND ${run_model} 9 2000 all_reduce,pieces,messages
                    reduce_scatter,pieces,all_to_all all_reduce,shares)
  set(standins "TUTTI_CUDA_MODULE=$<TARGET_FILE:standin_cuda>" "TUTTI_NCCL_LIBRARY=$<TARGET_FILE:standin_nccl>")
  set(on_one tensor_cases_cuda tensor_cases_cuda_many tensor_cases_cuda_routes)
  set_property(TEST ${on_one} tensor_cases_nccl tensor_cases_staged APPEND PROPERTY ENVIRONMENT ${standins})
  set_property(TEST ${on_one} APPEND PROPERTY ENVIRONMENT STANDIN_GPUS=1 MODEL_MEMORY=cuda)
  set_property(TEST tensor_cases_nccl APPEND PROPERTY ENVIRONMENT STANDIN_GPUS=8 MODEL_MEMORY=cuda TUTTI_DETERMINISTIC=1)
  set_property(TEST tensor_cases_staged APPEND PROPERTY ENVIRONMENT STANDIN_GPUS=2 MODEL_MEMORY=from_cuda)
  add_dependencies(model_probe standin_cuda standin_nccl)
endif()
