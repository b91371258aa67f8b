// 32 bytes at a time: tables of 16 bytes in registers, a lookup in each, and codes that are pushed
// together in pairs. Compiled with the flags of AVX2 and BMI2, and called only where the processor
// has both.

#include "checkpoint/entropy/streams_put.h"

#include <immintrin.h>

enum { AT_A_TIME = 32, LANES = 4, ROW = 16, MOST_ROWS = 8 };

typedef __m256i vector;

INLINE vector load(const void *from)
{
    return _mm256_loadu_si256((const vector *)from);
}

INLINE vector both_halves(const void *row)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)row));
}

/* ------------------------------------------------------------------ rare bytes */

// Which of 256 bytes have a frequency, a bit each.
struct known {
    vector half[2];
};

static struct known known_bytes(const uint32_t frequency[256])
{
    unsigned char known[AT_A_TIME] = {0};
    for (unsigned byte = 0; byte < 256; byte++)
        if (frequency[byte] > 0)
            known[byte / 8] |= (unsigned char)(1U << byte % 8);
    return (struct known){{both_halves(known), both_halves(known + ROW)}};
}

static void find_rare(const unsigned char *bytes, size_t count, uint32_t frequency[256])
{
    const vector bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    struct known known = known_bytes(frequency);
    size_t i = 0;
    for (; count - i >= AT_A_TIME; i += AT_A_TIME) {
        const vector v = load(bytes + i);
        const vector eight = _mm256_and_si256(_mm256_srli_epi16(v, 3), _mm256_set1_epi8(ROW - 1));
        const vector found =
            _mm256_blendv_epi8(_mm256_shuffle_epi8(known.half[0], eight),
                               _mm256_shuffle_epi8(known.half[1], eight), v); // by its highest bit
        const vector of_bit = _mm256_shuffle_epi8(bit, _mm256_and_si256(v, _mm256_set1_epi8(7)));
        if (!_mm256_testc_si256(found, of_bit)) {
            find_rare_bytes(bytes + i, AT_A_TIME, frequency);
            known = known_bytes(frequency);
        }
    }
    find_rare_bytes(bytes + i, count - i, frequency);
}

/* ------------------------------------------------------------------ codes */

// Codes of bytes from `first` on, and their lengths, in rows of 16. A lookup finds something in
// each row up to its byte's own: each but the first holds what takes the former one's place.
struct tables {
    unsigned char first;
    vector code[MOST_ROWS], length[MOST_ROWS];
};

static void make_tables(struct tables *tables, const struct ckpt_huffman *huffman)
{
    unsigned char row[2][(MOST_ROWS + 1) * ROW] = {{0}};
    tables->first = (unsigned char)huffman->first;
    for (unsigned byte = huffman->first; byte <= huffman->last; byte++) {
        row[0][ROW + byte - huffman->first] = huffman->code[byte];
        row[1][ROW + byte - huffman->first] = huffman->length[byte];
    }
    for (int r = 0; r < MOST_ROWS; r++) {
        const unsigned char *code = row[0] + r * ROW, *length = row[1] + r * ROW;
        tables->code[r] = _mm256_xor_si256(both_halves(code), both_halves(code + ROW));
        tables->length[r] = _mm256_xor_si256(both_halves(length), both_halves(length + ROW));
    }
}

// In the rows behind its own a byte's place is below 0, where a lookup finds nothing.
INLINE void look_up(const struct tables *tables, vector bytes, int rows, vector *code,
                    vector *length)
{
    vector place = _mm256_sub_epi8(bytes, _mm256_set1_epi8((char)tables->first));
    *code = _mm256_shuffle_epi8(tables->code[0], place);
    *length = _mm256_shuffle_epi8(tables->length[0], place);
#pragma GCC unroll 8
    for (int r = 1; r < rows; r++) {
        place = _mm256_sub_epi8(place, _mm256_set1_epi8(ROW));
        *code = _mm256_xor_si256(*code, _mm256_shuffle_epi8(tables->code[r], place));
        *length = _mm256_xor_si256(*length, _mm256_shuffle_epi8(tables->length[r], place));
    }
}

// Two to the power of the upper byte of every 16 bits, which is at most 11.
INLINE vector two_to_the(vector length)
{
    const vector power = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, (char)128, 0, 0, 0, 0, 0, 0, 0, 0));
    const vector twice = _mm256_or_si256(
        _mm256_srli_epi16(length, 8), _mm256_and_si256(length, _mm256_set1_epi16((short)0xff00)));
    return _mm256_shuffle_epi8(power, _mm256_sub_epi8(twice, _mm256_set1_epi16(8 << 8)));
}

INLINE bool any(vector mask)
{
    return !_mm256_testz_si256(mask, mask);
}

