#include "collectives/rendezvous/process_manager.h"
#include "collectives/rendezvous/mesh_internal.h"

#include "base/arena.h"
#include "base/library.h"
#include "collectives/rendezvous/launcher_variables.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

// What the manager has answered to this process, which it is not asked again: it has been left.
static struct {
    pthread_mutex_t mutex;
    bool placed, found;
    struct boot_manager_place place;
    struct boot_master master; /**< but for its secret */
    int reserved;              /**< rank 0: keeps its port for the life of the process */
} answered = {.mutex = PTHREAD_MUTEX_INITIALIZER, .reserved = -1};

/* ------------------------------------------------------------------ which one */

// ZERO_PMI: 0, ask none; 1, ask PMI-1 too. *level is 0, 1, or 2 for PMI-1.
static zero_result read_level(int *level, char *const *environment, struct base_error *error)
{
    const char *value = boot_variable(environment, "ZERO_PMI");
    int number = 0;
    *level = 1;
    if (!value)
        return ZERO_OK;
    const zero_result result = boot_number(&number, "ZERO_PMI", value, 0, 1, error);
    *level = 2 * number;
    return result;
}

// The managers that may be asked, the innermost first; NULL at the end.
static zero_result permitted(const struct boot_manager *managers[3], char *const *environment,
                             struct base_error *error)
{
    int level, count = 0;
    const zero_result result = read_level(&level, environment, error);
    if (!result && level == 2)
        managers[count++] = &boot_pmi1;
    if (!result && level > 0)
        managers[count++] = &boot_pmix;
    managers[count] = NULL;
    return result;
}

// The manager that can be asked where rank 0 is; NULL: none.
static zero_result choose_manager(const struct boot_manager **manager, int rank, int world,
                                  char *const *environment, struct base_error *error)
{
    const struct boot_manager *managers[3];
    const zero_result result = permitted(managers, environment, error);
    *manager = NULL;
    for (int i = 0; managers[i] && !*manager; i++)
        if (managers[i]->is_counting(environment, rank, world))
            *manager = managers[i];
    return result;
}

zero_result boot_manager_look(bool *offered, int rank, int world, char *const *environment,
                              struct base_error *error)
{
    const struct boot_manager *manager;
    const zero_result result = choose_manager(&manager, rank, world, environment, error);
    *offered = manager != NULL;
    return result;
}

const char *boot_manager_name(char *const *environment)
{
    const struct boot_manager *managers[3];
    permitted(managers, environment, NULL);
    for (int i = 0; managers[i]; i++)
        if (managers[i]->is_there(environment))
            return managers[i]->name;
    return NULL;
}

const char *boot_manager_placing(char *const *environment)
{
    const struct boot_manager *managers[3];
    permitted(managers, environment, NULL);
    for (int i = 0; managers[i]; i++)
        if (managers[i]->is_placing(environment))
            return managers[i]->name;
    return NULL;
}

zero_result boot_manager_check_program(struct base_error *error)
{
    if (!base_library_is_there("MPI_Init"))
        return ZERO_OK;
    return zero_fail(error, ZERO_E_UNSUPPORTED,
                     "the program is one of MPI, which asks it by itself: give zero the ranks of a "
                     "communicator, zero_config_from_mpi() of <zero/mpi.h>");
}

/* ------------------------------------------------------------------ rank and world */

enum { ADDED_BYTES = 40 };

/** An environment with what a manager has said. */
struct extended {
    char **entries;
    char added[BOOT_MANAGER_NAMES][ADDED_BYTES];
};

static bool extend(struct extended *extended, char *const *environment,
                   const struct boot_manager *manager, const struct boot_manager_place *place)
{
    const int numbers[] = {place->rank, place->world, place->local_rank, place->local_world,
                           place->hosts};
    static const int least[] = {0, 1, 0, 1, 1};
    size_t count = 0, added = 0;
    while (environment && environment[count])
        count++;
    extended->entries = base_calloc(count + BOOT_MANAGER_NAMES + 1, sizeof *extended->entries);
    if (!extended->entries)
        return false;
    for (size_t i = 0; i < BOOT_MANAGER_NAMES && manager->names[i]; i++) {
        if (numbers[i] < least[i])
            continue;
        snprintf(extended->added[i], ADDED_BYTES, "%s=%d", manager->names[i], numbers[i]);
        extended->entries[added++] = extended->added[i];
    }
    if (count > 0)
        memcpy(extended->entries + added, environment, count * sizeof *environment);
    return true;
}

static zero_result ask_place(struct boot_manager_place *place, const struct boot_manager *manager,
                             char *const *environment, struct base_error *error)
{
    zero_result result = ZERO_OK;
    pthread_mutex_lock(&answered.mutex);
    if (!answered.placed)
        result = manager->find_place(&answered.place, environment, error);
    answered.placed = answered.placed || !result;
    *place = answered.place;
    pthread_mutex_unlock(&answered.mutex);
    return result;
}

// Finds the place with what a manager says beside the variables, which do not say enough: `why`.
static zero_result discover_by(struct boot_place *place, const struct boot_manager *manager,
                               char *const *environment, const struct base_error *why,
                               struct base_error *error)
{
    struct base_error silent = {.result = ZERO_OK};
    struct boot_manager_place found;
    struct extended extended;
    if (ask_place(&found, manager, environment, &silent))
        return zero_fail(error, why->result, "%s; %s can't be asked: %s", why->message,
                         manager->name, silent.message);
    if (!extend(&extended, environment, manager, &found))
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the variables of a process");
    const zero_result result = boot_discover(place, extended.entries, error);
    base_free(extended.entries);
    return result;
}

