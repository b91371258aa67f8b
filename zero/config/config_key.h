/**
 * The keys of the configuration: one table, and values as text.
 *
 * While they are being resolved all values are 64-bit integers: a number as it is, a choice as its
 * index in the key's list.
 */
#ifndef ZERO_CONFIG_CONFIG_KEY_H
#define ZERO_CONFIG_CONFIG_KEY_H

#include "base/error.h"
#include "zero/config/config.h"

enum eng_key_kind {
    ENG_KEY_INT32,
    ENG_KEY_INT64,
    ENG_KEY_BYTES,  /**< an int64_t; as text with or without KiB, MiB, GiB */
    ENG_KEY_UINT64, /**< any 64 bits; min and max don't hold */
    ENG_KEY_CHOICE, /**< a text of the list, in struct and config */
    ENG_KEY_ENUM,   /**< an int32_t in struct and config, a text of the list elsewhere */
    ENG_KEY_NAMED,  /**< a number or, as -1, -2 ..., a text of the list; a text in the struct, an
                         int64_t in config */
    ENG_KEY_TEXT,   /**< any text; an array of at least ENG_VALUE_BYTES in config */
    ENG_KEY_LEVELS, /**< log levels as text, no field of the struct */
};

struct eng_key {
    const char *name;
    enum eng_key_kind kind;
    size_t user_offset;         /**< in zero_config */
    size_t config_offset;       /**< in eng_config */
    int64_t min, max;           /**< of ENUM: of the index */
    int64_t fallback;           /**< the default; ENG_KEY_DERIVED: follows from other values */
    bool off;                   /**< ZERO_OFF, "off": none, kept as 0 */
    bool automatic;             /**< "auto": found out, kept as ENG_KEY_AUTO */
    const char *const *choices; /**< NULL at the end; a choice without a name is "" */
    const char *doc;            /**< what it is, for messages */
};

#define ENG_KEY_DERIVED INT64_MIN

/** Values of the key `transport`. */
enum {
    ENG_TRANSPORT_AUTO,
    ENG_TRANSPORT_SELF,
    ENG_TRANSPORT_THREADS,
    ENG_TRANSPORT_SHM,
    ENG_TRANSPORT_TCP,
    ENG_TRANSPORT_UCX
};

/** Values of the key `gather`. */
enum { ENG_GATHER_AUTO, ENG_GATHER_COPY, ENG_GATHER_SLOTS, ENG_GATHER_SHARED };

/** Where state is, as the key `offload_optimizer` says it. */
enum { ENG_OFFLOAD_NONE, ENG_OFFLOAD_HOST, ENG_OFFLOAD_NVME };

/** Values of the key `offload_update`. */
enum { ENG_UPDATER_AUTO, ENG_UPDATER_HOST, ENG_UPDATER_DEVICE };

extern const struct eng_key eng_keys[ENG_CONFIG_KEYS];

/** The index of the key called `name` (of `length` bytes), -1: none. */
int eng_key_find(const char *name, size_t length);

/** The key whose name is closest to `name`; NULL if none is close. */
const char *eng_key_closest(const char *name, size_t length);

/** Reads a value given as text; `given` is how to show it in messages ("ZERO_STAGE=9"). */
zero_result eng_key_parse(const struct eng_key *key, const char *text, const char *given,
                          int64_t *value, struct base_error *error);

/** Reads the struct's field; *set is false if it is at its default. */
zero_result eng_key_from_struct(const struct eng_key *key, const zero_config *user, int64_t *value,
                                bool *set, struct base_error *error);

/** How a value that was given is shown in messages: one line, whatever it holds. */
void eng_key_show_given(char given[ENG_VALUE_BYTES], const char *name, const char *text);

/** Writes an effective value as -o would take it. */
void eng_key_show(const struct eng_key *key, int64_t value, char *text, size_t size);

#endif
