/*
 * The error for a wrong argument.
 *
 * PyTorch's own backends disagree about its type in Python: Gloo and nccl2 raise a RuntimeError, the older NCCL
 * mostly a ValueError. torch_tutti.ArgumentError is both, so that programs written for either type catch it.
 */
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

namespace torch_tutti {

/* Where PyTorch translates errors without pybind11, for example around backward(), it becomes a plain ValueError. */
class ArgumentError : public c10::ValueError {
public:
    using c10::ValueError::ValueError;
};

} // namespace torch_tutti

/* Like TORCH_CHECK_VALUE, which can only throw c10's own types. */
#define TUTTI_CHECK_VALUE(condition, ...)                                                                              \
    if (C10_UNLIKELY(!(condition)))                                                                                    \
    throw ::torch_tutti::ArgumentError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, c10::str(__VA_ARGS__))
