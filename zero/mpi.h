/**
 * zero/mpi.h: a program that has MPI lends zero its communicator.
 *
 *     #include <zero/mpi.h>                       beside <zero/zero.h>
 *
 *     MPI_Init(&argc, &argv);
 *     zero_config config = zero_config_default();
 *     zero_result result = zero_config_from_mpi(&config, MPI_COMM_WORLD);
 *     if (!result)
 *         result = zero_open(&z, &config);
 *
 * All is in this header: the library itself does not know MPI. It works with each one that has
 * MPI 3.0, in C and in C++. A program that has one MPI compiles and links as before.
 *
 * A job is the ranks of one communicator: MPI_COMM_WORLD, or one that was cut from it. Jobs of
 * several communicators may live beside each other, each with a zero_config and contexts of its
 * own.
 */
#ifndef ZERO_MPI_H
#define ZERO_MPI_H

#include <zero/configuration.h>

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <mpi.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    ZERO_MPI_ADDRESSES = 8,
    ZERO_MPI_NAME_BYTES = 256,
    ZERO_MPI_JOB_BYTES = 192,
    ZERO_MPI_CALL_MS = 2000
};

/** What rank 0 tells the others. */
struct zero_mpi_offer {
    char job[ZERO_MPI_JOB_BYTES]; /**< the user's, of 191 bytes at most, or of 128 random bits */
    int32_t port;                 /**< where rank 0 listens; 0: it cannot */
    int32_t count;                /**< of addresses; 0: its host has no network */
    int32_t trusted; /**< the first address is the user's, of any length, and is not tried */
    char addresses[ZERO_MPI_ADDRESSES][48];
};

/** A variable of the environment; NULL: it is not set, or empty. */
static inline const char *zero_mpi_variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/** Writes the job's name as zero_config.job can have it: at most 63 bytes, and '-' for each that is
 * no printable character of ASCII. Returns whether that is the whole name. */
static inline int zero_mpi_write_job(char *word, size_t size, const char *job)
{
    int whole = strlen(job) < size;
    size_t length = 0;
    for (; job[length] && length < size - 1; length++) {
        const int plain = job[length] > ' ' && job[length] <= '~';
        word[length] = plain ? job[length] : '-';
        whole = whole && plain;
    }
    word[length] = '\0';
    return whole;
}

/** The socket's address of `text` and `port`, of IPv4 or IPv6; its length, 0: it is none. */
static inline socklen_t zero_mpi_sockaddr(struct sockaddr_storage *name, const char *text, int port)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)name;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)name;
    memset(name, 0, sizeof *name);
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
        return (socklen_t)sizeof *v4;
    }
    if (inet_pton(AF_INET6, text, &v6->sin6_addr) != 1)
        return 0;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons((uint16_t)port);
    return (socklen_t)sizeof *v6;
}

/** Rank 0: a socket that listens at the port of all its addresses that the user has given, or at a
 * free one; -1: there is none. Ports are below those that the system gives away by itself, so that
 * the port is still free a moment later. */
static inline int zero_mpi_listen(struct zero_mpi_offer *offer, uint64_t chance, int given)
{
    for (int i = 0; i < 200; i++) {
        struct sockaddr_storage name;
        const int both = i % 2 == 0, yes = 1, no = 0; // IPv6 takes calls of IPv4, too
        const int port = given ? given : 20000 + (int)((chance + (uint64_t)(i / 2)) % 10000);
        const socklen_t length = zero_mpi_sockaddr(&name, both ? "::" : "0.0.0.0", port);
        const int fd = socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if ((!both || !setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no)) &&
            !bind(fd, (struct sockaddr *)&name, length) && !listen(fd, SOMAXCONN)) {
            offer->port = port;
            return fd;
        }
        close(fd);
        if (given && !both) // another context may be meeting there
            poll(NULL, 0, 20);
    }
    return -1;
}

/** Rank 0: its addresses, in the order of its interfaces; the loopback's come last. */
static inline void zero_mpi_find_addresses(struct zero_mpi_offer *offer)
{
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list))
        return;
    for (int loopback = 0; loopback < 2; loopback++)
        for (const struct ifaddrs *one = list; one; one = one->ifa_next) {
            char text[INET6_ADDRSTRLEN] = "";
            const int family = one->ifa_addr ? one->ifa_addr->sa_family : AF_UNSPEC;
            if (family == AF_INET)
                inet_ntop(family, &((struct sockaddr_in *)(void *)one->ifa_addr)->sin_addr, text,
                          sizeof text);
            else if (family == AF_INET6)
                inet_ntop(family, &((struct sockaddr_in6 *)(void *)one->ifa_addr)->sin6_addr, text,
                          sizeof text);
            const int local = !strncmp(text, "127.", 4) || !strcmp(text, "::1");
            const int one_link = !strncmp(text, "fe80:", 5); // needs the interface's name there
            if (*text && !one_link && local == loopback && offer->count < ZERO_MPI_ADDRESSES)
                snprintf(offer->addresses[offer->count++], sizeof *offer->addresses, "%s", text);
        }
    freeifaddrs(list);
}

