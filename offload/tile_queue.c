#include "offload/tile_queue.h"

#include "base/clock.h"
#include "base/patience.h"
#include "base/thread.h"

#include <assert.h>
#include <stdio.h>

enum { UNIT = 4096 };

static const size_t huge_page = (size_t)2 << 20;

static size_t round_up(size_t bytes, size_t unit)
{
    assert(unit > 0);
    return (bytes + unit - 1) / unit * unit;
}

// Of memory for `bytes` bytes: large ones begin at a huge page, and small ones lie in one.
static size_t spacing(size_t bytes)
{
    size_t unit = UNIT;
    while (unit < bytes && unit < huge_page)
        unit *= 2;
    return round_up(bytes, unit);
}

static struct off_io_config io_config(const struct off_tile_queue_config *config,
                                      const struct off_range *range)
{
    return (struct off_io_config){
        .engine = config->engine,
        .transfer_bytes = config->transfer_bytes,
        .credits = {config->credits[OFF_READ], config->credits[OFF_WRITE]},
        .ranges = range,
        .range_count = 1,
    };
}

size_t off_tile_queue_pages(const struct off_tile_queue_config *config, size_t tile_bytes)
{
    return round_up(config->places * spacing(tile_bytes) + spacing(config->more_bytes), huge_page);
}

struct off_io_memory off_tile_queue_memory(const struct off_tile_queue_config *config)
{
    const struct off_io_config io = io_config(config, NULL);
    return off_io_memory(&io);
}

zero_result off_tile_queue_create(struct off_tile_queue *queue,
                                  const struct off_tile_queue_config *config,
                                  struct base_error *error)
{
    const struct off_direct_file *file = off_tilefile_file(config->tilefile);
    size_t room = 0;
    for (size_t i = 0; i < config->tiles; i++)
        if (off_tilefile_room_bytes(config->tilefile, i) > room)
            room = off_tilefile_room_bytes(config->tilefile, i);
    *queue = (struct off_tile_queue){
        .tilefile = config->tilefile,
        .spacing = spacing(room),
        .timeout_ns = (uint64_t)(config->timeout_s * 1e9),
    };
    zero_result result = off_pages_create(&queue->pages, off_tile_queue_pages(config, room), error);
    const struct off_range range = {.memory = queue->pages.memory, .bytes = queue->pages.bytes};
    const struct off_io_config io = io_config(config, &range);
    if (!result)
        result = off_io_create(&queue->io, &io, error);
    return result
               ? result
               : off_io_add_file(queue->io, file->fd, file->unit, file->path, &queue->file, error);
}

void *off_tile_queue_place(const struct off_tile_queue *queue, size_t number)
{
    assert(number * queue->spacing <= queue->pages.bytes);
    return (unsigned char *)queue->pages.memory + number * queue->spacing;
}

zero_result off_tile_queue_submit(struct off_tile_queue *queue, struct off_tile_request *request,
                                  bool decodes, struct base_error *error)
{
    const size_t tile = request->tile;
    assert(request->stored > 0);
    assert(request->stored <= off_tilefile_tile_bytes(queue->tilefile, tile));
    const bool reads = request->request.direction == OFF_READ;
    const bool encoded = request->stored < off_tilefile_tile_bytes(queue->tilefile, tile);
    if (encoded && !decodes)
        return zero_fail(error, ZERO_E_UNSUPPORTED,
                         "%s: tile %zu is encoded, %zu bytes at offset %ju, and there is no codec",
                         off_tilefile_file(queue->tilefile)->path, tile, request->stored,
                         (uintmax_t)off_tilefile_current_place(queue->tilefile, tile));
    snprintf(request->name, sizeof request->name, "tile %zu", tile);
    request->request.file = queue->file;
    request->request.bytes = off_tilefile_room_for(request->stored);
    request->request.offset = request->recorded ? request->recorded->offset
                              : reads           ? off_tilefile_current_place(queue->tilefile, tile)
                                                : off_tilefile_next_place(queue->tilefile, tile);
    request->request.what = request->name;
    return off_io_submit(queue->io, &request->request, error);
}

static uint64_t moved(const struct off_tile_queue *queue)
{
    const struct off_io_counts counts = off_io_counts(queue->io);
    return counts.bytes[OFF_READ] + counts.bytes[OFF_WRITE];
}

zero_result off_tile_queue_take(struct off_tile_queue *queue, bool waits, struct off_request **done)
{
    const uint64_t timeout = queue->timeout_ns, before = moved(queue), began = base_clock_ns();
    const uint64_t until = waits ? began + base_patience_part(timeout) : 0;
    const zero_result result = off_io_wait(queue->io, until, done);
    const bool idle = result && moved(queue) == before;
    queue->idle_ns = idle ? queue->idle_ns + base_patience_spent(timeout, began) : 0;
    return result && base_patience_over(timeout, queue->idle_ns, 0) ? ZERO_E_TIMEOUT : result;
}

void off_tile_queue_timed_out(const struct off_tile_queue *queue, const struct base_error *before,
                              struct base_error *failure)
{
    char oldest[128];
    zero_fail(failure, ZERO_E_TIMEOUT,
              "%s: nothing was read or written for %g s, with %zu under way, the longest %s%s%s",
              off_tilefile_file(queue->tilefile)->path, (double)queue->timeout_ns * 1e-9,
              off_io_pending(queue->io), off_io_oldest(queue->io, oldest, sizeof oldest),
              before->result ? "; after " : "", before->message);
}

zero_result off_tile_queue_take_unlocked(struct off_tile_queue *queue, pthread_mutex_t *mutex,
                                         bool waits, struct off_request **done)
{
    assert(!queue->taking);
    queue->taking = true;
    queue->takes++;
    pthread_mutex_unlock(mutex);
    const zero_result result = off_tile_queue_take(queue, waits, done);
    pthread_mutex_lock(mutex);
    queue->taking = false;
    return result;
}

zero_result off_tile_queue_await(const struct off_tile_queue *queue, struct off_watch *watch,
                                 pthread_cond_t *news, pthread_mutex_t *mutex)
{
    const uint64_t timeout = queue->timeout_ns, began = base_clock_ns();
    base_cond_wait_until(news, mutex, began + base_patience_part(timeout));
    if (!queue->taking || queue->takes != watch->takes)
        *watch = (struct off_watch){.takes = queue->takes};
    else
        watch->stuck_ns += base_patience_spent(timeout, began);
    // Who takes has waited a part itself.
    return base_patience_over(timeout, watch->stuck_ns, 2) ? ZERO_E_TIMEOUT : ZERO_OK;
}

void off_tile_queue_stuck(const struct off_tile_queue *queue, const struct off_request *one,
                          const struct base_error *before, struct base_error *failure)
{
    char where[160] = "";
    if (one)
        snprintf(where, sizeof where, ", of which one is %s: %zu bytes %s offset %ju", one->what,
                 one->bytes, one->direction == OFF_READ ? "from" : "to", (uintmax_t)one->offset);
    zero_fail(failure, ZERO_E_TIMEOUT, "%s: reads and writes have not come back for %g s%s%s%s",
              off_tilefile_file(queue->tilefile)->path, (double)queue->timeout_ns * 1e-9, where,
              before->result ? "; after " : "", before->message);
}

void off_tile_queue_end(struct off_tile_queue *queue)
{
    off_io_destroy(queue->io);
    queue->io = NULL;
}

void off_tile_queue_destroy(struct off_tile_queue *queue)
{
    assert(!queue->io); // it has ended
    off_pages_destroy(&queue->pages);
}
