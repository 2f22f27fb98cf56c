/*
 * Where encryption is demanded, nothing else is chosen, and nothing else is opened.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "comm/net/async_connect.h"
#include "tests/support/links/mesh.h"

static const tutti_transport *const tls = &tutti_tls_transport;

static void need_tls(void) {
    if (tls->check() != TUTTI_OK) cr_skip_test("%s", tutti_last_error());
}

TestSuite(tls_choice, .init = need_tls, .timeout = 60);

static tutti_status available(const char *encrypt, const char *transports, uint32_t *mask_out) {
    setenv("TUTTI_ENCRYPT", encrypt, 1);
    setenv("TUTTI_TRANSPORT", transports, 1);
    tutti_settings_reload();
    return tutti_transports_available(mask_out);
}

Test(tls_choice, is_the_only_choice_where_encryption_is_demanded) {
    uint32_t plain = 0, only = 0, mask;
    cr_assert_eq(available("0", "", &plain), TUTTI_OK);
    cr_assert_eq(available("0", "tls", &only), TUTTI_OK, "%s", tutti_last_error());
    cr_assert(only != 0 && (only & (only - 1)) == 0 && (plain & only) == 0);
    cr_assert(available("1", "", &mask) == TUTTI_OK && mask == only);
    cr_assert(available("1", "tls", &mask) == TUTTI_OK && mask == only);
    static const char *const others[] = {"tcp", "verbs", "ucx", "tls,tcp"};
    for (size_t i = 0; i < TUTTI_COUNT_OF(others); i++) {
        cr_assert_eq(available("1", others[i], &mask), TUTTI_ERR_CONFIG, "%s", others[i]);
        const char *text = tutti_last_error();
        cr_assert(strstr(text, "TUTTI_ENCRYPT") && strstr(text, "TUTTI_TRANSPORT") && strstr(text, others[i]), "%s",
                  text);
    }
    cr_assert_eq(tutti_transport_permit(tls), TUTTI_OK);
    cr_assert_eq(tutti_transport_permit(&tutti_tcp_transport), TUTTI_ERR_REFUSED);
    setenv("TUTTI_ENCRYPT", "0", 1);
    tutti_settings_reload();
    cr_assert_eq(tutti_transport_permit(&tutti_tcp_transport), TUTTI_OK);
}

/* Whatever transport was chosen, a pipe that does not encrypt is not opened. */
Test(tls_choice, no_other_pipe_is_opened_where_encryption_is_demanded) {
    uint32_t mask;
    int sockets[2];
    tutti_async_connect *attempt = NULL;
    tutti_pipe *pipe;
    tutti_listener_info listener = {.port = 0};
    tutti_conn_id conn_id = {.transport = 0, .lanes = 1};
    cr_assert_eq(available("1", "", &mask), TUTTI_OK, "%s", tutti_last_error());
    while (tutti_transports[conn_id.transport] != &tutti_tcp_transport) conn_id.transport++;
    cr_assert_eq(mesh_pair(MESH_UNIX, sockets), TUTTI_OK);
    tutti_connection taken = {.socket = sockets[0]};
    cr_assert_eq(tutti_async_connect_start(&listener, &conn_id, &taken, 5000, &attempt), TUTTI_OK);
    tutti_status status;
    while ((status = tutti_async_connect_take(attempt, &pipe)) == TUTTI_NOT_YET) usleep(1000);
    cr_assert(status == TUTTI_ERR_REFUSED && strstr(tutti_last_error(), "tcp") != NULL, "%s", tutti_last_error());
    char byte;
    cr_assert_eq(recv(sockets[1], &byte, 1, 0), 0, "the connection was left open");
    close(sockets[1]);
}
