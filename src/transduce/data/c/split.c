/* Which lines of a file can be in a part of their corpus, found by their bytes: where the source
 * stands in a line, and its hash, as transduce/data/text/split.py computes them of a text. Where a
 * character could change by normalization or be stripped as a space, that file decides. */

#include <stdint.h>
#include <string.h>

enum { DIGEST = 8, BLOCK = 128 };

static const uint64_t START[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

static const uint8_t ORDER[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

static inline uint64_t turned(uint64_t x, int by) { return x >> by | x << (64 - by); }

static inline void mix(uint64_t *v, int a, int b, int c, int d, uint64_t x, uint64_t y) {
    v[a] += v[b] + x;
    v[d] = turned(v[d] ^ v[a], 32);
    v[c] += v[d];
    v[b] = turned(v[b] ^ v[c], 24);
    v[a] += v[b] + y;
    v[d] = turned(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = turned(v[b] ^ v[c], 63);
}

static void take_block(uint64_t *state, const uint8_t *block, uint64_t count, int last) {
    uint64_t v[16], words[16];
    for (int i = 0; i < 16; i++) {
        words[i] = 0;
        for (int byte = 0; byte < 8; byte++) words[i] |= (uint64_t)block[8 * i + byte] << 8 * byte;
    }
    for (int i = 0; i < 8; i++) {
        v[i] = state[i];
        v[8 + i] = START[i];
    }
    v[12] ^= count;
    if (last) v[14] = ~v[14];
    for (int round = 0; round < 12; round++) {
        const uint8_t *s = ORDER[round % 10];
        for (int i = 0; i < 4; i++)
            mix(v, i, 4 + i, 8 + i, 12 + i, words[s[2 * i]], words[s[2 * i + 1]]);
        for (int i = 0; i < 4; i++)
            mix(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, words[s[8 + 2 * i]],
                words[s[9 + 2 * i]]);
    }
    for (int i = 0; i < 8; i++) state[i] ^= v[i] ^ v[8 + i];
}

/* BLAKE2b (RFC 7693) with a digest of 8 bytes and no key, as a number of little-endian bytes. */
uint64_t place_of_bytes(const uint8_t *text, int64_t size) {
    uint64_t state[8];
    uint8_t block[BLOCK];
    int64_t at = 0;
    memcpy(state, START, sizeof state);
    state[0] ^= 0x01010000 ^ DIGEST;
    for (; size - at > BLOCK; at += BLOCK) take_block(state, text + at, at + BLOCK, 0);
    memset(block, 0, BLOCK);
    if (size) memcpy(block, text + at, size - at);
    take_block(state, block, size, 1);
    return state[0];
}

/* Whether str.strip and NFC change nothing of text that begins and ends with no space of ASCII: all
 * its characters are their own normal form, and none is a space or a combining mark. Scripts with
 * marks are not told apart. */
static int is_plain(const uint8_t *text, const uint8_t *end) {
    for (; text < end; text++) {
        uint8_t byte = *text;
        if (byte < 0x80) continue;
        if (text + 1 >= end) return 0;
        uint8_t second = text[1];
        if ((byte >= 0xc3 && byte <= 0xcb) || (byte >= 0xcf && byte <= 0xd1)) /* Latin, Cyrillic */
            text += 1;
        else if (byte == 0xce && second != 0x87) /* Greek, without its middle dot */
            text += 1;
        else if (byte == 0xe3 && second >= 0x81 && second <= 0x83 &&
                 !(second == 0x82 && (text[2] == 0x99 || text[2] == 0x9a))) /* kana, no marks */
            text += 2;
        else if (byte >= 0xe4 && byte <= 0xe9) /* ideographs */
            text += 2;
        else if ((byte == 0xea && second >= 0xb0) || (byte >= 0xeb && byte <= 0xed)) /* Hangul */
            text += 2;
        else
            return 0;
    }
    return 1;
}

static inline int is_space(uint8_t byte) {
    return byte == ' ' || (byte >= '\t' && byte <= '\r') || (byte >= 0x1c && byte <= 0x1f);
}

/* The lines of text, which ends with a line break, that can be in the part of the places from first
 * to last: their numbers from 0, starts and ends, three numbers each. How many they are.
 *
 * column: that of the source, from 0, of columns that tabs separate, of which there must be so
 * many; -1: the line is the source. head: lines that begin with it are always found. */
int64_t lines_in_part(const uint8_t *text, int64_t size, int64_t column, int64_t columns,
                      uint64_t first, uint64_t last, const uint8_t *head, int64_t head_size,
                      int64_t *found) {
    const uint8_t *at = text, *end = text + size;
    int64_t count = 0;
    for (int64_t line = 0; at < end; line++) {
        const uint8_t *stop = memchr(at, '\n', end - at), *next = stop + 1;
        const uint8_t *from = at, *to = stop;
        int sure = !head_size || stop - at < head_size || memcmp(at, head, head_size);
        if (column >= 0) {
            const uint8_t *cell = at;
            int64_t number = 0;
            for (;; number++) {
                const uint8_t *tab = memchr(cell, '\t', stop - cell);
                if (number == column) from = cell, to = tab ? tab : stop;
                if (!tab || (number >= column && number + 1 >= columns)) break;
                cell = tab + 1;
            }
            sure = sure && number + 1 >= columns && number >= column;
        }
        if (sure) {
            while (from < to && is_space(*from)) from++;
            while (from < to && is_space(to[-1])) to--;
            sure = is_plain(from, to);
        }
        int inside = 1;
        if (sure) {
            uint64_t place = place_of_bytes(from, to - from);
            inside = place >= first && place <= last;
        }
        if (inside) {
            found[3 * count] = line;
            found[3 * count + 1] = at - text;
            found[3 * count + 2] = stop - text;
            count++;
        }
        at = next;
    }
    return count;
}
