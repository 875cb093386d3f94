// Tokenizers: the tokenizers JSON of a model folder, interpreted as the library that wrote it does.

export const SPECIALS = 4; // <pad>, <unk>, <s>, </s>
export const PAD = 0;
export const UNKNOWN = 1;
export const BEGIN = 2;
export const END = 3;
export const UNKNOWN_TAG = "?"; // in place of those that training does not have, where a model knows it
const SPACE = "\u2581";

// White space, punctuation as Unicode has them: JavaScript's \s differs.
const BLANK = "[\\t-\\r \\u0085\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]";
const PUNCTUATION = /[\p{P}$+<=>^`|~]/u;
const TAG = new RegExp(`^<([^<>\\s]+)>${BLANK}*`, "u");

/** The words of a text, separated by what Python's str.split() takes for white space. */
export function wordsOf(text) {
  return text.split(/[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/u).filter(Boolean);
}

/** Bytes as text; a byte order mark is a letter as any other. */
function utf8(bytes, fatal = false) {
  return new TextDecoder("utf-8", { ignoreBOM: true, fatal }).decode(bytes);
}

function escaped(text) {
  return text.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
}

/** A pattern of the file as a regular expression: there, ^ and $ are the ends of lines, \A and \z those
 * of a text. */
function pattern(ref) {
  if (ref.String !== undefined) return new RegExp(escaped(ref.String), "gu");
  const source = ref.Regex.replace(/^\^/, "(?<=^|\n)")
    .replace(/\$$/, "(?=\n|$)")
    .replace(/^\\A/, "^")
    .replace(/\\z$/, "$")
    .replaceAll("[\\s\\S]", "[^]")
    .replaceAll("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])")
    .replaceAll("[^\\s\\p{L}\\p{N}]", `(?:(?!${BLANK})[^\\p{L}\\p{N}])`)
    .replaceAll("\\S", `(?!${BLANK})[^]`)
    .replaceAll("\\s", BLANK);
  return new RegExp(source, "gu");
}

// ------------------------------------------------------------------------------- normalization

function normalizer(ref) {
  if (!ref) return (text) => text;
  switch (ref.type) {
    case "Sequence": {
      const steps = ref.normalizers.map(normalizer);
      return (text) => steps.reduce((so_far, step) => step(so_far), text);
    }
    case "NFC":
    case "NFD":
    case "NFKC":
    case "NFKD":
      return (text) => text.normalize(ref.type);
    case "Lowercase": // each letter by itself, as a final sigma is one like others
      return (text) => Array.from(text, (letter) => letter.toLowerCase()).join("");
    case "Prepend":
      return (text) => (text ? ref.prepend + text : text);
    case "Replace": {
      const what = pattern(ref.pattern);
      return (text) => text.replace(what, () => ref.content);
    }
    case "Strip": {
      const left = new RegExp(`^${BLANK}+`, "u");
      const right = new RegExp(`${BLANK}+$`, "u");
      return (text) => {
        const some = ref.strip_left ? text.replace(left, "") : text;
        return ref.strip_right ? some.replace(right, "") : some;
      };
    }
    case "Precompiled":
      return charsmap(ref.precompiled_charsmap);
    default:
      throw new Error(`The tokenizer has a normalizer of the kind ${ref.type}, unknown here.`);
  }
}

/** The rules of SentencePiece: a double array trie of what is replaced, then the replacements. */
function charsmap(encoded) {
  const bytes = Uint8Array.from(atob(encoded), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const size = view.getUint32(0, true);
  const unit = (node) => (node < size / 4 ? view.getUint32(4 + 4 * node, true) : undefined);
  const offset = (value) => (value >>> 10) << ((value & 0x200) >>> 6);
  const texts = bytes.subarray(4 + size);
  const encoder = new TextEncoder();

  function replacement(at) {
    return utf8(texts.subarray(at, texts.indexOf(0, at)));
  }

  function step(node, letter) {
    let value = unit(node);
    for (const byte of encoder.encode(letter)) {
      node ^= offset(value) ^ byte;
      value = unit(node);
      if (value === undefined || (value & 0x800000ff) >>> 0 !== byte) return null;
    }
    if (!((value >>> 8) & 1)) return { node, at: -1 };
    const leaf = unit(node ^ offset(value));
    return { node, at: leaf === undefined ? -1 : leaf & 0x7fffffff };
  }

  return (text) => {
    const letters = Array.from(text);
    const found = [];
    for (let place = 0; place < letters.length; ) {
      let reached = { node: 0, at: -1 };
      let length = 0;
      let at = -1;
      for (let i = place; i < Math.min(place + 32, letters.length); i++) {
        reached = step(reached.node, letters[i]);
        if (!reached) break;
        if (reached.at >= 0) [length, at] = [i - place + 1, reached.at];
      }
      found.push(length ? replacement(at) : letters[place]);
      place += length || 1;
    }
    return found.join("");
  };
}

// --------------------------------------------------------------------------------- words

/** Cut at matches: these are pieces of their own, or begin or end a piece, or are removed. */
function cut(text, what, behavior, invert = false) {
  const parts = [];
  let last = 0;
  for (const match of text.matchAll(what)) {
    if (!match[0]) continue;
    if (match.index > last) parts.push([text.slice(last, match.index), invert]);
    parts.push([match[0], !invert]);
    last = match.index + match[0].length;
  }
  if (last < text.length) parts.push([text.slice(last), invert]);
  const found = [];
  let open = false; // whether the next piece joins the last one
  for (const [part, matched] of parts) {
    if (behavior === "Removed") {
      if (!matched) found.push(part);
    } else if (behavior === "MergedWithPrevious") {
      if (matched && found.length && !open) found[found.length - 1] += part;
      else found.push(part);
      open = matched;
    } else if (behavior === "MergedWithNext") {
      if (open && !matched) found[found.length - 1] += part;
      else found.push(part);
      open = matched;
    } else if (behavior === "Contiguous") {
      if (matched && open) found[found.length - 1] += part;
      else found.push(part);
      open = matched;
    } else found.push(part);
  }
  return found;
}

const GPT2 =
  "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?(?:(?!BLANK)[^\\p{L}\\p{N}])+|BLANK+(?!(?!BLANK)[^])|BLANK+";

function preTokenizer(ref) {
  if (!ref) return (text) => (text ? [text] : []);
  switch (ref.type) {
    case "Sequence": {
      const steps = ref.pretokenizers.map(preTokenizer);
      return (text) => steps.reduce((pieces, step) => pieces.flatMap(step), text ? [text] : []);
    }
    case "Split": {
      const what = pattern(ref.pattern);
      return (text) => cut(text, what, ref.behavior, ref.invert);
    }
    case "WhitespaceSplit": {
      const what = new RegExp(BLANK, "gu");
      return (text) => cut(text, what, "Removed");
    }
    case "Punctuation": {
      const what = new RegExp(PUNCTUATION.source, "gu");
      return (text) => cut(text, what, ref.behavior);
    }
    case "Digits": {
      const what = /\p{N}/gu;
      const behavior = ref.individual_digits ? "Isolated" : "Contiguous";
      return (text) => cut(text, what, behavior);
    }
    case "Metaspace": {
      const scheme = ref.prepend_scheme ?? (ref.add_prefix_space === false ? "never" : "always");
      const what = new RegExp(escaped(ref.replacement), "gu");
      return (text, first = true) => {
        let whole = text.replaceAll(" ", ref.replacement);
        const prepends = scheme === "always" || (scheme === "first" && first);
        if (prepends && !whole.startsWith(ref.replacement)) whole = ref.replacement + whole;
        return ref.split === false ? [whole] : cut(whole, what, "MergedWithNext");
      };
    }
    case "ByteLevel": {
      const words = new RegExp(GPT2.replaceAll("BLANK", BLANK), "gu");
      return (text) => {
        const whole = ref.add_prefix_space && !text.startsWith(" ") ? ` ${text}` : text;
        const pieces = ref.use_regex === false ? [whole] : (whole.match(words) ?? []);
        return pieces.map((piece) =>
          Array.from(new TextEncoder().encode(piece), (byte) => LETTERS[byte]).join(""),
        );
      };
    }
    default:
      throw new Error(`The tokenizer has a pre-tokenizer of the kind ${ref.type}, unknown here.`);
  }
}

/** The letter by which byte-level tokenizers write each byte. */
function byteLetters() {
  const prints = (b) => (b > 0x20 && b < 0x7f) || (b > 0xa0 && b < 0xad) || b > 0xad;
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) =>
    String.fromCharCode(prints(byte) ? byte : next++),
  );
}

const LETTERS = byteLetters();
const BYTES = new Map(LETTERS.map((letter, byte) => [letter, byte]));

// ---------------------------------------------------------------------------------- models

function wordLevel(model, names) {
  const numbers = new Map(Object.entries(model.vocab));
  names(numbers);
  return (word) => [numbers.get(word) ?? UNKNOWN];
}

function bpe(model, names) {
  const numbers = new Map(Object.entries(model.vocab));
  names(numbers);
  const ranks = new Map();
  model.merges.forEach((merge, rank) => {
    const [one, other] = Array.isArray(merge) ? merge : merge.split(" ");
    const key = `${numbers.get(one)} ${numbers.get(other)}`;
    if (!ranks.has(key)) ranks.set(key, [rank, numbers.get(one + other)]);
  });
  const cache = new Map();

  function letters(word) {
    const found = [];
    let fused = false;
    for (const letter of word) {
      const id = numbers.get(letter);
      if (id !== undefined) {
        found.push(id);
        fused = false;
        continue;
      }
      const bytes = model.byte_fallback
        ? Array.from(new TextEncoder().encode(letter), (byte) =>
            numbers.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`),
          )
        : [undefined];
      if (bytes.every((one) => one !== undefined)) {
        found.push(...bytes);
        fused = false;
      } else if (model.unk_token !== null && model.unk_token !== undefined) {
        if (!(fused && model.fuse_unk)) found.push(UNKNOWN);
        fused = true;
      }
    }
    return found;
  }

  return (word) => {
    if (cache.has(word)) return cache.get(word);
    if (model.ignore_merges && numbers.has(word)) return [numbers.get(word)];
    const ids = letters(word);
    for (;;) {
      let best = null;
      for (let i = 0; i + 1 < ids.length; i++) {
        const merge = ranks.get(`${ids[i]} ${ids[i + 1]}`);
        if (merge && (!best || merge[0] < best[0])) best = [merge[0], i, merge[1]];
      }
      if (!best) break;
      ids.splice(best[1], 2, best[2]);
    }
    if (cache.size < 20000) cache.set(word, ids);
    return ids;
  };
}

