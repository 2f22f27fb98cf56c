/* cr_log_info and its like are in criterion.h here. */
#include <criterion/criterion.h>
