#include "tests/cuda/room.h"

#include "tests/cuda/driver.h"
#include "tests/cuda/job.h"
#include "tests/cuda/leftovers.h"
#include "zero/plan/plan_values.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda.h>

enum { RANKS = 4, TEXT_BYTES = 16384, MESSAGE_BYTES = 1024 };

static cuda_driver_room_fn set_room;
static cuda_driver_fail_fn fail_next;
static cuda_driver_keeps_fn keep;

/** A commit of `world` ranks. */
struct attempt {
    zero_config config;
    const struct toy *toy;
    int world;
    const int *gpus; /**< of the ranks; NULL: one each */
};

/** What each rank has come to. */
static struct outcome {
    zero_result result;
    char message[MESSAGE_BYTES], text[TEXT_BYTES];
    struct eng_gpu_fit fit;
    struct eng_updater updater;
    bool streamed;
} ranks[RANKS];

static bool try_commit(struct team_rank *rank, void *user)
{
    const struct attempt *attempt = user;
    struct outcome *outcome = &ranks[rank->rank];
    const zero_config given = rank->config;
    char device[24];
    snprintf(device, sizeof device, "cuda:%d",
             attempt->gpus ? attempt->gpus[rank->rank] : rank->rank);
    rank->config = attempt->config;
    rank->config.world = given.world;
    rank->config.rank = given.rank;
    rank->config.team = given.team;
    rank->config.transport = given.transport;
    rank->config.timeout_s = given.timeout_s;
    rank->config.log_level = ZERO_OFF;
    rank->config.device = device;
    TEAM_CHECK(team_open(rank) && toy_register(rank, attempt->toy));
    outcome->result = zero_commit(rank->z);
    if (!outcome->result) // plans that are made later have what was found, too
        TEAM_OK(rank, zero_set_micro_batches(rank->z, 8));
    snprintf(outcome->message, MESSAGE_BYTES, "%s", zero_last_error(rank->z));
    snprintf(outcome->text, TEXT_BYTES, "%s", zero_plan_text(rank->z));
    outcome->fit = rank->z->plan.gpu_fit;
    outcome->updater = rank->z->update.updater;
    outcome->streamed = rank->z->config.streamed;
    team_close(rank);
    return true;
}

/** All ranks have this result. */
static void commit(const struct attempt *attempt, zero_result result)
{
    struct attempt mine = *attempt;
    assert_true(team_run(team_threads(mine.world), mine.world, try_commit, &mine));
    assert_true(cuda_left_nothing());
    for (int r = 0; r < mine.world; r++)
        if (ranks[r].result != result)
            fail_msg("rank %d: %d, %s", r, ranks[r].result, ranks[r].message);
}

static struct attempt attempt_of(int world, int stage)
{
    struct attempt attempt = {.config = zero_config_default(), .toy = &toy_odd, .world = world};
    attempt.config.stage = stage;
    attempt.config.device_transport = "host";
    return attempt;
}

/** With state in memory of the host. */
static struct attempt offloaded(int world, int stage, const char *updater)
{
    struct attempt attempt = attempt_of(world, stage);
    attempt.config.offload_optimizer = "host";
    attempt.config.offload_update = updater;
    if (updater && strcmp(updater, "host") == 0)
        attempt.config.device_transport = NULL;
    else
        attempt.config.tile_bytes = 65536;
    return attempt;
}

/** Mostly frozen: a GPU has all working copies if the host updates, and its part of them else. */
static struct attempt mostly_frozen(const char *updater)
{
    static const struct toy_tensor tensors[] = {{"trained", 0, 16, 2048, 0, false},
                                                {"frozen", 0, 16, 16384, 0, false}};
    static const struct toy toy = {
        .tensors = tensors, .tensor_count = 2, .unit_count = 16, .micro_batches = 4, .frozen = 2};
    struct attempt attempt = offloaded(4, 3, updater);
    attempt.toy = &toy;
    attempt.config.tile_bytes = 0;
    attempt.config.open_units = attempt.config.grad_units = 1;
    attempt.config.prefetch_units = ZERO_OFF;
    return attempt;
}

static void expect_words(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("no \"%s\" in:\n%s", words, text);
}

/** What all of it takes of rank 0's GPU. */
static uint64_t needed(struct attempt attempt)
{
    commit(&attempt, ZERO_OK);
    assert_int_equal(ranks[0].fit.verdict, ENG_FITS);
    assert_int_equal(ranks[0].fit.total, CUDA_DRIVER_ROOM);
    return ranks[0].fit.needed;
}

