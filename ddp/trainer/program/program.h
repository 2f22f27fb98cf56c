/*
 * tutti-train as a function.
 */
#ifndef TUTTI_TRAINER_PROGRAM_H
#define TUTTI_TRAINER_PROGRAM_H

/* Runs the program on this rank; returns its exit code. */
int tutti_program_run(int argc, char **argv);

#endif
