/**
 * collectives/tcp/tcp_wire.h: what ranks send each other: a header, a fixed part by its type, and,
 * of an operation or a piece, a tail. Ranks have the same byte order and the same library:
 * rendezvous/ has made sure of it.
 */
#ifndef COLLECTIVES_TCP_TCP_WIRE_H
#define COLLECTIVES_TCP_TCP_WIRE_H

#include "collectives/host/host.h"

enum { NET_PART = 256 };

enum net_type {
    NET_OPERATION = 1, /**< tail: the bytes of a small one that don't fit */
    NET_COUNTERS,
    NET_P2P_SLOT,
    NET_RECEIVED,
    NET_LAST_CALL,
    NET_POISON,
    NET_ASK,   /**< for a piece */
    NET_PIECE, /**< tail: the piece */
    NET_MEET,  /**< the sender looks at this block from now on */
    NET_GONE,  /**< and will not any more; of block 0: the sender reads no source any more */
    NET_SHOWN, /**< a part of a small arena of the sender's */
    NET_BEAT,
    NET_TYPES,
};

struct net_header {
    uint32_t bytes; /**< of the fixed part and the tail */
    uint16_t type;
    uint16_t group_slot; /**< number of a block, 0 that of the root: the receiver's of NET_ASK,
                      NET_MEET and NET_GONE, else the sender's */
};

/** A struct host_descriptor, and of an all-to-all the receiver's place in its table. */
struct net_operation {
    uint64_t sequence;
    uint64_t history;
    struct host_place source, target;
    struct coll_span sent;
    unsigned char bytes[HOST_INLINE];
    struct coll_signature signature;
};

struct net_counters {
    uint64_t consumed, written;
};

struct net_p2p_slot {
    uint64_t number;
    struct host_p2p_slot p2p_slot;
};

struct net_received {
    uint64_t received;
};

struct net_last_call {
    uint64_t stamp;
    uint64_t words[HOST_LAST_CALL_WORDS];
};

struct net_poison {
    int32_t result;
    char message[COLL_MESSAGE_BYTES];
};

struct net_ask {
    uint64_t sequence;
    struct host_place place; /**< as its owner has posted it, and of it so many bytes */
    uint64_t message;        /**< 1: of a message, else of an operation */
};

struct net_shown {
    uint32_t arena; /**< its id */
    uint32_t part;  /**< which NET_PART bytes of it */
    alignas(8) unsigned char bytes[NET_PART];
};

/** The fixed part of whatever is sent. */
union net_fixed {
    struct net_operation operation;
    struct net_counters counters;
    struct net_p2p_slot p2p_slot;
    struct net_received received;
    struct net_last_call last_call;
    struct net_poison poison;
    struct net_ask ask;
    struct net_shown shown;
};

#endif
