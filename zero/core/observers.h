/**
 * zero/core/observers.h: observers of what the program does with parameters and gradients.
 *
 * An observer looks for errors of the program, where the configuration asks for it. The engine
 * tells it what is opened and closed, and an observer may show the program other memory than the
 * engine's. zero_commit() adds observers before it decides memory; without any, nothing is called.
 */
#ifndef ZERO_CORE_OBSERVERS_H
#define ZERO_CORE_OBSERVERS_H

#include "zero/core/context.h"

/** What happens to a unit. */
enum eng_unit_event {
    ENG_UNIT_GATHERED,     /**< The program gathers a unit that it did not hold. */
    ENG_UNIT_RELEASED,     /**< The program releases its last hold. */
    ENG_UNIT_GRAD_DONE,    /**< The program has handed over the unit's gradient. */
    ENG_UNIT_GRAD_ARRIVED, /**< That gradient is where it is reduced, which has not begun. */
    ENG_UNIT_EVENTS,
};

/** What happens to all units. */
enum eng_step_event {
    ENG_STEP_PUBLISHED, /**< New values of tensors that are always readable may have arrived. */
    ENG_STEP_FUSED, /**< The program begins a fused step. ZERO_E_STATE: that can't be observed. */
    ENG_STEP_HANDED_OVER, /**< All gradients of a step were handed over, and the step is not decided
                               yet. Collective, ordered. */
    ENG_STEP_EVENTS,
};

/** What an observer is told, and asked; an entry that is NULL is left out. Observers are called in
 * the order in which they were added, up to the first failure. Every entry is *local* unless it
 * says otherwise. */
struct eng_observer {
    const char *key; /**< of the configuration, which switches it on: 1, or 0 */
    /** Micro-batches that each rank computes once more at the end of a step: the first ones of the
     * next rank. Their gradients go into no sum. */
    int again;

    /** Bytes of its tables. */
    size_t (*tables)(const zero_ctx *z);
    /** Bytes of addresses that it takes, whether or not memory is behind them. */
    size_t (*addresses)(const zero_ctx *z);
    /** Makes its tables, when the engine's are there. Errors are in *error. */
    zero_result (*make)(zero_ctx *z, struct base_error *error);
    /** Frees what make() has made, even if make() failed halfway. */
    void (*free)(zero_ctx *z);

    /** Something has happened to a unit. */
    zero_result (*unit[ENG_UNIT_EVENTS])(zero_ctx *z, zero_unit unit);
    /** Something has happened to all of them. */
    zero_result (*step[ENG_STEP_EVENTS])(zero_ctx *z);
    /** The program opens a unit's gradient in memory of the host; raw: to overwrite all of it. */
    zero_result (*grad_opened)(zero_ctx *z, zero_unit unit, bool raw);

    /** Where the program finds a slice of a gathered unit, or the gradient of a slice. */
    const void *(*param)(const zero_ctx *z, const struct eng_slice *slice);
    void *(*grad)(const zero_ctx *z, const struct eng_slice *slice);
};

/** Adds an observer, at most ENG_MAX_OBSERVERS. */
void eng_observer_add(zero_ctx *z, const struct eng_observer *observer);

/** Sums over all observers. */
size_t eng_observers_tables(const zero_ctx *z);
size_t eng_observers_addresses(const zero_ctx *z);

/* Each calls the entry of that name of all observers. */

zero_result eng_observers_make(zero_ctx *z, struct base_error *error);
void eng_observers_free(zero_ctx *z);
zero_result eng_observe_unit(zero_ctx *z, enum eng_unit_event event, zero_unit unit);
zero_result eng_observe_step(zero_ctx *z, enum eng_step_event event);
zero_result eng_observe_grad_opened(zero_ctx *z, zero_unit unit, bool raw);

/** The address that the first observer shows which shows one; NULL: no observer does. */
const void *eng_observed_param(const zero_ctx *z, const struct eng_slice *slice);
void *eng_observed_grad(const zero_ctx *z, const struct eng_slice *slice);

#endif