zero_result boot_manager_discover(struct boot_place *place, char *const *environment,
                                  struct base_error *error)
{
    const struct boot_manager *managers[3];
    struct base_error why = {.result = ZERO_OK};
    zero_result result = permitted(managers, environment, error);
    if (result)
        return result;
    result = boot_discover(place, environment, &why);
    for (int i = 0; result && managers[i]; i++)
        if (managers[i]->is_placing(environment))
            return discover_by(place, managers[i], environment, &why, error);
    const bool hint = result && boot_pmi1.is_placing(environment);
    return result
               ? zero_fail(error, result, "%s%s", why.message,
                           hint ? "; ZERO_PMI=1 asks the launcher, for a program without MPI" : "")
               : ZERO_OK;
}

/* ------------------------------------------------------------------ where rank 0 is */

zero_result boot_board_left(struct boot_board *board, const char *manager, int most, int *left,
                            struct base_error *error)
{
    double seconds;
    if (boot_wait_says(&board->wait, &seconds))
        base_logf(board->log, ZERO_LOG_WARN, "coll",
                  "rank %d has waited %.0f s for all %d ranks to come to %s, which then says where "
                  "rank 0 is",
                  board->rank, seconds, board->world, manager);
    *left = boot_wait_left(&board->wait, board->deadline_ns, most);
    if (*left > 0)
        return ZERO_OK;
    if (boot_wait_stops(&board->wait))
        return boot_fail_stopped(board->rank, "ranks", board->world, error);
    return zero_fail(error, ZERO_E_TIMEOUT,
                     "it does not answer in time: not all of %d ranks may "
                     "have come to it",
                     board->world);
}

// "port@address,address": no blank, and no character that a manager takes for its own.
static void write_place(char text[BOOT_BOARD_BYTES], const struct boot_master *master)
{
    snprintf(text, BOOT_BOARD_BYTES, "%d@%s", master->port, master->address);
}

static zero_result read_place(struct boot_master *master, const char *text,
                              struct base_error *error)
{
    char digits[8], shown[BOOT_BOARD_BYTES];
    const size_t length = strcspn(text, "@");
    const char *address = text + length + 1;
    bool good = length > 0 && length < sizeof digits && text[length] == '@' && *address &&
                strlen(address) < sizeof master->address &&
                strspn(address, "0123456789abcdefABCDEF.:,") == strlen(address);
    snprintf(digits, sizeof digits, "%.*s", (int)length, text);
    if (good)
        good = boot_number(&master->port, "", digits, 1, BOOT_PORT_MAX, NULL) == ZERO_OK;
    if (good) {
        strcpy(master->address, address);
        return ZERO_OK;
    }
    snprintf(shown, sizeof shown, "%s", text);
    boot_clean(shown, sizeof shown);
    return zero_fail(error, ZERO_E_INVALID, "it has \"%.80s\" as the place of rank 0", shown);
}

static zero_result exchange_place(const struct boot_manager *manager, struct boot_board *board,
                                  struct base_error *error)
{
    char text[BOOT_BOARD_BYTES] = "";
    struct boot_master *master = &answered.master;
    zero_result result = ZERO_OK;
    assert(manager->size == sizeof *manager && board->world > 1);
    *master = (struct boot_master){.port = 0};
    snprintf(master->source, sizeof master->source, "%s", manager->name);
    if (board->rank == 0 && answered.reserved < 0)
        result = mesh_reserve(&answered.reserved, &master->port, error);
    if (board->rank == 0) {
        mesh_own_addresses(master->address);
        write_place(text, master);
    }
    if (!result)
        result = manager->publish(board, text, error);
    return result ? result : read_place(master, text, error);
}

static zero_result ask_board(const struct boot_manager *manager, struct boot_board *board,
                             struct boot_master *master, struct base_error *error)
{
    struct base_error why = {.result = ZERO_OK};
    zero_result result = ZERO_OK;
    pthread_mutex_lock(&answered.mutex);
    if (!answered.found)
        result = exchange_place(manager, board, &why);
    if (result)
        boot_fd_close(&answered.reserved);
    answered.found = answered.found || !result;
    *master = answered.master;
    pthread_mutex_unlock(&answered.mutex);
    if (result == ZERO_E_ABORTED)
        return zero_fail(error, result, "%s", why.message);
    return result ? zero_fail(error, result,
                              "rank %d: no variable says where rank 0 is, and %s can't be asked: "
                              "%s; set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a port "
                              "of it, the same on all ranks",
                              board->rank, manager->name, why.message)
                  : ZERO_OK;
}

zero_result boot_manager_master(struct boot_master *master, const struct boot_meeting *meeting,
                                char *const *environment, struct base_error *error)
{
    const struct boot_manager *manager;
    struct boot_master found, variables;
    struct boot_board board = {.rank = meeting->rank,
                               .world = meeting->world,
                               .environment = environment,
                               .deadline_ns = meeting->deadline_ns,
                               .log = meeting->log,
                               .wait = boot_wait_begin(meeting->remind_ns, meeting->deadline_ns)};
    board.wait.asked = meeting->asked;
    zero_result result =
        choose_manager(&manager, meeting->rank, meeting->world, environment, error);
    if (result)
        return result;
    if (!manager)
        return zero_fail(error, ZERO_E_INVALID, "rank %d: no process manager can be asked",
                         meeting->rank);
    result = boot_find_any_master(&variables, environment, error); // for its secret
    if (!result)
        result = ask_board(manager, &board, &found, error);
    if (result)
        return result;
    *master = found;
    memcpy(master->secret, variables.secret, sizeof master->secret);
    return ZERO_OK;
}

void boot_manager_leave(void)
{
    pthread_mutex_lock(&answered.mutex);
    boot_pmi1.leave();
    boot_pmix.leave();
    pthread_mutex_unlock(&answered.mutex);
}
