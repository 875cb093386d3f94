/* The tokens of words, for texts that are cut at their spaces: a table from the bytes of a word to
 * its ids, which transduce/data/tokens/words.py fills with what the tokenizer says of each new word.
 * So a text is tokenised by looking up its words, and the ids are those of the tokenizer. Another
 * such table counts the words of texts. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t hash;
    int64_t text; /* where its bytes begin */
    int32_t length;
    int32_t count; /* of ids */
    int64_t ids;   /* where they begin; in a table that counts, how often the word occurs */
} Word;

typedef struct {
    int64_t most, words; /* how many there may be, and are */
    Word *word;
    uint64_t mask;
    int32_t *slots; /* the number of a word, or -1 */
    uint8_t *text;
    int64_t text_size, text_room;
    int32_t *ids;
    int64_t ids_size, ids_room;
} Words;

enum { BY_ITSELF = -1, FULL = -1, NO_MEMORY = -2 };

void words_free(Words *words) {
    if (!words) return;
    free(words->word);
    free(words->slots);
    free(words->text);
    free(words->ids);
    free(words);
}

void words_clear(Words *words) {
    words->words = words->text_size = words->ids_size = 0;
    memset(words->slots, 0xff, (words->mask + 1) * sizeof *words->slots);
}

/* An empty table for so many words; NULL where there is no memory. */
Words *words_new(int64_t most) {
    Words *words = calloc(1, sizeof *words);
    if (!words) return 0;
    uint64_t size = 16;
    while (size < 2 * (uint64_t)most) size *= 2; /* at most half full */
    words->most = most;
    words->mask = size - 1;
    words->word = malloc(most * sizeof *words->word);
    words->slots = malloc(size * sizeof *words->slots);
    if (!words->word || !words->slots) {
        words_free(words);
        return 0;
    }
    words_clear(words);
    return words;
}

static int grow(void **place, int64_t *room, int64_t wanted, size_t each) {
    if (wanted <= *room) return 1;
    int64_t size = wanted + wanted / 2 + 1024;
    void *found = realloc(*place, size * each);
    if (!found) return 0;
    *place = found;
    *room = size;
    return 1;
}

static inline uint64_t mixed(uint64_t hash, uint64_t part) {
    hash = (hash ^ part) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 32);
}

/* The length of the word that begins here, up to a space or the end, and its hash: of the parts of 8
 * bytes, the last one filled with zeros. Two words of the same length below 8 have the same hash only
 * if they are the same. */
static inline int64_t word_at(const uint8_t *text, const uint8_t *end, uint64_t *hash) {
    const uint8_t *at = text;
    uint64_t so_far = 0, part = 0;
    int bytes = 0;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    const uint64_t ones = 0x0101010101010101u;
    for (; end - at >= 8; at += 8) {
        memcpy(&part, at, 8);
        uint64_t others = part ^ ones * ' '; /* a space is 0, and the first 0 becomes negative */
        uint64_t spaces = (others - ones) & ~others & ones << 7;
        if (spaces) {
            bytes = __builtin_ctzll(spaces) / 8;
            *hash = mixed(so_far, part & (((uint64_t)1 << 8 * bytes) - 1));
            return at - text + bytes;
        }
        so_far = mixed(so_far, part);
    }
    part = 0;
#endif
    for (; at < end && *at != ' '; at++) {
        part |= (uint64_t)*at << 8 * bytes;
        if (++bytes == 8) {
            so_far = mixed(so_far, part);
            part = bytes = 0;
        }
    }
    *hash = mixed(so_far, part);
    return at - text;
}

/* The number of a word, which is put into the table if it is new. */
static inline int64_t number_of(Words *words, const uint8_t *text, int64_t length, uint64_t hash) {
    uint64_t slot = hash & words->mask;
    for (int32_t number; (number = words->slots[slot]) >= 0; slot = (slot + 1) & words->mask) {
        const Word *word = &words->word[number];
        if (word->hash == hash && word->length == length &&
            (length < 8 || memcmp(words->text + word->text, text, length) == 0))
            return number;
    }
    if (words->words == words->most) return FULL;
    if (!grow((void **)&words->text, &words->text_room, words->text_size + length, 1))
        return NO_MEMORY;
    memcpy(words->text + words->text_size, text, length);
    words->word[words->words] = (Word){hash, words->text_size, (int32_t)length, 0, 0};
    words->text_size += length;
    words->slots[slot] = (int32_t)words->words;
    return words->words++;
}

int64_t words_count(const Words *words) { return words->words; }