/** A call to rank 0 that is under way, or has been answered; -1: there is no such network here. */
static inline int zero_mpi_call(const char *address, int port)
{
    struct sockaddr_storage name;
    const socklen_t length = zero_mpi_sockaddr(&name, address, port);
    const int fd = socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        (void)!connect(fd, (struct sockaddr *)&name, length); // its result is asked for below
    return fd;
}

/** The addresses of the offer, as bits, at which rank 0 answers this rank. One more bit stands for
 * none, where rank 0 has none. */
static inline unsigned zero_mpi_reached(const struct zero_mpi_offer *offer)
{
    int fds[ZERO_MPI_ADDRESSES], wait_ms = ZERO_MPI_CALL_MS;
    unsigned reached = offer->count == 0;
    for (int i = 0; i < offer->count; i++)
        fds[i] = zero_mpi_call(offer->addresses[i], offer->port);
    for (int i = 0; i < offer->count; i++) {
        struct pollfd call = {fds[i], POLLOUT, 0};
        int failure = 1;
        socklen_t size = (socklen_t)sizeof failure;
        int answered = -1;
        do
            answered = fds[i] < 0 ? -1 : poll(&call, 1, wait_ms);
        while (fds[i] >= 0 && answered < 0 && errno == EINTR);
        if (answered == 0) // all calls began together: the others have had their time, too
            wait_ms = 0;
        if (answered == 1 && !getsockopt(fds[i], SOL_SOCKET, SO_ERROR, &failure, &size) && !failure)
            reached |= 1U << i;
        if (fds[i] >= 0)
            close(fds[i]);
    }
    return reached;
}

/** Rank 0 takes the others' calls until all have tried; `all` has the addresses that each reaches.
 */
static inline int zero_mpi_agree(int fd, unsigned mine, unsigned *all, MPI_Comm comm)
{
    MPI_Request request;
    int done = 0;
    int failure = MPI_Iallreduce(&mine, all, 1, MPI_UNSIGNED, MPI_BAND, comm, &request);
    while (!failure && !done) {
        const int caller = fd < 0 ? -1 : accept(fd, NULL, NULL);
        if (caller >= 0)
            close(caller);
        failure = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
    return failure;
}

/** Rank 0: names the job, and says where it is; a socket that listens there, or -1. What its
 * environment says holds for all. */
static inline int zero_mpi_make_offer(struct zero_mpi_offer *offer)
{
    uint64_t chance[2];
    const char *address = zero_mpi_variable("ZERO_MASTER_ADDR");
    const char *port = zero_mpi_variable("ZERO_MASTER_PORT"), *job = zero_mpi_variable("ZERO_JOB");
    const int32_t given = port ? (int32_t)strtol(port, NULL, 10) : 0;
    if (getrandom(chance, sizeof chance, 0) != (ssize_t)sizeof chance)
        return -1;
    snprintf(offer->job, sizeof offer->job, "mpi-%016llx%016llx", (unsigned long long)chance[0],
             (unsigned long long)chance[1]);
    if (job)
        snprintf(offer->job, sizeof offer->job, "%s", job);
    const int fd = zero_mpi_listen(offer, chance[0], given);
    offer->trusted = address && strlen(address) < ZERO_MPI_NAME_BYTES;
    if (offer->trusted && given)
        offer->port = given;
    if (offer->trusted && offer->port) {
        memcpy((char *)offer->addresses, address, strlen(address) + 1);
        offer->count = 1;
    } else if (fd >= 0)
        zero_mpi_find_addresses(offer);
    return fd;
}

/** Whether this rank's environment says of the job what holds, or nothing. */
static inline int zero_mpi_agrees(const struct zero_mpi_offer *offer)
{
    const char *address = zero_mpi_variable("ZERO_MASTER_ADDR");
    const char *port = zero_mpi_variable("ZERO_MASTER_PORT"), *job = zero_mpi_variable("ZERO_JOB");
    char word[sizeof((zero_config *)0)->job];
    // A name that zero_config.job can't have every rank has to know by itself.
    if (job ? strncmp(job, offer->job, sizeof offer->job - 1) != 0
            : !zero_mpi_write_job(word, sizeof word, offer->job))
        return 0;
    return (!address || (offer->trusted && !strcmp(address, (const char *)offer->addresses))) &&
           (!port || strtol(port, NULL, 10) == offer->port);
}

/** Whether a launcher has started several processes of which MPI knows this one only. */
static inline int zero_mpi_is_lost(MPI_Comm comm)
{
    static const char *const counts[] = {"ZERO_WORLD_SIZE",
                                         "OMPI_COMM_WORLD_SIZE",
                                         "PMI_SIZE",
                                         "MV2_COMM_WORLD_SIZE",
                                         "JSM_NAMESPACE_SIZE",
                                         "FLUX_JOB_SIZE",
                                         "SLURM_STEP_NUM_TASKS",
                                         "MPI_LOCALNRANKS",
                                         "MPIRUN_NPROCS",
                                         "WORLD_SIZE"};
    static const char *const ranks[] = {"PMIX_RANK", "PALS_RANKID", "ALPS_APP_PE"};
    int known = 0;
    if (MPI_Comm_size(comm, &known) || known > 1)
        return 0;
    if (MPI_Comm_size(MPI_COMM_WORLD, &known) || known > 1)
        return 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const char *count = getenv(counts[i]);
        if (count) // the user's own word holds
            known = (int)strtol(count, NULL, 10);
        if (count && (i == 0 || known > 1))
            return known > 1;
    }
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        const char *rank = getenv(ranks[i]);
        if (rank && strtol(rank, NULL, 10) > 0)
            return 1;
    }
    return 0;
}