static int all_have_room(void **state)
{
    (void)state;
    unsetenv("ZERO_PLAN");
    unsetenv("ZERO_PLAN_FD");
    for (int gpu = 0; gpu < CUDA_DRIVER_GPUS; gpu++)
        set_room(gpu, 0);
    keep(0);
    return 0;
}

/* ------------------------------------------------------------------ what fits */

// The driver has not a byte more, either.
static void enough_is_what_is_allocated(void **state)
{
    (void)state;
    const struct attempt ways[] = {attempt_of(1, 0), offloaded(1, 2, "device"),
                                   offloaded(1, 3, "host")};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const uint64_t bytes = needed(ways[i]);
        set_room(0, bytes);
        commit(&ways[i], ZERO_OK);
        assert_int_equal(ranks[0].fit.free, bytes);
        expect_words(ranks[0].text, " by 1 rank\n  memory       ");
        expect_words(ranks[0].text, "\n  fits         yes\n  not counted  what NCCL");
        all_have_room(NULL);
    }
}

static void a_byte_too_little_is_refused_before_anything_is_allocated(void **state)
{
    (void)state;
    const struct attempt attempt = attempt_of(1, 0);
    const uint64_t bytes = needed(attempt);
    char size[32], left[32], words[200];
    snprintf(words, sizeof words,
             "zero_commit: GPU 0, 1 rank at stage 0: %s needed there, but %s free of %s; ",
             eng_human(bytes, size), eng_human(bytes - 1, left), left);
    set_room(0, bytes - 1);
    fail_next("cuMemAlloc", CUDA_ERROR_LAUNCH_FAILED);
    commit(&attempt, ZERO_E_NOMEM);
    fail_next(NULL, CUDA_SUCCESS);
    expect_words(ranks[0].message, words);
    expect_words(ranks[0].message, "; memory_limit=off overrules this");
    expect_words(ranks[0].text, "\n  fits         no: GPU 0, 1 rank at stage 0: ");
    assert_true(ranks[0].fit.needed == bytes && ranks[0].fit.free == bytes - 1);
}

static void ranks_that_share_a_gpu_need_it_together(void **state)
{
    (void)state;
    static const int same[] = {2, 2};
    struct attempt shared = attempt_of(2, 2);
    const uint64_t alone = needed(shared);
    shared.gpus = same;
    const uint64_t together = needed(shared);
    assert_true(together > alone + alone / 2);
    for (int missing = 0; missing < 2; missing++) {
        set_room(2, together - (uint64_t)missing);
        commit(&shared, missing ? ZERO_E_NOMEM : ZERO_OK);
        for (int r = 0; r < 2; r++)
            assert_true(ranks[r].fit.ranks == 2 && ranks[r].fit.needed == together);
    }
    expect_words(ranks[0].message, "GPU 2, 2 ranks at stage 2: ");
    expect_words(ranks[0].message, "; fewer ranks on it need less; ");
}

static void all_ranks_refuse_what_one_gpu_lacks(void **state)
{
    (void)state;
    const struct attempt attempt = attempt_of(2, 1);
    set_room(1, 5000);
    commit(&attempt, ZERO_E_NOMEM);
    assert_int_equal(ranks[0].fit.verdict, ENG_FITS);
    assert_int_equal(ranks[1].fit.verdict, ENG_FITS_NOT);
    expect_words(ranks[0].message, "zero_commit: rank 1");
    expect_words(ranks[0].message, "GPU 1, 1 rank at stage 1: ");
    expect_words(ranks[0].message, ", but 5000 B free of 5000 B; ");
}

// Of the real ones, too.
static void what_no_gpu_has_is_refused(void **state)
{
    (void)state;
    static const struct toy_tensor huge = {"huge", 0, 1, UINT64_C(1) << 36, 0, false};
    static const struct toy toy = {
        .tensors = &huge, .tensor_count = 1, .unit_count = 1, .micro_batches = 1};
    struct attempt attempt = attempt_of(1, 0);
    attempt.toy = &toy;
    commit(&attempt, ZERO_E_NOMEM);
    expect_words(ranks[0].message,
                 "zero_commit: GPU 0, 1 rank at stage 0: 1280.9 GiB needed there");
    assert_true(ranks[0].fit.free > 0 && ranks[0].fit.free <= ranks[0].fit.total);
}

