/**
 * collectives/provider/ucx_library.h: UCX's libraries, loaded when they are asked for.
 *
 * Points of base/fault.h: ucx.library (loading them).
 */
#ifndef COLLECTIVES_PROVIDER_UCX_LIBRARY_H
#define COLLECTIVES_PROVIDER_UCX_LIBRARY_H

#include "base/error.h"

#include <ucp/api/ucp.h>

/** The functions that are called: as a field, and by their name in <ucp/api/ucp.h>. */
#define UCX_FUNCTIONS(X)                                                                           \
    X(version, ucp_get_version)                                                                    \
    X(text, ucs_status_string)                                                                     \
    X(config_read, ucp_config_read)                                                                \
    X(config_modify, ucp_config_modify)                                                            \
    X(config_release, ucp_config_release)                                                          \
    X(init, ucp_init_version)                                                                      \
    X(cleanup, ucp_cleanup)                                                                        \
    X(worker_create, ucp_worker_create)                                                            \
    X(worker_destroy, ucp_worker_destroy)                                                          \
    X(worker_address, ucp_worker_get_address)                                                      \
    X(release_address, ucp_worker_release_address)                                                 \
    X(worker_fd, ucp_worker_get_efd)                                                               \
    X(arm, ucp_worker_arm)                                                                         \
    X(progress, ucp_worker_progress)                                                               \
    X(ep_create, ucp_ep_create)                                                                    \
    X(ep_close, ucp_ep_close_nbx)                                                                  \
    X(mem_map, ucp_mem_map)                                                                        \
    X(mem_unmap, ucp_mem_unmap)                                                                    \
    X(set_handler, ucp_worker_set_am_recv_handler)                                                 \
    X(ask, ucp_am_send_nbx)                                                                        \
    X(send, ucp_tag_send_nbx)                                                                      \
    X(receive, ucp_tag_recv_nbx)                                                                   \
    X(cancel, ucp_request_cancel)                                                                  \
    X(request_free, ucp_request_free)

struct ucx_library {
#define UCX_FIELD(field, function) __typeof__(function) *(field);
    UCX_FUNCTIONS(UCX_FIELD)
#undef UCX_FIELD
};

/** The library, loaded by the first call that can. What it does to the dispositions of signals is
 * undone. ZERO_E_UNSUPPORTED: *library is NULL; there is none, it is too old, or it lacks a
 * function. *Local*, any thread. */
zero_result ucx_library(const struct ucx_library **library, struct base_error *error);

#endif
