/*
 * tutti-train.
 */
#include "ddp/trainer/program.h"

int main(int argc, char **argv) {
    return tutti_program_run(argc, argv);
}
