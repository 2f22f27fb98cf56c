/*
 * Includes the file that OP_TEMPLATE names twice: with REAL float and with REAL double. OF(word) is the name of a function of that
 * type, its own or one of op_math.h.
 */
#define OF(word) word##_f32
#define REAL     float
#include OP_TEMPLATE
#undef OF
#undef REAL
#define OF(word) word##_f64
#define REAL     double
#include OP_TEMPLATE
#undef OF
#undef REAL
#undef OP_TEMPLATE
