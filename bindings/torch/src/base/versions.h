/*
 * The differences between the versions of PyTorch that the extension supports: 2.4 and newer.
 *
 * Virtual methods need nothing here: a method that an older PyTorch does not have is not marked `override`, and
 * there it is never called. The rest is detected from PyTorch's own types, so that no list of versions has to be
 * kept, except for names of whole types, which C++ cannot detect. Invariant: no other file checks the version.
 */
#pragma once

#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/version.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch_tutti {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 6
enum class WorkResult : uint8_t { SUCCESS = 0, TIMEOUT = 1, COMM_ERROR = 2 };
#else
using c10d::WorkResult;
#endif

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 7
enum class ErrorType : uint8_t { SUCCESS = 0, TIMEOUT = 1, COMM_ERROR = 2, REMOTE_ERROR = 3 };
#else
using c10d::ErrorType;
#endif

/* Hooks that are registered by number. */
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 14
using AbortHook = std::function<void()>;
#else
using c10d::AbortHook;
#endif

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15
struct CompletionHookArgs {
    uint64_t completionKey = 0;
    std::optional<float> duration_ms;
};
using CompletionHook = std::function<void(const CompletionHookArgs &)>;
#else
using c10d::CompletionHook;
using c10d::CompletionHookArgs;
#endif

/* The first fields of ProcessGroupGloo (gloo_shape.h). */
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 8
using GlooStorePointer = std::unique_ptr<int>;
#else
using GlooStorePointer = std::shared_ptr<void>;
#endif

/* True when code can reach the flight recorders of backends that PyTorch does not watch by hooks. */
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
#define TUTTI_HAVE_FLIGHT_RECORDERS 1
#endif

/* The clock of completion hooks: system_clock in old versions, steady_clock in newer ones. */
using HookClock = decltype(c10d::WorkInfo::timeStarted)::clock;

/* Not all options of operations have `asyncOp` before 2.8; there, a caller cannot state that it waits. */
template <typename Opts, typename = void> struct HasAsyncOp : std::false_type {};
template <typename Opts>
struct HasAsyncOp<Opts, std::void_t<decltype(std::declval<Opts>().asyncOp)>> : std::true_type {};

template <typename Opts> bool is_async(const Opts &opts) {
    if constexpr (HasAsyncOp<Opts>::value) return opts.asyncOp;
    else return true;
}

/* From 2.8 on, a caller that waits for a collective (asyncOp false) accepts that the backend returns no work. */
constexpr bool waiters_need_no_work = HasAsyncOp<c10d::AllreduceOptions>::value;

/* Options of groups identify the group from 2.9 on; before, the options of this backend have fields of their own
 * for that. */
struct NoPlaceForGroup {};
struct PlaceForGroup {
    std::string group_name;
    std::vector<uint64_t> global_ranks_in_group;
};
template <typename Opts, typename = void> struct GroupOf : PlaceForGroup {};
template <typename Opts>
struct GroupOf<Opts, std::void_t<decltype(std::declval<Opts>().group_name)>> : NoPlaceForGroup {};

/* True when a new group asks for members that change later (2.14). */
template <typename Group, typename = void> struct TellsReconfigure : std::false_type {};
template <typename Group>
struct TellsReconfigure<Group, std::void_t<decltype(std::declval<Group>().enable_reconfigure)>> : std::true_type {};

template <typename Group> bool wants_reconfigure(const Group &group) {
    if constexpr (TellsReconfigure<Group>::value) return group.enable_reconfigure;
    else return false;
}

/* Streams have a native handle from 2.12 on; `otherwise` finds it before. */
template <typename Stream, typename = void> struct TellsHandle : std::false_type {};
template <typename Stream>
struct TellsHandle<Stream, std::void_t<decltype(std::declval<Stream>().native_handle())>> : std::true_type {};

template <typename Stream> void *handle_of(const Stream &stream, void *(*otherwise)(const Stream &)) {
    if constexpr (TellsHandle<Stream>::value) return stream.native_handle();
    else return otherwise(stream);
}

/* Calls a body if it compiles for these arguments; a body that uses a missing member is left out. */
template <typename Body, typename... Args> void where_valid(Body body, Args &...args) {
    if constexpr (std::is_invocable_v<Body, Args &...>) body(args...);
}

/* The name that PyTorch gives a backend's group after its creation (2.5); the flight recorder uses it. */
template <typename Group, typename = void> struct HasUid : std::false_type {};
template <typename Group>
struct HasUid<Group, std::void_t<decltype(std::declval<Group>().getGroupUid())>> : std::true_type {};

template <typename Group> std::string uid_of(const Group &group) {
    if constexpr (HasUid<Group>::value) return group.getGroupUid();
    else return "";
}

/* Copies what these options contain about the group, as far as this version of PyTorch supports it. */
inline void take_group(c10d::Backend::Options &to, const c10d::Backend::Options &from) {
    where_valid([](auto &a, auto &b) -> decltype(a.group_name = b.group_name) { return a.group_name = b.group_name; },
                to, from);
    where_valid([](auto &a, auto &b) -> decltype(a.group_desc = b.group_desc) { return a.group_desc = b.group_desc; },
                to, from);
    where_valid(
        [](auto &a, auto &b) -> decltype(a.global_ranks_in_group = b.global_ranks_in_group) {
            return a.global_ranks_in_group = b.global_ranks_in_group;
        },
        to, from);
}

} // namespace torch_tutti
