/*
 * The choice of the engine for collectives on CUDA memory (comm/gpu/stream.h).
 */
#ifndef TUTTI_ENGINES_H
#define TUTTI_ENGINES_H

#include "comm/gpu/stream.h"

extern const tutti_stream_engine tutti_engine_single, tutti_engine_same_gpu, tutti_engine_nccl, tutti_engine_staged;

/* Bytes for the reason why an engine does not fit. */
#define TUTTI_ENGINES_REASON_BYTES 384

/* Lets every engine fill in its capabilities. */
void tutti_engines_fill_caps(const tutti_comm *comm, tutti_stream_caps *own);
/* Returns the first engine of the table that fits; TUTTI_ALGORITHM overrides it if the named engine fits. All ranks
 * choose the same. */
const tutti_stream_engine *tutti_engines_choose(const tutti_comm *comm);
/* True if TUTTI_ALGORITHM=name names an engine. */
bool tutti_engines_have(const char *name);
const char *tutti_engines_names(void);
/* The rows of the table, for tutti-info; NULL after the last. */
const char *tutti_engines_row(int index, char *text, size_t capacity);

#endif
