// What tells hosts apart. Containers share a kernel, and so its boot id: their network namespaces
// tell whether they see each other's abstract sockets.

#include "collectives/rendezvous/mesh.h"

#include "base/hash.h"
#include "base/text.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BOOT_ID_BYTES = 36 };

static bool add_boot_id(struct base_text *text)
{
    char id[BOOT_ID_BYTES + 1] = "";
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    const ssize_t length = fd >= 0 ? read(fd, id, BOOT_ID_BYTES) : -1;
    if (fd >= 0)
        close(fd);
    base_text_add(text, "%s", id);
    return length == BOOT_ID_BYTES;
}

static bool add_namespace(struct base_text *text, const char *path)
{
    struct stat found;
    if (stat(path, &found))
        return false;
    base_text_add(text, " %ju:%ju", (uintmax_t)found.st_dev, (uintmax_t)found.st_ino);
    return true;
}

void boot_host_id(unsigned char host_id[BOOT_HOST_ID_BYTES])
{
    char bytes[160] = "";
    struct base_text text = {bytes, sizeof bytes, 0};
    if (add_boot_id(&text) && add_namespace(&text, "/proc/self/ns/net") &&
        add_namespace(&text, "/proc/self/ns/user")) {
        base_text_add(&text, " %ju", (uintmax_t)geteuid());
        base_hash128_bytes(base_hash128(bytes, text.used, 0), host_id);
        return;
    }
    // Without /proc no other process is known to be on this host. The number of this process stands
    // in front for the case that there is no random number either.
    const pid_t pid = getpid();
    memset(host_id, 0, BOOT_HOST_ID_BYTES);
    memcpy(host_id, &pid, sizeof pid);
    const ssize_t filled =
        getrandom(host_id + sizeof pid, BOOT_HOST_ID_BYTES - sizeof pid, GRND_NONBLOCK);
    (void)filled;
}
