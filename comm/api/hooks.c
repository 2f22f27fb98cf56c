/*
 * The functions that lower folders call. See comm/base/hooks.h.
 */
#include "comm/base/hooks.h"

#include "comm/api/api.h"
#include "comm/gpu/stream.h"
#include "comm/health/heartbeat.h"
#include "comm/health/monitor.h"
#include "comm/p2p/channel.h"
#include "comm/p2p/p2p.h"

const tutti_hook_table tutti_hooks = {
    .p2p_progress = tutti_p2p_progress,
    .p2p_progress_in_turn = tutti_p2p_progress_in_turn,
    .p2p_pending = tutti_p2p_pending,
    .p2p_forget = tutti_p2p_forget,
    .p2p_see_off = tutti_p2p_see_off,
    .channel_attend = tutti_channel_attend,
    .channel_sleep_begin = tutti_channel_sleep_begin,
    .channel_sleep = tutti_channel_sleep,
    .channel_sleep_end = tutti_channel_sleep_end,
    .channel_ring_own = tutti_channel_ring_own,
    .monitor_look = tutti_monitor_look,
    .monitor_report = tutti_monitor_report,
    .monitor_missing = tutti_monitor_missing,
    .monitor_mismatch = tutti_monitor_mismatch,
    .heartbeat_now = tutti_heartbeat_now,
    .heartbeat_read_deaths = tutti_heartbeat_read_deaths,
    .stream_attend = tutti_stream_attend,
    .comm_free = tutti_comm_free,
};
