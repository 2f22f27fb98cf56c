/*
 * Collectives over lists of tensors: the engine's v-variants take the tensors where they lie, without flattening.
 */
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "../backend/backend.h"

namespace torch_tutti {

namespace {

/* The addresses and counts of a list, as arguments of the v-variants. */
struct Table {
    std::vector<const void *> srcs;
    std::vector<void *> dsts;
    std::vector<size_t> counts;
};

size_t count_of(const at::Tensor &tensor, Elements as) {
    return static_cast<size_t>(tensor.numel()) * as.per_item;
}

void check_list(const Backend::Tensors &list, int nranks, at::ScalarType dtype, const char *what) {
    TUTTI_CHECK_VALUE(list.size() == static_cast<size_t>(nranks), "tutti: ", what, " needs a list of ", nranks,
                      " tensors, one for each rank, and this one has ", list.size());
    for (const at::Tensor &tensor : list)
        TUTTI_CHECK_VALUE(tensor.scalar_type() == dtype, "tutti: ", what, " of tensors of ", dtype, " and ",
                          tensor.scalar_type());
}

Table inputs(Operands &operands, const Backend::Tensors &list, Elements as) {
    Table table;
    for (const at::Tensor &tensor : list) {
        table.srcs.push_back(operands.in(tensor));
        table.counts.push_back(count_of(tensor, as));
    }
    return table;
}

Table outputs(Operands &operands, const Backend::Tensors &list, Elements as) {
    Table table;
    for (const at::Tensor &tensor : list) {
        table.dsts.push_back(operands.out(tensor));
        table.counts.push_back(count_of(tensor, as));
    }
    return table;
}

const at::Tensor &only(const Backend::Tensors &tensors, const char *what) {
    TUTTI_CHECK_VALUE(tensors.size() == 1, "tutti: ", what, " takes one tensor, ", tensors.size(), " given");
    return tensors[0];
}

} // namespace

Backend::WorkPtr Backend::allgather(TensorLists &output_lists, Tensors &input_list,
                                    const c10d::AllgatherOptions &opts) {
    const at::Tensor &input = only(input_list, "all_gather");
    TUTTI_CHECK_VALUE(output_lists.size() == 1, "tutti: all_gather takes one list of outputs");
    check_list(output_lists[0], getSize(), input.scalar_type(), "all_gather");
    Elements as = moved_as(input.scalar_type());
    Operands operands;
    const auto *src = operands.in(input);
    operands.inputs = input_list;
    size_t count = count_of(input, as);
    Table to = outputs(operands, output_lists[0], as);
    operands.results = output_lists[0];
    return start(make_call(c10d::OpType::ALLGATHER, "tutti:all_gather", opts), std::move(operands),
                 [=, to = std::move(to)](tutti_comm *comm, const tutti_options *options) {
                     return tutti_all_gather_v(comm, src, count, to.dsts.data(), to.counts.data(), as.type, options);
                 });
}

Backend::WorkPtr Backend::gather(TensorLists &output_lists, Tensors &input_list, const c10d::GatherOptions &opts) {
    const at::Tensor &input = only(input_list, "gather");
    bool is_root = getRank() == opts.rootRank;
    TUTTI_CHECK_VALUE(output_lists.size() == (is_root ? 1 : 0), "tutti: gather takes a list of outputs on rank ",
                      opts.rootRank, " and none elsewhere");
    if (is_root) check_list(output_lists[0], getSize(), input.scalar_type(), "gather");
    Elements as = moved_as(input.scalar_type());
    Operands operands;
    const auto *src = operands.in(input);
    operands.inputs = input_list;
    size_t count = count_of(input, as);
    Table to;
    if (is_root) {
        to = outputs(operands, output_lists[0], as);
        operands.results = output_lists[0];
    }
    int root = static_cast<int>(opts.rootRank);
    return start(make_call(c10d::OpType::GATHER, "tutti:gather", opts), std::move(operands),
                 [=, to = std::move(to)](tutti_comm *comm, const tutti_options *options) {
                     return tutti_gather_v(comm, src, count, to.dsts.data(), to.counts.data(), as.type, root, options);
                 });
}

Backend::WorkPtr Backend::scatter(Tensors &output_list, TensorLists &input_lists, const c10d::ScatterOptions &opts) {
    const at::Tensor &output = only(output_list, "scatter");
    bool is_root = getRank() == opts.rootRank;
    TUTTI_CHECK_VALUE(input_lists.size() == (is_root ? 1 : 0), "tutti: scatter takes a list of inputs on rank ",
                      opts.rootRank, " and none elsewhere");
    if (is_root) check_list(input_lists[0], getSize(), output.scalar_type(), "scatter");
    Elements as = moved_as(output.scalar_type());
    Operands operands;
    auto *dst = operands.out(output);
    size_t count = count_of(output, as);
    operands.results = output_list;
    Table from;
    if (is_root) {
        from = inputs(operands, input_lists[0], as);
        operands.inputs = input_lists[0];
    }
    int root = static_cast<int>(opts.rootRank);
    return start(make_call(c10d::OpType::SCATTER, "tutti:scatter", opts), std::move(operands),
                 [=, from = std::move(from)](tutti_comm *comm, const tutti_options *options) {
                     return tutti_scatter_v(comm, from.srcs.data(), from.counts.data(), dst, count, as.type, root,
                                            options);
                 });
}

Backend::WorkPtr Backend::reduce_scatter(Tensors &output_list, TensorLists &input_lists,
                                         const c10d::ReduceScatterOptions &opts) {
    const at::Tensor &output = only(output_list, "reduce_scatter");
    TUTTI_CHECK_VALUE(input_lists.size() == 1, "tutti: reduce_scatter takes one list of inputs");
    check_list(input_lists[0], getSize(), output.scalar_type(), "reduce_scatter");
    const at::Tensor &own = input_lists[0][static_cast<size_t>(getRank())];
    TUTTI_CHECK_VALUE(own.numel() == output.numel(), "tutti: reduce_scatter of ", own.numel(),
                      " elements for this rank into an output of ", output.numel());
    Reduction as = reduced_as(output.scalar_type(), opts.reduceOp);
    Operands operands;
    auto *dst = operands.out(output);
    Table from = inputs(operands, input_lists[0], as.elements);
    operands.inputs = input_lists[0];
    operands.results = output_list;
    Call call = make_call(c10d::OpType::REDUCE_SCATTER, "tutti:reduce_scatter", opts);
    call.factor = as.factor;
    return start(call, std::move(operands),
                 [=, from = std::move(from)](tutti_comm *comm, const tutti_options *options) {
                     return tutti_reduce_scatter_v(comm, from.srcs.data(), dst, from.counts.data(), as.elements.type,
                                                   as.op, options);
                 });
}

Backend::WorkPtr Backend::alltoall(Tensors &output_list, Tensors &input_list, const c10d::AllToAllOptions &opts) {
    TUTTI_CHECK_VALUE(!input_list.empty(), "tutti: all_to_all needs a list of tensors");
    at::ScalarType dtype = input_list[0].scalar_type();
    check_list(input_list, getSize(), dtype, "all_to_all");
    check_list(output_list, getSize(), dtype, "all_to_all");
    Elements as = moved_as(dtype);
    Operands operands;
    Table from = inputs(operands, input_list, as), to = outputs(operands, output_list, as);
    operands.inputs = input_list;
    operands.results = output_list;
    return start(make_call(c10d::OpType::ALLTOALL, "tutti:all_to_all", opts), std::move(operands),
                 [=, from = std::move(from), to = std::move(to)](tutti_comm *comm, const tutti_options *options) {
                     return tutti_all_to_all_v(comm, from.srcs.data(), from.counts.data(), to.dsts.data(),
                                               to.counts.data(), as.type, options);
                 });
}

} // namespace torch_tutti