function unigram(model, names) {
  const scores = model.vocab.map(([, score]) => score);
  const numbers = new Map(model.vocab.map(([piece], id) => [piece, id]));
  names(numbers);
  const longest = Math.max(...model.vocab.map(([piece]) => Array.from(piece).length));
  const unknown = Math.min(...scores) - 10;

  return (word) => {
    const letters = Array.from(word);
    const best = [{ score: 0, from: -1, id: -1 }];
    for (let start = 0; start < letters.length; start++) {
      const here = best[start].score;
      let single = false;
      let piece = "";
      for (let end = start + 1; end <= Math.min(start + longest, letters.length); end++) {
        piece += letters[end - 1];
        const id = numbers.get(piece);
        if (id === undefined) continue;
        const score = here + scores[id];
        if (!best[end] || score > best[end].score) best[end] = { score, from: start, id };
        single ||= end === start + 1;
      }
      if (!single && (!best[start + 1] || here + unknown > best[start + 1].score)) {
        best[start + 1] = { score: here + unknown, from: start, id: UNKNOWN };
      }
    }
    const found = [];
    for (let at = letters.length; at > 0; at = best[at].from) {
      const piece = letters.slice(best[at].from, at).join("");
      // Unknown letters in a row are one token.
      if (best[at].id === UNKNOWN && found.at(-1)?.id === UNKNOWN) found.at(-1).piece = piece + found.at(-1).piece;
      else found.push({ id: best[at].id, piece });
    }
    return found.reverse().flatMap(({ id, piece }) => {
      if (id !== UNKNOWN || !model.byte_fallback) return [id];
      const bytes = Array.from(new TextEncoder().encode(piece), (byte) =>
        numbers.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`),
      );
      return bytes.every((one) => one !== undefined) ? bytes : [id];
    });
  };
}

const MODELS = { WordLevel: wordLevel, BPE: bpe, Unigram: unigram };

// -------------------------------------------------------------------------------- decoders

/** From pieces to pieces; in the end they are joined. */
function decoder(ref) {
  if (!ref) return (pieces) => [pieces.join(" ")];
  switch (ref.type) {
    case "Sequence": {
      const steps = ref.decoders.map(decoder);
      return (pieces) => steps.reduce((so_far, step) => step(so_far), pieces);
    }
    case "Fuse":
      return (pieces) => [pieces.join("")];
    case "Replace": {
      const what = pattern(ref.pattern);
      return (pieces) => pieces.map((piece) => piece.replace(what, () => ref.content));
    }
    case "Strip":
      return (pieces) =>
        pieces.map((piece) => {
          let from = 0;
          let to = piece.length;
          while (from < ref.start && piece[from] === ref.content) from++;
          while (piece.length - to < ref.stop && piece[to - 1] === ref.content) to--;
          return piece.slice(from, Math.max(from, to));
        });
    case "WordPiece":
      return (pieces) =>
        pieces.map((piece, i) => {
          if (!i) return piece;
          return piece.startsWith(ref.prefix) ? piece.slice(ref.prefix.length) : ` ${piece}`;
        });
    case "Metaspace": {
      const strips = (ref.prepend_scheme ?? "always") !== "never";
      return (pieces) =>
        pieces.map((piece, i) => {
          const whole = piece.replaceAll(ref.replacement, " ");
          return !i && strips && whole.startsWith(" ") ? whole.slice(1) : whole;
        });
    }
    case "ByteLevel":
      return (pieces) => {
        const bytes = pieces.flatMap((piece) => {
          const letters = Array.from(piece, (letter) => BYTES.get(letter));
          return letters.includes(undefined) ? [...new TextEncoder().encode(piece)] : letters;
        });
        return [utf8(Uint8Array.from(bytes))];
      };
    case "ByteFallback":
      return (pieces) => {
        const found = [];
        let bytes = [];
        const flush = () => {
          if (!bytes.length) return;
          try {
            found.push(utf8(Uint8Array.from(bytes), true));
          } catch {
            found.push("\ufffd".repeat(bytes.length));
          }
          bytes = [];
        };
        for (const piece of pieces) {
          const byte = /^<0x([0-9A-F]{2})>$/.exec(piece);
          if (byte) bytes.push(parseInt(byte[1], 16));
          else {
            flush();
            found.push(piece);
          }
        }
        flush();
        return found;
      };
    default:
      throw new Error(`The tokenizer has a decoder of the kind ${ref.type}, unknown here.`);
  }
}

// ------------------------------------------------------------------------------- tokenizers

export class Tokens {
  /** parts: the JSON of a tokens file. form: the Unicode form of decoded text, or null. */
  constructor(parts, form = null) {
    this.form = form;
    this.names = [];
    const names = (numbers) => numbers.forEach((id, name) => (this.names[id] = name));
    this.normalize = normalizer(parts.normalizer);
    this.split = preTokenizer(parts.pre_tokenizer);
    this.encodeWord = MODELS[parts.model.type](parts.model, names);
    this.whole = parts.model.type === "WordLevel"; // a token is all that stands between two cuts
    this.join = decoder(parts.decoder);
    this.special = new Set();
    this.tags = new Map();
    this.added = new Map();
    for (const { id, content, special } of parts.added_tokens) {
      this.names[id] = content;
      if (special) this.special.add(id);
      else this.added.set(content, id);
      if (special && id >= SPECIALS) this.tags.set(content.slice(1, -1), id);
    }
    this.prefix = prefixOf(parts.post_processor);
    const whole = [...this.added.keys()].sort((a, b) => b.length - a.length).map(escaped);
    this.cuts = whole.length ? new RegExp(whole.join("|"), "gu") : null;
  }

  get size() {
    return this.names.length;
  }

  /** The ids of a text, without special tokens; tags that it begins with are one id each. */
  encode(text) {
    const { tags, rest } = this.#withoutTags(text);
    const ids = this.#plain(rest);
    if (tags.length || !this.tags.size) return [...tags, ...ids];
    return ids.length ? [...this.prefix, ...ids] : ids;
  }

  #plain(text) {
    if (!this.cuts) return this.#words(text);
    return cut(text, this.cuts, "Isolated").flatMap((part) =>
      this.added.has(part) ? [this.added.get(part)] : this.#words(part),
    );
  }

  #words(text) {
    return this.split(this.normalize(text)).flatMap(this.encodeWord);
  }

  #withoutTags(text) {
    const tags = [];
    let rest = text;
    for (let found = TAG.exec(rest); this.tags.size && found; found = TAG.exec(rest)) {
      const several = this.tagIds(found[1]) ?? this.#partlyKnown(found[1]);
      if (!several) break;
      tags.push(...several);
      rest = rest.slice(found[0].length);
    }
    return { tags, rest };
  }

  /** The ids of tags that are written together, such as V;PST; null where one is not known. A vocabulary
   * may have the parts of tags that are joined, IN+ESS (data.split_tags). */
  tagIds(text) {
    const tags = splitTags(text);
    for (const split of [[text], tags, tags.flatMap(partsOf), everywhere(text)]) {
      const ids = split.map((tag) => this.tags.get(tag.normalize("NFC")));
      if (ids.length && !ids.includes(undefined)) return ids;
    }
    return null;
  }

  /** The same where the vocabulary has a tag that stands for those that it has not; otherwise null. */
  #partlyKnown(text) {
    const other = this.tags.get(UNKNOWN_TAG);
    if (other === undefined) return null;
    const tags = splitTags(text);
    return (tags.length ? tags : [text]).flatMap((tag) => {
      const parts = this.tagIds(tag) ?? partsOf(tag).map((part) => this.tags.get(part.normalize("NFC")) ?? other);
      return parts.every((id) => id === other) ? [other] : parts;
    });
  }

  /** The tokens of a text, each as it stands there; tags are empty. For whole tokens alone. */
  standing(text) {
    const { tags, rest } = this.#withoutTags(text);
    const before = tags.length || (this.tags.size ? this.prefix.length : 0);
    return [...new Array(before).fill(""), ...this.#cut(rest)];
  }

  #cut(text) {
    if (!this.cuts) return this.split(this.normalize(text));
    return cut(text, this.cuts, "Isolated").flatMap((part) =>
      this.added.has(part) ? [part] : this.split(this.normalize(part)),
    );
  }

  /** The name of each token of a text; of one that is not in the vocabulary, what stands there. */
  spelt(text, ids) {
    const standing = this.standing(text);
    const known = (id) => id !== UNKNOWN && id < this.size;
    return ids.map((id, place) => (known(id) ? this.names[id] : standing[place] ?? ""));
  }

  /** What a text has that the vocabulary has not: words where tokens are words, else letters. */
  unknown(text) {
    const { rest } = this.#withoutTags(text);
    const parts = this.whole ? this.#cut(rest) : Array.from(rest);
    const ids = (part) => (this.whole ? this.encodeWord(part) : this.#words(part));
    return [...new Set(parts)].filter((part) => part.trim() && ids(part).includes(UNKNOWN));
  }

  /** The text of ids; those beyond the vocabulary are places of `copied`. */
  decode(ids, copied = []) {
    const name = (id) => this.names[id] ?? copied[id - this.size] ?? "";
    const pieces = ids.filter((id) => !this.special.has(id)).map(name);
    const text = this.join(pieces).join("");
    return this.form ? text.normalize(this.form) : text;
  }

  /** A text, the beginning of which has been read as `ids`, and what `more` adds to it; of the text
   * itself no more than its last letter may change. */
  continued(text, ids, more) {
    const plain = (some) => this.join(some.filter((id) => !this.special.has(id)).map((id) => this.names[id] ?? "")).join("");
    const rest = plain([...ids, ...more]).slice(plain(ids).length);
    if (!this.form || !rest) return text + rest;
    const end = text.search(/.\p{M}*$/su);
    return text.slice(0, Math.max(end, 0)) + (text.slice(Math.max(end, 0)) + rest).normalize(this.form);
  }

  /** The word that a token is; empty for a special one. */
  word(id) {
    return id < SPECIALS ? "" : (this.names[id] ?? "");
  }

  /** Each token as it is shown: a space is ▁. */
  pieces(ids, copied = []) {
    return ids.map((id) => {
      const name = this.names[id] ?? copied[id - this.size] ?? "<unk>";
      return name === " " ? SPACE : name.replaceAll("\u2060", "");
    });
  }
}

const everywhere = (text) => text.split(/[;|\s]+/u).filter(Boolean);

/** The tags of a cell, split outside brackets; everywhere if the brackets do not match. */
function splitTags(text) {
  const waiting = [];
  const tags = [""];
  for (const sign of text) {
    const opening = "([{".indexOf(sign);
    if (opening >= 0) waiting.push(")]}"[opening]);
    else if (")]}".includes(sign) && waiting.pop() !== sign) return everywhere(text);
    if (/[;|\s]/u.test(sign)) {
      if (!waiting.length) tags.push("");
      else if (!/\s/u.test(sign)) tags[tags.length - 1] += sign;
    } else tags[tags.length - 1] += sign;
  }
  return waiting.length ? everywhere(text) : tags.filter(Boolean);
}

/** The values that a feature joins: IN+ESS is IN and ESS. C++ is one, and so are brackets. */
const partsOf = (tag) => (/[([{)\]}]/u.test(tag) ? [tag] : tag.split(/(?<=[^+])\+(?=[^+])/u));

function prefixOf(template) {
  if (template?.type !== "TemplateProcessing") return [];
  const found = [];
  for (const piece of template.single) {
    if (!piece.SpecialToken) break;
    found.push(...template.special_tokens[piece.SpecialToken.id].ids);
  }
  return found.filter((id) => id >= SPECIALS);
}
