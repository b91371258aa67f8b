// Where rank 0 of a job of several hosts is, by the variables of each launcher.
#include "collectives/rendezvous/mesh.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { VARIABLES = 8 };

#define TASK "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2"

struct found {
    const char *environment[VARIABLES];
    const char *address;
    int port;
    const char *source;
};

static const struct found found[] = {
    {{"MASTER_ADDR=node1", "MASTER_PORT=29500"}, "node1", 29501, "MASTER_ADDR, MASTER_PORT + 1"},
    {{"MASTER_ADDR=10.0.0.7", "MASTER_PORT=29500", "ZERO_MASTER_PORT=4000"},
     "10.0.0.7",
     4000,
     "ZERO_MASTER_PORT, MASTER_ADDR"},
    {{"ZERO_MASTER_ADDR=[fe80::1]", "ZERO_MASTER_PORT=4000", "MASTER_ADDR=n", "MASTER_PORT=x"},
     "fe80::1",
     4000,
     "ZERO_MASTER_ADDR, ZERO_MASTER_PORT"},
    {{"TF_CONFIG={\"cluster\":{\"chief\":[\"boss:2222\"],\"worker\":[\"w:1\"]}}"},
     "boss",
     2222,
     "TF_CONFIG"},
    {{"TF_CONFIG={\"cluster\":{\"worker\":[\"w:1\"]}}", "ZERO_MASTER_ADDR=other"},
     "other",
     1,
     "ZERO_MASTER_ADDR, TF_CONFIG"},
    {{"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=n7", TASK, "MASTER_PORT=80"},
     "n7",
     81,
     "MASTER_PORT + 1, SLURM_STEP_NODELIST"},
};

static void look(const char *const *environment, struct boot_master *master, zero_result result,
                 struct base_error *error)
{
    char *list[VARIABLES + 1] = {NULL};
    for (int i = 0; i < VARIABLES && environment[i]; i++)
        list[i] = (char *)environment[i];
    *error = (struct base_error){.result = ZERO_OK};
    if (boot_find_master(master, list, error) != result)
        fail_msg("%s: result %d, %s", environment[0], error->result, error->message);
}

static void each_source_has_its_turn(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof found / sizeof *found; i++) {
        struct boot_master master;
        struct base_error error;
        look(found[i].environment, &master, ZERO_OK, &error);
        assert_string_equal(master.address, found[i].address);
        assert_int_equal(master.port, found[i].port);
        assert_string_equal(master.source, found[i].source);
        assert_string_equal(master.secret, "");
    }
}

static int slurm(const char *list, const char *job, const char *step, char address[256])
{
    struct boot_master master;
    struct base_error error;
    const char *const environment[VARIABLES] = {list, job, step, TASK};
    look(environment, &master, ZERO_OK, &error);
    strcpy(address, master.address);
    return master.port;
}

static void the_first_host_of_a_step_is_taken(void **state)
{
    (void)state;
    static const char *const lists[][2] = {
        {"SLURM_STEP_NODELIST=a", "a"},
        {"SLURM_STEP_NODELIST=b,a", "b"},
        {"SLURM_STEP_NODELIST=gpu[001-003,7],x", "gpu001"},
        {"SLURM_STEP_NODELIST=gpu[7,9].site", "gpu7.site"},
        {"SLURM_STEP_NODELIST=r[1-2]n[03-04]-ib,r9", "r1n03-ib"},
    };
    char address[256];
    int first = 0;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const int port = slurm(lists[i][0], "SLURM_JOB_ID=4711", "SLURM_STEP_ID=0", address);
        assert_string_equal(address, lists[i][1]);
        first = first ? first : port;
        assert_int_equal(port, first); // of the same step
        assert_in_range(port, 10000, 29999);
    }
    assert_int_not_equal(slurm(lists[0][0], "SLURM_JOB_ID=4711", "SLURM_STEP_ID=1", address),
                         first);
    assert_int_not_equal(slurm(lists[0][0], "SLURM_JOB_ID=4712", "SLURM_STEP_ID=0", address),
                         first);
}

