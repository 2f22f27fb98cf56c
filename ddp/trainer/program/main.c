/*
 * tutti-train.
 */
#include "ddp/trainer/program/nodes.h"
#include "ddp/trainer/program/program.h"

int main(int argc, char **argv) {
    if (tutti_nodes_given(argc, argv)) return tutti_nodes_start(argc, argv);
    return tutti_program_run(argc, argv);
}
