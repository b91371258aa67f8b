// The pseudo-terminal that a rank has for standard output. The C library, and others, write to a
// terminal line by line, and to a pipe in blocks, the last of which a killed rank takes with it.

#include "tools/zero-run/run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

// Bytes pass as they are: no newline becomes two bytes, and no byte is a command.
static bool make_raw(int fd)
{
    struct termios settings;
    if (tcgetattr(fd, &settings))
        return false;
    cfmakeraw(&settings);
    return tcsetattr(fd, TCSANOW, &settings) == 0;
}

static void set_size(int fd, int like, int columns)
{
    struct winsize size;
    if (ioctl(like, TIOCGWINSZ, &size) || size.ws_col == 0)
        return;
    // A rank that fills its line must not make the terminal break it behind the prefix.
    if (size.ws_col > columns)
        size.ws_col = (unsigned short)(size.ws_col - columns);
    (void)ioctl(fd, TIOCSWINSZ, &size);
}

bool run_terminal_open(int ends[2], int like, int columns)
{
    ends[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    ends[1] = -1;
    if (ends[0] < 0)
        return false;
    // This opens the other end without its path, which another mount namespace may lack.
    if (unlockpt(ends[0]) == 0)
        ends[1] = ioctl(ends[0], TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (ends[1] >= 0 && make_raw(ends[1])) {
        set_size(ends[1], like, columns);
        return true;
    }
    const int reason = errno;
    for (int end = 0; end < 2; end++) {
        if (ends[end] >= 0)
            close(ends[end]);
        ends[end] = -1;
    }
    errno = reason;
    return false;
}
