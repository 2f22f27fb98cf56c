/*
 * placeholder
 */
#include "bootstrap/base/status.h"
#include "comm/door.h"
tutti_status tutti_door_connect(const tutti_door_card *card, const tutti_ticket *ticket, tutti_deadline *deadline,
                                int *socket_out) { (void)card; (void)ticket; (void)deadline; (void)socket_out; return tutti_fail(TUTTI_ERR_UNSUPPORTED, "no door"); }
tutti_status tutti_door_take(const tutti_ticket *ticket, int *socket_out) { (void)ticket; (void)socket_out; return tutti_fail(TUTTI_ERR_UNSUPPORTED, "no door"); }
int tutti_door_bell(void) { return -1; }