// The codes of eight bytes in each lane of `bits`, and how long they are together. false: there are
// too many bits in some lane. Two neighbours become one in each step, and the upper one comes
// first.
INLINE bool push_together(vector code, vector length, vector *bits, vector *lengths)
{
    const vector byte = _mm256_set1_epi16(0xff), two = _mm256_set1_epi32(0xffff),
                 four = _mm256_set1_epi64x(0xffffffff);
    const vector of_2 = _mm256_maddubs_epi16(length, _mm256_set1_epi8(1));
    const vector by_2 =
        _mm256_or_si256(_mm256_srli_epi16(code, 8),
                        _mm256_mullo_epi16(_mm256_and_si256(code, byte), two_to_the(length)));
    const vector of_4 = _mm256_madd_epi16(of_2, _mm256_set1_epi16(1));
    const vector by_4 = _mm256_or_si256(
        _mm256_srli_epi32(by_2, 16),
        _mm256_sllv_epi32(_mm256_and_si256(by_2, two), _mm256_srli_epi32(of_2, 16)));
    const vector upper = _mm256_srli_epi64(of_4, 32);
    *lengths = _mm256_add_epi64(upper, _mm256_and_si256(of_4, four));
    *bits = _mm256_or_si256(_mm256_srli_epi64(by_4, 32),
                            _mm256_sllv_epi64(_mm256_and_si256(by_4, four), upper));
    return !any(_mm256_or_si256(_mm256_cmpgt_epi16(of_2, _mm256_set1_epi16(16)),
                                _mm256_cmpgt_epi64(*lengths, _mm256_set1_epi64x(MOST_PUT))));
}

// Joins two neighbouring lanes, which become the lower one of them. false: nothing is done.
INLINE bool push_pairs(vector *bits, vector *lengths)
{
    const vector upper = _mm256_shuffle_epi32(*lengths, 0x4e);
    const vector both = _mm256_add_epi64(*lengths, upper);
    if (any(_mm256_cmpgt_epi64(both, _mm256_set1_epi64x(MOST_PUT))))
        return false;
    *bits = _mm256_or_si256(_mm256_shuffle_epi32(*bits, 0x4e), _mm256_sllv_epi64(*bits, upper));
    *lengths = both;
    return true;
}

// A stream; what is not a whole vector comes first.
INLINE void put_stream(struct sink *sink, const struct entries *entries,
                       const struct tables *tables, const unsigned char *bytes, size_t count,
                       int rows)
{
    size_t left = count - count % AT_A_TIME;
    put_bytes(sink, entries, bytes + left, count - left);
    while (left > 0) {
        uint64_t lane[LANES], length[LANES];
        vector codes, code_lengths, bits, lengths;
        left -= AT_A_TIME;
        look_up(tables, load(bytes + left), rows, &codes, &code_lengths);
        if (!push_together(codes, code_lengths, &bits, &lengths)) {
            put_bytes(sink, entries, bytes + left, AT_A_TIME);
            continue;
        }
        const int step = push_pairs(&bits, &lengths) ? 2 : 1;
        _mm256_storeu_si256((vector *)lane, bits);
        _mm256_storeu_si256((vector *)length, lengths);
        for (int i = LANES; (i -= step) >= 0;)
            sink_put(sink, lane[i], (unsigned)length[i]);
    }
}

INLINE void put_all(const struct ckpt_huffman *huffman, const unsigned char *bytes,
                    const size_t cut[5], unsigned char *out, size_t stream_bytes[4], int rows)
{
    struct entries entries;
    struct tables tables;
    make_entries(&entries, huffman);
    make_tables(&tables, huffman);
    for (int k = 0; k < 4; k++) {
        struct sink sink = {.at = out};
        put_stream(&sink, &entries, &tables, bytes + cut[k], cut[k + 1] - cut[k], rows);
        stream_bytes[k] = (size_t)(sink_end(&sink) - out);
        out += stream_bytes[k];
    }
}

static void put(const struct ckpt_huffman *huffman, const unsigned char *bytes, const size_t cut[5],
                unsigned char *out, size_t stream_bytes[4])
{
    const unsigned rows = (huffman->last - huffman->first) / ROW + 1;
    if (rows <= 2)
        put_all(huffman, bytes, cut, out, stream_bytes, 2);
    else if (rows <= 4)
        put_all(huffman, bytes, cut, out, stream_bytes, 4);
    else if (rows <= MOST_ROWS)
        put_all(huffman, bytes, cut, out, stream_bytes, MOST_ROWS);
    else
        put_streams(huffman, bytes, cut, out, stream_bytes);
}

const struct ckpt_streams ckpt_streams_avx2 = {
    .size = sizeof(struct ckpt_streams),
    .name = "avx2",
    .find_rare = find_rare,
    .put = put,
};