/* The words of texts: text i is the bytes from bounds[i] to bounds[i + 1], and its words are those
 * numbers in `found` from found_bounds[i] to found_bounds[i + 1].
 *
 * A text with a word of more than `longest` bytes, or, where `empty` is not allowed, with a space at
 * its edge or two in a row, has the one number BY_ITSELF: the tokenizer has to read it. `found` has
 * room for as many numbers as there are spaces and texts. New words have the numbers from the former
 * count on. Returns the count of words in the table, or FULL, where it has to be cleared. */
int64_t words_find(Words *words, const uint8_t *text, const int64_t *bounds, int64_t texts,
                   int64_t longest, int32_t empty, int32_t *found, int64_t *found_bounds) {
    int64_t size = 0;
    for (int64_t i = 0; i < texts; i++) {
        int64_t first = size, begin = bounds[i], end = bounds[i + 1];
        found_bounds[i] = first;
        for (int64_t at = begin; at <= end;) {
            uint64_t hash;
            int64_t start = at, length = word_at(text + at, text + end, &hash);
            at += length + 1;
            if (length > longest || (length == 0 && !empty)) {
                size = first;
                found[size++] = BY_ITSELF;
                break;
            }
            int64_t number = number_of(words, text + start, length, hash);
            if (number < 0) return number;
            found[size++] = (int32_t)number;
        }
    }
    found_bounds[texts] = size;
    return words->words;
}

/* Count the words of a text from a place on. Returns the place of the first word that is not counted:
 * beyond the text, or where the table is full. Or NO_MEMORY. */
int64_t words_tally(Words *words, const uint8_t *text, int64_t at, int64_t size) {
    while (at <= size) {
        uint64_t hash;
        int64_t length = word_at(text + at, text + size, &hash);
        int64_t number = number_of(words, text + at, length, hash);
        if (number == FULL) break;
        if (number < 0) return number;
        words->word[number].ids++;
        at += length + 1;
    }
    return at;
}

/* How often each word was counted. */
void words_times(const Words *words, int64_t *times) {
    for (int64_t number = 0; number < words->words; number++) times[number] = words->word[number].ids;
}

/* The bytes of the words from a number on, one after the other, and where each begins: `bounds` has
 * room for all of them and one more. */
const uint8_t *words_text(const Words *words, int64_t first, int64_t *bounds) {
    int64_t start = first < words->words ? words->word[first].text : words->text_size;
    for (int64_t number = first; number < words->words; number++)
        bounds[number - first] = words->word[number].text - start;
    bounds[words->words - first] = words->text_size - start;
    return words->text + start;
}

/* Give the words from a number on their ids. Returns 0, or NO_MEMORY. */
int64_t words_set(Words *words, int64_t first, const int32_t *ids, const int64_t *bounds) {
    int64_t count = words->words - first, size = bounds[count];
    if (!grow((void **)&words->ids, &words->ids_room, words->ids_size + size, sizeof *ids))
        return NO_MEMORY;
    memcpy(words->ids + words->ids_size, ids, size * sizeof *ids);
    for (int64_t i = 0; i < count; i++) {
        words->word[first + i].ids = words->ids_size + bounds[i];
        words->word[first + i].count = (int32_t)(bounds[i + 1] - bounds[i]);
    }
    words->ids_size += size;
    return 0;
}

/* The ids of texts from what words_find found; those of texts by themselves are in `others`, one
 * text after the other. `between` is the id that stands for a space, or -1. First without `ids`:
 * writes where the ids of each text end, and returns how many there are; then with room for them. */
int64_t words_ids(const Words *words, const int32_t *found, const int64_t *found_bounds,
                  int64_t texts, const int32_t *others, const int64_t *other_bounds,
                  int32_t between, int32_t *ids, int64_t *bounds) {
    int64_t size = 0, other = 0;
    bounds[0] = 0;
    for (int64_t i = 0; i < texts; i++) {
        int64_t first = found_bounds[i], last = found_bounds[i + 1];
        if (found[first] == BY_ITSELF) {
            int64_t count = other_bounds[other + 1] - other_bounds[other];
            if (ids) memcpy(ids + size, others + other_bounds[other], count * sizeof *ids);
            size += count;
            other++;
        } else {
            for (int64_t at = first; at < last; at++) {
                const Word *word = &words->word[found[at]];
                if (between >= 0 && at > first) {
                    if (ids) ids[size] = between;
                    size++;
                }
                if (ids)
                    for (int32_t k = 0; k < word->count; k++) ids[size + k] = words->ids[word->ids + k];
                size += word->count;
            }
        }
        bounds[i + 1] = size;
    }
    return size;
}
