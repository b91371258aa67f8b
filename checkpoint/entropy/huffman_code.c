#include "checkpoint/entropy/huffman.h"

#include <assert.h>
#include <string.h>

enum { BYTES = 256, LONGEST = CKPT_HUFFMAN_LONGEST, DEEPEST = 32 };

// Bytes that occur, the rarest first, those of one frequency in their order: a frequency above its
// byte. Returns how many. Each one's place is counted: that has no branches to be guessed.
static size_t sort(uint32_t sorted[BYTES], const uint32_t frequency[BYTES])
{
    uint32_t key[BYTES];
    size_t count = 0;
    for (uint32_t byte = 0; byte < BYTES; byte++) {
        key[count] = frequency[byte] << 8 | byte;
        count += frequency[byte] > 0;
    }
    for (size_t i = 0; i < count; i++) {
        uint32_t place = 0;
        for (size_t k = 0; k < count; k++)
            place += key[k] < key[i];
        sorted[place] = key[i];
    }
    return count;
}

// The smaller one of the next leaf and the next node that has no parent yet; leaves go first.
static uint32_t take(uint32_t *node, size_t count, size_t *leaf, size_t *root, size_t parent)
{
    assert(*leaf < count || *root < parent);
    if (*leaf < count && (*root >= parent || node[*leaf] <= node[*root]))
        return node[(*leaf)++];
    const uint32_t sum = node[*root];
    node[(*root)++] = (uint32_t)parent;
    return sum;
}

// How many bytes have codes of each length in Huffman's tree: in place, as Moffat and Katajainen
// have shown. A place has a leaf's frequency first, then a node's, its parent, and its depth.
static void count_lengths(uint32_t *node, size_t count, unsigned of_length[DEEPEST])
{
    assert(count >= 2);
    size_t leaf = 0, root = 0;
    for (size_t parent = 0; parent < count - 1; parent++) {
        const uint32_t one = take(node, count, &leaf, &root, parent);
        node[parent] = one + take(node, count, &leaf, &root, parent);
    }
    node[count - 2] = 0;
    for (size_t i = count - 2; i-- > 0;)
        node[i] = node[node[i]] + 1;
    // The nodes of a depth that are no inner ones are leaves.
    size_t there = 1, inner = count - 1;
    for (unsigned depth = 0; there > 0; depth++) {
        size_t nodes = 0;
        assert(depth < DEEPEST);
        for (; inner > 0 && node[inner - 1] == depth; inner--)
            nodes++;
        of_length[depth] = (unsigned)(there - nodes);
        there = 2 * nodes;
    }
}

// Codes that are too long become as long as they may be; each time that is one too many, the
// deepest of the others goes down by one and makes room for one beside it.
static void limit_lengths(unsigned of_length[DEEPEST])
{
    unsigned taken = 0;
    for (unsigned length = LONGEST + 1; length < DEEPEST; length++) {
        of_length[LONGEST] += of_length[length];
        of_length[length] = 0;
    }
    for (unsigned length = 1; length <= LONGEST; length++)
        taken += of_length[length] << (LONGEST - length);
    for (; taken > 1U << LONGEST; taken--) {
        unsigned length = LONGEST - 1;
        while (of_length[length] == 0)
            length--;
        of_length[length]--;
        of_length[length + 1] += 2;
        of_length[LONGEST]--;
    }
}

// The longest codes begin with 0, and those of one length are in the bytes' order.
static void give_codes(struct ckpt_huffman *huffman, const unsigned of_length[DEEPEST])
{
    unsigned next[LONGEST + 1], code = 0;
    for (unsigned length = huffman->longest; length > 0; length--) {
        next[length] = code;
        code = (code + of_length[length]) >> 1;
    }
    for (unsigned byte = huffman->first; byte <= huffman->last; byte++)
        if (huffman->length[byte])
            huffman->code[byte] = (uint8_t)next[huffman->length[byte]]++;
}

void ckpt_huffman_make(struct ckpt_huffman *huffman, const uint32_t frequency[256])
{
    uint32_t sorted[BYTES], node[BYTES] = {0};
    unsigned of_length[DEEPEST] = {0};
    const size_t count = sort(sorted, frequency);
    for (size_t i = 0; i < count; i++)
        node[i] = sorted[i] >> 8;
    count_lengths(node, count, of_length);
    limit_lengths(of_length);
    *huffman = (struct ckpt_huffman){.first = BYTES};
    size_t at = 0;
    for (unsigned length = LONGEST; length > 0; length--) {
        if (of_length[length] > 0 && huffman->longest == 0)
            huffman->longest = length;
        for (unsigned i = 0; i < of_length[length]; i++) {
            const unsigned byte = sorted[at++] & 0xff;
            huffman->length[byte] = (uint8_t)length;
            huffman->first = byte < huffman->first ? byte : huffman->first;
            huffman->last = byte > huffman->last ? byte : huffman->last;
        }
    }
    give_codes(huffman, of_length);
}
