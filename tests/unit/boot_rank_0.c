// What a rank says of a rank 0 that is of another version, silent, or about to fail.
#include "collectives/rendezvous/meeting.h"
#include "tests/unit/boot_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

// Listens where rank 0 would.
static int listen_as_rank_0(const struct boot_ranks *ranks)
{
    struct sockaddr_un address;
    const socklen_t length = boot_address(&address, ranks->job, "main");
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(fd, 4), 0);
    return fd;
}

// Rank 0 is of another version of the library.
static void another_version_is_named(void **state)
{
    (void)state;
    struct boot_ranks ranks;
    boot_ranks_begin(&ranks, 5000);
    int listener = listen_as_rank_0(&ranks);
    boot_ranks_start(&ranks, 1, 2, NULL);
    int fd = accept(listener, NULL, NULL);
    assert_true(fd >= 0);
    const struct boot_header welcome = {
        .magic = BOOT_MAGIC, .protocol = BOOT_PROTOCOL + 1, .type = BOOT_KNOWN};
    assert_int_equal(send(fd, &welcome, sizeof welcome, 0), sizeof welcome);
    boot_ranks_wait(&ranks, 0);
    boot_ranks_expect(&ranks, 0, ZERO_E_VERSION, "speaks version 6 of the rendezvous",
                      "link all ranks with the same library");
    boot_fd_close(&fd);
    boot_fd_close(&listener);
    boot_ranks_end(&ranks, -1);
}

// Rank 0 is there and says nothing: the error does not end with its absence.
static void a_silent_rank_0_is_told_from_an_absent_one(void **state)
{
    (void)state;
    struct boot_ranks ranks;
    boot_ranks_begin(&ranks, 1000);
    int listener = listen_as_rank_0(&ranks);
    boot_ranks_start(&ranks, 1, 2, NULL);
    boot_ranks_wait(&ranks, 0);
    boot_ranks_expect(&ranks, 0, ZERO_E_TIMEOUT, "did not come to the rendezvous in time",
                      "it does not answer");
    boot_fd_close(&listener);
    boot_ranks_end(&ranks, -1);
}

// A caller that rank 0 has not heard when it fails is told why at once.
static void a_caller_hears_why_rank_0_fails(void **state)
{
    (void)state;
    struct boot_ranks ranks;
    struct {
        struct boot_header header;
        char text[BOOT_TEXT_BYTES];
    } answer = {.header.type = 0};
    boot_ranks_begin(&ranks, 1500);
    boot_ranks_start(&ranks, 0, 3, NULL);
    boot_ranks_await_host(&ranks);
    int fd = boot_ranks_call(&ranks);
    assert_true(fd >= 0);
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&ready, 1, 10000), 1);
    assert_true(recv(fd, &answer, sizeof answer, 0) > (ssize_t)sizeof answer.header);
    assert_int_equal(answer.header.type, BOOT_FAIL);
    assert_int_equal(answer.header.result, ZERO_E_TIMEOUT);
    assert_non_null(strstr(answer.text, "ranks 1, 2 of 3 did not come to the rendezvous in time"));
    boot_ranks_wait(&ranks, 0);
    boot_fd_close(&fd);
    boot_ranks_end(&ranks, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_version_is_named),
        cmocka_unit_test(a_silent_rank_0_is_told_from_an_absent_one),
        cmocka_unit_test(a_caller_hears_why_rank_0_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
