// 64 bytes at a time: tables of 64 bytes in registers, one lookup for each, and codes that are
// pushed together in pairs. Compiled with AVX-512's flags and VBMI's, and called only where the
// processor has them.

#include "checkpoint/entropy/streams_put.h"

#include <immintrin.h>

enum { AT_A_TIME = 64, LANES = 8, MOST_WINDOWS = 4 };

typedef __m512i vector;

/* ------------------------------------------------------------------ rare bytes */

// Which of 256 bytes have a frequency, a bit each.
static vector known_bytes(const uint32_t frequency[256])
{
    unsigned char known[AT_A_TIME] = {0};
    for (unsigned byte = 0; byte < 256; byte++)
        if (frequency[byte] > 0)
            known[byte / 8] |= (unsigned char)(1U << byte % 8);
    return _mm512_loadu_si512(known);
}

static void find_rare(const unsigned char *bytes, size_t count, uint32_t frequency[256])
{
    const vector bit = _mm512_set1_epi64((long long)0x8040201008040201);
    vector known = known_bytes(frequency);
    size_t i = 0;
    for (; count - i >= AT_A_TIME; i += AT_A_TIME) {
        const vector v = _mm512_loadu_si512(bytes + i);
        const vector eight = _mm512_and_si512(_mm512_srli_epi16(v, 3), _mm512_set1_epi8(31));
        // Only the lower four bits of an index count below 128; the upper ones are taken away.
        const vector of_bit = _mm512_shuffle_epi8(bit, _mm512_and_si512(v, _mm512_set1_epi8(7)));
        if (_mm512_testn_epi8_mask(_mm512_permutexvar_epi8(eight, known), of_bit)) {
            find_rare_bytes(bytes + i, AT_A_TIME, frequency);
            known = known_bytes(frequency);
        }
    }
    find_rare_bytes(bytes + i, count - i, frequency);
}

/* ------------------------------------------------------------------ codes */

// Of the bytes whose upper bits are w: codes, and their lengths.
struct tables {
    vector code[MOST_WINDOWS], length[MOST_WINDOWS];
};

// In how many windows of 64 bytes those that have codes are; one or two need not begin where a
// table does, as lookups go round.
static int windows_of(const struct ckpt_huffman *huffman)
{
    const unsigned span = huffman->last - huffman->first;
    return span < AT_A_TIME ? 1 : span < 2 * AT_A_TIME ? 2 : MOST_WINDOWS;
}

static void make_tables(struct tables *tables, const struct ckpt_huffman *huffman, int windows)
{
    unsigned char row[2][MOST_WINDOWS * AT_A_TIME] = {{0}};
    for (unsigned byte = huffman->first; byte <= huffman->last; byte++) {
        const unsigned at = byte % (unsigned)(windows * AT_A_TIME);
        row[0][at] = huffman->code[byte];
        row[1][at] = huffman->length[byte];
    }
    for (int w = 0; w < windows; w++) {
        tables->code[w] = _mm512_loadu_si512(row[0] + w * AT_A_TIME);
        tables->length[w] = _mm512_loadu_si512(row[1] + w * AT_A_TIME);
    }
}

// in[w]: which bytes are in window w, from 1 on.
INLINE vector look_up(const vector table[MOST_WINDOWS], vector bytes,
                      const __mmask64 in[MOST_WINDOWS], int windows)
{
    vector found = _mm512_permutexvar_epi8(bytes, table[0]);
#pragma GCC unroll 4
    for (int w = 1; w < windows; w++)
        found = _mm512_mask_permutexvar_epi8(found, in[w], bytes, table[w]);
    return found;
}

INLINE void find_windows(vector bytes, __mmask64 in[MOST_WINDOWS], int windows)
{
    const vector upper = _mm512_and_si512(bytes, _mm512_set1_epi8((char)0xc0));
    if (windows == 2)
        in[1] = _mm512_test_epi8_mask(bytes, _mm512_set1_epi8(AT_A_TIME));
#pragma GCC unroll 4
    for (int w = 1; windows > 2 && w < windows; w++)
        in[w] = _mm512_cmpeq_epi8_mask(upper, _mm512_set1_epi8((char)(w * AT_A_TIME)));
}