static void the_secret_is_read(void **state)
{
    (void)state;
    struct boot_master master;
    struct base_error error;
    const char *const environment[VARIABLES] = {"ZERO_MASTER_ADDR=a", "ZERO_MASTER_PORT=9",
                                                "ZERO_SECRET=open sesame"};
    look(environment, &master, ZERO_OK, &error);
    assert_string_equal(master.secret, "open sesame");
    assert_null(strstr(master.source, "sesame"));
}

static void what_is_missing_or_malformed_is_named(void **state)
{
    (void)state;
    char secret[256] = "ZERO_SECRET=", name[400] = "MASTER_ADDR=";
    memset(secret + strlen(secret), 's', BOOT_SECRET_BYTES);
    memset(name + strlen(name), 'n', BOOT_ADDRESS_BYTES);
    const struct {
        const char *environment[VARIABLES];
        const char *part;
    } wrong[] = {
        {{"HOME=/"}, "no variable says where rank 0 is"},
        {{"PMIX_NAMESPACE=7", "PMIX_RANK=1"}, "the ranks ask PMIx"},
        {{"PMIX_NAMESPACE=7", "PMIX_RANK=1", "ZERO_PMI=0"}, "set MASTER_ADDR"},
        {{"PMI_FD=5", "PMI_RANK=1", "PMI_SIZE=4"}, "all ranks; or ZERO_PMI=1, for a program"},
        {{"PMI_FD=5", "PMI_RANK=1", "PMI_SIZE=4", "ZERO_PMI=1"}, "the ranks ask PMI-1"},
        {{"MASTER_ADDR=a"}, "at which port rank 0 listens"},
        {{"MASTER_PORT=29500"}, "where rank 0 is"},
        {{"MASTER_ADDR=a", "MASTER_PORT=0"}, "MASTER_PORT=0 is no number from 1 to 65534"},
        {{"MASTER_ADDR=a", "MASTER_PORT=65535"}, "MASTER_PORT=65535"},
        {{"MASTER_ADDR=", "MASTER_PORT=1"}, "MASTER_ADDR= has no name or address"},
        {{"MASTER_ADDR=a b", "MASTER_PORT=1"}, "MASTER_ADDR=a b has no name or address"},
        {{name, "MASTER_PORT=1"}, "has no name or address"},
        {{"ZERO_MASTER_ADDR=a", "ZERO_MASTER_PORT=4k"}, "ZERO_MASTER_PORT=4k"},
        {{"MASTER_ADDR=a", "MASTER_PORT=1", "ZERO_SECRET="}, "ZERO_SECRET has 0 bytes"},
        {{"MASTER_ADDR=a", "MASTER_PORT=1", secret}, "ZERO_SECRET has 128 bytes: 1 to 127 fit"},
        {{"SLURM_STEP_NODELIST=a[1", "SLURM_JOB_ID=1", "SLURM_STEP_ID=1", TASK},
         "SLURM_STEP_NODELIST=a[1"},
        {{"SLURM_STEP_NODELIST=,", "SLURM_JOB_ID=1", "SLURM_STEP_ID=1", TASK},
         "SLURM_STEP_NODELIST=,"},
        // A step of daemons, none of them where mpirun itself has started rank 0.
        {{"SLURM_STEP_NODELIST=a", "SLURM_JOB_ID=1", "SLURM_STEP_ID=1", TASK,
          "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=8"},
         "where rank 0 is"},
        {{"TF_CONFIG={\"cluster\":{\"worker\":[\"w:x\"]}}"}, "TF_CONFIG=x is no number"},
        {{"TF_CONFIG={\"cluster\":{\"worker\":[\"w\"]}}"}, "at which port"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct boot_master master;
        struct base_error error;
        look(wrong[i].environment, &master, ZERO_E_INVALID, &error);
        if (!strstr(error.message, wrong[i].part))
            fail_msg("%s: %s", wrong[i].part, error.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_source_has_its_turn),
        cmocka_unit_test(the_first_host_of_a_step_is_taken),
        cmocka_unit_test(the_secret_is_read),
        cmocka_unit_test(what_is_missing_or_malformed_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
