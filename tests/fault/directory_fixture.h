/**
 * tests/fault/directory_fixture.h: a directory of checkpoints in a temporary one, and what tests of
 * it have in common.
 */
#ifndef TESTS_FAULT_DIRECTORY_FIXTURE_H
#define TESTS_FAULT_DIRECTORY_FIXTURE_H

#include "tests/fault/toy_checkpoint.h"
#include "tests/unit/temporary.h"

extern const struct ckpt_store *const store;
extern struct temporary temporary;
extern struct base_error failure;
extern char path[128]; /**< of the directory, which is not made yet */

int set_up(void **state);
int tear_down(void **state);

struct ckpt_directory *open_directory(uint32_t world);

/** Saves a toy checkpoint; `version` decides its contents. */
void save(struct ckpt_directory *directory, uint64_t step, uint32_t world, uint64_t version);

void expect_version(uint64_t step, uint64_t version);

/** Checks which checkpoints there are: as text, "50 100". */
void expect_steps(const char *wanted);

/** Of what is called `name` in the directory. */
bool exists(const char *name);
ino_t inode_of(const char *name);
void write_file(const char *name, const char *text);
void make_folder(const char *name);

#endif
