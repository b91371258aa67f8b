// What an agent's peer may send: the first byte says whether what follows begins with a hello,
// which a shell's noise may precede ('n') or not ('h'), or whether both have met ('o'). Each frame
// that is accepted is bounded, and a link that has ended says why.
#include "tools/zero-run/agent_link.h"

#include "tests/fuzz/target.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void take_frames(struct run_link *link)
{
    struct run_frame frame;
    while (run_link_next(link, &frame)) {
        require(frame.type >= RUN_FRAME_CONTROL && frame.type <= RUN_FRAME_INPUT);
        require((frame.type == RUN_FRAME_CONTROL) == json_is_object(frame.object));
        require(frame.count <= RUN_FRAME_BYTES);
        char sum = 0;
        for (size_t i = 0; i < frame.count; i++)
            sum = (char)(sum + frame.bytes[i]);
        (void)sum; // every byte can be read
        json_decref(frame.object);
    }
}

// Writes what fits, and lets the link read it.
static void feed(struct run_link *link, int fd, const uint8_t *data, size_t size)
{
    while (size > 0 && link->state != RUN_LINK_ENDED) {
        const ssize_t count =
            send(fd, data, size < 4096 ? size : 4096, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (count > 0) {
            data += count;
            size -= (size_t)count;
        }
        run_link_turn(link);
        take_frames(link);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct run_link link;
    int ends[2];
    const uint8_t kind = size > 0 ? *data : 'h';
    const struct run_self self = {.side = RUN_SIDE_COORDINATOR, .host = -1, .noisy = kind == 'n'};
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    require(run_link_begin(&link, ends[0], ends[0], &self, NULL) == ZERO_OK);
    if (kind == 'o')
        link.state = RUN_LINK_OPEN;
    if (size > 1)
        feed(&link, ends[1], data + 1, size - 1);
    close(ends[1]);
    for (int i = 0; i < 3 && link.state != RUN_LINK_ENDED; i++) {
        run_link_turn(&link);
        take_frames(&link);
    }
    require(link.state == RUN_LINK_ENDED && link.end && link.why.message[0]);
    require(!link.greeted || memchr(link.theirs.name, '\0', sizeof link.theirs.name));
    run_link_close(&link);
    return 0;
}
