/*
 * tutti-train.
 */
#include "ddp/trainer/program/nodes.h"
#include "ddp/trainer/program/program.h"

int main(int argc, char **argv) {
    if (tutti_nodes_given(argc, argv)) {
        if (!tutti_nodes_is_rank()) return tutti_nodes_start(argc, argv);
        if (!tutti_nodes_leave_out(&argc, argv)) return 1;
    }
    return tutti_program_run(argc, argv);
}
