/*
 * Entries in PyTorch's flight recorder. See flight.h.
 *
 * PyTorch's libraries export the recorder, but not its functions. This file writes what these functions write.
 */
#include "flight.h"

#include "../base/versions.h"

#ifdef TUTTI_HAVE_FLIGHT_RECORDERS
#include <c10/util/thread_name.h>
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>

#include <map>
#include <mutex>
#include <thread>
#endif

namespace torch_tutti {

#ifdef TUTTI_HAVE_FLIGHT_RECORDERS
namespace {

using Recorder = c10d::FlightRecorder<c10::Event>;

/* Group numbers that differ from those of Gloo's own groups. */
std::atomic<size_t> next_group{size_t{1} << 20};

class GlooFlight final : public Flight {
public:
    explicit GlooFlight(Recorder *recorder) : recorder_(recorder) {}
    void introduce(const Group &group) override;
    void begins(uint64_t key, const Group &group, const Operation &operation) override;
    void ended(uint64_t key) override;

private:
    /* The place of an entry, valid until a newer entry overwrites it. */
    struct Place {
        size_t index, id, epoch;
    };
    Recorder::Entry entry_of(const Group &group, const Operation &operation);

    Recorder *const recorder_;
    const size_t number_ = next_group.fetch_add(1, std::memory_order_relaxed);
    const std::shared_ptr<c10d::ProcessGroupStatus> status_ = std::make_shared<c10d::ProcessGroupStatus>();
    std::mutex mutex_;
    std::string introduced_; /* under this name */
    size_t collectives_ = 0, messages_ = 0, operations_ = 0;
    std::map<uint64_t, Place> under_way_;
};

void GlooFlight::introduce(const Group &group) {
    auto own = static_cast<size_t>(group.rank);
    recorder_->setRank(static_cast<int>(group.ranks.at(own)));
    std::lock_guard<std::mutex> lock(recorder_->mutex_);
    recorder_->pg_name_to_ranks_[{group.name, group.description}] = group.ranks;
}

Recorder::Entry GlooFlight::entry_of(const Group &group, const Operation &operation) {
    Recorder::Entry entry = {};
    (operation.is_message ? messages_ : collectives_)++;
    entry.pg_id_ = number_;
    entry.pg_name_ = {group.name, group.description};
    entry.collective_seq_id_ = collectives_;
    entry.p2p_seq_id_ = messages_;
    entry.op_id_ = operations_++;
    entry.profiling_name_ = operation.title;
    entry.time_created_ = c10::getTime();
    entry.timeout_ms_ = operation.timeout.count();
    entry.isP2P_ = operation.is_message;
    for (const at::Tensor &tensor : operation.inputs) {
        entry.input_dims_.push_back(tensor.dim());
        entry.input_dtypes_.push_back(tensor.scalar_type());
        entry.sizes_.append(tensor.sizes().begin(), tensor.sizes().end());
    }
    for (const at::Tensor &tensor : operation.outputs) {
        entry.output_dims_.push_back(tensor.dim());
        entry.output_dtypes_.push_back(tensor.scalar_type());
        entry.sizes_.append(tensor.sizes().begin(), tensor.sizes().end());
    }
    entry.thread_id_ = std::this_thread::get_id();
    entry.thread_name_ = c10::getThreadName();
    return entry;
}

void GlooFlight::begins(uint64_t key, const Group &group, const Operation &operation) {
    /* Takes the GIL; a thread that waits for the GIL may hold one of the locks below. */
    auto stack = torch::CapturedTraceback::gather(/* python */ true, /* script */ true, recorder_->capture_cpp_stack_);
    std::shared_ptr<torch::CapturedTraceback> replaced; /* destroyed without the locks */
    std::lock_guard<std::mutex> own(mutex_);
    if (introduced_ != group.name) introduce(group);
    introduced_ = group.name;
    auto entry = entry_of(group, operation);
    entry.traceback_ = std::move(stack);
    status_->lastEnqueuedSeq = static_cast<int64_t>(collectives_);
    status_->lastEnqueuedWorkName = operation.title;
    std::lock_guard<std::mutex> lock(recorder_->mutex_);
    recorder_->all_pg_status_[number_] = status_;
    entry.id_ = recorder_->id_++;
    entry.reset_epoch_ = recorder_->reset_epoch_;
    size_t index = recorder_->next_;
    under_way_[key] = {index, entry.id_, entry.reset_epoch_};
    /* The oldest entries have been overwritten, at the latest now. */
    if (under_way_.size() > recorder_->max_entries_) under_way_.erase(under_way_.begin());
    if (index < recorder_->entries_.size()) {
        replaced = std::move(recorder_->entries_[index].traceback_);
        recorder_->entries_[index] = std::move(entry);
    } else {
        recorder_->entries_.push_back(std::move(entry));
    }
    recorder_->next_ = (index + 1) % recorder_->max_entries_;
}

void GlooFlight::ended(uint64_t key) {
    std::lock_guard<std::mutex> own(mutex_);
    auto found = under_way_.find(key);
    if (found == under_way_.end()) return;
    Place place = found->second;
    under_way_.erase(found);
    std::lock_guard<std::mutex> lock(recorder_->mutex_);
    Recorder::Entry &entry = recorder_->entries_.at(place.index);
    if (entry.id_ != place.id || entry.reset_epoch_ != place.epoch) return;
    auto now = c10::getTime();
    entry.time_discovered_started_ = now;
    entry.time_discovered_completed_ = now;
    entry.retired_ = true;
    status_->lastCompletedSeq = static_cast<int64_t>(entry.collective_seq_id_);
    status_->lastCompletedWorkName = entry.profiling_name_;
}

} // namespace

std::shared_ptr<Flight> Flight::of_gloo() {
    Recorder *recorder = c10d::getFlightRecorder(c10d::kDefaultFRBackend);
    return recorder->enabled_ ? std::make_shared<GlooFlight>(recorder) : nullptr;
}

#else

std::shared_ptr<Flight> Flight::of_gloo() {
    return nullptr;
}

#endif

} // namespace torch_tutti
