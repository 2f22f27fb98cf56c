/*
 * Ctrl-C between two steps: SIGINT and SIGTERM are taken note of, so that a run can write a checkpoint before it ends.
 */
#ifndef TUTTI_TRAINER_STOP_H
#define TUTTI_TRAINER_STOP_H

/* From now on the first SIGINT and the first SIGTERM are only noted; each of them a second time ends the process, as it does
 * by default. A signal that the process ignores, or handles itself, stays as it is. */
void tutti_stop_listen(void);
/* As before tutti_stop_listen. */
void tutti_stop_forget(void);

/* The signal that came, 0: none. */
int tutti_stop_signal(void);

#endif
