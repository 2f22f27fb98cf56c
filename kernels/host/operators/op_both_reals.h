/*
 * Includes the file that OP_TEMPLATE names twice: with REAL float and with REAL double. OF(word) is the name of a
 * function for that type, from the template or from op_math.h.
 */
#define OF(word)  word##_f32
#define REAL      float
#define REAL_TYPE TUTTI_FLOAT32
#include OP_TEMPLATE
#undef OF
#undef REAL
#undef REAL_TYPE
#define OF(word)  word##_f64
#define REAL      double
#define REAL_TYPE TUTTI_FLOAT64
#include OP_TEMPLATE
#undef OF
#undef REAL
#undef REAL_TYPE
#undef OP_TEMPLATE
