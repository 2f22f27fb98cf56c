/* cr_log_info and the other log calls are in criterion.h here. */
#include <criterion/criterion.h>
