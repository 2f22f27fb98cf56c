/*
 * Ctrl-C between two steps: SIGINT and SIGTERM are recorded, so that a run can write a checkpoint before it ends.
 */
#ifndef TUTTI_TRAINER_STOP_H
#define TUTTI_TRAINER_STOP_H

/* From now on the first SIGINT and the first SIGTERM are only recorded; a second one of the same kind ends the
 * process, as by default. A signal that the process ignores or handles itself is left alone. */
void tutti_stop_listen(void);
/* Restores the state before tutti_stop_listen. */
void tutti_stop_forget(void);

/* The signal that was received; 0: none. */
int tutti_stop_signal(void);

#endif
