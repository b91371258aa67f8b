/**
 * collectives/comm/signature.h: what an operation is, in a form that ranks can compare and print.
 */
#ifndef COLLECTIVES_COMM_SIGNATURE_H
#define COLLECTIVES_COMM_SIGNATURE_H

#include "collectives/comm/comm_internal.h"

enum {
    COLL_WHAT_BYTES = 8,
    COLL_LABEL_BYTES = 40,
    COLL_TEXT_BYTES = 160,
    COLL_DIFFERENCE_BYTES = 96,
    COLL_KIND_BYTES = 16
};

/** Equal on all ranks, byte for byte, if they made the same call. */
struct coll_signature {
    uint32_t kind;
    uint32_t dtype;
    int32_t contributors;
    /** A reduce-scatter has store here, one with a sum_group has last, an all-reduce its operation.
     * An all-gather has whether it is a publication. */
    uint32_t variant;
    int32_t root;    /**< of a message: the peer's number in the root */
    uint32_t number; /**< of the label */
    /** The bytes of a small operation, a broadcast or a message; the count of an all-reduce. */
    uint64_t bytes;
    uint64_t spans;             /**< hash of a bulk operation's spans */
    uint64_t first;             /**< of a sum_group: its first contribution; else 0 */
    uint32_t sum_group;         /**< 0: none */
    uint32_t together;          /**< of a reduce-scatter, and of an all-gather */
    char what[COLL_WHAT_BYTES]; /**< the label's two texts, cut */
    char name[COLL_LABEL_BYTES];
};

/** "reduce-scatter": COLL_KIND_BYTES, zeros at the end; "nothing" for what is no kind. */
const char *coll_kind_name(uint32_t kind);

/** Whether it is one of those whose bytes ranks show each other in slots, COLL_SMALL_BYTES at most.
 */
static inline bool coll_kind_is_small(uint32_t kind)
{
    return kind >= COLL_EXCHANGE && kind <= COLL_BARRIER;
}

/** Fills in the signature of a request. */
void coll_signature_make(struct coll_signature *signature, const struct coll_comm *comm,
                         const struct coll_request *request);

/** Fills in the label, of a signature that has none yet. */
void coll_signature_label(struct coll_signature *signature, const struct coll_label *label);

/** Ends the texts of a signature that came from elsewhere. */
void coll_signature_end(struct coll_signature *signature);

/** Equal for equal signatures; for different ones only by an accident of 63 bits, and never between
 * small operations. */
uint64_t coll_signature_digest(const struct coll_signature *signature);

/** Writes "all-gather #12, unit 5 (h.4)", at most COLL_TEXT_BYTES. */
void coll_signature_text(const struct coll_signature *signature, uint64_t sequence,
                         char text[COLL_TEXT_BYTES]);

/** Writes "rank 1 called barrier #2, rank 0 called barrier #2", and in what the calls differ if
 * that does not show: ", with another size: 4000 and 4096", ", after something else". */
void coll_signatures_text(int rank, const struct coll_signature *mine, int peer,
                          const struct coll_signature *theirs, uint64_t sequence,
                          char text[COLL_MESSAGE_BYTES]);

#endif