/**
 * Sets rank, world, job, master_addr and master_port for the ranks of `comm`, and leaves the other
 * fields. *Collective* over comm: every rank of it calls, and if it fails, it fails on all.
 *
 * Rank 0 of comm makes up a name for the job, takes a free port from 20000 to 29999, and lists its
 * addresses in the order of its interfaces, those of the loopback last. Every other rank tries to
 * call it there. The first address that all ranks reach holds. No name is resolved, and
 * MPI_Get_processor_name() is not asked, for the name of a host often leads to its loopback, or to
 * a network that is not for computing.
 *
 * zero's traffic over TCP takes that network, too. ZERO_MASTER_ADDR in rank 0's environment says
 * which one instead. It is not tried. ZERO_MASTER_PORT there is the port that rank 0 takes, and
 * ZERO_JOB the name of the job. What rank 0's environment says holds for all ranks: another one may
 * have the same variables, with the same values, or none of them. An empty variable is none.
 *
 * A ZERO_JOB of more than 63 bytes, or with a blank or a byte that is no printable character of
 * ASCII, is not passed on: every rank has to have it. zero_open() takes the whole of it. This
 * function compares the first 191 bytes only.
 *
 * zero_open() finds out which ranks share a host; these have shared memory, as always. On a host
 * without any address, not even the loopback's, all ranks are taken to be there, and master_addr
 * stays empty.
 *
 * Nothing of MPI is kept: the communicator may be freed, and MPI_Finalize() called, while contexts
 * live. Ranks exchange 588 bytes and a number; an address that does not answer takes 2 seconds.
 *
 * Errors of MPI itself go to the handler of comm, which ends the program by default. After an error
 * config is as before.
 * ZERO_E_INVALID: comm is MPI_COMM_NULL, or a launcher has started several processes, and MPI knows
 * this one only: the launcher is another MPI's than the program, or none. Only this rank learns it;
 * ZERO_WORLD_SIZE=1 says that it shall be alone. Or config has no struct_size of this header
 * (zero_config_default()).
 * ZERO_E_IO: all ranks reach no address of rank 0. Look for a firewall, or set ZERO_MASTER_ADDR.
 * Or rank 0 has no port to listen at, as ZERO_MASTER_PORT may be in use. Or a rank has another
 * ZERO_MASTER_ADDR, ZERO_MASTER_PORT or ZERO_JOB than rank 0, or lacks a ZERO_JOB that is not
 * passed on. Or another rank's config is invalid, or MPI failed.
 */
static inline zero_result zero_config_from_mpi(zero_config *config, MPI_Comm comm)
{
    struct zero_mpi_offer offer;
    const int valid = config->struct_size >= sizeof *config;
    unsigned mine = 0, all = 0;
    int rank = 0, world = 0, fd = -1, chosen = 0;
    memset(&offer, 0, sizeof offer);
    if (comm == MPI_COMM_NULL || zero_mpi_is_lost(comm))
        return ZERO_E_INVALID;
    if (MPI_Comm_rank(comm, &rank) || MPI_Comm_size(comm, &world))
        return ZERO_E_IO;
    if (rank == 0)
        fd = zero_mpi_make_offer(&offer);
    int failure = MPI_Bcast(&offer, (int)sizeof offer, MPI_BYTE, 0, comm);
    if (!failure && valid && offer.port && zero_mpi_agrees(&offer))
        mine = rank == 0 || offer.trusted ? (1U << (offer.count ? offer.count : 1)) - 1
                                          : zero_mpi_reached(&offer);
    if (!failure)
        failure = zero_mpi_agree(fd, mine, &all, comm);
    if (fd >= 0)
        close(fd);
    if (failure || !all)
        return valid ? ZERO_E_IO : ZERO_E_INVALID;
    while (!(all & (1U << chosen)))
        chosen++;
    config->rank = rank;
    config->world = world;
    zero_mpi_write_job(config->job, sizeof config->job, offer.job);
    config->master_addr[0] = '\0';
    config->master_port = 0;
    if (chosen == offer.count) // no network: all ranks are on one host
        return ZERO_OK;
    snprintf(config->master_addr, sizeof config->master_addr, "%s",
             (const char *)offer.addresses + (size_t)chosen * sizeof *offer.addresses);
    config->master_port = offer.port;
    return ZERO_OK;
}

#endif