// As many bytes as are said to be needed with it are.
static void what_would_need_less_does(void **state)
{
    (void)state;
    const struct {
        struct attempt tried, other;
        const char *setting;
    } cases[] = {
        {attempt_of(2, 0), attempt_of(2, 1), "stage=1"},
        {attempt_of(2, 0), offloaded(2, 0, "host"), "offload_optimizer=host"},
        {attempt_of(2, 3), offloaded(2, 3, "host"), "offload_optimizer=host"},
        {offloaded(2, 0, "device"), offloaded(2, 0, "host"), "offload_update=host"},
        {offloaded(2, 0, "device"), offloaded(2, 1, "device"), "stage=1"},
        {mostly_frozen("host"), mostly_frozen("device"), "offload_update=device"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char size[32], words[80];
        snprintf(words, sizeof words, "; %s would need %s", cases[i].setting,
                 eng_human(needed(cases[i].other), size));
        set_room(0, 1);
        commit(&cases[i].tried, ZERO_E_NOMEM);
        expect_words(ranks[0].message, words);
        all_have_room(NULL);
    }
}

static void nobody_looks_without_a_limit(void **state)
{
    (void)state;
    struct attempt attempt = attempt_of(1, 0);
    attempt.config.memory_limit = ZERO_OFF;
    set_room(0, 5000);
    fail_next("cuMemGetInfo", CUDA_ERROR_LAUNCH_FAILED);
    commit(&attempt, ZERO_E_NOMEM);
    fail_next(NULL, CUDA_SUCCESS);
    expect_words(ranks[0].message, "cuMemAlloc");
    assert_int_equal(ranks[0].fit.verdict, ENG_FITS_UNCHECKED);
    expect_words(ranks[0].text, "\n  fits         not checked: memory_limit=off\n  not counted");
}

static void a_driver_that_does_not_say_is_told_of(void **state)
{
    (void)state;
    const struct attempt attempts[] = {attempt_of(2, 1), offloaded(2, 1, "auto")};
    for (int i = 0; i < 2; i++) {
        fail_next("cuMemGetInfo", CUDA_ERROR_LAUNCH_FAILED);
        commit(&attempts[i], ZERO_E_DEVICE);
        for (int r = 0; r < 2; r++)
            expect_words(ranks[r].message, "cuMemGetInfo: not real");
    }
}

// The third of the texts that are handed over is why it does not fit.
static void expect_handed_over(int descriptor, const char *words)
{
    static char texts[1 << 16];
    const ssize_t bytes = read(descriptor, texts, sizeof texts - 1);
    assert_true(bytes > 0);
    texts[bytes] = '\0';
    const char *json = texts + strlen(texts) + 1, *reason = json + strlen(json) + 1;
    expect_words(reason, words);
    assert_int_equal(*words == '\0', *reason == '\0');
}

static void a_plan_looks_at_the_gpu_of_one_rank(void **state)
{
    (void)state;
    zero_config config = zero_config_default();
    const uint64_t bytes = needed(attempt_of(1, 0));
    int ends[2];
    char number[16];
    assert_int_equal(pipe(ends), 0);
    snprintf(number, sizeof number, "%d", ends[1]);
    config.device = "cuda";
    config.log_level = ZERO_OFF;
    setenv("ZERO_PLAN", "1", 1);
    setenv("ZERO_PLAN_FD", number, 1);
    for (int missing = 0; missing < 2; missing++) {
        struct team_rank rank = {.world = 1};
        set_room(0, bytes - (uint64_t)missing);
        assert_int_equal(zero_open(&rank.z, &config), ZERO_OK);
        assert_true(toy_register(&rank, &toy_odd));
        assert_int_equal(zero_commit(rank.z), ZERO_PLANNED);
        expect_words(zero_plan_text(rank.z), missing ? "\n  fits         no: GPU 0, 1 rank"
                                                     : "\n  fits         yes\n  not counted");
        expect_words(zero_plan_json(rank.z), missing ? "; offload_optimizer=host would need"
                                                     : "\"fits\": true,\n    \"reason\": null");
        expect_handed_over(ends[0], missing ? "GPU 0, 1 rank at stage 0: " : "");
        zero_close(rank.z);
    }
    close(ends[0]);
    close(ends[1]);
    assert_true(cuda_left_nothing());
}

/* ------------------------------------------------------------------ who updates */

static void expect_reason(int rank, bool device, const char *words)
{
    char line[700];
    assert_true(ranks[rank].streamed == device);
    snprintf(line, sizeof line, "  update       by the %s: offload_update=auto, %s\n",
             device ? "device" : "host", ranks[rank].updater.why);
    expect_words(ranks[rank].text, line);
    expect_words(ranks[rank].updater.why, words);
}

static void the_host_updates_where_the_gpu_has_no_room_for_tiles(void **state)
{
    (void)state;
    const struct attempt attempt = offloaded(1, 2, NULL); // as it is unless something is said
    const uint64_t by_device = needed(offloaded(1, 2, "device"));
    const uint64_t by_host = needed(offloaded(1, 2, "host"));
    char device[32], host[32], words[160];
    assert_true(by_host < by_device);
    snprintf(words, sizeof words, "1 rank would need %s there if it updated, %s if the host did",
             eng_human(by_device, device), eng_human(by_host, host));
    set_room(0, by_device); // and no more: it is enough
    commit(&attempt, ZERO_OK);
    assert_true(ranks[0].streamed && !*ranks[0].updater.why);
    assert_int_equal(ranks[0].fit.needed, by_device);
    set_room(0, by_device - 1);
    commit(&attempt, ZERO_OK);
    expect_reason(0, false, "GPU 0 has ");
    expect_reason(0, false, words);
    assert_int_equal(ranks[0].fit.needed, by_host);
    set_room(0, by_host - 1);
    commit(&attempt, ZERO_E_NOMEM);
    expect_words(ranks[0].message, "GPU 0, 1 rank at stage 2: ");
}

static void a_plan_is_of_the_way_that_one_gpu_has_room_for(void **state)
{
    (void)state;
    zero_config config = offloaded(1, 2, "auto").config;
    const uint64_t by_device = needed(offloaded(1, 2, "device"));
    config.device = "cuda";
    config.log_level = ZERO_OFF;
    setenv("ZERO_PLAN", "1", 1);
    for (int missing = 0; missing < 2; missing++) {
        struct team_rank rank = {.world = 1};
        set_room(0, by_device - (uint64_t)missing);
        assert_int_equal(zero_open(&rank.z, &config), ZERO_OK);
        assert_true(toy_register(&rank, &toy_odd));
        assert_int_equal(zero_commit(rank.z), ZERO_PLANNED);
        expect_words(zero_plan_text(rank.z),
                     missing ? "  update       by the host: offload_update=auto, GPU 0 has "
                             : "  update       by the device: offload_update=auto\n");
        expect_words(zero_plan_text(rank.z), "\n  fits         yes\n  not counted");
        zero_close(rank.z);
    }
    assert_true(cuda_left_nothing());
}

static void nobody_looks_at_room_for_tiles_without_a_limit(void **state)
{
    (void)state;
    struct attempt attempt = offloaded(1, 2, "auto");
    set_room(0, needed(offloaded(1, 2, "device")) - 1);
    attempt.config.memory_limit = ZERO_OFF;
    commit(&attempt, ZERO_E_NOMEM);
    expect_words(ranks[0].message, "cuMemAlloc");
    assert_true(ranks[0].streamed && ranks[0].fit.verdict == ENG_FITS_UNCHECKED);
}

// What has been loaded stays, if not for those who have loaded it.
static void what_the_driver_keeps_leaves_the_host_its_room(void **state)
{
    (void)state;
    enum { KEPT = 1 << 20 };
    const struct attempt attempt = offloaded(1, 2, "auto");
    const uint64_t by_device = needed(offloaded(1, 2, "device"));
    set_room(0, by_device + KEPT);
    keep(KEPT);
    commit(&attempt, ZERO_OK);
    assert_true(ranks[0].streamed);
    set_room(0, by_device + KEPT - 1);
    keep(KEPT);
    commit(&attempt, ZERO_OK);
    expect_reason(0, false, "GPU 0 has ");
}

// The host's way may take more of the GPUs, too: then nothing else is tried.
static void all_ranks_take_the_way_that_one_gpu_has_room_for(void **state)
{
    (void)state;
    const struct attempt attempt = offloaded(2, 2, "auto"), open = mostly_frozen("auto");
    needed(offloaded(2, 2, "device"));
    set_room(1, ranks[1].fit.needed - 1);
    commit(&attempt, ZERO_OK);
    expect_reason(0, false, "another rank has a reason");
    expect_reason(1, false, "GPU 1 has ");
    all_have_room(NULL);
    const uint64_t by_host = needed(mostly_frozen("host")),
                   by_device = needed(mostly_frozen("device"));
    assert_true(by_device < by_host);
    set_room(2, by_host - 1);
    commit(&open, ZERO_OK);
    for (int r = 0; r < 4; r++)
        assert_true(ranks[r].streamed && !*ranks[r].updater.why);
}

static void nccl_has_a_gpu_for_each_rank(void **state)
{
    (void)state;
    static const int same[] = {0, 0};
    struct attempt attempt = offloaded(2, 2, "auto");
    attempt.gpus = same;
    attempt.config.device_transport = NULL;
    commit(&attempt, ZERO_OK);
    for (int r = 0; r < 2; r++)
        expect_reason(r, false, "2 ranks share GPU 0, and device_transport=nccl wants one");
}

static void a_gpu_without_code_for_it_does_not_update(void **state)
{
    (void)state;
    const struct attempt attempt = offloaded(1, 0, NULL);
    fail_next("cuModuleLoadData", CUDA_ERROR_NO_BINARY_FOR_GPU);
    commit(&attempt, ZERO_OK);
    expect_reason(0, false, "no code that this GPU and its driver can run");
}

// Of two ranks one: both have to take the host's way.
static void a_gpu_without_room_for_the_kernels_does_not_update(void **state)
{
    (void)state;
    const struct attempt attempts[] = {offloaded(1, 0, NULL), offloaded(2, 2, NULL)};
    for (int i = 0; i < 2; i++) {
        fail_next("cuModuleLoadData", CUDA_ERROR_OUT_OF_MEMORY);
        commit(&attempts[i], ZERO_OK);
        const int other = i == 1 && strstr(ranks[1].updater.why, "cuModuleLoadData") ? 0 : i;
        expect_reason(i - other, false, "cuModuleLoadData, this library: ");
        if (i == 1)
            expect_reason(other, false, "another rank has a reason");
    }
}

// No key asks for it; else it has to work.
static void the_host_updates_where_there_is_no_nccl(void **state)
{
    (void)state;
    struct attempt attempt = offloaded(2, 1, NULL);
    attempt.config.device_transport = NULL;
    commit(&attempt, ZERO_OK);
    expect_reason(0, false, "no NCCL here: ");
    attempt.config.device_transport = "nccl";
    commit(&attempt, ZERO_E_UNSUPPORTED);
    expect_words(ranks[1].message, "no NCCL here: ");
    attempt.config.device_transport = NULL;
    attempt.config.device_register = "on";
    commit(&attempt, ZERO_E_UNSUPPORTED);
    expect_words(ranks[1].message, "no NCCL here: ");
}

int room_tests_without_nccl(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_host_updates_where_there_is_no_nccl)};
    return cmocka_run_group_tests_name("room, without NCCL", tests, NULL, NULL);
}