// The codes of eight bytes in each lane of `bits`, and how long they are together. false: there are
// too many bits in some lane. Two neighbours become one in each step, and the upper one comes
// first.
INLINE bool push_together(vector code, vector length, vector *bits, vector *lengths)
{
    const vector byte = _mm512_set1_epi16(0xff), two = _mm512_set1_epi32(0xffff),
                 four = _mm512_set1_epi64(0xffffffff);
    const vector of_2 = _mm512_maddubs_epi16(length, _mm512_set1_epi8(1));
    const vector by_2 = _mm512_or_si512(
        _mm512_srli_epi16(code, 8),
        _mm512_sllv_epi16(_mm512_and_si512(code, byte), _mm512_srli_epi16(length, 8)));
    const vector of_4 = _mm512_madd_epi16(of_2, _mm512_set1_epi16(1));
    const vector by_4 = _mm512_or_si512(
        _mm512_srli_epi32(by_2, 16),
        _mm512_sllv_epi32(_mm512_and_si512(by_2, two), _mm512_srli_epi32(of_2, 16)));
    const vector upper = _mm512_srli_epi64(of_4, 32);
    *lengths = _mm512_add_epi64(upper, _mm512_and_si512(of_4, four));
    *bits = _mm512_or_si512(_mm512_srli_epi64(by_4, 32),
                            _mm512_sllv_epi64(_mm512_and_si512(by_4, four), upper));
    return !(_mm512_cmpgt_epi16_mask(of_2, _mm512_set1_epi16(16)) |
             _mm512_cmpgt_epi64_mask(*lengths, _mm512_set1_epi64(MOST_PUT)));
}

// The same for two neighbouring lanes, which become the lower one of them. false: nothing is done.
INLINE bool push_pairs(vector *bits, vector *lengths)
{
    const vector upper = _mm512_shuffle_epi32(*lengths, _MM_PERM_BADC);
    const vector both = _mm512_add_epi64(*lengths, upper);
    if (_mm512_cmpgt_epi64_mask(both, _mm512_set1_epi64(MOST_PUT)))
        return false;
    *bits = _mm512_or_si512(_mm512_shuffle_epi32(*bits, _MM_PERM_BADC),
                            _mm512_sllv_epi64(*bits, upper));
    *lengths = both;
    return true;
}

// A stream; what is not a whole vector comes first.
INLINE void put_stream(struct sink *sink, const struct entries *entries,
                       const struct tables *tables, const unsigned char *bytes, size_t count,
                       int windows)
{
    size_t left = count - count % AT_A_TIME;
    put_bytes(sink, entries, bytes + left, count - left);
    while (left > 0) {
        __mmask64 in[MOST_WINDOWS] = {0};
        uint64_t lane[LANES], length[LANES];
        vector bits, lengths;
        left -= AT_A_TIME;
        const vector v = _mm512_loadu_si512(bytes + left);
        find_windows(v, in, windows);
        if (!push_together(look_up(tables->code, v, in, windows),
                           look_up(tables->length, v, in, windows), &bits, &lengths)) {
            put_bytes(sink, entries, bytes + left, AT_A_TIME);
            continue;
        }
        if (push_pairs(&bits, &lengths)) {
            _mm512_storeu_si512(lane, bits);
            _mm512_storeu_si512(length, lengths);
#pragma GCC unroll 4
            for (int i = LANES; (i -= 2) >= 0;)
                sink_put(sink, lane[i], (unsigned)length[i]);
            continue;
        }
        _mm512_storeu_si512(lane, bits);
        _mm512_storeu_si512(length, lengths);
#pragma GCC unroll 8
        for (int i = LANES; i-- > 0;)
            sink_put(sink, lane[i], (unsigned)length[i]);
    }
}

INLINE void put_all(const struct ckpt_huffman *huffman, const unsigned char *bytes,
                    const size_t cut[5], unsigned char *out, size_t stream_bytes[4], int windows)
{
    struct entries entries;
    struct tables tables;
    make_entries(&entries, huffman);
    make_tables(&tables, huffman, windows);
    for (int k = 0; k < 4; k++) {
        struct sink sink = {.at = out};
        put_stream(&sink, &entries, &tables, bytes + cut[k], cut[k + 1] - cut[k], windows);
        stream_bytes[k] = (size_t)(sink_end(&sink) - out);
        out += stream_bytes[k];
    }
}

static void put(const struct ckpt_huffman *huffman, const unsigned char *bytes, const size_t cut[5],
                unsigned char *out, size_t stream_bytes[4])
{
    const int windows = windows_of(huffman);
    if (windows == 1)
        put_all(huffman, bytes, cut, out, stream_bytes, 1);
    else if (windows == 2)
        put_all(huffman, bytes, cut, out, stream_bytes, 2);
    else
        put_all(huffman, bytes, cut, out, stream_bytes, MOST_WINDOWS);
}

const struct ckpt_streams ckpt_streams_vbmi = {
    .size = sizeof(struct ckpt_streams),
    .name = "vbmi",
    .find_rare = find_rare,
    .put = put,
};
