/**
 * tests/unit/ckpt_command.h: zero-ckpt as a command, in a directory of the test's own.
 */
#ifndef TESTS_UNIT_CKPT_COMMAND_H
#define TESTS_UNIT_CKPT_COMMAND_H

#include "checkpoint/directory/directory.h"
#include "tests/unit/ckpt_sample.h"
#include "tests/unit/temporary.h"

#include <jansson.h>

extern const char *tool_program; /**< main() sets it */
extern struct temporary tool_temporary;
extern struct base_error tool_failure;
extern char tool_output[1 << 18]; /**< of the last command, standard error included */

/** For cmocka: a new directory; $T is it, $D the one of checkpoints in it, which is not made. */
int tool_set_up(void **state);
int tool_tear_down(void **state);

/** $D. */
const char *tool_directory(void);

/** Runs `zero-ckpt arguments` by the shell and returns its status. */
int tool_run(const char *arguments);
/** The same; the test fails unless it has that status, and `part` is in what it writes. */
void tool_expect(int status, const char *arguments, const char *part);
/** The object that it prints, which has this schema. To be given to json_decref(). */
json_t *tool_run_json(int status, const char *arguments, const char *schema);

/** Saves the sample as `step`; its first tensor has `name`, unless that is NULL. */
void tool_save(const char *directory, enum sample_size size, uint64_t step, uint32_t world,
               const char *name, uint64_t micro_batches);

#endif