int room_tests(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, all_have_room)
    const struct CMUnitTest tests[] = {
        TEST(enough_is_what_is_allocated),
        TEST(a_byte_too_little_is_refused_before_anything_is_allocated),
        TEST(ranks_that_share_a_gpu_need_it_together),
        TEST(all_ranks_refuse_what_one_gpu_lacks),
        TEST(what_would_need_less_does),
        TEST(nobody_looks_without_a_limit),
        TEST(a_driver_that_does_not_say_is_told_of),
        TEST(a_plan_looks_at_the_gpu_of_one_rank),
        TEST(the_host_updates_where_the_gpu_has_no_room_for_tiles),
        TEST(a_plan_is_of_the_way_that_one_gpu_has_room_for),
        TEST(nobody_looks_at_room_for_tiles_without_a_limit),
        TEST(what_the_driver_keeps_leaves_the_host_its_room),
        TEST(all_ranks_take_the_way_that_one_gpu_has_room_for),
        TEST(nccl_has_a_gpu_for_each_rank),
        TEST(a_gpu_without_code_for_it_does_not_update),
        TEST(a_gpu_without_room_for_the_kernels_does_not_update),
    };
#undef TEST
    const struct CMUnitTest anywhere[] = {cmocka_unit_test(what_no_gpu_has_is_refused)};
    const int failed = cmocka_run_group_tests_name("room, anywhere", anywhere, NULL, NULL);
    if (!cuda_driver_find(CUDA_DRIVER_SET_ROOM, &set_room))
        return failed;
    cuda_driver_find(CUDA_DRIVER_FAIL, &fail_next);
    cuda_driver_find(CUDA_DRIVER_KEEPS, &keep);
    return failed + cmocka_run_group_tests_name("room", tests, NULL, NULL);
}
